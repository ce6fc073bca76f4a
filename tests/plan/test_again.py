"""Values that are kept or made again, chosen with layouts: as by trying all choices, as by an integer program."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_elimination import integer_program
from plan.test_recompute import layers, rows

from meshweave.plan.placement.again import AgainRow, RowPlaces
from meshweave.plan.placement.bounded import OverLimit, fewest, within
from meshweave.plan.placement.terms import FORBIDDEN, CostTerm, cost_of
from meshweave.plan.recompute import WorkRow, alive, peak, schedule, seconds


def read(row: WorkRow) -> AgainRow:
    """The works of a row, each an op of its own: moment n is when the n-th runs, value n what it makes."""
    numbers = {work.makes[0]: n for n, work in enumerate(row.works)}
    held = {
        n: tuple(range(n, max([n, *row.readers[work.makes[0]]]) + 1))
        for n, work in enumerate(row.works)
    }
    ops = [(n,) if work.repeats else () for n, work in enumerate(row.works)]
    moments = list(range(len(row.works)))
    return RowPlaces(row, ops, numbers, moments, held).row_of(len(moments))


@dataclass(frozen=True)
class Placed:
    """A row to place: a variable for each value, with its bytes for each layout, one for each op, one for each work."""

    row: WorkRow
    again: AgainRow
    nbytes: list[np.ndarray]
    sizes: list[int]
    terms: list[CostTerm]

    @property
    def count(self) -> int:
        return len(self.row.works)

    @property
    def begin(self) -> int:
        return 2 * self.count

    @staticmethod
    def drawn(row: WorkRow, rng: np.random.Generator) -> "Placed":
        """Four values may have two layouts, in one of which they take half, and four ops two runs."""
        again, count = read(row), len(row.works)
        two = [{int(n) for n in rng.integers(0, count, 4)} for _ in range(2)]
        nbytes = [
            np.floor(row.nbytes[work.makes[0]] / np.arange(1, 2 + (n in two[0])))
            for n, work in enumerate(row.works)
        ]
        sizes = [len(n) for n in nbytes] + [1 + (n in two[1]) for n in range(count)]
        terms = []
        for n, work in enumerate(row.works):
            op, made = count + n, rng.integers(0, 4, (sizes[n], sizes[count + n]))
            terms.append(
                CostTerm((op,), work.seconds + rng.integers(0, 3, sizes[op]).astype(float))
            )
            terms.append(CostTerm((n, op), made.astype(float)))
            for v in [row.maker[v] for v in work.reads if v in row.maker]:
                moved = rng.integers(0, 4, (sizes[v], sizes[op])).astype(float)
                terms.append(CostTerm((v, op), moved))
        sizes = again.doubled(sizes, count)
        terms = again.twice(terms, count) + again.links(sizes, count, 2 * count)
        return Placed(row, again, nbytes, sizes, terms)

    def every(self, first: bool = False) -> Iterator[tuple[int, ...]]:
        """All choices, or the first layouts and runs: these are twice as dear exactly where a work runs again."""
        own = [range(1 if first and v < self.begin else n) for v, n in enumerate(self.sizes)]
        for states in product(*own[self.begin :]):
            chosen = {self.again.works[w].ops[0] for w in self.again.again(states)}
            doubled = self.again.twofold
            ops = []
            for n in range(self.count):
                size = self.sizes[self.count + n] // (2 if n in doubled else 1)
                runs = range(1 if first else size)
                ops.append([i + size * (n in chosen) for i in runs])
            for picks in product(*own[: self.count], *ops):
                yield (*picks, *states)

    def most(self, picks: Sequence[int]) -> tuple[float, Hashable]:
        """The bytes at each moment, by looking at each value there."""
        totals = [0.0] * self.moments
        for t in range(self.moments):
            for n in self.held(t):
                totals[t] += self.nbytes[n][picks[n]]
        for work, shifts, state in zip(self.again.works, self.again.shifts, picks[self.begin :]):
            for t in range(self.moments):
                totals[t] += self.nbytes[work.value][picks[work.value]] * shifts[state, t]
        return max(totals), totals.index(max(totals))

    @property
    def moments(self) -> int:
        return self.count + len(self.again.copies)

    def held(self, moment: int) -> list[int]:
        """The values at a moment, or right before one at which works run again."""
        lasts = [max([n, *self.row.readers[w.makes[0]]]) for n, w in enumerate(self.row.works)]
        if moment < self.count:
            return [n for n, last in enumerate(lasts) if n <= moment <= last]
        place = self.again.copies[moment - self.count]
        return [n for n, last in enumerate(lasts) if n < place <= last]

    def terms_at(self, moment: int) -> Iterator[CostTerm]:
        for n in self.held(moment):
            yield CostTerm((n,), self.nbytes[n])
        for k, (work, shifts) in enumerate(zip(self.again.works, self.again.shifts)):
            table = np.multiply.outer(self.nbytes[work.value], shifts[:, moment])
            yield CostTerm((work.value, self.begin + k), table)


@dataclass(frozen=True)
class Load:
    placed: Placed

    def most(self, picks: Sequence[int]) -> tuple[float, Hashable]:
        return self.placed.most(picks)

    def terms(self, moment: Hashable) -> Sequence[CostTerm]:
        assert isinstance(moment, int)
        return list(self.placed.terms_at(moment))


@settings(max_examples=examples(200))
@given(row=rows())
def test_what_is_counted_is_no_less_than_what_the_schedule_takes(row: WorkRow) -> None:
    """Whatever may be chosen, the same works run again in the row itself, in no more bytes and no more time."""
    one = Placed.drawn(row, np.random.default_rng(0))
    links = one.again.links(one.sizes, one.count, one.begin)
    assert one.most([0] * len(one.sizes))[0] == peak(row, schedule(row, ()))
    for picks in islice(one.every(first=True), 500):
        if cost_of(picks, links) >= FORBIDDEN:
            continue
        again = {one.again.works[w].ops[0] for w in one.again.again(picks[one.begin :])}
        runs = schedule(row, again)
        assert peak(row, runs) <= one.most(picks)[0]
        assert seconds(row, runs) <= sum(row.works[w].seconds for w in again)


@settings(max_examples=examples(120))
@given(st.integers(0, 1 << 30), st.floats(0, 1))
def test_no_choice_of_layouts_and_of_what_runs_again_costs_less(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    one, load = _small(rng)
    every = [(one.most(p)[0], cost_of(p, one.terms)) for p in one.every()]
    every = [(nbytes, cost) for nbytes, cost in every if cost < FORBIDDEN]
    least, most = min(b for b, _ in every), max(b for b, _ in every)
    limit = round(least + share * (most - least)) - (share < 0.05)
    best = min((c for b, c in every if b <= limit), default=None)
    if best is None:
        with pytest.raises(OverLimit) as caught:
            within(one.sizes, one.terms, load, limit)
        assert caught.value.bound <= least + 1e-6
        return
    found = within(one.sizes, one.terms, load, limit)
    assert found.choices.cost == pytest.approx(best, rel=1e-9) and found.choices.gap <= 1e-9
    assert found.nbytes <= limit
    lowest, bound = fewest(one.sizes, one.terms, load)
    assert lowest.nbytes == least == bound


def _small(rng: np.random.Generator) -> tuple[Placed, Load]:
    """A row of two layers and back, with bytes and seconds that are drawn."""
    row = layers(2, bool(rng.integers(2)))
    works = [replace(w, seconds=float(rng.integers(1, 12))) for w in row.works]
    sizes = (0, *[int(rng.integers(1, 5)) * 50 for _ in row.nbytes[1:]])
    one = Placed.drawn(WorkRow(tuple(works), sizes), rng)
    return one, Load(one)


@settings(max_examples=examples(12))
@given(st.integers(0, 1 << 30), st.floats(0.1, 0.9))
def test_an_integer_program_chooses_what_runs_again_no_better(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    one = Placed.drawn(layers(3, bool(rng.integers(2))), rng)
    load = Load(one)
    least, most = fewest(one.sizes, one.terms, load)[1], one.most([0] * len(one.sizes))[0]
    limit = float(round(least + share * max(0.0, most - least)))
    found = within(one.sizes, one.terms, load, limit)
    moments = [list(one.terms_at(t)) for t in range(one.moments)]
    terms = [CostTerm(t.variables, np.minimum(t.table, 1e4)) for t in one.terms]
    best = integer_program(one.sizes, terms, moments, limit)
    assert found.choices.bound <= best * (1 + 1e-6) and found.nbytes <= limit
    assert found.choices.cost >= best * (1 - 1e-6)
    if found.choices.gap == 0:
        assert found.choices.cost == pytest.approx(best, rel=1e-6)


def test_a_deep_row_takes_few_bytes_where_few_may_be_held() -> None:
    """Of sixteen layers some are kept, and between those the rest is made again: in half of the bytes."""
    one = Placed.drawn(layers(16, cheap=True), np.random.default_rng(1))
    load = Load(one)
    plain = within(one.sizes, one.terms, load, float("inf"))
    half = within(one.sizes, one.terms, load, plain.nbytes // 2)
    again = one.again.again(half.choices.picks[one.begin :])
    runs = schedule(one.row, {one.again.works[w].ops[0] for w in again})
    assert again and half.nbytes <= plain.nbytes // 2
    assert max(alive(one.row, runs)) < peak(one.row, schedule(one.row, ()))
    assert half == within(one.sizes, one.terms, load, plain.nbytes // 2)
