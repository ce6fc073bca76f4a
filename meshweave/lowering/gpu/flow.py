"""How values pass between the nests of a unit that are done row by row: in registers where a later
nest reads what the same thread had, else through memory, with a barrier between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshweave.lowering.bind import Access, Nest
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.nodes import needed, results
from meshweave.lowering.rows import Unit


class Spot(NamedTuple):
    """Elements of memory, one per iteration of a row: equal for accesses that meet the same element
    in each of them. inner: sizes and strides inside the row, loops merged; () when the whole row
    means one element.
    """

    pointer: int
    const: int
    rows: tuple[int, ...]
    inner: tuple[tuple[int, int], ...]
    type: str

    @property
    def single(self) -> bool:
        """Whether it is one element a row."""
        return not self.inner


def spot_of(nest: Nest, rows: int, access: Access, type_: Any) -> Spot:
    """Where an access goes."""
    inner: list[tuple[int, int]] = []
    for size, stride in zip(nest.sizes[rows:], access.strides[rows:]):
        if inner and inner[-1][1] == stride * size:
            size *= inner.pop()[0]
        inner.append((size, stride))
    if not any(stride for _, stride in inner):
        inner = []
    return Spot(access.pointer, access.const, access.strides[:rows], tuple(inner), str(type_))


@dataclass(frozen=True)
class Phase:
    """A nest and what it touches. loads: spot of each load node that matters; stores: of each
    result; starts: results that begin with what their place holds.
    """

    nest: Nest
    loads: dict[int, Spot]
    stores: tuple[Spot, ...]
    starts: tuple[Spot, ...]
    gathers: tuple[int, ...]

    @property
    def reads(self) -> list[Spot]:
        """Everything read but by gathers."""
        return [*self.loads.values(), *self.starts]


def phase_of(nest: Nest, rows: int) -> Phase:
    """What a nest touches."""
    wanted = sorted(needed(nest, results(nest)))
    code = nest.code
    loads = {k: spot_of(nest, rows, code[k][1], code[k][2]) for k in wanted if code[k][0] == "load"}
    stores = tuple(spot_of(nest, rows, s.access, s.type) for s in nest.stores)
    held = [s.initial is None and (s.reads or bool(nest.reductions)) for s in nest.stores]
    starts = tuple(spot for spot, reads in zip(stores, held) if reads)
    gathers = tuple(code[k][1] for k in wanted if code[k][0] == "gather")
    return Phase(nest, loads, stores, starts, gathers)


class Flow:
    """What is known of the phases of a unit before they are written.

    barriers[k]: whether the threads of a row meet before phase k. kept[k]: the spots whose values
    some later phase takes from registers. known[k]: those that phase k does. skipped[k]: numbers
    of the results of phase k that nobody reads from memory.
    """

    def __init__(self, unit: Unit, phases: list[Phase], facts: Facts, held: bool) -> None:
        """held: rows are kept in registers; else only what a row has one of."""
        self._roots = [root for root, _, _ in unit.pointers.places]
        self._dead = {self._roots[k] for k in facts.dead}
        self.phases, self._held = phases, held
        self.known = [self._known(k) for k in range(len(phases))]
        self.kept = [
            {s for later in self.known[k + 1 :] for s in later} for k in range(len(phases))
        ]
        self.skipped = [
            frozenset(s for s in range(len(p.stores)) if self._skipped(k, s))
            for k, p in enumerate(phases)
        ]
        self.barriers = self._meetings()

    def most_held(self) -> int:
        """Registers that an element of a row takes at most, from one phase to the next: a phase
        lets go of what it reads last while it makes what later ones need.
        """
        most, had = 1, set()
        for phase, kept in zip(self.phases, self.kept):
            had |= {*phase.loads.values(), *phase.stores}
            most = max(most, sum(_words(s.type) for s in had & kept if not s.single))
        return most

    def _root(self, spot: Spot) -> Any:
        return self._roots[spot.pointer]

    def _known(self, number: int) -> set[Spot]:
        """The spots that phase `number` reads and that some earlier one has had, unchanged since."""
        found = set()
        for spot in self.phases[number].reads:
            if not (self._held or spot.single):
                continue
            for earlier in reversed(self.phases[:number]):
                if spot in earlier.stores:
                    found.add(spot)
                    break
                if any(self._root(s) is self._root(spot) for s in earlier.stores):
                    break
                if spot in earlier.loads.values():
                    found.add(spot)
                    break
        return found

    def _skipped(self, number: int, store: int) -> bool:
        """Whether what a phase stores is never read from memory."""
        spot = self.phases[number].stores[store]
        root = self._root(spot)
        for k in range(number + 1, len(self.phases)):
            phase = self.phases[k]
            read = [s for s in phase.reads if self._root(s) is root and s not in self.known[k]]
            if read or any(self._roots[p] is root for p in phase.gathers):
                return False
            if spot in phase.stores:
                return True
        return root in self._dead

    def _meetings(self) -> list[bool]:
        """Before which phases the threads of a row must meet."""
        meetings: list[bool] = []
        read: list[Spot] = []
        written: list[Spot] = []
        for k, phase in enumerate(self.phases):
            reads = [s for s in phase.reads if s not in self.known[k]]
            writes = [s for j, s in enumerate(phase.stores) if j not in self.skipped[k]]
            meet = any(self._clash(a, b, True) for a in reads for b in written)
            meet = meet or any(self._clash(a, b, True) for a in read for b in writes)
            meet = meet or any(self._clash(a, b, False) for a in written for b in writes)
            meet = meet or any(
                self._roots[p] is self._root(b) for p in phase.gathers for b in written
            )
            if meet:
                read, written = [], []
            meetings.append(meet)
            read += reads
            written += writes
        return meetings

    def _clash(self, a: Spot, b: Spot, one_reads: bool) -> bool:
        """Whether different threads may touch one element here and there: what a row has one of is
        read by all of its threads and written by one.
        """
        return self._root(a) is self._root(b) and (a != b or (a.single and one_reads))


def _words(type_: str) -> int:
    """Registers that a value of that type takes."""
    return 2 if type_ in ("f64", "i64", "index") else 1


def row_elements(nest: Nest, rows: int) -> int:
    """Iterations of a nest in one row."""
    return math.prod(nest.sizes[rows:])
