"""Find what parts have in common where one is read at equal places in two dims, as element [1, 1] of a matrix is.

A node has one dim for each place that differs, so that head 0 of the queries with head 0 of the keys is read over one
dim, and head 1 of the queries with head 0 of the keys over two. The first is the second at [0, 0], written anew:

    f[h0, h1] = Q[h0] * K[h1]     at [0, 0]     is     Q[h0] * K[h0]     at [0]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from meshweave.verification.terms.indices import Expr, Var, bounds, of_var
from meshweave.verification.terms.masks import is_plain
from meshweave.verification.terms.terms import Term, Terms, dims_values, opened

MOST_GUESSES = 16
"""Ways to read a part elsewhere that are tried."""
MOST_LEVELS = 64
"""Ops behind each other that are written anew."""
_SCALAR = ("arith.", "math.", "complex.")


def anew(terms: Terms, view: Term, levels: int = MOST_LEVELS) -> Term:
    """Return a value written anew from what it reads: dims that are read at the same place become one.

    levels: of ops that are looked into; what lies deeper stays as it is.
    """
    if not levels or not is_plain(view) or any(bounds(e)[0] < 0 for e in view.exprs):
        return view
    # a node is written anew once for all places that are the same ones in the same dims
    moving = dict.fromkeys([e for e in view.exprs if e.terms])
    names = {e: Var("i", f"anew{k}", bounds(e)[1] + 1) for k, e in enumerate(moving)}
    exprs = tuple([of_var(names[e]) if e.terms else e for e in view.exprs])
    key = ("anew", view.node, exprs)
    found = terms.known.get(key)
    if found is None:
        found = terms.known[key] = _anew(terms, view._replace(exprs=exprs), levels - 1)
    return terms.composed(found, {var: expr for expr, var in names.items()})


def _anew(terms: Terms, view: Term, levels: int) -> Term:
    node = terms.nodes[view.node]
    if node.op == "reduce":
        body, over = opened(terms, view)
        read = anew(terms, body, levels)
        return terms.apply("reduce", (node.detail[0], *over), node.type, [read])
    if node.op != "product" and not (node.reads and node.op.startswith(_SCALAR)):
        return view
    places = dims_values(view.exprs)
    reads = [anew(terms, terms.composed(read, places), levels) for read in node.reads]
    return terms.apply(node.op, node.detail, node.type, reads)


def in_one_form(terms: Terms, one: Term, two: Term) -> tuple[Term, Term] | None:
    """Return two values as one node at different places, where one of them has equal places in dims of the other.

    None where none is found, or where half of all terms are made already: what is written anew makes more.
    """
    if 2 * len(terms.nodes) > terms.most:
        return None
    nodes = terms.nodes[one.node], terms.nodes[two.node]
    is_other = len(one.exprs) != len(two.exprs) and nodes[0].op == nodes[1].op
    if not is_other or not is_plain(one) or not is_plain(two) or nodes[0].op == "concat":
        return None
    if _moving(one) != _moving(
        two
    ):  # one depends on a place that the other does not: numbers change nothing
        return None
    few, many = (one, two) if len(one.exprs) < len(two.exprs) else (two, one)
    for exprs in _elsewhere(few, many):
        there = many._replace(exprs=tuple(exprs))
        if anew(terms, there) == anew(terms, few):
            return (there, two) if few is one else (one, there)
    return None


def _moving(view: Term) -> frozenset[Expr]:
    """Return the places that a view reads which are no numbers."""
    return frozenset([e for e in view.exprs if e.terms])


def _elsewhere(few: Term, many: Term) -> Iterator[list[Expr]]:
    """Yield the places of `many` with numbers of `few` in the place of its own."""
    numbers = sorted({e for e in few.exprs if not e.terms})
    choices = [[e] if e.terms else numbers for e in many.exprs]
    if numbers and prod(map(len, choices)) <= MOST_GUESSES:
        yield from map(list, product(*choices))
