"""Make nodes of scalar ops as they stand, and take products apart."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from meshweave.verification.terms.arith import folded, is_integer, neutral
from meshweave.verification.terms.indices import Expr
from meshweave.verification.terms.levels import is_finite, is_not_zero
from meshweave.verification.terms.terms import (
    Term,
    Terms,
    at_only_place,
    dim_place,
    dims_values,
    is_only,
    node_of,
    term,
)

Factor = tuple[Term, int]
"""A value and its exponent."""


def plain(
    terms: Terms, name: str, detail: tuple[Hashable, ...], type_: str, reads: Sequence[Term]
) -> Term:
    """Return the node of an op as it stands, over the places that differ in what it reads."""
    numbers, exprs, fills, guards = zip(*reads) if reads else ((), (), (), ())
    shared = _shared(exprs, tuple(map(terms.sizes.__getitem__, numbers)))
    inner = tuple([term((n, *where)) for n, where in zip(numbers, shared.reads)])
    node = terms.put(node_of((name, detail, inner, type_)), shared.sizes)
    filled = fills != shared.ends
    if not filled and shared.made is not None and not any(guards):
        return term((node, *shared.made, ()))
    ends = [_fill(terms, name, detail, type_, reads, e) for e in shared.exprs] if filled else ()
    return terms.view(node, shared.exprs, ends, [g for view in reads for g in view.guards])


NODE = itemgetter(0)
"""Take the node of a term; of several terms with `map`, which is faster than a loop."""


class _SharedPlaces(NamedTuple):
    """Hold the dims of a node: one for each place that is different.

    reads: for each operand where it is read over them, with its `ends`: that nothing is known beyond, and no guards.
    exprs, sizes: the places, and how far each is defined. made: places and fills of the view of the node; None where it
    has guards.
    """

    reads: tuple[tuple[tuple[Expr, ...], tuple[None, ...], tuple[()]], ...]
    ends: tuple[tuple[None, ...], ...]
    exprs: tuple[Expr, ...]
    sizes: tuple[int | None, ...]
    made: tuple[tuple[Expr, ...], tuple[None, ...]] | None


@lru_cache(maxsize=1 << 12)
def _shared(
    exprs: tuple[tuple[Expr, ...], ...], sizes: tuple[tuple[int | None, ...], ...]
) -> _SharedPlaces:
    numbers: dict[Expr, int] = {}
    found: list[int | None] = []
    reads = []
    for own, limits_ in zip(exprs, sizes):
        dims = []
        for expr, size in zip(own, limits_):
            if is_only(expr, size):
                dims.append(expr)
                continue
            number = numbers.get(expr)
            if number is None:
                number = numbers[expr] = len(found)
                found.append(size)
            elif size is not None and size != found[number]:
                known = found[number]
                found[number] = size if known is None else min(size, known)
            dims.append(dim_place(number))
        reads.append(tuple(dims))
    places, guards = at_only_place(tuple(numbers), found, (), ())
    made = None if guards else (tuple(places), (None,) * len(found))
    ends = tuple([(None,) * len(dims) for dims in reads])
    where = tuple([(dims, end, ()) for dims, end in zip(reads, ends)])
    return _SharedPlaces(where, ends, tuple(numbers), tuple(found), made)


def _fill(
    terms: Terms,
    name: str,
    detail: tuple[Hashable, ...],
    type_: str,
    reads: Sequence[Term],
    expr: Expr,
) -> int | None:
    """Return what stands beyond the end of a dim: known where all that is read is a constant there."""
    if name == "product":
        return _zero_fill(terms, detail, type_, reads, expr)
    values = []
    for view in reads:
        if expr in view.exprs:
            fill = view.fills[view.exprs.index(expr)]
            if fill is None:
                return None
            values.append(Term(fill))
        elif terms.constant_of(view) is not None:
            values.append(view)
        else:
            return None
    made = folded(
        name, detail, [terms.constant_of(v) for v in values], list(map(terms.type_of, values))
    )
    return None if made is None else terms.constant(type_, made).node


def in_order(reads: Sequence[Term]) -> Sequence[Term]:
    """Return the operands of an op that has no order of its own in one: that of their nodes first of all."""
    if len(reads) == 2 and reads[0].node != reads[1].node:
        return reads if reads[0].node < reads[1].node else reads[::-1]
    return sorted(reads, key=turn)


def turn(view: Term) -> tuple[object, ...]:
    """Return what orders operands that have no order of their own: last of all how far places are moved.

    So they are in the same order in each slice.
    """
    exprs = view.exprs
    places = tuple([e.terms for e in exprs]), tuple([e.const for e in exprs])
    return (view.node, *places, tuple([-1 if f is None else f for f in view.fills]), view.guards)


def _zero_fill(
    terms: Terms,
    exponents: tuple[Hashable, ...],
    type_: str,
    reads: Sequence[Term],
    expr: Expr,
) -> int | None:
    """Return 0 where a factor is 0 beyond the end of a dim and all others are numbers; None where nothing is known."""
    zeros = 0
    for view, exponent in zip(reads, exponents):
        if not exponent:
            continue
        at = view.exprs.index(expr) if expr in view.exprs else None
        fill = None if at is None else view.fills[at]
        up = isinstance(exponent, int) and exponent > 0
        if fill is not None and terms.constant_of(Term(fill)) == 0 and up:
            zeros += 1
        elif at is not None or not (is_finite if up else is_not_zero)(terms, view):
            return None
    return terms.constant(type_, 0 if is_integer(type_) else 0.0).node if zeros else None


def is_neutral(terms: Terms, view: Term, kind: str) -> bool:
    """Tell whether a view is the neutral element of a reduction everywhere."""
    value = terms.constant_of(view)
    return value is not None and value == neutral(kind, terms.type_of(view))


def factors_of(terms: Terms, view: Term) -> list[Factor]:
    """Return the factors of a value."""
    node = terms.nodes[view.node]
    if node.op != "product" or any(f is not None for f in view.fills):
        return [(view, 1)]
    values = dims_values(view.exprs)
    return [(terms.composed(r, values, view.guards), e) for r, e in zip(node.reads, node.detail)]
