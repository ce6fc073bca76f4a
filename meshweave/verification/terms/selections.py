"""Join folds that select, such as argmax: one of the ranks' own is the fold of the elements of all.

A body that selects gives the same however its elements are grouped, and its start may come in again with each group:
`ir/selections.py` tries that. So a fold over ranks of folds over elements is one fold over the digits of both, and what
a rank leaves out because it lies beyond the end of the whole is left out of that.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

from meshweave.ir.expressions import Apply, Body, needed
from meshweave.verification.terms.indices import Expr, Var, of_var, plus, quotient, remainder, times
from meshweave.verification.terms.scalars import limits
from meshweave.verification.terms.terms import Term, Terms, dims_values


class Fold(NamedTuple):
    """Describe a fold: what its body computes, its elements and starts, which elements it takes, and their number.

    condition: i1, of each element; None where it takes all.
    """

    key: Hashable
    reads: tuple[Term, ...]
    condition: Term | None
    over: Var


def unmasked(body: Body, first: int) -> tuple[int | None, Body]:
    """Take from a body the condition without which it leaves all its accumulators, arguments from `first` on, alone."""
    roots = [body.nodes[k] for k in body.results]
    conditions, values = set(), []
    for number, node in enumerate(roots):
        if not isinstance(node, Apply) or node.name != "arith.select":
            return None, body
        condition, value, rest = node.operands
        if rest != first + number:
            return None, body
        conditions.add(condition)
        values.append(value)
    held = set(range(first, first + len(roots)))
    if len(conditions) != 1 or needed(body.nodes, conditions) & held:
        return None, body
    return conditions.pop(), replace(body, results=tuple(values))


def joined(terms: Terms, fold: Fold) -> Fold:
    """Return the fold of all elements, where the elements of `fold` are folds of the same kind from the same start."""
    count = len(fold.reads) // 2
    elements, starts = fold.reads[:count], fold.reads[count:]
    nodes = [terms.nodes[v.node] for v in elements]
    first = nodes[0]
    alike = all(
        node.op == "fold" and node.detail[:2] == (fold.key, k) and node.reads == first.reads
        for k, node in enumerate(nodes)
    )
    plain = all(v.exprs == elements[0].exprs and not v.guards for v in elements)
    if not alike or not plain or fold.condition is not None:
        return _shortened(terms, fold)
    (size,), places = first.detail[2], dims_values(elements[0].exprs)
    every = Var("b", f"_{terms.fresh()}", fold.over.size * size)
    one_by_one = [terms.composed(v, places) for v in first.reads]
    inner = [_in_one(terms, v, fold.over, Var("b", "0", size), every) for v in one_by_one]
    if tuple(inner[count : 2 * count]) != starts:
        return fold
    condition = inner[2 * count] if len(inner) > 2 * count else None
    return _shortened(terms, Fold(fold.key, (*inner[:count], *starts), condition, every))


def _in_one(terms: Terms, view: Term, major: Var, minor: Var, both: Var) -> Term:
    """Replace two digits of a number by that number."""
    made = terms.composed(view, {major: Expr(0), minor: of_var(both)})
    number = plus(times(of_var(major), minor.size), of_var(minor))
    if terms.composed(made, {both: number}) == view:
        return made
    digits = {major: quotient(of_var(both), minor.size), minor: remainder(of_var(both), minor.size)}
    return terms.composed(view, digits)


def _shortened(terms: Terms, fold: Fold) -> Fold:
    """Leave out the last elements where the condition is to be before an end."""
    found = limits(terms, fold.condition) if fold.condition is not None else None
    if found is None or len(found) != 1 or found[0][0] != of_var(fold.over):
        return fold
    short = Var("b", f"_{terms.fresh()}", min(found[0][1], fold.over.size))
    reads = [terms.composed(v, {fold.over: of_var(short)}) for v in fold.reads]
    return Fold(fold.key, tuple(reads), None, short)
