"""The text of row kernels; see rows.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from meshweave.lowering.bind import Nest
from meshweave.lowering.gpu.builder import Value
from meshweave.lowering.gpu.flow import Flow, Phase, Spot
from meshweave.lowering.gpu.groups import Group
from meshweave.lowering.gpu.lanes import Guard, Lanes
from meshweave.lowering.gpu.launch import as_index
from meshweave.lowering.gpu.nodes import Frame
from meshweave.lowering.gpu.reduction import Combiner, combiners

if TYPE_CHECKING:
    from meshweave.lowering.gpu.rows import Shape

Row = dict[int, list[Value]]  # values of a spot in this thread, by turn; turn 0 of a single one


class RowCode:
    """Writes the phases of one row."""

    def __init__(self, frame: Frame, flow: Flow, shape: Shape, rows: int, slots: int) -> None:
        """rows: outer loops of each nest. slots: results that one reduction has at most."""
        self.frame, self.flow, self.shape, self.rows = frame, flow, shape, rows
        builder = frame.builder
        thread = builder.thread()
        self.member = thread % shape.group
        self.group = Group(frame, shape.group, slots, thread)
        row = as_index(builder, builder.block(), frame.index)
        if shape.together > 1:
            inside = as_index(builder, thread // shape.group, frame.index)
            row = row * shape.together + inside
        self.live: Guard = None
        if shape.rows % shape.together:
            self.live = builder.compare("ult", row, shape.rows)
        sizes = flow.phases[0].nest.sizes[:rows]
        self.outer: list[Value | None] = [*frame.digits(row, sizes)]
        self.values: dict[Spot, Row] = {}

    def write(self) -> None:
        """All phases in turn."""
        for number, phase in enumerate(self.flow.phases):
            if self.flow.barriers[number]:
                self.group.synchronise()
            if phase.nest.reductions:
                self._reduce(number, phase)
            elif len(phase.nest.sizes) > self.rows:
                self._each(partial(self._map, number, phase))
            else:
                self._single(number, phase)
            kept = self.flow.kept[number]
            self.values = {s: v for s, v in self.values.items() if s in kept}

    # Places in a row.

    def _each(self, body: Callable[[tuple[Value, Guard, int]], None]) -> None:
        """`body((chunk, guard, turn))` for each chunk of this thread."""
        for turn in range(self.shape.turns if self.shape.held else 0):
            body(self._turn(turn))
        if not self.shape.held:
            whole = self.shape.chunks // self.shape.group
            builder, index = self.frame.builder, self.frame.index
            builder.for_(
                0, whole, 1, [], lambda iv, _: body((self._chunk(iv), self.live, 0)), index
            )
            if self.shape.chunks % self.shape.group:
                body((*self._turn(whole)[:2], 0))

    def _turn(self, turn: int) -> tuple[Value, Guard, int]:
        """A chunk of this thread: its number in the row, whether it exists, and which it is."""
        chunk = self._chunk(self.frame.constant(turn))
        guard = self.live
        if (turn + 1) * self.shape.group > self.shape.chunks:
            builder = self.frame.builder
            inside = builder.compare("ult", chunk, self.shape.chunks)
            guard = inside if guard is None else guard & inside
        return chunk, guard, turn

    def _chunk(self, turn: Value) -> Value:
        """Neighbouring threads have neighbouring chunks."""
        member = as_index(self.frame.builder, self.member, self.frame.index)
        return turn * self.shape.group + member

    def _lanes(self, nest: Nest, chunk: Value, guard: Guard) -> Lanes:
        """The iterations of a nest in a chunk."""
        lanes, sizes = self.shape.lanes, nest.sizes[self.rows :]
        inner = self.frame.digits(chunk, [*sizes[:-1], sizes[-1] // lanes])
        index = [*self.outer, *inner[:-1], inner[-1] * lanes]
        return Lanes(self.frame, nest, index, len(nest.sizes) - 1, lanes, guard)

    # What is in registers.

    def _known(self, number: int, phase: Phase, turn: int, count: int) -> dict[int, list[Value]]:
        """The loads of a phase whose values this thread has."""
        known = {}
        for node, spot in phase.loads.items():
            if spot in self.flow.known[number]:
                values = self.values[spot][0 if spot.single else turn]
                known[node] = values * count if spot.single else values
        return known

    def _keep(self, number: int, spot: Spot, turn: int, values: list[Value]) -> None:
        """Remember values for later phases."""
        if spot in self.flow.kept[number] and (self.shape.held or spot.single):
            one = values[:1] if spot.single else values
            self.values.setdefault(spot, {})[0 if spot.single else turn] = one

    def _compute(
        self, number: int, phase: Phase, lanes: Lanes, turn: int, wanted: list[int]
    ) -> list[list[Value]]:
        """Nodes of a phase in a chunk; what it loads is kept where it is read again."""
        known = self._known(number, phase, turn, lanes.count)
        fresh = [
            node
            for node, spot in phase.loads.items()
            if node not in known and self._wanted(number, spot)
        ]
        known |= self._starts(number, phase, lanes, turn, known)
        found = lanes.compute([*wanted, *fresh], known)
        for node, values in zip(fresh, found[len(wanted) :]):
            self._keep(number, phase.loads[node], turn, values)
        return found[: len(wanted)]

    def _wanted(self, number: int, spot: Spot) -> bool:
        inside_loop = not self.shape.held
        return spot in self.flow.kept[number] and not inside_loop

    def _starts(
        self, number: int, phase: Phase, lanes: Lanes, turn: int, known: dict[int, list[Value]]
    ) -> dict[int, list[Value]]:
        """What results begin with, for the nodes that ask for it outside reductions."""
        if phase.nest.reductions:
            return {}
        found = {}
        for node, what in enumerate(phase.nest.code):
            if what[0] == "acc":
                found[node] = self._start(number, phase, lanes, turn, what[1], known)
        return found

    def _start(
        self,
        number: int,
        phase: Phase,
        lanes: Lanes,
        turn: int,
        result: int,
        known: dict[int, list[Value]],
    ) -> list[Value]:
        """What one result begins with, for each lane."""
        store, spot = phase.nest.stores[result], phase.stores[result]
        if store.initial is not None:
            return lanes.compute([store.initial], known)[0]
        if spot in self.flow.known[number]:
            values = self.values[spot][0 if spot.single else turn]
            return values * lanes.count if spot.single else values
        count = 1 if spot.single else lanes.count
        values = lanes.load(store.access, store.type, count)
        return values * lanes.count if spot.single else values

    # Phases.

    def _map(self, number: int, phase: Phase, place: tuple[Value, Guard, int]) -> None:
        chunk, guard, turn = place
        lanes = self._lanes(phase.nest, chunk, guard)
        stores = phase.nest.stores
        found = self._compute(number, phase, lanes, turn, [s.value for s in stores])
        for k, (store, values) in enumerate(zip(stores, found)):
            self._keep(number, phase.stores[k], turn, values)
            if k not in self.flow.skipped[number]:
                lanes.store(store, values)

    def _single(self, number: int, phase: Phase) -> None:
        """A computation on what a row has one of, by all of its threads; one stores."""
        lanes = Lanes(self.frame, phase.nest, self.outer, 0, 1, self.live)
        stores = phase.nest.stores
        found = self._compute(number, phase, lanes, 0, [s.value for s in stores])
        self._leave(number, phase, lanes, [values[0] for values in found])

    def _leave(self, number: int, phase: Phase, lanes: Lanes, values: list[Value]) -> None:
        """Results that a row has one of: kept, and stored by its first thread."""
        builder = self.frame.builder
        for k, value in enumerate(values):
            self._keep(number, phase.stores[k], 0, [value])
        left = [k for k in range(len(values)) if k not in self.flow.skipped[number]]
        if not left:
            return
        guard = self.live
        if self.shape.group > 1:
            first = builder.compare("eq", self.member, 0)
            guard = first if guard is None else guard & first
        for k in left:
            Lanes(self.frame, lanes.nest, lanes.index, lanes.dim, 1, guard).store(
                phase.nest.stores[k], [values[k]]
            )

    def _reduce(self, number: int, phase: Phase) -> None:
        joined = combiners(phase.nest)
        assert joined is not None
        held = self.shape.held
        parts = self._held(number, phase, joined) if held else self._walked(number, phase, joined)
        totals = self.group.reduce(joined, parts)
        index = [*self.outer, *[None] * (len(phase.nest.sizes) - self.rows)]
        lanes = Lanes(self.frame, phase.nest, index, len(index) - 1, 1, self.live)
        finals = []
        for k, (combiner, total) in enumerate(zip(joined, totals)):
            start = self._start(number, phase, lanes, 0, k, {})[0]
            total = combiner.join(self.frame, combiner.given(self.frame, start), total)
            finals.append(combiner.finished(self.frame, total))
        self._leave(number, phase, lanes, finals)

    def _held(self, number: int, phase: Phase, joined: list[Combiner]) -> list[Value]:
        """This thread's part of each result, its chunks one after another."""
        columns: list[list[Value]] = [[] for _ in joined]
        for turn in range(self.shape.turns):
            found = self._given(number, phase, joined, self._turn(turn))
            for column, values in zip(columns, found):
                column += values
        return [self._tree(c, column) for c, column in zip(joined, columns)]

    def _walked(self, number: int, phase: Phase, joined: list[Combiner]) -> list[Value]:
        """The same in a loop over the row; each lane has a part of its own until the end."""
        builder, lanes = self.frame.builder, self.shape.lanes
        starts = [c.start(self.frame) for c in joined for _ in range(lanes)]

        def body(place: tuple[Value, Guard, int], carried: list[Value]) -> list[Value]:
            found = self._given(number, phase, joined, place)
            flat = [(c, v) for c, values in zip(joined, found) for v in values]
            return [c.join(self.frame, a, v) for a, (c, v) in zip(carried, flat)]

        whole = self.shape.chunks // self.shape.group
        parts = builder.for_(
            0, whole, 1, starts,
            lambda iv, carried: body((self._chunk(iv), self.live, 0), carried), self.frame.index,
        )  # fmt: skip
        if self.shape.chunks % self.shape.group:
            parts = body(self._turn(whole), parts)
        return [self._tree(c, parts[k * lanes : (k + 1) * lanes]) for k, c in enumerate(joined)]

    def _given(
        self, number: int, phase: Phase, joined: list[Combiner], place: tuple[Value, Guard, int]
    ) -> list[list[Value]]:
        """What a chunk gives to each reduction; what does not exist changes nothing."""
        chunk, guard, turn = place
        lanes = self._lanes(phase.nest, chunk, guard)
        found = self._compute(number, phase, lanes, turn, [c.value for c in joined])
        given = []
        for combiner, values in zip(joined, found):
            column = [combiner.given(self.frame, v) for v in values]
            if guard is not None:
                nothing = combiner.start(self.frame)
                column = [self.frame.builder.select(guard, v, nothing) for v in column]
            given.append(column)
        return given

    def _tree(self, combiner: Combiner, values: list[Value]) -> Value:
        """Values together, pair by pair."""
        while len(values) > 1:
            pairs = [combiner.join(self.frame, a, b) for a, b in zip(values[::2], values[1::2])]
            values = pairs + values[len(values) // 2 * 2 :]
        return values[0]
