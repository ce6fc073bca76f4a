"""Read the ops of the local view that look at other ranks: they move digits between coordinates and indices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from meshweave.dialects.dist import LayoutAttr, axes_of
from meshweave.ir.bindings import ir
from meshweave.layout.layout import Layout
from meshweave.layout.places import is_run, run_at
from meshweave.verification.cases.ranges import same_place
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.indices import (
    ZERO,
    Expr,
    Var,
    inside,
    number,
    of_var,
    plus,
    quotient,
    remainder,
    substitute,
    times,
)
from meshweave.verification.terms.pieces import concat
from meshweave.verification.terms.ranks import Placing, index_var, placing_of
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Guard, Term, view_variables
from meshweave.verification.walk import ProgramWalk, handles

MOST_RANKS = 1 << 16
"""Ranks of which it is looked where their windows lie."""


@handles("dist.axis_index")
def _axis_index(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [walk.terms.iota(walk.ranks.member(axes_of(op)))]


@handles("dist.all_gather")
def _all_gather(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    dim = op.attributes["dim"].value
    given, made = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    if 0 in given:
        return [walk.terms.undefined(walk.shape(op.results[0])[1])]
    place = of_var(index_var(dim, made[dim]))
    values = walk.ranks.at_member(axes_of(op), quotient(place, given[dim]))
    values[index_var(dim, given[dim])] = remainder(place, given[dim])
    return [walk.terms.composed(walk.views[op.operands[0]], values)]


@handles("dist.all_slice")
def _all_slice(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [_piece(walk, op, walk.views[op.operands[0]])]


def _piece(walk: ProgramWalk, op: ir.Operation, view: Term) -> Term:
    """Return the piece of a rank along `dim`; beyond the end of the whole nothing is known."""
    dim = op.attributes["dim"].value
    given, made = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    here = of_var(index_var(dim, made[dim]))
    place = plus(times(walk.ranks.member(axes_of(op)), made[dim]), here)
    values = {index_var(dim, given[dim]): place}
    return walk.terms.composed(view, values, _beyond(place, given[dim]))


def _beyond(place: Expr, size: int) -> list[Guard]:
    return [] if inside(place, size) else [(place, size)]


@handles("dist.all_reduce")
def _all_reduce(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [_reduced(walk, op)]


@handles("dist.reduce_scatter")
def _reduce_scatter(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [_piece(walk, op, _reduced(walk, op))]


def _reduced(walk: ProgramWalk, op: ir.Operation) -> Term:
    return reduced_over(walk, walk.views[op.operands[0]], op.attributes["kind"].value, axes_of(op))


def reduced_over(walk: ProgramWalk, view: Term, kind: str, names: Sequence[str]) -> Term:
    """Reduce a value over the ranks of the groups along some axes."""
    terms, ranks = walk.terms, walk.ranks
    bound = [Var("b", f"@{name}", ranks.mesh.size(name)) for name in names]
    values = ranks.at(names, [of_var(v) for v in bound])
    moved = terms.composed(view, values)
    if kind == "avg" and terms.nodes[view.node].op == "part":
        return reduce(terms, kind, moved, bound)
    made = reduce(terms, "sum" if kind == "avg" else kind, moved, bound)
    if kind != "avg":
        return made
    type_ = terms.type_of(view)
    count = ranks.mesh.axis_count(names)
    if "f" not in type_:
        raise NotReadError("an average of integers")
    return apply(terms, "arith.divf", (), type_, [made, terms.constant(type_, float(count))])


@handles("dist.all_to_all")
def _all_to_all(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    split, joined = op.attributes["split_dim"].value, op.attributes["concat_dim"].value
    given, made = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    if 0 in given:
        return [walk.terms.undefined(walk.shape(op.results[0])[1])]
    names = axes_of(op)
    me = times(walk.ranks.member(names), made[split])
    place = plus(me, of_var(index_var(split, made[split])))
    along = of_var(index_var(joined, made[joined]))
    values = walk.ranks.at_member(names, quotient(along, given[joined]))
    values[index_var(joined, given[joined])] = remainder(along, given[joined])
    values[index_var(split, given[split])] = place
    view = walk.views[op.operands[0]]
    return [walk.terms.composed(view, values, _beyond(place, given[split]))]


@handles("dist.permute")
def _permute(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    names = axes_of(op)
    source = walk.ranks.source(names, [a.value for a in op.attributes["sources"]])
    if source is None:
        return [_permuted(walk, op, names)]
    values = walk.ranks.at_member(names, source)
    return [walk.terms.composed(walk.views[op.operands[0]], values)]


def _permuted(walk: ProgramWalk, op: ir.Operation, names: Sequence[str]) -> Term:
    """Return what each rank of a group receives, put together along the number of the rank in its group."""
    sources = [a.value for a in op.attributes["sources"]]
    me, view = Var("p", "member", len(sources)), walk.views[op.operands[0]]
    pieces = [
        ((k, k + 1), walk.terms.composed(view, walk.ranks.at_member(names, number(source))))
        for k, source in enumerate(sources)
    ]
    made = concat(walk.terms, me, pieces)
    return walk.terms.composed(made, {me: walk.ranks.member(names)})


@handles("dist.exchange")
def _exchange(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    shape = tuple(op.attributes["shape"])
    source, target = [LayoutAttr(op.attributes[n]).layout for n in ("source", "target")]
    view = walk.views[op.operands[0]]
    return [moved_between(walk, view, source, target, shape, axes_of(op))]


def moved_between(
    walk: ProgramWalk,
    view: Term,
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    names: Sequence[str],
) -> Term:
    """Return what an exchange from one layout to another makes of a value.

    names: the axes along which elements move; along others a rank takes what has its own coordinate.
    """
    if 0 in shape:
        return walk.terms.undefined(walk.terms.type_of(view))
    old, new = placing_of(walk.ranks, source, shape), placing_of(walk.ranks, target, shape)
    other = _other_axis(old, new, tuple(names))
    if other:
        raise NotReadError(f"an exchange along axis {other}, which it does not name")
    return part_of(walk, as_whole(walk, view, old, names), new)


@lru_cache(maxsize=1 << 10)
def _other_axis(old: Placing, new: Placing, names: tuple[str, ...]) -> str:
    """Return an axis along which an element would come that is none of those; "" for none."""
    places, ranks = new.places, old.ranks
    for var, value in old.whole.values.items() if old.whole else ():
        if var.kind != "x":
            continue
        parts = [n for n in names if n.partition(":")[0] == var.name]
        same = ranks.at(parts, [ZERO] * len(parts)).get(var, of_var(var))
        moves = not same_place(substitute(same, {var: substitute(value, places)}), same, new.ends)
        if moves and not _stays(old, new, var.name):
            return var.name
    return ""


def _stays(old: Placing, new: Placing, axis: str) -> bool:
    """Tell whether the windows of all ranks lie within what they hold, of the dim that lies along an axis."""
    mesh, shape = old.ranks.mesh, old.shape
    refs = [[r.partition(":")[0] for r in old.layout.axes_of(d)] for d in range(len(shape))]
    dim = next(d for d, row in enumerate(refs) if axis in row)
    if new.layout.window(dim) is None or not is_run(old.layout, mesh, shape, dim):
        return False
    if mesh.nranks > MOST_RANKS:
        return False
    ranks = np.arange(mesh.nranks)
    first, end = run_at(new.layout, mesh, shape, dim, ranks)
    begin, stop = run_at(old.layout, mesh, shape, dim, ranks)
    first = np.maximum(first, 0)
    return bool(np.all((end <= first) | ((begin <= first) & (end <= stop))))


def as_whole(walk: ProgramWalk, view: Term, placing: Placing, names: Sequence[str]) -> Term:
    """Return the whole tensor of which a value is each rank's part."""
    whole = placing.whole
    if whole is None:
        return _by_formula(walk, view, placing)
    free = {v for v in view_variables(view) if v.kind == "x"} - whole.values.keys()
    moves = {name.partition(":")[0] for name in names}
    if any(v.name in moves for v in free):
        raise NotReadError("an exchange of a value that is not the same on all ranks that hold it")
    return whole.of(walk.terms, view)


def _by_formula(walk: ProgramWalk, view: Term, placing: Placing) -> Term:
    """Return the whole tensor of a value whose places are written as the layout says."""
    places = {
        e: of_var(index_var(d, n)) for d, (e, n) in enumerate(zip(placing.indices, placing.shape))
    }
    if view.guards or any(e not in places and e != ZERO for e in view.exprs):
        raise NotReadError(f"a layout without a formula: {placing.layout}")
    exprs = [places.get(e, e) for e in view.exprs]
    return walk.terms.view(view.node, exprs, view.fills)


def part_of(walk: ProgramWalk, view: Term, placing: Placing) -> Term:
    """Return the part of a whole tensor that a layout gives each rank."""
    if 0 in placing.shape:
        return walk.terms.undefined(walk.terms.type_of(view))
    if placing.ends:
        return walk.terms.composed(view, placing.places, placing.ends)
    return placing.part.of(walk.terms, view)


@handles("dist.to_local")
def _to_local(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    placing = _interface(walk, op, op.operands[0])
    return [part_of(walk, walk.views[op.operands[0]], placing)]


@handles("dist.to_global")
def _to_global(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    placing = _interface(walk, op, op.results[0])
    layout = placing.layout
    view = walk.views[op.operands[0]]
    for partial in layout.partial:
        view = reduced_over(walk, view, partial.kind, partial.axes)
    return [
        as_whole(
            walk,
            view,
            placing_of(walk.ranks, layout.without_partial(), placing.shape),
            walk.ranks.mesh.names,
        )
    ]


def _interface(walk: ProgramWalk, op: ir.Operation, whole: ir.Value) -> Placing:
    said = op.attributes["interface"] if "interface" in op.attributes else op.attributes["layout"]
    return placing_of(walk.ranks, LayoutAttr(said).layout, walk.shape(whole)[0])
