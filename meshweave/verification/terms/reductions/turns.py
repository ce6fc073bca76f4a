"""Join what is added up in another order on each rank, as in a ring."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from itertools import product as product_of
from math import prod

from meshweave.verification.terms.indices import (
    Expr,
    Var,
    of_var,
    plus,
    substitute,
    times,
    variables,
)
from meshweave.verification.terms.reductions.factors import reads_of
from meshweave.verification.terms.reductions.joins import inner_node, joined_over, windows
from meshweave.verification.terms.terms import Term, Terms

MOST_PARTS = 64
"""Parts of a sum that are looked at for those that come in turn."""
MOST_COORDINATES = 1 << 12
"""Coordinates at which it is looked whether parts are the same in another order."""


def in_turn(terms: Terms, kind: str, name: str, a: Term, b: Term) -> Term | None:
    """Join what is added up in another order on each rank, as in a ring: all parts, once one has come from each.

    name: the op that combines a and b.
    """
    nodes = _nodes_of(terms, kind, name, a.node) + _nodes_of(terms, kind, name, b.node)
    if len(nodes) > MOST_PARTS or len(set(nodes)) == len(nodes):
        return None
    parts = [*operands_of(terms, name, a), *operands_of(terms, name, b)]
    bodies: dict[int, list[Term]] = {}
    for part in parts if len(parts) <= MOST_PARTS else ():
        bodies.setdefault(inner_node(terms, kind, part.node), []).append(part)
    for group in bodies.values():
        made = _all_in_turn(terms, kind, group) if len(group) > 1 else None
        if made is not None:
            for other in parts:
                if other not in group:
                    made = terms.apply(name, (), terms.type_of(made), [made, other])
            return made
    return None


def _nodes_of(terms: Terms, kind: str, name: str, number: int) -> tuple[int, ...]:
    """Return the nodes whose elements nested ops of a name combine, about MOST_PARTS at most."""
    key = (kind, name, number)
    found = terms.parts.get(key)
    if found is None:
        node, found = terms.nodes[number], ()
        if node.op != name:
            found = (-1, -1) if node.op == "concat" else (inner_node(terms, kind, number),)
        else:
            for read in node.reads:
                found += _nodes_of(terms, kind, name, read.node)
        found = terms.parts[key] = found[: MOST_PARTS + 1]
    return found


def operands_of(terms: Terms, name: str, view: Term) -> list[Term]:
    """Return what nested ops of a name combine."""
    node = terms.nodes[view.node]
    if node.op != name or any(f is not None for f in view.fills):
        return [view]
    return [v for r in reads_of(terms, view) for v in operands_of(terms, name, r)]


def _all_in_turn(terms: Terms, kind: str, group: Sequence[Term]) -> Term | None:
    """Join reductions of one body whose places are the same ones on all ranks, in another order."""
    (first, over), *others = [windows(terms, kind, v) for v in group]
    rows = [first.exprs]
    for other, own in others:
        if [v.size for v in own] != [v.size for v in over]:
            return None
        rows.append(
            tuple([substitute(e, {y: of_var(x) for x, y in zip(over, own)}) for e in other.exprs])
        )
    views = [first, *[v for v, _ in others]]
    if any(v.guards or any(f is not None for f in v.fills) for v in views):
        return None
    shared = [_shared([row[d] for row in rows]) for d in range(len(first.exprs))]
    moving = [[plus(e, times(s, -1)) for e, s in zip(row, shared)] for row in rows]
    found = _progression(moving)
    if found is None:
        return None
    base = [plus(s, Expr(n)) for s, n in zip(shared, found[0])]
    new = Var("b", f"_{terms.fresh()}", len(group))
    return joined_over(terms, kind, first, first.fills, base, found[1], new, over)


def _shared(exprs: Sequence[Expr]) -> Expr:
    """Return the terms that expressions have in common."""
    return Expr(0, tuple([t for t in exprs[0].terms if all(t in e.terms for e in exprs)]))


def _progression(rows: Sequence[Sequence[Expr]]) -> tuple[list[int], list[int]] | None:
    """Return the first of some places and the step between them, where they are the same for all coordinates.

    rows: the places, expressions of coordinates, each with a number for each dim. None where they are not.
    """
    depends = sorted(set[Var]().union(*[variables(e) for row in rows for e in row]))
    if not depends or any(v.kind not in "ix" for v in depends):
        return None
    if prod(v.size for v in depends) > MOST_COORDINATES:
        return None
    seen = set()
    for at in product_of(*[range(v.size) for v in depends]):
        known = dict(zip(depends, map(Expr, at)))
        places = [[substitute(e, known) for e in row] for row in rows]
        if any(e.terms for row in places for e in row):
            return None
        seen.add(tuple(sorted(tuple([e.const for e in row]) for row in places)))
    if len(seen) != 1:
        return None
    (places_,) = seen
    steps = [[b - a for a, b in zip(one, two)] for one, two in pairwise(places_)]
    return (list(places_[0]), steps[0]) if all(s == steps[0] and any(s) for s in steps) else None
