"""Let values that are read through windows, made of them, or spread lie where that moves fewer bytes in all.

`propagate` carries axes from op to op, also through windows: where `concat` reads blocks its result is in blocks. That
is dearer than to run whole where the reader wants it whole: windows are moved first, then all of the result. And where
a vector becomes a matrix, it is cheaper to move the vector. So each such value is looked at, with the op that makes it
and the ops that read it, last ones first: whole, and in the blocks that its readers want.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshweave.layout.factors import Rule
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.propagation.propagate import Decision, Graph, Spec, decide_by_cost

_Specs = tuple[Spec | None, ...]

SWEEPS = 4
"""How often all values are looked at, at most; a move of one may let another follow."""


def bring_nearer(
    graph: Graph, layouts: Sequence[Layout | None], decisions: Sequence[Decision], mesh: Mesh
) -> tuple[list[Layout | None], list[Decision]]:
    """Return the layouts and decisions of `propagate`, with some values elsewhere; refines `graph.specs`."""
    work = _Nearer(graph, list(layouts), list(decisions), mesh)
    spread = any(map(_spreads, graph.rules))
    if spread or any(_reads_windows(decision) for decision in decisions):
        for _ in range(SWEEPS):
            if not sum(work.look_at(op) for op in reversed(range(len(decisions)))):
                break
    return work.layouts, work.decisions


def _reads_windows(decision: Decision) -> bool:
    """Tell whether an op reads windows of other indices than those of a block."""
    return any(
        layout.window(d) is not None
        for layout in decision.operands
        if layout is not None
        for d in range(layout.ndim)
    )


def _spreads(rule: Rule) -> bool:
    """Tell whether the result of an op is larger than all that it is made of, as that of a broadcast is."""
    nops = len(rule.operands)
    given = [n for k, n in enumerate(rule.nbytes[:nops]) if k not in rule.inits]
    return len(rule.results) == 1 and bool(given) and sum(given) < rule.nbytes[nops]


class _Nearer:
    """Hold what is chosen by now."""

    def __init__(
        self,
        graph: Graph,
        layouts: list[Layout | None],
        decisions: list[Decision],
        mesh: Mesh,
    ) -> None:
        self.graph, self.layouts, self.decisions, self.mesh = graph, layouts, decisions, mesh
        self.readers: list[list[int]] = [[] for _ in layouts]
        self.makers = [0] * len(layouts)
        # Keyed by identity, as in `propagate`: hashing rules takes longer than most of what is asked.
        self.known: dict[tuple[int, ...], tuple[_Specs, tuple[Decision, float]]] = {}
        self.own: dict[Spec, Spec] = {}
        for op, values in enumerate(graph.values_of):
            count = len(graph.rules[graph.rule_of[op]].operands)
            for v in {v for v in values[:count] if v >= 0}:
                self.readers[v].append(op)
            for v in values[count:]:
                self.makers[v] += v >= 0

    def look_at(self, op: int) -> bool:
        """Move the result of an op, where it may be moved and that is cheaper; return whether it is moved."""
        rule, values = self._rule(op), self.graph.values_of[op]
        made = values[len(rule.operands) :]
        if len(made) != 1 or made[0] < 0 or self.makers[made[0]] != 1:
            return False
        value, ops, spec = made[0], (op, *self.readers[made[0]]), self.graph.specs[made[0]]
        if spec is None or not self._is_free(ops, spec):
            return False
        candidates = [
            self.own.setdefault(each, each) for each in self._candidates(ops, value, spec)
        ]
        found = [self._decided(ops, value, each) for each in candidates]
        cost, chosen, new = min(found, key=lambda each: each[0])
        if not cost < found[0][0]:
            return False
        self.graph.specs[value], self.layouts[value] = chosen, chosen.layout()
        for each, decision in zip(ops, new, strict=True):
            self.decisions[each] = decision
        return True

    def _is_free(self, ops: Sequence[int], spec: Spec) -> bool:
        """Tell whether a value that these ops make and read may be moved, and is spread, or windows are read there."""
        held = any(self._rule(op).held for op in ops)
        moves = _spreads(self._rule(ops[0])) or any(
            _reads_windows(self.decisions[op]) for op in ops
        )
        return len(ops) > 1 and moves and not (held or spec.fixed or spec.partial)

    def _rule(self, op: int) -> Rule:
        return self.graph.rules[self.graph.rule_of[op]]

    def _candidates(self, ops: Sequence[int], value: int, spec: Spec) -> Iterator[Spec]:
        """Yield what a value has, the whole of it, and what its readers want."""
        yield spec
        yield replace(spec, dims=((),) * len(spec.dims))
        for op in ops[1:]:
            values = self.graph.values_of[op]
            for v, layout in zip(values, self._wanted(op), strict=False):
                if v == value and layout is not None and layout.is_block and not layout.partial:
                    yield replace(spec, dims=layout.block_axes())

    def _wanted(self, op: int) -> Sequence[Layout | None]:
        """Return the layouts of an op's operands; what is passed on is wanted as it is afterwards."""
        if self._rule(op).name == "pass":
            return [self.layouts[self.graph.values_of[op][-1]]]
        return self.decisions[op].operands

    def _decided(
        self, ops: Sequence[int], value: int, spec: Spec
    ) -> tuple[float, Spec, list[Decision]]:
        """Return what these ops cost where `value` is as `spec` says, and their decisions."""
        specs, total = self.graph.specs, 0.0
        found: list[Decision] = []
        for op in ops:
            values = self.graph.values_of[op]
            now = tuple([spec if v == value else specs[v] if v >= 0 else None for v in values])
            key = (self.graph.rule_of[op], *map(id, now))
            if key not in self.known:
                self.known[key] = (now, decide_by_cost(self._rule(op), now, self.mesh))
            decision, cost = self.known[key][1]
            total += cost
            found.append(decision)
        return total, spec, found
