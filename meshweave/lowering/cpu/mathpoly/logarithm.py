"""Compute logarithms."""

from __future__ import annotations

from meshweave.ir.bindings import arith, ir, math
from meshweave.lowering.cpu.mathpoly.floats import INFINITY, Floats, P

_SINGLE = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
           -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s^3 as a polynomial of s^2, for what `parted` leaves
_DOUBLE = (0.130873079847444, 0.13268704993901861, 0.15386242375622919, 0.18181795588207916,
           0.22222222392231097, 0.2857142857080116, 0.4000000000000088, 0.6666666666666666)  # fmt: skip
# Multiples of the first by e are exact.
_LOG2_HIGH, _LOG2_LOW = 0.693147180559663, 2.8235290563031577e-13
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of the f64 sqrt(1/2)


def log(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the natural logarithm: -inf at 0, NaN below; denormals are scaled first."""
    y = _log_single(b, x) if b.width == 32 else _log_double(b, x)
    return _ended(b, x, y)


def _ended(b: Floats, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return y, or the logarithm of an x that is not positive or not finite."""
    y = b.select(P.OEQ, x, b.number(0.0), b.number(-INFINITY), y)
    y = b.select(P.OEQ, x, b.number(INFINITY), x, y)
    return b.select(P.ULT, x, b.number(0.0), b.number(float("nan")), y)


def _log_single(b: Floats, x: ir.Value) -> ir.Value:
    tiny = arith.cmpf(P.OLT, x, b.number(1.17549435e-38))
    pattern = arith.bitcast(b.integer, arith.select(tiny, b.mul(x, b.number(33554432.0)), x))
    bias = arith.select(tiny, b.bits(151), b.bits(126))
    e = arith.sitofp(b.type, arith.subi(arith.shrui(pattern, b.bits(23)), bias))
    mantissa = arith.ori(arith.andi(pattern, b.bits(0x007FFFFF)), b.bits(0x3F000000))
    m = arith.bitcast(b.type, mantissa)
    small = arith.cmpf(P.OLT, m, b.number(0.707106781186547524))
    e = arith.select(small, b.sub(e, b.number(1.0)), e)
    m = b.sub(arith.select(small, b.add(m, m), m), b.number(1.0))
    square = b.mul(m, m)
    y = b.mul(b.mul(b.poly(m, _SINGLE), m), square)
    y = math.fma(e, b.number(-2.12194440e-4), y)
    y = math.fma(square, b.number(-0.5), y)
    return math.fma(e, b.number(0.693359375), b.add(m, y))


def parted(b: Floats, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return e and m of a positive f64 x = 2^e m, with m between sqrt(1/2) and sqrt(2)."""
    tiny = arith.cmpf(P.OLT, x, b.number(2.2250738585072014e-308))
    pattern = arith.bitcast(b.integer, arith.select(tiny, b.mul(x, b.number(2.0**54)), x))
    above = arith.subi(pattern, b.bits(_ROOT_HALF))
    e = arith.shrsi(above, b.bits(52))
    m = arith.bitcast(b.type, arith.subi(pattern, arith.shli(e, b.bits(52))))
    return arith.subi(e, arith.select(tiny, b.bits(54), b.bits(0))), m


def _from_parts(b: Floats, e: ir.Value, f: ir.Value) -> ir.Value:
    """Compute e log(2) + log(1 + f) for a small f: with s = f / (2 + f), f - (f^2 / 2 - s (f^2 / 2 + rest)).

    f itself is not rounded, and what is added to it is small.
    """
    s = arith.divf(f, arith.addf(f, b.number(2.0)))
    z = b.mul(s, s)
    half = b.mul(b.mul(f, f), b.number(0.5))
    rest = b.mul(s, b.add(half, b.mul(z, b.poly(z, _DOUBLE))))
    rest = math.fma(e, b.number(_LOG2_LOW), rest)
    return math.fma(e, b.number(_LOG2_HIGH), arith.subf(f, arith.subf(half, rest)))


def _log_double(b: Floats, x: ir.Value) -> ir.Value:
    e, m = parted(b, x)
    return _from_parts(b, b.from_whole(e), arith.subf(m, b.number(1.0)))


def log1p(b: Floats, x: ir.Value) -> ir.Value:
    """Compute log(1 + x) without losing small x."""
    return _log1p_single(b, x) if b.width == 32 else _log1p_double(b, x)


def _log1p_single(b: Floats, x: ir.Value) -> ir.Value:
    """Compute log(u) (x / (u - 1)) for u = 1 + x as it rounds."""
    u = arith.addf(x, b.number(1.0))
    d = arith.subf(u, b.number(1.0))
    y = arith.mulf(log(b, u), arith.divf(x, d))
    y = b.select(P.OEQ, d, b.number(0.0), x, y)
    return b.select(P.OEQ, x, b.number(INFINITY), x, y)


def _log1p_double(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the logarithm of u = 1 + x as it rounds, with what rounding lost added to what is small."""
    one = b.number(1.0)
    u = arith.addf(x, one)
    part = arith.subf(u, one)
    lost = arith.addf(arith.subf(one, arith.subf(u, part)), arith.subf(x, part))
    e, m = parted(b, u)
    power = b.power_of_two(arith.subi(b.bits(0), arith.minsi(e, b.bits(1000))))
    f = arith.addf(arith.subf(m, one), arith.mulf(lost, power))
    y = _ended(b, u, _from_parts(b, b.from_whole(e), f))
    return b.select(P.OEQ, x, b.number(0.0), x, y)  # -0.0 too


def log2(b: Floats, x: ir.Value) -> ir.Value:
    """Compute the logarithm of base 2, which is exact for powers of two."""
    wide = Floats(64)
    given = x if b.width == 64 else arith.extf(wide.type, x)
    e, m = parted(wide, given)
    zero, one = wide.number(0.0), wide.number(1.0)
    part = _from_parts(wide, zero, arith.subf(m, one))
    y = math.fma(part, wide.number(1.4426950408889634), wide.from_whole(e))
    y = _ended(wide, given, y)
    return y if b.width == 64 else arith.truncf(b.type, y)
