"""Let ops run where their values lie: in cyclic, uneven or irregular dims instead of blocks over the same axes.

`propagate` decides which axes cut which dim, and takes the pieces for blocks. What an op does along a factor does not
depend on the order of the indices, as long as all its tensors have them in the same: so it may run on any other
*arrangement* of the dim over these axes. Dims that are one factor of some op belong together, from op to op; of each
such family the arrangement is chosen that leaves the fewest bytes to move where it meets the layouts that were said.

Scans need their elements in order, reshapes take digits apart, and values that the user put in blocks stay there: there
a family ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshweave.layout.factors import FOUND, IN_ORDER, Rule
from meshweave.layout.layout import Factor, Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import REST, AxisFactor
from meshweave.plan.propagation.propagate import Decision, Graph

_Node = tuple[str, int, int]
"""A dim of a value ("value", number, dim) or a factor of an op ("op", number, factor)."""


@dataclass(frozen=True)
class StatedLayout:
    """Say that the value of this number comes, or is wanted, in a layout that is not in blocks."""

    value: int
    layout: Layout
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class _Arrangement:
    """Hold the factors of a dim, major first, and how it is uneven."""

    factors: tuple[Factor, ...]
    uneven: str = "flat"

    @classmethod
    def of(cls, layout: Layout, dim: int) -> "_Arrangement":
        """Return that of a dim of `layout`."""
        nested = layout.uneven == "nested" and len(layout.axes_of(dim)) > 1
        return cls(layout.dims[dim], "nested" if nested else "flat")

    @property
    def is_block(self) -> bool:
        """Tell whether it is what `propagate` takes it for."""
        *major, last = self.factors
        plain = all(isinstance(f, AxisFactor) and f.ref == str(f) for f in major)
        return plain and last == REST and self.uneven == "flat"

    def is_even(self, mesh: Mesh, size: int) -> bool:
        """Tell whether no rank has padding of a dim of `size`."""
        return Layout((self.factors,), uneven=self.uneven).is_even(mesh, (size,))


@dataclass
class _Family:
    """Gather what speaks for each arrangement, in bytes; None stands for blocks.

    even: whether some op of it may not run on padding.
    """

    bytes: dict[_Arrangement | None, int] = field(default_factory=dict)
    even: bool = False
    size: int = 0

    def add(self, arrangement: _Arrangement | None, nbytes: int) -> None:
        """Count a meeting with this arrangement."""
        self.bytes[arrangement] = self.bytes.get(arrangement, 0) + nbytes

    def best(self, mesh: Mesh) -> _Arrangement | None:
        """Return the arrangement that keeps most bytes where they are; of equal ones blocks, then the first."""
        chosen, most = None, self.bytes.get(None, 0)
        for arrangement, nbytes in self.bytes.items():
            if arrangement is None or nbytes <= most:
                continue
            if not self.even or arrangement.is_even(mesh, self.size):
                chosen, most = arrangement, nbytes
        return chosen


def arrange(
    graph: Graph,
    layouts: Sequence[Layout | None],
    decisions: Sequence[Decision],
    said: Sequence[StatedLayout],
    mesh: Mesh,
) -> tuple[list[Layout | None], list[Decision]]:
    """Return the layouts and decisions of `propagate` in the arrangements that move the fewest bytes.

    said: the values that have a layout beyond blocks at an edge of the program; without any nothing changes.
    """
    if not said:
        return list(layouts), list(decisions)
    work = _Arranging(graph, layouts, decisions, {s.value for s in said})
    work.join()
    return work.apply(work.chosen(said, mesh))


class _Arranging:
    """Join dims and factors to families."""

    def __init__(
        self,
        graph: Graph,
        layouts: Sequence[Layout | None],
        decisions: Sequence[Decision],
        said: set[int],
    ) -> None:
        self.graph, self.layouts, self.decisions, self.said = graph, layouts, decisions, said
        self.in_order = [_in_order(rule) for rule in graph.rules]
        self.parent: dict[_Node, _Node] = {}
        self.blocked: list[tuple[_Node, int]] = []  # nodes that meet blocks, and the bytes there
        self.unsafe: list[_Node] = []  # factors of ops that may not run on padding

    def join(self) -> None:
        """Join what has to be arranged alike; note where it meets what has to be in blocks."""
        for op, t, d, axes in self._cut_dims():
            rule, value = self._rule(op), self.graph.values_of[op][t]
            inside, outside = self._factor(op, t, d), self._outside(value, d, axes)
            if inside is not None and not rule.padding_safe:
                self.unsafe.append(inside)
            if inside is not None and outside is not None:
                self.parent[self.root(inside)] = self.root(outside)
            elif value >= 0 and (node := inside or outside) is not None:
                self.blocked.append((node, rule.nbytes[t]))

    def root(self, node: _Node) -> _Node:
        """Return the node that stands for the family of `node`."""
        while (above := self.parent.get(node, node)) != node:
            self.parent[node] = self.parent.get(above, above)
            node = above
        return node

    def chosen(self, said: Sequence[StatedLayout], mesh: Mesh) -> dict[_Node, _Arrangement]:
        """Return the arrangement of each family, by its root, that is not to lie in blocks."""
        families: dict[_Node, _Family] = {}
        for each in said:
            inside = self.layouts[each.value]
            assert inside is not None
            for d, size in enumerate(each.shape):
                if inside.axes_of(d) and inside.axes_of(d) == each.layout.axes_of(d):
                    family = families.setdefault(self.root(("value", each.value, d)), _Family())
                    arrangement, family.size = _Arrangement.of(each.layout, d), size
                    family.add(None if arrangement.is_block else arrangement, each.nbytes)
        for node, nbytes in self.blocked:
            if (root := self.root(node)) in families:
                families[root].add(None, nbytes)
        for node in self.unsafe:
            if (root := self.root(node)) in families:
                families[root].even = True
        best = {root: family.best(mesh) for root, family in families.items()}
        found = {root: arrangement for root, arrangement in best.items() if arrangement is not None}
        while clash := self._clash(found):
            del found[clash]
        return found

    def _clash(self, chosen: dict[_Node, _Arrangement]) -> _Node | None:
        """Return a nested family of which a tensor has another dim over several axes, a flat one: it cannot be both."""
        if all(arrangement.uneven == "flat" for arrangement in chosen.values()):
            return None
        for layout, nodes in self._tensors():
            several = [d for d in range(layout.ndim) if len(layout.axes_of(d)) > 1]
            roots = [node and self.root(node) for node in (nodes[d] for d in several)]
            nested = [r for r in roots if r in chosen and chosen[r].uneven == "nested"]
            if nested and len(nested) < len(roots):
                return nested[0]
        return None

    def _tensors(self) -> Iterator[tuple[Layout, list[_Node | None]]]:
        """Yield the layout of each value and of each operand and result, with the nodes of its dims."""
        for v, layout in enumerate(self.layouts):
            if layout is not None:
                yield layout, [("value", v, d) for d in range(layout.ndim)]
        for op, decision in enumerate(self.decisions):
            for t, layout in enumerate((*decision.operands, *decision.results)):
                if layout is not None:
                    yield layout, [self._factor(op, t, d) for d in range(layout.ndim)]

    def apply(
        self, chosen: dict[_Node, _Arrangement]
    ) -> tuple[list[Layout | None], list[Decision]]:
        """Return the layouts and decisions with what was chosen."""
        layouts = [
            self._arranged(layout, [self._of(chosen, ("value", v, d)) for d in range(layout.ndim)])
            if layout is not None
            else None
            for v, layout in enumerate(self.layouts)
        ]
        return layouts, [self._decision(op, chosen) for op in range(len(self.decisions))]

    def _decision(self, op: int, chosen: dict[_Node, _Arrangement]) -> Decision:
        decision = self.decisions[op]
        found = []
        for t, layout in enumerate((*decision.operands, *decision.results)):
            if layout is not None:
                nodes = [self._factor(op, t, d) for d in range(layout.ndim)]
                layout = self._arranged(layout, [n and self._of(chosen, n) for n in nodes])
            found.append(layout)
        n = len(decision.operands)
        new = Decision(tuple(found[:n]), tuple(found[n:]))
        return decision if new == decision else new

    def _of(self, chosen: dict[_Node, _Arrangement], node: _Node) -> _Arrangement | None:
        return chosen.get(self.root(node))

    @staticmethod
    def _arranged(layout: Layout, rows: Sequence[_Arrangement | None]) -> Layout:
        """Return `layout` with the given dims arranged so, where they are cut."""
        if not any(row is not None and layout.axes_of(d) for d, row in enumerate(rows)):
            return layout
        dims = tuple(
            row.factors if row is not None and layout.axes_of(d) else layout.dims[d]
            for d, row in enumerate(rows)
        )
        uneven = {row.uneven for row in rows if row is not None}
        return Layout(dims, layout.partial, None, "nested" if "nested" in uneven else "flat")

    def _rule(self, op: int) -> Rule:
        return self.graph.rules[self.graph.rule_of[op]]

    def _cut_dims(self) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
        """Yield (op, tensor, dim, axes) for each dim that an op runs on in pieces."""
        for op, decision in enumerate(self.decisions):
            for t, layout in enumerate((*decision.operands, *decision.results)):
                if layout is not None and layout.used_axes:
                    yield from (
                        (op, t, d, axes) for d in range(layout.ndim) if (axes := layout.axes_of(d))
                    )

    def _outside(self, value: int, dim: int, axes: tuple[str, ...]) -> _Node | None:
        """Return the node of a value's dim; None where it lies in other axes, or in blocks whatever its readers do."""
        if value < 0 or (layout := self.layouts[value]) is None or layout.axes_of(dim) != axes:
            return None
        spec = self.graph.specs[value]
        free = value in self.said or spec is None or not spec.fixed
        return ("value", value, dim) if free else None

    def _factor(self, op: int, tensor: int, dim: int) -> _Node | None:
        """Return the node of the factor that a dim of an op is; None where its indices must be in order."""
        dims = self._rule(op).tensors[tensor]
        assert dims is not None
        if len(dims[dim]) != 1 or dims[dim][0] in self.in_order[self.graph.rule_of[op]]:
            return None
        return ("op", op, dims[dim][0])


def _in_order(rule: Rule) -> set[int]:
    """Return the factors whose indices must be in order: of scans and windows, say, and of dims that are shared."""
    rows = [dim for dims in rule.tensors if dims is not None for dim in dims]
    shared = {f for dim in rows if len(dim) > 1 for f in dim}
    apart = [*[(t, d) for t, d, _ in rule.windows], *rule.mirrored]
    shared |= {(rule.tensors[t] or ())[d][0] for t, d in apart}
    kinds = {kind for kind in IN_ORDER if kind != FOUND}
    return shared | {f for f, factor in enumerate(rule.factors) if factor.kind in kinds}
