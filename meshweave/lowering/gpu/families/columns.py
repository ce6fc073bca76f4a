"""Reduce down columns: neighbouring threads reduce neighbouring results, so that what they read lies side by side.

A block has several rows of threads, which share the values of a column and meet in shared memory. Columns that make
too few blocks are cut in pieces, which meet in scratch memory (pieces.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.groups import SLOT, word_bytes
from meshweave.lowering.gpu.families.lanes import Lanes, piece
from meshweave.lowering.gpu.families.launch import MOST_BLOCKS, REUSE, frame_for
from meshweave.lowering.gpu.families.pieces import BLOCKS, PieceUnit, store_parts
from meshweave.lowering.gpu.families.reduction import Combiner, combiners, loop
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import both
from meshweave.lowering.nests.bind import LoopNest, reordered
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

ACROSS = 32  # threads side by side, at most
MOST_DOWN = 16  # rows of so many threads
# Blocks that make cutting columns needless; fewer than FEW leave multiprocessors idle.
BUSY, FEW = 264, 128
SHORTEST = 8  # values of a thread for which columns are cut
LINE = 128  # bytes that a row of threads reads side by side, at least
MOST_SHARED = 40 * 1024


@dataclass(frozen=True)
class ColumnShape:
    """Say how columns are given to threads.

    lanes: neighbouring results of a thread; down: rows of `across` threads side by side;
    outer: sizes of the parallel loops but the last; columns: groups of lanes in the last one; pieces: of each column.
    """

    lanes: int
    across: int
    down: int
    outer: tuple[int, ...]
    columns: int
    pieces: int = 1

    @property
    def strips(self) -> int:
        """Count the blocks side by side."""
        return -(-self.columns // self.across)

    @property
    def blocks(self) -> int:
        """Count the blocks of the grid."""
        return math.prod(self.outer) * self.strips * self.pieces


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return a kernel for one nest that reduces along larger steps than those of its last parallel loop, else None."""
    nest = _turned(unit.nests[0])
    if len(unit.nests) > 1 or not suits(unit):
        return None
    shape = _shape(nest, facts)
    return _built(unit, nest, shape, facts) if shape.blocks <= MOST_BLOCKS else None


def build_pieces(unit: PieceUnit, facts: Facts) -> DeviceKernel:
    """Return the kernel that reduces pieces of columns."""
    nest = _turned(unit.nests[0])
    shape = replace(_widest(nest, facts), pieces=unit.pieces)
    return _built(unit, nest, shape, facts)


def suits(unit: KernelUnit) -> bool:
    """Tell whether the first nest of a unit is a reduction down columns."""
    nest = _turned(unit.nests[0])
    return bool(nest.reductions) and combiners(nest) is not None and _suits(nest)


def pieces_of(unit: KernelUnit, facts: Facts) -> tuple[int, int]:
    """Return the pieces that columns are to be cut in, and the loop of the columns."""
    nest = _turned(unit.nests[0])
    wide, whole = _widest(nest, facts), _shape(nest, facts)
    height = math.prod(nest.sizes[d] for d in nest.reductions)
    # No more blocks than run at a time: those that are left over would have the device to themselves.
    pieces = min(BLOCKS // wide.blocks, height // (wide.down * SHORTEST))
    # One block for each multiprocessor has enough loads under way where all are of one operand.
    enough = FEW if len(nest.loads) == 1 else BUSY
    if wide.blocks >= BUSY or whole.blocks >= enough:
        pieces = 1
    return pieces, _inner(unit.nests[0])


def _built(unit: KernelUnit, nest: LoopNest, shape: ColumnShape, facts: Facts) -> DeviceKernel:
    joined = combiners(nest)
    assert joined is not None
    threads = shape.across * shape.down
    shared = len(joined) * shape.lanes * threads * SLOT if shape.down > 1 else 0
    frame = frame_for("columns", unit, facts, threads, shared_bytes=shared)
    _ColumnCode(frame, unit, nest, joined, shape).write()
    return DeviceKernel.of(frame.writer, shape.blocks, "columns", DETERMINISTIC)


def _turned(nest: LoopNest) -> LoopNest:
    """Return the nest with the parallel loop that most loads walk with step 1 as the last of them."""
    last = _inner(nest)
    if last < 0:
        return nest
    return reordered(
        nest, [*(d for d in nest.parallel if d != last), last, *sorted(nest.reductions)]
    )


def _inner(nest: LoopNest) -> int:
    """Return the parallel loop that most loads walk with step 1; -1 where none does."""
    loads = [load.access for load in nest.loads]
    ones = [d for d in nest.parallel if any(a.strides[d] == 1 for a in loads)]
    return max(
        ones, key=lambda d: (sum(a.strides[d] == 1 for a in loads), nest.sizes[d], d), default=-1
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


def _shape(nest: LoopNest, facts: Facts) -> ColumnShape:
    """Decide how whole columns are given to threads: fewer side by side where that makes enough blocks."""
    shape = _widest(nest, facts)
    nbytes = min(element_bytes(load.type) for load in nest.loads)
    while shape.blocks < BUSY and shape.across * shape.lanes * nbytes > LINE:
        shape = _with_lanes(nest, shape.lanes, shape.across // 2)
    return shape


def _widest(nest: LoopNest, facts: Facts) -> ColumnShape:
    """Give each thread what the widest access reads."""
    last = _last(nest)
    lanes = max(piece(facts.alignments, load, last) for load in nest.loads)
    while nest.sizes[last] % lanes:
        lanes //= 2
    return _with_lanes(nest, lanes, ACROSS)


def _with_lanes(nest: LoopNest, lanes: int, across: int) -> ColumnShape:
    last = _last(nest)
    columns = nest.sizes[last] // lanes
    while across > 1 and across // 2 >= columns:
        across //= 2
    height = math.prod(nest.sizes[d] for d in nest.reductions)
    down = 1
    while across * down < ACROSS * MOST_DOWN and down * 2 <= height:
        down *= 2
    while down > 1 and len(nest.stores) * lanes * across * down * SLOT > MOST_SHARED:
        down //= 2
    while across * down < ACROSS:  # whole warps
        down *= 2
    return ColumnShape(lanes, across, down, nest.sizes[:last], columns)


class _ColumnCode:
    """Write a kernel's text."""

    def __init__(
        self, frame: DeviceFrame, unit: KernelUnit, nest: LoopNest, joined: list[Combiner],
        shape: ColumnShape,
    ) -> None:  # fmt: skip
        self.frame, self.unit, self.nest, self.joined, self.shape = frame, unit, nest, joined, shape
        writer = frame.writer
        thread = writer.thread()
        self.across, self.row = thread % shape.across, thread // shape.across
        block = frame.as_index(writer.block())
        self.piece = block % shape.pieces
        block = block // shape.pieces
        strip = block % shape.strips
        column = strip * shape.across + frame.as_index(self.across)
        self.inside = writer.inside(column, shape.columns, shape.across)
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

        first, height = self.frame.as_index(self.row), math.prod(sizes)
        if not isinstance(self.unit, PieceUnit):
            return loop(self.frame, joined, starts, first, height, self.shape.down, body)
        each = -(-height // self.shape.pieces)
        begin = self.piece * each
        end = self.frame.writer.least(begin + each, height)
        return loop(
            self.frame, joined, starts, begin + first, end, self.shape.down, body, most=each
        )  # fmt: skip

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
        writer, across = self.frame.writer, self.shape.across
        threads = across * self.shape.down
        number = self.row * across + self.across + below * across
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
        if isinstance(self.unit, PieceUnit):
            store_parts(self.frame, self.unit, lanes, [*self.outer, self.piece], parts)
            return
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
