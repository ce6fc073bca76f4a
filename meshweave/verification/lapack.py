"""Read LAPACK routines: an element of a result is a function of its place in the matrix and of whole matrices."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.routines import LAPACK, Call
from meshweave.verification.indices import Var, of_var, variables
from meshweave.verification.ranks import index_var
from meshweave.verification.terms import Abstraction, MixedError, Node, View
from meshweave.verification.walk import NotReadError, Walk, handles


@handles(LAPACK)
def _lapack(walk: Walk, op: ir.Operation) -> Sequence[View]:
    call, bounds, views = Call.of(op), list[Var](), list[View]()
    for value, dims in zip(op.operands, call.row.tensors):
        own = [Var("b", str(len(bounds) + k), n) for k, (_, n) in enumerate(_whole(call, dims))]
        places = {index_var(d, n): of_var(v) for v, (d, n) in zip(own, _whole(call, dims))}
        views.append(walk.terms.composed(walk.views[value], places))
        bounds += own
    if any(variables(e) & set(bounds) for view in views for e, _ in view.guards):
        raise NotReadError("LAPACK on what holds padding")
    try:
        found = walk.terms.free(views, frozenset(bounds))
    except MixedError:
        raise NotReadError("LAPACK on places that mix") from None
    return [_result(walk, call, found, number) for number in range(len(op.results))]


def _whole(call: Call, dims: str) -> list[tuple[int, int]]:
    """Return the number and the extent of the dims of a matrix that are whole."""
    numbered = enumerate(dims, len(call.batch))
    return [(d, call.sizes[letter]) for d, letter in numbered if letter not in call.row.free]


def _result(walk: Walk, call: Call, found: Abstraction, number: int) -> View:
    """Return a result of a call. found: its operands, as functions of the batch and of the dims that are free."""
    terms, which = walk.terms, number + len(call.row.operands)
    element = call.row.types(call.element)[which]
    if 0 in call.shapes[which]:
        return terms.undefined(element)
    whole = _whole(call, call.row.tensors[which])
    said = (call.routine, tuple(sorted(call.flags)), tuple(sorted(_sizes(call))), number)
    node = terms.put(
        Node("lapack", said, found.views, element), (*found.sizes, *[n for _, n in whole])
    )
    exprs = [*found.exprs, *[of_var(index_var(d, n)) for d, n in whole]]
    return terms.view(node, exprs, (), found.guards)


def _sizes(call: Call) -> list[tuple[str, int]]:
    """Return the extents of the dims that are whole."""
    return [(letter, n) for letter, n in call.sizes.items() if letter not in call.row.free]
