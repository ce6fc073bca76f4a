"""Describe the element types that a byte holds, and are no type of a buffer: floats of 8 bits, integers of 4.

A float of 8 bits is a sign, an exponent and a mantissa, as the OCP 8-bit Floating Point Specification (OFP8, 2023) has
f8E5M2 and f8E4M3FN; the two with FNUZ have no infinities, no zero with a sign, and one NaN. The last four bits of a
byte are an integer of 4, the first are zero: so `ml_dtypes` holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from meshweave.ir.bindings import ir


@dataclass(frozen=True)
class Float8:
    """Describe floats of 8 bits. element: the type in IR; mantissa: its bits; bias: of the exponent.

    least_nan: the least byte of a NaN without its sign; None: the byte 0x80 is the only one. infinity: the byte of
    infinity, None where there is none, and NaN is in its place.
    """

    element: str
    mantissa: int
    bias: int
    least_nan: int | None
    infinity: int | None

    @property
    def wide(self) -> str:
        """Return the type that such numbers are computed in."""
        return "f32"

    @property
    def nan(self) -> int:
        """Return the byte of a NaN that is quiet."""
        return 0x80 if self.least_nan is None else self.least_nan | 1 << (self.mantissa - 1)


@dataclass(frozen=True)
class Int4:
    """Describe integers of 4 bits, whose ops say whether they have a sign."""

    element: str = "i4"

    @property
    def wide(self) -> str:
        """Return the type that such numbers are computed in."""
        return "i8"


Format: TypeAlias = Float8 | Int4

FORMATS: dict[str, Format] = {
    f.element: f
    for f in (
        Float8("f8E4M3FN", 3, 7, 0x7F, None),
        Float8("f8E5M2", 2, 15, 0x7D, 0x7C),
        Float8("f8E4M3FNUZ", 3, 8, None, None),
        Float8("f8E5M2FNUZ", 2, 16, None, None),
        Int4(),
    )
}


def element_of(type_: ir.Type) -> ir.Type:
    """Return the type of the elements of a tensor, of a scalar its own."""
    return getattr(type_, "element_type", type_)


def format_of(type_: ir.Type) -> Format | None:
    """Return the format of a scalar or of a tensor's elements; None where a buffer holds them as they are."""
    return FORMATS.get(str(element_of(type_)))


def with_element(type_: ir.Type, element: ir.Type) -> ir.Type:
    """Return a scalar type, or a tensor's, with other elements."""
    if not isinstance(type_, ir.ShapedType):
        return element
    return ir.RankedTensorType.get(type_.shape, element, type_.encoding)


def byte_type() -> ir.Type:
    """Return the type that holds such a number."""
    return ir.IntegerType.get_signless(8)
