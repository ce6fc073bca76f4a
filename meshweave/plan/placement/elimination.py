"""Minimise a sum of tables over few variables each, exactly, by eliminating one variable after the other.

To eliminate a variable, all tables that name it are added up, and the least over its choices becomes a new table over
its neighbours [Dechter, Bucket elimination, AIJ 1999]. The largest table that arises decides the work: it is small
where the graph is like a tree, as those of programs are. Equal tables are known by number, so what a program repeats is
added up once. Where tables get too large, choices that another choice beats, whatever the others do, go first [Desmet
et al., Nature 1992].

Where a table would be larger than a limit, its parts are minimised apart: the result is a lower bound then [Dechter,
Rish, Mini-buckets, JACM 2003], and the best choices found have a gap to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
MOST_ENTRIES = 1 << 21
"""Entries of the largest table that is made; beyond, a bound and the best found take the place of the optimum."""

ROUNDS = 40
"""Sweeps of improvements, at most, where the optimum is not proven."""


@dataclass(frozen=True)
class CostTerm:
    """Add `table[choices of the variables]`; its axes are the variables, in order and each once."""

    variables: tuple[int, ...]
    table: Numbers


@dataclass(frozen=True)
class Choices:
    """Hold a choice for each variable, its cost, and a bound that no choice is below."""

    picks: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Return how much the cost may lie above the optimum, as a share of the cost; 0 where it is proven."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > self.bound else 0.0


def minimise(
    sizes: Sequence[int], terms: Sequence[CostTerm], most_entries: int = MOST_ENTRIES
) -> Choices:
    """Return the choices with the least sum of terms.

    sizes: how many choices each variable has, at least 1. Ties go to the smaller number of a choice, in a fixed order
    of the variables: the same problem has the same answer. Choices that others beat are only looked for where tables
    would be too large with them.
    """
    plain = _Elimination(sizes, terms, most_entries)
    if plain.is_exact():
        picks = plain.decoded()
        cost = cost_of(picks, terms)
        return Choices(tuple(picks), cost, cost)
    kept = _undominated(sizes, terms)
    known: dict[tuple[object, ...], Numbers] = {}
    small = [_restricted(term, kept, known) for term in terms]
    work = _Elimination([len(k) for k in kept], small, most_entries)
    bound = work.run()
    picks = work.decoded()
    cost = cost_of(picks, work.terms)
    if work.split:
        picks, cost = _improved(picks, cost, work)
    else:
        bound = cost
    return Choices(tuple(int(k[p]) for k, p in zip(kept, picks)), cost, min(bound, cost))


def cost_of(picks: Sequence[int], terms: Sequence[CostTerm]) -> float:
    """Return the sum of the terms for these choices."""
    return float(sum(term.table[tuple([picks[v] for v in term.variables])] for term in terms))


def _restricted(
    term: CostTerm, kept: Sequence[npt.NDArray[np.intp]], known: dict[tuple[object, ...], Numbers]
) -> CostTerm:
    """Return the term over the choices that are kept; equal ones share their table."""
    if all(len(kept[v]) == n for v, n in zip(term.variables, term.table.shape)):
        return term
    key = (id(term.table), *[kept[v].tobytes() for v in term.variables])
    if key not in known:
        known[key] = term.table[np.ix_(*[kept[v] for v in term.variables])]
    return CostTerm(term.variables, known[key])


def _undominated(sizes: Sequence[int], terms: Sequence[CostTerm]) -> list[npt.NDArray[np.intp]]:
    """Return, for each variable, the choices that no single other one beats whatever the others choose.

    Variables are looked at until nothing changes; of two equal choices the first stays.
    """
    kept = [np.arange(n) for n in sizes]
    of: list[list[CostTerm]] = [[] for _ in sizes]
    for term in terms:
        for v in term.variables:
            of[v].append(term)
    dirty = dict.fromkeys(range(len(sizes)))
    answers: dict[tuple[object, ...], npt.NDArray[np.intp]] = {}
    marks = [k.tobytes() for k in kept]
    while dirty:
        v = next(iter(dirty))
        del dirty[v]
        if len(kept[v]) == 1 or any(len(t.variables) > 2 for t in of[v]):
            continue
        key = tuple(
            (id(t.table), t.variables.index(v), *[marks[u] for u in t.variables]) for t in of[v]
        )
        left = answers.get(key)
        if left is None:
            left = answers[key] = _beaten(v, kept, of[v])
        if len(left) < len(kept[v]):
            kept[v], marks[v] = left, left.tobytes()
            for term in of[v]:
                dirty.update(dict.fromkeys(u for u in term.variables if u != v))
    return kept


RIVALS = 8
"""Choices of a variable that all others are compared with: those that cost least on average."""


def _beaten(
    v: int, kept: Sequence[npt.NDArray[np.intp]], terms: Sequence[CostTerm]
) -> npt.NDArray[np.intp]:
    """Return the choices of v that none of its rivals beats."""
    mine = kept[v]
    rows = []
    for term in terms:
        table = term.table
        if any(len(kept[u]) < n for u, n in zip(term.variables, table.shape)):
            table = table[np.ix_(*[kept[u] for u in term.variables])]
        place = term.variables.index(v)
        rows.append((table if place == 0 else table.T).reshape(len(mine), -1))
    means = sum([row.mean(axis=1) for row in rows], np.zeros(len(mine)))
    rivals = np.argsort(means, kind="stable")[:RIVALS]
    saved = np.zeros((len(mine), len(rivals)))  # what a rival instead saves at least
    for row in rows:
        saved += (row[:, None, :] - row[None, rivals, :]).min(axis=2)
    wins = saved >= 0
    alive = np.ones(len(mine), bool)
    for a in range(len(mine) - 1, -1, -1):
        alive[a] = not (wins[a] & alive[rivals] & (rivals != a)).any()
    return mine[alive]


def _summed(terms: Sequence[CostTerm], first: int | None = None) -> CostTerm:
    """Return one term for the sum of several; first: a variable that comes first."""
    scope = sorted({v for term in terms for v in term.variables})
    if first is not None:
        scope = [first, *[v for v in scope if v != first]]
    sizes = {v: n for term in terms for v, n in zip(term.variables, term.table.shape)}
    total = np.zeros([sizes[v] for v in scope])
    for term in terms:
        order = sorted(range(len(term.variables)), key=lambda i: scope.index(term.variables[i]))
        have = {term.variables[i] for i in order}
        shape = [sizes[v] if v in have else 1 for v in scope]
        total += term.table.transpose(order).reshape(shape)
    return CostTerm(tuple(scope), total)


class _Elimination:
    """Eliminate all variables, cheapest first, and remember how each follows from those that are left."""

    def __init__(self, sizes: Sequence[int], terms: Sequence[CostTerm], most: int) -> None:
        self.sizes, self.terms, self.most = sizes, terms, most
        self.split, self.made = False, len(terms)
        self.steps: list[tuple[int, tuple[int, ...], npt.NDArray[np.intp]]] = []
        self.buckets: dict[int, CostTerm] = dict(enumerate(terms))
        self.of: list[dict[int, None]] = [{} for _ in sizes]
        for number, term in enumerate(terms):
            for v in term.variables:
                self.of[v][number] = None
        self.neighbours: list[dict[int, None]] = [{} for _ in sizes]
        for v in range(len(sizes)):
            self._look(v)
        self.known: dict[tuple[object, ...], tuple[Numbers, npt.NDArray[np.intp]]] = {}

    def _look(self, v: int) -> None:
        found = {u for number in self.of[v] for u in self.buckets[number].variables}
        found.discard(v)
        self.neighbours[v] = dict.fromkeys(sorted(found))

    def entries(self, v: int) -> int:
        """Return the entries of the table that eliminating v takes."""
        return self.sizes[v] * prod([self.sizes[u] for u in self.neighbours[v]])

    def is_exact(self) -> bool:
        """Eliminate all, or stop where a table would be larger than the limit; tell whether all are eliminated."""
        self.run(stop=True)
        return not self.split

    def run(self, stop: bool = False) -> float:
        """Eliminate all; return the least sum, or a bound below it. stop: end where a table would be too large."""
        left = {v: self.entries(v) for v in range(len(self.sizes))}
        queue = [(entries, v) for v, entries in left.items()]
        heapify(queue)
        total = 0.0
        while left:
            entries, v = heappop(queue)
            if left.get(v) != entries:
                continue  # it has changed since
            if stop and entries > self.most:
                self.split = True
                return total
            del left[v]
            touched = self.neighbours[v]
            total += self._eliminate(v)
            for u in touched:
                self._look(u)
                if left[u] != (entries := self.entries(u)):
                    left[u] = entries
                    heappush(queue, (entries, u))
        return total

    def _eliminate(self, v: int) -> float:
        """Take v out of the problem; return what no variable changes any more."""
        numbers = list(self.of[v])
        mine = [self.buckets.pop(number) for number in numbers]
        for number, term in zip(numbers, mine):
            for u in term.variables:
                del self.of[u][number]
        parts = self._parts(v, mine)
        constant = 0.0
        for part in parts:
            best, scope, where = self._least(v, part)
            if part is parts[0]:
                self.steps.append((v, scope, where))
            if not scope:
                constant += float(best)
                continue
            self.made += 1
            self.buckets[self.made] = CostTerm(scope, best)
            for u in scope:
                self.of[u][self.made] = None
        if not parts:
            self.steps.append((v, (), np.zeros((), np.intp)))
        return constant

    def _parts(self, v: int, mine: list[CostTerm]) -> list[list[CostTerm]]:
        """Group the terms of v so that no group's table is larger than the limit."""
        if self.entries(v) <= self.most:
            return [mine] if mine else []
        self.split = True
        groups: list[tuple[set[int], list[CostTerm]]] = []
        for term in sorted(mine, key=lambda t: (-t.table.size, t.variables)):
            for scope, group in groups:
                both = scope | set(term.variables)
                if prod([self.sizes[u] for u in both]) <= self.most:
                    scope |= set(term.variables)
                    group.append(term)
                    break
            else:
                groups.append((set(term.variables), [term]))
        return [group for _, group in groups]

    def _least(
        self, v: int, part: list[CostTerm]
    ) -> tuple[Numbers, tuple[int, ...], npt.NDArray[np.intp]]:
        """Return the least over v of the sum, its variables, and the choice of v that gives it."""
        scope = sorted({u for term in part for u in term.variables} - {v})
        place = {u: i for i, u in enumerate([v, *scope])}
        key = tuple((id(t.table), *[place[u] for u in t.variables]) for t in part)
        if key not in self.known:
            table = _summed(part, v).table
            where = table.argmin(axis=0)
            best = np.take_along_axis(table, where[None], axis=0)[0]
            self.known[key] = (best, where)
        best, where = self.known[key]
        return best, tuple(scope), where

    def decoded(self) -> list[int]:
        """Return the choices that led to the least, the last eliminated first."""
        picks = [0] * len(self.sizes)
        for v, scope, where in reversed(self.steps):
            picks[v] = int(where[tuple([picks[u] for u in scope])])
        return picks


def _improved(picks: list[int], cost: float, work: _Elimination) -> tuple[list[int], float]:
    """Improve choices: one variable at a time, then neighbourhoods solved exactly, until nothing gets better."""
    of: list[list[CostTerm]] = [[] for _ in work.sizes]
    for term in work.terms:
        for v in term.variables:
            of[v].append(term)
    for _ in range(ROUNDS):
        before = cost
        for v in range(len(picks)):
            row = np.zeros(work.sizes[v])
            for term in of[v]:
                row += term.table[
                    tuple([slice(None) if u == v else picks[u] for u in term.variables])
                ]
            picks[v] = int(row.argmin())
        picks = _around(picks, work, of)
        cost = cost_of(picks, work.terms)
        if cost >= before * (1 - 1e-12):
            break
    return picks, cost


def _around(picks: list[int], work: _Elimination, of: list[list[CostTerm]]) -> list[int]:
    """Solve, for one variable after the other, it and as many near it as stay exact, with the others as they are."""
    done: set[int] = set()
    for start in range(len(picks)):
        if start in done:
            continue
        near = _near(start, of, work)
        done |= set(near[: len(near) // 2 + 1])
        picks = _resolved(picks, near, work, of)
    return picks


NEAR = 24  # variables that are chosen anew together


def _near(start: int, of: list[list[CostTerm]], work: _Elimination) -> list[int]:
    """Return variables around one, nearest first."""
    found, queue = {start: None}, [start]
    while queue and len(found) < NEAR:
        v = queue.pop(0)
        for u in sorted({u for term in of[v] for u in term.variables} - set(found)):
            if len(found) < NEAR:
                found[u] = None
                queue.append(u)
    return list(found)


def _resolved(
    picks: list[int], near: list[int], work: _Elimination, of: list[list[CostTerm]]
) -> list[int]:
    """Return choices with those of `near` chosen anew, if that is exact and no worse."""
    place = {v: i for i, v in enumerate(near)}
    inner: dict[int, CostTerm] = {id(term): term for v in near for term in of[v]}
    terms = []
    for term in inner.values():
        index = tuple([slice(None) if v in place else picks[v] for v in term.variables])
        scope = tuple(place[v] for v in term.variables if v in place)
        terms.append(CostTerm(scope, np.ascontiguousarray(term.table[index])))
    small = _Elimination([work.sizes[v] for v in near], terms, work.most >> 3)
    small.run()
    if small.split:
        return picks
    new = list(picks)
    for v, pick in zip(near, small.decoded()):
        new[v] = pick
    return new
