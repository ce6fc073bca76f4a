"""Build `mw.scatter`, and read one back: frontends make them, transforms cut them, the lowering makes loops of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import Index, IteratorType, OpBuilder, Values, dims_map, tensor_type
from meshweave.ir.ops import body_of, producer

SCATTER = "mw.scatter"

Update = Callable[
    [OpBuilder, list[ir.Value], list[ir.Value], list[ir.Value]],
    tuple[ir.Value, Values, Values],
]
"""Build an update from the indices of the loops, an element of each tensor that is read, and what is there by now:
whether there is one, the places, the new elements."""

LONG = 8  # elements of a row that are written together
_Cmp = arith.CmpIPredicate


@dataclass(frozen=True)
class Scatter:
    """Hold what an `mw.scatter` says."""

    op: ir.Operation

    @property
    def count(self) -> int:
        """Return how many tensors are updated together."""
        return len(self.op.results)

    @property
    def inputs(self) -> list[ir.Value]:
        """Return the tensors that are read."""
        return list(self.op.operands)[: -self.count]

    @property
    def starts(self) -> list[ir.Value]:
        """Return the tensors that are updated."""
        return list(self.op.operands)[-self.count :]

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Return for each tensor that is read the loops of its dims."""
        *maps, _ = self.op.attributes["maps"]
        return tuple([tuple([e.position for e in m.value.results]) for m in maps])

    @cached_property
    def to(self) -> tuple[int, ...]:
        """Return for each dim of the updated tensors its loop, or behind the loops the number of its place."""
        *_, last = self.op.attributes["maps"]
        return tuple([e.position for e in last.value.results])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of rounds of each loop."""
        *maps, _ = self.op.attributes["maps"]
        found = [1] * maps[0].value.n_dims
        for value, row in zip(self.inputs, self.rows):
            for loop, size in zip(row, value.type.shape):
                found[loop] = size
        return tuple(found)

    @property
    def places(self) -> int:
        """Return how many dims have places that are computed."""
        return sum(loop >= len(self.sizes) for loop in self.to)

    @property
    def dims(self) -> dict[int, int]:
        """Return the dim of each place, by its number."""
        first = len(self.sizes)
        return {loop - first: d for d, loop in enumerate(self.to) if loop >= first}


def scatter(
    b: OpBuilder,
    inputs: Values,
    rows: Sequence[Sequence[int]],
    starts: Values,
    to: Sequence[int],
    update: Update,
) -> list[ir.Value]:
    """Make an `mw.scatter`; rows, to: as `Scatter` gives them back."""
    loops = 1 + max([loop for row in rows for loop in row], default=-1)
    places = sum(loop >= loops for loop in to)
    maps = [dims_map(loops, row) for row in rows] + [dims_map(loops + places, to)]
    attr = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    op = b.op(SCATTER, [v.type for v in starts], [*inputs, *starts], 1, maps=attr)
    kinds = [v.type.element_type for v in (*inputs, *starts)]
    inner, arguments = b.block(op.regions[0], [*[ir.IndexType.get()] * loops, *kinds])
    last = loops + len(inputs)
    given = arguments[:loops], arguments[loops:last], arguments[last:]
    holds, where, made = update(inner, *given)
    inner.op("mw.yield", [], [holds, *where, *made])
    return list(op.results)


def in_rounds(op: ir.Operation, in_rows: bool) -> list[ir.Value]:
    """Write a scatter as loops: those that tell where it writes around one choice, the others within it.

    in_rows: whether the inner ones are one elementwise op on rows, where these are long enough.
    """
    return _Rounds(Scatter(op), in_rows).values()


class _Rounds:
    """Write the loops of one scatter, round by round."""

    def __init__(self, what: Scatter, in_rows: bool) -> None:
        self.what, self.block, self.in_rows = what, body_of(what.op), in_rows
        self.b = OpBuilder.before(what.op)
        self.loops = len(what.sizes)
        *ops, end = [view.operation for view in self.block.operations]
        self.yielded = list(end.operands)
        self.first = _needed(ops, self.yielded[: 1 + what.places])
        self.rest = [op for op in ops if op not in self.first]
        self.news = self.yielded[1 + what.places :]
        self.outer = self._outer()

    def _outer(self) -> list[int]:
        """Return the loops that say whether and where there is an update, and those that come back to a place."""
        what, read = self.what, set[int]()
        roots = [v for op in self.first for v in op.operands] + self.yielded[: 1 + what.places]
        for number, argument in enumerate(self.block.arguments):
            if argument not in roots:
                continue
            if number < self.loops:
                read.add(number)
            elif number < self.loops + len(what.inputs):
                read.update(what.rows[number - self.loops])
        return [k for k in range(self.loops) if k in read or k not in what.to]

    def values(self) -> list[ir.Value]:
        """Return the updated tensors."""
        sizes = [self.what.sizes[k] for k in self.outer]
        return self.b.loops(sizes, self.what.starts, self._round)

    def _round(self, b: OpBuilder, at: Values, state: Values) -> Values:
        """Find out where an update goes, and make it there."""
        known = dict(zip(self.outer, at, strict=True))
        values = self._given(b, known, {}, self.first, self.yielded[: 1 + self.what.places])
        _copied(b, self.first, values)
        holds, *places = [values.get(v, v) for v in self.yielded[: 1 + self.what.places]]

        def write(w: OpBuilder, now: Values) -> Values:
            return self._written(w, known, values, places, now)

        holds = self._inside(b, holds, places)
        # dist-verify looks for what is in a choice, or a loop, where it was written.
        if _number(holds):
            return write(b, state)
        if all(self.what.sizes[k] == 1 for k in self.outer):
            # A choice that is in no loop would give what is there or a copy, and so a buffer of no known layout.
            once = b.select(holds, b.index(1), b.index(0))
            return b.loop(0, once, state, lambda w, _, now: write(w, now))
        kinds = [v.type for v in state]
        return b.if_else(holds, kinds, lambda w: write(w, state), lambda _: list(state))

    def _inside(self, b: OpBuilder, holds: ir.Value, places: Values) -> ir.Value:
        """Return whether there is an update and all its places are in the tensors."""
        shape = self.what.starts[0].type.shape
        for number, place in enumerate(places):
            size, known = shape[self.what.dims[number]], _number(place)
            if known is None or not 0 <= known < size:
                within = b.compare(_Cmp.ult, place, b.index(size))
                holds = within if _number(holds) else b.binary("andi", holds, within)
        return holds

    def _given(
        self,
        b: OpBuilder,
        known: dict[int, ir.Value],
        values: dict[ir.Value, ir.Value],
        ops: Sequence[ir.Operation],
        roots: Sequence[ir.Value],
    ) -> dict[ir.Value, ir.Value]:
        """Add to values what stands for the arguments of the body that ops and roots read, but for what is there."""
        read = {v for op in ops for v in op.operands} | set(roots)
        found, arguments = dict(values), list(self.block.arguments)
        found.update({a: known[k] for k, a in enumerate(arguments[: self.loops]) if k in known})
        for a, value, row in zip(arguments[self.loops :], self.what.inputs, self.what.rows):
            if a in read and a not in found:
                found[a] = _element(b, value, [known[k] for k in row])
        return found

    def _written(
        self,
        b: OpBuilder,
        known: dict[int, ir.Value],
        values: dict[ir.Value, ir.Value],
        places: Values,
        state: Values,
    ) -> Values:
        """Go through the loops that are left, and write the new elements."""
        left = [k for k in range(self.loops) if k not in known]
        if self.in_rows and prod(self.what.sizes[k] for k in left) >= LONG:
            return self._row(b, left, known, values, places, state)

        def element(w: OpBuilder, at: Values, now: Values) -> Values:
            every = {**known, **dict(zip(left, at, strict=True))}
            own = self._given(w, every, values, self.rest, self.news)
            where = [every[k] if k in every else places[k - self.loops] for k in self.what.to]
            old = list(self.block.arguments)[-self.what.count :]
            own.update({a: w.element(v, where) for a, v in zip(old, now, strict=True)})
            _copied(w, self.rest, own)
            made = [own.get(v, v) for v in self.news]
            return [w.put_element(m, v, where) for m, v in zip(made, now, strict=True)]

        return b.loops([self.what.sizes[k] for k in left], state, element)

    def _row(
        self,
        b: OpBuilder,
        left: Sequence[int],
        known: dict[int, ir.Value],
        values: dict[ir.Value, ir.Value],
        places: Values,
        state: Values,
    ) -> Values:
        """Write the new elements of all loops that are `left` by one elementwise op."""
        what, arguments = self.what, list(self.block.arguments)
        read = {v for op in self.rest for v in op.operands} | set(self.news)
        fixed, rows = dict(values), list[tuple[ir.Value, ir.Value, tuple[int, ...]]]()
        for k, number in known.items():
            fixed[arguments[k]] = number
        for a, value, row in zip(arguments[self.loops :], what.inputs, what.rows):
            if a in read and a not in fixed and any(k in left for k in row) and not _filling(value):
                rows.append((a, value, row))
            elif a in read and a not in fixed:
                fixed[a] = _element(b, value, [known.get(k, b.index(0)) for k in row])
        where = {**known, **{self.loops + n: place for n, place in enumerate(places)}}

        def body(inner: OpBuilder, elements: list[ir.Value]) -> Values:
            own = {
                **fixed,
                **dict(
                    zip([a for a, _, _ in rows] + arguments[-what.count :], elements, strict=True)
                ),
            }
            own.update(
                {
                    arguments[k]: inner.loop_index(n)
                    for n, k in enumerate(left)
                    if arguments[k] in read
                }
            )
            _copied(inner, self.rest, own)
            return [own.get(v, v) for v in self.news]

        parts = [_part(b, value, row, where) for _, value, row in rows]
        olds = [_part(b, value, what.to, where) for value in state]
        numbers = {k: n for n, k in enumerate(left)}
        maps = [
            dims_map(len(left), [numbers[k] for k in row if k in numbers]) for _, _, row in rows
        ]
        maps += [dims_map(len(left), [numbers[k] for k in what.to if k in numbers])] * what.count
        made = b.generic(parts, olds, maps, [IteratorType.PARALLEL] * len(left), body).results
        offsets, sizes = _box(state[0], what.to, where)
        return [
            b.insert_slice(part, v, offsets, sizes) for part, v in zip(made, state, strict=True)
        ]


def _box(
    tensor: ir.Value, row: Sequence[int], where: Mapping[int, ir.Value]
) -> tuple[list[Index], list[int]]:
    """Return offsets and sizes of the part of a tensor that is at these places, all of it along the other dims."""
    shape = tensor.type.shape
    return [where.get(k, 0) for k in row], [1 if k in where else n for k, n in zip(row, shape)]


def _part(
    b: OpBuilder, tensor: ir.Value, row: Sequence[int], where: Mapping[int, ir.Value]
) -> ir.Value:
    """Return that part, without the dims of the places."""
    offsets, sizes = _box(tensor, row, where)
    kept = [n for k, n in zip(row, tensor.type.shape) if k not in where]
    return b.extract_slice(tensor, tensor_type(kept, tensor.type.element_type), offsets, sizes)


def _element(b: OpBuilder, tensor: ir.Value, indices: Values) -> ir.Value:
    """Read an element of a tensor: of one that is filled what fills it, so that no loop makes the whole of it."""
    number = _filling(tensor)
    if isinstance(number, ir.Attribute):
        return b.constant(number)
    return b.element(tensor, indices) if number is None else number


def _filling(tensor: ir.Value) -> ir.Value | ir.Attribute | None:
    """Return what a tensor is filled with; None where its elements may differ."""
    made = producer(tensor)
    if made is not None and made.name == "linalg.fill":
        return made.operands[0]
    value = made.attributes["value"] if made is not None and made.name == "arith.constant" else None
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        return value.get_splat_value()
    return None


def _number(value: ir.Value) -> int | None:
    """Return the integer that `value` is, -1 for true; None where that is not known."""
    made = producer(value)
    while made is not None and made.name == "arith.index_cast":
        made = producer(made.operands[0])
    known = made is not None and made.name == "arith.constant"
    return int(ir.IntegerAttr(made.attributes["value"]).value) if made and known else None


def _needed(ops: Sequence[ir.Operation], roots: Values) -> list[ir.Operation]:
    """Return those of `ops`, in order, that `roots` are computed from."""
    wanted, found = set(roots), list[ir.Operation]()
    for op in reversed(ops):
        if any(r in wanted for r in op.results):
            wanted.update(op.operands)
            found.append(op)
    return found[::-1]


def _copied(b: OpBuilder, ops: Sequence[ir.Operation], values: dict[ir.Value, ir.Value]) -> None:
    """Copy ops to where `b` builds; note in `values` what stands for their results."""
    for op in ops:
        copy = op.clone(b.ip).operation
        for number, value in enumerate(op.operands):
            copy.operands[number] = values.get(value, value)
        values.update(zip(op.results, copy.results, strict=True))
