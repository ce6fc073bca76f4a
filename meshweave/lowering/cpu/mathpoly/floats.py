"""Build expressions on floating-point numbers of one width, and on the integers that their bits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from meshweave.ir.bindings import arith, ir, math

P: TypeAlias = arith.CmpFPredicate
INFINITY = float("inf")


class Floats:
    """Build expressions on f32 or f64 numbers at the current insertion point.

    mantissa: bits after the point; bias: what is added to exponents.
    """

    def __init__(self, width: int) -> None:
        """width: 32 or 64."""
        self.width = width
        self.mantissa, self.bias = (23, 127) if width == 32 else (52, 1023)
        self.type = ir.F32Type.get() if width == 32 else ir.F64Type.get()
        self.integer = ir.IntegerType.get_signless(width)
        self._contract = ir.Attribute.parse("#arith.fastmath<contract>")

    def number(self, value: float) -> ir.Value:
        """Make a constant."""
        return arith.constant(self.type, ir.FloatAttr.get(self.type, value))

    def bits(self, value: int) -> ir.Value:
        """Make an integer constant."""
        return arith.constant(self.integer, ir.IntegerAttr.get(self.integer, value))

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Compute a + b, which may be joined with a product."""
        return arith.addf(a, b, fastmath=self._contract)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Compute a - b, which may be joined with a product."""
        return arith.subf(a, b, fastmath=self._contract)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Compute a * b, which may be joined with a sum."""
        return arith.mulf(a, b, fastmath=self._contract)

    def poly(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Compute the polynomial with these coefficients, highest power first."""
        result = self.number(coefficients[0])
        for c in coefficients[1:]:
            result = math.fma(result, x, self.number(c))
        return result

    def select(
        self, predicate: P, a: ir.Value, b: ir.Value, yes: ir.Value, no: ir.Value
    ) -> ir.Value:
        """Take `yes` where the comparison of a and b holds, else `no`."""
        return arith.select(arith.cmpf(predicate, a, b), yes, no)

    def clamp(self, x: ir.Value, low: float, high: float) -> ir.Value:
        """Limit x to [low, high]; NaN stays NaN."""
        lowest, highest = self.number(low), self.number(high)
        return self.select(P.OGT, x, highest, highest, self.select(P.OLT, x, lowest, lowest, x))

    def whole(self, n: ir.Value) -> ir.Value:
        """Convert a whole number of at most 2^21 (f64: 2^50): its last bits once 1.5 * 2^23 (2^52) is added.

        A NaN becomes some number, where arith.fptosi would give poison that spreads.
        """
        shift = self.number(1.5 * 2.0**self.mantissa)
        moved = arith.bitcast(self.integer, arith.addf(n, shift))
        return arith.subi(moved, arith.bitcast(self.integer, shift))

    def from_whole(self, n: ir.Value) -> ir.Value:
        """Convert an integer of at most 2^21 (f64: 2^50) to a number; not all machines do that with 64 bits."""
        shift = self.number(1.5 * 2.0**self.mantissa)
        moved = arith.addi(n, arith.bitcast(self.integer, shift))
        return arith.subf(arith.bitcast(self.type, moved), shift)

    def power_of_two(self, n: ir.Value) -> ir.Value:
        """Compute 2^n for an integer n that is the exponent of a normal number."""
        moved = arith.addi(n, self.bits(self.bias))
        return arith.bitcast(self.type, arith.shli(moved, self.bits(self.mantissa)))

    def scale(self, y: ir.Value, n: ir.Value) -> ir.Value:
        """Compute y 2^n for an integer n; it is halved, so that neither power overflows."""
        half = arith.shrsi(n, self.bits(1))
        rest = self.power_of_two(arith.subi(n, half))
        return self.mul(self.mul(y, self.power_of_two(half)), rest)

    def negate_if(self, condition: ir.Value, y: ir.Value) -> ir.Value:
        """Change the sign of y where the condition holds."""
        return arith.select(condition, arith.negf(y), y)

    def is_odd(self, n: ir.Value) -> ir.Value:
        """Tell whether an integer is odd."""
        last = arith.andi(n, self.bits(1))
        return arith.cmpi(arith.CmpIPredicate.ne, last, self.bits(0))
