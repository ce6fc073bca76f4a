"""Defer sums over ranks: where the readers of a partial sum are linear in it, add up after them if that is cheaper.

`x @ w1 + y @ w2`, both contracted over tp, adds up once instead of twice. The sums that may wait form a tree: each
partial result is read once, by an op in the same region that is a sum of products with one partial operand in each
(`Rule.monomials`). Each node, from the leaves to the root, knows what it costs to add up at it, or before it; a sum
waits only where that saves bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from meshweave.layout.factors import Axes, Rule, pieces
from meshweave.layout.layout import Layout, Partial
from meshweave.layout.mesh import Mesh
from meshweave.plan.propagation.propagate import Decision, Graph


@dataclass(frozen=True)
class _Node:
    """Describe a value that may be left a partial sum.

    op: what makes it; operands: which of its operands are then partial sums, of which those in `inner` are nodes.
    """

    value: int
    op: int
    axes: Axes
    operands: tuple[int, ...]
    inner: tuple["_Node", ...]


def defer(
    graph: Graph, layouts: Sequence[Layout | None], decisions: Sequence[Decision], mesh: Mesh
) -> tuple[list[Layout | None], list[Decision]]:
    """Return the layouts and decisions of `propagate`, with partial sums handed on where that moves fewer bytes."""
    work = _Deferral(graph, list(layouts), list(decisions))
    work.find()
    for node in work.chosen(mesh):
        work.hand_on(node)
    return work.layouts, work.decisions


def deferred(
    graph: Graph,
    layouts: Sequence[Layout | None],
    decisions: Sequence[Decision],
    meshes: Sequence[Mesh],
) -> list[tuple[int, ...]]:
    """Return, for each mesh, the numbers of the values at which `defer` adds up; equal lists mean equal results."""
    work = _Deferral(graph, list(layouts), list(decisions))
    work.find()
    return [tuple(node.value for node in work.chosen(mesh)) for mesh in meshes]


class _Deferral:
    """Find the trees of sums that may wait, and choose where to add up."""

    def __init__(
        self, graph: Graph, layouts: list[Layout | None], decisions: list[Decision]
    ) -> None:
        self.graph, self.layouts, self.decisions = graph, layouts, decisions
        self.nodes: dict[int, _Node] = {}
        self.made: list[_Node] = []  # all of them, each after those it is made of
        self.reads = [0] * len(layouts)
        for rule, values in zip(graph.rule_of, graph.values_of):
            for v in values[: len(graph.rules[rule].operands)]:
                if v >= 0:
                    self.reads[v] += 1

    def find(self) -> None:
        """Find the trees, in program order: `nodes` are the roots."""
        region: dict[int, int] = {}
        for op, values in enumerate(self.graph.values_of):
            rule = self.graph.rules[self.graph.rule_of[op]]
            made = values[len(rule.operands) :]
            if len(made) != 1 or made[0] < 0 or self.layouts[made[0]] is None:
                continue
            node = self._leaf(op, made[0]) or self._inner(op, rule, region)
            if node is not None:
                self.made.append(node)
                self.nodes[made[0]], region[made[0]] = node, self.graph.region_of[op]

    def chosen(self, mesh: Mesh) -> list[_Node]:
        """Return the nodes at which to add up what comes before, each tree decided from its root."""
        sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes}
        costs: dict[int, tuple[float, float]] = {}  # to add up at a node, and before it instead
        for node in self.made:
            before = [min(costs[inner.value]) for inner in node.inner]
            costs[node.value] = self._bytes(node, sizes), sum(before) if before else inf
        found: list[_Node] = []
        waiting = list(self.nodes.values())
        while waiting:
            node = waiting.pop()
            here, before_it = costs[node.value]
            if here < before_it and node.inner:
                found.append(node)
            else:
                waiting += node.inner
        return found

    def _leaf(self, op: int, value: int) -> _Node | None:
        """Return the node of an op that leaves a partial sum itself."""
        ran = self.decisions[op].results[0]
        assert ran is not None
        if len(ran.partial) != 1 or ran.partial[0].kind != "sum":
            return None
        axes = ran.partial[0].axes
        return _Node(value, op, axes, (), ())

    def _inner(self, op: int, rule: Rule, region: dict[int, int]) -> _Node | None:
        """Return the node of an op that is linear in operands that may be left partial sums."""
        values, decision = self.graph.values_of[op], self.decisions[op]
        if not any(v in self.nodes for v in values[: len(rule.operands)]):
            return None
        if any(x is not None and x.partial for x in (*decision.operands, *decision.results)):
            return None
        inner = [
            (i, self.nodes[v])
            for i, v in enumerate(values[: len(rule.operands)])
            if v in self.nodes
            and region[v] == self.graph.region_of[op]
            and self._waits(self.nodes[v], decision.operands[i])
        ]
        axes = {node.axes for _, node in inner}
        used = {
            a for x in (*decision.operands, *decision.results) if x is not None for a in x.used_axes
        }
        if len(axes) != 1 or used & set(inner[0][1].axes):
            return None
        chosen = linear_in(rule, {i for i, _ in inner})
        if chosen is None:
            return None
        nodes = tuple(self.nodes.pop(node.value) for _, node in inner)
        return _Node(values[-1], op, nodes[0].axes, chosen, nodes)

    def _waits(self, node: _Node, read: Layout | None) -> bool:
        """Tell whether the value of `node` may be handed on as a partial sum to its one reader.

        read: the layout in which that reader reads it.
        """
        spec, ran = self.graph.specs[node.value], self.decisions[node.op].results[0]
        free = spec is not None and not spec.fixed and not spec.partial
        return (
            free
            and ran is not None
            and self.reads[node.value] == 1
            and ran.without_partial() == self.layouts[node.value] == read
        )

    def _bytes(self, node: _Node, sizes: dict[str, int]) -> float:
        """Return the bytes a rank receives to add up the value of `node` and bring it to its layout."""
        op, value, axes = node.op, node.value, node.axes
        rule, ran, wanted = (
            self.graph.rules[self.graph.rule_of[op]],
            self.decisions[op].results[0],
            self.layouts[value],
        )
        assert ran is not None and wanted is not None
        if set(wanted.partial_axes("sum")) >= set(axes):
            return 0.0
        cut = [a for dim in range(ran.ndim) for a in ran.axes_of(dim)]
        local = rule.nbytes[-1] / pieces(cut, sizes)
        group = pieces(axes, sizes)
        scattered = {a for dim in range(wanted.ndim) for a in wanted.axes_of(dim)} >= set(axes)
        return local * (group - 1) / group * (1 if scattered else 2)

    def hand_on(self, node: _Node) -> None:
        """Let the op of `node`, and all below it, work on partial sums."""
        pending = (Partial("sum", node.axes),)
        waiting = [node]
        while waiting:
            node = waiting.pop()
            decision = self.decisions[node.op]
            operands = tuple(
                x.with_partial(pending) if x is not None and i in node.operands else x
                for i, x in enumerate(decision.operands)
            )
            results = tuple(
                x.with_partial(pending) if x is not None else x for x in decision.results
            )
            self.decisions[node.op] = Decision(operands, results)
            for inner in node.inner:
                layout = self.layouts[inner.value]
                assert layout is not None
                self.layouts[inner.value] = layout.with_partial(pending)
                if inner.inner:
                    waiting.append(inner)


def linear_in(rule: Rule, partial: set[int]) -> tuple[int, ...] | None:
    """Return the operands that must be partial sums for the result to be one, given that those of `partial` are.

    They are these and addends (a whole one becomes a partial sum for free: the first rank keeps it). Returns None when
    the op is not linear in them.
    """
    chosen = set(partial)
    for product in rule.monomials:
        if not product & chosen:
            if len(product) != 1:
                return None
            chosen |= product
    if not rule.monomials or any(len(product & chosen) != 1 for product in rule.monomials):
        return None
    return tuple(sorted(chosen)) if all(rule.operands[i] is not None for i in chosen) else None
