"""Choose what a program computes again instead of keeping it, so that fewer bytes are alive at once. Pure, no MLIR.

A program is a row of works in the order they run. A value that is read soon after it is made, and again much later (an
activation in a step of training), is alive in between. Its work may run again right before the later readers: then it
is alive near both. What the work reads must be there by then: it is kept, or computed again in its turn.

`tradeoffs` draws the front of predicted time over bytes. Works that are alike, as those of the layers of a model, are
treated alike: all of a kind run again, or all but every k-th. The front is found by steps that lower the peak most for
the time they take; `least_seconds` bounds from below what any choice takes, so the gap is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import isqrt

MOST_KINDS = 8
"""Kinds of works that are tried, those with most bytes first."""

MOST_STEPS = 16
"""Steps along the front."""

NEAR = 32
"""A value is read much later if no reader stands in at least one part of so many of the row."""

SMALL = 256
"""A value of one part of so many of the largest one is kept anyway."""


@dataclass(frozen=True)
class RowWork:
    """Describe one work of a row.

    reads, makes: numbers of values. seconds: predicted. kind: equal for works that are alike. repeats: whether it may
    run again. elementwise: its result is computed element by element, in the loop of what reads it where that is one.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    seconds: float
    kind: int
    repeats: bool = True
    elementwise: bool = False


@dataclass(frozen=True)
class WorkRow:
    """Hold works in the order they run, and the bytes of each value; 0 for what is alive anyway.

    members: for each work the works of the program that it stands for.
    """

    works: tuple[RowWork, ...]
    nbytes: tuple[int, ...]
    members: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def maker(self) -> dict[int, int]:
        """Return the work that makes a value."""
        return {value: number for number, work in enumerate(self.works) for value in work.makes}

    @cached_property
    def readers(self) -> list[list[int]]:
        """Return the works that read each value, in order."""
        found: list[list[int]] = [[] for _ in self.nbytes]
        for number, work in enumerate(self.works):
            for value in work.reads:
                found[value].append(number)
        return found

    @cached_property
    def made(self) -> list[int]:
        """Return the bytes that each work makes."""
        return [sum(self.nbytes[value] for value in work.makes) for work in self.works]

    @cached_property
    def may_repeat(self) -> list[bool]:
        """Tell of each work whether it may run again, and makes enough for that."""
        small = max(self.nbytes, default=0) // SMALL
        return [
            work.repeats and made > small for work, made in zip(self.works, self.made, strict=True)
        ]

    @cached_property
    def late(self) -> list[int]:
        """Return for each work the place from which on readers take the copy, if the work runs again.

        It stands behind the readers after which none comes for long; behind all of them where there is no such gap.
        """
        least = max(2, len(self.works) // NEAR)
        found = []
        for number, work in enumerate(self.works):
            places = sorted({number, *(r for value in work.makes for r in self.readers[value])})
            gap, place = max([(b - a, a) for a, b in pairwise(places)], default=(0, 0))
            found.append((place if gap > least else places[-1]) + 1)
        return found

    @cached_property
    def is_kept(self) -> list[bool]:
        """Tell of each work whether what it makes is kept for much later readers, and might not be."""
        return [
            may and any(r >= late for value in work.makes for r in self.readers[value])
            for work, may, late in zip(self.works, self.may_repeat, self.late, strict=True)
        ]


@dataclass(frozen=True)
class Tradeoff:
    """Describe a point of the front: the works that run again, the bytes alive at the peak, and the added seconds."""

    again: frozenset[int]
    peak: int
    seconds: float


def joined(row: WorkRow) -> WorkRow:
    """Return the row with each elementwise work in the one that alone reads it, as fused kernels run."""
    works, readers = row.works, row.readers
    group = list(range(len(works)))
    for number in reversed(range(len(works))):
        work = works[number]
        if not work.elementwise or not work.repeats or len(work.makes) != 1:
            continue
        (value,) = work.makes
        heads = {group[r] for r in readers[value]}
        if len(heads) == 1 and works[head := heads.pop()].elementwise and works[head].repeats:
            group[number] = head
    members: dict[int, list[int]] = {}
    for number, head in enumerate(group):
        members.setdefault(head, []).append(number)
    kinds: dict[tuple[int, ...], int] = {}
    made, lists = [], []
    for head in sorted(members):
        inside = [works[k] for k in members[head]]
        own = {value for work in inside for value in work.makes}
        reads = tuple(dict.fromkeys(v for work in inside for v in work.reads if v not in own))
        kind = kinds.setdefault(tuple(work.kind for work in inside), len(kinds))
        last = works[head]
        seconds = sum(work.seconds for work in inside)
        made.append(RowWork(reads, last.makes, seconds, kind, last.repeats, last.elementwise))
        lists.append(
            tuple(m for k in members[head] for m in (row.members[k] if row.members else (k,)))
        )
    return WorkRow(tuple(made), row.nbytes, tuple(lists))


@dataclass(frozen=True)
class RowRun:
    """Describe a work as it runs: `copy` if it runs again; for each value it reads, whether it reads the copy."""

    work: int
    copy: bool
    reads: tuple[tuple[int, bool], ...]


def schedule(row: WorkRow, again: Collection[int]) -> list[RowRun]:
    """Return the row with the works `again` run a second time, each right before the first that needs it."""
    works, maker, late = row.works, row.maker, row.late
    found: list[RowRun] = []
    copied: set[int] = set()

    def reads_at(number: int, place: int) -> list[tuple[int, bool]]:
        return [
            (v, (m := maker.get(v, -1)) in again and place >= late[m]) for v in works[number].reads
        ]

    for place in range(len(works)):
        stack = [place]
        while stack:
            number = stack[-1]
            copy = number != place or len(stack) > 1
            reads = reads_at(number, place)
            missing = [maker[v] for v, is_copy in reads if is_copy and maker[v] not in copied]
            if missing:
                stack += missing[::-1]
                continue
            stack.pop()
            if copy:
                if number in copied:
                    continue
                copied.add(number)
            found.append(RowRun(number, copy, tuple(reads)))
    return found


def peak(row: WorkRow, runs: Sequence[RowRun]) -> int:
    """Return the most bytes that are alive at once in a schedule."""
    return max(alive(row, runs), default=0)


def alive(row: WorkRow, runs: Sequence[RowRun]) -> list[int]:
    """Return the bytes that are alive while each work of a schedule runs."""
    last: dict[tuple[int, bool], int] = {}
    for at, run in enumerate(runs):
        for value in row.works[run.work].makes:
            last[value, run.copy] = at
        for read in run.reads:
            last[read] = at
    ends: list[list[tuple[int, bool]]] = [[] for _ in runs]
    for key, at in last.items():
        ends[at].append(key)
    made: set[tuple[int, bool]] = set()
    live, found = 0, []
    for at, run in enumerate(runs):
        for value in row.works[run.work].makes:
            live += row.nbytes[value]
            made.add((value, run.copy))
        found.append(live)
        live -= sum(row.nbytes[value] for value, copy in ends[at] if (value, copy) in made)
    return found


def seconds(row: WorkRow, runs: Iterable[RowRun]) -> float:
    """Return the predicted seconds of what runs again in a schedule."""
    return sum(row.works[run.work].seconds for run in runs if run.copy)


def tradeoffs(row: WorkRow) -> list[Tradeoff]:
    """Return the front, from nothing that runs again (no added time) to the lowest peak found."""
    search = _Front(row)
    found = [search.now]
    while len(found) < MOST_STEPS and (step := search.step()) is not None:
        found.append(step)
    front: list[Tradeoff] = []
    for one in sorted(found, key=lambda t: (t.seconds, t.peak)):
        if not front or one.peak < front[-1].peak:
            front.append(one)
    return front


@dataclass
class _Front:
    """Walk along the front: of the moves there are, take the one that lowers the peak most for its time.

    modes: for each kind that runs again 1 (all of it), or k: all but every k-th.
    """

    row: WorkRow
    modes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        row = self.row
        self.far: dict[int, list[int]] = {}
        self.near: dict[int, list[int]] = {}
        for number, work in enumerate(row.works):
            if row.may_repeat[number]:
                kinds = self.far if row.is_kept[number] else self.near
                kinds.setdefault(work.kind, []).append(number)
        most = sorted(self.far, key=lambda k: (-sum(row.made[n] for n in self.far[k]), k))
        self.kinds = most[:MOST_KINDS]
        self.now = self._at(self.modes)
        self.tried: dict[tuple[tuple[int, int], ...], Tradeoff] = {}

    def _works(self, modes: dict[int, int]) -> frozenset[int]:
        found = set[int]()
        for kind, mode in modes.items():
            far = self.far.get(kind, [])
            found.update(n for k, n in enumerate(far) if mode == 1 or (k + 1) % mode)
            if mode:
                found.update(self.near.get(kind, ()))
        return frozenset(found)

    def _at(self, modes: dict[int, int]) -> Tradeoff:
        again = self._works(modes)
        runs = schedule(self.row, again)
        used = frozenset(run.work for run in runs if run.copy)
        return Tradeoff(used, peak(self.row, runs), seconds(self.row, runs))

    def _moves(self) -> list[dict[int, int]]:
        found = []
        for kind in self.kinds:
            count, old = len(self.far[kind]), self.modes.get(kind, 0)
            for mode in _modes(count):
                if mode != old:
                    found.append({kind: mode})
                    if more := self._behind(kind, mode):
                        found.append({**dict.fromkeys(more, 1), kind: mode})
        return found

    def _behind(self, kind: int, mode: int) -> list[int]:
        """Return the kinds of near works without which those of a kind cannot run again from what is kept anyway."""
        row = self.row
        stack = [n for k, n in enumerate(self.far[kind]) if mode == 1 or (k + 1) % mode]
        seen, found = set(stack), dict[int, None]()
        while stack:
            for value in row.works[stack.pop()].reads:
                number = row.maker.get(value, -1)
                if number < 0 or number in seen or not row.may_repeat[number]:
                    continue
                seen.add(number)
                if not row.is_kept[number]:
                    found[row.works[number].kind] = None
                    stack.append(number)
        return [k for k in found if k != kind and self.modes.get(k) != 1]

    def step(self) -> Tradeoff | None:
        """Make the best move; return where it leads, None where none lowers the peak."""
        best, chosen = None, None
        for move in self._moves():
            modes = {**self.modes, **move}
            key = tuple(sorted(modes.items()))
            if key not in self.tried:
                self.tried[key] = self._at(modes)
            one = self.tried[key]
            lower, longer = self.now.peak - one.peak, one.seconds - self.now.seconds
            if lower <= 0:
                continue
            worth = (longer <= 0, lower / longer if longer > 0 else float(lower))
            if best is None or worth > best:
                best, chosen = worth, (modes, one)
        if chosen is None:
            return None
        self.modes, self.now = chosen
        return self.now


def _modes(count: int) -> list[int]:
    """Return the ways to run works of a kind again: all, or all but every k-th."""
    return [1, *sorted({2, 3, 4, 6, 8, isqrt(count)} & set(range(2, count)))]


def kept_share(row: WorkRow) -> float:
    """Return which share of the bytes at the peak is of values that are kept for much later readers."""
    moment, most = _peak_of(row)
    kept = sum(row.made[number] for number in _held(row, moment) if row.is_kept[number])
    return kept / most if most else 0.0


def _peak_of(row: WorkRow) -> tuple[int, int]:
    """Return the work at which most bytes are alive when nothing runs again, and the bytes."""
    live = alive(row, schedule(row, ()))
    moment = max(range(len(live)), key=live.__getitem__, default=-1)
    return moment, max(live, default=0)


def _held(row: WorkRow, moment: int) -> list[int]:
    """Return the works that may run again and whose results are alive at a moment, made before and read behind it."""
    return [
        number
        for number in range(moment)
        if row.may_repeat[number]
        and any(r > moment for v in row.works[number].makes for r in row.readers[v])
    ]


def least_seconds(row: WorkRow, nbytes: int) -> float:
    """Return a bound from below on the time that any choice takes whose peak is at most nbytes.

    At the moment of the peak so many bytes must go as it is above nbytes. Each byte goes with a work that runs again,
    and takes at least that work's seconds for each byte it makes.
    """
    moment, most = _peak_of(row)
    over = most - nbytes
    items = [(row.works[n].seconds / row.made[n], row.made[n]) for n in _held(row, moment)]
    total = 0.0
    for rate, made in sorted(items):
        taken = min(over, made)
        if taken <= 0:
            break
        total, over = total + rate * taken, over - taken
    return total
