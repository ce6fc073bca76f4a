"""Read LAPACK routines: an element of a result is a function of its place in the matrix and of whole matrices."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.routines import LAPACK, RoutineCall
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.indices import Var, of_var, variables
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.terms import FreeViews, MixedError, Node, Term
from meshweave.verification.walk import ProgramWalk, handles


class WholeCall(NamedTuple):
    """Describe an op that makes of whole dims whole dims, apart for all others.

    said: what else two of these must have in common. whole: for each operand, then each result, number and extent of
    its dims that are whole. title: what reports call it.
    """

    name: str
    said: Hashable
    whole: tuple[tuple[tuple[int, int], ...], ...]
    title: str


@handles(LAPACK)
def _lapack(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    call = RoutineCall.of(op)
    whole = tuple([tuple(_whole(call, dims)) for dims in call.row.tensors])
    sizes = [(letter, n) for letter, n in call.sizes.items() if letter not in call.row.free]
    said = (call.routine, tuple(sorted(call.flags)), tuple(sorted(sizes)))
    return read_whole(walk, op, WholeCall("lapack", said, whole, "LAPACK"))


def _whole(call: RoutineCall, dims: str) -> list[tuple[int, int]]:
    """Return the number and the extent of the dims of a matrix that are whole."""
    numbered = enumerate(dims, len(call.batch))
    return [(d, call.sizes[letter]) for d, letter in numbered if letter not in call.row.free]


def read_whole(walk: ProgramWalk, op: ir.Operation, call: WholeCall) -> list[Term]:
    """Return the results of an op: functions of places in whole dims and of operands along theirs."""
    bounds, views = list[Var](), list[Term]()
    for value, whole in zip(op.operands, call.whole):
        own = [Var("b", str(len(bounds) + k), n) for k, (_, n) in enumerate(whole)]
        places = {index_var(d, n): of_var(v) for v, (d, n) in zip(own, whole)}
        views.append(walk.terms.composed(walk.views[value], places))
        bounds += own
    if any(variables(e) & set(bounds) for view in views for e, _ in view.guards):
        raise NotReadError(f"{call.title} on what holds padding")
    try:
        found = walk.terms.free(views, frozenset(bounds))
    except MixedError:
        raise NotReadError(f"{call.title} on places that mix") from None
    return [_result(walk, op, call, found, number) for number in range(len(op.results))]


def _result(
    walk: ProgramWalk, op: ir.Operation, call: WholeCall, found: FreeViews, number: int
) -> Term:
    """Return a result. found: the operands, as functions of the dims that are not whole."""
    terms, type_ = walk.terms, op.results[number].type
    element = str(type_.element_type)
    if 0 in type_.shape:
        return terms.undefined(element)
    whole = call.whole[len(op.operands) + number]
    node = terms.put(
        Node(call.name, (call.said, number), found.views, element),
        (*found.sizes, *[n for _, n in whole]),
    )
    exprs = [*found.exprs, *[of_var(index_var(d, n)) for d, n in whole]]
    return terms.view(node, exprs, (), found.guards)
