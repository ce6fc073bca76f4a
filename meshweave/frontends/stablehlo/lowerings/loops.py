"""Lower StableHLO ops that nothing upstream lowers to mw.scatter: scatter, update by update.

Also select_and_scatter, the gradient of max pooling, whose windows may overlap and be padded.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.errors import CompileError
from meshweave.frontends.stablehlo.counted import counted_dim, sorted_places
from meshweave.frontends.stablehlo.put import lower_known_window
from meshweave.ir.bindings import arith, ir, stablehlo
from meshweave.ir.build import (
    IteratorType,
    OpBuilder,
    Values,
    dims_map,
    i64_array,
    tensor_type,
)
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, move_body, producer, replace_op
from meshweave.ir.scatters import scatter
from meshweave.ir.sorting import Order, sort

_Cmp = arith.CmpIPredicate


def apply_reducer(b: OpBuilder, block: ir.Block, scalars: Values) -> list[ir.Value]:
    """Move the ops of a reducer or comparator, which are on tensors without dims, to where `b` builds, on `scalars`.

    Return the scalars that the block returns. A block can be applied once: its ops are gone afterwards.
    """
    for argument, scalar in zip(block.arguments, scalars, strict=True):
        argument.replace_all_uses_with(b.scalar_tensor(scalar))
    return [b.element(value) for value in move_body(block, b.ip)]


def lower_scatter(op: ir.Operation) -> None:
    """Lower stablehlo.scatter to an mw.scatter, which drops windows that lie outside in part.

    StableHLO would drop single elements, but XLA drops windows, and JAX promises that its programs do.
    """
    count = (len(op.operands) - 1) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    b, reducer, numbers = OpBuilder.before(op), body_of(op), _numbers_of(op)
    if lower_known_window(op, numbers, lambda inner, s: apply_reducer(inner, reducer, s)[0]):
        return
    if count == 1 and (back := _put_back(b, numbers, operands)) is not None:

        def combined(inner: OpBuilder, pair: list[ir.Value]) -> ir.Value:
            return apply_reducer(inner, reducer, pair[:2])[0]

        replace_op(op, [b.elementwise([inputs[0], back], b.empty(inputs[0].type), combined)])
        return
    windows = _ScatterWindows(op, numbers, list(inputs[0].type.shape), list(updates[0].type.shape))
    starts = [c for c in windows.components(b, indices) if isinstance(c, ir.Value)]

    def update(
        inner: OpBuilder, at: list[ir.Value], elements: list[ir.Value], old: list[ir.Value]
    ) -> tuple[ir.Value, Values, Values]:
        holds, places = windows.place(inner, at, elements[: len(starts)])
        new = apply_reducer(inner, reducer, [*old, *elements[len(starts) :]])
        return holds, places, new

    every = list(range(len(windows.updates)))
    rows = [*[windows.scattered] * len(starts), *[every] * count]
    replace_op(op, scatter(b, [*starts, *updates], rows, inputs, windows.to, update))


def _put_back(b: OpBuilder, numbers: Any, operands: Values) -> ir.Value | None:
    """Return the elements of an update at all places of a tensor, in the order of a sort; None for other updates.

    Elements in order of these places are where they belong: that is a sort too.
    """
    if len(numbers.scattered_dims_to_operand_dims) != 1 or list(numbers.update_window_dims):
        return None
    start, indices, update = operands
    (dim,), ndim = numbers.scattered_dims_to_operand_dims, len(update.type.shape)
    if start.type != update.type or dim >= ndim:
        return None
    others = [d for d in range(ndim) if d != dim]
    batch = numbers.input_batching_dims, numbers.scatter_indices_batching_dims
    if any(list(row) != others for row in batch) or numbers.index_vector_dim != ndim:
        return None
    places = sorted_places(indices, dim)
    if places is None:
        return None
    i32 = tensor_type(list(update.type.shape), ir.IntegerType.get_signless(32))
    keys = places if places.type == i32 else b.one("stablehlo.convert", i32, places)
    return sort(b, [keys, update], dim, Order())[1]


def _numbers_of(op: ir.Operation) -> Any:
    hlo = stablehlo()
    if hlo is None:
        raise CompileError("stablehlo.scatter: no StableHLO bindings", location_text(op))
    return hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


class _ScatterWindows:
    """Say where the windows of a scatter lie: its loops are the dims of the updates.

    to: for each dim of the operand the loop that it runs with, or the number of its place, behind those of the loops.
    """

    def __init__(
        self, op: ir.Operation, numbers: Any, shape: list[int], updates: list[int]
    ) -> None:
        self.numbers, self.shape, self.updates = numbers, shape, updates
        window = list(numbers.update_window_dims)
        self.scattered = [d for d in range(len(updates)) if d not in window]
        self.vector = numbers.index_vector_dim
        self.dims = list(numbers.scattered_dims_to_operand_dims)
        fixed = [*numbers.inserted_window_dims, *numbers.input_batching_dims]
        self.window = dict(zip([d for d in range(len(shape)) if d not in fixed], window))
        batch = [d - (d > self.vector) for d in numbers.scatter_indices_batching_dims]
        self.batch = dict(
            zip(numbers.input_batching_dims, [self.scattered[d] for d in batch], strict=True)
        )
        self.starts: dict[int, int | ir.Value] = {}
        self.to: list[int] = []

    def components(self, b: OpBuilder, indices: ir.Value) -> list[int | ir.Value]:
        """Return for each dim with indices where its windows start: a loop whose index it is, or a tensor."""
        made = [component(b, indices, self.vector, n) for n in range(len(self.dims))]
        counted = [counted_dim(value) for value in made]
        found = [v if c is None else self.scattered[c] for v, c in zip(made, counted)]
        self.starts = dict(zip(self.dims, found))
        places = 0
        for dim in range(len(self.shape)):
            loop = self._loop(dim)
            if loop is None or loop in self.to:
                loop, places = len(self.updates) + places, places + 1
            self.to.append(loop)
        return found

    def _loop(self, dim: int) -> int | None:
        """Return the loop that a dim of the operand runs with, None where its place is computed."""
        if dim in self.batch:
            return int(self.batch[dim])
        start, window = self.starts.get(dim), self.window.get(dim)
        if window is not None:
            return window if self.updates[window] == self.shape[dim] else None
        fits = isinstance(start, int) and self.updates[start] == self.shape[dim]
        return start if fits else None

    def place(
        self, b: OpBuilder, at: Values, elements: Sequence[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value]]:
        """Return whether a window lies inside, and the places of the dims that run with no loop."""
        given, holds, places = iter(elements), b.integer(1, ir.IntegerType.get_signless(1)), {}
        for dim in self.dims:
            start = self.starts[dim]
            place = at[start] if isinstance(start, int) else _as_index(b, next(given))
            window = self.window.get(dim)
            if window is not None:
                room = max(self.shape[dim] - self.updates[window] + 1, 0)
                inside = b.compare(_Cmp.ult, place, b.index(room))  # a negative index is large
                holds = b.binary("andi", holds, inside)
                place = b.binary("addi", place, at[window])
            places[dim] = place
        for dim, loop in enumerate(self.to):
            if loop >= len(self.updates) and dim not in places:
                places[dim] = at[self.window[dim]] if dim in self.window else b.index(0)
        return holds, [places[d] for d, loop in enumerate(self.to) if loop >= len(self.updates)]


def component(b: OpBuilder, indices: ir.Value, vector: int, number: int) -> ir.Value:
    """Return one component of the index vectors that lie along dim `vector` of the indices."""
    shape, element = list(indices.type.shape), indices.type.element_type
    if vector == len(shape):
        return indices
    made, rest = producer(indices), tensor_type([*shape[:vector], *shape[vector + 1 :]], element)
    if made is not None and made.name == "stablehlo.concatenate":
        sizes = [v.type.shape[vector] for v in made.operands]
        if made.attributes["dimension"].value == vector and set(sizes) == {1}:
            return b.one("stablehlo.reshape", rest, made.operands[number])
    if shape[vector] == 1:
        return b.one("stablehlo.reshape", rest, indices)
    low = [number if d == vector else 0 for d in range(len(shape))]
    high = [number + 1 if d == vector else n for d, n in enumerate(shape)]
    one = tensor_type([1 if d == vector else n for d, n in enumerate(shape)], element)
    part = b.one(
        "stablehlo.slice",
        one,
        indices,
        start_indices=i64_array(low),
        limit_indices=i64_array(high),
        strides=i64_array([1] * len(shape)),
    )
    return b.one("stablehlo.reshape", rest, part)


def _as_index(b: OpBuilder, value: ir.Value) -> ir.Value:
    """Extend an integer by its sign, or by zeros, to an index."""
    if value.type.is_unsigned:
        signless = ir.IntegerType.get_signless(value.type.width)
        value = b.one("builtin.unrealized_conversion_cast", signless, value)
        return b.one("arith.index_castui", ir.IndexType.get(), value)
    return b.one("arith.index_cast", ir.IndexType.get(), value)


def lower_select_and_scatter(op: ir.Operation) -> None:
    """Lower stablehlo.select_and_scatter: find the place that each window prefers, and scatter the source there.

    Dims along which windows have one element, as batches and channels, stay dims of both.
    """
    operand, source, start = op.operands
    b, combiner = OpBuilder.before(op), body_of(op, 1)
    preferred = _Preferred(op)
    at_place = preferred.places(b)
    result = b.one("tensor.splat", operand.type, b.element(start))

    def update(
        inner: OpBuilder, at: list[ir.Value], elements: list[ir.Value], old: list[ir.Value]
    ) -> tuple[ir.Value, Values, Values]:
        flat = inner.one("arith.index_cast", ir.IndexType.get(), elements[0])
        holds = inner.compare(_Cmp.sge, flat, inner.index(0))
        places = preferred.unfolded(inner, flat)
        return holds, places, apply_reducer(inner, combiner, [old[0], elements[1]])

    count, moving = len(source.type.shape), preferred.moving
    every = list(range(count))
    to = [count + moving.index(d) if d in moving else d for d in every]
    made = scatter(b, [at_place, source], [every, every], [result], to, update)
    replace_op(op, made)


class _Preferred:
    """Find the place that each window of a select_and_scatter prefers: the first of those that nothing beats.

    moving: the dims that a window moves along.
    """

    def __init__(self, op: ir.Operation) -> None:
        self.op, self.operand, self.select = op, op.operands[0], body_of(op)
        self.shape, ndim = list(self.operand.type.shape), len(self.operand.type.shape)
        self.out = list(op.operands[1].type.shape)
        self.window = _numbers(op, "window_dimensions", [1] * ndim)
        self.strides = _numbers(op, "window_strides", [1] * ndim)
        self.padding = _numbers(op, "padding", [0] * (2 * ndim))
        self.moving = [
            d for d in range(ndim) if self.window[d] != 1 or self.out[d] != self.shape[d]
        ]

    def places(self, b: OpBuilder) -> ir.Value:
        """Return for each window the place among the moving dims, counted row by row; -1 where it has no element."""
        kind = ir.IntegerType.get_signless(64)
        start = self.op.operands[2]
        best = b.one(
            "tensor.splat", tensor_type(self.out, start.type.element_type), b.element(start)
        )
        none = b.one("tensor.splat", tensor_type(self.out, kind), b.integer(-1, kind))
        ndim, moving = len(self.out), self.moving
        window = b.empty(tensor_type([self.window[d] for d in moving], kind))
        loops = ndim + len(moving)
        read = [ir.AffineDimExpr.get(d) for d in range(ndim)]
        for k, d in enumerate(moving):
            skipped = max(-self.padding[2 * d], 0)
            read[d] = read[d] * self.strides[d] + ir.AffineDimExpr.get(ndim + k) + skipped
        here = ir.AffineMap.get(loops, 0, read)
        maps = [here, dims_map(loops, range(ndim, loops)), *[dims_map(loops, range(ndim))] * 2]
        kinds = [IteratorType.PARALLEL] * ndim + [IteratorType.REDUCTION] * len(moving)
        return b.generic([self._padded(b), window], [best, none], maps, kinds, self._look).results[
            1
        ]

    def _padded(self, b: OpBuilder) -> ir.Value:
        """Return the operand as far as windows reach: what is added is never looked at."""
        low, high = [0] * len(self.shape), [0] * len(self.shape)
        for d in self.moving:
            low[d] = max(self.padding[2 * d], 0)
            reach = (self.out[d] - 1) * self.strides[d] + self.window[d] - self.padding[2 * d]
            high[d] = max(reach - self.shape[d], 0)
        if not any(low) and not any(high):
            return self.operand
        type_ = tensor_type(
            [sum(n) for n in zip(self.shape, low, high)], self.operand.type.element_type
        )
        return b.one(
            "stablehlo.pad",
            type_,
            self.operand,
            self.op.operands[2],
            edge_padding_low=i64_array(low),
            edge_padding_high=i64_array(high),
            interior_padding=i64_array([0] * len(self.shape)),
        )

    def _look(self, b: OpBuilder, arguments: list[ir.Value]) -> Values:
        """Prefer an element to the best so far, or not."""
        value, _, best, place = arguments
        here, inside = self._here(b)
        found = b.compare(_Cmp.sge, place, b.integer(0, place.type))
        (holds,) = apply_reducer(b, self.select, [best, value])
        kept = b.binary("andi", found, holds)
        taken = b.binary("andi", inside, b.binary("xori", kept, b.integer(1, kept.type)))
        at = b.one("arith.index_cast", place.type, here)
        return [b.select(taken, value, best), b.select(taken, at, place)]

    def _here(self, b: OpBuilder) -> tuple[ir.Value, ir.Value]:
        """Return the place that is looked at, counted row by row, and whether it lies inside."""
        flat, inside = b.index(0), b.integer(1, ir.IntegerType.get_signless(1))
        for k, d in enumerate(self.moving):
            place = b.times(b.loop_index(d), self.strides[d])
            place = b.binary("addi", place, b.loop_index(len(self.out) + k))
            if low := self.padding[2 * d]:
                place = b.binary("subi", place, b.index(low))
            if any(self.padding[2 * d : 2 * d + 2]):
                holds = b.compare(_Cmp.ult, place, b.index(self.shape[d]))
                inside = b.binary("andi", inside, holds)
            flat = b.binary("addi", b.times(flat, self.shape[d]), place)
        return flat, inside

    def unfolded(self, b: OpBuilder, flat: ir.Value) -> list[ir.Value]:
        """Return the place along each moving dim."""
        found = []
        for d in reversed(self.moving):
            size = b.index(self.shape[d])
            found.append(b.binary("remui", flat, size))
            flat = b.binary("divui", flat, size)
        return found[::-1]


def _numbers(op: ir.Operation, name: str, default: list[int]) -> list[int]:
    return [int(n) for n in np.array(op.attributes.get(name, default)).reshape(-1)]


LOWER = {
    "stablehlo.scatter": lower_scatter,
    "stablehlo.select_and_scatter": lower_select_and_scatter,
}
