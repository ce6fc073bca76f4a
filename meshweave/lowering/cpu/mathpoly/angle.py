"""Compute sin, cos and tan, and the angles whose tangent is known."""

from __future__ import annotations

from typing import NamedTuple

from meshweave.ir.bindings import arith, ir, math
from meshweave.lowering.cpu.mathpoly.floats import INFINITY, Floats, P

_TWO_BY_PI = 0.6366197723675814


class _AngleConstants(NamedTuple):
    """Hold what angles are made of.

    quarter: pi / 2 in three parts, each as long as a number; eighth: pi / 4 in two.
    sin:     (sin(r) - r) / r^3 as a polynomial of r^2, for |r| <= pi / 4.
    cos:     (cos(r) - 1 + r^2 / 2) / r^4.
    atan:    (atan(t) - t) / t^3 as a polynomial of t^2, for |t| <= sqrt(2) - 1.
    most:    what is larger has too many quarters for those parts.
    half:    two numbers below it can be added.
    """

    quarter: tuple[float, float, float]
    eighth: tuple[float, float]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    atan: tuple[float, ...]
    most: float
    half: float


_SINGLE = _AngleConstants(
    (1.57079637, -4.37113883e-08, -1.71512451e-15),
    (0.785398185, -2.18556941e-08),
    (-0.000195868546, 0.00833274238, -0.166666642),
    (2.45471019e-05, -0.0013888299, 0.0416666642),
    (-0.0645430237, 0.10744644, -0.14264065, 0.199995443, -0.333333313),
    2.0**17,
    2.0**126,
)
_DOUBLE = _AngleConstants(
    (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
    (0.7853981633974483, 3.061616997868383e-17),
    (1.5917680584819893e-10, -2.5051125347963124e-08, 2.7557316069769172e-06, -0.00019841269836691388,
     0.008333333333330901, -0.16666666666666666),
    (-1.1382388702590075e-11, 2.087614277576571e-09, -2.7557317254315934e-07, 2.4801587298730497e-05,
     -0.0013888888888887372, 0.041666666666666664),
    (0.01628724865650684, -0.03457258363017948, 0.04551700795463873, -0.052304848911892576,
     0.05878934220145965, -0.06666425443763392, 0.0769229641262772, -0.09090908755058019,
     0.11111111105192664, -0.1428571428566028, 0.19999999999999807, -0.3333333333333333),
    2.0**30,
    2.0**1022,
)  # fmt: skip
# Polynomials of f64 numbers that are as exact as f32 needs.
_TAN_SINGLE = _DOUBLE._replace(
    sin=(2.72487978e-06, -0.000198400769, 0.00833333191, -0.166666672),
    cos=(-2.73001746e-07, 2.48005945e-05, -0.00138888881, 0.0416666679),
)


def _table(b: Floats) -> _AngleConstants:
    return _SINGLE if b.width == 32 else _DOUBLE


def too_large(b: Floats, x: ir.Value) -> ir.Value:
    """Tell whether an angle is finite, but more than `sin`, `cos` and `tan` may be given."""
    size = math.absf(x)
    above = arith.cmpf(P.OGT, size, b.number(_table(b).most))
    return arith.andi(above, arith.cmpf(P.OLT, size, b.number(INFINITY)))


class _Turned(NamedTuple):
    """Hold an angle as `quarters` of a turn and the rest, `angle` + `lost`, and the square of `angle`."""

    quarters: ir.Value
    angle: ir.Value
    lost: ir.Value
    square: ir.Value


def _turned(b: Floats, x: ir.Value, table: _AngleConstants) -> _Turned:
    """Take quarters from an angle: the first part of pi / 2 without rounding, then what rounding loses counts."""
    first, second, third = table.quarter
    n = math.roundeven(b.mul(x, b.number(_TWO_BY_PI)))
    rest = math.fma(n, b.number(-first), x)
    part = arith.mulf(n, b.number(-second))
    angle = arith.addf(rest, part)
    more = math.fma(n, b.number(-third), math.fma(n, b.number(-second), arith.negf(part)))
    lost = arith.addf(arith.addf(arith.subf(rest, angle), part), more)
    return _Turned(b.whole(n), angle, lost, b.mul(angle, angle))


def _sine(b: Floats, turned: _Turned, table: _AngleConstants) -> ir.Value:
    """Compute the sine of the rest."""
    _, r, lost, z = turned
    more = b.mul(b.mul(r, z), b.poly(z, table.sin))
    return arith.addf(r, b.add(more, lost))


def _cosine(b: Floats, turned: _Turned, table: _AngleConstants) -> ir.Value:
    """Compute the cosine of the rest: 1 - z / 2 as it rounds, with what that lost added to what is small."""
    _, r, lost, z = turned
    half = arith.mulf(z, b.number(0.5))
    near = arith.subf(b.number(1.0), half)
    missed = arith.subf(arith.subf(b.number(1.0), near), half)
    more = b.sub(b.mul(b.mul(z, z), b.poly(z, table.cos)), b.mul(r, lost))
    return arith.addf(near, arith.addf(missed, more))


def _wave(b: Floats, x: ir.Value, ahead: int) -> ir.Value:
    """Compute the sine of an angle `ahead` quarters further."""
    table = _table(b)
    turned = _turned(b, x, table)
    quarters = arith.addi(turned.quarters, b.bits(ahead)) if ahead else turned.quarters
    odd = b.is_odd(quarters)
    y = arith.select(odd, _cosine(b, turned, table), _sine(b, turned, table))
    return b.negate_if(b.is_odd(arith.shrui(quarters, b.bits(1))), y)


def sin(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the sine of an angle that is not too large."""
    return b.select(P.OEQ, x, b.number(0.0), x, _wave(b, x, 0))  # -0.0 too


def cos(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the cosine of an angle that is not too large."""
    return _wave(b, x, 1)


def tan(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the tangent of an angle that is not too large; of an f32 in f64."""
    wide = Floats(64)
    table = _TAN_SINGLE if b.width == 32 else _DOUBLE
    turned = _turned(wide, x if b.width == 64 else arith.extf(wide.type, x), table)
    s, c = _sine(wide, turned, table), _cosine(wide, turned, table)
    odd = wide.is_odd(turned.quarters)
    y = arith.divf(arith.select(odd, c, s), arith.select(odd, arith.negf(s), c))
    y = y if b.width == 64 else arith.truncf(b.type, y)
    return b.select(P.OEQ, x, b.number(0.0), x, y)


def atan(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the angle, at most pi / 2, whose tangent is x."""
    no = arith.constant(ir.IntegerType.get_signless(1), 0)
    return math.copysign(_angle(b, math.absf(x), b.number(1.0), no), x)


def atan2(b: Floats, y: ir.Value, x: ir.Value) -> ir.Value:
    """Compute the angle of the point (x, y)."""
    behind = arith.cmpf(P.OLT, math.copysign(b.number(1.0), x), b.number(0.0))
    angle = math.copysign(_angle(b, math.absf(y), math.absf(x), behind), y)
    return b.select(P.UNO, x, y, arith.addf(x, y), angle)


def _angle(b: Floats, y: ir.Value, x: ir.Value, behind: ir.Value) -> ir.Value:
    """Compute the angle of a point with y, x >= 0, or where x < 0 and it is given as -x, `behind`.

    The angle is that of a small tangent t and a number of eighths of a turn by pi.
    """
    table = _table(b)
    steep = arith.cmpf(P.OGT, y, x)
    low, high = _tamed(b, arith.select(steep, x, y), arith.select(steep, y, x))
    near = arith.cmpf(P.OGT, low, b.mul(high, b.number(0.41421356237309503)))
    t = arith.divf(
        arith.select(near, arith.subf(low, high), low),
        arith.select(near, arith.addf(low, high), high),
    )
    z = b.mul(t, t)
    part = b.add(b.mul(b.mul(t, z), b.poly(z, table.atan)), t)
    eighths = arith.select(near, b.number(1.0), b.number(0.0))
    for turned, whole in ((steep, 2.0), (behind, 4.0)):
        part = b.negate_if(turned, part)
        eighths = arith.select(turned, arith.subf(b.number(whole), eighths), eighths)
    first, second = table.eighth
    part = math.fma(eighths, b.number(second), part)
    return math.fma(eighths, b.number(first), part)


def _tamed(b: Floats, low: ir.Value, high: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return numbers of the same ratio that can be divided and added: 0 / 1 for two zeros, 1 / 1 for two infinities."""
    one = b.number(1.0)
    endless = arith.cmpf(P.OEQ, low, b.number(INFINITY))
    low = arith.select(endless, one, low)
    high = arith.select(endless, one, b.select(P.OEQ, high, b.number(0.0), one, high))
    shrink = b.select(P.OGE, high, b.number(_table(b).half), b.number(0.25), one)
    return b.mul(low, shrink), b.mul(high, shrink)
