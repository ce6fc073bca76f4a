"""Minimise a sum of tables over one variable or two each: exactly, or with a bound that says how far from it.

Variables with few neighbours are eliminated (elimination.py). Where tables get too large then, a relaxation moves costs
until the choices of the best plans are among few (relaxation.py), and among these the best ones are found exactly.
What is left after many turns is a gap between the best choices and a bound.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from meshweave.plan.placement.elimination import Elimination, summed
from meshweave.plan.placement.order import elimination_order
from meshweave.plan.placement.relaxation import Relaxation
from meshweave.plan.placement.terms import Choices, CostTerm, Numbers, Places, cost_of

MOST_ENTRIES = 1 << 21
"""Entries of the largest table that is made."""

MOST_IN_ALL = 4
"""Such tables that are made in all."""

FEW, MOST_FEW = 2, 1 << 19
"""Neighbours of variables that are eliminated first: that makes tables over two variables, as there are already; and
entries that are looked at for one of them, at most."""

TURNS = 8
"""Turns of relaxation and elimination, at most."""

SWEEPS, MOST_SWEEPS = 8, 24
"""Sweeps of the first turn; each turn has twice as many as the one before, or so many at most ..."""

STALLED = 5e-3
"""... and none more, once these are done, when one closes less than this share of the gap."""

NEAR_ENOUGH = 2e-3
"""A gap at which the turns end ..."""

MOST_VISITED = 1 << 24
"""... where they have visited so many entries of tables."""

SHARE, STEP = 0.1, 3.0
"""Of the gap, the part above the bound in which choices are tried at first; and how that changes from turn to turn."""

CLOSEST = 4
"""Choices of a variable among which better ones are looked for: so many near the bound, and near the best choices."""

LARGE = 2
"""Of so many times the entries of the largest table that is made only a part is looked at one by one."""

ROUNDS = 2
"""Rounds in which that is done, at most, in a turn."""

SHRUNK = 0.5
"""Share of entries of tables that is left when choices that are out of question are taken out of them."""

EXACT = 1e-12
"""Share of a sum that rounding may take."""


def minimise(
    sizes: Sequence[int],
    terms: Sequence[CostTerm],
    most_entries: int = MOST_ENTRIES,
    alike: Callable[[], Sequence[Places]] | None = None,
) -> Choices:
    """Return the choices with the least sum of terms.

    sizes: how many choices each variable has, at least 1. terms: over two of these with more than one choice at most.
    alike: returns numbers of the choices of each variable, the same for those that are so alike that tables are first
    looked at with one entry for all of them: the least. It changes how long that takes, not what a bound means.
    The same problem has the same answer.
    """
    # Variables that are near each other in the problem are so in this order: costs move far in one sweep.
    order = list(dict.fromkeys([v for term in terms for v in term.variables]))
    return _minimise(sizes, terms, most_entries, order, alike)[0]


def _minimise(
    sizes: Sequence[int],
    terms: Sequence[CostTerm],
    most_entries: int,
    order: Sequence[int],
    alike: Callable[[], Sequence[Places]] | None = None,
) -> tuple[Choices, dict[int, Numbers]]:
    """Return the choices with the least sum of terms, and what choices with one of some variables cost at least."""
    work = Elimination(sizes, terms)
    _reduce(work, min(most_entries, MOST_FEW))
    left, bound, beside = dict[int, int](), inf, dict[int, Numbers]()
    if not _finished(work, most_entries):
        met = [v for v in order if v in work.left]
        rows = None if alike is None else alike()
        if rows is not None and any(len(np.unique(rows[v])) < sizes[v] for v in met):
            problem = _numbered(sizes, work.rest, met)
            best = _by_kinds(*problem, most_entries, [rows[v] for v in met])
            left, bound = dict(zip(met, best.picks)), best.bound + work.constant
        else:
            search = _Search(Relaxation(sizes, work.rest, met, work.constant), most_entries)
            search.run()
            left, bound = dict(zip(met, search.picks)), search.bound
            beside = dict(zip(met, search.beside(sizes[v] for v in met)))
    picks = work.decoded(left)
    cost = cost_of(picks, terms)
    found = Choices(tuple(picks), cost, cost if _is_near(bound, cost, EXACT) else bound)
    return found, beside


def _numbered(
    sizes: Sequence[int], terms: Sequence[CostTerm], order: Iterable[int]
) -> tuple[list[int], list[CostTerm]]:
    """Return a problem of some variables, numbered in an order: each two of them share one table."""
    place = {v: i for i, v in enumerate(order)}
    return [sizes[v] for v in place], [
        CostTerm(tuple([place[v] for v in term.variables]), term.table) for term in summed(terms)
    ]


def _by_kinds(
    sizes: Sequence[int], terms: Sequence[CostTerm], most_entries: int, alike: Sequence[Places]
) -> Choices:
    """Return the best choices found, by kinds of choices first.

    Of each table the least entry for two kinds stands for all of them, so the least sum of these is a bound. Choices of
    the best kinds, and of those near the bound, are then looked at one by one.
    """
    parts = [_Kinds.of(kinds) for kinds in alike]
    known: dict[tuple[object, ...], Numbers] = {}
    coarse = []
    for term in terms:
        key = id(term.table), *[id(alike[v]) for v in term.variables]
        if key not in known:
            known[key] = _least_of_kinds(term, parts)
        coarse.append(CostTerm(term.variables, known[key]))
    order = range(len(sizes))
    first, beside = _minimise([len(p.starts) for p in parts], coarse, most_entries, order)
    # Of choices that are alike one variable gets one of each kind: others follow, in place of as good ones.
    fixed = max(range(len(parts)), key=lambda v: len(parts[v].choices([first.picks[v]])))
    entries = sum([term.table.size for term in terms])
    best, bound = None, first.bound
    for most in (1, CLOSEST):
        places = []
        for v, part in enumerate(parts):
            near = [first.picks[v]]
            if most > 1 and v in beside:
                row = np.argsort(beside[v], kind="stable")[:most]
                near += [int(k) for k in row if best is None or beside[v][k] <= best.cost]
            if v == fixed:
                places.append(np.sort(part.order[part.starts[list(dict.fromkeys(near))]]))
            elif most > 1 and v not in beside:
                places.append(np.arange(sizes[v]))
            else:
                places.append(part.choices(near))
        few = [len(p) for p in places], _restricted(terms, places)
        found, _ = _minimise(*few, most_entries, order)
        if best is None or found.cost < best.cost:
            picks = tuple([int(p[i]) for p, i in zip(places, found.picks)])
            best = Choices(picks, cost_of(picks, terms), bound)
        if _is_near(bound, best.cost, NEAR_ENOUGH):
            return best
    assert best is not None
    if entries <= LARGE * most_entries:
        search = _Search(Relaxation(sizes, terms, order, 0.0), most_entries)
        search.relaxed.offer(np.array(best.picks, np.intp))
        search.bound = max(search.bound, bound)
        search.run(TURNS // 2)
        picks = tuple(search.picks)
        best = Choices(picks, cost_of(picks, terms), search.bound)
    return best


@dataclass(frozen=True)
class _Kinds:
    """Hold the choices of a variable by kind: in this order, of which each kind begins somewhere."""

    order: Places
    starts: Places

    @staticmethod
    def of(kinds: Places) -> "_Kinds":
        """Return those of choices with these numbers, the smallest number first."""
        order = np.argsort(kinds, kind="stable")
        return _Kinds(order, np.flatnonzero(np.diff(kinds[order], prepend=-1)))

    def choices(self, kinds: Sequence[int]) -> Places:
        """Return the choices of some kinds, in order."""
        ends = np.append(self.starts, len(self.order))
        rows = [self.order[ends[k] : ends[k + 1]] for k in dict.fromkeys(kinds)]
        return np.sort(np.concatenate(rows))


def _least_of_kinds(term: CostTerm, parts: Sequence[_Kinds]) -> Numbers:
    """Return the least entry of a table for the kinds of all its variables."""
    table = term.table
    for axis, v in enumerate(term.variables):
        rows = np.take(table, parts[v].order, axis)
        table = np.minimum.reduceat(rows, parts[v].starts, axis)
    return table


def _restricted(terms: Sequence[CostTerm], places: Sequence[Places]) -> list[CostTerm]:
    """Return what some choices of each variable cost; equal tables stay one."""
    known: dict[tuple[object, ...], Numbers] = {}
    found = []
    for term in terms:
        key = id(term.table), *[places[v].tobytes() for v in term.variables]
        if key not in known:
            known[key] = term.table[np.ix_(*[places[v] for v in term.variables])]
        found.append(CostTerm(term.variables, known[key]))
    return found


def _is_near(bound: float, cost: float, share: float) -> bool:
    return cost - bound <= share * abs(cost)


def _reduce(work: Elimination, most: int) -> None:
    """Eliminate what has few neighbours, and count what is alike once, as long as there is any."""
    while True:
        work.run(elimination_order(work.sizes, work.near, most, FEW)[0])
        if not work.join_alike():
            return


def _finished(work: Elimination, most: int) -> bool:
    """Eliminate all that is left, if that takes few tables that are not too large."""
    order, total = elimination_order(work.sizes, work.near, most, whole=MOST_IN_ALL * most)
    if total == inf:
        return False
    work.run(order)
    return True


class _Search:
    """Close in on the best choices of a relaxation: near its bound they are found exactly.

    kept: the choices that the relaxation still has. bound: no choices cost less, as far as is proven.
    share: the part of the gap above the bound in which choices are tried. closest: see CLOSEST.
    """

    def __init__(self, relaxed: Relaxation, most: int) -> None:
        self.relaxed, self.most = relaxed, most
        self.kept: list[Places] = [np.arange(n) for n in relaxed.sizes]
        self.bound, self.share, self.closest = relaxed.bound, SHARE, CLOSEST

    @property
    def picks(self) -> list[int]:
        """Return the best choices."""
        return [int(k[p]) for k, p in zip(self.kept, self.relaxed.picks)]

    def beside(self, sizes: Iterable[int]) -> list[Numbers]:
        """Return what choices with one of a variable cost at least; infinite for those that are out of question."""
        found = [np.full(n, inf) for n in sizes]
        for row, kept, costs in zip(found, self.kept, self.relaxed.beside):
            row[kept] = costs
        return found

    def run(self, turns: int = TURNS) -> None:
        """Take turns until the best choices are proven to be so, or nearly so."""
        visited = 0
        for turn in range(turns):
            before = np.array([self.relaxed.bound, self.bound, -self.relaxed.cost])
            # Sweeps take longer than looking around then.
            is_large = self.relaxed.entries > self.most
            sweeps = SWEEPS if is_large else min(MOST_SWEEPS, SWEEPS << turn)
            visited += self.relaxed.entries * self._sweep(sweeps)
            self.relaxed.guess()
            if is_large:
                self._descend()
            self._try_near()
            enough = NEAR_ENOUGH if visited >= MOST_VISITED else EXACT
            if _is_near(self.bound, self.relaxed.cost, enough):
                return
            after = np.array([self.relaxed.bound, self.bound, -self.relaxed.cost])
            if (after - before).max() < STALLED * (self.relaxed.cost - self.bound):
                return
            self._shrink()

    def _sweep(self, most: int) -> int:
        """Sweep as long as that closes the gap; return how often."""
        for number in range(1, most + 1):
            before = self.relaxed.bound
            self.relaxed.sweep()
            gap = self.relaxed.cost - before
            if number >= SWEEPS and self.relaxed.bound - before < STALLED * gap:
                break
        return number

    def _try_near(self) -> None:
        """Find the best of the choices near the bound of the relaxation, of more of them as long as these are few."""
        low, first = self.relaxed.bound, True
        self.bound = max(self.bound, min(low, self.relaxed.cost))
        while self._tried(low + self.share * max(0.0, self.relaxed.cost - low)):
            if self.share >= 1 or _is_near(self.bound, self.relaxed.cost, EXACT):
                return
            if first and self._tried(self.relaxed.cost):
                return
            first, self.share = False, min(1.0, self.share * STEP)
        self.share /= STEP

    def _tried(self, level: float) -> bool:
        """Find the best of the choices that may cost no more than a level, if that takes no large tables.

        All others cost more, so the level is a bound where nothing is found below it.
        """
        found = self._best_among(self.relaxed.beside_at_most(level))
        if found:
            self.bound = max(self.bound, min(level, self.relaxed.cost))
        return found

    def _best_among(self, places: Sequence[Places]) -> bool:
        """Find the best of some choices of each variable, if that takes no large tables."""
        relaxed = self.relaxed
        sizes = [len(p) for p in places]
        near, all_tables = relaxed.near(sizes), MOST_IN_ALL * self.most
        order, total = elimination_order(sizes, near, self.most, whole=all_tables)
        if total == inf:
            return False
        work = Elimination(sizes, relaxed.terms(places))
        work.run(order)
        picks = [p[i] for p, i in zip(places, work.decoded({}))]
        relaxed.offer(np.array(picks, np.intp))
        return True

    def _descend(self) -> None:
        """Better the best choices, as long as the best of a few of each variable, found exactly, are better."""
        relaxed = self.relaxed
        for _ in range(ROUNDS):
            before, rows = relaxed.cost, zip(relaxed.beside, relaxed.beside_picks(), relaxed.picks)
            near = [
                [row.argsort(kind="stable")[: self.closest] for row in both] + [[p]]
                for *both, p in rows
            ]
            if not self._best_among([np.unique(np.concatenate(found)) for found in near]):
                self.closest = max(1, self.closest - 1)
            elif relaxed.cost >= before - EXACT * abs(before):
                return

    def _shrink(self) -> None:
        """Take choices out that no better ones have, if these are many."""
        old = self.relaxed
        places = old.beside_at_most(max(old.cost + EXACT * abs(old.cost), old.bound))
        entries = sum([len(places[a]) * len(places[b]) for a, b in old.pairs])
        if entries > SHRUNK * old.entries:
            return
        self.kept = [k[p] for k, p in zip(self.kept, places)]
        sizes = [len(p) for p in places]
        self.relaxed = Relaxation(sizes, old.terms(places), range(len(sizes)), old.bound)
        best = [int(np.searchsorted(p, i)) for p, i in zip(places, old.picks)]
        self.relaxed.offer(np.array(best, np.intp))
