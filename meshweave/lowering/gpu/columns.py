"""Reductions down columns: neighbouring threads reduce neighbouring results, so that what they read
lies side by side. A block has several rows of threads, which share the values of a column among
them and meet in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.fast_paths import DETERMINISTIC
from meshweave.lowering.bind import Nest, reordered
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.groups import SLOT, word_bytes
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.lanes import WIDEST, Lanes, aligned_piece
from meshweave.lowering.gpu.launch import MOST_BLOCKS, REUSE, as_index, entry_name, index_type
from meshweave.lowering.gpu.nodes import Frame, frame_of, stored, width
from meshweave.lowering.gpu.reduction import Combiner, combiners
from meshweave.lowering.rows import Unit

ACROSS = 32  # threads side by side
MOST_DOWN = 16  # rows of threads
BUSY = 264  # blocks that are worth narrower accesses
MOST_SHARED = 40 * 1024


@dataclass(frozen=True)
class Shape:
    """lanes: neighbouring results of a thread; across, down: threads side by side, and rows of them;
    outer: sizes of the parallel loops but the last; columns: groups of lanes in the last one.
    """

    lanes: int
    across: int
    down: int
    outer: tuple[int, ...]
    columns: int

    @property
    def strips(self) -> int:
        """Blocks side by side."""
        return -(-self.columns // self.across)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return math.prod(self.outer) * self.strips


def build(unit: Unit, target: Target, facts: Facts) -> DeviceKernel | None:
    """A kernel for one nest whose reductions walk memory in larger steps than its last parallel
    loop; None for any other unit.
    """
    nest = _turned(unit.nests[0])
    joined = combiners(nest)
    if len(unit.nests) > 1 or not nest.reductions or joined is None or not _suits(nest):
        return None
    shape = _shape(nest, facts, len(joined))
    if shape.blocks > MOST_BLOCKS:
        return None
    name = entry_name("columns", unit)
    threads = shape.across * shape.down
    shared = len(joined) * shape.lanes * threads * SLOT if shape.down > 1 else 0
    builder = Builder(name, parameters_of(unit, facts), threads, shared_bytes=shared)
    _Code(frame_of(builder, unit, index_type(unit)), nest, joined, shape).write()
    return DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(shape.blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        parameters=parameter_types(unit),
        family="columns",
        numerics=DETERMINISTIC,
    )


def _turned(nest: Nest) -> Nest:
    """The nest with the parallel loop that most of what it reads walks by ones as the last of them."""
    parallel = [d for d in range(len(nest.sizes)) if d not in nest.reductions]
    loads = [node[1] for node in nest.code if node[0] == "load"]
    ones = [d for d in parallel if any(a.strides[d] == 1 for a in loads)]
    if not ones:
        return nest
    last = max(ones, key=lambda d: (sum(a.strides[d] == 1 for a in loads), nest.sizes[d], d))
    return reordered(nest, [*(d for d in parallel if d != last), last, *sorted(nest.reductions)])


def _last(nest: Nest) -> int:
    return len(nest.sizes) - len(nest.reductions) - 1


def _suits(nest: Nest) -> bool:
    """Whether neighbouring results read neighbouring elements, and nothing much more than once."""
    last = _last(nest)
    if last < 0 or 0 in nest.sizes or nest.sizes[last] < 4:
        return False
    loads = [node[1] for node in nest.code if node[0] == "load"]
    down = [a for a in loads if any(a.strides[d] for d in nest.reductions)]
    if not down or any(a.strides[last] not in (0, 1) for a in down):
        return False
    volume = max(math.prod(n for n, s in zip(nest.sizes, a.strides) if s) for a in down)
    return math.prod(nest.sizes) <= REUSE * volume


def _shape(nest: Nest, facts: Facts, slots: int) -> Shape:
    last = _last(nest)
    lanes = 1
    for node in nest.code:
        if node[0] == "load" and node[1].strides[last] == 1:
            steps = [s for d, s in enumerate(node[1].strides) if d != last]
            nbytes, alignment = width(node[2]), facts.alignments[node[1].pointer]
            lanes = max(lanes, aligned_piece(alignment, steps, nbytes, WIDEST // nbytes))
    while nest.sizes[last] % lanes:
        lanes //= 2
    outer = nest.sizes[:last]

    def shape(lanes: int, down: int) -> Shape:
        columns = nest.sizes[last] // lanes
        return Shape(lanes, ACROSS, down, outer, columns)

    while lanes > 1 and shape(lanes, 1).blocks < BUSY:
        lanes //= 2
    height = math.prod(nest.sizes[d] for d in nest.reductions)
    down = 1
    while down < MOST_DOWN and down * 2 <= height:
        down *= 2
    while down > 1 and slots * lanes * ACROSS * down * SLOT > MOST_SHARED:
        down //= 2
    return shape(lanes, down)


class _Code:
    """Writes a kernel's text."""

    def __init__(self, frame: Frame, nest: Nest, joined: list[Combiner], shape: Shape) -> None:
        self.frame, self.nest, self.joined, self.shape = frame, nest, joined, shape
        builder, kind = frame.builder, frame.index
        thread = builder.thread()
        self.across, self.row = thread % shape.across, thread // shape.across
        block = as_index(builder, builder.block(), kind)
        strip = block % shape.strips
        column = strip * shape.across + as_index(builder, self.across, kind)
        self.inside = None
        if shape.columns % shape.across:
            self.inside = builder.compare("ult", column, shape.columns)
        self.outer = [*frame.digits(block // shape.strips, shape.outer), column * shape.lanes]

    def write(self) -> None:
        """The column of each thread, then all of a block's together."""
        parts = self._down()
        if self.shape.down > 1:
            parts = self._together(parts)
        builder = self.frame.builder
        first = builder.compare("eq", self.row, 0)
        guard = first if self.inside is None else first & self.inside
        builder.if_(guard, lambda: self._finish(parts))

    def _lanes(self, below: Sequence[Value | None]) -> Lanes:
        nest, last = self.nest, len(self.outer) - 1
        return Lanes(self.frame, nest, [*self.outer, *below], last, self.shape.lanes, self.inside)

    def _down(self) -> list[Value]:
        """This thread's part of each result, for all of its lanes."""
        builder, kind = self.frame.builder, self.frame.index
        sizes = [self.nest.sizes[d] for d in sorted(self.nest.reductions)]
        starts = [c.start(self.frame) for c in self.joined for _ in range(self.shape.lanes)]

        def body(place: Value, carried: list[Value]) -> list[Value]:
            lanes = self._lanes(self.frame.digits(place, sizes))
            found = lanes.compute([c.value for c in self.joined])
            given = [(c, c.given(self.frame, v)) for c, vs in zip(self.joined, found) for v in vs]
            return [c.join(self.frame, a, v) for a, (c, v) in zip(carried, given)]

        first = as_index(builder, self.row, kind)
        return builder.for_(first, math.prod(sizes), self.shape.down, starts, body, kind)

    def _together(self, parts: list[Value]) -> list[Value]:
        """The parts of all rows of threads, halved again and again; the first row has the result.

        A row writes where nobody has read since, so that one barrier for each halving is enough.
        """
        builder, distance = self.frame.builder, self.shape.down
        while distance > 1:
            distance //= 2
            upper = builder.compare("uge", self.row, distance)
            below = builder.compare("ult", self.row, 2 * distance)
            self._put(upper & below, parts)
            builder.barrier()
            lower = builder.compare("ult", self.row, distance)
            parts = self._join(lower, parts, distance)
        return parts

    def _place(self, part: int, kind: str, below: int) -> Value:
        """Where the row of threads `below` this one leaves a part of that type."""
        builder, across = self.frame.builder, self.shape.across
        threads = across * self.shape.down
        number = self.row * across + self.across + below * across
        start = builder.shared(part * threads * SLOT)
        return builder.offset(start, number * word_bytes(kind))

    def _put(self, guard: Value, parts: list[Value]) -> None:
        """Leave these threads' parts in shared memory."""
        builder = self.frame.builder

        def write() -> None:
            for k, value in enumerate(parts):
                raw = self.frame.in_memory(value)
                builder.store(raw, self._place(k, raw.type, 0))

        builder.if_(guard, write)

    def _join(self, guard: Value, parts: list[Value], below: int) -> list[Value]:
        """These threads' parts with those of the row `below` them."""
        frame, builder = self.frame, self.frame.builder
        combiners_ = [c for c in self.joined for _ in range(self.shape.lanes)]

        def join() -> list[Value]:
            found = []
            for k, (combiner, mine) in enumerate(zip(combiners_, parts)):
                raw = stored(mine.type)
                other = builder.load(self._place(k, raw, below), raw)
                found.append(combiner.join(frame, mine, frame.loaded(other, mine.type)))
            return found

        return builder.if_(guard, join, lambda: parts, [v.type for v in parts])

    def _finish(self, parts: list[Value]) -> None:
        """Join the totals with what the results begin with, and store them."""
        below = [None] * len(self.nest.reductions)
        count, index = self.shape.lanes, [*self.outer, *below]
        lanes = Lanes(self.frame, self.nest, index, len(self.outer) - 1, count)
        for k, (combiner, store) in enumerate(zip(self.joined, self.nest.stores)):
            if store.initial is not None:
                starts = lanes.compute([store.initial])[0]
            else:
                starts = lanes.load(store.access, store.type, count)
            totals = [
                combiner.join(self.frame, combiner.given(self.frame, a), b)
                for a, b in zip(starts, parts[k * count : (k + 1) * count])
            ]
            lanes.store(store, [combiner.finished(self.frame, v) for v in totals])
