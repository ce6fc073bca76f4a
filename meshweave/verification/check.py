"""Check that the program of one rank computes its part of the whole program, on every rank.

Both are read as terms. A result is proven when the term of the rank's value is that of the whole result, at the places
that the result's layout gives the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshweave.dialects.checks import mesh_of
from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import CompileError, LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.verification import collectives, loops, repeats, tensors
from meshweave.verification.answer import Answer, Finding, joined
from meshweave.verification.differences import explained
from meshweave.verification.indices import Expr, Var, of_var
from meshweave.verification.ranks import Placing, Ranks, index_var
from meshweave.verification.reductions import part
from meshweave.verification.terms import Guard, LimitError, Node, Terms, View
from meshweave.verification.walk import NotReadError, Walk, results_of

MOST_TERMS = 1_000_000
"""Terms that are made, and ops that are read, before the rest is left unproven."""
READERS = (collectives, loops, repeats, tensors)
"""The files that say how ops are read; importing them registers what they say."""


def verify(whole: ir.Module, local: ir.Module, most: int = MOST_TERMS) -> Answer:
    """Check the program of one rank, `local`, against the whole program. Both are of one context.

    Each function of `local` that no other calls is checked against that of its name. most: terms that are made, and ops
    that are read, before the rest is left unproven.
    Raises CompileError where the two do not belong together.
    """
    ranks = Ranks(mesh_of(local.operation) or Mesh())
    found = []
    for name, (f, g) in _pairs(whole, local).items():
        found.append(_function(ranks, name, f, g, whole, local, most))
    return joined(found)


def _function(
    ranks: Ranks,
    name: str,
    f: ir.Operation,
    g: ir.Operation,
    whole: ir.Module,
    local: ir.Module,
    most: int,
) -> Answer:
    """Check function `g` of one rank against `f` of the whole program.

    Where both call functions, these are read once. What that does not prove is looked at with all calls written out.
    """
    cut = bool(_called(whole) and _called(local))
    found = _Check(ranks, most, cut).function(name, f, g, whole, local)
    if cut and found.status == 3:
        again = _Check(ranks, most, False).function(name, f, g, whole, local)
        found = again if again.refuted or len(again.proven) > len(found.proven) else found
    return found


def _pairs(whole: ir.Module, local: ir.Module) -> dict[str, tuple[ir.Operation, ir.Operation]]:
    theirs, ours = functions_of(whole), functions_of(local)
    called = _called(local)
    names = [n for n, f in ours.items() if n not in called and len(f.regions[0].blocks)]
    if len(names) == 1 and names[0] not in theirs:
        entries = [n for n in theirs if n not in _called(whole)]
        if len(entries) == 1:
            return {names[0]: (theirs[entries[0]], ours[names[0]])}
    missing = [n for n in names if n not in theirs]
    if missing or not names:
        what = f"@{missing[0]}" if missing else "a function"
        raise CompileError(f"verify: the whole program has no {what} to compare with")
    return {n: (theirs[n], ours[n]) for n in names}


def _called(module: ir.Module) -> set[str]:
    found: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.call":
            found.add(op.attributes["callee"].value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


@dataclass
class _Check:
    ranks: Ranks
    most: int
    cut: bool
    proven: list[str] = field(default_factory=list)
    refuted: list[Finding] = field(default_factory=list)
    unproven: list[Finding] = field(default_factory=list)

    def function(
        self, name: str, f: ir.Operation, g: ir.Operation, whole: ir.Module, local: ir.Module
    ) -> Answer:
        """Return what is found of function `g` of one rank, beside `f` of the whole program."""
        terms = Terms(self.most)
        there, here = [Walk.of(terms, self.ranks, m, self.cut) for m in (whole, local)]
        values = list(zip(results_of(f), results_of(g)))
        names = [f"@{name} result {k}" for k in range(len(values))]
        try:
            wanted, made = self._results(name, f, g, there, here)
            for k, (want, got) in enumerate(zip(wanted, made)):
                said = self._promised(f, g, "res_attrs", k, names[k])
                self._result(there, here, names[k], want, got, values[k], said)
        except LimitError as error:
            open_ = {*names} - {*self.proven, *[f.value for f in self.refuted + self.unproven]}
            for what, (_, value) in zip(names, values):
                if what in open_:
                    self.unproven.append(Finding(what, location_text(value), str(error)))
        return Answer(
            tuple(self.proven), tuple(self.refuted), tuple(self.unproven), len(here.views)
        )

    def _results(
        self, name: str, f: ir.Operation, g: ir.Operation, there: Walk, here: Walk
    ) -> tuple[list[View], list[View]]:
        """Return the results of the whole program, and those of one rank."""
        given = list(zip(body_of(f).arguments, body_of(g).arguments))
        if len(body_of(f).arguments) != len(body_of(g).arguments):
            raise CompileError(f"verify: @{name} takes other arguments than the whole program")
        if len(results_of(f)) != len(results_of(g)):
            raise CompileError(f"verify: @{name} gives other results than the whole program")
        wholes = [_argument(there, k, a) for k, (a, _) in enumerate(given)]
        parts = []
        for k, ((a, b), view) in enumerate(zip(given, wholes)):
            said = self._promised(f, g, "arg_attrs", k, f"@{name} argument {k}")
            parts.append(self._part(here, f"@{name} argument {k}", view, a, b, said))
        return there.enter(f, wholes), here.enter(g, parts)

    def _promised(
        self, f: ir.Operation, g: ir.Operation, kind: str, number: int, what: str
    ) -> dict[str, ir.Attribute]:
        """Return the attributes of an argument or result; its layout must be what the whole program says."""
        said, own = _attributes(f, kind, number), _attributes(g, kind, number)
        if "dist.layout" in said and not set(said) & {"dist.open", "dist.replicated"}:
            promised = LayoutAttr(said["dist.layout"]).layout
            made = LayoutAttr(own["dist.layout"]).layout if "dist.layout" in own else promised
            if made != promised:
                reason = f"expected layout {promised}, is {made}"
                self.refuted.append(Finding(what, location_text(g), reason))
        return {**said, **own}

    def _part(
        self,
        walk: Walk,
        what: str,
        view: View,
        a: ir.Value,
        b: ir.Value,
        said: dict[str, ir.Attribute],
    ) -> View:
        placing = self._placing(walk, what, a, b, said)
        if placing is None:
            return view
        if placing.layout.partial:
            view = self._pending(walk, view, placing)
        return collectives.part_of(walk, view, placing)

    def _pending(self, walk: Walk, view: View, placing: Placing) -> View:
        """Return the part of an argument that is reduced with those of other ranks to give it."""
        mesh = self.ranks.mesh
        pending = [
            (self.ranks.coordinate(name), (p.kind, mesh.size(name)))
            for p in placing.layout.partial
            for name in p.axes
        ]
        number, element = walk.terms.nodes[view.node].detail[0], walk.terms.type_of(view)
        return part(walk.terms, number, element, placing.shape, pending)(
            [of_var(index_var(d, n)) for d, n in enumerate(placing.shape)], ()
        )

    def _placing(
        self, walk: Walk, what: str, a: ir.Value, b: ir.Value, said: dict[str, ir.Attribute]
    ) -> Placing | None:
        (shape, element), (own, kind) = walk.shape(a), walk.shape(b)
        if element != kind:
            raise CompileError(f"verify: {what} is of {kind}, in the whole program of {element}")
        if "dist.layout" in said:
            layout = LayoutAttr(said["dist.layout"]).layout
        else:
            layout = Layout.replicated(len(shape))
        if not isinstance(a.type, ir.RankedTensorType):
            return None
        if own == shape and "dist.global" not in said:
            return None  # in the view of whole tensors, as around the body of JAX's shard_map
        placing = Placing(self.ranks, layout, shape)
        try:
            layout.check(self.ranks.mesh, shape)
            allocation = placing.allocation
        except LayoutError as error:
            raise CompileError(f"verify: {what}: {error}") from None
        if allocation != own:
            raise CompileError(
                f"verify: {what} of shape {list(shape)} in layout {layout} is {list(allocation)} "
                f"on a rank, not {list(own)}"
            )
        return placing

    def _result(
        self,
        there: Walk,
        here: Walk,
        what: str,
        want: View,
        got: View,
        values: tuple[ir.Value, ir.Value],
        said: dict[str, ir.Attribute],
    ) -> None:
        terms = here.terms
        terms.place = None
        placing = self._placing(here, what, *values, said)
        place = location_text(values[1])
        valid: list[Guard] = []
        try:
            if placing is not None:
                for partial in placing.layout.partial:
                    got = collectives.reduced_over(here, got, partial.kind, partial.axes)
                want = collectives.part_of(here, want, placing)
                valid = list(zip(placing.indices(), placing.shape))
        except NotReadError as error:
            self.unproven.append(Finding(what, place, str(error)))
            return
        if same(terms, got, want, valid):
            self.proven.append(what)
            return
        refuted, reason = explained(terms, got, want, valid)
        (self.refuted if refuted else self.unproven).append(Finding(what, place, reason))


def same(terms: Terms, got: View, want: View, valid: Sequence[Guard]) -> bool:
    """Tell whether a value is surely what is wanted, wherever `valid` places are within their sizes."""
    if terms.nodes[got.node].op in ("unknown",) or got.node != want.node:
        return False
    if list(map(bare, got.exprs)) != list(map(bare, want.exprs)):
        return False
    known = [*valid, *want.guards]
    return all(any(e == d and n >= m for d, m in known) for e, n in got.guards)


def bare(expr: Expr) -> Expr:
    """Return an expression without variables that can only be 0."""
    return Expr(expr.const, tuple([(a, c) for a, c in expr.terms if not _zero(a)]))


def _zero(atom: object) -> bool:
    return isinstance(atom, Var) and atom.size == 1


def _argument(walk: Walk, number: int, value: ir.Value) -> View:
    shape, element = walk.shape(value)
    node = walk.terms.put(Node("argument", (number,), (), element), shape)
    return walk.terms.view(node, [of_var(index_var(d, n)) for d, n in enumerate(shape)])


def _attributes(function: ir.Operation, name: str, number: int) -> dict[str, ir.Attribute]:
    if name not in function.attributes:
        return {}
    return {a.name: a.attr for a in ir.DictAttr(function.attributes[name][number])}
