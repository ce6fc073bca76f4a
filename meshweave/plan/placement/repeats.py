"""Find parts of a graph that are the same and read the same values: what is best for one is best for all of them.

The updates of a deep model's parameters are such parts: between what the layers' one function takes and what its
gradient gives lie as many rows of equal ops as there are layers. Values and ops get colours; those that differ in what
is around them get different ones, until nothing changes [Weisfeiler and Leman, 1968]. Where what has its own colour is
taken out, the rest falls into parts. Parts in which each colour occurs once are the same where their colours are, and
attached to the same values, so their costs depend on the same choices and on nothing else that differs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshweave.plan.placement.terms import Places
from meshweave.plan.propagation.propagate import Graph

MOST_ROUNDS = 64
"""Rounds in which colours change, or parts are put together, at most; else nothing repeats."""

MOST_TRIES = 8
"""Times that parts in which a colour comes twice are taken for parts of their own."""

Colours = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class FoldedGraph:
    """Hold a graph without what repeats.

    graph: its values are variables. values, ops: of each value and op of the whole graph the number of the one that
    stands for it. kept, first: of each value and op that is left the number in the whole graph. counts: for how many
    ops each stands.
    """

    graph: Graph
    values: Places
    ops: Places
    kept: Places
    first: Places
    counts: Places

    @staticmethod
    def none(graph: Graph, variables: Sequence[int]) -> "FoldedGraph":
        """Return a graph of which all is left, over variables."""
        numbers = [*variables, -1]
        rows = [tuple([numbers[v] for v in row]) for row in graph.values_of]
        ops = np.arange(len(graph.rule_of))
        whole = replace(graph, values_of=rows, specs=[*graph.specs])
        kept = np.arange(len(graph.specs))
        values, counts = np.array(variables, np.intp), np.ones(len(ops), np.intp)
        return FoldedGraph(whole, values, ops, kept, ops, counts)

    @staticmethod
    def of(
        graph: Graph, variables: Sequence[int], values: Sequence[Hashable], ops: Sequence[Hashable]
    ) -> "FoldedGraph":
        """Return a graph without the parts that repeat.

        variables: of each value the one whose layout it has. values, ops: what else tells two of them apart.
        """
        links = _Links.of(graph, variables)
        colours = np.array([*_numbered(values), *_numbered(ops)], np.uint64)
        for _ in range(MOST_TRIES):
            found = links.refined(colours)
            parts = None if found is None else links.parts(found)
            if found is None or parts is None:
                break
            once = np.unique(parts.astype(np.int64) * (found.max() + 1) + found, return_counts=True)
            twice = np.unique(once[0][once[1] > 1] // (found.max() + 1))
            odd = np.isin(parts, twice)
            if not odd.any():
                return _without(graph, variables, found, parts)
            colours = found.astype(np.uint64)
            colours[odd] = found.max() + 1 + np.flatnonzero(odd)
        return FoldedGraph.none(graph, variables)


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


@dataclass(frozen=True)
class _Links:
    """Hold which op reads or makes which value where: values come first, then ops, then a value that stands for none.

    value, op: of each link, in the order of ops. place: of it among the op's. begins: the first link of each op.
    by_value: links in the order of their values; heads: the first of each value that has any; linked: these.
    """

    values: int
    value: Places
    op: Places
    place: Colours
    begins: Places
    by_value: Places
    heads: Places
    linked: Places

    @staticmethod
    def of(graph: Graph, variables: Sequence[int]) -> "_Links":
        """Return the links of a graph."""
        counts = [len(row) for row in graph.values_of]
        nobody = len(graph.specs) + len(counts)
        flat = [variables[v] if v >= 0 else nobody for row in graph.values_of for v in row]
        value, begins = np.array(flat, np.intp), np.cumsum([0, *counts])[:-1]
        op = np.repeat(np.arange(len(counts)), counts)
        place = (np.arange(len(flat)) - begins[op]).astype(np.uint64)
        by_value = np.argsort(value, kind="stable")
        heads = np.flatnonzero(np.diff(value[by_value], prepend=-1))
        linked = value[by_value][heads]
        return _Links(len(graph.specs), value, op, place, begins, by_value, heads, linked)

    def refined(self, colours: Colours) -> Places | None:
        """Return numbers of colours, different for what has different things around it; None if that takes long."""
        count, colours = 0, np.append(_mixed(colours), np.uint64(0))
        for _ in range(MOST_ROUNDS):
            seen = _mixed(colours[self.value] + _mixed(self.place))
            ops = colours[self.values : -1] + np.add.reduceat(seen, self.begins)
            colours[self.values : -1] = _mixed(ops)
            back = _mixed(colours[self.values + self.op] + _mixed(self.place))
            sums = np.add.reduceat(back[self.by_value], self.heads)
            colours[self.linked] = _mixed(colours[self.linked] + sums)
            colours[-1] = 0
            numbers = np.unique(colours[:-1], return_inverse=True)[1].ravel()
            if numbers.max() + 1 == count:
                return numbers
            count = int(numbers.max()) + 1
        return None

    def parts(self, colours: Places) -> Places | None:
        """Return the least number of the part of each value and op; its own where nothing has its colour.

        None if that takes long.
        """
        alone = np.append(np.bincount(colours)[colours] == 1, True)
        label = np.arange(len(alone))
        nobody, op = len(alone), self.values + self.op
        for _ in range(MOST_ROUNDS):
            before = label.copy()
            shown = np.where(alone, nobody, label)
            least = np.minimum.reduceat(shown[self.value], self.begins)
            label[self.values : -1] = np.minimum(label[self.values : -1], least)
            label = np.where(alone, np.arange(len(alone)), label)
            shown = np.where(alone, nobody, label)
            least = np.minimum.reduceat(shown[op][self.by_value], self.heads)
            label[self.linked] = np.minimum(label[self.linked], least)
            label = np.where(alone, np.arange(len(alone)), label)
            label = label[label]
            if np.array_equal(label, before):
                return label[:-1]
        return None


def _mixed(numbers: Colours) -> Colours:
    """Return numbers that look random, the same for the same ones [Steele, Lea, Flood, SplitMix, OOPSLA 2014]."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Colours = z ^ (z >> np.uint64(31))
    return found


def _without(graph: Graph, variables: Sequence[int], colours: Places, parts: Places) -> FoldedGraph:
    """Return a graph with one of the parts of each colour."""
    count = len(graph.specs)
    order = np.lexsort((parts, colours))
    heads = np.flatnonzero(np.diff(colours[order], prepend=-1))
    stands = np.empty(len(colours), np.intp)
    stands[order] = np.repeat(order[heads], np.diff(np.append(heads, len(order))))
    values, ops = stands[:count][np.asarray(variables, np.intp)], stands[count:] - count
    kept, first = np.unique(values), np.unique(ops)
    values, ops = np.searchsorted(kept, values), np.searchsorted(first, ops)
    numbers = [*values.tolist(), -1]
    made = replace(
        graph,
        rule_of=[graph.rule_of[op] for op in first],
        region_of=[graph.region_of[op] for op in first],
        values_of=[tuple([numbers[v] for v in graph.values_of[op]]) for op in first],
        specs=[graph.specs[v] for v in kept],
    )
    return FoldedGraph(made, values, ops, kept, first, np.bincount(ops))
