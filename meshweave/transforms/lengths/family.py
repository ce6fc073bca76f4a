"""Find the sizes that each call chooses: compare a program traced for some sizes with the same traced for others.

A dim of a tensor that is a formula in all of them has that formula for every size. So has a number that the program
holds, the count that a mean divides by, say. Anything else that differs is refused at its op.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshweave.ir.bindings import ir, linalg
from meshweave.layout.lengths import Dim, Formula, Sizes, fitted
from meshweave.transforms.base import fail, walk
from meshweave.transforms.lengths.turned import TurnedDim, turned_dims

EXTENTS = ("static_output_shape", "static_sizes")
"""Attributes that repeat sizes of types."""
_HELD = re.compile(r"(dense_resource<\w+?[0-9a-f]{64})(?:_\d+)*>")
"""A constant that lies elsewhere, known by its SHA-256."""
_PACKED = {"f64": "d", "f32": "f", "f16": "e"}


@dataclass(frozen=True)
class CountedConstant:
    """Describe a constant that depends on sizes: `formula`, or one divided by it."""

    op: ir.Operation
    formula: Formula
    inverse: bool


@dataclass
class Family:
    """Hold what differs with the sizes in a program.

    planned: the sizes that the program has. shapes: the dims of each tensor that has such a dim. constants: those that
    depend on sizes. offsets: of slices whose places do. extents: the attributes that repeat sizes of types. uniform:
    constants that are one number everywhere, in a tensor with such a dim. turned: the dims that ops read from their end
    on. Ops are known by their results: what hash an op has depends on its operands.
    """

    dims: Sequence[Dim]
    planned: Sizes
    shapes: dict[ir.Value, tuple[Formula, ...]] = field(default_factory=dict)
    constants: list[CountedConstant] = field(default_factory=list)
    offsets: dict[ir.Value, tuple[Formula, ...]] = field(default_factory=dict)
    extents: dict[tuple[ir.Value, str], tuple[Formula, ...]] = field(default_factory=dict)
    uniform: list[ir.Operation] = field(default_factory=list)
    turned: list[TurnedDim] = field(default_factory=list)

    def shape(self, value: ir.Value) -> tuple[Formula, ...]:
        """Return the dims of a tensor."""
        known = self.shapes.get(value)
        return known if known is not None else tuple(Formula(n) for n in value.type.shape)


def compared(modules: Sequence[ir.Module], sizes: Sequence[Sizes], dims: Sequence[Dim]) -> Family:
    """Compare a program, traced for the sizes of `probes`; refuse at its op what is no formula."""
    family = Family(dims, sizes[0])
    programs = [walk(module.operation) for module in modules]
    for ops in zip(*programs):
        if len({op.name for op in ops}) > 1:
            _other_form(ops[0], dims)
        _compare(ops, sizes, family)
    if len({len(ops) for ops in programs}) > 1:
        _other_form(programs[0][-1], dims)
    return family


def windows_grow(modules: Sequence[ir.Module]) -> bool:
    """Tell whether a named op reads a dim through windows, of another size in each of the programs: a convolution."""
    for ops in zip(*(walk(module.operation) for module in modules)):
        if not ops[0].name.startswith(("linalg.conv", "linalg.depthwise", "linalg.pooling")):
            continue
        maps = [attr.value for attr in linalg.get_indexing_maps(ops[0].opview)]
        for values, map_ in zip(zip(*(op.operands for op in ops)), maps):
            for sizes, expr in zip(zip(*(value.type.shape for value in values)), map_.results):
                if len(set(sizes)) > 1 and not isinstance(expr, ir.AffineDimExpr):
                    return True
    return False


def _other_form(op: ir.Operation, dims: Sequence[Dim]) -> None:
    """Refuse a program whose ops are others for other sizes."""
    names = " and ".join(dim.name for dim in dims)
    fail(
        op,
        f"the program is another one for other sizes of {names}: what Python does must not depend on them "
        f"({op.name} is where they differ)",
    )


def _compare(ops: Sequence[ir.Operation], sizes: Sequence[Sizes], family: Family) -> None:
    """Compare one op of each program."""
    op = ops[0]
    if len({(len(o.operands), len(o.results), len(o.regions)) for o in ops}) > 1:
        _other_form(op, family.dims)
    for same in zip(*(o.results for o in ops)):
        _note(op, same, sizes, family)
    for regions in zip(*(o.regions for o in ops)):
        for blocks in zip(*(region.blocks for region in regions)):
            for same in zip(*(block.arguments for block in blocks)):
                _note(op, same, sizes, family)
    for name in op.attributes:
        values = [o.attributes.get(name) for o in ops]
        if name == "function_type" or all(value == values[0] for value in values):
            continue
        if _is_one_weight(values):
            continue
        if name in EXTENTS:
            family.extents[op.results[0], name] = _fitted_all(op, name, sizes, values)
            continue
        if name == "static_offsets" and op.name == "tensor.extract_slice":
            found = [fitted(sizes, numbers) for numbers in zip(*values)]
            if None not in found:
                family.offsets[op.results[0]] = tuple(f for f in found if f is not None)
                continue
        turned = turned_dims(ops, sizes) if name == "indexing_maps" else None
        if turned is not None:
            family.turned += turned
            continue
        if op.name != "arith.constant":
            fail(
                op,
                f"{op.name}: {name} depends on the size of {_named(family.dims)}: {_brief(values)}",
            )
        if _is_one_number(values):
            family.uniform.append(op)
            continue
        counted = _constant(ops, sizes)
        if counted is None:
            fail(
                op,
                f"a number that depends on the size of {_named(family.dims)}, {_brief(values)}: "
                "sums of multiples of sizes, and one divided by such a sum, can be told for each call",
            )
        family.constants.append(counted)


def _is_one_weight(values: Sequence[ir.Attribute | None]) -> bool:
    """Tell whether constants are one weight, whose name MLIR has numbered when it read it again."""
    if any(value is None or isinstance(value, ir.DenseElementsAttr) for value in values):
        return False  # whose text has all elements
    found = [_HELD.match(str(value)) for value in values]
    return None not in found and len({one[1] for one in found if one is not None}) == 1


def _fitted_all(
    op: ir.Operation, name: str, sizes: Sequence[Sizes], values: Sequence[Any]
) -> tuple[Formula, ...]:
    """Return the formulas of sizes that an attribute lists; refuse others."""
    found = [fitted(sizes, numbers) for numbers in zip(*values)]
    if None in found:
        fail(op, f"{op.name}: {name} is {_brief(values)}: sums of multiples of sizes are right")
    return tuple([one for one in found if one is not None])


def _named(dims: Sequence[Dim]) -> str:
    return " or ".join(dim.name for dim in dims)


def _brief(values: Sequence[ir.Attribute | None]) -> str:
    return ", ".join(f"{value!s:.40}" for value in values)


def _note(
    op: ir.Operation, same: Sequence[ir.Value], sizes: Sequence[Sizes], family: Family
) -> None:
    """Note the shape of a value, given it in each program."""
    types = [value.type for value in same]
    if all(type_ == types[0] for type_ in types):
        return
    tensors = [type_ for type_ in types if isinstance(type_, ir.RankedTensorType)]
    kinds = {(len(t.shape), str(t.element_type)) for t in tensors}
    if len(tensors) < len(types) or len(kinds) > 1:
        _other_form(op, family.dims)
    shape = []
    for d, numbers in enumerate(zip(*(t.shape for t in tensors))):
        formula = fitted(sizes, numbers)
        if formula is None:
            fail(
                op,
                f"{op.name}: dim {d} of its result is {', '.join(map(str, numbers))} for "
                f"{'; '.join(_text(s) for s in sizes)}: a sum of multiples of sizes, or a product, is right",
            )
        shape.append(formula)
    family.shapes[same[0]] = tuple(shape)


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _constant(ops: Sequence[ir.Operation], sizes: Sequence[Sizes]) -> CountedConstant | None:
    """Return what a constant that differs is: a formula, or one divided by it; None for anything else."""
    numbers = [_number(op.attributes["value"]) for op in ops]
    found = [n for n in numbers if n is not None and math.isfinite(n)]
    if len(found) < len(numbers):
        return None
    element = str(getattr(ops[0].results[0].type, "element_type", ops[0].results[0].type))
    if all(n == int(n) for n in found):
        formula = fitted(sizes, [int(n) for n in found])
        if formula is not None:
            return CountedConstant(ops[0], formula, False)
    if 0 in found or any(round(1 / n) == 0 for n in found) or element not in _PACKED:
        return None
    formula = fitted(sizes, [round(1 / n) for n in found])
    if formula is None:
        return None
    if any(
        not formula.at(s) or _rounded(1 / formula.at(s), element) != n for s, n in zip(sizes, found)
    ):
        return None
    return CountedConstant(ops[0], formula, True)


def _is_one_number(values: Sequence[ir.Attribute]) -> bool:
    """Tell whether constants are one number everywhere, in tensors of different shapes."""
    numbers = [_number(value) for value in values]
    first = numbers[0]
    return first is not None and all(n == first or (n != n and first != first) for n in numbers)


def _number(attr: ir.Attribute) -> float | int | None:
    """Return the number that a constant is, everywhere; None where it holds several."""
    if isinstance(attr, ir.DenseElementsAttr):
        return _number(attr.get_splat_value()) if attr.is_splat else None
    if isinstance(attr, ir.IntegerAttr | ir.FloatAttr):
        value: float | int = attr.value
        return value
    return None


def _rounded(number: float, element: str) -> float:
    """Round a number to an element type."""
    kind = _PACKED[element]
    rounded: float = struct.unpack(kind, struct.pack(kind, number))[0]
    return rounded
