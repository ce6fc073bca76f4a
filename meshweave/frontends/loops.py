"""StableHLO ops that nothing upstream lowers, as plain loops: sort (merge sort) and scatter (one
update after the other).
"""

from collections.abc import Callable, Sequence
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.frontends.build import Builder
from meshweave.locations import location_text

Precedes = Callable[[Builder, Sequence[Any]], Any]
"""Builds an i1: must an element stand before another? It gets both of each tensor: x0, y0, x1, y1, .."""


def lower_sort(op: Any) -> None:
    """stablehlo.sort: each row along the sorted dim by a bottom-up merge sort, stable, n log n
    comparisons.

    The op may sort several tensors of one shape together, by a comparator that sees an element of
    each.
    """
    b = Builder(ir.InsertionPoint(op), op.location)
    comparator = op.regions[0].blocks[0]
    dim = ir.IntegerAttr(op.attributes["dimension"]).value if "dimension" in op.attributes else -1
    results = sorted_rows(b, list(op.operands), dim, lambda k, pairs: k.apply(comparator, pairs)[0])
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def sorted_rows(b: Builder, inputs: Sequence[Any], dim: int, precedes: Precedes) -> list[Any]:
    """Tensors of one shape, their rows along `dim` sorted together."""
    shape = list(inputs[0].type.shape)
    dim %= max(1, len(shape))
    if not shape or shape[dim] < 2 or 0 in shape:
        return list(inputs)
    others = [n for i, n in enumerate(shape) if i != dim]

    def row(inner: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        rows = [_row(inner, v, at, dim) for v in inputs]
        rows = _merge_sort(inner, rows, shape[dim], precedes)
        return [_put_row(inner, r, v, at, dim) for r, v in zip(rows, values, strict=True)]

    # The inputs serve as places for the results: two `tensor.empty` of one type would be
    # merged, and bufferization then puts both results into one buffer.
    return b.loops(others, inputs, row)


def _slice_attrs(
    shape: Sequence[int], at: Sequence[Any], dim: int, sources: int
) -> tuple[list[Any], dict[str, Any]]:
    """Operands and attributes of the slice ops for one row: offsets `at`, all of `dim`. sources:
    tensor operands.
    """
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    sizes = [n if i == dim else 1 for i, n in enumerate(shape)]
    attrs = {
        "static_offsets": [0 if i == dim else dynamic for i in range(len(shape))],
        "static_sizes": sizes,
        "static_strides": [1] * len(shape),
    }
    made = {k: ir.DenseI64ArrayAttr.get(v) for k, v in attrs.items()}
    segments = [1] * sources + [len(at), 0, 0]
    made["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(segments)
    return list(at), made


def _row(b: Builder, tensor: Any, at: Sequence[Any], dim: int) -> Any:
    offsets, attrs = _slice_attrs(tensor.type.shape, at, dim, 1)
    kind = ir.RankedTensorType.get([tensor.type.shape[dim]], tensor.type.element_type)
    return b.one("tensor.extract_slice", kind, tensor, *offsets, **attrs)


def _put_row(b: Builder, row: Any, tensor: Any, at: Sequence[Any], dim: int) -> Any:
    offsets, attrs = _slice_attrs(tensor.type.shape, at, dim, 2)
    return b.one("tensor.insert_slice", tensor.type, row, tensor, *offsets, **attrs)


def _merge_sort(b: Builder, rows: Sequence[Any], size: int, precedes: Precedes) -> list[Any]:
    """Sort 1-dim tensors together: runs of 1, 2, 4, .. are merged in pairs into a copy, which is
    copied back.
    """
    passes = (size - 1).bit_length()
    count = len(rows)

    def merge_pass(p: Builder, number: Any, values: Sequence[Any]) -> list[Any]:
        source, target = values[:count], values[count:]
        width = p.binary("shli", p.number(1), number)
        end = p.number(size)

        def place(k: Builder, position: Any, state: Sequence[Any]) -> list[Any]:
            return _merge_step(k, position, state, source, width, end, precedes)

        zero = p.number(0)
        state = p.loop(zero, end, [zero, zero, *target], place)
        merged = state[2:]

        def copy(k: Builder, i: Any, kept: Sequence[Any]) -> list[Any]:
            return [k.put(k.element(m, [i]), s, [i]) for m, s in zip(merged, kept, strict=True)]

        return [*p.loop(zero, end, source, copy), *merged]

    return b.loop(b.number(0), b.number(passes), [*rows, *rows], merge_pass)[:count]


def _merge_step(
    b: Builder,
    position: Any,
    state: Sequence[Any],
    source: Sequence[Any],
    width: Any,
    size: Any,
    precedes: Precedes,
) -> list[Any]:
    """Write place `position` of the target. state: next of the left run, next of the right run,
    the targets.
    """
    left, right, *targets = state
    both = b.binary("addi", width, width)
    within = b.binary("remui", position, both)
    base = b.binary("subi", position, within)
    middle = b.binary("minsi", b.binary("addi", base, width), size)
    stop = b.binary("minsi", b.binary("addi", base, both), size)
    starts = b.compare("eq", within, b.number(0))
    left, right = b.select(starts, base, left), b.select(starts, middle, right)
    last = b.binary("subi", size, b.number(1))
    from_left = [b.element(s, [b.binary("minsi", left, last)]) for s in source]
    from_right = [b.element(s, [b.binary("minsi", right, last)]) for s in source]
    pairs = [v for pair in zip(from_right, from_left, strict=True) for v in pair]
    first = precedes(b, pairs)  # the right one only where it must come first: that is stable
    right_left = b.compare("slt", right, stop)
    takes_right = b.binary("andi", right_left, first)
    left_over = b.compare("sge", left, middle)
    takes_right = b.binary("ori", left_over, takes_right)
    one, zero = b.number(1), b.number(0)
    values = [b.select(takes_right, r, v) for r, v in zip(from_right, from_left, strict=True)]
    return [
        b.binary("addi", left, b.select(takes_right, zero, one)),
        b.binary("addi", right, b.select(takes_right, one, zero)),
        *(b.put(v, t, [position]) for v, t in zip(values, targets, strict=True)),
    ]


def lower_scatter(op: Any) -> None:
    """stablehlo.scatter: for each element of the updates in order, its place in the result, if
    there is one, is updated.
    """
    count = (len(op.operands) - 1) // 2
    operands = list(op.operands)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    dims = _ScatterDims(op)
    b = Builder(ir.InsertionPoint(op), op.location)
    region = op.regions[0].blocks[0]
    shape = inputs[0].type.shape

    def update(inner: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        place = dims.place(inner, indices, at, len(shape))
        inside = None
        for i, n in zip(place, shape, strict=True):
            holds = inner.compare(
                "ult", i, inner.number(n)
            )  # a negative index is a large unsigned one
            inside = holds if inside is None else inner.binary("andi", inside, holds)

        def write(w: Builder) -> list[Any]:
            old = [w.element(v, place) for v in values]
            new = w.apply(region, [*old, *(w.element(u, at) for u in updates)])
            return [w.put(n, v, place) for n, v in zip(new, values, strict=True)]

        if inside is None:
            return write(inner)
        return inner.choose(inside, [v.type for v in values], write, lambda _: list(values))

    results = b.loops(list(updates[0].type.shape), inputs, update)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


class _ScatterDims:
    """The dimension numbers of a scatter, and where an element of the updates goes."""

    def __init__(self, op: Any) -> None:
        from meshweave.bindings import stablehlo

        hlo = stablehlo()
        attr = op.attributes["scatter_dimension_numbers"]
        numbers = hlo.ScatterDimensionNumbers(attr) if hlo is not None else None
        if numbers is None:
            raise CompileError("stablehlo.scatter: no StableHLO bindings", location_text(op))
        self.window = list(numbers.update_window_dims)
        self.inserted = list(numbers.inserted_window_dims)
        self.input_batch = list(numbers.input_batching_dims)
        self.indices_batch = list(numbers.scatter_indices_batching_dims)
        self.to_operand = list(numbers.scattered_dims_to_operand_dims)
        self.vector = numbers.index_vector_dim

    def place(self, b: Builder, indices: Any, at: Sequence[Any], ndim: int) -> list[Any]:
        """Indices into the result for the element `at` of the updates; they may lie outside."""
        scatter = [i for d, i in enumerate(at) if d not in self.window]
        windows = iter([at[d] for d in self.window])
        place: list[Any] = [None] * ndim
        for d in range(ndim):
            if d not in self.inserted and d not in self.input_batch:
                place[d] = next(windows)
        batch = [d - (d > self.vector) for d in self.indices_batch]
        for d, source in zip(self.input_batch, batch, strict=True):
            place[d] = scatter[source]
        for number, d in enumerate(self.to_operand):
            start = self._start(b, indices, scatter, number)
            place[d] = start if place[d] is None else b.binary("addi", start, place[d])
        return [b.number(0) if p is None else p for p in place]

    def _start(self, b: Builder, indices: Any, scatter: Sequence[Any], number: int) -> Any:
        """Component `number` of the start index, sign- or zero-extended to an index."""
        at = list(scatter)
        if self.vector < len(indices.type.shape):
            at.insert(self.vector, b.number(number))
        value = b.element(indices, at)
        kind = value.type
        if kind.is_unsigned:
            signless = ir.IntegerType.get_signless(kind.width)
            value = b.one("builtin.unrealized_conversion_cast", signless, value)
            return b.one("arith.index_castui", b.index, value)
        return b.one("arith.index_cast", b.index, value)
