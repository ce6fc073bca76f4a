"""Compute functions of complex numbers from their parts, with the special values of the array API standard.

Inverse functions follow W. Kahan, "Branch cuts for complex elementary functions" (1987): square roots beside both
branch points, and logarithms of halves where a square would overflow. A zero has a sign, which says on which side of a
cut it is. Near the unit circle a logarithm keeps what the rounding of squares and sums takes away.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from meshweave.frontends.python.builder import Body, Emit
from meshweave.frontends.python.dtypes import DType, bool_, part

Parts = tuple[str, str]
_LOG2 = math.log(2.0)


class _Reals:
    """Write real arithmetic of one dtype into a body; values are names."""

    def __init__(self, body: Body, dtype: DType) -> None:
        self.b, self.dtype = body, part(dtype)
        self.wide = dtype

    def add(self, x: str, y: str) -> str:
        return self.b.op("arith.addf", self.dtype, x, y)

    def sub(self, x: str, y: str) -> str:
        return self.b.op("arith.subf", self.dtype, x, y)

    def mul(self, x: str, y: str) -> str:
        return self.b.op("arith.mulf", self.dtype, x, y)

    def div(self, x: str, y: str) -> str:
        return self.b.op("arith.divf", self.dtype, x, y)

    def neg(self, x: str) -> str:
        return self.b.op("arith.negf", self.dtype, x)

    def math(self, name: str, *values: str) -> str:
        """Call a function of `math`."""
        return self.b.op(f"math.{name}", self.dtype, *values)

    def number(self, value: float) -> str:
        return self.b.constant(value, self.dtype)

    def scaled(self, x: str, factor: float) -> str:
        return self.mul(x, self.number(factor))

    def is_(self, predicate: str, x: str, value: float) -> str:
        """Compare with a number: no NaN is oeq, olt or ogt anything."""
        return self.b.compare(predicate, self.dtype, x, self.number(value))

    def infinite(self, x: str) -> str:
        return self.is_("oeq", self.math("absf", x), math.inf)

    def nan(self, x: str) -> str:
        return self.b.compare("uno", self.dtype, x, x)

    def unbounded(self, x: str) -> str:
        """Tell whether x is infinite or NaN."""
        return self.either(self.infinite(x), self.nan(x))

    def either(self, a: str, b: str) -> str:
        return self.b.op("arith.ori", bool_, a, b)

    def both(self, a: str, b: str) -> str:
        return self.b.op("arith.andi", bool_, a, b)

    def choose(self, condition: str, x: str, y: str) -> str:
        return self.b.select(condition, self.dtype, x, y)

    def above(self, x: str, y: str, limit: float) -> str:
        """Tell whether the magnitude of x or of y is larger than a number."""
        far = [self.is_("ogt", self.math("absf", v), limit) for v in (x, y)]
        return self.either(*far)

    def hypot(self, x: str, y: str) -> str:
        """Compute the length of (x, y): infinite where either is, NaN or not."""
        x, y = self.math("absf", x), self.math("absf", y)
        large = self.b.op("arith.maxnumf", self.dtype, x, y)
        ratio = self.div(self.b.op("arith.minnumf", self.dtype, x, y), large)
        length = self.mul(
            large, self.math("sqrt", self.add(self.number(1), self.mul(ratio, ratio)))
        )
        length = self.choose(self.is_("oeq", large, 0), large, length)
        length = self.choose(self.either(self.nan(x), self.nan(y)), self.add(x, y), length)
        endless = self.either(self.is_("oeq", x, math.inf), self.is_("oeq", y, math.inf))
        return self.choose(endless, self.number(math.inf), length)

    def squared(self, x: str) -> Parts:
        """Compute x * x as a rounded product and what its rounding took away.

        The product is no mulf, which becomes one multiply-add with the sum behind it and then is not rounded.
        """
        product = self.math("fma", x, x, self.number(0))
        return product, self.math("fma", x, x, self.neg(product))

    def exact_sum(self, x: str, y: str) -> Parts:
        """Compute x + y as a rounded sum and what its rounding took away [Knuth, TAOCP 2, 4.2.2]."""
        total = self.add(x, y)
        other = self.sub(total, x)
        return total, self.add(self.sub(x, self.sub(total, other)), self.sub(y, other))

    def sqrt(self, x: str, y: str) -> Parts:
        """Compute the square root of x + iy where no square of these overflows or vanishes."""
        size = self.math("absf", x)
        root = self.math("sqrt", self.scaled(self.add(size, self.hypot(x, y)), 0.5))
        other = self.div(self.math("absf", y), self.scaled(root, 2.0))
        other = self.choose(self.is_("oeq", root, 0), root, other)
        right = self.is_("oge", x, 0)
        re, im = self.choose(right, root, other), self.choose(right, other, root)
        return re, self.math("copysign", im, y)


def _of_parts(function: Callable[[_Reals, str, str], Parts]) -> Emit:
    """Return the emitter of a function of a + ib that gives both parts."""

    def emit(b: Body, t: DType, z: str) -> str:
        return b.complex(t, *function(_Reals(b, t), b.part(0, t, z), b.part(1, t, z)))

    return emit


def _op(name: str) -> Emit:
    """Return the emitter of an op of the dialect `complex`."""
    return lambda b, t, x: b.op(f"complex.{name}", t, x)


def _exp(r: _Reals, a: str, b: str) -> Parts:
    found = r.b.op("complex.exp", r.wide, r.b.complex(r.wide, a, b))
    return _grown(r, a, b, (r.b.part(0, r.wide, found), r.b.part(1, r.wide, found)), 0.0)


def _expm1(r: _Reals, a: str, b: str) -> Parts:
    re, im = _exp(r, a, b)
    less, half = r.math("expm1", a), r.math("sin", r.scaled(b, 0.5))
    near = r.sub(r.mul(less, r.math("cos", b)), r.scaled(r.mul(half, half), 2.0))
    near = r.choose(r.is_("oeq", near, 0), r.number(0), near)  # 0.0 of -0.0 too
    return _grown(r, a, b, (r.choose(r.infinite(less), re, near), im), -1.0)


def _grown(r: _Reals, a: str, b: str, found: Parts, lowest: float) -> Parts:
    """Put in the special values of exp or expm1. lowest: their value far to the left."""
    (re, im), round_ = found, r.unbounded(b)  # no angle
    left, right = (r.both(r.is_("oeq", a, end), round_) for end in (-math.inf, math.inf))
    re = r.choose(left, r.number(lowest), r.choose(right, r.number(math.inf), re))
    im = r.choose(left, r.number(0), r.choose(right, r.number(math.nan), im))
    return re, r.choose(r.is_("oeq", b, 0), b, im)


def _sqrt(r: _Reals, a: str, b: str) -> Parts:
    wide = r.dtype.bits == 64
    size = r.b.op("arith.maxnumf", r.dtype, r.math("absf", a), r.math("absf", b))
    small, large = r.is_("olt", size, 2.0**-900 if wide else 2.0**-90), r.is_("ogt", size, 2.0**100)
    up = 54 if wide else 24
    factor = r.choose(large, r.number(1 / 16), r.choose(small, r.number(4.0**up), r.number(1)))
    back = r.choose(large, r.number(4), r.choose(small, r.number(2.0**-up), r.number(1)))
    re, im = r.sqrt(r.mul(a, factor), r.mul(b, factor))
    endless = r.infinite(b)
    re = r.choose(endless, r.number(math.inf), r.mul(re, back))
    return re, r.choose(endless, b, r.mul(im, back))


def _log(r: _Reals, a: str, b: str) -> Parts:
    (u, low_u), (v, low_v) = r.squared(a), r.squared(b)
    less, first = r.exact_sum(u, r.number(-1))
    total, second = r.exact_sum(less, v)
    above = r.add(total, r.add(r.add(first, second), r.add(low_u, low_v)))
    return _log_length(r, a, b, above), r.math("atan2", b, a)


def _log1p(r: _Reals, a: str, b: str) -> Parts:
    (u, low_u), (v, low_v) = r.squared(a), r.squared(b)
    less, first = r.exact_sum(r.scaled(a, 2.0), u)
    total, second = r.exact_sum(less, v)
    above = r.add(total, r.add(r.add(first, second), r.add(low_u, low_v)))
    one_more = r.add(a, r.number(1))
    return _log_length(r, one_more, b, above), r.math("atan2", b, one_more)


def _log_length(r: _Reals, x: str, y: str, above: str) -> str:
    """Compute log |x + iy|. above: x*x + y*y - 1, exactly where that is near 0."""
    # Below `some` the length would round to few digits.
    far, some = r.above(x, y, 2.0**100), r.above(x, y, 2.0**-100)
    factor = r.choose(far, r.number(0.5), r.choose(some, r.number(1), r.number(2.0**60)))
    less = r.choose(far, r.number(_LOG2), r.choose(some, r.number(0), r.number(-60 * _LOG2)))
    length = r.hypot(r.mul(x, factor), r.mul(y, factor))
    found = r.add(r.math("log", length), less)
    near = r.both(r.is_("ogt", length, 0.5), r.is_("olt", length, 2.0))
    return r.choose(near, r.scaled(r.math("log1p", above), 0.5), found)


def _log_of(base: float) -> Emit:
    def function(r: _Reals, a: str, b: str) -> Parts:
        re, im = _log(r, a, b)
        return r.scaled(re, 1 / math.log(base)), r.scaled(im, 1 / math.log(base))

    return _of_parts(function)


def _times_grown(r: _Reals, a: str, odd: str, even: str) -> Parts:
    """Compute sinh(a) * odd and cosh(a) * even, also where only the factors lie beyond all numbers."""
    half = r.math("exp", r.scaled(r.math("absf", a), 0.5))
    first = r.scaled(half, 0.5)
    turned = r.mul(odd, r.math("copysign", r.number(1), a))
    far = r.is_("ogt", r.math("absf", a), 700.0 if r.dtype.bits == 64 else 80.0)
    left = r.choose(far, r.mul(r.mul(first, turned), half), r.mul(r.math("sinh", a), odd))
    return left, r.choose(far, r.mul(r.mul(first, even), half), r.mul(r.math("cosh", a), even))


def _sinh(r: _Reals, a: str, b: str) -> Parts:
    re, im = _times_grown(r, a, r.math("cos", b), r.math("sin", b))
    re = r.choose(r.both(r.nan(re), r.is_("oeq", a, 0)), a, re)
    re = r.choose(r.both(r.infinite(a), r.unbounded(b)), a, re)
    return re, r.choose(r.is_("oeq", b, 0), b, im)


def _cosh(r: _Reals, a: str, b: str) -> Parts:
    im, re = _times_grown(r, a, r.math("sin", b), r.math("cos", b))
    re = r.choose(r.both(r.infinite(a), r.unbounded(b)), r.number(math.inf), re)
    on_axis = r.both(r.nan(im), r.either(r.is_("oeq", a, 0), r.is_("oeq", b, 0)))
    zero = r.mul(*(r.math("copysign", r.number(n), v) for n, v in ((0, a), (1, b))))
    return re, r.choose(on_axis, zero, im)


def _tanh(r: _Reals, a: str, b: str) -> Parts:
    tan, sinh = r.math("tan", b), r.math("sinh", a)
    one, square = r.number(1), r.mul(sinh, sinh)
    beta, rho = r.add(one, r.mul(tan, tan)), r.math("sqrt", r.add(one, square))
    below = r.add(one, r.mul(beta, square))
    re = r.div(r.mul(r.mul(beta, rho), sinh), below)
    im = r.div(tan, below)
    size = r.math("absf", a)
    far = r.is_("ogt", size, 22.0 if r.dtype.bits == 64 else 10.0)  # 1 - tanh is below rounding
    small = r.math("exp", r.scaled(size, -2.0))
    turned = r.scaled(r.mul(r.math("sin", b), r.math("cos", b)), 4.0)
    endless = r.infinite(a)
    tail = r.choose(endless, r.math("copysign", r.number(0), b), r.mul(turned, small))
    unit = r.choose(r.either(endless, r.is_("oeq", r.sub(b, b), 0)), one, r.number(math.nan))
    re = r.choose(far, r.math("copysign", unit, a), re)
    im = r.choose(far, tail, im)
    return r.choose(r.is_("oeq", a, 0), a, re), r.choose(r.is_("oeq", b, 0), b, im)


def _far(r: _Reals) -> float:
    """Return the magnitude of z from which z*z - 1 is z*z to rounding."""
    return 2.0**30 if r.dtype.bits == 64 else 2.0**15


def _log_twice(r: _Reals, a: str, b: str) -> str:
    """Compute log(2 |a + ib|) of a large number."""
    return r.add(r.math("log", r.hypot(r.scaled(a, 0.5), r.scaled(b, 0.5))), r.number(2 * _LOG2))


def _acos(r: _Reals, a: str, b: str) -> Parts:
    one, minus = r.number(1), r.neg(b)
    left, right = r.sqrt(r.sub(one, a), minus), r.sqrt(r.add(one, a), b)
    re = r.scaled(r.math("atan2", left[0], right[0]), 2.0)
    im = r.math("asinh", r.sub(r.mul(right[0], left[1]), r.mul(right[1], left[0])))
    far = r.above(a, b, _far(r))
    re = r.choose(far, r.math("atan2", r.math("absf", b), a), re)
    im = r.choose(far, r.math("copysign", _log_twice(r, a, b), minus), im)
    half = r.both(r.is_("oeq", a, 0), r.nan(b))
    return r.choose(half, r.number(math.pi / 2), re), im


def _acosh(r: _Reals, a: str, b: str) -> Parts:
    re, im = _acos(r, a, b)
    return r.math("absf", im), r.math("copysign", re, b)


def _asinh(r: _Reals, a: str, b: str) -> Parts:
    one = r.number(1)
    left, right = r.sqrt(r.add(one, b), r.neg(a)), r.sqrt(r.sub(one, b), a)
    re = r.math("asinh", r.sub(r.mul(left[0], right[1]), r.mul(right[0], left[1])))
    im = r.math("atan2", b, r.sub(r.mul(left[0], right[0]), r.mul(left[1], right[1])))
    far = r.above(a, b, _far(r))
    re = r.choose(far, r.math("copysign", _log_twice(r, a, b), a), re)
    im = r.choose(far, r.math("atan2", b, r.math("absf", a)), im)
    return re, r.choose(r.is_("oeq", b, 0), b, im)


def _atanh(r: _Reals, a: str, b: str) -> Parts:
    """Compute atanh: that of |a| + ib or |a| - ib, with the sign of a."""
    one, x, y = r.number(1), r.math("absf", a), r.math("absf", b)
    sign = r.math("copysign", one, a)
    turned = r.mul(b, sign)
    less, more, square = r.sub(one, x), r.add(one, x), r.mul(y, y)
    ratio = r.div(r.scaled(x, 4.0), r.add(r.mul(less, less), square))
    re = r.scaled(r.math("log1p", ratio), 0.25)
    angle = r.math("atan2", r.scaled(turned, -2.0), r.sub(r.mul(less, more), square))
    im = r.scaled(angle, -0.5)
    wide = r.dtype.bits == 64
    beside = r.both(r.is_("oeq", x, 1), r.is_("olt", y, 2.0**-500 if wide else 2.0**-60))
    re = r.choose(beside, r.scaled(r.sub(r.number(_LOG2), r.math("log", y)), 0.5), re)
    far = r.above(a, b, 2.0**500 if wide else 2.0**60)
    length = r.hypot(r.scaled(x, 0.5), r.scaled(y, 0.5))
    away = r.div(r.div(r.scaled(x, 0.25), length), length)
    right = r.choose(r.nan(b), b, r.math("copysign", r.number(math.pi / 2), turned))
    re, im = r.choose(far, away, re), r.choose(far, right, im)
    none = r.either(r.is_("oeq", x, 0), r.either(r.infinite(a), r.infinite(b)))
    return r.mul(r.choose(none, r.number(0), re), sign), r.mul(im, sign)


def _turned(function: Callable[[_Reals, str, str], Parts]) -> Emit:
    """Return the emitter of the circular function of a hyperbolic one: -i f(iz)."""

    def circular(r: _Reals, a: str, b: str) -> Parts:
        re, im = function(r, r.neg(b), a)
        return im, r.neg(re)

    return _of_parts(circular)


def _sign(r: _Reals, a: str, b: str) -> Parts:
    wide = r.dtype.bits == 64
    far, some = r.above(a, b, 2.0**100), r.above(a, b, 2.0**-900 if wide else 2.0**-90)
    up, down = (2.0**60, 2.0**-60) if wide else (2.0**30, 2.0**-30)
    factor = r.choose(far, r.number(down), r.choose(some, r.number(1), r.number(up)))
    x, y = r.mul(a, factor), r.mul(b, factor)
    length = r.hypot(x, y)
    none = r.is_("oeq", length, 0)
    return r.choose(none, a, r.div(x, length)), r.choose(none, b, r.div(y, length))


def _abs(b: Body, t: DType, z: str) -> str:
    return _Reals(b, t).hypot(b.part(0, t, z), b.part(1, t, z))


def _pow(b: Body, t: DType, x: str, y: str) -> str:
    """Compute a power: 0 of 0 to what has a positive real part."""
    zero, real = b.constant(0, t), part(t)
    grows = b.compare("ogt", real, b.part(0, t, y), b.constant(0, real))
    none = b.op("arith.andi", bool_, b.compare("oeq", t, x, zero), grows)
    return b.select(none, t, zero, b.op("complex.pow", t, x, y))


NAMED: dict[str, Emit] = {
    "abs": _abs,
    "cos": _of_parts(lambda r, a, b: _cosh(r, r.neg(b), a)),
    "exp": _of_parts(_exp),
    "expm1": _of_parts(_expm1),
    "log": _of_parts(_log),
    "log1p": _of_parts(_log1p),
    "pow": _pow,
    "sign": _of_parts(_sign),
    "sin": _turned(_sinh),
    "sqrt": _of_parts(_sqrt),
    "tan": _turned(_tanh),
    "tanh": _of_parts(_tanh),
}
"""How functions are computed that are ops of the dialect `complex`: a program has the ops, its loader writes these."""
OF_COMPLEX: dict[str, Emit] = {
    **{name: _op(name) for name in (*NAMED, "rsqrt")},
    "log2": _log_of(2.0),
    "log10": _log_of(10.0),
    "sinh": _of_parts(_sinh),
    "cosh": _of_parts(_cosh),
    "acos": _of_parts(_acos),
    "acosh": _of_parts(_acosh),
    "asinh": _of_parts(_asinh),
    "atanh": _of_parts(_atanh),
    "asin": _turned(_asinh),
    "atan": _turned(_atanh),
}
"""How a program has functions of complex numbers, where there are any."""
