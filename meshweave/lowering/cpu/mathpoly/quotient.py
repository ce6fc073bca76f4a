"""Compute remainders of floating-point numbers; of short integers, and their quotients, by division of floats."""

from __future__ import annotations

from meshweave.ir.bindings import arith, ir, math
from meshweave.lowering.cpu.mathpoly.floats import INFINITY, Floats, P


def too_many(b: Floats, x: ir.Value, y: ir.Value) -> ir.Value:
    """Tell whether y goes into x more often than `remainder` may be given."""
    x, y = math.absf(x), math.absf(y)
    above = arith.cmpf(P.OGE, arith.divf(x, y), b.number(2.0**b.mantissa))
    regular = arith.andi(
        arith.cmpf(P.OLT, x, b.number(INFINITY)), arith.cmpf(P.OGT, y, b.number(0.0))
    )
    return arith.andi(above, regular)


def remainder(b: Floats, x: ir.Value, y: ir.Value) -> ir.Value:
    """Compute x - n y for the quotient n, its fraction cut off. This is exact, as the C library's fmod is.

    The quotient as it rounds is n or n + 1. x - n y is a multiple of y's last place, less than y: one fused product
    and sum has it.
    """
    size, unit = math.absf(x), math.absf(y)
    n = math.floor(arith.divf(size, unit))
    rest = math.fma(arith.negf(n), unit, size)
    rest = b.select(P.OLT, rest, b.number(0.0), arith.addf(rest, unit), rest)
    rest = b.select(P.OLT, size, unit, size, rest)  # y may be infinite
    return math.copysign(rest, x)


def divided(x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
    """Compute the quotient of integers of up to 32 bits, its fraction cut off.

    What is no whole number is at least 2^-32 from one, more than a quotient of f64 numbers is off.
    """
    f64, wide = ir.F64Type.get(), ir.IntegerType.get_signless(64)
    number = arith.sitofp if signed else arith.uitofp
    quotient = arith.divf(number(f64, x), number(f64, y))
    return arith.trunci(x.type, arith.fptosi(wide, quotient))


def left(x: ir.Value, y: ir.Value, signed: bool) -> ir.Value:
    """Compute the remainder of integers of up to 32 bits."""
    return arith.subi(x, arith.muli(divided(x, y, signed), y))
