"""Resolve a value where the ranges of its variables decide: which piece it reads, what a condition on places chooses.

What they do not decide is left as it is, and noted as a cut. A reduction is done part by part, so that each part is
decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshweave.ir.bindings import ir
from meshweave.verification.cases.ranges import MOST_NUMBERS, Cut, partition
from meshweave.verification.terms.arith import COMBINES, UNSIGNED, predicate_of
from meshweave.verification.terms.indices import Expr, Var, bounds, inside, plus, times, variables
from meshweave.verification.terms.lookups import gather
from meshweave.verification.terms.masks import as_place, is_plain
from meshweave.verification.terms.terms import (
    LimitError,
    MixedError,
    Node,
    Term,
    Terms,
    dims_values,
    opened,
)

_STEPS = {(kind, name[-1] == "f"): name for name, kind in reversed(COMBINES.items())}
MOST_PARTS = 64
"""Parts of a reduction that are decided one by one."""
_LIMITS = {2: 0, 6: 0, 3: 1, 7: 1, 4: 1, 8: 1, 5: 0, 9: 0}
"""Of predicates that compare places: how far behind equality their answer changes."""


@dataclass
class StepLimit:
    """Hold how many steps are left."""

    left: int


class Resolver:
    """Resolve values in one case. cuts: what is not decided in it. steps: how many are left, of all cases."""

    def __init__(self, terms: Terms, steps: StepLimit) -> None:
        self.terms, self._steps = terms, steps
        self.cuts: list[Cut] = []
        self._known: dict[Term, Term] = {}

    def count(self, steps: int = 1) -> None:
        """Count steps. Raises LimitError where none are left."""
        self._steps.left -= steps
        if self._steps.left < 0:
            raise LimitError("the limit of steps that compare values case by case")

    def view(self, view: Term) -> Term:
        """Return a value in the form that it has in this case."""
        if not has_cases(self.terms, view.node) and view.fills.count(None) == len(view.fills):
            return view
        found = self._known.get(view)
        if found is None:
            self.count()
            found = self._known[view] = self._resolved(view)
        return found

    def _resolved(self, view: Term) -> Term:
        view = self._filled(view)
        node = self.terms.nodes[view.node]
        if view.fills.count(None) != len(view.fills) or not has_cases(self.terms, view.node):
            return view
        if node.op == "concat":
            made = self.terms.view(*view)
            if made.node != view.node:
                return self.view(made)
            self.cuts += [(view.exprs[0], start) for (start, _) in node.detail[1:]]
            return view
        if node.op == "at":
            return self.view(
                self.terms.composed(node.reads[0], dims_values(view.exprs), view.guards)
            )
        if node.op in ("reduce", "open"):
            body, inner = opened(self.terms, view)
            return self._reduced(node.detail[0], body, inner, node.type)
        reads = [self.terms.composed(r, dims_values(view.exprs), view.guards) for r in node.reads]
        if node.op == "arith.select":
            return self._selected(view, reads)
        if node.op == "gather":
            return self._gathered(view, reads)
        if node.op == "table":
            return self._looked_up(view, node)
        parts = [self.view(r) for r in reads]
        is_same = parts == reads and all(p.node == r.node for p, r in zip(parts, node.reads))
        return view if is_same else self.terms.apply(node.op, node.detail, node.type, parts)

    def _filled(self, view: Term) -> Term:
        """Return what stands beyond an end, where all places lie there; where none does the end does not count."""
        made = self.terms.view(*view)
        for expr, size, fill in zip(made.exprs, self.terms.sizes[made.node], made.fills):
            if fill is None or size is None:
                continue
            low, high = bounds(expr)
            if high < 0 or low >= size:
                ends = zip(made.exprs, self.terms.sizes[made.node], made.fills)
                others = [(e, n) for e, n, f in ends if n is not None and f is None]
                return self.terms.view(fill, (), (), [*made.guards, *others])
            self.cuts += [(expr, 0), (expr, size)]
        return made

    def _selected(self, view: Term, reads: Sequence[Term]) -> Term:
        condition = self._decided(reads[0])
        value = self.terms.constant_of(condition)
        if value is not None:
            return self.view(reads[1 if value else 2])
        parts = [condition, self.view(reads[1]), self.view(reads[2])]
        if parts == reads:
            return view
        return self.terms.apply("arith.select", (), self.terms.nodes[view.node].type, parts)

    def _decided(self, condition: Term) -> Term:
        """Return a condition as a constant where this case decides it."""
        node = self.terms.nodes[condition.node]
        if condition.guards or not (node.op.startswith("arith.") or node.op == "among"):
            return self.view(condition)
        reads = [self.terms.composed(r, dims_values(condition.exprs)) for r in node.reads]
        if node.op == "among":
            return self._among(condition, reads, node.detail)
        if node.op == "arith.cmpi":
            return self._compared(condition, node, [self.view(r) for r in reads])
        parts = [self._decided(r) for r in reads]
        if parts == reads:
            return condition
        return self.terms.apply(node.op, node.detail, node.type, parts)

    def _among(self, condition: Term, reads: Sequence[Term], sizes: Sequence[int]) -> Term:
        exprs = [as_place(self.terms, r) for r in reads]
        answers = []
        for expr, size in zip(exprs, sizes):
            if expr is None:
                return condition
            low, high = bounds(expr)
            is_out = high < 0 or low >= size
            answers.append(inside(expr, size) or (False if is_out else None))
            if answers[-1] is None:
                self.cuts += [(expr, 0), (expr, size)]
        if True in answers:
            return self.terms.constant("i1", 1)
        return condition if None in answers else self.terms.constant("i1", 0)

    def _compared(self, condition: Term, node: Node, reads: Sequence[Term]) -> Term:
        made = self.terms.apply(node.op, node.detail, node.type, list(reads))
        if self.terms.constant_of(made) is not None:
            return made
        places = [as_place(self.terms, r) for r in reads]
        if places[0] is None or places[1] is None:
            return made
        predicate = predicate_of(node.detail)
        a, b = places[0], places[1]
        if predicate in UNSIGNED:
            for one in (a, b):
                if bounds(one)[0] < 0 <= bounds(one)[1]:
                    self.cuts.append((one, 0))
        expr = plus(a, times(b, -1))
        decided = self.terms.apply(
            node.op, node.detail, node.type, [self.terms.iota(a), self.terms.iota(b)]
        )
        if self.terms.constant_of(decided) is None and predicate not in UNSIGNED:
            ends = [self.terms.iota(expr), self.terms.iota(Expr(0))]
            decided = self.terms.apply(node.op, node.detail, node.type, ends)
        if self.terms.constant_of(decided) is not None:
            return decided
        self.cuts += [(expr, 0), (expr, 1)]
        return made

    def _gathered(self, view: Term, reads: Sequence[Term]) -> Term:
        """Read a table at places which this case decides."""
        table, *indices = reads
        parts = [self.view(r) for r in indices]
        known = [as_place(self.terms, r) for r in parts]
        values = {}
        for var in {v for e in table.exprs for v in variables(e) if v.kind == "g"}:
            place = known[int(var.name)]
            if place is not None and inside(place, var.size):
                values[var] = place
        if values:
            return (
                self.view(self.terms.composed(table, values))
                if len(values) == len(indices)
                else view
            )
        if parts == indices:
            return view
        try:
            return gather(self.terms, table, parts)
        except MixedError:
            return view

    def _looked_up(self, view: Term, node: Node) -> Term:
        """Return an element of a table of numbers, where the place is known."""
        if any(e.terms for e in view.exprs):
            self.cuts += [
                (e, k)
                for e, n in zip(view.exprs, self.terms.sizes[view.node])
                for k in range(1, min(n or 1, MOST_NUMBERS))
            ]
            return view
        value = element_of(node.detail[0], tuple([e.const for e in view.exprs]))
        if not is_plain(view) or value is None:
            return view
        if node.type == "index":
            return self.terms.iota(Expr(int(value)))
        return self.terms.constant(node.type, value)

    def _reduced(self, kind: str, body: Term, inner: Sequence[Var], type_: str) -> Term:
        """Reduce part by part, where a body is decided in each part."""
        todo, done = [(body, tuple(inner))], list[Term]()
        while todo:
            part, over = todo.pop()
            outer, self.cuts = self.cuts, []
            made = self.view(part)
            cuts, self.cuts = self.cuts, outer
            split = None
            own = frozenset(over)
            for cut in cuts:
                if variables(cut[0]) & own:
                    free = None if len(done) + len(todo) > MOST_PARTS else partition(cut)
                    if free is None:
                        split = split or partition(cut, own.__contains__)
                    else:
                        self.cuts.append(cut)
                else:
                    self.cuts.append(cut)
            if split is None or len(todo) + len(done) >= MOST_PARTS:
                done.append(self.terms.apply("reduce", (kind, *over), type_, [made]))
                continue
            for values in reversed(split):
                (gone,) = values
                new = sorted({v for e in values.values() for v in variables(e)})
                rest = [v for v in over if v != gone]
                todo.append((self.terms.composed(made, values), (*rest, *new)))
        return self._combined(kind, type_, done)

    def _combined(self, kind: str, type_: str, parts: Sequence[Term]) -> Term:
        made, *rest = parts
        for part in rest:
            made = self.terms.apply(_step(kind, type_), (), type_, [made, part])
        return made


def _step(kind: str, type_: str) -> str:
    """Return the op that is a step of a reduction."""
    if "complex" in type_:
        return {"sum": "complex.add", "prod": "complex.mul"}[kind]
    if type_ == "i1":
        kind = {"max": "or", "min": "and"}.get(kind, kind)
    return _STEPS.get((kind, "f" in type_)) or _STEPS[kind, False]


@lru_cache(maxsize=1 << 10)
def element_of(table: ir.DenseElementsAttr, at: tuple[int, ...]) -> int | float | None:
    """Return a number of a constant tensor; None where that is none."""
    try:
        value = np.array(table)[at].item()
    except (IndexError, TypeError, ValueError):
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def has_cases(terms: Terms, number: int) -> bool:
    """Tell whether a node may have another form in each case."""
    found = terms.cased.get(number)
    if found is None:
        node = terms.nodes[number]
        found = node.op in ("concat", "among", "open", "at", "table") or any(
            r.fills.count(None) != len(r.fills) or has_cases(terms, r.node) for r in node.reads
        )
        found = found or (node.op in ("arith.select", "arith.cmpi") and _reads_places(terms, node))
        found = found and node.op not in ("call", "trips")
        terms.cased[number] = found
    return found


def _reads_places(terms: Terms, node: Node) -> bool:
    return any(terms.nodes[r.node].op == "iota" or has_cases(terms, r.node) for r in node.reads)
