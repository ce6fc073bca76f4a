"""Plan how values pass between the nests of a unit that are done row by row.

A value stays in a register where a later nest reads what the same thread had; else it goes through
memory, with a barrier between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from meshweave.ir.expressions import Gather, Load, needed
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.nests.bind import Access, LoopNest, Store
from meshweave.lowering.nests.rows import KernelUnit


class Spot(NamedTuple):
    """Name elements of memory, one per iteration of a row; equal for accesses that meet the same element in each.

    inner: sizes and strides inside the row, loops merged; () when the whole row means one element.
    """

    pointer: int
    rows: tuple[int, ...]
    inner: tuple[tuple[int, int], ...]
    type: str

    @property
    def single(self) -> bool:
        """Tell whether it is one element a row."""
        return not self.inner


def spot_of(nest: LoopNest, rows: int, touch: Load[Access] | Store) -> Spot:
    """Return the elements that a load or store touches."""
    access = touch.access
    inner: list[tuple[int, int]] = []
    for size, stride in zip(nest.sizes[rows:], access.strides[rows:]):
        if inner and inner[-1][1] == stride * size:
            size *= inner.pop()[0]
        inner.append((size, stride))
    if not any(stride for _, stride in inner):
        inner = []
    return Spot(access.pointer, access.strides[:rows], tuple(inner), str(touch.type))


@dataclass(frozen=True)
class NestAccesses:
    """Describe a nest and what it touches.

    loads: spot of each load node that matters; stores: of each result; starts: results that begin
    with what their place holds.
    """

    nest: LoopNest
    loads: dict[int, Spot]
    stores: tuple[Spot, ...]
    starts: tuple[Spot, ...]
    gathers: tuple[int, ...]

    @property
    def reads(self) -> list[Spot]:
        """List everything read except by gathers."""
        return [*self.loads.values(), *self.starts]


def phase_of(nest: LoopNest, rows: int) -> NestAccesses:
    """Return what a nest touches."""
    wanted = [(k, nest.code[k]) for k in sorted(needed(nest.code, nest.results))]
    loads = {k: spot_of(nest, rows, n) for k, n in wanted if isinstance(n, Load)}
    stores = tuple([spot_of(nest, rows, store) for store in nest.stores])
    held = [s.initial is None and (s.reads or bool(nest.reductions)) for s in nest.stores]
    starts = tuple(spot for spot, reads in zip(stores, held) if reads)
    gathers = tuple([n.access.pointer for _, n in wanted if isinstance(n, Gather)])
    return NestAccesses(nest, loads, stores, starts, gathers)


class RowFlow:
    """Hold what is known of the phases of a unit before they are written.

    barriers[k]: whether the threads of a row meet before phase k. kept[k]: the spots whose values
    some later phase takes from registers. known[k]: those that phase k does. skipped[k]: numbers
    of the results of phase k that nobody reads from memory.
    """

    def __init__(
        self, unit: KernelUnit, phases: list[NestAccesses], facts: Facts, held: bool
    ) -> None:
        """Plan the phases. held: rows are kept in registers; else only what a row has one of."""
        self._roots = unit.pointers.roots
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
        """Bound the registers that an element of a row takes between phases."""
        return max(1, *(sum(_words(spot.type) for spot in spots) for spots in self._held_rows()))

    def kept_at_once(self) -> tuple[int, int]:
        """Return how many values of an element of a row are held at a time, at most, and the bytes of the widest."""
        widths = [[element_bytes(spot.type) for spot in spots] for spots in self._held_rows()]
        return max(map(len, widths)), max(max(each, default=0) for each in widths)

    def _held_rows(self) -> list[set[Spot]]:
        """Return what is held of each element between a phase and the next.

        A phase lets go of what it reads last while it makes what later ones need.
        """
        found, had = list[set[Spot]](), set[Spot]()
        for phase, kept in zip(self.phases, self.kept):
            had |= {*phase.loads.values(), *phase.stores}
            found.append({spot for spot in had & kept if not spot.single})
        return found

    def _root(self, spot: Spot) -> Any:
        return self._roots[spot.pointer]

    def _known(self, number: int) -> set[Spot]:
        """Return the spots that phase `number` reads and that some earlier one has had, unchanged since."""
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
        """Tell whether what a phase stores is never read from memory."""
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
        """Tell for each phase whether the threads of a row must meet before it."""
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
        """Tell whether different threads may touch one element in both places.

        What a row has one of is read by all of its threads and written by one.
        """
        return self._root(a) is self._root(b) and (a != b or (a.single and one_reads))


def _words(type_: str) -> int:
    """Count the registers that a value of that type takes."""
    return 2 if type_ in ("f64", "i64", "index") else 1
