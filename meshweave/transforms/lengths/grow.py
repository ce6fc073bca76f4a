"""Give a program that was traced for some sizes those that memory is planned for: the bounds."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import (
    DYNAMIC,
    i64_array,
    static_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)
from meshweave.ir.locations import compile_error
from meshweave.ir.ops import body_of, functions_of, terminator
from meshweave.layout.lengths import Formula
from meshweave.transforms.base import fail, walk
from meshweave.transforms.lengths.family import Family


def grow(module: ir.Module, family: Family) -> None:
    """Change the types of a program to those for the bounds of `family`, which is about it.

    Raises CompileError, at the op, for what does not fit then: a slice that would end behind the end of a table, say.
    """
    family.planned = bounds = {dim.name: dim.max for dim in family.dims}

    def numbers(formulas: Sequence[Formula]) -> list[int]:
        return [formula.at(bounds) for formula in formulas]

    with module.operation.context, ir.Location.unknown():
        for value, formulas in family.shapes.items():
            value.set_type(tensor_type(numbers(formulas), value.type.element_type))
        for (made, name), formulas in family.extents.items():
            op = made.owner
            kept = [
                old if old == DYNAMIC else new
                for old, new in zip(op.attributes[name], numbers(formulas))
            ]
            op.attributes[name] = i64_array(kept)
        for op in family.uniform:
            splat = op.attributes["value"].get_splat_value()
            op.attributes["value"] = ir.DenseElementsAttr.get_splat(op.results[0].type, splat)
        for turned in family.turned:
            turned.read(turned.first.at(bounds) - turned.loop())
        for made, formulas in family.offsets.items():
            made.owner.attributes["static_offsets"] = i64_array(numbers(formulas))
        for function in functions_of(module).values():
            if not function.regions[0].blocks:
                continue  # declared, for what lies elsewhere
            body = body_of(function)
            types = [[v.type for v in vs] for vs in (body.arguments, terminator(body).operands)]
            function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        _check(module, family)


def _check(module: ir.Module, family: Family) -> None:
    """Refuse what does not fit the bounds."""
    said = ", ".join(f"{dim.name}={dim.max}" for dim in family.dims)
    for op in walk(module.operation):
        if op.name not in ("tensor.extract_slice", "tensor.insert_slice"):
            continue
        whole = op.operands[0 if op.name == "tensor.extract_slice" else 1].type.shape
        steps = zip(static_offsets(op), static_sizes(op), static_strides(op), whole)
        for d, (first, many, stride, size) in enumerate(steps):
            last = first + (many - 1) * stride
            if DYNAMIC not in (first, many, stride) and last >= size:
                fail(
                    op,
                    f"for {said}: {op.name}: element {last} along dim {d}, of size {size}: "
                    "a bound that all of the program fits is right",
                )
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        found = compile_error(error)
        raise CompileError(f"for {said}: {found.message}", found.location) from None
