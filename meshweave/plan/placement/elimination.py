"""Eliminate variables of a problem of least cost one after the other, exactly.

To eliminate a variable, all tables that name it are added up, and the least over its choices becomes a new table over
its neighbours [Dechter, Bucket elimination, AIJ 1999]. The largest table that arises decides the work: it is small
where the graph is like a tree, as those of programs are. Equal tables are known by number, so what a program repeats is
added up once.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

import numpy as np

from meshweave.plan.placement.terms import CostTerm, Numbers


class _Sums:
    """Add up terms in one piece of memory, for new pages take longer than sums."""

    def __init__(self) -> None:
        self.memory = np.empty(0)

    def of(self, terms: Sequence[CostTerm], scope: Sequence[int]) -> Numbers:
        """Return the sum as one table over all variables of the terms, in the order of `scope`, until the next call.

        Terms of few variables are added up first: the whole table is written once or twice, not once for each term.
        """
        sizes = {v: n for term in terms for v, n in zip(term.variables, term.table.shape)}
        place = {v: i for i, v in enumerate(scope)}
        left = [(term.variables, _spread(term, place)) for term in summed(terms)]
        left.sort(key=lambda one: one[1].size)
        (first, total), have = left.pop(0), set[int]()
        have.update(first)
        while left:
            grown = [prod([sizes[v] for v in have.union(variables)]) for variables, _ in left]
            least = min(grown)
            variables, table = left.pop(grown.index(least))
            have.update(variables)
            if len(have) < len(scope):
                total = total + table
                continue
            if least > self.memory.size:
                self.memory = np.empty(least)
            total = np.add(total, table, self.memory[:least].reshape([sizes[v] for v in scope]))
        return total


def summed(terms: Sequence[CostTerm]) -> list[CostTerm]:
    """Return terms of different variables with the same sum."""
    alike: dict[tuple[int, ...], list[CostTerm]] = {}
    for term in terms:
        alike.setdefault(term.variables, []).append(term)
    return [
        same[0] if len(same) == 1 else CostTerm(v, np.sum([t.table for t in same], axis=0))
        for v, same in alike.items()
    ]


def _spread(term: CostTerm, place: dict[int, int]) -> Numbers:
    """Return the table of a term with an axis for each variable of a scope, of length 1 where the term lacks it."""
    at = [place[v] for v in term.variables]
    shape = [1] * len(place)
    for i, n in zip(at, term.table.shape):
        shape[i] = n
    order = sorted(range(len(at)), key=at.__getitem__)
    table: Numbers = term.table.transpose(order).reshape(shape)
    return table


def _open(sizes: Sequence[int], terms: Sequence[CostTerm]) -> list[CostTerm]:
    """Return terms without the variables that have one choice: tables over many of these would have too many axes."""
    known: dict[tuple[int, tuple[int, ...]], Numbers] = {}
    found = []
    for term in terms:
        single = tuple([i for i, v in enumerate(term.variables) if sizes[v] == 1])
        if single:
            key = id(term.table), single
            if key not in known:
                known[key] = term.table.squeeze(axis=single)
            left = tuple([v for v in term.variables if sizes[v] > 1])
            term = CostTerm(left, known[key])
        found.append(term)
    return found


@dataclass(frozen=True)
class _Follower:
    """Tell how a variable follows from those of a scope: it has the choice for which the terms cost least."""

    variable: int
    terms: tuple[CostTerm, ...]

    def pick(self, picks: Sequence[int]) -> int:
        """Return the choice; of equal ones the first."""
        row: Numbers = np.zeros(1)
        for t in self.terms:
            at = [slice(None) if u == self.variable else picks[u] for u in t.variables]
            row = row + t.table[tuple(at)]
        return int(row.argmin())


class Elimination:
    """Eliminate variables, cheapest first, and remember how each follows from those that are left.

    left: the variables that are not eliminated, and have a choice. constant: what is added whatever they choose.
    neighbours: of each variable those with which it has tables, and in how many.
    """

    def __init__(self, sizes: Sequence[int], terms: Sequence[CostTerm]) -> None:
        self.sizes = sizes
        self.made, self.constant = len(terms), 0.0
        self.left: dict[int, None] = dict.fromkeys([v for v, n in enumerate(sizes) if n > 1])
        self.steps: list[_Follower] = []
        self.buckets: dict[int, CostTerm] = {}
        self.of: list[dict[int, None]] = [{} for _ in sizes]
        self.neighbours: list[dict[int, int]] = [{} for _ in sizes]
        self.known: dict[tuple[object, ...], Numbers] = {}
        self.sums = _Sums()
        for number, term in enumerate(_open(sizes, terms)):
            self._add(number, term)

    @property
    def rest(self) -> list[CostTerm]:
        """Return what the variables that are left cost together, less the constant."""
        return list(self.buckets.values())

    def _add(self, number: int, term: CostTerm) -> None:
        if not term.variables:
            self.constant += float(term.table)
            return
        self.buckets[number] = term
        self._meet(term.variables, 1)
        for v in term.variables:
            self.of[v][number] = None

    def _meet(self, variables: tuple[int, ...], by: int) -> None:
        """Count a term among those in which its variables meet each other, or no more."""
        for v in variables if len(variables) > 1 else ():
            near = self.neighbours[v]
            for u in variables:
                if u != v:
                    near[u] = near.get(u, 0) + by
                    if not near[u]:
                        del near[u]

    @property
    def near(self) -> dict[int, Set[int]]:
        """Return, for each variable that is left, those with which it has a table."""
        return {v: self.neighbours[v].keys() for v in self.left}

    def run(self, order: Sequence[int]) -> None:
        """Eliminate variables in an order."""
        for v in order:
            self._eliminate(v)

    def join_alike(self) -> bool:
        """Eliminate variables that have the same tables with the same others as one that stays and counts for all.

        Layers that repeat have many. Returns whether there were any.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for v in self.left:
            rows = [
                (id(t.table), *[-1 if u == v else u for u in t.variables])
                for t in [self.buckets[number] for number in self.of[v]]
            ]
            groups.setdefault(tuple(sorted(rows)), []).append(v)
        alike = [group for group in groups.values() if len(group) > 1]
        for first, *others in alike:
            for v in others:
                self._take_out(v)
            for number in self.of[first]:
                term = self.buckets[number]
                key = "times", id(term.table), 1 + len(others)
                if key not in self.known:
                    self.known[key] = (1 + len(others)) * term.table
                self.buckets[number] = CostTerm(term.variables, self.known[key])
        return bool(alike)

    def _take_out(self, v: int) -> list[CostTerm]:
        """Let a variable follow from those with which it has tables; return these, which no longer count."""
        numbers = list(self.of[v])
        mine = [self.buckets.pop(number) for number in numbers]
        for number, term in zip(numbers, mine):
            self._meet(term.variables, -1)
            for u in term.variables:
                del self.of[u][number]
        del self.left[v]
        self.steps.append(_Follower(v, tuple(mine)))
        return mine

    def _eliminate(self, v: int) -> None:
        mine = self._take_out(v)
        if mine:
            best, scope = self._least(v, mine)
            self.made += 1
            self._add(self.made, CostTerm(scope, best))

    def _least(self, v: int, part: list[CostTerm]) -> tuple[Numbers, tuple[int, ...]]:
        """Return the least over v of the sum, and its variables."""
        scope = sorted({u for term in part for u in term.variables} - {v})
        place = {u: i for i, u in enumerate([v, *scope])}
        key = tuple([(id(t.table), *[place[u] for u in t.variables]) for t in part])
        if key not in self.known:
            self.known[key] = self.sums.of(part, [v, *scope]).min(axis=0)
        return self.known[key], tuple(scope)

    def decoded(self, left: Mapping[int, int]) -> list[int]:
        """Return the choices that led to the least, the last eliminated first. left: those of what is left."""
        picks = [left.get(v, 0) for v in range(len(self.sizes))]
        for step in reversed(self.steps):
            picks[step.variable] = step.pick(picks)
        return picks
