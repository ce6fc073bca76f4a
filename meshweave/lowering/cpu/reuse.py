"""Write reductions so that what several rows read is read once, and results stay in registers or in the cache.

A product of few rows reads each weight once and uses it for all of them. Its rows are done in groups, written out side
by side. Where the weights of a step of depth lie side by side, a panel of columns of the results stays in a cache, and
several steps are added to it at a time, in vectors for all groups of rows, while the weights of the next steps are on
their way from memory. Where the weights of a result lie side by side, its sum is in registers, next to those of the
other rows and of a few neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from meshweave.hints.fast_paths import BF16
from meshweave.ir.expressions import Accumulator, Apply, Load, gathered, inputs, needed, type_text
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.loops import VECTORS, Counters, NestLoops
from meshweave.lowering.cpu.products.blocks import WIDTHS
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import Access, LoopNest, NestNode
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.nests.rows import loop_order
from meshweave.lowering.writer import Value
from meshweave.plan.machine import asks_ahead, bf16_unit, cache_bytes, vectors

PANEL = 4  # part of the second cache that the results of a panel may take
ROOM = 1 << 17  # bytes of them at most: they are on the stack
MOST_ROWS = 64  # of a panel
PADDING = 16  # elements between rows of a panel
FEW = 16  # rows
LARGE = 1 << 17  # elements that no cache keeps from call to call
TOGETHER = 8  # sums, or rows without vectors, that are written out side by side
ROWS = 4  # of sums, or of vectors
STEPS = 8  # of depth that are added at a time
NARROW = 1024  # weights of a byte in a step of depth: that many STEPS at once are no streams that memory is fast at
NARROW_STEPS = 2  # of these at a time
TURNED = 1 << 14  # elements of few rows that are laid along their depth first
MOST_CODE = 1024  # nodes that are written out for one step
CACHE_LINE = 64  # bytes
PAIR_LANES = 16  # sums that a processor adds pairs of bf16 to
PER_LANE = VECTORS | {f"arith.{name}" for name in ("extf", "sitofp", "uitofp")}


class ColumnBlock(NamedTuple):
    """Name columns that are reduced together: the first one, and how many."""

    start: Value
    width: Value


@dataclass(frozen=True)
class InnerLoops:
    """Say what the inner loops of a reduction are.

    outer: loops around it; row: the loop whose iterations read the same weights, None for none; column: the parallel
    loop along which the weights lie, or their neighbours in memory; depth: the loops that reduce.
    """

    outer: tuple[int, ...]
    row: int | None
    column: int
    depth: tuple[int, ...]


def shape_of(nest: LoopNest, rows: int) -> InnerLoops | None:
    """Return the shape of a reduction inside `rows` loops; None where it has no columns."""
    order = loop_order(nest, rows)
    loads = [load.access for load in nest.loads]
    depth = tuple(d for d in order if d in nest.reductions)
    parallel = [d for d in order if d not in nest.reductions]
    if not depth or not parallel or not loads:
        return None
    weights = max(loads, key=lambda access: volume(nest, access))
    columns = [d for d in parallel if weights.strides[d]]
    if not columns or order[-1] not in (*columns, *depth):
        return None
    column = order[-1]
    if column in depth:
        column = min(columns, key=lambda d: abs(weights.strides[d]))
    same = [d for d in parallel if not weights.strides[d]]
    row = max(same, key=lambda d: nest.sizes[d], default=None)
    if column == order[-1] and row is not None and nest.sizes[row] > MOST_ROWS:
        return None
    outer = tuple(d for d in parallel if d not in (row, column))
    return InnerLoops(outer, row, column, depth)


def reads_once(nest: LoopNest) -> bool:
    """Tell whether a product has few rows, so that reading its weights takes longer than multiplying them.

    These loops then read them once, where any other kernel first copies them. They need vectors along the columns, or
    along the depth of both operands.
    """
    fits = nest.contraction and len(nest.loads) == 2
    shape = shape_of(nest, 0) if fits else None
    if shape is None or shape.row is None or nest.sizes[shape.row] > FEW:
        return False
    if any(d != shape.row for d, _ in nest.limits):
        return False
    first, second = (load.access for load in nest.loads)
    few, many = (first, second) if first.strides[shape.row] else (second, first)
    if volume(nest, many) < LARGE or not _apart(nest, many):
        return False
    if any(not many.strides[d] for d in nest.parallel if d != shape.row):
        return False
    if many.strides[shape.column] == 1:
        return True
    if many.strides[shape.depth[-1]] != 1:
        return False
    return few.strides[shape.depth[-1]] == 1 or _may_be_turned(nest, shape, few)


def _may_be_turned(nest: LoopNest, shape: InnerLoops, few: Access) -> bool:
    """Tell whether the operand of few rows fits a local buffer in which its depth lies side by side."""
    apart = any(few.strides[d] for d in (*shape.outer, shape.column))
    return volume(nest, few) <= TURNED and not apart


def turned(writer: FunctionWriter, nest: LoopNest) -> LoopNest:
    """Return a product that reads few rows along their depth: from a local buffer, where they lie otherwise."""
    shape = shape_of(nest, 0)
    if shape is None or not reads_once(nest) or shape.row is None:
        return nest
    few = next(load for load in nest.loads if load.access.strides[shape.row])
    (many,) = [load for load in nest.loads if load is not few]
    if many.access.strides[shape.column] == 1 or few.access.strides[shape.depth[-1]] == 1:
        return nest
    loops, kind = (shape.row, *shape.depth), str(few.type)
    place: list[Value | None] = [None] * len(nest.sizes)
    strides, step = [0] * len(nest.sizes), 1
    for d in reversed(loops):
        strides[d], step = step, step * nest.sizes[d]
    buffer = writer.local_buffer(step, stored(kind))
    frame = replace(writer.frame, pointers=(*writer.frame.pointers, buffer))
    access = Access(len(writer.frame.pointers), tuple(strides))
    for d in loops:
        place[d] = writer.open(writer.end(nest, d))
    element = writer.load(writer.frame.address(few.access, kind, place), stored(kind))
    writer.store(element, frame.address(access, kind, place))
    for _ in loops:
        writer.close()
    writer.frame = frame
    code = [replace(few, access=access) if node is few else node for node in nest.code]
    return replace(nest, code=tuple(code))


def _apart(nest: LoopNest, access: Access) -> bool:
    """Tell whether no two iterations of the loops that an access walks touch one element."""
    reach = 1
    for step, size in sorted((abs(s), n) for s, n in zip(access.strides, nest.sizes) if s):
        if step < reach:
            return False
        reach = step * size
    return True


def volume(nest: LoopNest, access: Access) -> int:
    """Count the elements that an access walks."""
    return math.prod(n for n, s in zip(nest.sizes, access.strides) if s)


class ReusingLoops(NestLoops):
    """Write one nest of a shape inside loops `rows`, which are open."""

    def __init__(
        self, writer: FunctionWriter, nest: LoopNest, rows: Sequence[Value], shape: InnerLoops
    ) -> None:
        super().__init__(writer, nest, rows)
        self.shape = shape
        self.width = max(element_bytes(store.type) for store in nest.stores)
        self.count = 1 if shape.row is None else nest.sizes[shape.row]
        self.along = self.order[-1] in nest.reductions
        self.element = 1  # bytes of an element of the weights
        self.lanes = 0 if self.along else self._lanes()
        self.weights = self._of_all_rows()
        self.left = self._of_rows()
        most = ROWS if self.along or self.lanes else TOGETHER
        self.group = -(-self.count // -(-self.count // most))
        if shape.row is not None and nest.limit(shape.row) is not None:
            self.group = max(n for n in range(1, most + 1) if self.count % n == 0)
        self.apart = 0  # elements from row to row of a panel
        self.buffers: list[Value] = []  # of a panel, for each result

    def write(self) -> None:
        """Write the loops around, in them panels of columns or sums in registers."""
        self._loops(self.shape.outer, self._sums_of_rows if self.along else self._panels)

    def _parts(self, size: int, most: int) -> Iterator[tuple[Value, int]]:
        """Open a loop over parts of `most`, and yield where each begins; then what is left of `size`."""
        whole = size // most * most
        if whole:
            yield self.writer.open(whole, most), most
            self.writer.close()
        if whole < size:
            yield self.writer.number(whole), size - whole

    def _groups(self) -> Iterator[list[Counters]]:
        """Yield groups of rows, inside a loop where there are several."""
        row = self.shape.row
        if row is None:
            yield [{}]
            return
        end = self.end(row)
        if isinstance(end, Value):  # the last group may run on: groups fill what there is room for
            start = self.writer.open(end, self.group)
            yield [{row: self.writer.plus(start, k)} for k in range(self.group)]
            self.writer.close()
            return
        for start, count in self._parts(self.count, self.group):
            yield [{row: self.writer.plus(start, k)} for k in range(count)]

    # Sums in registers

    def _sums_of_rows(self) -> None:
        """Write results whose addends lie side by side."""
        column = self.shape.column
        beside = max(1, min(ROWS, TOGETHER // self.group))
        for start, count in self._parts(self.nest.sizes[column], beside):
            for group in self._groups():
                columns = [self.writer.plus(start, k) for k in range(count)]
                with self.at({}):
                    copies = [{**row, column: at} for at in columns for row in group]
                    self._registers(self.shape.depth, copies)

    # Panels

    def _panels(self) -> None:
        """Write results that lie side by side, a panel of columns after the other.

        What a panel holds so far is in a local buffer, whose rows are not a power of two apart: such rows would have
        one place in the first cache.
        """
        writer, size = self.writer, self.nest.sizes[self.shape.column]
        room = min(ROOM, cache_bytes() // PANEL)
        most = max(64, room // (self.count * self.width) // 64 * 64)
        self.apart = min(size, most) + PADDING
        self.buffers = [
            writer.local_buffer(self.count * (self.apart + STEPS), stored(self.types[store.value]))
            for store in self.nest.stores
        ]
        start = writer.open(size, most)
        panel = ColumnBlock(start, tiles.minimum(writer, start, size, most))
        self._begin(panel)
        *outer, last = self.shape.depth
        with self.at({d: writer.open(self.nest.sizes[d]) for d in outer}):
            self._depth(last, min(size, most), panel)
        for _ in outer:
            writer.close()
        self._end(panel)
        writer.close()

    def _begin(self, panel: ColumnBlock) -> None:
        """Let the results of a panel be what they start from."""
        for row in self._rows():
            column = self.writer.open(panel.width)
            with self.at({**row, **self._column(panel, column)}):
                self._keep(row, column, [self._start(store) for store in self.nest.stores])
            self.writer.close()

    def _end(self, panel: ColumnBlock) -> None:
        """Store the results of a panel."""
        for row in self._rows():
            column = self.writer.open(panel.width)
            with self.at({**row, **self._column(panel, column)}):
                for store, value in zip(self.nest.stores, self._kept(row, column)):
                    self.store(store, value)
            self.writer.close()

    def _rows(self) -> Iterator[Counters]:
        """Yield all rows, as one loop over them."""
        row = self.shape.row
        yield {} if row is None else {row: self.writer.open(self.end(row))}
        if row is not None:
            self.writer.close()

    def _column(self, panel: ColumnBlock, number: Value) -> Counters:
        return {self.shape.column: self.writer.plus(panel.start, number)}

    def _depth(self, dim: int, width: int, panel: ColumnBlock) -> None:
        """Add all depth to a panel; for several groups of rows in tiles that the second cache keeps."""
        steps = max(1, min(STEPS, MOST_CODE // (self.group * len(self.nest.code))))
        if self.asks and self.count == 1 and width <= NARROW:
            steps = min(steps, NARROW_STEPS)
        size = self.nest.sizes[dim]
        whole = size // steps * steps
        if whole and self.lanes:
            at = self.writer.open(whole, steps)
            self._wide_step(dim, at, steps, panel)
            self.writer.close()
        elif whole:
            tile = whole
            if self.count > self.group:
                fits = cache_bytes() // 2 // (width * self.width)
                tile = min(whole, max(steps, fits // steps * steps))
            first = self.writer.open(whole, tile)
            last = self.writer.plus(first, tiles.minimum(self.writer, first, whole, tile))
            for group in self._groups():
                at = self.writer.open(last, steps, first)
                self._step(group, self._depths(dim, at, steps), panel)
                self.writer.close()
            self.writer.close()
        if whole < size:
            rest = [{dim: self.writer.number(k)} for k in range(whole, size)]
            for group in self._groups():
                self._step(group, rest, panel)

    def _depths(self, dim: int, at: Value, steps: int) -> list[Counters]:
        return [{dim: self.writer.plus(at, k)} for k in range(steps)]

    def _step(
        self,
        rows: Sequence[Counters],
        depths: Sequence[Counters],
        panel: ColumnBlock,
        first: Value | int = 0,
    ) -> None:
        """Add a few steps of depth to a panel of a few rows, from its column `first` on."""
        known = [[self._values_at({**row, **depth}) for row in rows] for depth in depths]
        column = self.writer.open_loop(first, panel.width, 1).counter
        with self.at(self._column(panel, column)):
            held = [self._kept(row, column) for row in rows]
            for depth, values in zip(depths, known):
                with self.at(depth):
                    weights = self.values
                    for k, row in enumerate(rows):
                        self.values = {**values[k], **weights}
                        held[k] = self._reduced(row, held[k])
                    self.values = weights
            for row, results in zip(rows, held):
                self._keep(row, column, results)
        self.writer.close()

    # Vectors of columns

    def _of_all_rows(self) -> set[int]:
        """Return the nodes that have one value for all rows, and one for each column."""
        sums = gathered(self.nest.code, lambda n: [n] if isinstance(n, Accumulator) else [])
        column, row = self.shape.column, self.shape.row
        return {
            number
            for number, loops in enumerate(self.needs)
            if column in loops and row not in loops and not sums[number]
        }

    @cached_property
    def _of_columns(self) -> list[int]:
        """List the nodes that a result of a column needs, and that depend on the column."""
        wanted = needed(self.nest.code, [store.value for store in self.nest.stores])
        return sorted(k for k in wanted if self.shape.column in self.needs[k])

    def _of_rows(self) -> int | None:
        """Return the one node that stands for a row in what its columns use, in the type of sums; None for none."""
        code, column = self.nest.code, self.shape.column
        around = {self.shape.row, *self.shape.depth}
        used = {k for number in self._of_columns for k in inputs(code[number])}
        left = [k for k in used if column not in self.needs[k] and around & self.needs[k]]
        kinds = {type_text(code[k]) for k in left}
        return left[0] if len(left) == 1 and kinds == set(self.types.values()) else None

    @cached_property
    def pairs(self) -> tuple[Load[Access], Load[Access]] | None:
        """Return what is read of rows and of weights where a processor adds products of pairs of bf16, else None."""
        code, (store,) = self.nest.code, self.nest.stores
        if BF16 not in self.nest.switches or bf16_unit() != "dots" or self.left is None:
            return None
        value = code[store.value]
        products = [n for k in inputs(value) if isinstance(n := code[k], Apply)]
        if len(products) != 1 or not self._sums(0, store) or products[0].name != "arith.mulf":
            return None
        factors = [code[k] for k in inputs(products[0])]
        read = [
            code[f.operands[0]] for f in factors if isinstance(f, Apply) and f.name == "arith.extf"
        ]
        if products[0].is_exact or len(read) != 2:
            return None
        row, weights = read if products[0].operands[0] == self.left else reversed(read)
        if not isinstance(row, Load) or not isinstance(weights, Load):
            return None
        return (row, weights) if str(row.type) == str(weights.type) == "bf16" else None

    def _lanes(self) -> int:
        """Return how many columns of a panel are done as one vector; 0 where they are not."""
        nest, column = self.nest, self.shape.column
        nodes = [nest.code[k] for k in self._of_columns]
        steps = {node.access.strides[column] for node in nodes if isinstance(node, Load)}
        fits = all(
            isinstance(n, Load) or (isinstance(n, Apply) and n.name in PER_LANE) for n in nodes
        )
        kinds = set(self.types.values())
        if len(nest.stores) != 1 or steps != {1} or not fits or not kinds <= WIDTHS.keys():
            return 0
        self.element = min(element_bytes(node.type) for node in nodes if isinstance(node, Load))
        machine = vectors()
        nbytes = max(WIDTHS[kind] for kind in kinds)
        most = machine.registers // 2 // min(self.count, ROWS) * machine.nbytes // nbytes
        lines = 2 if self.count == self.element == 1 else 1
        return min(most, lines * CACHE_LINE // self.element)

    @property
    def asks(self) -> bool:
        """Tell whether weights are asked for ahead: bytes, and for many rows, which take long beside their reading."""
        slow = self.element == 1 or self.count > 2
        return self.lanes > 0 and slow and asks_ahead()

    def _wide_step(self, dim: int, at: Value, steps: int, panel: ColumnBlock) -> None:
        """Add a few steps of depth to a panel, a vector of columns after the other."""
        writer, depths = self.writer, self._depths(dim, at, steps)
        whole = writer.times(panel.width // self.lanes, self.lanes)
        if self.puts_together:
            self._put_together(depths, self._takes_pairs(steps))
        loop = writer.open_loop(0, whole, self.lanes, [writer.number(0)] * (2 * self.asks))
        following = []
        if loop.carried:
            later = writer.plus(at, writer.plus(loop.carried[0], STEPS))
            following = self._ask(dim, steps, later, loop.carried, panel, whole)
        for group in self._groups():
            self._wide_rows(group, depths, panel, loop.counter)
        writer.close(following)
        for group in self._groups():
            self._step(group, depths, panel, whole)

    def _ask(
        self,
        dim: int,
        steps: int,
        later: Value,
        place: Sequence[Value],
        panel: ColumnBlock,
        whole: Value,
    ) -> list[Value]:
        """Ask for as many weights as a vector of columns takes; return the place where the next one asks on.

        They are asked for in the order in which they lie, row by row: memory is fastest that way. later: a step of
        depth; place: how many steps of depth have been asked for, and how many of the `whole` columns of the next one.
        """
        writer = self.writer
        step, first = place
        after = writer.plus(first, steps * self.lanes)
        last = self.nest.sizes[dim] - 1
        here = {dim: writer.least(later, last), **self._column(panel, first)}
        then = {
            dim: writer.least(writer.plus(later, 1), last),
            **self._column(panel, first - whole),
        }
        for one, other in zip(self._weights_at(here), self._weights_at(then)):
            for k in range(0, steps * self.lanes, CACHE_LINE // self.element):
                is_here = writer.compare("slt", writer.plus(first, k), whole)
                writer.prefetch(writer.offset(writer.select(is_here, one, other), k * self.element))
        is_done = writer.compare("sge", after, whole)
        return [
            writer.select(is_done, writer.plus(step, 1), step),
            writer.select(is_done, after - whole, after),
        ]

    @property
    def puts_together(self) -> bool:
        """Tell whether the numbers of rows are put together before they are used: there are more than registers."""
        return self.left is not None and self.count > 2

    def _takes_pairs(self, steps: int) -> bool:
        """Tell whether pairs of steps of bf16 are added at a time: for two rows memory is slower than single ones."""
        return self.puts_together and self.pairs is not None and steps % 2 == 0

    def _put_together(self, depths: Sequence[Counters], in_pairs: bool) -> None:
        """Copy the numbers of all rows at a few steps of depth to where they are read for each vector of columns."""
        row, left = self.shape.row, self.left
        assert row is not None and left is not None
        number = self.writer.open(self.end(row))
        for k, depth in enumerate(depths):
            with self.at({row: number, **depth}):
                value = self._bits_of_row() if in_pairs else self.values[left]
            self.writer.store(value, self._number_of(number, k, value.type))
        self.writer.close()

    def _bits_of_row(self) -> Value:
        """Load the bf16 of a row here."""
        assert self.pairs is not None
        place = self.frame.address(self.pairs[0].access, "i16", self.place)
        return self.writer.load(place, "i16")

    def _number_of(self, row: Value, step: int, kind: str) -> Value:
        """Return where the number of a row at a step of depth is.

        It is behind the results in one buffer. In one of its own LLVM would read it before the loop over columns, into
        a register that there is not.
        """
        room = self.types[self.nest.stores[0].value]
        first = self.writer.offset(self.buffers[0], self.count * self.apart, room)
        place = self.writer.plus(self.writer.times(row, STEPS), step)
        return self.writer.offset(first, place, kind)

    def _weights_at(self, counters: Counters) -> list[Value]:
        """Return where what depends on the column is read."""
        with self._placed(counters):
            nodes = [self.nest.code[k] for k in self._of_columns]
            return [
                self.frame.address(node.access, str(node.type), self.place)
                for node in nodes
                if isinstance(node, Load)
            ]

    def _wide_rows(
        self,
        rows: Sequence[Counters],
        depths: Sequence[Counters],
        panel: ColumnBlock,
        column: Value,
    ) -> None:
        """Add a few steps of depth to a vector of columns of a few rows."""
        kind, at = self.types[self.nest.stores[0].value], self._column(panel, column)
        places = [self._room(0, row, column) for row in rows]
        if self._takes_pairs(len(depths)):
            self._wide_pairs(rows, depths, at, places)
            return
        type_, align = f"vector<{self.lanes}x{kind}>", WIDTHS[kind]
        sums = [self.writer.load(place, type_, align) for place in places]
        for step, depth in enumerate(depths):
            shared: dict[int, Value] = {}
            for k, row in enumerate(rows):
                known = self._known(row, depth, step)
                with self._placed({**at, **row, **depth}):
                    sums[k] = self._wide(known, shared, sums[k])
        for place, value in zip(places, sums):
            self.writer.store(value, place, align)

    def _wide_pairs(
        self,
        rows: Sequence[Counters],
        depths: Sequence[Counters],
        column: Counters,
        places: Sequence[Value],
    ) -> None:
        """Add pairs of steps of depth to a vector of columns of a few rows, whose results are at `places`."""
        assert self.pairs is not None
        writer, half, (_, weights) = self.writer, PAIR_LANES, self.pairs
        starts = range(0, self.lanes, half)
        into = [writer.offset(place, k, "f32") for place in places for k in starts]
        sums = [writer.load(place, f"vector<{half}xf32>", 4) for place in into]
        for step in range(0, len(depths), 2):
            lines = []
            for depth in depths[step : step + 2]:
                with self._placed({**column, **depth}):
                    place = self.frame.address(weights.access, "i16", self.place)
                    lines.append(writer.load(place, f"vector<{self.lanes}xi16>", 2))
            orders = [
                [at + k for at in range(s, s + half) for k in (0, self.lanes)] for s in starts
            ]
            pairs = [writer.shuffle(lines[0], lines[1], order) for order in orders]
            for r, row in enumerate(rows):
                (number,) = row.values()
                both = writer.load(self._number_of(number, step, "i16"), "i32", 2)
                left = writer.convert("llvm.bitcast", writer.spread(both, half), pairs[0].type)
                for c, pair in enumerate(pairs):
                    k = r * len(pairs) + c
                    sums[k] = writer.add_pairs(left, pair, sums[k])
        for place, value in zip(into, sums):
            writer.store(value, place, 4)

    def _known(self, row: Counters, depth: Counters, step: int) -> Mapping[int, Value]:
        """Return the numbers of a row at a step of depth."""
        if not self.puts_together or self.left is None:
            return self._values_at({**row, **depth})
        (number,) = row.values()
        kind = self.types[self.nest.stores[0].value]
        return {
            **self.values,
            self.left: self.writer.load(self._number_of(number, step, kind), kind),
        }

    def _wide(self, known: Mapping[int, Value], shared: dict[int, Value], held: Value) -> Value:
        """Return what the result of a row holds after a step of depth, for a vector of columns.

        known: numbers that are the same for all of them, or vectors; shared: vectors that are the same for all rows.
        """
        value, made, code = self.nest.stores[0].value, dict(shared), self.nest.code
        computed = needed(code, [value], {*made, *known})
        read = {k for number in computed for k in inputs(code[number])} - set(made)
        for number in sorted(computed | read):
            node = code[number]
            if isinstance(node, Accumulator):
                made[number] = held
                continue
            made[number] = self._wide_node(number, node, known, made)
            if number in self.weights:
                shared[number] = made[number]
        return made[value]

    def _wide_node(
        self, number: int, node: NestNode, known: Mapping[int, Value], made: Mapping[int, Value]
    ) -> Value:
        """Compute a node for a vector of columns."""
        if number in known:
            value = known[number]
            return value if value.is_vector else self.writer.spread(value, self.lanes)
        type_ = f"vector<{self.lanes}x{type_text(node)}>"
        if isinstance(node, Load):
            place = self.frame.address(node.access, type_text(node), self.place)
            return self._lanes_at(place, type_, element_bytes(node.type))
        assert isinstance(node, Apply)
        operands = [made[k] for k in node.operands]
        return self.writer.op(node.name, self.settings(node), operands, type_)

    def _lanes_at(self, place: Value, type_: str, nbytes: int) -> Value:
        """Load lanes, `nbytes` each."""
        return self.writer.load(place, type_, nbytes)

    @contextmanager
    def _placed(self, counters: Counters) -> Iterator[None]:
        """Have loops at numbers for a while, and compute nothing yet."""
        kept = list(self.place)
        for dim, counter in counters.items():
            self.place[dim] = counter
        yield
        self.place = kept

    def _values_at(self, counters: Counters) -> dict[int, Value]:
        with self.at(counters):
            return self.values

    def _kept(self, row: Counters, column: Value) -> list[Value]:
        """Return what the results of a row hold so far, in a column of the panel."""
        kinds = [self.types[store.value] for store in self.nest.stores]
        places = [self._room(k, row, column) for k in range(len(kinds))]
        read = [self.writer.load(place, stored(kind)) for place, kind in zip(places, kinds)]
        return [self.frame.loaded(value, kind) for value, kind in zip(read, kinds)]

    def _keep(self, row: Counters, column: Value, values: Sequence[Value]) -> None:
        """Let the results of a row hold these."""
        for k, value in enumerate(values):
            self.writer.store(self.frame.in_memory(value), self._room(k, row, column))

    def _room(self, result: int, row: Counters, column: Value) -> Value:
        """Return where the buffer of a result has the element of a row and a column of the panel."""
        kind = stored(self.types[self.nest.stores[result].value])
        for number in row.values():
            column = self.writer.plus(self.writer.times(number, self.apart), column)
        return self.writer.offset(self.buffers[result], column, kind)
