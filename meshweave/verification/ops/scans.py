"""Read scans: element i of one is what the elements up to i combine to, a function of i and of the other places.

A scan of one rank's block that starts from what the ranks before it combine is the scan of the whole, at the places of
the block.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply, Argument, Body, Constant, read_body
from meshweave.ir.ops import body_of
from meshweave.ir.scans import SCAN, Scan
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.arith import COMBINES, kind_of, neutral
from meshweave.verification.terms.indices import (
    Expr,
    Var,
    inside,
    of_var,
    plus,
    quotient,
    remainder,
    times,
    variables,
)
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.reductions.ends import clipped
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Guard, MixedError, Node, Term
from meshweave.verification.walk import ProgramWalk, handles

_BELOW, _ABOVE = (("predicate", "6 : i64"),), (("predicate", "8 : i64"),)
"""How places are compared, as the attribute of arith.cmpi says it: both without a sign."""


@handles(SCAN)
def _scan(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return _ScanReader(walk, Scan(op)).results()


class _ScanReader:
    """Read one scan."""

    def __init__(self, walk: ProgramWalk, what: Scan) -> None:
        self.walk, self.terms, self.what = walk, walk.terms, what
        self.shape, self.type = walk.shape(what.op.results[0])
        self.along = index_var(what.dim, what.size)
        try:
            self.body: Body = read_body(body_of(what.op))
        except CompileError as error:
            raise NotReadError(str(error)) from None

    def results(self) -> list[Term]:
        """Return what the scan computes."""
        if 0 in self.shape:
            return [self.terms.undefined(self.walk.shape(r)[1]) for r in self.what.op.results]
        elements = [self.walk.views[v] for v in self.what.inputs]
        starts = [self._start(v) for v in self.what.starts]
        step = self.body.nodes[self.body.results[0]]
        kind = None
        if self.what.count == 1 and isinstance(step, Apply) and set(step.operands) == {0, 1}:
            kind = kind_of(step.name, self.type) if step.name in COMBINES else None
        if kind is None:
            return self._prefixes(self._key(), [*elements, *starts], self.along, of_var(self.along))
        assert isinstance(step, Apply)
        whole = self._of_whole(kind, elements[0], starts[0])
        if whole is not None:
            return [whole]
        (made,) = self._prefixes(kind, elements, self.along, of_var(self.along))
        return [apply(self.terms, step.name, (), self.type, [starts[0], made])]

    def _start(self, value: ir.Value) -> Term:
        """Return what a scan begins with, at the places of its result."""
        pairs = enumerate(self.what.kept)
        values = {
            index_var(k, self.shape[d]): of_var(index_var(d, self.shape[d])) for k, d in pairs
        }
        return self.terms.composed(self.walk.views[value], values)

    def _key(self) -> Hashable:
        """Say what the body computes."""
        keys: list[Hashable] = []
        for number, node in enumerate(self.body.nodes):
            if isinstance(node, Apply):
                reads = tuple([keys[k] for k in node.operands])
                kind = self.walk.type_text(node.type)
                keys.append((node.name, self.walk.detail(node.attributes), reads, kind))
            elif isinstance(node, Constant):
                keys.append(str(node.value))
            elif isinstance(node, Argument):
                keys.append(number)
            else:
                raise NotReadError("a scan that reads more in its body")
        return tuple([keys[k] for k in self.body.results])

    def _prefixes(
        self,
        key: Hashable,
        reads: Sequence[Term],
        over: Var,
        place: Expr,
        guards: Sequence[Guard] = (),
    ) -> list[Term]:
        """Return for each result what the elements combine to up to a place. over: the variable that numbers them."""
        bound = Var("b", "0", over.size)
        named = [self.terms.composed(r, {over: of_var(bound)}) for r in reads]
        if any(bound in variables(e) for r in named for e, _ in r.guards):
            raise NotReadError("a scan that reads padding")
        try:
            found = self.terms.free(named, frozenset([bound]))
        except MixedError:
            raise NotReadError("a scan over places that mix") from None
        made = []
        for number, result in enumerate(self.what.op.results):
            detail = (key, number, over.size, self.what.reverse)
            node = Node("scan", detail, found.views, self.walk.shape(result)[1])
            scan = self.terms.put(node, (*found.sizes, over.size))
            exprs = (*found.exprs, place)
            made.append(self.terms.view(scan, exprs, (), (*found.guards, *guards)))
        return made

    def _of_whole(self, kind: str, element: Term, start: Term) -> Term | None:
        """Return the scan of the elements of all ranks at this rank's places, where it starts from those before it."""
        size, ranks = self.what.size, self.walk.ranks
        candidates = [n for n in self._names(element) if start == self._before(kind, element, n)]
        if not candidates:
            return None
        names = candidates[0]
        bound = Var("b", "_scan", size * ranks.mesh.axis_count(names))
        values = ranks.at_member(names, quotient(of_var(bound), size))
        values[self.along] = remainder(of_var(bound), size)
        element = self.terms.composed(element, values)
        every, (whole,) = clipped(self.terms, kind, element, [bound])
        place = plus(times(ranks.member(names), size), of_var(self.along))
        guards = [] if inside(place, whole.size) else [(place, whole.size)]
        return self._prefixes(kind, [every], whole, place, guards)[0]

    def _names(self, element: Term) -> Iterator[list[str]]:
        """Yield axes whose coordinates stand before the index along the dim, major first."""
        for expr in element.exprs:
            found = [(c, a.name) for a, c in expr.terms if isinstance(a, Var) and a.kind == "x"]
            if found and (self.what.size == 1 or (self.along, 1) in expr.terms):
                yield [name for _, name in sorted(found, reverse=True)]

    def _before(self, kind: str, element: Term, names: Sequence[str]) -> Term | None:
        """Return what the elements of the ranks before this one combine to."""
        terms, ranks = self.terms, self.walk.ranks
        none = neutral(kind, self.type)
        if none is None:
            return None
        other = Var("b", "_rank", ranks.mesh.axis_count(names))
        total = reduce(terms, kind, element, [self.along])
        total = terms.composed(total, ranks.at_member(names, of_var(other)))
        places = [terms.iota(of_var(other)), terms.iota(ranks.member(names))]
        detail = _ABOVE if self.what.reverse else _BELOW
        holds = apply(terms, "arith.cmpi", detail, "i1", places)
        reads = [holds, total, terms.constant(self.type, none)]
        chosen = apply(terms, "arith.select", (), self.type, reads)
        return reduce(terms, kind, chosen, [other])
