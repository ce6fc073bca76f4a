"""Read scatters: element p is what was there, combined with every update whose place is p.

    out[p] = start[p] + sum over rounds u of (u is an update, place(u) == p ? element(u) : 0)

So a rank's part of the rounds is a part of a sum, and its part of the tensor are other p. Where the order of the
updates counts it is a fold over all rounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import (
    Apply,
    Argument,
    Body,
    Constant,
    Scalar,
    needed,
    read_body,
)
from meshweave.ir.ops import body_of
from meshweave.ir.scatters import SCATTER, Scatter
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.arith import COMBINES, kind_of, neutral
from meshweave.verification.terms.indices import Var, inside, of_var, plus, times, variables
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.scalars import apply, limits
from meshweave.verification.terms.terms import MixedError, Node, Term, dims_values
from meshweave.verification.walk import ProgramWalk, handles, scalar

_EQUAL = (("predicate", "0 : i64"),)
_SHIFTS = {"arith.subi": 1, "arith.addi": -1}
"""What is added to both sides of `place - n == p`, or of `place + n == p`."""


@handles(SCATTER)
def _scatter(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return _ScatterReader(walk, Scatter(op)).results()


class _ScatterReader:
    """Read one scatter."""

    def __init__(self, walk: ProgramWalk, what: Scatter) -> None:
        self.walk, self.terms, self.what = walk, walk.terms, what
        self.shape, self.type = walk.shape(what.op.results[0])
        self.loops = [self._loop(k, n) for k, n in enumerate(what.sizes)]
        self.bound = [v for v in self.loops if v.kind == "b"]
        self.first_old = len(self.loops) + len(what.inputs)
        try:
            self.body: Body = read_body(body_of(what.op))
        except CompileError as error:
            raise NotReadError(str(error)) from None

    def _loop(self, number: int, size: int) -> Var:
        """Return the variable of a loop: the index of a dim of the result, or a bound one."""
        if number in self.what.to:
            return index_var(self.what.to.index(number), size)
        return Var("b", f"l{number}", size)

    def results(self) -> list[Term]:
        """Return what the scatter makes."""
        starts = [self.walk.views[v] for v in self.what.starts]
        if 0 in self.what.sizes:
            return starts
        hit = self._hit()
        step = self._step()
        if step is None:
            return self._folded(starts, hit)
        node, element = step
        kind = kind_of(node.name, self.type) or ""
        value = self._chosen(hit, self._evaluated([element])[element], neutral(kind, self.type))
        made = reduce(self.terms, kind, value, self.bound)
        detail = self.walk.detail(node.attributes)
        return [apply(self.terms, node.name, detail, self.type, [starts[0], made])]

    def _step(self) -> tuple[Apply, int] | None:
        """Return the op that combines what is there with an element, and that element; None for any other body."""
        node, old = self.body.nodes[self.body.results[-1]], self.first_old
        if self.what.count > 1 or not isinstance(node, Apply) or node.name not in COMBINES:
            return None
        if len(node.operands) != 2 or old not in node.operands:
            return None
        element = sum(node.operands) - old
        kind = kind_of(node.name, self.type)
        known = kind is not None and neutral(kind, self.type) is not None
        return (node, element) if known and old not in needed(self.body.nodes, [element]) else None

    def _evaluated(self, roots: Sequence[int]) -> dict[int, Term]:
        """Return the values of nodes of the body in a round."""
        views = dict[int, Term]()
        for k in sorted(needed(self.body.nodes, roots)):
            node = self.body.nodes[k]
            if isinstance(node, Argument):
                views[k] = self._argument(k)
            elif isinstance(node, Apply):
                reads = [views[n] for n in node.operands]
                detail, type_ = self.walk.detail(node.attributes), self.walk.type_text(node.type)
                views[k] = apply(self.terms, node.name, detail, type_, reads)
            elif isinstance(node, Constant):
                views[k] = scalar(self.walk, node.value, self.walk.type_text(node.type))
            elif isinstance(node, Scalar):
                views[k] = self.walk.views[node.source]
            else:
                raise NotReadError("a scatter that reads more in its body")
        return views

    def _argument(self, number: int) -> Term:
        """Return the index of a loop, or the element of a tensor that a round reads."""
        if number < len(self.loops):
            return self.terms.iota(of_var(self.loops[number]))
        value = self.what.inputs[number - len(self.loops)]
        row = self.what.rows[number - len(self.loops)]
        values = {
            index_var(d, n): of_var(self.loops[k])
            for d, (k, n) in enumerate(zip(row, value.type.shape))
        }
        return self.terms.composed(self.walk.views[value], values)

    def _hit(self) -> list[Term]:
        """Return conditions that together say that a round updates an element."""
        roots = self.body.results[: 1 + self.what.places]
        views = self._evaluated(roots)
        found = self._conditions(views[roots[0]])
        for number, dim in self.what.dims.items():
            found.append(self._meets(views[roots[1 + number]], dim))
        return found

    def _conditions(self, view: Term) -> list[Term]:
        """Return the conditions that a condition is, all of which must hold."""
        node = self.terms.nodes[view.node]
        if node.op != "arith.andi":
            return [view]
        values = dims_values(view.exprs)
        parts = [self.terms.composed(r, values, view.guards) for r in node.reads]
        return [c for part in parts for c in self._conditions(part)]

    def _meets(self, place: Term, dim: int) -> Term:
        """Compare a place with the index of a dim; what is added to the place is taken from the index."""
        index = of_var(index_var(dim, self.shape[dim]))
        while (shift := _SHIFTS.get(self.terms.nodes[place.node].op)) is not None:
            values = dims_values(place.exprs)
            reads = [
                self.terms.composed(r, values, place.guards)
                for r in self.terms.nodes[place.node].reads
            ]
            known = [r for r in reads if self.terms.nodes[r.node].op == "iota" and not r.guards]
            rest = [r for r in reads if r not in known]
            if len(known) != 1 or (shift == 1 and reads[1] != known[0]):
                break
            (place,), index = rest, plus(index, times(known[0].exprs[0], shift))
        return apply(self.terms, "arith.cmpi", _EQUAL, "i1", [place, self.terms.iota(index)])

    def _chosen(self, hit: Sequence[Term], element: Term, other: Hashable) -> Term:
        """Return an element where all conditions hold; what lies beyond the end of a loop is seen to last."""
        none = self.terms.constant(self.type, other)
        ends = [c for c in hit if limits(self.terms, c) is not None]
        for conditions in ([c for c in hit if c not in ends], ends):
            if conditions:
                reads = [self._all(conditions), element, none]
                element = apply(self.terms, "arith.select", (), self.type, reads)
        return element

    def _all(self, conditions: Sequence[Term]) -> Term:
        held = conditions[0]
        for condition in conditions[1:]:
            held = apply(self.terms, "arith.andi", (), "i1", [held, condition])
        return held

    def _folded(self, starts: Sequence[Term], hit: Sequence[Term]) -> list[Term]:
        """Return what all rounds make in their order."""
        news = self.body.results[1 + self.what.places :]
        wanted = needed(self.body.nodes, news)
        reads = [k for k in sorted(wanted) if isinstance(self.body.nodes[k], (Argument, Scalar))]
        own = [k for k in reads if k < self.first_old or k >= self.first_old + self.what.count]
        views = self._evaluated(own)
        given = [*starts, self._all(hit), *[views[k] for k in own]]
        self._refuse_padding(given)
        keys = dict[int, Hashable]()
        for k in sorted(wanted):
            keys[k] = own.index(k) if k in own else self._key(k, keys)
        names = {v: of_var(Var("b", str(k), v.size)) for k, v in enumerate(self.bound)}
        bound = frozenset(Var("b", str(k), v.size) for k, v in enumerate(self.bound))
        try:
            found = self.terms.free([self.terms.composed(v, names) for v in given], bound)
        except MixedError:
            raise NotReadError("a scatter over places that mix") from None
        key = tuple([keys[k] for k in news]), tuple([v.size for v in self.bound])
        made = []
        for number, result in enumerate(self.what.op.results):
            node = Node("scatter", (*key, number), found.views, self.walk.shape(result)[1])
            put = self.terms.put(node, found.sizes)
            made.append(self.terms.view(put, found.exprs, (), found.guards))
        return made

    def _refuse_padding(self, views: Sequence[Term]) -> None:
        """Raise NotReadError where rounds read what lies beyond the end of a tensor."""
        for view in views:
            if any(variables(e) & set(self.bound) for e, _ in view.guards):
                raise NotReadError("a scatter that reads padding")
            for expr, size in zip(view.exprs, self.terms.sizes[view.node]):
                over = variables(expr) & set(self.bound)
                if over and size is not None and not inside(expr, size):
                    raise NotReadError("a scatter that reads padding")

    def _key(self, number: int, keys: dict[int, Hashable]) -> Hashable:
        """Say what a node of the body computes."""
        node = self.body.nodes[number]
        if isinstance(node, Apply):
            reads = tuple([keys[k] for k in node.operands])
            detail = self.walk.detail(node.attributes)
            return (node.name, detail, reads, self.walk.type_text(node.type))
        return str(node.value) if isinstance(node, Constant) else ("old", number - self.first_old)
