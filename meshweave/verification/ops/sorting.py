"""Read orders: the place that comes k-th is a function of k and of what decides over all elements along the dim."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.sorting import ORDER, Order
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.indices import Var, of_var, variables
from meshweave.verification.terms.orders import ordered
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.terms import MixedError, Term
from meshweave.verification.walk import ProgramWalk, handles


@handles(ORDER)
def _order(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    terms, dim = walk.terms, op.attributes["dim"].value
    given, made = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    if 0 in made:
        return [terms.undefined("i32")]
    bound = Var("b", "0", given[dim])
    keys = terms.composed(walk.views[op.operands[0]], {index_var(dim, given[dim]): of_var(bound)})
    if any(bound in variables(e) for e, _ in keys.guards):
        raise NotReadError("an order of what holds padding")
    place = of_var(index_var(dim, made[dim]))
    try:
        return [ordered(terms, Order.of(op), keys, given[dim], place)]
    except MixedError:
        raise NotReadError("an order over places that mix") from None
