"""Read a number out of its byte, and write it into one, with ops on scalars (or, element by element, on tensors)."""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.frontends.narrow.formats import (
    Float8,
    Format,
    Int4,
    byte_type,
    element_of,
    with_element,
)
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, i64

_I = arith.CmpIPredicate


@dataclass(frozen=True)
class Bits:
    """Make ops on the bits of values of one type, integers with as many bits as it has.

    float: f32 or f64, or a tensor of them.
    """

    b: OpBuilder
    float: ir.Type

    @property
    def width(self) -> int:
        """Return the bits of a number."""
        width: int = element_of(self.float).width
        return width

    @property
    def mantissa(self) -> int:
        """Return the bits of the mantissa."""
        return {32: 23, 64: 52}[self.width]

    @property
    def bias(self) -> int:
        """Return what is added to an exponent."""
        return (1 << (self.width - self.mantissa - 2)) - 1

    @property
    def type(self) -> ir.Type:
        """Return the type of the bits."""
        return with_element(self.float, ir.IntegerType.get_signless(self.width))

    def number(self, value: int) -> ir.Value:
        """Make a constant of bits."""
        return constant(self.b, value, self.type)

    def power(self, exponent: int) -> ir.Value:
        """Make the float 2 to the power of `exponent`."""
        return constant(self.b, 2.0**exponent, self.float)

    def power_bits(self, exponent: int) -> int:
        """Return the bits of 2 to the power of `exponent`."""
        return (exponent + self.bias) << self.mantissa

    def of(self, value: ir.Value) -> ir.Value:
        """Return the bits of a float."""
        return self.b.one("arith.bitcast", self.type, value)

    def float_of(self, bits: ir.Value) -> ir.Value:
        """Return the float that has these bits."""
        return self.b.one("arith.bitcast", self.float, bits)

    def op(self, name: str, a: ir.Value, number: int | ir.Value) -> ir.Value:
        """Make `arith.<name>` of bits and a number, or of two values."""
        return self.b.binary(name, a, self.number(number) if isinstance(number, int) else number)

    def choose(
        self, predicate: arith.CmpIPredicate, a: ir.Value, number: int, yes: ir.Value, no: ir.Value
    ) -> ir.Value:
        """Return `yes` where the bits `a` compare so with a number, else `no`."""
        i1 = with_element(a.type, ir.IntegerType.get_signless(1))
        other = self.number(number)
        holds = self.b.one("arith.cmpi", i1, a, other, predicate=i64(predicate))
        return self.b.one("arith.select", yes.type, holds, yes, no)


def constant(b: OpBuilder, value: float, type_: ir.Type) -> ir.Value:
    """Make a constant of a scalar type, or of a tensor's type that is `value` everywhere."""
    element = element_of(type_)
    whole = isinstance(element, ir.IntegerType | ir.IndexType)
    one = ir.IntegerAttr.get(element, int(value)) if whole else ir.FloatAttr.get(element, value)
    return b.constant(
        ir.DenseElementsAttr.get_splat(type_, one) if isinstance(type_, ir.ShapedType) else one
    )


def widened(b: OpBuilder, byte: ir.Value, kind: Format, signed: bool = True) -> ir.Value:
    """Return the number that a byte holds, as f32; an integer as i8, whose last four bits have a sign or none."""
    if isinstance(kind, Float8):
        return _float(b, byte, kind)
    if not signed:
        return b.binary("andi", byte, constant(b, 15, byte.type))
    four = constant(b, 4, byte.type)
    return b.binary("shrsi", b.binary("shli", byte, four), four)


def narrowed(b: OpBuilder, number: ir.Value, kind: Format) -> ir.Value:
    """Return the byte of a number: of f32 or f64 the nearest, of two the even one; of an i8 the last four bits."""
    if isinstance(kind, Int4):
        return b.binary("andi", number, constant(b, 15, number.type))
    return _byte(b, number, kind)


def _float(b: OpBuilder, byte: ir.Value, kind: Float8) -> ir.Value:
    """Move exponent and mantissa to where f32 has them: as bits of f32 the number is too small by a power of two.

    So numbers below the least exponent come out right too.
    """
    bits = Bits(b, with_element(byte.type, ir.F32Type.get()))
    whole = b.one("arith.extui", bits.type, byte)
    size = bits.op("andi", whole, 0x7F)
    moved = bits.op("shli", size, bits.mantissa - kind.mantissa)
    scaled = b.binary("mulf", bits.float_of(moved), bits.power(bits.bias - kind.bias))
    found = bits.of(scaled)
    quiet = bits.number(0x7FC00000)
    if kind.infinity is not None:
        found = bits.choose(
            _I.uge, size, kind.infinity, bits.op("ori", moved, bits.power_bits(128)), found
        )
    elif kind.least_nan is not None:
        found = bits.choose(_I.eq, size, kind.least_nan, quiet, found)
    else:
        found = bits.choose(_I.eq, whole, kind.nan, quiet, found)
    sign = bits.op("shli", bits.op("andi", whole, 0x80), 24)
    return bits.float_of(bits.op("ori", found, sign))


def _byte(b: OpBuilder, number: ir.Value, kind: Float8) -> ir.Value:
    """Round the bits of a float to fewer of its mantissa; what is below the least exponent by an addition.

    That addition is of the power of two whose last bit is the least number there is: it rounds where that ends.
    """
    bits = Bits(b, number.type)
    shift, least = bits.mantissa - kind.mantissa, 1 - kind.bias
    own = bits.of(number)
    size = bits.op("andi", own, (1 << (bits.width - 1)) - 1)
    odd = bits.op("andi", bits.op("shrui", size, shift), 1)
    up = bits.op("addi", bits.op("addi", size, (1 << (shift - 1)) - 1), odd)
    code = bits.op("subi", bits.op("shrui", up, shift), (bits.bias - kind.bias) << kind.mantissa)
    edge = bits.mantissa + least - kind.mantissa
    sum_ = b.binary("addf", bits.float_of(size), bits.power(edge))
    small = bits.op("subi", bits.of(sum_), bits.power_bits(edge))
    code = bits.choose(_I.ult, size, bits.power_bits(least), small, code)
    beyond = kind.nan if kind.infinity is None else kind.infinity
    code = bits.choose(_I.uge, code, min(beyond, 0x80), bits.number(beyond), code)
    not_a_number = bits.power_bits(bits.bias + 1)
    code = bits.choose(_I.ugt, size, not_a_number, bits.number(kind.nan), code)
    sign = bits.op("andi", bits.op("shrui", own, bits.width - 8), 0x80)
    if kind.least_nan is None:  # no zero has a sign
        sign = bits.choose(_I.eq, code, 0, code, sign)
    whole = bits.op("ori", code, sign)
    return b.one("arith.trunci", with_element(number.type, byte_type()), whole)
