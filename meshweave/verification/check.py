"""Check that the program of one rank computes its part of the whole program, on every rank.

Both are read as terms. A result is proven when the term of the rank's value is that of the whole result, at the places
that the result's layout gives the rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import gcd

from meshweave.dialects.checks import mesh_of
from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import CompileError, LayoutError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of, ops_named
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.verification.alike import alike
from meshweave.verification.answer import Answer, Finding, joined
from meshweave.verification.cases.compare import same_by_cases
from meshweave.verification.cases.resolve import StepLimit
from meshweave.verification.forms import forms_of_part, forms_of_whole
from meshweave.verification.ops import (
    attention,
    collectives,
    fft,
    host,
    lapack,
    loops,
    repeats,
    scans,
    scatters,
    sorting,
    tensors,
)
from meshweave.verification.reader import AttributeReader
from meshweave.verification.roundings import rounds_more
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.differences import explained
from meshweave.verification.terms.indices import Expr, Var
from meshweave.verification.terms.ranks import Placing, Ranks, places_of, placing_of
from meshweave.verification.terms.reductions.pending import part
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Guard, LimitError, Node, Term, Terms, apart
from meshweave.verification.walk import ProgramWalk, results_of

MOST_TERMS = 400_000
"""Terms that are made before the rest is left unproven; half as many ops are read of each program."""
LEAST_TERMS = 2_000
"""Terms that a compile may make in any case where it writes loops out; else twice the ops that it has read."""
MOST_STEPS = 20_000
"""Steps that compare results case by case, some seconds; LEAST_STEPS in a compile, less than half a second."""
LEAST_STEPS = 5_000
READERS = (
    attention,
    collectives,
    fft,
    host,
    lapack,
    loops,
    repeats,
    scans,
    scatters,
    sorting,
    tensors,
)
"""The files that say how ops are read; importing them registers what they say."""


def verify(
    whole: ir.Module, local: ir.Module, most: int = MOST_TERMS, again: bool = True
) -> Answer:
    """Check the program of one rank, `local`, against the whole program. Both are of one context.

    Each function of `local` that no other calls is checked against that of its name. most: terms that are made before
    the rest is left unproven; half as many ops are read of each program. again: look at what stays
    open with calls and trips written out, also where these are most of the program, and however long it takes.
    Raises CompileError where the two do not belong together.
    """
    ranks, said = Ranks(mesh_of(local.operation) or Mesh()), AttributeReader()
    found = []
    for name, (f, g) in _pairs(whole, local).items():
        found.append(_function(ranks, said, name, f, g, whole, local, most, again))
    return joined(found)


def _function(
    ranks: Ranks,
    said: AttributeReader,
    name: str,
    f: ir.Operation,
    g: ir.Operation,
    whole: ir.Module,
    local: ir.Module,
    most: int,
    again: bool,
) -> Answer:
    """Check function `g` of one rank against `f` of the whole program.

    On one rank they may be written alike. Else terms are compared as they are written first: what both call or repeat
    is read once, and one trip for all of a loop. What that leaves open is compared with the rules of arithmetic, with
    calls and trips written out where that takes at most twice as long; else, or where it comes to a limit, read once.
    """
    if alike(ranks, f, g, functions_of(whole), functions_of(local)):
        return Answer(tuple([f"@{name} result {k}" for k in range(len(results_of(g)))]), (), ())
    check = _Check(ranks, said, Terms(most, apply, algebra=False), once=True, formed=True)
    found = check.function(name, f, g, whole, local)
    if found.unproven and check.has_forms:
        plain = Terms(most, apply, algebra=False)
        check = _Check(ranks, said, plain, once=True, shown={*found.proven})
        found = check.function(name, f, g, whole, local)
    if not found.unproven:
        return found
    steps = StepLimit(MOST_STEPS if again else LEAST_STEPS)
    written = check.was_short and (again or check.saved <= check.ops)
    exact = check.terms.rounded
    for once in (False, True) if written else (True,):
        enough = most if once or again else min(most, max(LEAST_TERMS, 4 * check.ops))
        more = _Check(ranks, said, Terms(enough, apply), once, steps=steps, shown={*found.proven})
        if exact:
            more.terms.rounds = set()
        made = more.function(name, f, g, whole, local)
        if more.rounded_more:
            exact, terms = False, Terms(enough, apply)
            more = _Check(ranks, said, terms, once, steps=steps, shown={*found.proven})
            made = more.function(name, f, g, whole, local)
        if made.status != 3 or more.is_beyond:
            return made
        is_less = len(made.proven) < len(found.proven)  # it has come to a limit
        found = found if is_less else made
        if not (again or is_less):
            break
    return found


def _pairs(whole: ir.Module, local: ir.Module) -> dict[str, tuple[ir.Operation, ir.Operation]]:
    theirs, ours = functions_of(whole), functions_of(local)
    called = _called(local) if len(ours) > 1 else set()
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
    return {op.attributes["callee"].value for op in ops_named(module.operation, "func.call")}


@dataclass
class _Check:
    """Check a function.

    formed: what loops carry has forms. shown: results that are proven already: only their layouts are looked at.
    has_forms: there was a loop that carries what has forms. rounded_more: where roundings are left out, the rank's
    program has one that the whole program does not have.
    """

    ranks: Ranks
    said: AttributeReader
    terms: Terms
    once: bool
    formed: bool = False
    steps: StepLimit = field(default_factory=lambda: StepLimit(0))
    shown: set[str] = field(default_factory=set)
    repeated: set[Hashable] = field(default_factory=set)
    ops: int = 0
    saved: int = 0
    was_short: bool = False
    has_forms: bool = False
    rounded_more: bool = False
    is_beyond: bool = False  # a slice may lie beyond the end of its tensor: nothing is proven
    proven: list[str] = field(default_factory=list)
    refuted: list[Finding] = field(default_factory=list)
    unproven: list[Finding] = field(default_factory=list)
    _known: dict[Hashable, tuple[Placing | None, str]] = field(default_factory=dict)

    def function(
        self, name: str, f: ir.Operation, g: ir.Operation, whole: ir.Module, local: ir.Module
    ) -> Answer:
        """Return what is found of function `g` of one rank, beside `f` of the whole program."""
        known = self.terms, self.ranks, self.said
        there = ProgramWalk.of(*known, whole, self._repeats, self.once)
        here = ProgramWalk.of(*known, local, self.repeated.__contains__, self.once)
        if self.formed:
            there.forms = forms_of_whole
            here.forms = forms_of_part
        values = list(zip(results_of(f), results_of(g)))
        names = [f"@{name} result {k}" for k in range(len(values))]
        try:
            wanted, made = self._results(name, f, g, there, here)
            said = _attributes("res_attrs", f, g, len(values))
            for k, (want, got) in enumerate(zip(wanted, made)):
                placing = self._placing(here, names[k], values[k], said[k])
                nothing = 0 in here.shape(values[k][0])[0]
                if nothing or names[k] in self.shown:
                    self.proven.append(names[k])
                    continue
                self._result(here, names[k], values[k][1], want, got, placing)
        except (LimitError, NotReadError) as error:
            open_ = {*names} - {*self.proven, *[f.value for f in self.refuted + self.unproven]}
            for what, (_, value) in zip(names, values):
                if what in open_:
                    self.unproven.append(Finding(what, location_text(value), str(error)))
        self.is_beyond = bool(here.beyond)
        if self.is_beyond:
            place, reason = here.beyond[0].place, here.beyond[0].reason
            self.unproven += [Finding(what, place, reason) for what in self.proven]
            self.proven = []
        self.ops, self.saved = there.ops + here.ops, there.saved + here.saved
        if here.rounds and rounds_more(here, there, whole):
            self.rounded_more = True
            reason = "a number is rounded that the whole program does not round"
            place = location_text(g.location)
            more = [what for what in self.proven if what not in self.shown]
            self.unproven += [Finding(what, place, reason) for what in more]
            self.proven = [what for what in self.proven if what in self.shown]
        self.has_forms = there.formed
        self.was_short = bool(self.repeated) or there.shortened or here.shortened
        return Answer(
            tuple(self.proven), tuple(self.refuted), tuple(self.unproven), len(here.views)
        )

    def _repeats(self, what: Hashable) -> bool:
        """Note what the whole program repeats; tell whether it is read once."""
        if self.once:
            self.repeated.add(what)
        return self.once

    def _results(
        self, name: str, f: ir.Operation, g: ir.Operation, there: ProgramWalk, here: ProgramWalk
    ) -> tuple[list[Term], list[Term]]:
        """Return the results of the whole program, and those of one rank."""
        given = list(zip(body_of(f).arguments, body_of(g).arguments))
        if len(body_of(f).arguments) != len(body_of(g).arguments):
            raise CompileError(f"verify: @{name} takes other arguments than the whole program")
        if len(results_of(f)) != len(results_of(g)):
            raise CompileError(f"verify: @{name} gives other results than the whole program")
        wholes = [_argument(there, k, a) for k, (a, _) in enumerate(given)]
        said = _attributes("arg_attrs", f, g, len(given))
        parts = []
        for k, (pair, view) in enumerate(zip(given, wholes)):
            placing = self._placing(here, f"@{name} argument {k}", pair, said[k])
            parts.append(self._part(here, view, placing))
        return there.enter(f, wholes), here.enter(g, parts)

    def _part(self, walk: ProgramWalk, view: Term, placing: Placing | None) -> Term:
        if placing is None:
            return view
        if placing.layout.partial:
            view = self._pending(walk, view, placing)
        return collectives.part_of(walk, view, placing)

    def _pending(self, walk: ProgramWalk, view: Term, placing: Placing) -> Term:
        """Return the part of an argument that is reduced with those of other ranks to give it."""
        mesh = self.ranks.mesh
        pending = [
            (self.ranks.coordinate(name), (p.kind, mesh.size(name)))
            for p in placing.layout.partial
            for name in p.axes
        ]
        number, element = walk.terms.nodes[view.node].detail[0], walk.terms.type_of(view)
        return part(walk.terms, number, element, placing.shape, pending)(
            places_of(placing.shape), ()
        )

    def _placing(
        self, walk: ProgramWalk, what: str, values: tuple[ir.Value, ir.Value], said: _Said
    ) -> Placing | None:
        """Return where an argument or result lies; its layout must be what the whole program says."""
        key = (*said, *[v.type for v in values])
        if key not in self._known:
            whole, own = [
                {} if s is None else {a.name: a.attr for a in ir.DictAttr(s)} for s in said
            ]
            placing = self._placed(walk, what, *values, {**whole, **own})
            self._known[key] = placing, _difference(whole, own)
        placing, wrong = self._known[key]
        if wrong:
            self.refuted.append(Finding(what, location_text(values[1]), wrong))
        return placing

    def _placed(
        self, walk: ProgramWalk, what: str, a: ir.Value, b: ir.Value, said: dict[str, ir.Attribute]
    ) -> Placing | None:
        (shape, element), (own, kind) = walk.shape(a), walk.shape(b)
        if element != kind:
            raise CompileError(f"verify: {what} is of {kind}, in the whole program of {element}")
        if not isinstance(a.type, ir.RankedTensorType):
            return None
        if own == shape and "dist.global" not in said:
            return None  # in the view of whole tensors, as around the body of JAX's shard_map
        if "dist.layout" in said:
            layout = LayoutAttr(said["dist.layout"]).layout
        else:
            layout = Layout.replicated(len(shape))
        placing = placing_of(self.ranks, layout, shape)
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
        here: ProgramWalk,
        what: str,
        value: ir.Value,
        want: Term,
        got: Term,
        placing: Placing | None,
    ) -> None:
        terms = here.terms
        terms.place = None
        valid: list[Guard] = []
        try:
            if placing is not None:
                for partial in placing.layout.partial:
                    got = collectives.reduced_over(here, got, partial.kind, partial.axes)
                want = collectives.part_of(here, want, placing)
                valid = list(zip(placing.indices, placing.shape))
        except NotReadError as error:
            self.unproven.append(Finding(what, location_text(value), str(error)))
            return
        if same(terms, got, want, valid):
            self.proven.append(what)
            return
        refuted, reason = explained(terms, got, want, valid) if terms.algebra else (False, "")
        if terms.algebra and not refuted and same_by_cases(terms, got, want, valid, self.steps):
            self.proven.append(what)
            return
        found = Finding(what, location_text(value), reason)
        (self.refuted if refuted else self.unproven).append(found)


def same(terms: Terms, got: Term, want: Term, valid: Sequence[Guard]) -> bool:
    """Tell whether a value is surely what is wanted, wherever `valid` places are within their sizes."""
    if terms.nodes[got.node].op == "unknown" or got.node != want.node:
        return False
    if got.exprs != want.exprs and list(map(bare, got.exprs)) != list(map(bare, want.exprs)):
        return False
    if not got.guards:
        return True
    known = [_in_ones(g) for guard in (*valid, *want.guards) for g in (guard, *apart(guard))]
    return all(any(_says(guard, one) for one in known) for guard in map(_in_ones, got.guards))


def _says(guard: Guard, known: Guard) -> bool:
    """Tell whether a guard holds where another one does: a place that is further on needs as much more room."""
    (expr, size), (other, room) = guard, known
    further = expr.const - other.const
    return expr.terms == other.terms and further >= 0 and room + further <= size


def _in_ones(guard: Guard) -> Guard:
    """Return a guard that says the same of a place of which the given one is a multiple: 2 * i < 7 is i < 4."""
    expr, size = guard
    by = gcd(expr.const, *[c for _, c in expr.terms])
    if by < 2:
        return guard
    return Expr(expr.const // by, tuple([(a, c // by) for a, c in expr.terms])), -(-size // by)


def bare(expr: Expr) -> Expr:
    """Return an expression without variables that can only be 0."""
    return Expr(expr.const, tuple([(a, c) for a, c in expr.terms if not _zero(a)]))


def _zero(atom: object) -> bool:
    return isinstance(atom, Var) and atom.size == 1


def _argument(walk: ProgramWalk, number: int, value: ir.Value) -> Term:
    shape, element = walk.shape(value)
    node = walk.terms.put(Node("argument", (number,), (), element), shape)
    return walk.terms.view(node, places_of(shape))


_Said = tuple[ir.Attribute | None, ir.Attribute | None]


def _attributes(name: str, f: ir.Operation, g: ir.Operation, count: int) -> list[_Said]:
    """Return what each function says of each of its arguments or results."""
    both = [list(x.attributes[name]) if name in x.attributes else [None] * count for x in (f, g)]
    return list(zip(*both))


def _difference(said: dict[str, ir.Attribute], own: dict[str, ir.Attribute]) -> str:
    """Return how a layout differs from the one that is promised, "" where it does not."""
    if "dist.layout" not in said or set(said) & {"dist.open", "dist.replicated"}:
        return ""
    promised = LayoutAttr(said["dist.layout"]).layout
    made = LayoutAttr(own["dist.layout"]).layout if "dist.layout" in own else promised
    return "" if made == promised else f"expected layout {promised}, is {made}"
