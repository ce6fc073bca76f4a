"""Lower StableHLO ops that nothing upstream lowers to plain loops: scatter update by update.

Also select_and_scatter, the gradient of max pooling, whose windows may overlap and be padded.
"""

from collections.abc import Sequence

import numpy as np

from meshweave.errors import CompileError
from meshweave.ir.bindings import arith, ir, stablehlo
from meshweave.ir.build import OpBuilder, Values
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, move_body, replace_op

_Cmp = arith.CmpIPredicate


def apply_reducer(b: OpBuilder, block: ir.Block, scalars: Values) -> list[ir.Value]:
    """Move the ops of a reducer or comparator, which are on tensors without dims, to where `b` builds, on `scalars`.

    Return the scalars that the block returns. A block can be applied once: its ops are gone afterwards.
    """
    for argument, scalar in zip(block.arguments, scalars, strict=True):
        argument.replace_all_uses_with(b.scalar_tensor(scalar))
    return [b.element(value) for value in move_body(block, b.ip)]


def lower_scatter(op: ir.Operation) -> None:
    """Lower stablehlo.scatter: take the elements of the updates in order, and drop windows that lie outside in part.

    StableHLO would drop single elements, but XLA drops windows, and JAX promises that its programs do.
    """
    count = (len(op.operands) - 1) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    dims, reducer = _ScatterDims(op), body_of(op)
    shape = list(inputs[0].type.shape)

    def update(inner: OpBuilder, at: Values, values: Values) -> Values:
        place, starts = dims.place(inner, indices, at, len(shape))
        limits = dims.limits(shape, updates[0].type.shape)

        def write(w: OpBuilder) -> list[ir.Value]:
            old = [w.element(v, place) for v in values]
            new = apply_reducer(w, reducer, [*old, *(w.element(u, at) for u in updates)])
            return [w.put_element(n, v, place) for n, v in zip(new, values, strict=True)]

        inside = is_inside(inner, starts, limits)
        return inner.if_else(inside, [v.type for v in values], write, lambda _: list(values))

    replace_op(op, OpBuilder.before(op).loops(list(updates[0].type.shape), inputs, update))


def is_inside(b: OpBuilder, place: Values, shape: Sequence[int]) -> ir.Value:
    """Return an i1 that tells whether `place` lies in a tensor of `shape`."""
    inside = b.integer(1, ir.IntegerType.get_signless(1))
    for index, size in zip(place, shape, strict=True):
        holds = b.compare(_Cmp.ult, index, b.index(size))  # unsigned, a negative index is large
        inside = b.binary("andi", inside, holds)
    return inside


class _ScatterDims:
    """Hold the dimension numbers of a scatter; find where an element of the updates goes."""

    def __init__(self, op: ir.Operation) -> None:
        hlo = stablehlo()
        if hlo is None:
            raise CompileError("stablehlo.scatter: no StableHLO bindings", location_text(op))
        numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        self.window = list(numbers.update_window_dims)
        self.inserted = list(numbers.inserted_window_dims)
        self.input_batch = list(numbers.input_batching_dims)
        self.indices_batch = list(numbers.scatter_indices_batching_dims)
        self.to_operand = list(numbers.scattered_dims_to_operand_dims)
        self.vector = numbers.index_vector_dim

    def limits(self, shape: Sequence[int], updates: Sequence[int]) -> list[int]:
        """Return the number of places, along each dim with indices, where a window may start in a tensor of `shape`."""
        windows = iter([updates[d] for d in self.window])
        fixed = (*self.inserted, *self.input_batch)
        sizes = [1 if d in fixed else next(windows) for d in range(len(shape))]
        return [max(shape[d] - sizes[d] + 1, 0) for d in self.to_operand]

    def place(
        self, b: OpBuilder, indices: ir.Value, at: Values, ndim: int
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """Return the indices into the result for the element `at` of the updates, and where its window starts.

        They may lie outside. A start has only the dims that have indices.
        """
        scatter = [i for d, i in enumerate(at) if d not in self.window]
        windows = iter([at[d] for d in self.window])
        place: list[ir.Value | None] = [None] * ndim
        for d in range(ndim):
            if d not in self.inserted and d not in self.input_batch:
                place[d] = next(windows)
        batch = [d - (d > self.vector) for d in self.indices_batch]
        for d, source in zip(self.input_batch, batch, strict=True):
            place[d] = scatter[source]
        starts = [self._start(b, indices, scatter, n) for n in range(len(self.to_operand))]
        for start, d in zip(starts, self.to_operand, strict=True):
            place[d] = start if place[d] is None else b.binary("addi", start, place[d])
        return [b.index(0) if p is None else p for p in place], starts

    def _start(self, b: OpBuilder, indices: ir.Value, scatter: Values, number: int) -> ir.Value:
        """Return component `number` of the start index, sign- or zero-extended to an index."""
        at = list(scatter)
        if self.vector < len(indices.type.shape):
            at.insert(self.vector, b.index(number))
        value = b.element(indices, at)
        if value.type.is_unsigned:
            signless = ir.IntegerType.get_signless(value.type.width)
            value = b.one("builtin.unrealized_conversion_cast", signless, value)
            return b.one("arith.index_castui", ir.IndexType.get(), value)
        return b.one("arith.index_cast", ir.IndexType.get(), value)


def lower_select_and_scatter(op: ir.Operation) -> None:
    """Lower stablehlo.select_and_scatter: each element of the source goes to the place that its window prefers."""
    operand, source, start = op.operands
    b, scatter = OpBuilder.before(op), body_of(op, 1)
    result = b.one("tensor.splat", operand.type, b.element(start))

    def update(inner: OpBuilder, at: Values, values: Values) -> Values:
        found, place = _selected(inner, op, at)

        def write(w: OpBuilder) -> Values:
            old = w.element(values[0], place)
            (new,) = apply_reducer(w, scatter, [old, w.element(source, at)])
            return [w.put_element(new, values[0], place)]

        return inner.if_else(found, [operand.type], write, lambda _: list(values))

    replace_op(op, b.loops(list(source.type.shape), [result], update))


def _selected(b: OpBuilder, op: ir.Operation, at: Values) -> tuple[ir.Value, Values]:
    """Return whether window `at` has an element inside the tensor, and the indices of the preferred one.

    The first of equal elements is preferred.
    """
    operand, select = op.operands[0], body_of(op)
    shape = list(operand.type.shape)
    strides = _numbers(op, "window_strides", [1] * len(shape))
    low = _numbers(op, "padding", [0] * (2 * len(shape)))[::2]
    no = b.integer(0, ir.IntegerType.get_signless(1))
    start = [
        no,
        b.element(op.operands[2]),
        *[b.index(0)] * len(shape),
    ]  # any value: none is found yet

    def look(inner: OpBuilder, offset: Values, state: Values) -> Values:
        first = [inner.binary("muli", i, inner.index(n)) for i, n in zip(at, strides, strict=True)]
        inside = [inner.binary("addi", s, o) for s, o in zip(first, offset, strict=True)]
        place = [inner.binary("subi", i, inner.index(n)) for i, n in zip(inside, low, strict=True)]

        def compare(c: OpBuilder) -> Values:
            found, best, *where = state
            value = c.element(operand, place)
            (holds,) = apply_reducer(c, select, [best, value])
            stays = c.binary("andi", found, holds)
            pairs = zip((best, *where), (value, *place), strict=True)
            return [c.integer(1, found.type), *(c.select(stays, o, n) for o, n in pairs)]

        types = [value.type for value in state]
        held = is_inside(inner, place, shape)
        return inner.if_else(held, types, compare, lambda _: list(state))

    found, _, *where = b.loops(_numbers(op, "window_dimensions", [1] * len(shape)), start, look)
    return found, where


def _numbers(op: ir.Operation, name: str, default: list[int]) -> list[int]:
    return [int(n) for n in np.array(op.attributes.get(name, default)).reshape(-1)]


LOWER = {
    "stablehlo.scatter": lower_scatter,
    "stablehlo.select_and_scatter": lower_select_and_scatter,
}
