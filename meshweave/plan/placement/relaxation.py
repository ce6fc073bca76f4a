"""Bound a sum of tables from below, and find choices near that bound, by moving costs between tables.

What a table costs at least for a choice of a variable may be counted with that variable instead: the sum stays the
same. Variables are visited in order, forth and back. Each takes from the tables it shares with those before it what its
choices cost at least, hands the least of all to the bound, and shares the rest out among the tables that lead on
[Kolmogorov, Convergent tree-reweighted message passing, PAMI 2006; A new look at reweighted message passing, PAMI
2015]. All tables stay above 0, so what a choice costs beside the bound no choices with it can save.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshweave.plan.placement.terms import CostTerm, Numbers, Places


@dataclass(frozen=True)
class _Side:
    """Hold the tables that a variable shares with those before it, or with those behind it.

    others: these. tables: below one another, a column for each choice of the variable. starts: the first row of each.
    out: what the variable has given to each. into: where what the others have given to them is, row by row.
    """

    others: Places
    tables: Numbers
    starts: Places
    out: Numbers
    into: Places


class Relaxation:
    """Hold a problem of tables over one variable or two while costs move, its bound, and the best choices so far.

    Variables are numbered by their places in `order`. bound: no choices cost less.
    beside: no choices with one of these of a variable cost less. cost, picks: of the best choices.
    """

    def __init__(
        self, sizes: Sequence[int], terms: Sequence[CostTerm], order: Sequence[int], constant: float
    ) -> None:
        place = {v: i for i, v in enumerate(order)}
        self.sizes = [sizes[v] for v in order]
        self.bound, self.cost = constant, np.inf
        self.picks = np.zeros(len(order), np.intp)
        self.own = [np.zeros(n) for n in self.sizes]
        self.beside = [np.full(n, -np.inf) for n in self.sizes]
        self.pairs: dict[tuple[int, int], Numbers] = {}
        for term in terms:
            at = [place[v] for v in term.variables]
            if len(at) == 1:
                self.own[at[0]] = self.own[at[0]] + term.table
                continue
            pair = (at[0], at[1]) if at[0] < at[1] else (at[1], at[0])
            table = term.table if at[0] < at[1] else term.table.T
            self.pairs[pair] = self.pairs[pair] + table if pair in self.pairs else table
        self.own = [self._above_least(row) for row in self.own]
        self.pairs = {pair: self._above_least(self.pairs[pair]) for pair in sorted(self.pairs)}
        self.given = np.zeros(sum([sum(table.shape) for table in self.pairs.values()]))
        self.before, self.behind = self._sides()

    @property
    def entries(self) -> int:
        """Return the entries of all tables over two variables."""
        return sum([table.size for table in self.pairs.values()])

    def _above_least(self, table: Numbers) -> Numbers:
        least = float(table.min())
        self.bound += least
        return table - least if least else table

    def _sides(self) -> tuple[list[_Side], list[_Side]]:
        """Return the tables of each variable with those before it, and with those behind it."""
        sides: list[list[list[tuple[int, Numbers]]]] = [[[], []] for _ in self.sizes]
        for (first, second), table in self.pairs.items():
            sides[second][0].append((first, table))
            sides[first][1].append((second, table.T))
        begin, at = dict[tuple[int, int], int](), 0
        for v, halves in enumerate(sides):
            for u, _ in (*halves[0], *halves[1]):
                begin[v, u], at = at, at + self.sizes[v]
        made: tuple[list[_Side], list[_Side]] = [], []
        for v, halves in enumerate(sides):
            for half, found in zip(halves, made):
                found.append(self._side(v, half, begin))
        return made

    def _side(
        self, v: int, half: list[tuple[int, Numbers]], begin: dict[tuple[int, int], int]
    ) -> _Side:
        """Return some tables of a variable. begin: where what one has given to its table with another begins."""
        others, n = [u for u, _ in half], self.sizes[v]
        first = begin[v, others[0]] if others else 0
        into = [np.arange(begin[u, v], begin[u, v] + self.sizes[u]) for u in others]
        return _Side(
            np.array(others, np.intp),
            np.concatenate([np.zeros((0, n)), *[table for _, table in half]]),
            np.cumsum([0, *[self.sizes[u] for u in others]])[:-1],
            self.given[first : first + n * len(others)].reshape(len(others), n),
            np.concatenate([np.zeros(0, np.intp), *into]),
        )

    def sweep(self) -> None:
        """Visit all variables forth and back."""
        for v in range(len(self.sizes)):
            self._visit(v, self.before[v], self.behind[v])
        for v in reversed(range(len(self.sizes))):
            self._visit(v, self.behind[v], self.before[v])

    def _visit(self, v: int, came: _Side, goes: _Side) -> None:
        own, came_out, goes_out = self.own[v], came.out, goes.out
        if len(came_out):
            tables = came.tables + self.given[came.into, None]
            least = np.minimum.reduceat(tables, came.starts, axis=0)
            least += came_out
            came_out -= least
            own = own + np.add.reduce(least, axis=0)
        lowest = float(np.minimum.reduce(own))
        self.bound += lowest
        own = own - lowest
        self.beside[v] = own + self.bound
        if many := len(goes_out):
            share = own / max(many, len(came_out))
            goes_out += share
            own -= many * share
        self.own[v] = own

    def guess(self) -> None:
        """Choose for one variable after the other what costs least beside the choices before it."""
        picks = np.zeros(len(self.sizes), np.intp)
        for v, side in enumerate(self.before):
            row = self.own[v]
            if len(side.others):
                rows = side.tables[side.starts + picks[side.others]] + side.out
                row = row + np.add.reduce(rows, axis=0)
            picks[v] = row.argmin()
        self.offer(picks)

    def beside_picks(self) -> list[Numbers]:
        """Return what each choice of a variable costs where all others have the best ones, less what stays."""
        found = []
        for v, row in enumerate(self.own):
            for side in (self.before[v], self.behind[v]):
                rows = side.starts + self.picks[side.others]
                given = self.given[side.into[rows]]
                row = row + (side.tables[rows] + side.out + given[:, None]).sum(axis=0)
            found.append(row)
        return found

    def offer(self, picks: Places) -> None:
        """Take choices, if they are the best so far."""
        cost = self.bound
        for v, (p, before, behind) in enumerate(zip(picks, self.before, self.behind)):
            rows = before.starts + picks[before.others]
            cost += float(self.own[v][p] + before.tables[rows, p].sum())
            cost += float(before.out[:, p].sum() + behind.out[:, p].sum())
        if cost < self.cost:
            self.cost, self.picks = cost, picks

    def beside_at_most(self, level: float) -> list[Places]:
        """Return the choices of each variable with which choices may cost no more than a level."""
        return [np.flatnonzero(costs <= level) for costs in self.beside]

    def terms(self, places: Sequence[Places]) -> list[CostTerm]:
        """Return what some choices cost together, less the bound."""
        given: dict[tuple[int, int], Numbers] = {}
        for v, sides in enumerate(zip(self.before, self.behind)):
            for side in sides:
                given |= {(v, int(u)): row for u, row in zip(side.others, side.out)}
        found = [CostTerm((v,), row[at]) for v, (row, at) in enumerate(zip(self.own, places))]
        for (first, second), table in self.pairs.items():
            a, b = places[first], places[second]
            part = table[np.ix_(a, b)]
            part += given[first, second][a][:, None]
            part += given[second, first][b]
            found.append(CostTerm((first, second), part))
        return found
