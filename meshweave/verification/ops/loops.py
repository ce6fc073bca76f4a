"""Read linalg ops: their bodies are scalar expressions over loops, their maps say where each operand is read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.expressions import (
    Apply,
    Argument,
    Constant,
    Gather,
    Index,
    Scalar,
    needed,
)
from meshweave.ir.selections import selection_of
from meshweave.verification.bodies import CombiningStep, ReadBody
from meshweave.verification.loop_forms import LoopForm, loop_form, map_rows
from meshweave.verification.reader import DecodedOp
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.arith import is_integer, neutral, predicate_of
from meshweave.verification.terms.indices import (
    ZERO,
    Expr,
    Var,
    bounds,
    inside,
    of_var,
    plus,
    variables,
)
from meshweave.verification.terms.lookups import gather
from meshweave.verification.terms.nodes import is_neutral, plain
from meshweave.verification.terms.pieces import reached
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.scalars import apply, limits
from meshweave.verification.terms.selections import Fold, joined, unmasked
from meshweave.verification.terms.terms import Guard, MixedError, Node, Term, Terms
from meshweave.verification.walk import ProgramWalk, handles, scalar

_FIXED = ("linalg.fill", "linalg.broadcast", "linalg.transpose")
"""Ops whose bodies their names and the types of their elements say."""


@handles("linalg.")
def _linalg(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    if not walk.keeps:
        return _made(walk, op, _decoded(walk, op))
    decoded = _repeated(walk, op)
    operands, what, *_ = decoded
    read = partial(_made, walk, op, decoded)
    return read() if what.looks_around else walk.again(op, operands, read)


def _made(walk: ProgramWalk, op: ir.Operation, decoded: DecodedOp) -> Sequence[Term]:
    """Return what an op makes of its operands."""
    operands, what, outer, form = decoded
    if what.only is None or not form.is_plain:
        return LinalgReader(walk, op, operands, what, outer, form).results()
    reads, only = [], what.only
    for k in only.operands:
        view, into = walk.views[operands[k]], form.places[k]
        reads.append(into.of(walk.terms, view) if into.values else view)
    if not only.name:
        return reads
    return [apply(walk.terms, only.name, only.detail, only.type, reads)]


@handles("linalg.fill")
def _fill(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    value, result = op.operands[0], op.results[0]
    if walk.shape(value)[1] != walk.shape(result)[1]:
        return _linalg(walk, op)
    return [walk.views[value]]


@handles("linalg.map")
def _map(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    """Read an op whose maps and shapes are all the same: mostly a scalar op at each place."""
    if walk.keeps:
        return _linalg(walk, op)
    only = walk.said.body(op.regions[0].blocks[0])[0].only
    if only is None:
        return _linalg(walk, op)
    operands, views = op.operands, walk.views
    reads = [views[operands[k]] for k in only.operands]
    return [apply(walk.terms, only.name, only.detail, only.type, reads)] if only.name else reads


def _repeated(walk: ProgramWalk, op: ir.Operation) -> DecodedOp:
    """Return what an op in a loop or a function is written of, asked once though it may be read again."""
    found = walk.said.linalg.get(op)
    if found is None:
        found = walk.said.linalg[op] = _decoded(walk, op)
    return found


def _decoded(walk: ProgramWalk, op: ir.Operation) -> DecodedOp:
    maps, regions, name = linalg.get_indexing_maps(op), op.regions, op.name
    block = next(iter(regions[0].blocks), None) if len(regions) == 1 else None
    if maps is None or block is None:
        raise NotReadError(f"no rule for {name}")
    operands = list(op.operands)
    try:
        kinds = tuple(map(walk.shapes.__getitem__, operands))
    except KeyError:
        kinds = tuple(map(walk.shape, operands))
    said = walk.said
    what, outer = said.body(block, (name, *[e for _, e in kinds]) if name in _FIXED else None)
    key = maps, what.count, kinds
    form = said.forms.get(key)
    if form is None:
        rows = said.once(maps, partial(map_rows, maps))
        form = said.forms[key] = loop_form(rows, tuple([shape for shape, _ in kinds]), what.count)
    return operands, what, outer, form


class LinalgReader:
    """Read one linalg op."""

    def __init__(
        self, walk: ProgramWalk, op: ir.Operation, operands: Sequence[ir.Value],
        what: ReadBody, outer: Sequence[ir.Value], form: LoopForm,
    ) -> None:  # fmt: skip
        self.walk, self.op, self.terms = walk, op, walk.terms
        self.operands, self.what, self.outer, self.form = operands, what, outer, form
        self.body, self.inits, self.loops = what.body, what.count, form.loops

    def _operand(self, number: int) -> Term:
        view = self.form.places[number].of(self.terms, self.walk.views[self.operands[number]])
        return reached(self.terms, view)

    def results(self) -> list[Term]:
        """Return what the op computes."""
        first = len(self.operands) - self.inits
        if not self.form.in_order:
            raise NotReadError("results in different orders")
        if self.form.empty:
            if not all(0 in self.walk.shape(r)[0] for r in self.op.results):
                raise NotReadError("a reduction over nothing")
            return [self.terms.undefined(self.walk.shape(r)[1]) for r in self.op.results]
        bound = self.form.bound
        if not self.form.is_reduction:
            views = self._evaluated(self.what.all)
            made = [views[k] for k in self.body.results]
            start = dict.fromkeys(bound, ZERO) if bound else {}
            return [self.terms.composed(v, start) for v in made] if start else made
        steps = self.what.steps(first)
        if None in steps:
            return self._folded(bound, first)
        return [self._reduced(s, bound, first + k) for k, s in enumerate(steps) if s]

    def _reduced(self, step: CombiningStep, bound: list[Var], out: int) -> Term:
        views, op = self._evaluated(step.reads), step.op
        value = views[step.element]
        if step.condition is not None:
            rest = neutral(step.kind, op.type)
            if rest is None:
                raise NotReadError(f"{op.name} has no neutral element")
            other = self.terms.constant(op.type, rest)
            reads = [views[step.condition], value, other]
            value = apply(self.terms, "arith.select", (), op.type, reads)
        made, start = reduce(self.terms, step.kind, value, bound), self._operand(out)
        if not self.terms.algebra and is_neutral(self.terms, start, step.kind):
            return made  # as `apply` finds, after it has looked for other rules
        return apply(self.terms, op.name, op.detail, op.type, [start, made])

    def _evaluated(self, wanted: Sequence[int]) -> dict[int, Term]:
        """Return the values of nodes of the body. wanted: their numbers, in order, with all that they read."""
        views: dict[int, Term] = {}
        terms, nodes, applied = self.terms, self.body.nodes, self.what.applied
        for k in wanted:
            op = applied[k]
            if op is not None:
                reads = [views[n] for n in op.operands]
                views[k] = apply(terms, op.name, op.detail, op.type, reads)
                continue
            node = nodes[k]
            if isinstance(node, Argument):
                views[k] = self._operand(k)
            elif isinstance(node, Index):
                views[k] = terms.iota(of_var(self.loops[node.form]))
            elif isinstance(node, Constant):
                views[k] = scalar(self.walk, node.value, self.walk.said.text(node.type))
            elif isinstance(node, Scalar):
                views[k] = self.walk.views[self.outer[self.what.scalars.index(k)]]
            elif isinstance(node, Gather):
                views[k] = gathered(self.walk, node.access, [views[n] for n in node.operands])
        return views

    def _folded(self, bound: list[Var], first: int) -> list[Term]:
        """Return results of a body that is no plain reduction: a fold, the same where all it reads is the same."""
        nodes, fetched = self.body.nodes, self._fetched(first)
        used = needed(nodes, self.body.results, fetched)
        operands = [self._operand(k) for k in range(len(self.operands))]
        indices = sorted({n.form for k in used if isinstance(n := nodes[k], Index)})
        operands += [self.terms.iota(of_var(self.loops[d])) for d in indices]
        scalars = zip(self.what.scalars, self.outer)
        operands += [self.walk.views[value] for k, value in scalars if k in used]
        operands += fetched.values()
        keys: list[Hashable] = []
        for number, body_node in enumerate(self.body.nodes):
            keys.append(self._key(number, body_node, keys, indices))
        key: Hashable = tuple([keys[k] for k in self.body.results])
        condition = None
        selects = None if fetched else self._selected(keys, operands, bound)
        if selects is not None:
            key, bound, condition = selects.key, [selects.over], selects.condition
            operands = [*selects.reads, *([condition] if condition else [])]
        self._refuse_padding([*operands[:first], *fetched.values()], bound, condition)
        over = {v: of_var(Var("b", str(k), v.size)) for k, v in enumerate(bound)}
        named = [self.terms.composed(v, over) for v in operands]
        try:
            found = self.terms.free(
                named, frozenset(Var("b", str(k), v.size) for k, v in enumerate(bound))
            )
        except MixedError:
            raise NotReadError("a reduction over places that mix") from None
        made = []
        for k, result in enumerate(self.op.results):
            detail: tuple[Hashable, ...] = (
                key,
                k,
                tuple([v.size for v in bound]),
            )
            node = Node("fold", detail, found.views, self.walk.shape(result)[1])
            sizes = found.sizes if condition is None else [None] * len(found.sizes)
            number = self.terms.put(node, sizes)
            made.append(self.terms.view(number, found.exprs, (), found.guards))
        return made

    def _fetched(self, first: int) -> dict[int, Term]:
        """Return the nodes that read elements of other tensors, and these. first: the number of the first accumulator.

        Raises NotReadError where an accumulator says which, or one may lie beyond the end of its tensor.
        """
        numbers = [k for k, n in enumerate(self.body.nodes) if isinstance(n, Gather)]
        reads = needed(self.body.nodes, numbers)
        if reads.intersection(range(first, first + self.inits)):
            raise NotReadError("a reduction that reads other tensors where its accumulator says")
        views = self._evaluated(sorted(reads))
        if any(views[k].guards for k in numbers):
            raise NotReadError("a reduction that may read beyond the end of another tensor")
        return {k: views[k] for k in numbers}

    def _selected(
        self, keys: Sequence[Hashable], operands: Sequence[Term], bound: Sequence[Var]
    ) -> Fold | None:
        """Return a fold that selects over one loop, joined to one over all ranks where it is over theirs."""
        condition, body = unmasked(self.body, self.inits)
        selects = selection_of(body) if len(self.operands) == 2 * self.inits else None
        if selects is None or not selects.reads_plain or len(bound) != 1:
            return None
        key = tuple([keys[k] for k in body.results])
        holds = None
        if condition:
            holds = self._evaluated(sorted(needed(self.body.nodes, [condition])))[condition]
        return joined(self.terms, Fold(key, tuple(operands[: 2 * self.inits]), holds, bound[0]))

    def _refuse_padding(
        self, elements: Sequence[Term], bound: Sequence[Var], condition: Term | None
    ) -> None:
        """Raise NotReadError where elements beyond the end of a dim are read that the condition does not leave out."""
        ends = dict((condition and limits(self.terms, condition)) or ())
        for view in elements:
            for expr, size in zip(view.exprs, self.terms.sizes[view.node]):
                own = variables(expr) & set(bound)
                if not own or size is None or inside(expr, size):
                    continue
                if ends.get(expr, size + 1) > size:
                    raise NotReadError("a reduction that reads padding")

    def _key(
        self, number: int, node: object, keys: Sequence[Hashable], indices: list[int]
    ) -> Hashable:
        """Say what a node of the body computes, whatever the order in which it stands there."""
        if isinstance(node, Apply):
            reads = tuple([keys[k] for k in node.operands])
            kind = self.walk.type_text(node.type)
            return _chosen(node.name, self.walk.detail(node.attributes), reads, kind)
        if isinstance(node, Constant):
            return str(node.value)
        # One that only says where another tensor is read is no part of the key.
        if isinstance(node, Index):
            return ("index", indices.index(node.form) if node.form in indices else -1)
        if isinstance(node, (Scalar, Gather)):
            return (type(node).__name__, number)
        return number


_LARGER = {4: "arith.maxsi", 5: "arith.maxsi", 8: "arith.maxui", 9: "arith.maxui"}
_SMALLER = {2: "arith.minsi", 3: "arith.minsi", 6: "arith.minui", 7: "arith.minui"}
"""What `a < b ? a : b` is of integers, by the number of the predicate."""


_OPPOSITE = {
    "arith.maxsi": "arith.minsi",
    "arith.minsi": "arith.maxsi",
    "arith.maxui": "arith.minui",
    "arith.minui": "arith.maxui",
}
_COMMUTATIVE = (*_OPPOSITE, "arith.addi", "arith.muli", "arith.addf", "arith.mulf")


def _chosen(
    name: str, detail: tuple[Hashable, ...], reads: tuple[Hashable, ...], kind: str
) -> Hashable:
    """Say what an op computes: of two integers the larger or smaller one has one name, however it is written."""
    if name == "arith.select" and is_integer(kind) and isinstance(reads[0], tuple):
        test, compared, operands = (*reads[0], "", "")[:3]
        if test == "arith.cmpi" and operands in (reads[1:], reads[:0:-1]):
            chosen = (_LARGER | _SMALLER).get(predicate_of(compared))
            if chosen is not None and operands != reads[1:]:
                chosen = _OPPOSITE[chosen]
            if chosen is not None:
                name, detail, reads = chosen, (), reads[1:]
    if name in _COMMUTATIVE:
        reads = tuple(sorted(reads, key=str))
    return name, detail, reads, kind


def gathered(walk: ProgramWalk, tensor: ir.Value, indices: Sequence[Term]) -> Term:
    """Return the element of a tensor at places that are known or computed."""
    return sliced(walk, tensor, indices, [ZERO] * len(indices))


def sliced(
    walk: ProgramWalk, tensor: ir.Value, offsets: Sequence[Term], places: Sequence[Expr]
) -> Term:
    """Return the element of a tensor as far as `places` behind offsets that are known or computed.

    An offset that is computed is one that leaves room for the whole slice, or the program has no meaning.
    """
    try:
        return _sliced(walk, tensor, offsets, places)
    except MixedError:  # of such a tensor each element is read at a place of its own
        sums = [_moved(walk.terms, offset, place) for offset, place in zip(offsets, places)]
    try:
        return _sliced(walk, tensor, sums, [ZERO] * len(sums))
    except MixedError:
        raise NotReadError("a gather from places that mix") from None


def _moved(terms: Terms, offset: Term, place: Expr) -> Term:
    """Return the place that is so far behind an offset."""
    if terms.nodes[offset.node].op == "iota":
        return terms.iota(plus(offset.exprs[0], place))._replace(guards=offset.guards)
    return plain(terms, "arith.addi", (), "index", [offset, terms.iota(place)])


def _sliced(
    walk: ProgramWalk, tensor: ir.Value, offsets: Sequence[Term], places: Sequence[Expr]
) -> Term:
    """Return that element. Raises MixedError where parts of the tensor are read at sums of a place and an offset."""
    terms, view = walk.terms, walk.views[tensor]
    shape, _ = walk.shape(tensor)
    values: dict[Var, Expr] = {}
    guards, computed = list[Guard](), list[Term]()
    placeholders: list[Var] = []
    for dim, (offset, place, size) in enumerate(zip(offsets, places, shape)):
        guards += offset.guards
        if terms.nodes[offset.node].op == "iota":
            here = values[index_var(dim, size)] = plus(offset.exprs[0], place)
            guards += [] if inside(here, size) else [(here, size)]
        else:
            placeholders.append(Var("g", str(len(computed)), size - bounds(place)[1]))
            values[index_var(dim, size)] = plus(of_var(placeholders[-1]), place)
            computed.append(offset)
    at = terms.composed(view, values, guards)
    if not computed:
        return at
    bound = frozenset(placeholders)
    if any(variables(e) & bound for e, _ in at.guards):
        raise NotReadError("a gather from a part of a tensor")
    return gather(terms, at, computed)
