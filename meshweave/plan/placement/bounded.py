"""Minimise a sum of tables while another sum stays below a limit: bytes of a rank, at each moment of a program.

A limit is priced: for a price of a byte the bytes join the sum, which is minimised exactly, and the least sum less the
price of the limit is a bound from below [Everett, Generalized Lagrange multipliers, 1963]. The price at which this
bound is highest follows from pairs of choices, one above the limit and one below. What is left between the bound and
the best choices within the limit is closed by branching: a choice is taken, or forbidden, until each part is beaten.
Where that takes too long the gap stays, and is said.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Protocol

import numpy as np

from meshweave.plan.placement.minimise import MOST_ENTRIES, minimise
from meshweave.plan.placement.terms import (
    FORBIDDEN,
    Choices,
    CostTerm,
    Numbers,
    Places,
    cost_of,
)

MOST_PRICES = 24
"""Prices that are tried at most, of one moment; and rounds in which the least bytes are looked for."""

MOST_MOMENTS = 8
"""Moments whose bytes get a price."""

MOST_BRANCHES = 2000
"""Problems that are solved to close a gap, of parts; fewer where one takes long: all tables of them have so many ..."""

BRANCH_ENTRIES = 1 << 24
"""... entries at most."""

OVERHEAD = 512
"""Entries that take as long as what is done for a variable itself."""

BRANCH_PRICES = 2, 3
"""In a part: moments that get a price, or another one, and prices of each that are tried."""

RAISED = (1.02, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0)
"""How much prices are raised until choices within the limit are best."""

MOST_TRIED = 200
"""Single changes of the best choices that are tried."""

TIE = 0.5
"""Bytes that all seconds together stand for where the fewest bytes are looked for."""

EXACT = 1e-9
"""Shares of a sum that rounding may take."""


class ByteLoad(Protocol):
    """Tell how many bytes choices take: at each moment a sum of tables, of which the largest counts."""

    def most(self, picks: Sequence[int]) -> tuple[float, Hashable]:
        """Return the most bytes at a moment, and which one that is."""

    def terms(self, moment: Hashable) -> Sequence[CostTerm]:
        """Return the bytes at a moment as terms."""


@dataclass(frozen=True)
class Bounded:
    """Hold the best choices within a limit, and the bytes that they take.

    price: the seconds that a byte more saves, by the bound. priced: all bytes at that price, as terms.
    free: the seconds that the program takes at least with no limit.
    """

    choices: Choices
    nbytes: float
    price: float = 0.0
    priced: tuple[CostTerm, ...] = field(default=(), compare=False)
    free: float = 0.0


class OverLimit(Exception):
    """Say that nothing found is within the limit: the fewest bytes found, and a bound that nothing is below."""

    def __init__(self, least: float, bound: float) -> None:
        super().__init__(least, bound)
        self.least, self.bound = least, bound


@dataclass(frozen=True)
class _Point:
    """Hold choices, what they cost, the bound they were found with, and the weights of moments then."""

    picks: tuple[int, ...]
    cost: float
    bound: float
    weights: tuple[tuple[Hashable, float], ...] = ()


_Forced = tuple[tuple[int, int, bool], ...]
"""Variables with a choice that is taken, or denied."""


class _BoundedSearch:
    """Hold the problem, and the best choices within the limit so far.

    least: the fewest bytes found, and the choices that take them. whole: bytes are whole numbers at all moments so far.
    left: problems of parts that may still be solved.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        terms: Sequence[CostTerm],
        load: ByteLoad,
        limit: float,
        most_entries: int,
        alike: Callable[[], Sequence[Places]] | None = None,
    ) -> None:
        self.sizes, self.terms, self.load, self.limit = sizes, terms, load, limit
        self.most_entries, self.alike = most_entries, alike
        self.best: _Point | None = None
        self.least: tuple[float, tuple[int, ...]] = (np.inf, ())
        self.whole, self.is_branching = True, False
        self.bytes_of: dict[Hashable, Sequence[CostTerm]] = {}
        self.scaled: dict[tuple[int, float], Numbers] = {}
        entries = sum(t.table.size for t in self.terms) + OVERHEAD * len(sizes)
        self.left = min(MOST_BRANCHES, BRANCH_ENTRIES // entries)

    def minimised(self, terms: Sequence[CostTerm]) -> Choices:
        """Return the choices with the least sum of some terms."""
        self.left -= self.is_branching
        return minimise(self.sizes, terms, self.most_entries, self.alike)

    def moment(self, key: Hashable) -> Sequence[CostTerm]:
        """Return the bytes at a moment as terms."""
        if key not in self.bytes_of:
            self.bytes_of[key] = self.load.terms(key)
            self.whole &= not any((t.table % 1).any() for t in self.bytes_of[key])
        return self.bytes_of[key]

    def priced(self, prices: dict[Hashable, float]) -> list[CostTerm]:
        """Return the bytes at moments as terms in seconds; equal tables stay one."""
        found = []
        for key, price in prices.items():
            for term in self.moment(key) if price else ():
                at = (id(term.table), price)
                if at not in self.scaled:
                    self.scaled[at] = price * term.table
                found.append(CostTerm(term.variables, self.scaled[at]))
        return found

    def solve(self, prices: dict[Hashable, float], forced: Sequence[CostTerm] = ()) -> _Point:
        """Return the choices that are best at these prices, and what nothing within the limit is below."""
        found = self.minimised([*self.terms, *self.priced(prices), *forced])
        self.offer(found.picks, forced)
        if found.gap > EXACT:  # branching on a bound that is not exact takes long and closes little
            self.left = 0
        bound = found.bound - sum(prices.values()) * self.limit
        cost = cost_of(found.picks, [*self.terms, *forced])
        return _Point(found.picks, cost, bound, tuple(prices.items()))

    def offer(self, picks: tuple[int, ...], forced: Sequence[CostTerm] = ()) -> None:
        """Keep choices if they are within the limit, and the best so far."""
        cost = cost_of(picks, self.terms)
        if self.best is not None and cost >= self.best.cost:
            return
        if cost < FORBIDDEN and self.load.most(picks)[0] <= self.limit:
            self.best = _Point(picks, cost, -np.inf)

    def over(self, key: Hashable, picks: Sequence[int]) -> float:
        """Return how many bytes choices take above the limit at a moment."""
        return cost_of(picks, self.moment(key)) - self.limit

    def fewest(self) -> tuple[float, float]:
        """Look for choices within the limit; return the fewest bytes found, and a bound that nothing is below.

        It ends with the first that are within the limit; of a limit below 0, with the fewest of all.
        """
        # Less than a byte in all, so that of equal choices those that take less time are found.
        most = [t.table.max(where=t.table < FORBIDDEN, initial=0) for t in self.terms]
        tie = TIE / max(1e-30, float(sum(most)))
        slow = [
            CostTerm(t.variables, np.where(t.table < FORBIDDEN, tie * t.table, FORBIDDEN))
            for t in self.terms
        ]
        key = self.load.most([0] * len(self.sizes))[1]
        root = self._played({key: 1.0}, slow, (), MOST_PRICES)
        order, queue = count(1), list[tuple[float, int, _Point, _Forced]]()
        queue.append((root.bound, 0, root, ()))
        self.is_branching = True
        while self.left > 0 and queue and not self._is_known(queue[0][0]):
            _, _, point, forced = heappop(queue)
            v = self._branch(point, forced, self._at_stake(point))
            if v is None:
                continue
            for is_taken in (True, False):
                now = (*forced, (v, point.picks[v], is_taken))
                trial = self._played(dict(point.weights), slow, now, 4)
                bound = max(point.bound, trial.bound)
                if bound < self.least[0]:
                    heappush(queue, (bound, next(order), trial, now))
        self.is_branching = False
        return self.least[0], min([self.least[0], *[entry[0] for entry in queue]])

    def _is_known(self, bound: float) -> bool:
        """Tell whether the fewest bytes found are within the limit or none below them, or nothing is within the limit.

        bound: what nothing is below.
        """
        return self.least[0] <= max(self.limit, bound) or 0 <= self.limit < bound

    def _played(
        self, weights: dict[Hashable, float], slow: list[CostTerm], forced: _Forced, rounds: int
    ) -> _Point:
        """Give weights to moments, each time to that of the most bytes; return the best bound.

        forced: choices that are taken, or denied.
        """
        best, masks = _Point((), 0.0, -np.inf), self._masks(forced)
        for turn in range(1, rounds + 1):
            found = self.minimised([*self.priced(weights), *slow, *masks])
            bound = (found.bound - TIE) * (1 - EXACT)
            if self.whole:  # then the most is so too, and no less than this mean of moments
                bound = ceil(bound)
            if bound > best.bound:
                best = _Point(found.picks, 0.0, bound, tuple(weights.items()))
            if found.cost >= FORBIDDEN * (1 if masks else np.inf):
                break
            nbytes, key = self.load.most(found.picks)
            if nbytes <= self.limit:
                self.offer(found.picks)
            if nbytes < self.least[0]:
                self.least = nbytes, found.picks
            if self._is_known(best.bound):
                break
            weights = {k: w * turn / (turn + 1) for k, w in weights.items()}
            weights[key] = weights.get(key, 0.0) + 1 / (turn + 1)
        return best

    def settle(
        self,
        key: Hashable,
        start: _Point,
        forced: Sequence[CostTerm] = (),
        most: int = MOST_PRICES,
    ) -> _Point:
        """Find the price of bytes at a moment for which the bound is highest, others as they are; return its point.

        start: what is best at the prices of the others; above the limit at this moment. most: prices that are tried.
        """
        assert self.best is not None
        own, others = dict(start.weights), {k: p for k, p in start.weights if k != key}

        def height(point: _Point) -> float:
            return point.cost + sum(p * self.over(k, point.picks) for k, p in others.items())

        above, below, found = start, self.best, start
        for _ in range(most):
            apart = self.over(key, above.picks) - self.over(key, below.picks)
            price = (height(below) - height(above)) / apart if apart > 0 else 0.0
            if price <= 0 or price == own.get(key):
                break
            own = {**others, key: price}
            trial = self.solve(own, forced)
            if trial.bound > found.bound:
                found = trial
            line = height(above) + price * self.over(key, above.picks)
            now = height(trial) + price * self.over(key, trial.picks)
            if now >= line - EXACT * abs(line):
                break
            if self.over(key, trial.picks) > 0:
                above = trial
            else:
                below = trial
        return found

    def settled(
        self,
        root: _Point,
        forced: Sequence[CostTerm] = (),
        moments: int = MOST_MOMENTS,
        most: int = MOST_PRICES,
    ) -> _Point:
        """Give prices to the bytes of moments, each time to those that are most above the limit; return the best bound.

        most: prices that are tried of a moment.
        """
        over = root
        for _ in range(moments):
            nbytes, key = self.load.most(over.picks)
            if nbytes <= self.limit or over.cost >= FORBIDDEN:
                break
            before, over = root.bound, self.settle(key, over, forced, most)
            root = over if over.bound > root.bound else root
            if root.bound <= before + 1e-6 * abs(before):
                break
        return root

    def raise_prices(self, point: _Point) -> None:
        """Look for better choices within the limit at prices above those of a point, by more and more."""
        for factor in RAISED:
            trial = self.solve({key: factor * price for key, price in point.weights})
            if self.load.most(trial.picks)[0] <= self.limit:
                break

    def improve(self) -> None:
        """Change single choices of the best ones, dearest first, as long as that is within the limit."""
        assert self.best is not None
        of: list[list[CostTerm]] = [[] for _ in self.sizes]
        for term in self.terms:
            for v in term.variables:
                of[v].append(term)
        tried = 0
        for v in range(len(self.sizes)):
            picks = list(self.best.picks)
            row: Numbers = np.zeros(self.sizes[v])
            for term in of[v]:
                at = [slice(None) if u == v else picks[u] for u in term.variables]
                row = row + term.table[tuple(at)]
            for pick in np.argsort(row, kind="stable"):
                if row[pick] >= row[picks[v]] or tried >= MOST_TRIED:
                    break
                tried += 1
                before = self.best
                self.offer((*picks[:v], int(pick), *picks[v + 1 :]))
                if self.best is not before:
                    break

    def close(self, root: _Point) -> float:
        """Branch until nothing can be better than the best choices, or for long; return the bound that holds."""
        assert self.best is not None
        order, queue = count(), list[tuple[float, int, _Point, _Forced]]()
        heappush(queue, (root.bound, next(order), root, ()))
        self.is_branching = True
        while self.left > 0 and queue and queue[0][0] < self.best.cost * (1 - EXACT):
            _, _, point, forced = heappop(queue)
            v = self._branch(point, forced, self._at_stake(point))
            if v is None:
                continue
            for is_taken in (True, False):
                now = (*forced, (v, point.picks[v], is_taken))
                masks = self._masks(now)
                trial = self.solve(dict(point.weights), masks)
                if trial.bound < self.best.cost * (1 - EXACT):
                    trial = self.settled(trial, masks, *BRANCH_PRICES)
                bound = max(point.bound, trial.bound)
                if bound < self.best.cost * (1 - EXACT):
                    heappush(queue, (bound, next(order), trial, now))
        self.is_branching = False
        return min([self.best.cost, *[entry[0] for entry in queue]])

    def _at_stake(self, point: _Point) -> list[tuple[Hashable, float]]:
        """Return the moments whose bytes have a price, and the one of the most bytes."""
        whole = sum([price for _, price in point.weights]) or 1.0
        return [*point.weights, (self.load.most(point.picks)[1], whole)]

    def _branch(
        self, point: _Point, forced: _Forced, prices: Iterable[tuple[Hashable, float]]
    ) -> int | None:
        """Return a variable to branch on: of those whose bytes have a price the one with most at stake.

        None where these bytes are the same whatever is chosen: none of these choices is better, or within the limit.
        """
        taken = {v for v, _, is_taken in forced if is_taken}
        denied: dict[int, int] = {}
        for v, _, is_taken in forced:
            denied[v] = denied.get(v, 0) + (not is_taken)
        stakes: dict[int, float] = {}
        rest = dict[int, None]()
        for key, price in prices:
            for term in self.moment(key):
                for v in term.variables:
                    if v not in taken and self.sizes[v] - denied.get(v, 0) > 1:
                        at = [slice(None) if u == v else point.picks[u] for u in term.variables]
                        row = term.table[tuple(at)]
                        if stake := price * float(row.max() - row.min()):
                            stakes[v] = stakes.get(v, 0.0) + stake
                        elif term.table.max() > term.table.min():
                            rest[v] = None
        stakes = stakes or dict.fromkeys(rest, 0.0)
        if not stakes:
            return None
        best = point.picks if self.best is None else self.best.picks
        return max(stakes, key=lambda v: (point.picks[v] != best[v], stakes[v], -v))

    def _masks(self, forced: _Forced) -> list[CostTerm]:
        found: dict[int, Numbers] = {}
        for v, pick, is_taken in forced:
            mask = found.setdefault(v, np.zeros(self.sizes[v]))
            if is_taken:
                mask[np.arange(self.sizes[v]) != pick] = FORBIDDEN
            else:
                mask[pick] = FORBIDDEN
        return [CostTerm((v,), mask) for v, mask in found.items()]


def within(
    sizes: Sequence[int],
    terms: Sequence[CostTerm],
    load: ByteLoad,
    limit: float,
    most_entries: int = MOST_ENTRIES,
    start: tuple[int, ...] | None = None,
    alike: Callable[[], Sequence[Places]] | None = None,
) -> Bounded:
    """Return the choices with the least sum of terms whose bytes are within the limit, with a bound.

    start: choices within the limit, if some are known. alike: see `minimise`. The same problem has the same answer.
    Raises OverLimit where nothing is found within the limit.
    """
    search = _BoundedSearch(sizes, terms, load, limit, most_entries, alike)
    root = search.solve({})
    if start is not None:
        search.offer(start)
    free = root.cost
    if search.best is None:
        least, bound = search.fewest()
        if search.best is None:
            raise OverLimit(least, bound)
    if load.most(root.picks)[0] > limit:
        search.improve()
        root = search.settled(root)
        search.raise_prices(root)
        search.improve()
    assert search.best is not None
    bound = min(root.bound, search.best.cost)
    if search.best.cost > bound + EXACT * abs(bound):
        bound = max(bound, search.close(root))
    if search.best.cost - bound <= EXACT * abs(search.best.cost):
        bound = search.best.cost
    choices = Choices(search.best.picks, search.best.cost, bound)
    prices = dict(root.weights)
    price, priced = sum(prices.values()), tuple(search.priced(prices))
    return Bounded(choices, load.most(choices.picks)[0], price, priced, free)


def fewest(
    sizes: Sequence[int],
    terms: Sequence[CostTerm],
    load: ByteLoad,
    limit_seconds: float = np.inf,
    most_entries: int = MOST_ENTRIES,
    alike: Callable[[], Sequence[Places]] | None = None,
) -> tuple[Bounded, float]:
    """Return the choices that take the fewest bytes within a limit of seconds, and bytes that nothing is below.

    alike: see `minimise`. Of equal bytes the least seconds.
    Raises OverLimit where no choices are so fast: the least seconds, and their bound.
    """
    fastest = minimise(sizes, terms, most_entries, alike)
    if fastest.cost > limit_seconds:
        raise OverLimit(fastest.cost, fastest.bound)
    high = load.most(fastest.picks)[0]
    search = _BoundedSearch(sizes, terms, load, -1.0, most_entries, alike)
    least, low = search.fewest()
    found, limit, start = Bounded(fastest, high, free=fastest.cost), least, search.least[1]
    for _ in range(MOST_PRICES):
        if limit >= high:
            break
        trial = within(sizes, terms, load, limit, most_entries, start, alike)
        is_fast = trial.choices.cost <= limit_seconds
        if is_fast:
            found, high = trial, trial.nbytes
        elif trial.choices.bound > limit_seconds:
            low = max(low, limit)
        between = (max(low, least, 0.0 if is_fast else limit) + high) // 2
        if high <= max(low + 1, least) or between == limit:
            break
        limit = between
    return found, min(low, high)
