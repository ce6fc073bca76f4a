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
        left = [(term.variables, _spread(term, place)) for term in _added(terms)]
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


def _added(terms: Sequence[CostTerm]) -> list[CostTerm]:
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


class _Elimination:
    """Eliminate all variables, cheapest first, and remember how each follows from those that are left."""

    def __init__(self, sizes: Sequence[int], terms: Sequence[CostTerm], most: int) -> None:
        self.sizes, self.terms, self.most = sizes, terms, most
        self.split, self.made = False, len(terms)
        self.steps: list[_Follower] = []
        self.open = _open(sizes, terms)
        self.buckets: dict[int, CostTerm] = dict(enumerate(self.open))
        self.of: list[dict[int, None]] = [{} for _ in sizes]
        for number, term in enumerate(self.open):
            for v in term.variables:
                self.of[v][number] = None
        self.neighbours: list[dict[int, int]] = [{} for _ in sizes]  # in how many terms
        for term in self.open:
            self._meet(term.variables, 1)
        self.known: dict[tuple[object, ...], Numbers] = {}
        self.sums = _Sums()

    def _meet(self, variables: tuple[int, ...], by: int) -> None:
        """Count a term among those in which its variables meet each other, or no more."""
        for v in variables if len(variables) > 1 else ():
            near = self.neighbours[v]
            for u in variables:
                if u != v:
                    near[u] = near.get(u, 0) + by
                    if not near[u]:
                        del near[u]

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
        total = sum([float(term.table) for term in self.open if not term.variables])
        while left:
            entries, v = heappop(queue)
            if left.get(v) != entries:
                continue  # it has changed since
            if stop and entries > self.most:
                self.split = True
                return total
            del left[v]
            touched = sorted(self.neighbours[v])
            total += self._eliminate(v)
            for u in touched:
                if left[u] != (entries := self.entries(u)):
                    left[u] = entries
                    heappush(queue, (entries, u))
        return total

    def _eliminate(self, v: int) -> float:
        """Take v out of the problem; return what no variable changes any more."""
        numbers, entries = list(self.of[v]), self.entries(v)
        mine = [self.buckets.pop(number) for number in numbers]
        for number, term in zip(numbers, mine):
            self._meet(term.variables, -1)
            for u in term.variables:
                del self.of[u][number]
        parts = self._parts(v, mine, entries)
        self.steps.append(_Follower(v, tuple(parts[0] if parts else ())))
        constant = 0.0
        for part in parts:
            best, scope = self._least(v, part)
            if not scope:
                constant += float(best)
                continue
            self.made += 1
            self.buckets[self.made] = CostTerm(scope, best)
            self._meet(scope, 1)
            for u in scope:
                self.of[u][self.made] = None
        return constant

    def _parts(self, v: int, mine: list[CostTerm], entries: int) -> list[list[CostTerm]]:
        """Group the terms of v so that no group's table is larger than the limit. entries: of one table for all."""
        if entries <= self.most:
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

    def _least(self, v: int, part: list[CostTerm]) -> tuple[Numbers, tuple[int, ...]]:
        """Return the least over v of the sum, and its variables."""
        scope = sorted({u for term in part for u in term.variables} - {v})
        place = {u: i for i, u in enumerate([v, *scope])}
        key = tuple([(id(t.table), *[place[u] for u in t.variables]) for t in part])
        if key not in self.known:
            self.known[key] = self.sums.of(part, [v, *scope]).min(axis=0)
        return self.known[key], tuple(scope)

    def decoded(self) -> list[int]:
        """Return the choices that led to the least, the last eliminated first."""
        picks = [0] * len(self.sizes)
        for step in reversed(self.steps):
            picks[step.variable] = step.pick(picks)
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
