"""Write the text of row kernels; see rows.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from meshweave.ir.expressions import Accumulator
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.families.flow import NestAccesses, RowFlow, Spot
from meshweave.lowering.gpu.families.groups import Group, shared_bytes
from meshweave.lowering.gpu.families.lanes import WIDEST, Lanes
from meshweave.lowering.gpu.families.reduction import Combiner, combiners, loop, tree
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import Guard, both
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.writer import Value

ALONE = -1  # the turn of an element that is in no group of lanes
AT_ONCE = 4  # turns of a loop over rows in shared memory that are written one behind another


class Chunk(NamedTuple):
    """Name what a thread does at once: a group of lanes by its number in the row, whether it exists, and its turn.

    The turn is 0 where a loop counts them.
    """

    number: Value
    guard: Guard
    turn: int


@dataclass(frozen=True)
class RowShape:
    """Say how rows are given to threads.

    rows, elements: sizes; lanes: neighbouring elements of a thread; group: threads of a row;
    together: rows of a block; held: whether each thread keeps what it has of a row. odd: strides of the rows in memory
    where these begin anywhere: groups of lanes are then counted from the first place that is aligned; () where they all
    are. slots: rows that are kept in shared memory at a time, not in registers.
    """

    rows: int
    elements: int
    lanes: int
    group: int
    together: int
    held: bool
    odd: tuple[int, ...] = ()
    slots: int = 0

    @property
    def chunks(self) -> int:
        """Count the groups of lanes in a row, at most."""
        return self.elements // self.lanes if self.odd else -(-self.elements // self.lanes)

    @property
    def turns(self) -> int:
        """Count the chunks of each thread; the last ones may lie beyond the row."""
        return -(-self.chunks // self.group)

    @property
    def whole(self) -> int:
        """Count the turns in which every thread of a group has a chunk."""
        least = (self.elements - self.lanes + 1) // self.lanes if self.odd else self.chunks
        return max(0, least) // self.group

    def slot_bytes(self, width: int) -> int:
        """Return the bytes of a row in shared memory, of elements of `width` bytes at most."""
        return self.turns * self.group * self.lanes * width


class RowCode:
    """Write the phases of one row, one after another.

    phase: the one that is being written; known, kept, skipped: of it, as in `RowFlow`.
    """

    phase: NestAccesses
    known: set[Spot]
    kept: set[Spot]
    skipped: frozenset[int]

    def __init__(
        self, frame: DeviceFrame, flow: RowFlow, shape: RowShape, rows: int, slots: int
    ) -> None:
        """Begin a row. rows: outer loops of each nest. slots: results that one reduction has at most.

        Rows that are kept in shared memory lie there behind what threads meet in.
        """
        self.frame, self.flow, self.shape, self.rows = frame, flow, shape, rows
        writer = frame.writer
        thread = writer.thread()
        self.member = thread % shape.group
        self.group = Group(frame, shape.group, slots, thread)
        row = frame.as_index(writer.block())
        if shape.together > 1:
            inside = frame.as_index(thread // shape.group)
            row = row * shape.together + inside
        self.live = writer.inside(row, shape.rows, shape.together)
        sizes = flow.phases[0].nest.sizes[:rows]
        self.outer: list[Value | None] = [*frame.digits(row, sizes)]
        self.values: dict[tuple[Spot, int], list[Value]] = {}  # by turn; turn 0 of a single spot
        self.slots: dict[Spot, int] = {}  # of the rows in shared memory
        self.behind = shared_bytes(shape.group, slots)
        self.width = flow.kept_at_once()[1]
        if shape.odd:
            lanes = shape.lanes
            start = frame.linear(0, [stride % lanes for stride in shape.odd], self.outer)
            self.head = (frame.constant(lanes) - start % lanes) % lanes
            self.groups = (frame.constant(shape.elements) - self.head) // lanes

    def write(self) -> None:
        """Write all phases in turn."""
        flow = self.flow
        for number, self.phase in enumerate(flow.phases):
            self.known, self.kept = flow.known[number], flow.kept[number]
            self.skipped = flow.skipped[number]
            if flow.barriers[number]:
                self.group.synchronise()
            if self.phase.nest.reductions:
                self._reduce()
            elif len(self.phase.nest.sizes) > self.rows:
                self._each(self._map)
            else:
                self._single()
            self.values = {at: v for at, v in self.values.items() if at[0] in self.kept}

    # Places in a row.

    def _each(self, body: Callable[[Chunk], None]) -> None:
        """Write `body(chunk)` for each chunk of this thread."""

        def turn(chunk: Chunk, _: list[Value]) -> list[Value]:
            body(chunk)
            return []

        self._loop([], turn)

    def _loop(
        self, carried: list[Value], body: Callable[[Chunk, list[Value]], list[Value]]
    ) -> list[Value]:
        """Write `body(chunk, carried)` for each chunk of this thread: in a loop, but for chunks in registers."""
        shape, frame = self.shape, self.frame
        once = AT_ONCE if shape.slots else 1
        looped = 0 if shape.held and not shape.slots else shape.whole // once * once

        def several(first: Value, carried: list[Value]) -> list[Value]:
            for k in range(once):
                chunk = self._chunk(first + k if k else first)
                carried = body(Chunk(chunk, self.live, 0), carried)
            return carried

        if looped:
            carried = frame.writer.for_(0, looped, once, carried, several, frame.index)
        for chunk in self._turns(looped):
            carried = body(chunk, carried)
        return carried

    def _turns(self, first: int) -> list[Chunk]:
        """Return the chunks of this thread from turn `first` on, and then the element that is in none."""
        places = [self._turn(turn) for turn in range(first, self.shape.turns)]
        if self.shape.odd:
            member = self.frame.as_index(self.member)
            left = self.frame.constant(self.shape.elements) - self.groups * self.shape.lanes
            inside = self.frame.writer.compare("ult", member, left)
            places.append(Chunk(member, both(self.live, inside), ALONE))
        return places

    def _turn(self, turn: int) -> Chunk:
        """Return a chunk of this thread: its number in the row, whether it exists, and which it is."""
        chunk = self._chunk(self.frame.constant(turn))
        guard = self.live
        if turn >= self.shape.whole:
            chunks = self.groups if self.shape.odd else self.shape.chunks
            guard = both(guard, self.frame.writer.compare("ult", chunk, chunks))
        return Chunk(chunk, guard, turn)

    def _chunk(self, turn: Value) -> Value:
        """Return the number of a chunk; neighbouring threads have neighbouring chunks."""
        member = self.frame.as_index(self.member)
        return turn * self.shape.group + member

    def _lanes(self, place: Chunk) -> Lanes:
        """Return the iterations in a chunk."""
        nest, lanes, (chunk, guard, turn) = self.phase.nest, self.shape.lanes, place
        if self.shape.odd:
            dim = len(nest.sizes) - 1
            aligned = [(*self.shape.odd, 1)]
            first = self.head + chunk * lanes
            if turn == ALONE:  # before the first chunk, or behind the last
                before = self.frame.writer.compare("ult", chunk, self.head)
                first = self.frame.writer.select(before, chunk, chunk + self.groups * lanes)
                lanes = 1
            return Lanes(self.frame, nest, [*self.outer, first], dim, lanes, guard, aligned)
        sizes = nest.sizes[self.rows :]
        inner = self.frame.digits(chunk, [*sizes[:-1], sizes[-1] // lanes])
        index = [*self.outer, *inner[:-1], inner[-1] * lanes]
        return Lanes(self.frame, nest, index, len(nest.sizes) - 1, lanes, guard)

    def _whole_row(self) -> Chunk:
        """Return what a row has one of as a chunk."""
        return Chunk(self.frame.constant(0), self.live, 0)

    # What is kept.

    def _had(self, spot: Spot, chunk: Chunk, count: int) -> list[Value]:
        """Return the values of a spot that this thread has, one for each of `count` lanes."""
        if spot.single:
            return self.values[spot, 0] * count
        if not self._is_shared(spot, chunk):
            return self.values[spot, chunk.turn]
        found, writer = list[Value](), self.frame.writer
        size, kind = self._piece(spot), stored(spot.type)
        for k in range(0, count, size):
            place = self._place(spot, chunk, k)
            if size == 1:
                found.append(writer.load(place, kind))
            else:
                vector = writer.load(place, f"vector<{size}x{kind}>", size * _width(spot))
                found += [writer.lane(vector, lane) for lane in range(size)]
        return [self.frame.loaded(value, spot.type) for value in found]

    def _has(self, spot: Spot) -> bool:
        """Tell whether this thread has the values of a spot; what a row has one of is not kept from within a loop."""
        return spot in self.known and (not spot.single or (spot, 0) in self.values)

    def _keep(self, spot: Spot, chunk: Chunk, values: list[Value]) -> None:
        """Remember values for later phases."""
        if spot not in self.kept:
            return
        if not self._is_shared(spot, chunk):
            at = 0 if spot.single else chunk.turn
            self.values[spot, at] = values[:1] if spot.single else values
            return
        self._take_slot(spot)
        size, writer = self._piece(spot), self.frame.writer
        raw = [self.frame.in_memory(value) for value in values]
        for k in range(0, len(raw), size):
            group = raw[k : k + size]
            value = writer.vector(group) if size > 1 else group[0]
            writer.store(value, self._place(spot, chunk, k), size * _width(spot))

    def _is_shared(self, spot: Spot, chunk: Chunk) -> bool:
        """Tell whether a spot is kept in shared memory: elements that are in no group of lanes never are."""
        return bool(self.shape.slots) and not spot.single and chunk.turn != ALONE

    def _take_slot(self, spot: Spot) -> None:
        """Give a row a place in shared memory, perhaps that of one which no later phase reads."""
        if spot not in self.slots:
            taken = {slot for each, slot in self.slots.items() if each in self.kept}
            self.slots[spot] = min(set(range(self.shape.slots)) - taken)

    def _piece(self, spot: Spot) -> int:
        """Return the lanes that one access to shared memory moves."""
        return min(self.shape.lanes, WIDEST // _width(spot))

    def _place(self, spot: Spot, chunk: Chunk, lane: int) -> Value:
        """Return where this thread keeps the lanes from `lane` on; those of neighbours lie side by side."""
        shape, writer, size = self.shape, self.frame.writer, self._piece(spot)
        row = self.slots[spot] * shape.slot_bytes(self.width)
        before = lane // size * shape.turns * shape.group * size * _width(spot)
        start = writer.shared(self.behind + row + before)
        return writer.offset(start, chunk.number * (size * _width(spot)))

    def _compute(self, lanes: Lanes, chunk: Chunk, wanted: list[int]) -> list[list[Value]]:
        """Compute nodes in a chunk; what it loads is kept where it is read again."""
        nest, loads, known = self.phase.nest, self.phase.loads, dict[int, list[Value]]()
        for node, spot in loads.items():
            if self._has(spot):
                known[node] = self._had(spot, chunk, lanes.count)
        again = {spot for spot in self.kept if not (self.shape.slots and spot.single)}
        again = again if self.shape.held else set()
        fresh = [node for node, spot in loads.items() if node not in known and spot in again]
        for node, what in enumerate(() if nest.reductions else nest.code):
            if isinstance(what, Accumulator):
                known[node] = self._start(lanes, chunk, what.number, known)
        found = lanes.compute([*wanted, *fresh], known)
        for node, values in zip(fresh, found[len(wanted) :]):
            self._keep(loads[node], chunk, values)
        return found[: len(wanted)]

    def _start(
        self, lanes: Lanes, chunk: Chunk, result: int, known: dict[int, list[Value]]
    ) -> list[Value]:
        """Return what one result begins with, for each lane."""
        store, spot = self.phase.nest.stores[result], self.phase.stores[result]
        if store.initial is not None:
            return lanes.compute([store.initial], known)[0]
        if self._has(spot):
            return self._had(spot, chunk, lanes.count)
        return lanes.load(store, 1) * lanes.count if spot.single else lanes.load(store, lanes.count)

    # Phases.

    def _map(self, chunk: Chunk) -> None:
        lanes, stores = self._lanes(chunk), self.phase.nest.stores
        found = self._compute(lanes, chunk, [s.value for s in stores])
        for k, (store, values) in enumerate(zip(stores, found)):
            self._keep(self.phase.stores[k], chunk, values)
            if k not in self.skipped:
                lanes.store(store, values)

    def _single(self) -> None:
        """Compute, by all threads of a row, what the row has one of; one thread stores it."""
        nest = self.phase.nest
        lanes = Lanes(self.frame, nest, self.outer, 0, 1, self.live)
        found = self._compute(lanes, self._whole_row(), [s.value for s in nest.stores])
        self._leave(lanes, [values[0] for values in found])

    def _leave(self, lanes: Lanes, values: list[Value]) -> None:
        """Keep results that a row has one of; its first thread stores them."""
        for spot, value in zip(self.phase.stores, values):
            self._keep(spot, self._whole_row(), [value])
        left = [k for k in range(len(values)) if k not in self.skipped]
        guard = self.live
        if left and self.shape.group > 1:
            guard = both(guard, self.frame.writer.compare("eq", self.member, 0))
        for k in left:
            Lanes(self.frame, lanes.nest, lanes.index, lanes.dim, 1, guard).store(
                lanes.nest.stores[k], [values[k]]
            )

    def _reduce(self) -> None:
        nest = self.phase.nest
        joined = combiners(nest)
        assert joined is not None
        parts = self._held(joined) if self.shape.held else self._walked(joined)
        totals = self.group.reduce(joined, parts)
        index = [*self.outer, *[None] * (len(nest.sizes) - self.rows)]
        lanes = Lanes(self.frame, nest, index, len(index) - 1, 1, self.live)
        finals = []
        for k, (combiner, total) in enumerate(zip(joined, totals)):
            start = combiner.given(self.frame, self._start(lanes, self._whole_row(), k, {})[0])
            total = combiner.join(self.frame, start, total)
            finals.append(combiner.finished(self.frame, total))
        self._leave(lanes, finals)

    def _held(self, joined: list[Combiner]) -> list[Value]:
        """Return this thread's part of each result, its chunks one after another."""
        if self.shape.slots:
            return self._summed(joined)
        columns: list[list[Value]] = [[] for _ in joined]
        for chunk in self._turns(0):
            for column, values in zip(columns, self._given(joined, chunk)):
                column += values
        return [tree(self.frame, c, column) for c, column in zip(joined, columns)]

    def _summed(self, joined: list[Combiner]) -> list[Value]:
        """Return the same of a row in shared memory: the lanes of a chunk are joined first."""

        def body(chunk: Chunk, parts: list[Value]) -> list[Value]:
            found = [tree(self.frame, c, v) for c, v in zip(joined, self._given(joined, chunk))]
            return [c.join(self.frame, a, v) for c, a, v in zip(joined, parts, found)]

        return self._loop([c.start(self.frame) for c in joined], body)

    def _walked(self, joined: list[Combiner]) -> list[Value]:
        """Return the same from a loop over the row; each lane has a part of its own until the end."""
        lanes = self.shape.lanes
        starts = [c.start(self.frame) for c in joined for _ in range(lanes)]

        def body(chunk: Chunk, carried: list[Value]) -> list[Value]:
            found = self._given(joined, chunk)
            starts = range(0, len(carried), lanes)
            flat = {at + k: v for at, values in zip(starts, found) for k, v in enumerate(values)}
            return [
                joined[at // lanes].join(self.frame, a, flat[at]) if at in flat else a
                for at, a in enumerate(carried)
            ]

        parts = loop(
            self.frame, [c for c in joined for _ in range(lanes)], starts, 0, self.shape.whole, 1,
            lambda iv, carried: body(Chunk(self._chunk(iv), self.live, 0), carried),
        )  # fmt: skip
        for chunk in self._turns(self.shape.whole):
            parts = body(chunk, parts)
        return [
            tree(self.frame, c, parts[k * lanes : (k + 1) * lanes]) for k, c in enumerate(joined)
        ]

    def _given(self, joined: list[Combiner], chunk: Chunk) -> list[list[Value]]:
        """Return what a chunk gives to each reduction; what does not exist changes nothing."""
        guard = chunk.guard
        found = self._compute(self._lanes(chunk), chunk, [c.value for c in joined])
        given = []
        for combiner, values in zip(joined, found):
            column = [combiner.given(self.frame, v) for v in values]
            if guard is not None:
                nothing = combiner.start(self.frame)
                column = [self.frame.writer.select(guard, v, nothing) for v in column]
            given.append(column)
        return given


def _width(spot: Spot) -> int:
    return element_bytes(spot.type)
