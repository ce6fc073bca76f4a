"""The least sum within a limit of another one is found: as by trying all choices, and as by an integer program."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_elimination import integer_program, problem

from meshweave.plan.placement.bounded import OverLimit, _BoundedSearch, fewest, within
from meshweave.plan.placement.minimise import minimise
from meshweave.plan.placement.terms import CostTerm, cost_of


@dataclass(frozen=True)
class Moments:
    """Bytes at some moments, each a list of terms."""

    each: list[list[CostTerm]]

    def most(self, picks: Sequence[int]) -> tuple[float, Hashable]:
        found = [cost_of(picks, terms) for terms in self.each]
        return max(found), found.index(max(found))

    def terms(self, moment: Hashable) -> Sequence[CostTerm]:
        assert isinstance(moment, int)
        return self.each[moment]


def drawn(seed: int) -> tuple[list[int], list[CostTerm], Moments]:
    """Draw tables of seconds and, over the same variables, of bytes at one to three moments."""
    rng = np.random.default_rng(seed)
    sizes, terms = problem(rng, int(rng.integers(1, 6)), 4, int(rng.integers(0, 7)))
    each = []
    for _ in range(int(rng.integers(1, 4))):
        one = [CostTerm((v,), rng.integers(0, 20, n).astype(float)) for v, n in enumerate(sizes)]
        for term in terms:
            if len(term.variables) == 2 and rng.random() < 0.3:
                table = rng.integers(0, 8, term.table.shape).astype(float)
                one.append(CostTerm(term.variables, table))
        each.append(one)
    return sizes, terms, Moments(each)


@settings(max_examples=examples(300))
@given(st.integers(0, 1 << 30), st.floats(0, 1))
def test_no_choices_within_the_limit_cost_less(seed: int, share: float) -> None:
    sizes, terms, load = drawn(seed)
    every = [(load.most(p)[0], cost_of(p, terms)) for p in product(*map(range, sizes))]
    least, most = min(b for b, _ in every), max(b for b, _ in every)
    limit = round(least + share * (most - least)) - (share < 0.05)
    best = min((c for b, c in every if b <= limit), default=None)
    if best is None:
        with pytest.raises(OverLimit) as caught:
            within(sizes, terms, load, limit)
        assert caught.value.bound <= least + 1e-6 and caught.value.least >= least
        return
    found = within(sizes, terms, load, limit)
    assert found.choices.cost == cost_of(found.choices.picks, terms) == best
    assert found.choices.gap == 0 and found == within(sizes, terms, load, limit)
    assert found.nbytes == load.most(found.choices.picks)[0] <= limit


@settings(max_examples=examples(150))
@given(st.integers(0, 1 << 30), st.floats(0, 1))
def test_no_choices_fast_enough_take_fewer_bytes(seed: int, share: float) -> None:
    sizes, terms, load = drawn(seed)
    every = [(cost_of(p, terms), load.most(p)[0]) for p in product(*map(range, sizes))]
    least, most = min(c for c, _ in every), max(c for c, _ in every)
    limit = least + share * (most - least)
    best = min(b for c, b in every if c <= limit)
    found, bound = fewest(sizes, terms, load, limit)
    assert found.choices.cost <= limit and bound <= best + 1e-6 <= found.nbytes + 1e-6
    with pytest.raises(OverLimit):
        fewest(sizes, terms, load, least - 1)


@settings(max_examples=examples(300))
@given(st.integers(0, 1 << 30))
def test_the_fewest_bytes_of_all_are_found_and_proven(seed: int) -> None:
    """They are whole numbers, so a bound above the number below proves them; of equal ones the least seconds count."""
    sizes, terms, load = drawn(seed)
    least = min((load.most(p)[0], cost_of(p, terms)) for p in product(*map(range, sizes)))
    found, bound = fewest(sizes, terms, load)
    assert (found.nbytes, found.choices.cost) == least and bound == least[0]
    assert (found, bound) == fewest(sizes, terms, load)


def test_bytes_that_are_no_whole_numbers_are_not_rounded() -> None:
    """The fewest of all are 1.5: no mean of moments proves 2."""
    halves = [CostTerm((0,), np.array([1.5, 1.4])), CostTerm((0,), np.array([1.4, 1.6]))]
    load = Moments([[one] for one in halves])
    found, bound = fewest([2], [CostTerm((0,), np.array([1.0, 1.0]))], load)
    assert found.nbytes == 1.5 and bound <= 1.5


@settings(max_examples=examples(12))
@given(st.integers(0, 1 << 30), st.floats(0.1, 0.9))
def test_an_integer_program_finds_no_less_within_the_limit(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(2, 5, 8)]
    scopes = [(v,) for v in range(8)] + [(v, v + 1) for v in range(7)]
    terms = [CostTerm(s, rng.random([sizes[v] for v in s])) for s in scopes]
    each = [
        [CostTerm(s, rng.integers(0, 50, [sizes[v] for v in s]) * 1.0) for s in scopes[: 8 + k]]
        for k in (0, 4)
    ]
    load = Moments(each)
    least = max(minimise(sizes, bytes_).cost for bytes_ in each)  # of one moment alone
    most = load.most(minimise(sizes, terms).picks)[0]
    limit = float(round(least + share * max(0.0, most - least)))
    try:
        found = within(sizes, terms, load, limit)
    except OverLimit as over:
        assert over.least > limit
        return
    best = integer_program(sizes, terms, each, limit)
    assert found.choices.bound <= best * (1 + 1e-6) and found.nbytes <= limit
    assert found.choices.cost >= best * (1 - 1e-6)
    if found.choices.gap == 0:
        assert found.choices.cost == pytest.approx(best, rel=1e-6)


def test_what_is_not_proven_is_not_branched_on() -> None:
    """Many tables, and large ones: a bound and the best found come of a few solutions, not of hundreds."""
    rng = np.random.default_rng(0)
    sizes, terms = problem(rng, 20, 4, 150)
    load = Moments([[CostTerm((v,), np.zeros(n)) for v, n in enumerate(sizes)]])
    search = _BoundedSearch(sizes, terms, load, 1.0, 8)
    root = search.solve({})
    assert root.bound < root.cost and search.left == 0
    found = within(sizes, terms, load, 1.0, most_entries=8)
    assert found.choices.bound <= within(sizes, terms, load, 1.0).choices.cost <= found.choices.cost
