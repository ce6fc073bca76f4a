"""Make nodes of scalar ops as they stand, and take products apart."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from meshweave.verification.terms.arith import folded, is_integer, neutral
from meshweave.verification.terms.indices import Expr
from meshweave.verification.terms.levels import is_finite, is_not_zero
from meshweave.verification.terms.terms import (
    Guard,
    Node,
    Term,
    Terms,
    dim_place,
    dims_values,
    is_only,
)

Factor = tuple[Term, int]
"""A value and its exponent."""


def plain(
    terms: Terms, name: str, detail: tuple[Hashable, ...], type_: str, reads: Sequence[Term]
) -> Term:
    """Return the node of an op as it stands, over the places that differ in what it reads."""
    places, exprs, sizes = _shared(
        tuple([view.exprs for view in reads]), tuple([terms.sizes[view.node] for view in reads])
    )
    inner = [Term(v.node, dims, (None,) * len(dims)) for v, dims in zip(reads, places)]
    node = terms.put(Node(name, detail, tuple(inner), type_), sizes)
    fills: list[int | None] = []
    guards: list[Guard] = []
    filled = False
    for view in reads:
        filled = filled or view.fills.count(None) != len(view.fills)
        guards += view.guards
    if filled:
        fills = [_fill(terms, name, detail, type_, reads, expr) for expr in exprs]
    return terms.view(node, exprs, fills, guards)


@lru_cache(maxsize=1 << 12)
def _shared(
    exprs: tuple[tuple[Expr, ...], ...], sizes: tuple[tuple[int | None, ...], ...]
) -> tuple[list[tuple[Expr, ...]], tuple[Expr, ...], tuple[int | None, ...]]:
    """Make a dim of each place that is different: where each operand is read over them, the places, and their sizes."""
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
    return reads, tuple(numbers), tuple(found)


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
    made = folded(name, detail, [terms.constant_of(v) for v in values])
    return None if made is None else terms.constant(type_, made).node


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
