"""Compute powers and the reciprocal square root."""

from __future__ import annotations

from typing import NamedTuple

from meshweave.ir.bindings import arith, ir, math
from meshweave.lowering.cpu.mathpoly import exponential, logarithm
from meshweave.lowering.cpu.mathpoly.floats import INFINITY, Floats, P

_LOG2 = (0.693147180559663, 2.8235290563031577e-13)  # multiples of the first by e are exact
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
# (log((1 + s) / (1 - s)) - 2 s - 2 s^3 / 3) / s^5 as a polynomial of s^2
_LOG = (0.11723543246167338, 0.11706199729763007, 0.13334806136769606, 0.15384594934342297,
        0.18181818335674968, 0.22222222221654542, 0.2857142857142937, 0.4)  # fmt: skip
# What an f32 power needs of the logarithm and of e^x, in f64.
_LOG_SHORT = (0.1936338976551234, 0.2219135934656154, 0.28571755264836546, 0.3999999879325065,
              0.6666666666737866)  # fmt: skip
_EXP_SHORT = (2.4820879014394828e-05, 0.00019899235108986036, 0.0013888923748129334,
              0.008333298545546226, 0.04166666640530024, 0.16666666718801695, 0.500000000002089)  # fmt: skip


class _Pair(NamedTuple):
    """Hold a number as the sum of two, of which the second is what rounding the first lost."""

    high: ir.Value
    low: ir.Value


def rsqrt(b: Floats, x: ir.Value) -> ir.Value:
    """Compute 1 / sqrt(x)."""
    return arith.divf(b.number(1.0), math.sqrt(x))


def powf(b: Floats, x: ir.Value, y: ir.Value) -> ir.Value:
    """Compute x^y as the C library defines it; of f32 numbers in f64."""
    if b.width == 64:
        return _power(b, x, y, _exp_of_product(b, _log(b, math.absf(x)), y))
    wide = Floats(64)
    x, y = arith.extf(wide.type, x), arith.extf(wide.type, y)
    value = _short_exp(wide, arith.mulf(_bounded(wide, y), _short_log(wide, math.absf(x))))
    return arith.truncf(b.type, _power(wide, x, y, value))


def _power(b: Floats, x: ir.Value, y: ir.Value, value: ir.Value) -> ir.Value:
    """Return x^y, given |x|^y where x is neither 0 nor infinite nor NaN."""
    zero, one, endless, nan = (b.number(v) for v in (0.0, 1.0, INFINITY, float("nan")))
    size = math.absf(x)
    whole = arith.cmpf(P.OEQ, math.floor(y), y)
    half = arith.mulf(y, b.number(0.5))
    odd = arith.andi(whole, arith.cmpf(P.UNE, math.floor(half), half))
    below = arith.cmpf(P.OLT, x, zero)
    fraction = arith.andi(below, arith.cmpf(P.UNE, math.floor(y), y))
    value = arith.select(fraction, nan, value)
    value = b.select(P.OEQ, size, endless, b.select(P.OGT, y, zero, endless, zero), value)
    value = b.select(P.OEQ, size, zero, b.select(P.OGT, y, zero, zero, endless), value)
    value = arith.select(odd, math.copysign(value, x), value)
    value = b.select(P.UNO, x, y, nan, value)
    plain = arith.ori(arith.cmpf(P.OEQ, y, zero), arith.cmpf(P.OEQ, x, one))
    return arith.select(plain, one, value)


def _bounded(b: Floats, y: ir.Value) -> ir.Value:
    """Limit an exponent, so that it times 0 is 0; what is beyond is 0, 1 or infinite as a power anyway."""
    return b.clamp(y, -(2.0**64), 2.0**64)


def _short_log(b: Floats, x: ir.Value) -> ir.Value:
    e, m = logarithm.parted(b, x)
    f = arith.subf(m, b.number(1.0))
    s = arith.divf(f, arith.addf(f, b.number(2.0)))
    z = b.mul(s, s)
    part = math.fma(b.mul(s, z), b.poly(z, _LOG_SHORT), b.add(s, s))
    return math.fma(b.from_whole(e), b.number(0.6931471805599453), part)


def _short_exp(b: Floats, x: ir.Value) -> ir.Value:
    """Compute e^x, to infinity and to 0 beyond what is so in f32."""
    n, r = exponential.parted(b, b.clamp(x, -200.0, 200.0))
    y = b.add(math.fma(b.poly(r, _EXP_SHORT), b.mul(r, r), r), b.number(1.0))
    return b.mul(y, b.power_of_two(b.whole(n)))


def _fast_two_sum(a: ir.Value, b: ir.Value) -> _Pair:
    """Add two numbers of which the first is larger, or 0."""
    total = arith.addf(a, b)
    return _Pair(total, arith.subf(b, arith.subf(total, a)))


def _two_product(a: ir.Value, b: ir.Value) -> _Pair:
    """Multiply two numbers."""
    product = arith.mulf(a, b)
    return _Pair(product, math.fma(a, b, arith.negf(product)))


def _product(a: _Pair, b: _Pair) -> _Pair:
    """Multiply two pairs."""
    high, low = _two_product(a.high, b.high)
    return _Pair(high, math.fma(a.high, b.low, math.fma(a.low, b.high, low)))


def _log(b: Floats, x: ir.Value) -> _Pair:
    """Compute the logarithm to some 65 bits: e log(2) + 2 s + s^3 (2 / 3 + s^2 rest), s = (m - 1) / (m + 1)."""
    e, m = logarithm.parted(b, x)
    times = b.from_whole(e)
    s = _quotient(b, m)
    z = _product(s, s)
    rest = b.mul(z.high, b.poly(z.high, _LOG))
    third = _fast_two_sum(b.number(_TWO_THIRDS[0]), arith.addf(rest, b.number(_TWO_THIRDS[1])))
    cube = _product(s, _product(z, third))
    first = _fast_two_sum(arith.mulf(times, b.number(_LOG2[0])), arith.addf(s.high, s.high))
    total = _fast_two_sum(first.high, cube.high)
    low = arith.addf(
        arith.addf(first.low, total.low), arith.addf(cube.low, arith.addf(s.low, s.low))
    )
    return _fast_two_sum(total.high, math.fma(times, b.number(_LOG2[1]), low))


def _quotient(b: Floats, m: ir.Value) -> _Pair:
    """Compute (m - 1) / (m + 1)."""
    f = arith.subf(m, b.number(1.0))
    d = _fast_two_sum(b.number(2.0), f)
    inverse = arith.divf(b.number(1.0), d.high)
    high = arith.mulf(f, inverse)
    missed = math.fma(arith.negf(high), d.low, math.fma(arith.negf(high), d.high, f))
    return _Pair(high, arith.mulf(missed, inverse))


def _exp_of_product(b: Floats, log: _Pair, y: ir.Value) -> ir.Value:
    """Compute e^(y log)."""
    y = _bounded(b, y)
    high, low = _two_product(log.high, y)
    low = math.fma(log.low, y, low)
    least, most = -760.0, 760.0
    n, r = exponential.parted(b, b.clamp(high, least, most))
    r = arith.addf(r, b.clamp(low, -1.0, 1.0))
    return b.scale(b.add(exponential.less_one(b, r), b.number(1.0)), b.whole(n))
