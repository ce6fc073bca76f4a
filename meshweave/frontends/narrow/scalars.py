"""Write ops on numbers that a byte holds as ops on wider ones: read, computed, rounded at each op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshweave.errors import CompileError
from meshweave.frontends.narrow.formats import (
    byte_type,
    element_of,
    format_of,
    with_element,
)
from meshweave.frontends.narrow.numbers import narrowed, widened
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.locations import location_text

_UNSIGNED = (
    *("arith.extui", "arith.uitofp", "arith.index_castui", "arith.divui", "arith.remui"),
    *("arith.ceildivui", "arith.shrui", "arith.maxui", "arith.minui"),
)
"""Ops that take integers as not negative."""


def rewrite(op: ir.Operation, given: Sequence[ir.Type], made: Sequence[ir.Type]) -> None:
    """Replace an op of `arith` or `math`. given, made: the types that its operands and results had.

    Raises CompileError for an op that there is no way to write.
    """
    b = OpBuilder.before(op)
    if op.name in _CASTS:
        found = _CASTS[op.name](b, op, given[0], made[0])
    else:
        found = _computed(b, op, given, made)
    for result, value in zip(op.results, found, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _wide(b: OpBuilder, value: ir.Value, type_: ir.Type, signed: bool) -> ir.Value:
    kind = format_of(type_)
    return value if kind is None else widened(b, value, kind, signed)


def _is_signed(op: ir.Operation) -> bool:
    if op.name == "arith.cmpi":
        return ir.IntegerAttr(op.attributes["predicate"]).value in range(2, 6)  # slt to sge
    return op.name not in _UNSIGNED


def _computed(
    b: OpBuilder, op: ir.Operation, given: Sequence[ir.Type], made: Sequence[ir.Type]
) -> list[ir.Value]:
    """Make the same op on wider numbers."""
    if op.name.startswith("math.ct") or op.name in ("arith.addui_extended", "arith.mului_extended"):
        raise CompileError(
            f"{op.name} of {element_of(given[0])} is not supported: convert to i8 before",
            location_text(op),
        )
    signed = _is_signed(op)
    values = [_wide(b, v, t, signed) for v, t in zip(op.operands, given, strict=True)]
    kinds = [format_of(type_) for type_ in made]
    types = [
        t if kind is None else with_element(t, ir.Type.parse(kind.wide))
        for t, kind in zip(made, kinds, strict=True)
    ]
    attributes = {name: op.attributes[name] for name in op.attributes}
    wide = b.op(op.name, types, values, **attributes)
    return [
        value if kind is None else narrowed(b, value, kind)
        for value, kind in zip(wide.results, kinds, strict=True)
    ]


def _extend_float(b: OpBuilder, op: ir.Operation, given: ir.Type, made: ir.Type) -> list[ir.Value]:
    """Read a number as f32, and go on to the type that is asked for: each holds all that there are."""
    number = _wide(b, op.operands[0], given, True)
    return [_to(b, number, made)]


def _to(b: OpBuilder, number: ir.Value, made: ir.Type) -> ir.Value:
    """Return a float as one of another type, which may be one that a byte holds."""
    kind = format_of(made)
    if kind is not None:
        narrow = element_of(number.type).width < 32
        wide = with_element(made, ir.F32Type.get())
        return narrowed(b, b.one("arith.extf", wide, number) if narrow else number, kind)
    have, want = element_of(number.type).width, element_of(made).width
    if have == want and number.type == made:
        return number
    return b.one("arith.extf" if want > have else "arith.truncf", made, number)


def _from_integer(b: OpBuilder, op: ir.Operation, given: ir.Type, made: ir.Type) -> list[ir.Value]:
    """Convert an integer; f64 holds those of 32 bits, and rounds larger ones far beyond what 8 bits tell apart."""
    value = _wide(b, op.operands[0], given, _is_signed(op))
    if format_of(made) is None:
        return [b.one(op.name, made, value)]
    exact = element_of(value.type).width <= 16
    wide = with_element(made, ir.F32Type.get() if exact else ir.F64Type.get())
    return [_to(b, b.one(op.name, wide, value), made)]


def _to_integer(b: OpBuilder, op: ir.Operation, given: ir.Type, made: ir.Type) -> list[ir.Value]:
    value = _wide(b, op.operands[0], given, True)
    kind = format_of(made)
    if kind is None:
        return [b.one(op.name, made, value)]
    return [narrowed(b, b.one(op.name, with_element(made, byte_type()), value), kind)]


def _resize(b: OpBuilder, op: ir.Operation, given: ir.Type, made: ir.Type) -> list[ir.Value]:
    """Extend or cut off an integer, or make an index of it."""
    value = _wide(b, op.operands[0], given, _is_signed(op))
    kind = format_of(made)
    target = made if kind is None else with_element(made, byte_type())
    if value.type != target:
        value = b.one(op.name, target, value)
    return [value if kind is None else narrowed(b, value, kind)]


def _same_bits(b: OpBuilder, op: ir.Operation, given: ir.Type, made: ir.Type) -> list[ir.Value]:
    """Take a byte as another kind of number."""
    return [op.operands[0]]


def _chosen(b: OpBuilder, op: ir.Operation, given: ir.Type, made: ir.Type) -> list[ir.Value]:
    return [b.one(op.name, op.operands[1].type, *op.operands)]


_CASTS: dict[str, Callable[[OpBuilder, ir.Operation, ir.Type, ir.Type], list[ir.Value]]] = {
    "arith.extf": _extend_float,
    "arith.truncf": _extend_float,
    "arith.sitofp": _from_integer,
    "arith.uitofp": _from_integer,
    "arith.fptosi": _to_integer,
    "arith.fptoui": _to_integer,
    "arith.extsi": _resize,
    "arith.extui": _resize,
    "arith.trunci": _resize,
    "arith.index_cast": _resize,
    "arith.index_castui": _resize,
    "arith.bitcast": _same_bits,
    "arith.select": _chosen,
}
