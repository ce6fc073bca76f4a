"""Reduce down columns: neighbouring threads reduce neighbouring results, so that what they read lies side by side.

A block has several rows of threads, which share the values of a column and meet in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.groups import SLOT, word_bytes
from meshweave.lowering.gpu.families.lanes import Lanes, piece
from meshweave.lowering.gpu.families.launch import MOST_BLOCKS, REUSE, frame_for
from meshweave.lowering.gpu.families.reduction import Combiner, combiners, loop
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import both
from meshweave.lowering.nests.bind import LoopNest, reordered
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

ACROSS = 32  # threads side by side
MOST_DOWN = 16  # rows of threads
BUSY = 264  # blocks that are worth narrower accesses
MOST_SHARED = 40 * 1024


@dataclass(frozen=True)
class ColumnShape:
    """Say how columns are given to threads.

    lanes: neighbouring results of a thread; down: rows of ACROSS threads side by side;
    outer: sizes of the parallel loops but the last; columns: groups of lanes in the last one.
    """

    lanes: int
    down: int
    outer: tuple[int, ...]
    columns: int

    @property
    def strips(self) -> int:
        """Count the blocks side by side."""
        return -(-self.columns // ACROSS)

    @property
    def blocks(self) -> int:
        """Count the blocks of the grid."""
        return math.prod(self.outer) * self.strips


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return a kernel for one nest that reduces along larger steps than those of its last parallel loop, else None."""
    nest = _turned(unit.nests[0])
    joined = combiners(nest)
    if len(unit.nests) > 1 or not nest.reductions or joined is None or not _suits(nest):
        return None
    shape = _shape(nest, facts, len(joined))
    if shape.blocks > MOST_BLOCKS:
        return None
    threads = ACROSS * shape.down
    shared = len(joined) * shape.lanes * threads * SLOT if shape.down > 1 else 0
    frame = frame_for("columns", unit, facts, threads, shared_bytes=shared)
    _ColumnCode(frame, nest, joined, shape).write()
    return DeviceKernel.of(frame.writer, shape.blocks, "columns", DETERMINISTIC)


def _turned(nest: LoopNest) -> LoopNest:
    """Return the nest with the parallel loop that most loads walk with step 1 as the last of them."""
    loads = [load.access for load in nest.loads]
    ones = [d for d in nest.parallel if any(a.strides[d] == 1 for a in loads)]
    if not ones:
        return nest
    last = max(ones, key=lambda d: (sum(a.strides[d] == 1 for a in loads), nest.sizes[d], d))
    return reordered(
        nest, [*(d for d in nest.parallel if d != last), last, *sorted(nest.reductions)]
    )


def _last(nest: LoopNest) -> int:
    return len(nest.parallel) - 1


def _suits(nest: LoopNest) -> bool:
    """Tell whether neighbouring results read neighbouring elements, and nothing much more than once."""
    last = _last(nest)
    if last < 0 or 0 in nest.sizes or nest.sizes[last] < 4:
        return False
    loads = [load.access for load in nest.loads]
    down = [a for a in loads if any(a.strides[d] for d in nest.reductions)]
    if not down or any(a.strides[last] not in (0, 1) for a in down):
        return False
    volume = max(math.prod(n for n, s in zip(nest.sizes, a.strides) if s) for a in down)
    return math.prod(nest.sizes) <= REUSE * volume


def _shape(nest: LoopNest, facts: Facts, slots: int) -> ColumnShape:
    last = _last(nest)
    lanes = max(piece(facts.alignments, load, last) for load in nest.loads)
    while nest.sizes[last] % lanes:
        lanes //= 2
    outer = nest.sizes[:last]

    def shape(lanes: int, down: int) -> ColumnShape:
        columns = nest.sizes[last] // lanes
        return ColumnShape(lanes, down, outer, columns)

    while lanes > 1 and shape(lanes, 1).blocks < BUSY:
        lanes //= 2
    height = math.prod(nest.sizes[d] for d in nest.reductions)
    down = 1
    while down < MOST_DOWN and down * 2 <= height:
        down *= 2
    while down > 1 and slots * lanes * ACROSS * down * SLOT > MOST_SHARED:
        down //= 2
    return shape(lanes, down)


class _ColumnCode:
    """Write a kernel's text."""

    def __init__(
        self, frame: DeviceFrame, nest: LoopNest, joined: list[Combiner], shape: ColumnShape
    ) -> None:
        self.frame, self.nest, self.joined, self.shape = frame, nest, joined, shape
        writer = frame.writer
        thread = writer.thread()
        self.across, self.row = thread % ACROSS, thread // ACROSS
        block = frame.as_index(writer.block())
        strip = block % shape.strips
        column = strip * ACROSS + frame.as_index(self.across)
        self.inside = writer.inside(column, shape.columns, ACROSS)
        self.outer = [*frame.digits(block // shape.strips, shape.outer), column * shape.lanes]

    def write(self) -> None:
        """Reduce the column of each thread, then all of a block's together."""
        parts = self._down()
        if self.shape.down > 1:
            parts = self._together(parts)
        writer = self.frame.writer
        first = writer.compare("eq", self.row, 0)
        writer.where(both(first, self.inside), lambda: self._finish(parts))

    def _lanes(self, below: Sequence[Value | None]) -> Lanes:
        nest, last = self.nest, len(self.outer) - 1
        return Lanes(self.frame, nest, [*self.outer, *below], last, self.shape.lanes, self.inside)

    def _down(self) -> list[Value]:
        """Return this thread's part of each result, for all of its lanes."""
        sizes = [self.nest.sizes[d] for d in sorted(self.nest.reductions)]
        joined = [c for c in self.joined for _ in range(self.shape.lanes)]
        starts = [c.start(self.frame) for c in joined]

        def body(place: Value, carried: list[Value]) -> list[Value]:
            lanes = self._lanes(self.frame.digits(place, sizes))
            found = lanes.compute([c.value for c in self.joined])
            given = [c.given(self.frame, v) for c, vs in zip(self.joined, found) for v in vs]
            return [c.join(self.frame, a, v) for c, a, v in zip(joined, carried, given)]

        first = self.frame.as_index(self.row)
        return loop(self.frame, joined, starts, first, math.prod(sizes), self.shape.down, body)

    def _together(self, parts: list[Value]) -> list[Value]:
        """Join the parts of all rows of threads, halving their number each time; the first row has the result.

        A row writes where the others no longer read, so that one barrier for each halving is
        enough.
        """
        writer, distance = self.frame.writer, self.shape.down
        while distance > 1:
            distance //= 2
            upper = writer.compare("uge", self.row, distance)
            below = writer.compare("ult", self.row, 2 * distance)
            self._put(upper & below, parts)
            writer.barrier()
            lower = writer.compare("ult", self.row, distance)
            parts = self._join(lower, parts, distance)
        return parts

    def _place(self, part: int, kind: str, below: int) -> Value:
        """Return where the row of threads `below` this one leaves a part of that type."""
        writer, threads = self.frame.writer, ACROSS * self.shape.down
        number = self.row * ACROSS + self.across + below * ACROSS
        start = writer.shared(part * threads * SLOT)
        return writer.offset(start, number * word_bytes(kind))

    def _put(self, guard: Value, parts: list[Value]) -> None:
        """Leave these threads' parts in shared memory."""
        writer = self.frame.writer

        def write() -> None:
            for k, value in enumerate(parts):
                raw = self.frame.in_memory(value)
                writer.store(raw, self._place(k, raw.type, 0))

        writer.if_(guard, write)

    def _join(self, guard: Value, parts: list[Value], below: int) -> list[Value]:
        """Join these threads' parts with those of the row `below` them."""
        frame, writer = self.frame, self.frame.writer
        joined = [c for c in self.joined for _ in range(self.shape.lanes)]

        def join() -> list[Value]:
            found = []
            for k, (combiner, mine) in enumerate(zip(joined, parts)):
                raw = stored(mine.type)
                other = writer.load(self._place(k, raw, below), raw)
                found.append(combiner.join(frame, mine, frame.loaded(other, mine.type)))
            return found

        return writer.if_(guard, join, lambda: parts, [v.type for v in parts])

    def _finish(self, parts: list[Value]) -> None:
        """Join the totals with what the results begin with, and store them."""
        below = [None] * len(self.nest.reductions)
        count, index = self.shape.lanes, [*self.outer, *below]
        lanes = Lanes(self.frame, self.nest, index, len(self.outer) - 1, count)
        for k, (combiner, store) in enumerate(zip(self.joined, self.nest.stores)):
            if store.initial is not None:
                starts = lanes.compute([store.initial])[0]
            else:
                starts = lanes.load(store, count)
            totals = [
                combiner.join(self.frame, combiner.given(self.frame, a), b)
                for a, b in zip(starts, parts[k * count : (k + 1) * count])
            ]
            lanes.store(store, [combiner.finished(self.frame, v) for v in totals])
