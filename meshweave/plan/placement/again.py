"""Choose for each value that is read long after it is made whether it is kept or made again, beside its layout.

A work is what is made by one op, or by elementwise ops of which each is read by the next one alone. It has a variable:
until which moment its value is kept, or at which moment it is made again. Its ops have their runs twice, once for all
that they cost, and once for twice of that, as what runs again computes and moves again. What a copy reads must be there
at its moment: kept so long, or made again by then. So all costs are of one variable or two, as others of a placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import numpy.typing as npt

from meshweave.plan.placement.terms import FORBIDDEN, CostTerm, Numbers
from meshweave.plan.recompute import WorkRow

MOST_PLACES = 6
"""Moments at which a work may run again, those latest before its first late reader."""

MOST_SAVED = 96
"""Values that may be made again instead of kept, those of most bytes first."""

Shifts = npt.NDArray[np.int8]


@dataclass(frozen=True)
class AgainWork:
    """Describe a work that may run again.

    ops: of the graph. value: the one that it makes. reads: numbers of such works whose values it reads.
    held: moments at which the value is held as it is. early: the last of its readers soon after it is made; late: the
    first of those long after, -1 where there is none. places: moments at which it may run again, in order.
    kept: whether its value is in memory.
    """

    ops: tuple[int, ...]
    value: int
    reads: tuple[int, ...]
    held: tuple[int, ...]
    early: int
    late: int
    places: tuple[int, ...]
    kept: bool = True

    @property
    def is_saved(self) -> bool:
        """Tell whether the value is kept for readers that come much later."""
        return self.late >= 0

    @property
    def last(self) -> int:
        """Return the last moment that reads the value."""
        return max([self.early, *self.held]) if self.is_saved else self.early


@dataclass(frozen=True)
class AgainState:
    """Say that a value is kept until a moment, or made again there."""

    is_again: bool
    moment: int


@dataclass(frozen=True)
class AgainRow:
    """Hold the works of a block that may run again, each behind those that it reads; `moments` are the block's."""

    works: tuple[AgainWork, ...] = ()
    moments: int = 0
    block: int = 0

    @cached_property
    def states(self) -> list[list[AgainState]]:
        """Return what may become of each value, first that nothing changes; without what cannot be."""
        found = [_all_states(work) for work in self.works]
        while True:
            before = sum(map(len, found))
            for work, own in zip(self.works, found):
                own[:] = [
                    state
                    for state in own
                    if not state.is_again
                    or all(
                        any(_is_there(self.works[u], other, state.moment) for other in found[u])
                        for u in work.reads
                    )
                ]
            if sum(map(len, found)) == before:
                return found

    @cached_property
    def copies(self) -> list[int]:
        """Return the moments right before which works may run again: that is a moment of its own, behind all others."""
        return sorted({s.moment for states in self.states for s in states if s.is_again})

    @cached_property
    def shifts(self) -> list[Shifts]:
        """Return for each work, state and moment whether its value is held: 1 in addition, -1 no more, 0 as it is."""
        found = []
        copies = np.array(self.copies, np.intp)
        for work, states in zip(self.works, self.states):
            own = np.zeros((len(states), self.moments + len(copies)), np.int8)
            plain, held = own[:, : self.moments], np.array(work.held, np.intp)
            for number, state in enumerate(states):
                if work.is_saved:
                    if state.is_again:
                        gone = held[(held > work.early) & (held < state.moment)]
                        plain[number, gone] = -1
                    own[number, self.moments :] = plain[number, copies]
                    continue
                if not state.is_again:
                    plain[number, work.early + 1 : state.moment] = 1
                    needed = (copies > work.early) & (copies <= state.moment)
                else:
                    needed = (copies == state.moment) & work.kept
                plain[number, held] = 0
                own[number, self.moments :] = needed & ~np.isin(copies, held)
            found.append(own)
        return found

    def again(self, picks: Sequence[int]) -> list[int]:
        """Return the works that run again. picks: the state of each work."""
        rows = zip(self.states, picks)
        return [number for number, (states, pick) in enumerate(rows) if states[pick].is_again]

    @cached_property
    def twofold(self) -> set[int]:
        """Return the ops that have their choices twice: of works that may run again after all."""
        rows = zip(self.works, self.states)
        return {op for work, own in rows if any(s.is_again for s in own) for op in work.ops}

    def twice(self, terms: Sequence[CostTerm], first: int) -> list[CostTerm]:
        """Return terms in which the ops of works have their choices twice. first: the variable of the first op."""
        doubled = {first + op for op in self.twofold}
        known: dict[tuple[object, ...], Numbers] = {}
        found = []
        for term in terms:
            axes = tuple([axis for axis, v in enumerate(term.variables) if v in doubled])
            if axes:
                key = id(term.table), axes
                if key not in known:
                    known[key] = np.concatenate([term.table, 2 * term.table], axis=axes[0])
                term = CostTerm(term.variables, known[key])
            found.append(term)
        return found

    def doubled(self, sizes: Sequence[int], first: int) -> list[int]:
        """Return how many choices each variable has: ops of works twice as many, then the states of each work."""
        found = list(sizes)
        for op in self.twofold:
            found[first + op] *= 2
        return found + [len(states) for states in self.states]

    def links(self, sizes: Sequence[int], first: int, begin: int) -> list[CostTerm]:
        """Return terms that forbid what cannot be: ops that do not run as their work says, copies that lack an operand.

        sizes: of variables, ops of works doubled. begin: the variable of the first work.
        """
        known: dict[object, Numbers] = {}
        found = []
        for number, (work, states) in enumerate(zip(self.works, self.states)):
            again = np.array([state.is_again for state in states])
            for op in self.twofold.intersection(work.ops):
                runs = sizes[first + op], again.tobytes()
                if runs not in known:
                    second = np.arange(sizes[first + op]) >= sizes[first + op] // 2
                    known[runs] = FORBIDDEN * (second[:, None] != again[None, :])
                found.append(CostTerm((first + op, begin + number), known[runs]))
            for u in work.reads:
                table = [
                    [
                        not state.is_again or _is_there(self.works[u], other, state.moment)
                        for state in states
                    ]
                    for other in self.states[u]
                ]
                cells = np.array(table, bool)
                if not cells.all():
                    key = cells.shape, cells.tobytes()
                    known.setdefault(key, FORBIDDEN * ~cells)
                    found.append(CostTerm((begin + u, begin + number), known[key]))
        return found


NOTHING_AGAIN = AgainRow()


def _all_states(work: AgainWork) -> list[AgainState]:
    """Return what may become of a value, whatever the others do."""
    kept = [AgainState(False, work.last)]
    if not work.is_saved:
        kept += [AgainState(False, place) for place in work.places]
    return kept + [AgainState(True, place) for place in work.places]


def _is_there(work: AgainWork, state: AgainState, moment: int) -> bool:
    """Tell whether a copy that runs at a moment finds the value of a work.

    A value that is made again for copies alone is there when it is made; one that has late readers until the last one.
    """
    if moment <= work.early:
        return True
    if not state.is_again:
        return moment <= state.moment
    return state.moment <= moment <= (work.last if work.is_saved else state.moment)


@dataclass(frozen=True)
class RowPlaces:
    """Find where the works of a row may run again: where a copy is read says where those may run that it reads.

    row: with elementwise works in those that read them. ops: of the graph, of each work; none where it cannot run
    again. values: the number in the graph of each value. at: the moment at which each work runs. held: for each value
    of the graph the moments at which it is held.
    """

    row: WorkRow
    ops: Sequence[tuple[int, ...]]
    values: Mapping[int, int]
    at: Sequence[int]
    held: Mapping[int, Sequence[int]]

    def row_of(self, moments: int, block: int = 0) -> AgainRow:
        """Return the works that may run again. moments: of the block with this number."""
        row = self.row
        able = [
            bool(ops) and work.repeats and len(work.makes) == 1 and self.values[work.makes[0]] >= 0
            for work, ops in zip(row.works, self.ops)
        ]
        most = sorted(
            (n for n, is_kept in enumerate(row.is_kept) if is_kept and able[n]),
            key=lambda n: (-row.made[n], n),
        )
        saved = set(most[:MOST_SAVED])
        places: dict[int, set[int]] = {}
        for number in reversed(range(len(row.works))):
            if able[number] and (own := self._places(number, number in saved, places)):
                places[number] = own
        places = self._without_others(places)
        numbers = {number: k for k, number in enumerate(sorted(places))}
        works = tuple([self._work(n, n in saved, places[n], numbers) for n in numbers])
        return AgainRow(works, moments, block)

    def _readers(self, number: int) -> tuple[list[int], list[int]]:
        """Return the moments of the readers of a work: those soon after it, with its own, and those long after."""
        (value,) = self.row.works[number].makes
        readers, late = self.row.readers[value], self.row.late[number]
        return (
            [self.at[number], *[self.at[r] for r in readers if r < late]],
            [self.at[r] for r in readers if r >= late],
        )

    def _places(self, number: int, is_saved: bool, places: Mapping[int, set[int]]) -> set[int]:
        """Return the moments at which a work may run again: right before its late readers, or for copies of readers."""
        (value,) = self.row.works[number].makes
        early, late = self._readers(number)
        first = self.row.late[number]
        found = {p for r in self.row.readers[value] if r < first for p in places.get(r, ())}
        if is_saved:
            found = {p for p in found if p < min(late)} | {min(late)}
        found = {p for p in found if p > max(early)}
        return set(sorted(found)[-MOST_PLACES * (1 if is_saved else 2) :])

    def _without_others(self, places: Mapping[int, set[int]]) -> dict[int, set[int]]:
        """Return the moments at which works find what they read of ops that do not run again."""
        row = self.row
        found = {}
        for number, own in places.items():
            rest = [v for v in row.works[number].reads if row.maker.get(v, number) not in places]
            last = min([max([self.at[r] for r in row.readers[v]]) for v in rest], default=inf)
            if own := {p for p in own if p <= last}:
                found[number] = own
        return (
            found
            if sum(map(len, found.values())) == sum(map(len, places.values()))
            else self._without_others(found)
        )

    def _work(
        self, number: int, is_saved: bool, places: set[int], numbers: Mapping[int, int]
    ) -> AgainWork:
        work = self.row.works[number]
        early, late = self._readers(number)
        value = self.values[work.makes[0]]
        makers = dict.fromkeys([self.row.maker[v] for v in work.reads if v in self.row.maker])
        return AgainWork(
            self.ops[number],
            value,
            tuple([numbers[m] for m in makers if m in numbers]),
            tuple(self.held.get(value, ())),
            max(early),
            min(late) if is_saved else -1,
            tuple(sorted(places)),
            bool(self.held.get(value)),
        )
