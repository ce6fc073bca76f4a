"""Minimise a sum of tables over one variable or two each: exactly, or with a bound that says how far from it.

Variables with few neighbours are eliminated (elimination.py). Where tables get too large then, a relaxation moves costs
until the choices of the best plans are among few (relaxation.py), and among these the best ones are found exactly.
What is left after many turns is a gap between the best choices and a bound.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from meshweave.plan.placement.elimination import Elimination
from meshweave.plan.placement.order import elimination_order
from meshweave.plan.placement.relaxation import Places, Relaxation
from meshweave.plan.placement.terms import Choices, CostTerm, cost_of

MOST_ENTRIES = 1 << 21
"""Entries of the largest table that is made."""

MOST_IN_ALL = 4
"""Such tables that are made in all."""

FEW = 2
"""Neighbours of variables that are eliminated first: that makes tables over two variables, as there are already."""

TURNS = 16
"""Turns of relaxation and elimination, at most."""

SWEEPS = 3
"""Sweeps of a turn."""

NEAR_ENOUGH = 2e-3
"""A gap at which the turns end ..."""

MOST_VISITED = 1 << 22
"""... where they have visited so many entries of tables."""

SHARE, STEP = 0.1, 3.0
"""Of the gap, the part above the bound in which choices are tried at first; and how that changes from turn to turn."""

CLOSEST = 4
"""Choices of a variable among which better ones are looked for: so many near the bound, and near the best choices."""

ROUNDS = 2
"""Rounds in which that is done, at most, in a turn."""

SHRUNK = 0.5
"""Share of entries of tables that is left when choices that are out of question are taken out of them."""

EXACT = 1e-12
"""Share of a sum that rounding may take."""


def minimise(
    sizes: Sequence[int], terms: Sequence[CostTerm], most_entries: int = MOST_ENTRIES
) -> Choices:
    """Return the choices with the least sum of terms.

    sizes: how many choices each variable has, at least 1. terms: over two of these with more than one choice at most.
    The same problem has the same answer.
    """
    work = Elimination(sizes, terms)
    work.run(elimination_order(sizes, work.near, most_entries, FEW)[0])
    left, bound = dict[int, int](), inf
    if not _finished(work, most_entries):
        # Variables that are near each other in the problem are so in this order: costs move far in one sweep.
        met = dict.fromkeys([v for term in terms for v in term.variables if v in work.left])
        search = _Search(Relaxation(sizes, work.rest, list(met), work.constant), most_entries)
        search.run()
        left, bound = dict(zip(met, search.picks)), search.bound
    picks = work.decoded(left)
    cost = cost_of(picks, terms)
    return Choices(tuple(picks), cost, cost if _is_near(bound, cost, EXACT) else bound)


def _is_near(bound: float, cost: float, share: float) -> bool:
    return cost - bound <= share * abs(cost)


def _finished(work: Elimination, most: int) -> bool:
    """Eliminate all that is left, if that takes few tables that are not too large."""
    order, total = elimination_order(work.sizes, work.near, most)
    if len(order) < len(work.left) or total > MOST_IN_ALL * most:
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

    def run(self) -> None:
        """Take turns until the best choices are proven to be so, nearly so, or for long."""
        visited = 0
        for _ in range(TURNS):
            for _ in range(SWEEPS):
                self.relaxed.sweep()
            self.relaxed.guess()
            if self.relaxed.entries > self.most:  # sweeps take longer
                self._descend()
            low, cost = self.relaxed.bound, self.relaxed.cost
            self.bound = max(self.bound, min(low, cost))
            found = self._tried(low + self.share * max(0.0, cost - low))
            self.share = min(1.0, self.share * STEP) if found else self.share / STEP
            visited += SWEEPS * self.relaxed.entries
            enough = NEAR_ENOUGH if visited >= MOST_VISITED else EXACT
            if _is_near(self.bound, self.relaxed.cost, enough):
                return
            self._shrink()

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
        work = Elimination([len(p) for p in places], self.relaxed.terms(places))
        if not _finished(work, self.most):
            return False
        picks = [p[i] for p, i in zip(places, work.decoded({}))]
        self.relaxed.offer(np.array(picks, np.intp))
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
