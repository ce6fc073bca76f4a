"""Choose what is a slice of a trace: a mark takes as long as some hundred additions.

So a kernel that does less is one slice with those that follow, until they are worth a mark, and a loop is one slice if
its rounds do less. The first kernels of a step have slices of their own: beside a call, their marks take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshweave.ir.locations import location_text
from meshweave.lowering.nests.rows import Entry, KernelUnit, in_order, iterations_of, numbers_of

GRAIN = 1 << 14
"""Iterations of kernels that are worth a mark: 0.3 us of additions, a hundred times what a mark takes."""
ALONE = 8  # kernels of a step that have a slice of their own, whatever they do
_LOOPS = ("scf.for", "scf.while")
_TOLD = ("collective", "wait", "call", "routine", "host")  # that have marks of their own


@dataclass
class TraceSlice:
    """Describe what follows a mark: kernels with their titles, the first of them at `where`."""

    where: str
    titles: list[str] = field(default_factory=list)
    iterations: int = 0

    @property
    def name(self) -> str:
        """Return what a trace calls it."""
        first, *others = self.titles
        return f"{first} and {len(others)} more" if others else first


def trace_slices(entries: Sequence[Entry], alone: int) -> dict[int, TraceSlice]:
    """Return the slices that kernels and quiet loops of a block begin, by the id of that entry.

    alone: how many kernels have one of their own.
    """
    found: dict[int, TraceSlice] = {}
    last: TraceSlice | None = None
    for entry in entries:
        if isinstance(entry, KernelUnit):
            done = iterations_of([entry])
            if last is None or len(found) < alone or max(done, last.iterations) >= GRAIN:
                found[id(entry)] = last = TraceSlice(entry.where)
            last.titles.append(entry.title)
            last.iterations += done
        elif is_quiet(entry):
            found[id(entry)] = TraceSlice(location_text(entry.op.location), ["loop"])
            last = None
        elif entry.bodies or entry.what in _TOLD:
            last = None
    return found


def is_quiet(entry: Entry) -> bool:
    """Tell whether an entry is a loop that does so little in a round that it is one slice."""
    if isinstance(entry, KernelUnit) or entry.what not in _LOOPS:
        return False
    inside = [each for body in entry.bodies for each in in_order(body)]
    steps = [each for each in inside if not isinstance(each, KernelUnit)]
    if any(s.what in _TOLD or (s.what in _LOOPS and numbers_of(s.op) is None) for s in steps):
        return False
    return sum(iterations_of(body) for body in entry.bodies) < GRAIN
