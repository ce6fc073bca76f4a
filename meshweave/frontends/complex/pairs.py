"""Remember the real and the imaginary part of each complex value."""

from __future__ import annotations

from collections.abc import Iterable

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type


def is_complex(type_: ir.Type) -> bool:
    """Tell whether a type is a complex number, or a tensor of them."""
    return isinstance(getattr(type_, "element_type", type_), ir.ComplexType) or isinstance(
        type_, ir.ComplexType
    )


def part_type(type_: ir.Type) -> ir.Type:
    """Return the type of a part of a complex number, or of a tensor of them; any other type is its own."""
    if isinstance(type_, ir.ComplexType):
        return type_.element_type
    if is_complex(type_):
        return tensor_type(list(type_.shape), type_.element_type.element_type)
    return type_


def real_types(values: Iterable[ir.Value]) -> list[ir.Type]:
    """Return the types of values, twice that of a part for each complex one."""
    return [part_type(v.type) for v in values for _ in range(1 + is_complex(v.type))]


class Pairs:
    """Hold the parts of complex values; the others stand for themselves.

    woven: those that are one tensor too, with both parts in its last dim.
    """

    def __init__(self) -> None:
        self._parts: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self.woven: dict[ir.Value, ir.Value] = {}

    def put(self, value: ir.Value, parts: tuple[ir.Value, ir.Value]) -> None:
        """Remember the parts of a complex value."""
        self._parts[value] = parts

    def part(self, value: ir.Value, number: int) -> ir.Value:
        """Return the real part of a value (0) or the imaginary one (1)."""
        return self._parts[value][number] if is_complex(value.type) else value

    def flat(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        """Return values, both parts of each complex one."""
        return [self.part(v, k) for v in values for k in range(1 + is_complex(v.type))]

    def stand_in(self, b: OpBuilder, argument: ir.Value) -> ir.Operation:
        """Let all that reads the argument of a block read an op in its place, and return that."""
        type_ = argument.type
        if isinstance(type_, ir.ComplexType):
            zeros = ir.ArrayAttr.get([ir.FloatAttr.get(type_.element_type, 0.0)] * 2)
            made = b.op("complex.constant", [type_], value=zeros)
        else:
            made = b.op("tensor.empty", [type_])
        argument.replace_all_uses_with(made.result)
        return made
