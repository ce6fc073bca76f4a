"""The least sum of tables is found: as by trying all choices, and as by an integer program. Moves have their prices."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Axis, Link, Mesh
from meshweave.plan.cost import SHARED_MEMORY
from meshweave.plan.placement.elimination import Elimination
from meshweave.plan.placement.minimise import minimise
from meshweave.plan.placement.prices import MachinePrices
from meshweave.plan.placement.rates import MoveRates
from meshweave.plan.placement.terms import CostTerm, Numbers, cost_of
from meshweave.plan.redistribute import plan_redistribute


def problem(
    rng: np.random.Generator, count: int, most: int, edges: int
) -> tuple[list[int], list[CostTerm]]:
    """Draw tables of small whole numbers, so that ties are common, over one variable or two."""
    sizes = [int(n) for n in rng.integers(1, most + 1, count)]
    scopes = [(v,) for v in range(count)]
    for _ in range(edges):
        scopes.append(tuple(int(v) for v in rng.permutation(count)[:2]))
    tables = [rng.integers(0, 10, [sizes[v] for v in scope]) for scope in scopes]
    return sizes, [CostTerm(s, t.astype(float)) for s, t in zip(scopes, tables)]


@settings(max_examples=examples(150))
@given(st.integers(0, 1 << 30))
def test_no_choices_cost_less_than_what_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, terms = problem(rng, int(rng.integers(1, 6)), 4, int(rng.integers(0, 7)))
    best = min(cost_of(picks, terms) for picks in product(*map(range, sizes)))
    found = minimise(sizes, terms)
    assert found.cost == best == cost_of(found.picks, terms)
    assert found.gap == 0 and found == minimise(sizes, terms)


@settings(max_examples=examples(150))
@given(st.integers(0, 1 << 30))
def test_a_bound_is_a_bound_where_tables_would_be_too_large(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, terms = problem(rng, 6, 4, 9)
    best, found = minimise(sizes, terms), minimise(sizes, terms, most_entries=8)
    assert found.bound <= best.cost <= found.cost == cost_of(found.picks, terms)
    assert found.gap >= 1 - best.cost / found.cost if found.cost else found.gap == 0


def integer_program(
    sizes: list[int],
    terms: list[CostTerm],
    loads: Sequence[Sequence[CostTerm]] = (),
    limit: float = 0.0,
) -> float:
    """Return the least sum by an integer program: a 0-1 variable for each choice, and for each entry of a table.

    loads: other sums, each of which is at most the limit.
    """
    optimize = pytest.importorskip("scipy.optimize")
    sparse = pytest.importorskip("scipy.sparse")
    first = np.concatenate([[0], np.cumsum(sizes)])
    cost = [0.0] * int(first[-1])
    rows, columns, values, right, left = [], [], [], [], []

    def equal(entries: list[tuple[int, float]], to: float) -> None:
        for column, value in entries:
            rows.append(len(right))
            columns.append(column)
            values.append(value)
        right.append(to)
        left.append(to)

    def entries_of(term: CostTerm, costs: Sequence[float]) -> list[int]:
        at = np.arange(term.table.size).reshape(term.table.shape) + len(cost)
        cost.extend(costs)
        for place, v in enumerate(term.variables):
            for i in range(sizes[v]):
                entries = np.take(at, i, axis=place).ravel()
                equal([(int(e), 1.0) for e in entries] + [(int(first[v]) + i, -1.0)], 0.0)
        return [int(e) for e in at.ravel()]

    for v, n in enumerate(sizes):
        equal([(int(first[v]) + i, 1.0) for i in range(n)], 1.0)
    for term in terms:
        entries_of(term, term.table.ravel().tolist())
    for load in loads:
        taken: list[tuple[int, float]] = []
        for term in load:
            taken += zip(entries_of(term, [0.0] * term.table.size), term.table.ravel().tolist())
        equal(taken, limit)
        left[-1] = -np.inf
    matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(right), len(cost)))
    whole = np.zeros(len(cost))
    whole[: int(first[-1])] = 1
    solved = optimize.milp(
        cost, constraints=optimize.LinearConstraint(matrix, left, right),
        integrality=whole, bounds=optimize.Bounds(0, 1),
    )  # fmt: skip
    assert solved.success, solved.message
    return float(solved.fun)


def ladder(
    rng: np.random.Generator, rungs: int, sides: int, most: int
) -> tuple[list[int], list[CostTerm]]:
    """Draw rows of variables, each with tables to its neighbours in the row and to the next row, as layers have."""
    sizes = [int(n) for n in rng.integers(2, most + 1, rungs * sides)]
    scopes = [(v, v + 1) for v in range(rungs * sides) if (v + 1) % sides]
    scopes += [(v, v + sides) for v in range((rungs - 1) * sides)]
    terms = [CostTerm(s, rng.random([sizes[v] for v in s])) for s in scopes]
    return sizes, terms + [CostTerm((v,), rng.random(n)) for v, n in enumerate(sizes)]


@settings(max_examples=examples(8))
@given(st.integers(0, 1 << 30))
def test_wide_problems_are_solved_to_the_optimum(seed: int) -> None:
    """Elimination alone would take tables of 5^5 entries: the relaxation leaves few choices, or a bound that holds."""
    sizes, terms = ladder(np.random.default_rng(seed), 5, 4, 5)
    whole, small = minimise(sizes, terms), minimise(sizes, terms, most_entries=400)
    assert whole.gap == 0 and whole.cost == pytest.approx(integer_program(sizes, terms), rel=1e-6)
    assert small.bound <= whole.cost * (1 + 1e-9) and whole.cost <= small.cost <= 1.02 * whole.cost
    assert small == minimise(sizes, terms, most_entries=400)


@settings(max_examples=examples(40))
@given(st.integers(0, 1 << 30))
def test_what_repeats_is_counted_once(seed: int) -> None:
    """Layers beside the same three variables, by the same tables, are one; all choose what is best for one."""
    rng = np.random.default_rng(seed)
    sizes, layers = [int(n) for n in rng.integers(2, 5, 3)], int(rng.integers(2, 6))
    arm, tip = (int(n) for n in rng.integers(2, 5, 2))
    hubs = [rng.random((sizes[hub], arm)) for hub in range(3)]
    end = rng.random((arm, tip))
    terms = []
    for layer in range(layers):
        v = 3 + 2 * layer
        sizes += [arm, tip]
        terms += [CostTerm((hub, v), hubs[hub]) for hub in range(3)] + [CostTerm((v, v + 1), end)]
    work = Elimination(sizes, terms)
    work.run(range(4, len(sizes), 2))
    assert work.join_alike() and len(work.left) == 4 and not work.join_alike()
    found = minimise(sizes, terms)
    best = min(
        layers * min(sum(t[h, a] for t, h in zip(hubs, at)) + end[a].min() for a in range(arm))
        for at in product(*map(range, sizes[:3]))
    )
    assert found.gap == 0 and found.cost == pytest.approx(best, rel=1e-9)
    assert found.cost == pytest.approx(cost_of(found.picks, terms), rel=1e-12)


@settings(max_examples=examples(40))
@given(st.integers(0, 1 << 30))
def test_kinds_of_choices_bound_what_is_found(seed: int) -> None:
    """Whatever is said to be alike, no choices cost less than the bound; the same numbers have the same answer."""
    rng = np.random.default_rng(seed)
    sizes, terms = ladder(rng, 4, 3, 6)
    alike = [rng.integers(0, int(rng.integers(1, n + 1)), n) for n in sizes]
    whole = minimise(sizes, terms)
    found = minimise(sizes, terms, most_entries=100, alike=lambda: alike)
    assert found.bound <= whole.cost * (1 + 1e-9) and whole.cost <= found.cost * (1 + 1e-9)
    assert found.cost == pytest.approx(cost_of(found.picks, terms), rel=1e-12)
    assert found == minimise(sizes, terms, most_entries=100, alike=lambda: alike)
    alone = minimise(sizes, terms, most_entries=100, alike=lambda: [np.arange(n) for n in sizes])
    assert alone.bound <= whole.cost * (1 + 1e-9) and whole.cost <= alone.cost * (1 + 1e-9)


@settings(max_examples=examples(12))
@given(st.integers(0, 1 << 30))
def test_an_integer_program_finds_the_same_least_cost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(2, 7, 14)]
    scopes = [(v,) for v in range(14)] + [(v, v + 1) for v in range(13)]
    scopes += [tuple(sorted(map(int, rng.permutation(14)[:2]))) for _ in range(8)]
    terms = [CostTerm(s, rng.random([sizes[v] for v in s])) for s in scopes]
    found = minimise(sizes, terms)
    assert found.gap == 0
    assert found.cost == pytest.approx(integer_program(sizes, terms), rel=1e-6)


LAYOUTS = [
    *("[_, _]", "[x, _]", "[_, x]", "[x*y, _]", "[y*x, _]", "[x, y]", "[y, x]", "[_, y]"),
    *("[_, _] +sum(x)", "[y, _] +sum(x)", "[_, _] +sum(x, y)", "[_, _] +sum(y)"),
]


@pytest.mark.parametrize(
    "mesh", [Mesh(x=4, y=2), Mesh(Axis("x", 2, Link(1e-5, 1e-9)), Axis("y", 4))]
)
def test_moves_are_priced_as_the_planner_prices_them(mesh: Mesh) -> None:
    shape, prices = (1024, 2048), MachinePrices()
    for source, target in product(map(Layout.parse, LAYOUTS), repeat=2):
        plan = plan_redistribute(source, target, mesh, shape, 4)
        price = prices.moves([source], [target], mesh, 4 * 1024 * 2048)[0, 0]
        assert price == pytest.approx(plan.seconds, rel=0.02, abs=1e-9), f"{source} -> {target}"


def test_moves_of_three_axes_are_priced_near_what_the_planner_takes() -> None:
    mesh, shape, prices = Mesh(x=2, y=2, z=2), (1024, 2048), MachinePrices()
    texts = [
        "[_, _]",
        "[x*y*z, _]",
        "[z, x*y]",
        "[x, y]",
        "[_, _] +sum(x, y, z)",
        "[z, _] +sum(x, y)",
    ]
    for source, target in product(map(Layout.parse, texts), repeat=2):
        plan = plan_redistribute(source, target, mesh, shape, 4)
        price = prices.moves([source], [target], mesh, 4 * 1024 * 2048)[0, 0]
        assert plan.seconds / 4 <= price <= 2 * plan.seconds, f"{source} -> {target}"


def test_moves_that_are_priced_together_cost_what_each_does() -> None:
    """Pairs of layouts with one price are planned once: by what changes, whichever dims and axes both have."""
    texts = [
        *("[_, _, _]", "[x, _, _]", "[_, z, x]", "[z, x*y, _]", "[x, y, z]", "[_, w, _]"),
        *("[y*x, _, _]", "[_, x*y, w]", "[x, _, _] +sum(y)", "[_, _, z] +sum(x, y)", "[_, y, _]"),
    ]
    layouts = [Layout.parse(text) for text in texts]
    mesh, profile = Mesh(Axis("x", 2, Link(1e-5, 1e-9)), Axis("y", 3), w=1, z=2), SHARED_MEMORY
    once, each = MoveRates(mesh, profile).between(layouts, layouts)
    for (i, source), (j, target) in product(enumerate(layouts), repeat=2):
        alone = MoveRates(mesh, profile).between([source], [target])
        assert (once[i, j], each[i, j]) == (alone[0][0, 0], alone[1][0, 0]), f"{source} -> {target}"
        assert (once[i, j] + each[i, j] == 0) == (
            texts[i].replace("w", "_") == texts[j].replace("w", "_")
        )


def test_threads_price_moves_as_one_does() -> None:
    rows = product(["_", "x", "y", "z", "x*y"], repeat=4)
    texts = ["[" + ", ".join(row) + "]" for row in rows]
    layouts = [Layout.parse(t) for t in texts if all(t.count(axis) < 2 for axis in "xyz")][:90]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    try:
        for size in range(2, 5):
            mesh = Mesh(x=size, y=2, z=2)

            def priced(first: int, mesh: Mesh = mesh) -> Numbers:
                some = layouts[first:] + layouts[:first]
                parts = [some[at : at + 9] for at in range(0, len(some), 9)]
                tables = [MachinePrices().moves(p, p, mesh, 1 << 20).ravel() for p in parts]
                return np.concatenate(tables)

            firsts = [9 * n for n in range(8)]
            with ThreadPoolExecutor(4) as threads:
                found = list(threads.map(priced, firsts))
            for first, prices in zip(firsts, found):
                np.testing.assert_array_equal(prices, priced(first))
    finally:
        sys.setswitchinterval(interval)


def test_variables_of_one_choice_do_not_fill_tables() -> None:
    """A value read by a hundred ops that have one way to run is a table of one axis."""
    sizes = [3, *[1] * 100]
    terms = [CostTerm((0, v), np.array([[3.0], [1.0], [2.0]])) for v in range(1, 101)]
    found = minimise(sizes, terms)
    assert (found.picks[0], found.cost, found.gap) == (1, 100.0, 0.0)
    single = [CostTerm((v, v + 1), np.ones((1, 1))) for v in range(1, 100)]
    every = minimise(sizes, [*terms, *single, CostTerm(tuple(range(1, 60)), np.ones((1,) * 59))])
    assert (every.picks[0], every.cost) == (1, 200.0)
