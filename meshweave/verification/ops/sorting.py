"""Read orders: the place that comes k-th is a function of k and of what decides over all elements along the dim.

What a sort gives is read of its tensors at these places. What ranks merge is that of the whole, where each has its own
part in that same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.dialects.dist import axes_of
from meshweave.ir.bindings import ir
from meshweave.ir.sorting import ORDER, SORT, Order
from meshweave.verification.said import NotReadError
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
from meshweave.verification.terms.lookups import gather
from meshweave.verification.terms.masks import is_plain
from meshweave.verification.terms.orders import before_last, in_order, ordered
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.terms import MixedError, Term
from meshweave.verification.walk import ProgramWalk, handles


@handles(ORDER)
def _order(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    terms, dim = walk.terms, op.attributes["dim"].value
    made = walk.shape(op.results[0])[0]
    if 0 in made:
        return [terms.undefined("i32")]
    return [_places(walk, op, of_var(index_var(dim, made[dim])))]


def _places(walk: ProgramWalk, op: ir.Operation, place: Expr) -> Term:
    """Return which element comes at a place in order of the first operand."""
    dim, given = op.attributes["dim"].value, walk.shape(op.operands[0])[0]
    bound = Var("b", "0", given[dim])
    moved = {index_var(dim, given[dim]): of_var(bound)}
    return _ordered(
        walk, Order.of(op), walk.terms.composed(walk.views[op.operands[0]], moved), bound, place
    )


def _ordered(walk: ProgramWalk, how: Order, keys: Term, bound: Var, place: Expr) -> Term:
    if any(bound in variables(e) for e, _ in keys.guards):
        raise NotReadError("an order of what holds padding")
    try:
        return ordered(walk.terms, how, keys, bound.size, place)
    except MixedError:
        raise NotReadError("an order over places that mix") from None


@handles(SORT)
def _sort(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    terms, dim = walk.terms, op.attributes["dim"].value
    shape = walk.shape(op.operands[0])[0]
    if 0 in shape:
        return [terms.undefined(walk.shape(r)[1]) for r in op.results]
    along = index_var(dim, shape[dim])
    places = _places(walk, op, of_var(along))
    moved = {along: of_var(Var("g", "0", shape[dim]))}
    tables = [terms.composed(walk.views[v], moved) for v in op.operands]
    return [*[_read_at(walk, table, places) for table in tables], places]


def _read_at(walk: ProgramWalk, table: Term, places: Term) -> Term:
    try:
        return gather(walk.terms, table, [places])
    except MixedError:
        raise NotReadError("a sort over places that mix") from None


def _last(walk: ProgramWalk, how: Order, element: ir.Type) -> Term | None:
    """Return a number that no other comes behind, as `Order.last` makes it; None for one known by its bits."""
    terms, kind = walk.terms, walk.type_text(element)
    if isinstance(element, ir.IntegerType):
        bits = how.last_bits(element)
        return terms.constant(kind, bits % 2 if element.width == 1 else bits)
    if how.total:
        return None
    return terms.constant(kind, -math.inf if how.descending else "nan")


@handles("dist.merge")
def _merge(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    """Read what ranks have in order as read at places of an order, and the result at places of that of all."""
    terms, dim, how = walk.terms, op.attributes["dim"].value, Order.of(op)
    shape = walk.shape(op.operands[0])[0]
    if 0 in shape:
        return [terms.undefined(walk.shape(r)[1]) for r in op.results]
    names, size = axes_of(op), shape[dim]
    count = size * walk.ranks.mesh.axis_count(names)
    along, member = index_var(dim, size), walk.ranks.member(names)
    sides = [in_order(terms, walk.views[v], along) for v in op.operands]
    if any(side is None for side in sides):
        raise NotReadError("a merge of what is in no order")
    (keys, place), *rest = [side for side in sides if side is not None]
    b, g = (Var(kind, "0", size) for kind in "bg")
    own = terms.composed(keys, {g: of_var(b)})
    in_own = _ordered(walk, how, own, b, of_var(along))
    if (size > 1 and place != in_own) or any(other != place for _, other in rest):
        raise NotReadError("a merge of what is in another order")

    def of_all(view: Term, small: Var) -> Term:
        big = of_var(Var(small.kind, "0", count))
        values = walk.ranks.at_member(names, quotient(big, size))
        return terms.composed(view, {**values, small: remainder(big, size)})

    here = plus(times(member, size), of_var(along))
    every, bound = of_all(own, b), Var("b", "0", count)
    most = before_last(terms, every, bound, _last(walk, how, op.operands[0].type.element_type))
    ends = Var("g", "0", count if most is None else most)
    every = terms.composed(every, {bound: of_var(Var("b", "0", ends.size))})
    places = _ordered(walk, how, every, Var("b", "0", ends.size), here)
    guards = [] if inside(here, ends.size) else [(here, ends.size)]
    places = terms.composed(places, {}, guards)
    found = []
    for table, _ in [(keys, place), *rest]:
        whole = terms.composed(of_all(table, g), {Var("g", "0", count): of_var(ends)})
        if not is_plain(whole):
            raise NotReadError("a merge of what holds padding")
        is_place = terms.nodes[whole.node].op == "iota" and whole.exprs == (of_var(ends),)
        found.append(places if is_place and not whole.guards else _read_at(walk, whole, places))
    return found
