"""Put tensors together along a dim, and take parts of what was put together."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.indices import Expr, Var, of_var, plus, variables
from meshweave.verification.terms import Guard, MixedError, Node, Terms, View, dim_var, dims_values

Piece = tuple[tuple[int, int], View]
"""From where to where along a dim, and the value there as a function of the place in the whole dim."""


def concat(terms: Terms, place: Var, pieces: Sequence[Piece]) -> View:
    """Return the value that is `pieces` along the dim whose index is the variable `place`.

    Pieces that continue each other become one.
    """
    whole: list[Piece] = []
    for (start, end), view in pieces:
        if start == end:
            continue
        if whole and whole[-1][1] == view:
            whole[-1] = ((whole[-1][0][0], end), view)
        else:
            whole.append(((start, end), view))
    if len(whole) == 1:
        return whole[0][1]
    kind = terms.type_of(whole[0][1])
    try:
        found = _abstract(terms, place, [v for _, v in whole])
    except MixedError:
        return terms.unknown("pieces at places that mix", kind, [place])
    views, exprs, sizes, guards = found
    if guards:
        others = set[Var]().union(*[_depends(v) for _, v in whole])
        return terms.unknown("pieces that are not all defined", kind, sorted(others | {place}))
    node = terms.put(Node("concat", tuple([at for at, _ in whole]), tuple(views), kind), sizes)
    return View(node, tuple(exprs), (None,) * len(exprs))


def _depends(view: View) -> set[Var]:
    return set[Var]().union(
        *[variables(e) for e in view.exprs], *[variables(e) for e, _ in view.guards]
    )


def _abstract(
    terms: Terms, place: Var, views: Sequence[View]
) -> tuple[list[View], list[Expr], list[int | None], list[tuple[Expr, int]]]:
    """Make the pieces functions of dim 0, the place, and one dim for each other expression."""
    exprs: list[Expr] = [of_var(place)]
    sizes: list[int | None] = [None]
    made, guards = list[View](), list[Guard]()
    for view in views:
        own: list[Expr] = []
        guards += view.guards
        for expr, size, fill in zip(view.exprs, terms.sizes[view.node], view.fills):
            if place in variables(expr):
                coefficient = next((c for a, c in expr.terms if a == place), 0)
                rest = Expr(expr.const, tuple([t for t in expr.terms if t[0] != place]))
                if not coefficient or place in variables(rest):
                    raise MixedError
                base = Expr(0, rest.terms)
                parts = [(dim_var(0), coefficient)]
                if base.terms and not all(_unit(a) for a, _ in base.terms):
                    parts.append((_dim(exprs, sizes, base, None), 1))
                own.append(Expr(rest.const, tuple(sorted(parts))))
            else:
                own.append(of_var(_dim(exprs, sizes, expr, size if fill is None else None)))
        made.append(View(view.node, tuple(own), view.fills))
    return made, exprs, sizes, guards


def _unit(atom: object) -> bool:
    return isinstance(atom, Var) and atom.size == 1


def _dim(exprs: list[Expr], sizes: list[int | None], expr: Expr, size: int | None) -> Var:
    if expr in exprs[1:]:
        number = exprs.index(expr, 1)
        if size is not None:
            known = sizes[number]
            sizes[number] = size if known is None else min(known, size)
        return dim_var(number)
    exprs.append(expr)
    sizes.append(size)
    return dim_var(len(exprs) - 1)


def pieces_of(terms: Terms, view: View, place: Var, start: int, end: int) -> list[Piece]:
    """Return the value from `start` to `end` along a dim, piece by piece."""
    node = terms.nodes[view.node]
    if node.op != "concat" or start >= end:
        return [((start, end), view)] if start < end else []
    shift = view.exprs[0].const
    if view.exprs[0] != plus(of_var(place), Expr(shift)):
        return [((start, end), view)]
    found = []
    for at, piece in zip(node.detail, node.reads):
        assert isinstance(at, tuple)
        low, high = max(start, at[0] - shift), min(end, at[1] - shift)
        if low < high:
            own = terms.composed(piece, dims_values(view.exprs), view.guards)
            found.append(((low, high), own))
    return found


def replaced(terms: Terms, into: View, value: View, boxes: Sequence[tuple[Var, int, int]]) -> View:
    """Return `into` with `value` within a box: for each dim its index, where the box begins and ends.

    Dims that the box takes in full are left out.
    """
    if not boxes:
        return value
    place, start, end = boxes[0]
    inner = [
        (at, replaced(terms, piece, value, boxes[1:]))
        for at, piece in pieces_of(terms, into, place, start, end)
    ]
    around = pieces_of(terms, into, place, 0, start) + inner
    return concat(terms, place, around + pieces_of(terms, into, place, end, place.size))
