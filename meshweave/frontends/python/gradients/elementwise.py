"""Hold the rules of elementwise functions: for each argument its cotangent, of g, the result, and the arguments.

Ties are those of JAX: equal maxima share what flows back, at 0 relu has 0 and abs 1. The walk sums over dims that were
broadcast, and converts.
"""

from __future__ import annotations

import math
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import zeros_like
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor


def _none(g: Tracer, *_: Any) -> Tracer:
    """Give zeros: the function is constant where it is continuous."""
    return zeros_like(g)


def _pow_base(g: Tracer, y: Tracer, x: ArrayLike, p: ArrayLike) -> Tracer:
    if isinstance(p, int | float) and not isinstance(p, bool):
        if p in (0, 1):
            return g if p else zeros_like(g)
        return e.multiply(g, e.multiply(p, e.pow(x, p - 1)))
    none = logic.equal(p, 0)
    exponent = e.where(none, 1, p)
    slope = e.multiply(exponent, e.pow(x, e.subtract(exponent, 1)))
    return e.multiply(g, e.where(none, 0, slope))


def _pow_exponent(g: Tracer, y: Tracer, x: ArrayLike, p: ArrayLike) -> Tracer:
    base = e.astype(tensor(x), y.dtype)
    return e.multiply(g, e.multiply(e.log(e.where(logic.equal(base, 0), 1, base)), y))


def _abs(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    if x.dtype.kind != "c":
        return e.where(logic.greater_equal(x, 0), g, e.negative(g))
    size = e.where(logic.equal(y, 0), 1, y)
    return e.multiply(e.conj(x), e.divide(g, size))


def _sign(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    if x.dtype.kind == "c":
        fail("mw.grad: sign of complex numbers has no derivative here")
    return zeros_like(g)


def _share(g: Tracer, y: Tracer, x: ArrayLike, other: ArrayLike) -> Tracer:
    """Give what flows back to the one of two that is chosen; where both are, half."""
    both = e.where(logic.equal(other, y), 0.5, 1.0)
    return e.multiply(g, e.where(logic.equal(x, y), both, 0.0))


def _finite(x: ArrayLike) -> Tracer:
    value = tensor(x)
    return e.where(logic.equal(value, math.inf), 0.0, value)


def _logaddexp(g: Tracer, y: Tracer, x: ArrayLike) -> Tracer:
    return e.multiply(g, e.exp(e.subtract(_finite(x), _finite(y))))


def _hypot(g: Tracer, y: Tracer, x: ArrayLike) -> Tracer:
    return e.multiply(g, e.divide(x, e.where(logic.equal(y, 0), 1, y)))


def _atan2(g: Tracer, above: ArrayLike, x1: ArrayLike, x2: ArrayLike) -> Tracer:
    squares = e.add(e.square(tensor(x1)), e.square(tensor(x2)))
    return e.multiply(g, e.divide(above, squares))


def _part(g: Tracer, y: Tracer, x: Tracer, number: int) -> Tracer:
    return e.multiply(g, (1.0, -1j)[number]) if x.dtype.kind == "c" else g


def _conj(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    return e.conj(g)


ELEMENTWISE: dict[str, Any] = {
    "exp": (lambda g, y, x: g * y,),
    "exp2": (lambda g, y, x: g * (y * math.log(2)),),
    "expm1": (lambda g, y, x: g * (y + 1),),
    "log": (lambda g, y, x: g / x,),
    "log1p": (lambda g, y, x: g / (x + 1),),
    "log2": (lambda g, y, x: g / (x * math.log(2)),),
    "log10": (lambda g, y, x: g / (x * math.log(10)),),
    "sqrt": (lambda g, y, x: g * (0.5 / y),),
    "rsqrt": (lambda g, y, x: g * (-0.5 * y / x),),
    "sin": (lambda g, y, x: g * e.cos(x),),
    "cos": (lambda g, y, x: -(g * e.sin(x)),),
    "tan": (lambda g, y, x: g * (1 + y * y),),
    "asin": (lambda g, y, x: g * e.rsqrt(1 - x * x),),
    "acos": (lambda g, y, x: -(g * e.rsqrt(1 - x * x)),),
    "atan": (lambda g, y, x: g / (1 + x * x),),
    "sinh": (lambda g, y, x: g * e.cosh(x),),
    "cosh": (lambda g, y, x: g * e.sinh(x),),
    "tanh": (lambda g, y, x: g * (1 - y * y),),
    "asinh": (lambda g, y, x: g * e.rsqrt(x * x + 1),),
    "acosh": (lambda g, y, x: g * e.rsqrt((x - 1) * (x + 1)),),
    "atanh": (lambda g, y, x: g / ((1 - x) * (1 + x)),),
    "erf": (lambda g, y, x: g * (2 / math.sqrt(math.pi) * e.exp(-(x * x))),),
    "erf_inv": (lambda g, y, x: g * (math.sqrt(math.pi) / 2 * e.exp(y * y)),),
    "scaled": (
        lambda g, y, x, times, more: g * times,
        lambda g, y, x, times, more: g * x,
        lambda g, y, x, times, more: g,
    ),
    "sigmoid": (lambda g, y, x: g * (y * (1 - y)),),
    "relu": (lambda g, y, x: e.where(logic.greater(x, 0), g, 0),),
    "atan2": (
        lambda g, y, x1, x2: _atan2(g, x2, x1, x2),
        lambda g, y, x1, x2: -_atan2(g, x1, x1, x2),
    ),
    "copysign": (
        lambda g, y, x1, x2: g * (e.sign(x1) * e.copysign(1.0, x2)),
        _none,
    ),
    "hypot": (
        lambda g, y, x1, x2: _hypot(g, y, x1),
        lambda g, y, x1, x2: _hypot(g, y, x2),
    ),
    "logaddexp": (
        lambda g, y, x1, x2: _logaddexp(g, y, x1),
        lambda g, y, x1, x2: _logaddexp(g, y, x2),
    ),
    "add": (lambda g, y, x1, x2: g, lambda g, y, x1, x2: g),
    "subtract": (lambda g, y, x1, x2: g, lambda g, y, x1, x2: -g),
    "multiply": (lambda g, y, x1, x2: g * x2, lambda g, y, x1, x2: g * x1),
    "divide": (lambda g, y, x1, x2: g / x2, lambda g, y, x1, x2: -(g * y) / x2),
    "floor_divide": (_none, _none),
    "remainder": (
        lambda g, y, x1, x2: g,
        lambda g, y, x1, x2: -(g * e.floor_divide(x1, x2)),
    ),
    "pow": (_pow_base, _pow_exponent),
    "negative": (lambda g, y, x: -g,),
    "abs": (_abs,),
    "sign": (_sign,),
    "ceil": (_none,),
    "floor": (_none,),
    "trunc": (_none,),
    "round": (_none,),
    "maximum": (_share, lambda g, y, x1, x2: _share(g, y, x2, x1)),
    "minimum": (_share, lambda g, y, x1, x2: _share(g, y, x2, x1)),
    "part": (_part,),
    "conj": (_conj,),
    "astype": (lambda g, y, x, dtype: g,),
    "where": (
        None,
        lambda g, y, c, x1, x2: e.where(c, g, 0),
        lambda g, y, c, x1, x2: e.where(c, 0, g),
    ),
}
"""Primitive -> for each argument what makes its cotangent: of that of the result, the result, and the arguments."""
