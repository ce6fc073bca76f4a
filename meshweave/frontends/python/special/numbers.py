"""Define special functions of one number or two by the formulas of `formulas`, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import DType, float64, floating
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.elementwise import Unary, alike, named
from meshweave.frontends.python.special import formulas
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor


def in_doubles(name: str, values: list[Tracer], of: Callable[..., Tracer]) -> Tracer:
    """Return what a function gives of floats, computed in float64 and rounded once."""
    kinds = [floating(value.dtype) for value in values]
    if any(kind.kind == "c" for kind in kinds):
        fail(f"special.{name}: a complex argument, floats are right")
    return e.astype(of(*[e.astype(value, float64) for value in values]), _widest(kinds))


def _widest(kinds: list[DType]) -> DType:
    return max(kinds, key=lambda kind: kind.bits)


def _special(name: str, doc: str, of: Callable[[Tracer], Tracer]) -> Unary:
    def function(x: ArrayLike, /) -> Tracer:
        return in_doubles(name, [tensor(x)], of)

    return primitive(named(function, name, f"Compute {doc}, elementwise."))


gammaln = _special("gammaln", "log |gamma(x)|", lambda x: formulas.gammaln(e, x))
gamma = _special("gamma", "the gamma function", lambda x: formulas.gamma(e, x))
digamma = _special("digamma", "the derivative of log gamma", lambda x: formulas.digamma(e, x))
psi = digamma
erfc = _special("erfc", "1 - erf(x), also where little is left", lambda x: formulas.erfc(e, x))
erfcx = _special("erfcx", "erfc(x) e^(x^2)", lambda x: formulas.erfcx(e, x))
erfinv = _special("erfinv", "the number whose erf is x", lambda x: formulas.erfinv(e, x))
erfcinv = _special("erfcinv", "the number whose erfc is x", lambda x: formulas.erfcinv(e, x))
ndtr = _special(
    "ndtr", "the part of a normal distribution that is below x", lambda x: formulas.ndtr(e, x)
)
log_ndtr = _special(
    "log_ndtr",
    "the logarithm of `ndtr`, which may be far from 0",
    lambda x: formulas.log_ndtr(e, x),
)
ndtri = _special("ndtri", "the number that `ndtr` gives x for", lambda x: formulas.ndtri(e, x))
_ORDER = "the modified Bessel function of order"
i0 = _special("i0", f"{_ORDER} 0", lambda x: formulas.bessel_i(e, 0, x))
i0e = _special("i0e", f"{_ORDER} 0, times e^-|x|", lambda x: formulas.bessel_ie(e, 0, x))
i1 = _special("i1", f"{_ORDER} 1", lambda x: formulas.bessel_i(e, 1, x))
i1e = _special("i1e", f"{_ORDER} 1, times e^-|x|", lambda x: formulas.bessel_ie(e, 1, x))


@primitive
def polygamma(n: int, x: ArrayLike, /) -> Tracer:
    """Compute the derivative of `digamma` of order n, a Python int, elementwise."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        fail(f"special.polygamma: n={n!r:.40}, an int of 0 or more is right")
    return in_doubles("polygamma", [tensor(x)], lambda v: formulas.polygamma(e, n, v))


@primitive
def _zeta(x: Tracer, q: Tracer) -> Tracer:
    return in_doubles("zeta", [x, q], lambda a, b: formulas.zeta(e, a, b))


def zeta(x: ArrayLike, q: ArrayLike = 1.0, /) -> Tracer:
    """Compute Hurwitz's zeta function, the sum of (q + k)^-x over k from 0 on, for x > 1 and q > 0, elementwise."""
    return _zeta(*_floats(x, q))


def _floats(*values: ArrayLike) -> list[Tracer]:
    """Return arguments as floats of one dtype."""
    given = alike(*values)
    return [e.astype(value, floating(value.dtype)) for value in given]


def betaln(a: ArrayLike, b: ArrayLike, /) -> Tracer:
    """Compute log |beta(a, b)|, elementwise, as gammaln(a) + gammaln(b) - gammaln(a + b)."""
    x, y = _floats(a, b)
    wide = [e.astype(v, float64) for v in (x, y)]
    found = gammaln(wide[0]) + gammaln(wide[1]) - gammaln(wide[0] + wide[1])
    return e.astype(found, x.dtype)


def beta(a: ArrayLike, b: ArrayLike, /) -> Tracer:
    """Compute e^betaln(a, b), elementwise, for a and b above 0."""
    x, y = _floats(a, b)
    return e.astype(e.exp(betaln(e.astype(x, float64), e.astype(y, float64))), x.dtype)


def multigammaln(a: ArrayLike, d: int, /) -> Tracer:
    """Compute the logarithm of the gamma function of d dims, a Python int, elementwise."""
    if isinstance(d, bool) or not isinstance(d, int) or d < 1:
        fail(f"special.multigammaln: d={d!r:.40}, an int of 1 or more is right")
    (x,) = _floats(a)
    wide = e.astype(x, float64)
    found = gammaln(wide)
    for k in range(1, d):
        found = found + gammaln(wide - 0.5 * k)
    return e.astype(found + d * (d - 1) / 4 * math.log(math.pi), x.dtype)


def factorial(n: ArrayLike, /) -> Tracer:
    """Compute gamma(n + 1), and 0 for n < 0, elementwise, as floats."""
    (x,) = _floats(n)
    return e.where(x < 0, 0.0, e.astype(gamma(e.astype(x, float64) + 1), x.dtype))


def xlogy(x: ArrayLike, y: ArrayLike, /) -> Tracer:
    """Compute x log(y), 0 where x is 0 and y is a number, elementwise."""
    a, b = _floats(x, y)
    none = _none_of(a, b)
    return e.where(none, 0.0, a * e.log(e.where(none, 1.0, b)))


def xlog1py(x: ArrayLike, y: ArrayLike, /) -> Tracer:
    """Compute x log(1 + y), 0 where x is 0 and y is a number, elementwise."""
    a, b = _floats(x, y)
    none = _none_of(a, b)
    return e.where(none, 0.0, a * e.log1p(e.where(none, 0.0, b)))


def _none_of(x: Tracer, y: Tracer) -> Tracer:
    return (x == 0) & (y == y)


def entr(x: ArrayLike, /) -> Tracer:
    """Compute -x log(x), 0 at 0 and -inf below, elementwise."""
    (a,) = _floats(x)
    inside = e.where(a > 0, a, 1.0)
    found = e.where(a > 0, -inside * e.log(inside), e.where(a == 0, 0.0, -math.inf))
    return e.where(a != a, a, found)


def rel_entr(x: ArrayLike, y: ArrayLike, /) -> Tracer:
    """Compute x log(x / y), 0 where x is 0 and y is not below it, inf elsewhere but for positive ones, elementwise."""
    a, b = _floats(x, y)
    inside = (a > 0) & (b > 0)
    p, q = (e.where(inside, v, 1.0) for v in (a, b))
    found = e.where(inside, p * e.log(p / q), e.where((a == 0) & (b >= 0), 0.0, math.inf))
    return e.where((a != a) | (b != b), math.nan, found)


def kl_div(x: ArrayLike, y: ArrayLike, /) -> Tracer:
    """Compute rel_entr(x, y) - x + y, inf where that is, elementwise."""
    a, b = _floats(x, y)
    return rel_entr(a, b) - a + b


def logit(x: ArrayLike, /) -> Tracer:
    """Compute log(x / (1 - x)), elementwise."""
    (a,) = _floats(x)
    wide = e.astype(a, float64)
    near = e.abs(wide - 0.5) < 0.2
    inside = e.where(near, wide, 0.5)
    close = e.log1p((2 * inside - 1) / (1 - inside))
    outside = e.where(near, 0.25, wide)
    return e.astype(e.where(near, close, e.log(outside) - e.log1p(-outside)), a.dtype)
