"""Fix ops that read tensors through windows: a rank has the indices that its own block of the result is made of.

A slice takes all of its window. What puts tensors side by side along a dim that is cut (concat, pad, insert_slice) gets
one window of each, all as long as the rank's block of the result, and takes each element from one of them by its place
in the whole dim.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import (
    Index,
    OpBuilder,
    i64_array,
    mixed_offsets,
    static_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)
from meshweave.ir.ops import producer, terminator
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local
from meshweave.transforms.partitioning.lookups import look_up_slice, put_slice
from meshweave.transforms.partitioning.place import CutDim, GlobalIndex
from meshweave.transforms.propagation.bodies import is_tensor

Piece = tuple[int, ir.Value]
"""Where a piece of a dim begins, and its window of every rank, or a scalar that all its elements are."""


class SliceRange(NamedTuple):
    """Describe the places of a dim that a slice takes: `size` of them from `offset` on, `stride` apart."""

    offset: Index
    size: int
    stride: int

    @property
    def order(self) -> int:
        """Return 0 where the places are not known, 1 where they are apart, 2 where they are side by side."""
        return 0 if not isinstance(self.offset, int) else 1 if self.stride != 1 else 2


@dataclass(frozen=True)
class LocalOp:
    """Hold an op whose types are local, with the layouts that it runs with."""

    op: ir.Operation
    operands: Sequence[Layout | None]
    results: Sequence[Layout | None]
    local: Local

    def axes(self, dim: int) -> tuple[str, ...]:
        """Return the axes that a dim of the result is cut over; none where they have one rank."""
        assert self.results[0] is not None
        axes = self.results[0].axes_of(dim)
        return axes if self.local.mesh.axis_count(axes) > 1 else ()

    def extent(self, dim: int) -> int:
        """Return the extent of a dim of the whole result."""
        result = self.op.results[0]
        whole = self.local.uneven.get(result, self.local.windowed.get(result))
        if whole is not None:
            return whole[dim]
        return int(result.type.shape[dim]) * self.local.mesh.axis_count(self.axes(dim))

    def replace(self, value: ir.Value) -> None:
        """Put `value` in the place of the result."""
        self.local.replace(self.op, [value])

    def joined(self, b: OpBuilder, dim: int, pieces: Sequence[Piece]) -> ir.Value:
        """Return pieces side by side along a dim that is cut."""
        tensors = [value for _, value in pieces if is_tensor(value.type)]
        type_ = tensors[0].type
        assert self.results[0] is not None
        cut = GlobalIndex.of(b, CutDim.of(self.results[0], dim, self.extent(dim)), self.local)

        def body(inner: OpBuilder, elements: list[ir.Value]) -> ir.Value:
            place = cut.whole(inner, inner.loop_index(dim))
            rest = iter(elements)
            made = None
            for begin, value in pieces:
                element = next(rest) if is_tensor(value.type) else value
                if made is not None:
                    late = inner.compare(arith.CmpIPredicate.uge, place, inner.index(begin))
                    element = inner.select(late, element, made)
                made = element
            return made

        return b.elementwise(tensors, b.empty(type_), body)


def _extract_slice(it: LocalOp) -> None:
    """Let a slice take all of each window: what it leaves out is not on this rank."""
    op, layout = it.op, it.operands[0]
    offsets, sizes, strides = static_offsets(op), static_sizes(op), static_strides(op)
    shape, mesh = op.operands[0].type.shape, it.local.mesh
    assert layout is not None
    found = look_up_slice(op, layout, it.local)
    for d in range(layout.ndim):
        if d in found or (layout.window(d) is None and mesh.axis_count(layout.axes_of(d)) == 1):
            continue
        offsets[d], sizes[d] = 0, (shape[d] - 1) // strides[d] + 1
    op.attributes["static_offsets"] = i64_array(offsets)
    op.attributes["static_sizes"] = i64_array(sizes)


def _concat(it: LocalOp) -> None:
    dim = it.op.attributes["dim"].value
    if not it.axes(dim):
        return
    pieces = []
    for layout, value in zip(it.operands, it.op.operands):
        assert layout is not None
        step_low = layout.window(dim)
        pieces.append((0 if step_low is None else -step_low[1], value))
    it.replace(it.joined(OpBuilder.before(it.op), dim, pieces))


def _pad(it: LocalOp) -> None:
    """Put padding around, along the last dims first; along dims that are whole on a rank into a filled tensor."""
    low, high = (list(it.op.attributes[name]) for name in ("static_low", "static_high"))
    padded = [d for d in reversed(range(len(low))) if low[d] or high[d]]
    if not any(map(it.axes, padded)):
        return
    b, value, filler = OpBuilder.before(it.op), it.op.operands[0], _filler(it.op)
    for cut, dims in groupby(padded, key=lambda d: bool(it.axes(d))):
        if not cut:
            at = {d: SliceRange(low[d], value.type.shape[d], 1) for d in dims}
            shape = [it.extent(d) if d in at else n for d, n in enumerate(value.type.shape)]
            value = _put(b, value, b.fill(filler, tensor_type(shape, filler.type)), at)
            continue
        for d in dims:
            last = [(it.extent(d) - high[d], filler)] if high[d] else []
            first = [(0, filler)] if low[d] else []
            value = it.joined(b, d, [*first, (low[d], value), *last])
    it.replace(value)


def _filler(pad: ir.Operation) -> ir.Value:
    """Return the scalar that a pad fills with, defined outside of it."""
    block = pad.regions[0].blocks[0]
    (filler,) = terminator(block).operands
    made = producer(filler)
    if made is None or made.operation.block != block:
        return filler
    return made.operation.clone(ir.InsertionPoint(pad)).results[0]


def _insert_slice(it: LocalOp) -> None:
    """Put a slice in its place, dim by dim, into that part of the result that the others leave.

    Dims along which places are apart, or not known, come first, and of the others the last: dist-verify reads them so.
    """
    op, b = it.op, OpBuilder.before(it.op)
    value, into = op.operands[0], op.operands[1]
    spans = list(map(SliceRange, mixed_offsets(op, 2), static_sizes(op), static_strides(op)))
    dims = sorted(range(len(spans)), key=lambda d: (spans[d].order, -d))
    parts = [d for d in dims if spans[d] != SliceRange(0, it.extent(d), 1)]
    found = it.operands[1] is not None and put_slice(op, it.operands[1], it.local)
    if found or not any(map(it.axes, parts)):
        held = enumerate(into.type.shape)
        op.attributes["static_sizes"] = i64_array(
            [spans[d].size if d in parts else n for d, n in held]
        )
        return
    left = {d: spans[d] for d in parts if not it.axes(d)}
    for cut, group in groupby(parts, key=lambda d: bool(it.axes(d))):
        if not cut:
            at = {d: left.pop(d) for d in group}
            value = _put(b, value, _part(b, into, left), at)
            continue
        for d in group:
            begin, around = spans[d].offset, _part(b, into, left)
            assert isinstance(begin, int), "along a dim that is cut places are known"
            end = begin + spans[d].size
            first = [(0, around)] if begin else []
            last = [(end, around)] if end < it.extent(d) else []
            value = it.joined(b, d, [*first, (begin, value), *last])
    it.replace(value)


def _part(b: OpBuilder, value: ir.Value, along: Mapping[int, SliceRange]) -> ir.Value:
    """Return what lies in spans of some dims of a tensor."""
    spans = [along.get(d, SliceRange(0, n, 1)) for d, n in enumerate(value.type.shape)]
    offsets, shape, strides = zip(*spans, strict=True)
    type_ = tensor_type(shape, value.type.element_type)
    return b.extract_slice(value, type_, offsets, shape, strides)


def _put(
    b: OpBuilder, value: ir.Value, into: ir.Value, along: Mapping[int, SliceRange]
) -> ir.Value:
    """Put a tensor into spans of some dims of another."""
    spans = [along.get(d, SliceRange(0, n, 1)) for d, n in enumerate(value.type.shape)]
    offsets, sizes, strides = zip(*spans, strict=True)
    return b.insert_slice(value, into, offsets, sizes, strides)


WINDOWED: dict[str, Callable[[LocalOp], None]] = {
    "tensor.extract_slice": _extract_slice,
    "tensor.concat": _concat,
    "tensor.pad": _pad,
    "tensor.insert_slice": _insert_slice,
}
"""Ops that read windows."""
