"""Write the text of row kernels; see rows.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshweave.ir.expressions import Accumulator
from meshweave.lowering.gpu.families.flow import NestAccesses, RowFlow, Spot
from meshweave.lowering.gpu.families.groups import Group
from meshweave.lowering.gpu.families.lanes import Lanes
from meshweave.lowering.gpu.families.reduction import Combiner, combiners, loop, tree
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import Guard, both
from meshweave.lowering.writer import Value

ALONE = -1  # the turn of an element that is in no group of lanes


@dataclass(frozen=True)
class RowShape:
    """Say how rows are given to threads.

    rows, elements: sizes; lanes: neighbouring elements of a thread; group: threads of a row;
    together: rows of a block; held: whether rows stay in registers. odd: strides of the rows in memory where these
    begin anywhere: groups of lanes are then counted from the first place that is aligned; () where they all are.
    """

    rows: int
    elements: int
    lanes: int
    group: int
    together: int
    held: bool
    odd: tuple[int, ...] = ()

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
        """Begin a row. rows: outer loops of each nest. slots: results that one reduction has at most."""
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

    def _each(self, body: Callable[[tuple[Value, Guard, int]], None]) -> None:
        """Write `body((chunk, guard, turn))` for each chunk of this thread."""
        shape = self.shape
        if not shape.held:
            writer, index = self.frame.writer, self.frame.index
            writer.for_(
                0, shape.whole, 1, [], lambda iv, _: body((self._chunk(iv), self.live, 0)), index
            )
        for place in self._turns(0 if shape.held else shape.whole):
            body(place)

    def _turns(self, first: int) -> list[tuple[Value, Guard, int]]:
        """Return the chunks of this thread from turn `first` on, and then the element that is in none."""
        places = [self._turn(turn) for turn in range(first, self.shape.turns)]
        if self.shape.odd:
            member = self.frame.as_index(self.member)
            left = self.frame.constant(self.shape.elements) - self.groups * self.shape.lanes
            inside = self.frame.writer.compare("ult", member, left)
            places.append((member, both(self.live, inside), ALONE))
        return places

    def _turn(self, turn: int) -> tuple[Value, Guard, int]:
        """Return a chunk of this thread: its number in the row, whether it exists, and which it is."""
        chunk = self._chunk(self.frame.constant(turn))
        guard = self.live
        if turn >= self.shape.whole:
            chunks = self.groups if self.shape.odd else self.shape.chunks
            guard = both(guard, self.frame.writer.compare("ult", chunk, chunks))
        return chunk, guard, turn

    def _chunk(self, turn: Value) -> Value:
        """Return the number of a chunk; neighbouring threads have neighbouring chunks."""
        member = self.frame.as_index(self.member)
        return turn * self.shape.group + member

    def _lanes(self, place: tuple[Value, Guard, int]) -> Lanes:
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

    # What is in registers.

    def _had(self, spot: Spot, turn: int, count: int) -> list[Value]:
        """Return the values of a spot that this thread has, one for each of `count` lanes."""
        return self.values[spot, 0] * count if spot.single else self.values[spot, turn]

    def _keep(self, spot: Spot, turn: int, values: list[Value]) -> None:
        """Remember values for later phases."""
        if spot in self.kept:
            self.values[spot, 0 if spot.single else turn] = values[:1] if spot.single else values

    def _compute(self, lanes: Lanes, turn: int, wanted: list[int]) -> list[list[Value]]:
        """Compute nodes in a chunk; what it loads is kept where it is read again."""
        nest, loads, known = self.phase.nest, self.phase.loads, dict[int, list[Value]]()
        for node, spot in loads.items():
            if spot in self.known:
                known[node] = self._had(spot, turn, lanes.count)
        again = self.kept if self.shape.held else ()
        fresh = [node for node, spot in loads.items() if node not in known and spot in again]
        for node, what in enumerate(() if nest.reductions else nest.code):
            if isinstance(what, Accumulator):
                known[node] = self._start(lanes, turn, what.number, known)
        found = lanes.compute([*wanted, *fresh], known)
        for node, values in zip(fresh, found[len(wanted) :]):
            self._keep(loads[node], turn, values)
        return found[: len(wanted)]

    def _start(
        self, lanes: Lanes, turn: int, result: int, known: dict[int, list[Value]]
    ) -> list[Value]:
        """Return what one result begins with, for each lane."""
        store, spot = self.phase.nest.stores[result], self.phase.stores[result]
        if store.initial is not None:
            return lanes.compute([store.initial], known)[0]
        if spot in self.known:
            return self._had(spot, turn, lanes.count)
        return lanes.load(store, 1) * lanes.count if spot.single else lanes.load(store, lanes.count)

    # Phases.

    def _map(self, place: tuple[Value, Guard, int]) -> None:
        lanes, stores, turn = self._lanes(place), self.phase.nest.stores, place[2]
        found = self._compute(lanes, turn, [s.value for s in stores])
        for k, (store, values) in enumerate(zip(stores, found)):
            self._keep(self.phase.stores[k], turn, values)
            if k not in self.skipped:
                lanes.store(store, values)

    def _single(self) -> None:
        """Compute, by all threads of a row, what the row has one of; one thread stores it."""
        nest = self.phase.nest
        lanes = Lanes(self.frame, nest, self.outer, 0, 1, self.live)
        found = self._compute(lanes, 0, [s.value for s in nest.stores])
        self._leave(lanes, [values[0] for values in found])

    def _leave(self, lanes: Lanes, values: list[Value]) -> None:
        """Keep results that a row has one of; its first thread stores them."""
        for spot, value in zip(self.phase.stores, values):
            self._keep(spot, 0, [value])
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
            start = combiner.given(self.frame, self._start(lanes, 0, k, {})[0])
            total = combiner.join(self.frame, start, total)
            finals.append(combiner.finished(self.frame, total))
        self._leave(lanes, finals)

    def _held(self, joined: list[Combiner]) -> list[Value]:
        """Return this thread's part of each result, its chunks one after another."""
        columns: list[list[Value]] = [[] for _ in joined]
        for place in self._turns(0):
            found = self._given(joined, place)
            for column, values in zip(columns, found):
                column += values
        return [tree(self.frame, c, column) for c, column in zip(joined, columns)]

    def _walked(self, joined: list[Combiner]) -> list[Value]:
        """Return the same from a loop over the row; each lane has a part of its own until the end."""
        lanes = self.shape.lanes
        starts = [c.start(self.frame) for c in joined for _ in range(lanes)]

        def body(place: tuple[Value, Guard, int], carried: list[Value]) -> list[Value]:
            found = self._given(joined, place)
            starts = range(0, len(carried), lanes)
            flat = {at + k: v for at, values in zip(starts, found) for k, v in enumerate(values)}
            return [
                joined[at // lanes].join(self.frame, a, flat[at]) if at in flat else a
                for at, a in enumerate(carried)
            ]

        parts = loop(
            self.frame, [c for c in joined for _ in range(lanes)], starts, 0, self.shape.whole, 1,
            lambda iv, carried: body((self._chunk(iv), self.live, 0), carried),
        )  # fmt: skip
        for place in self._turns(self.shape.whole):
            parts = body(place, parts)
        return [
            tree(self.frame, c, parts[k * lanes : (k + 1) * lanes]) for k, c in enumerate(joined)
        ]

    def _given(self, joined: list[Combiner], place: tuple[Value, Guard, int]) -> list[list[Value]]:
        """Return what a chunk gives to each reduction; what does not exist changes nothing."""
        _, guard, turn = place
        found = self._compute(self._lanes(place), turn, [c.value for c in joined])
        given = []
        for combiner, values in zip(joined, found):
            column = [combiner.given(self.frame, v) for v in values]
            if guard is not None:
                nothing = combiner.start(self.frame)
                column = [self.frame.writer.select(guard, v, nothing) for v in column]
            given.append(column)
        return given
