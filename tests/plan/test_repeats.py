"""What repeats in a graph counts once, and what is best for one part is best for all: on graphs that are drawn."""

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from meshweave.plan.placement.minimise import minimise
from meshweave.plan.placement.repeats import FoldedGraph
from meshweave.plan.placement.terms import CostTerm
from meshweave.plan.propagation.propagate import Graph, Spec


def drawn(rng: np.random.Generator) -> tuple[Graph, list[int]]:
    """Draw hubs and several parts that are the same, some attached to other hubs, then links between any values.

    Returns the graph, of which the rule of an op is its kind, and how many choices each value has.
    """
    graph, sizes = Graph(), list[int]()

    def value(size: int) -> int:
        sizes.append(size)
        return graph.add_value(Spec.unknown(1))

    hubs = [value(int(rng.integers(1, 4))) for _ in range(int(rng.integers(1, 4)))]
    for kind in range(int(rng.integers(1, 3))):
        inner = [int(n) for n in rng.integers(1, 4, int(rng.integers(1, 4)))]
        ends = len(hubs) + len(inner)
        links = [
            tuple(int(v) for v in rng.integers(0, ends, 2)) for _ in range(int(rng.integers(1, 5)))
        ]
        for _ in range(int(rng.integers(1, 5))):
            names = [*(hubs if rng.random() < 0.8 else hubs[::-1]), *map(value, inner)]
            for number, (a, b) in enumerate(links):
                graph.add_op(10 * kind + number, (names[a], -1 if a == b else names[b]))
    for _ in range(int(rng.integers(0, 3))):
        a, b = (int(v) for v in rng.integers(0, len(sizes), 2))
        graph.add_op(100, (a, -1 if a == b else b))
    return graph, sizes


def costs(graph: Graph, sizes: list[int], counts: list[int], seed: int) -> list[CostTerm]:
    """Return a table for each op, the same for ops of one kind over as many choices."""
    found = []
    for rule, values, count in zip(graph.rule_of, graph.values_of, counts):
        scope = tuple(v for v in values if v >= 0)
        shape = [sizes[v] for v in scope]
        table = np.random.default_rng([seed, rule, *shape]).random(shape)
        if len(set(scope)) < len(scope):
            scope, table = scope[:1], np.diagonal(table)
        found.append(CostTerm(scope, count * table))
    return found


@settings(max_examples=examples(150))
@given(st.integers(0, 1 << 30))
def test_what_repeats_costs_as_much_once_as_all_of_it(seed: int) -> None:
    graph, sizes = drawn(np.random.default_rng(seed))
    found = FoldedGraph.of(graph, range(len(sizes)), sizes, graph.rule_of)
    # Each op is the one that stands for it, of the values that stand for its values.
    numbers = [*found.values.tolist(), -1]
    for op, values in enumerate(graph.values_of):
        stands = int(found.ops[op])
        assert found.graph.values_of[stands] == tuple(numbers[v] for v in values)
        assert found.graph.rule_of[stands] == graph.rule_of[op]
    assert int(found.counts.sum()) == len(graph.rule_of)
    whole = minimise(sizes, costs(graph, sizes, [1] * len(graph.rule_of), seed))
    left = [sizes[v] for v in found.kept]
    once = minimise(left, costs(found.graph, left, found.counts.tolist(), seed))
    assert whole.gap == once.gap == 0 and once.cost == pytest.approx(whole.cost, rel=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 50])
def test_updates_of_many_layers_are_those_of_one(layers: int) -> None:
    """Between what a function takes and what its gradient gives; two that read each other are not the same."""
    graph = Graph()
    taken, given_, odd = (graph.add_value(Spec.unknown(1)) for _ in range(3))
    for _ in range(layers):
        old, step, new = (graph.add_value(Spec.unknown(1)) for _ in range(3))
        graph.add_op(0, (old, taken))
        graph.add_op(1, (given_, step))
        graph.add_op(2, (old, step, new))
    graph.add_op(3, (odd, taken))
    count = len(graph.specs)
    found = FoldedGraph.of(graph, range(count), [0] * count, graph.rule_of)
    assert (len(found.kept), len(found.first)) == (6, 4)
    assert sorted(found.counts.tolist()) == sorted([1, layers, layers, layers])
    first, second = 5, 8  # what the first two layers give
    if layers > 1:
        graph.add_op(4, (first, second))
        met = FoldedGraph.of(graph, range(count), [0] * count, graph.rule_of)
        assert met.values[first] != met.values[second] and len(met.kept) == min(layers, 3) * 3 + 3
