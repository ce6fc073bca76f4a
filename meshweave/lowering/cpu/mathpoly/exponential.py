"""Compute e^x and 2^x, and the hyperbolic functions, which are made of it."""

from __future__ import annotations

from typing import NamedTuple

from meshweave.ir.bindings import arith, ir, math
from meshweave.lowering.cpu.mathpoly.floats import INFINITY, Floats, P

_LOG2_E = 1.4426950408889634


class _ExponentialConstants(NamedTuple):
    """Hold what e^x is made of.

    rest:   (e^r - 1 - r) / r^2 for |r| <= log(2) / 2.
    log2:   log(2) in two parts, of which few multiples of the first lose nothing.
    e, two: between which x e^x is neither 0 nor infinite, and 2^x.
    sinh:   (sinh(r) - r) / r^3 as a polynomial of r^2, for |r| <= 1.
    """

    rest: tuple[float, ...]
    log2: tuple[float, float]
    e: tuple[float, float]
    two: tuple[float, float]
    sinh: tuple[float, ...]


_SINGLE = _ExponentialConstants(
    (0.000199165588, 0.00139434449, 0.00833326858, 0.0416663177, 0.166666672, 0.5),
    (0.693359375, -2.12194440e-4),
    (-103.9721, 88.72284),
    (-150.0, 128.0),
    (2.80614177e-06, 0.000198381225, 0.00833333936, 0.166666672),
)  # fmt: skip
_DOUBLE = _ExponentialConstants(
    (2.0926721448915805e-09, 2.5112041314853853e-08, 2.755723421477301e-07, 2.7557234884443435e-06,
     2.4801587372494703e-05, 0.00019841269896304635, 0.0013888888888859286, 0.008333333333317105,
     0.04166666666666672, 0.16666666666666682, 0.5),
    (0.6931471805599453, 2.3190468138462996e-17),
    (-745.1332191019412, 709.782712893384),
    (-1075.0, 1024.0),
    (7.746011426995292e-13, 1.6057684636163548e-10, 2.5052117639554737e-08, 2.7557319191673784e-06,
     0.00019841269841323515, 0.0083333333333333, 0.16666666666666666),
)  # fmt: skip
_TANH_P = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
           1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)  # fmt: skip
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def _table(b: Floats) -> _ExponentialConstants:
    return _SINGLE if b.width == 32 else _DOUBLE


def parted(b: Floats, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the whole number n nearest to x / log(2), and r = x - n log(2)."""
    first, second = _table(b).log2
    n = math.roundeven(b.mul(x, b.number(_LOG2_E)))
    rest = math.fma(n, b.number(-first), x)
    return n, math.fma(n, b.number(-second), rest)


def less_one(b: Floats, r: ir.Value) -> ir.Value:
    """Compute e^r - 1 for |r| <= log(2) / 2."""
    return math.fma(b.poly(r, _table(b).rest), b.mul(r, r), r)


def _ended(b: Floats, x: ir.Value, low: float, high: float, y: ir.Value, end: P) -> ir.Value:
    """Return y, or 0 where x is below `low`, infinity where it is above `high`."""
    y = b.select(P.OLT, x, b.number(low), b.number(0.0), y)
    return b.select(end, x, b.number(high), b.number(INFINITY), y)


def exp(b: Floats, x: ir.Value) -> ir.Value:
    """Compute e^x: 2^n times a polynomial of the remainder."""
    low, high = _table(b).e
    n, rest = parted(b, b.clamp(x, low, high))
    y = b.add(less_one(b, rest), b.number(1.0))
    return _ended(b, x, low, high, b.scale(y, b.whole(n)), P.OGT)


def exp2(b: Floats, x: ir.Value) -> ir.Value:
    """Compute 2^x."""
    low, high = _table(b).two
    inside = b.clamp(x, low, high)
    n = math.roundeven(inside)
    rest = b.mul(b.sub(inside, n), b.number(0.6931471805599453))
    y = b.add(less_one(b, rest), b.number(1.0))
    return _ended(b, x, low, high, b.scale(y, b.whole(n)), P.OGE)


def exp_falling(b: Floats, x: ir.Value) -> ir.Value:
    """Compute e^x in f32 for an x that is at most 0: nothing overflows, and what would be denormal is 0.

    n = round(x log2 e) is the sum's last bits where 1.5 * 2^23 is added: with 127 more, n as an exponent is a shift
    away. No n is out of range: what it is of x below the least, and of NaN, counts for nothing.
    """
    low, shift = -87.33654, 12582912.0 + 127.0
    first, second = _SINGLE.log2
    moved = math.fma(x, b.number(_LOG2_E), b.number(shift))
    n = arith.subf(moved, b.number(shift))
    rest = math.fma(n, b.number(-first), x)
    rest = math.fma(n, b.number(-second), rest)
    y = b.add(less_one(b, rest), b.number(1.0))
    power = arith.bitcast(b.type, arith.shli(arith.bitcast(b.integer, moved), b.bits(23)))
    return b.select(P.OLT, x, b.number(low), b.number(0.0), b.mul(y, power))


def expm1(b: Floats, x: ir.Value) -> ir.Value:
    """Compute e^x - 1 without losing small x: (2^n - 1) + 2^n (e^r - 1), where n = 0 loses nothing."""
    _, high = _table(b).e
    n, rest = parted(b, b.clamp(x, -40.0, high))
    power = b.whole(n)
    few = arith.minsi(power, b.bits(100))  # 2^n itself may be infinite
    y = _grown(b, b.power_of_two(few), rest)
    y = b.mul(y, b.power_of_two(arith.subi(power, few)))
    y = b.select(P.OGT, x, b.number(high), b.number(INFINITY), y)
    return b.select(P.OEQ, x, b.number(0.0), x, y)  # -0.0 too


def _grown(b: Floats, power: ir.Value, rest: ir.Value) -> ir.Value:
    """Compute `power` e^rest - 1."""
    return math.fma(power, less_one(b, rest), arith.subf(power, b.number(1.0)))


def tanh(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the hyperbolic tangent: x where |x| is small, what is nearest to it, +-1, from where it is.

    Derivatives need that, 1 - tanh^2: what is left of it where it should be 0 may be multiplied by much.
    """
    return _tanh_single(b, x) if b.width == 32 else _tanh_double(b, x)


def _tanh_single(b: Floats, x: ir.Value) -> ir.Value:
    inside = b.clamp(x, -7.90531110763549805, 7.90531110763549805)
    square = b.mul(inside, inside)
    y = arith.divf(b.mul(inside, b.poly(square, _TANH_P)), b.poly(square, _TANH_Q))
    y = b.select(P.OGE, math.absf(x), b.number(9.011), math.copysign(b.number(1.0), x), y)
    return b.select(P.OLT, math.absf(x), b.number(0.0004), x, y)


def _tanh_double(b: Floats, x: ir.Value) -> ir.Value:
    """Compute t / (t + 2) for t = e^2|x| - 1, where that is large 1 - 2 / (t + 2)."""
    size = b.clamp(math.absf(x), 0.0, 20.0)
    n, rest = parted(b, arith.addf(size, size))
    t = _grown(b, b.power_of_two(b.whole(n)), rest)
    more = arith.addf(t, b.number(2.0))
    large = arith.cmpf(P.OGT, size, b.number(0.55))
    part = arith.divf(arith.select(large, b.number(2.0), t), more)
    y = arith.select(large, arith.subf(b.number(1.0), part), part)
    y = b.select(P.OGE, size, b.number(19.0615), b.number(1.0), y)
    return math.copysign(y, x)


def _half_exp(b: Floats, x: ir.Value) -> ir.Value:
    """Compute e^x / 2 for an x that is not negative; it is infinite later than e^x."""
    high = _table(b).e[1] + 0.6931471805599453
    n, rest = parted(b, b.clamp(x, 0.0, high))
    y = b.add(less_one(b, rest), b.number(1.0))
    y = b.scale(y, arith.subi(b.whole(n), b.bits(1)))
    return b.select(P.OGT, x, b.number(high), b.number(INFINITY), y)


def sinh(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the hyperbolic sine: up to 1 as a polynomial, else (e^|x| - e^-|x|) / 2."""
    half = _half_exp(b, math.absf(x))
    large = math.copysign(b.sub(half, arith.divf(b.number(0.25), half)), x)
    square = b.mul(x, x)
    small = math.fma(b.mul(x, square), b.poly(square, _table(b).sinh), x)
    return b.select(P.OLT, math.absf(x), b.number(1.0), small, large)


def cosh(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the hyperbolic cosine."""
    half = _half_exp(b, math.absf(x))
    return b.add(half, arith.divf(b.number(0.25), half))
