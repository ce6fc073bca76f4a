"""Bound a sum of tables from below, and find choices near that bound, by moving costs between tables.

What a table costs at least for a choice of a variable may be counted with that variable instead: the sum stays the
same. Variables are visited in order, forth and back. Each takes from the tables it shares with those before it what its
choices cost at least, hands the least of all to the bound, and shares the rest out among the tables that lead on
[Kolmogorov, Convergent tree-reweighted message passing, PAMI 2006; A new look at reweighted message passing, PAMI
2015]. All tables stay above 0, so what a choice costs beside the bound no choices with it can save.

Variables that share no table may be visited together, in one wave. Programs are long rows of ops, with few of these at
each place, so the order is folded: a wave has variables from several places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshweave.plan.placement.terms import CostTerm, Numbers, Places

FOLD = 4
"""Places of the order of variables that waves are made of."""


@dataclass(frozen=True)
class _Side:
    """Hold the tables that variables of a wave share with those of earlier waves, or with those of later ones.

    own, others: the two variables of each table. tables: `tables[n, the other's choice, the own choice]`, infinite
    where there is no such choice. out: what the variables have given to their tables, one row after the other; cells:
    where these choices are in `tables[:, 0]`, owners: among those of the wave. into: where the others' gifts are.
    part: of what each choice in the wave costs beside the least, what a table on this side gets. kept: what is left.
    """

    own: Places
    others: Places
    tables: Numbers
    out: Numbers
    cells: Places
    owners: Places
    into: Places
    part: Numbers
    kept: Numbers

    def rows(self, picks: Places) -> Numbers:
        """Return what the tables say of each choice beside choices of the others, in the order of `out`."""
        at = np.arange(len(self.others)), picks[self.others]
        return self.tables[at].ravel()[self.cells]


@dataclass(frozen=True)
class _Wave:
    """Hold variables that share no table.

    at: where their choices are among those of all. begins: where those of each variable begin within these. of,
    number: the place of the variable of each choice, and the number of the choice.
    """

    variables: Places
    at: slice
    begins: Places
    of: Places
    number: Places
    before: _Side
    behind: _Side

    @property
    def sides(self) -> tuple[_Side, _Side]:
        """Return the tables with earlier waves, and with later ones."""
        return self.before, self.behind


class Relaxation:
    """Hold a problem of tables over one variable or two while costs move, its bound, and the best choices so far.

    Variables are numbered by their places in `order`. bound: no choices cost less. cost, picks: of the best choices.
    """

    def __init__(
        self, sizes: Sequence[int], terms: Sequence[CostTerm], order: Sequence[int], constant: float
    ) -> None:
        place = {v: i for i, v in enumerate(order)}
        self.sizes = [sizes[v] for v in order]
        self.bound, self.cost = constant, np.inf
        self.picks = np.zeros(len(order), np.intp)
        rows = [np.zeros(n) for n in self.sizes]
        self.pairs: dict[tuple[int, int], Numbers] = {}
        for term in terms:
            at = [place[v] for v in term.variables]
            if len(at) == 1:
                rows[at[0]] = rows[at[0]] + term.table
                continue
            pair = (at[0], at[1]) if at[0] < at[1] else (at[1], at[0])
            table = term.table if at[0] < at[1] else term.table.T
            self.pairs[pair] = self.pairs[pair] + table if pair in self.pairs else table
        rows = [self._above_least(row) for row in rows]
        self.pairs = {pair: self._above_least(self.pairs[pair]) for pair in sorted(self.pairs)}
        waves = _waves(len(rows), self.pairs)
        inside = [v for wave in waves for v in wave]
        self.starts = np.zeros(len(rows), np.intp)
        self.starts[inside] = _begins([self.sizes[v] for v in inside])
        self._own = np.concatenate([rows[v] for v in inside])
        self._beside = np.full(len(self._own), -np.inf)
        self.stated, self.constant = self._own.copy(), self.bound  # before costs move
        self.waves = self._laid_out(waves)
        self.room = np.empty(max([side.tables.size for w in self.waves for side in w.sides]))

    @property
    def entries(self) -> int:
        """Return the entries of all tables over two variables."""
        return sum([table.size for table in self.pairs.values()])

    @property
    def beside(self) -> list[Numbers]:
        """Return for each variable what no choices with one of its choices cost less than."""
        return self._by_variable(self._beside)

    def _by_variable(self, row: Numbers) -> list[Numbers]:
        return [row[at : at + n] for at, n in zip(self.starts, self.sizes)]

    def _above_least(self, table: Numbers) -> Numbers:
        least = float(table.min())
        self.bound += least
        return table - least if least else table

    def _laid_out(self, waves: Sequence[Sequence[int]]) -> list[_Wave]:
        """Return the waves with their tables, and make place for what variables give to these."""
        number = {v: n for n, wave in enumerate(waves) for v in wave}
        near: list[tuple[list[int], list[int]]] = [([], []) for _ in self.sizes]
        for first, second in self.pairs:
            for v, u in ((first, second), (second, first)):
                near[v][number[u] > number[v]].append(u)
        self.gifts: dict[tuple[int, int], int] = {}  # where one's to its table with another begin
        for side in (0, 1):
            for wave in waves:
                self.gifts |= {(v, u): self.sizes[v] for v in wave for u in near[v][side]}
        self.gifts = dict(zip(self.gifts, _begins(list(self.gifts.values()))))
        # The last is nobody's: where there is no choice.
        self.given = np.zeros(sum([self.sizes[v] for v, _ in self.gifts]) + 1)
        found = []
        for wave in waves:
            sizes = [self.sizes[v] for v in wave]
            counts = [np.repeat([len(near[v][side]) for v in wave], sizes) for side in (0, 1)]
            sides = [
                self._side(wave, [(v, u) for v in wave for u in near[v][side]], *pair)
                for side, pair in ((0, counts), (1, counts[::-1]))
            ]
            first, begins = int(self.starts[wave[0]]), _begins(sizes)
            of, at = np.repeat(np.arange(len(wave)), sizes), slice(first, first + sum(sizes))
            numbers = np.arange(sum(sizes)) - np.repeat(begins, sizes)
            found.append(_Wave(np.array(wave, np.intp), at, begins, of, numbers, *sides))
        return found

    def _side(
        self, wave: Sequence[int], links: Sequence[tuple[int, int]], goes: Places, came: Places
    ) -> _Side:
        """Lay out the tables of a wave's variables with others.

        goes, came: how many the variable of each choice has on this side, and on the other one.
        """
        depth = max([self.sizes[u] for _, u in links], default=0)
        width = max([self.sizes[v] for v, _ in links], default=0)
        tables = np.full((len(links), depth, width), np.inf)
        into = np.full((len(links), depth), len(self.given) - 1)
        cells, owners = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
        for n, (v, u) in enumerate(links):
            m, own = self.sizes[u], np.arange(self.sizes[v])
            tables[n, :m, : len(own)] = self.pairs[u, v] if u < v else self.pairs[v, u].T
            into[n, :m] = np.arange(m) + self.gifts[u, v]
            cells.append(own + n * width)
            owners.append(own + self.starts[v] - self.starts[wave[0]])
        begin = self.gifts[links[0]] if links else 0
        all_cells, most = np.concatenate(cells), np.maximum(np.maximum(goes, came), 1)
        return _Side(
            np.array([v for v, _ in links], np.intp),
            np.array([u for _, u in links], np.intp),
            tables,
            self.given[begin : begin + len(all_cells)],
            all_cells,
            np.concatenate(owners),
            into,
            (goes > 0) / most,
            (most - goes) / most,
        )

    def sweep(self) -> None:
        """Visit all variables forth and back."""
        for wave in self.waves:
            self._visit(wave, wave.before, wave.behind)
        for wave in reversed(self.waves):
            self._visit(wave, wave.behind, wave.before)

    def _visit(self, wave: _Wave, came: _Side, goes: _Side) -> None:
        own = self._own[wave.at]
        if len(came.others):
            tables = self.room[: came.tables.size].reshape(came.tables.shape)
            np.add(came.tables, self.given.take(came.into)[:, :, None], tables)
            least = np.minimum.reduce(tables, axis=1).take(came.cells)
            least += came.out
            own += np.bincount(came.owners, least, len(own))
            np.subtract(came.out, least, came.out)
        lowest = np.minimum.reduceat(own, wave.begins)
        self.bound += float(np.add.reduce(lowest))
        own -= lowest.take(wave.of)
        np.add(own, self.bound, self._beside[wave.at])
        if len(goes.others):
            gifts = goes.out
            gifts += (own * goes.part).take(goes.owners)
            own *= goes.kept

    def guess(self) -> None:
        """Choose for one wave after the other what costs least beside the choices before it."""
        picks = np.zeros(len(self.sizes), np.intp)
        for wave in self.waves:
            side, own = wave.before, self._own[wave.at]
            rows = side.rows(picks) + side.out
            costs = np.full((len(wave.variables), int(wave.number.max()) + 1), np.inf)
            costs[wave.of, wave.number] = own + np.bincount(side.owners, rows, len(own))
            picks[wave.variables] = costs.argmin(axis=1)
        self.offer(picks)

    def beside_picks(self) -> list[Numbers]:
        """Return what each choice of a variable costs where all others have the best ones, less what stays."""
        found = self.stated.copy()
        for wave in self.waves:
            for side in wave.sides:
                rows = side.rows(self.picks)
                found[wave.at] += np.bincount(side.owners, rows, len(wave.of))
        return self._by_variable(found)

    def offer(self, picks: Places) -> None:
        """Take choices, if they are the best so far."""
        cost = self.constant + float(self.stated[self.starts + picks].sum())
        for wave in self.waves:
            side = wave.before
            at = np.arange(len(side.own)), picks[side.others], picks[side.own]
            cost += float(side.tables[at].sum())
        if cost < self.cost:
            self.cost, self.picks = cost, picks

    def beside_at_most(self, level: float) -> list[Places]:
        """Return the choices of each variable with which choices may cost no more than a level."""
        return [np.flatnonzero(costs <= level) for costs in self.beside]

    def near(self, sizes: Sequence[int]) -> dict[int, set[int]]:
        """Return which variables share tables, of those with some choices of which there are more than one."""
        found: dict[int, set[int]] = {v: set() for v, n in enumerate(sizes) if n > 1}
        for first, second in self.pairs:
            if sizes[first] > 1 and sizes[second] > 1:
                found[first].add(second)
                found[second].add(first)
        return found

    def terms(self, places: Sequence[Places]) -> list[CostTerm]:
        """Return what some choices cost together, less the bound: tables of those that have two choices or more."""
        rows = [row[at] for row, at in zip(self._by_variable(self._own), places)]
        found = []
        for (first, second), table in self.pairs.items():
            a, b = places[first], places[second]
            part = table[np.ix_(a, b)]
            part += self.given[a + self.gifts[first, second]][:, None]
            part += self.given[b + self.gifts[second, first]]
            if len(b) == 1:
                rows[first] += part[:, 0]
            elif len(a) == 1:
                rows[second] += part[0]
            else:
                found.append(CostTerm((first, second), part))
        return [*[CostTerm((v,), row) for v, row in enumerate(rows)], *found]


def _begins(sizes: Sequence[int]) -> Places:
    """Return where each of some rows begins, one behind another."""
    return np.cumsum([0, *sizes])[:-1]


def _waves(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return variables in waves: those of a wave share no table. Variables near each other are in waves that are."""
    near: list[list[int]] = [[] for _ in range(count)]
    for first, second in pairs:
        near[first].append(second)
        near[second].append(first)
    depths = _depths(near, range(count))
    rows = -(-(max(depths) + 1) // FOLD)
    folded = sorted(range(count), key=lambda v: (depths[v] % rows, depths[v] // rows, v))
    depths = _depths(near, folded)
    found: list[list[int]] = [[] for _ in range(max(depths) + 1)]
    for v in folded:
        found[depths[v]].append(v)
    return found


def _depths(near: Sequence[Sequence[int]], order: Iterable[int]) -> list[int]:
    """Return for each variable the length of the longest way to it that follows an order."""
    found = [-1] * len(near)
    for v in order:
        found[v] = 1 + max([found[u] for u in near[v]], default=-1)
    return found
