"""Lower `dist.merge`: pack what moves together into one tensor of integers, say how keys compare, and unpack.

Where no engine merges, all is gathered and put in order as a whole, of which a rank keeps its part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshweave.dialects.dist import axes_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.ops import replace_op
from meshweave.ir.sorting import Order, order, taken
from meshweave.layout.mesh import Mesh
from meshweave.lowering.buffers.steps import element_bytes

_LIMITS = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}
"""The bits of infinity."""


class KeyNumbers(NamedTuple):
    """Say how keys become numbers that are the smaller the earlier they come: see library/merge.mlir."""

    flip: int
    sign: int
    mask: int
    limit: int
    canonical: int

    @classmethod
    def of(cls, element: ir.Type, how: Order, width: int) -> KeyNumbers:
        """Return those of keys of a type, in integers of `width` bits."""
        every = (1 << width) - 1
        if isinstance(element, ir.FloatType):
            mask, limit = (1 << element.width) - 1, _LIMITS[str(element)]
            flip = mask if how.descending else 0
            return cls(flip, 1 << (element.width - 1), mask, limit, int(not how.total))
        unsigned = how.unsigned or element.width == 1
        flip = (0 if unsigned else 1 << (width - 1)) ^ (every if how.descending else 0)
        return cls(flip, 0, every, every, 0)

    @property
    def arguments(self) -> tuple[int, ...]:
        """Return them as integers of 64 bits with a sign."""
        return tuple(n - (1 << 64) if n >> 63 else n for n in self)


def packed(b: OpBuilder, values: Sequence[ir.Value], how: Order) -> tuple[ir.Value, int]:
    """Return tensors one behind the other, as integers, and the bytes of each of these; one tensor as it is."""
    nbytes = max(element_bytes(v.type.element_type) for v in values)
    if len(values) == 1:
        return values[0], nbytes
    unit, shape = ir.IntegerType.get_signless(8 * nbytes), list(values[0].type.shape)
    into = b.empty(tensor_type([len(values), *shape], unit))
    for k, value in enumerate(values):
        signed = not (k == 0 and how.unsigned)

        def element(inner: OpBuilder, given: list[ir.Value], signed: bool = signed) -> ir.Value:
            return _widened(inner, given[0], unit, signed)

        own = (
            value
            if value.type.element_type == unit
            else b.elementwise([value], b.empty(tensor_type(shape, unit)), element)
        )
        into = b.insert_slice(own, into, [k, *[0] * len(shape)], [1, *shape])
    return into, nbytes


def unpacked(b: OpBuilder, made: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the tensors of the types of `values` that a packed one holds."""
    if len(values) == 1:
        return [made]
    found, shape = [], list(values[0].type.shape)
    type_ = tensor_type(shape, made.type.element_type)
    for k, value in enumerate(values):
        kind = value.type.element_type
        own = b.extract_slice(made, type_, [k, *[0] * len(shape)], [1, *shape])
        if own.type != value.type:

            def element(inner: OpBuilder, given: list[ir.Value], kind: ir.Type = kind) -> ir.Value:
                return _narrowed(inner, given[0], kind)

            own = b.elementwise([own], b.empty(value.type), element)
        found.append(own)
    return found


def _widened(b: OpBuilder, value: ir.Value, unit: ir.Type, signed: bool) -> ir.Value:
    """Return the bits of a number as an integer of type `unit`, which keeps its order."""
    kind = value.type
    if isinstance(kind, ir.FloatType):
        value, signed = (
            b.one("arith.bitcast", ir.IntegerType.get_signless(kind.width), value),
            False,
        )
    if value.type == unit:
        return value
    plain = not signed or value.type.width == 1
    return b.one("arith.extui" if plain else "arith.extsi", unit, value)


def _narrowed(b: OpBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Return the number that bits are."""
    width = ir.IntegerType.get_signless(kind.width)
    if value.type != width:
        value = b.one("arith.trunci", width, value)
    return value if value.type == kind else b.one("arith.bitcast", kind, value)


def merge_whole(op: ir.Operation, mesh: Mesh) -> None:
    """Replace a `dist.merge`: gather all, find the places in order, and take the elements of this rank's part."""
    b, axes, dim, how = OpBuilder.before(op), axes_of(op), op.attributes["dim"].value, Order.of(op)
    ends = {"axes": op.attributes["axes"], "dim": op.attributes["dim"]}
    shape = list(op.operands[0].type.shape)
    size, ranks = shape[dim], math.prod(mesh.size(axis) for axis in axes)
    wide = [*shape[:dim], size * ranks, *shape[dim + 1 :]]
    every = [
        b.one("dist.all_gather", tensor_type(wide, v.type.element_type), v, **ends)
        for v in op.operands
    ]
    places = order(b, every[0], dim, size * ranks, how)
    me = b.one("dist.axis_index", ir.IndexType.get(), axes=op.attributes["axes"])
    begin = [b.times(me, size) if d == dim else 0 for d in range(len(shape))]
    own = b.extract_slice(places, tensor_type(shape, places.type.element_type), begin, shape)
    replace_op(op, [taken(b, v, own, dim) for v in every])
