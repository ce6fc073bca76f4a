"""Define the incomplete gamma functions: a series for x < a + 1, a continued fraction behind, until all are there."""

from __future__ import annotations

import math

from meshweave.frontends.python.control import while_loop
from meshweave.frontends.python.dtypes import float64, floating
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import asarray, full_like, ones_like, zeros_like
from meshweave.frontends.python.functions.elementwise import alike
from meshweave.frontends.python.functions.reduce import any as any_of
from meshweave.frontends.python.special import formulas
from meshweave.frontends.python.special.numbers import in_doubles
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer

_MOST = 100_000  # rounds; near x = a some 6 sqrt(a) are needed
_LAST, _STEP = 1e-17, 4e-16
_SMALL = 1e-290


def gammainc(a: ArrayLike, x: ArrayLike, /) -> Tracer:
    """Compute the regularised lower incomplete gamma function, for a and x not below 0, elementwise."""
    return _gammainc(*[e.astype(v, floating(v.dtype)) for v in alike(a, x)])


def gammaincc(a: ArrayLike, x: ArrayLike, /) -> Tracer:
    """Compute the regularised upper incomplete gamma function, for a and x not below 0, elementwise."""
    return _gammaincc(*[e.astype(v, floating(v.dtype)) for v in alike(a, x)])


@primitive
def _gammainc(a: Tracer, x: Tracer) -> Tracer:
    return in_doubles("gammainc", [a, x], lambda p, q: _parts(p, q)[0])


@primitive
def _gammaincc(a: Tracer, x: Tracer) -> Tracer:
    return in_doubles("gammaincc", [a, x], lambda p, q: _parts(p, q)[1])


def _parts(a: Tracer, x: Tracer) -> tuple[Tracer, Tracer]:
    """Return both parts, of which the one that is computed as 1 less the other is not small."""
    inside = (a > 0) & (x > 0) & (x < math.inf) & (a < math.inf)
    low = x < a + 1
    own = e.where(inside, a, 1.0)
    lower = _series(own, e.where(inside & low, x, 0.5 * own))
    upper = _fraction(own, e.where(inside & ~low, x, own + 2.0))
    power = formulas.gamma_power(e, own, e.where(inside, x, 1.0))
    below = e.where(low, lower * power, 1 - upper * power * own)
    above = e.where(low, 1 - lower * power, upper * power * own)
    all_ = (x == math.inf) & (a < math.inf) | (a == 0) & (x > 0)
    none = (x == 0) & (a > 0) | (a == math.inf) & (x < math.inf)
    wrong = ~(inside | all_ & (a >= 0) | none & (x >= 0))
    below = e.where(inside, below, e.where(all_, 1.0, 0.0))
    above = e.where(inside, above, e.where(all_, 0.0, 1.0))
    return e.where(wrong, math.nan, below), e.where(wrong, math.nan, above)


def _series(a: Tracer, x: Tracer) -> Tracer:
    """Return the sum of x^k / ((a + 1) .. (a + k)) over k from 0 on."""

    def goes_on(state: tuple[Tracer, Tracer, Tracer]) -> Tracer:
        k, term, total = state
        return (k < _MOST) & any_of(term > _LAST * total)

    def step(state: tuple[Tracer, Tracer, Tracer]) -> tuple[Tracer, Tracer, Tracer]:
        k, term, total = state
        term = term * (x / (a + k + 1))
        return k + 1, term, total + term

    one = ones_like(a)
    return while_loop(goes_on, step, (asarray(0.0, dtype=float64), one, one))[2]


def _fraction(a: Tracer, x: Tracer) -> Tracer:
    """Return the continued fraction of the upper part, divided by x^a e^-x / gamma(a) [Lentz 1976]."""
    State = tuple[Tracer, Tracer, Tracer, Tracer, Tracer]

    def goes_on(state: State) -> Tracer:
        k, *_, factor = state
        return (k < _MOST) & any_of(e.abs(factor - 1) > _STEP)

    def step(state: State) -> State:
        k, upper, lower, total, _ = state
        k = k + 1
        number, own = -k * (k - a), x + 1 - a + 2 * k
        upper = _kept_from_0(own + number / upper)
        lower = 1 / _kept_from_0(own + number * lower)
        factor = upper * lower
        return k, upper, lower, total * factor, factor

    first = 1 / (x + 1 - a)
    begin = (asarray(0.0, dtype=float64), full_like(a, 1 / _SMALL), first, first, zeros_like(a))
    return while_loop(goes_on, step, begin)[3]


def _kept_from_0(x: Tracer) -> Tracer:
    return e.where(e.abs(x) < _SMALL, _SMALL, x)
