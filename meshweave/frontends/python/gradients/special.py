"""Hold the rules of special functions."""

from __future__ import annotations

import math
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import float64
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.special import formulas
from meshweave.frontends.python.special.numbers import digamma, i0, i0e, i1, i1e, polygamma, zeta
from meshweave.frontends.python.tracer import Tracer

_ROOT = math.sqrt(math.pi)


def _i1(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    inside = e.where(x == 0, 1.0, x)
    return g * e.where(x == 0, 0.5, i0(x) - y / inside)


def _i1e(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    inside = e.where(x == 0, 1.0, x)
    return g * e.where(x == 0, 0.5, i0e(x) - y * (e.sign(x) + 1 / inside))


def _unknown(name: str, argument: int) -> Any:
    def rule(*_: Any) -> Tracer:
        fail(f"mw.grad: special.{name} has no derivative here for argument {argument}")

    return rule


def _gamma_slope(g: Tracer, a: Tracer, x: Tracer) -> Tracer:
    """Return the derivative of the lower incomplete gamma function by x: x^(a - 1) e^-x / gamma(a)."""
    p, q = (e.astype(v, float64) for v in (a, x))
    return g * e.astype(formulas.gamma_power(e, p, q) * p / q, g.dtype)


SPECIAL: dict[str, Any] = {
    "gammaln": (lambda g, y, x: g * digamma(x),),
    "gamma": (lambda g, y, x: g * y * digamma(x),),
    "digamma": (lambda g, y, x: g * polygamma(1, x),),
    "polygamma": (None, lambda g, y, n, x: g * polygamma(n + 1, x)),
    "zeta": (_unknown("zeta", 0), lambda g, y, x, q: g * (-x * zeta(x + 1, q))),
    "erfc": (lambda g, y, x: g * (-2 / _ROOT * e.exp(-(x * x))),),
    "erfcx": (lambda g, y, x: g * (2 * x * y - 2 / _ROOT),),
    "erfinv": (lambda g, y, x: g * (_ROOT / 2 * e.exp(y * y)),),
    "erfcinv": (lambda g, y, x: g * (-_ROOT / 2 * e.exp(y * y)),),
    "ndtr": (lambda g, y, x: g * (e.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)),),
    "log_ndtr": (lambda g, y, x: g * (e.exp(-0.5 * x * x - y) / math.sqrt(2 * math.pi)),),
    "ndtri": (lambda g, y, x: g * (math.sqrt(2 * math.pi) * e.exp(0.5 * y * y)),),
    "i0": (lambda g, y, x: g * i1(x),),
    "i0e": (lambda g, y, x: g * (i1e(x) - e.sign(x) * y),),
    "i1": (_i1,),
    "i1e": (_i1e,),
    "gammainc": (_unknown("gammainc", 0), lambda g, y, a, x: _gamma_slope(g, a, x)),
    "gammaincc": (_unknown("gammaincc", 0), lambda g, y, a, x: -_gamma_slope(g, a, x)),
}
"""Primitive -> for each argument what makes its cotangent."""
