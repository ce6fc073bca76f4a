"""Say which maxima of scores do as well as others for what a softmax takes off its scores.

    exp(s - m) / sum exp(s - m)

Of real numbers that is the same for any m. Of floats all of it is 0, or too large, for an m that is far from the
largest score. So where `exp(m)` goes with its inverse a product keeps it as a factor of exponent 0, its shift, and is
only equal to one with the same shift. The shift of a part of the row is not kept where that of a larger part is.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.terms.indices import (
    Expr,
    Var,
    bounds,
    inside,
    is_number,
    plus,
    times,
    variables,
)
from meshweave.verification.terms.levels import NUMBER, compared_with_low, exponent_of, level
from meshweave.verification.terms.masks import settled
from meshweave.verification.terms.nodes import factors_of, is_neutral
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.terms import Term, Terms, dims_values, opened

_MAXIMA = ("arith.maximumf", "arith.maxnumf")
MOST_BRANCHES = 8
"""Values that a masked score may be that are looked at."""


def left_shifts(
    terms: Terms, shifts: Sequence[Term], ups: Sequence[Term], downs: Sequence[Term]
) -> list[Term]:
    """Return the shifts of a product without those of parts of a row, where that of the row is there too.

    shifts: exponentials that went with their inverse. ups, downs: the factors that are left.
    """
    kept = [s for s in dict.fromkeys(shifts) if s not in downs]
    if not kept:
        return []
    scores = [xs for v in ups if (xs := _largest(terms, v))]
    for shift in list(kept):
        own = exponent_of(terms, shift)
        others = [exponent_of(terms, v) for v in (*downs, *kept) if v != shift]
        if own is None or not any(x is not None and covers(terms, x, own) for x in others):
            continue
        if any(all(covers(terms, own, x) for x in xs) for xs in scores):
            kept.remove(shift)
    return kept


def unguarded(terms: Terms, view: Term) -> Term | None:
    """Return x of `x == -inf ? number : x`, None for any other value."""
    if terms.nodes[view.node].op != "arith.select":
        return None
    values = dims_values(view.exprs)
    test, number, x = [terms.composed(r, values) for r in terms.nodes[view.node].reads]
    compared = compared_with_low(terms, test)
    return x if compared == x and level(terms, number) == NUMBER and not view.guards else None


def _largest(terms: Terms, view: Term) -> list[Term]:
    """Return x of `exp(x)`, or the largest of each sum of products with such that are added; nothing for others."""
    node, own = terms.nodes[view.node], exponent_of(terms, view)
    if own is not None:
        return [own]
    if node.op == "arith.addf" and view.fills.count(None) == len(view.fills):
        found = [_largest(terms, terms.at_dims(r, view.exprs, view.guards)) for r in node.reads]
        return [x for xs in found for x in xs] if all(found) else []
    if node.op == "reduce" and node.detail[0] == "sum":
        body, bound = opened(terms, view)
        exponents = [exponent_of(terms, factor) for factor, _ in factors_of(terms, body)]
        return [reduce(terms, "max", x, bound) for x in exponents if x is not None][:1]
    return []


def covers(terms: Terms, wide: Term, narrow: Term) -> bool:
    """Tell whether a maximum is surely over all that another one is over."""
    if wide == narrow:
        return True
    larger, smaller = _operands(terms, wide), _operands(terms, narrow)
    return all(
        is_neutral(terms, n, "max") or any(w == n or _is_part(terms, w, n) for w in larger)
        for n in smaller
    )


def _operands(terms: Terms, view: Term) -> list[Term]:
    """Return what nested maxima are of."""
    view = unguarded(terms, view) or view
    node = terms.nodes[view.node]
    if node.op not in _MAXIMA or view.fills.count(None) != len(view.fills):
        return [view]
    reads = [terms.at_dims(r, view.exprs, view.guards) for r in node.reads]
    return [v for r in reads for v in _operands(terms, r)]


def _is_part(terms: Terms, wide: Term, narrow: Term) -> bool:
    """Tell whether each element that the one maximum is of is one of those of the other."""
    (body, over), (part, _) = _of_maximum(terms, wide), _of_maximum(terms, narrow)
    if not over or body.guards or part.guards:
        return False
    for candidate in _branches(terms, body):
        places = _matched(terms, candidate, part, over) if candidate.node == part.node else None
        if places is None:
            continue
        there = terms.composed(body, places)
        if _is_same(terms, there, part) or _is_same(terms, settled(terms, there), part):
            return True
    return False


def _is_same(terms: Terms, view: Term, part: Term) -> bool:
    """Tell whether two views are the same, or hold what is no part of a maximum."""
    ends = zip(view.fills, part.fills)
    return view[:2] == part[:2] and all(a == b or _is_low(terms, b) for a, b in ends)


def _of_maximum(terms: Terms, view: Term) -> tuple[Term, list[Var]]:
    node = terms.nodes[view.node]
    if node.op == "reduce" and node.detail[0] == "max":
        return opened(terms, view)
    return view, []


def _branches(terms: Terms, body: Term) -> list[Term]:
    """Return a value, and what it may be where it is chosen by a condition."""
    found = [body]
    for view in found:
        node = terms.nodes[view.node]
        if node.op == "arith.select" and len(found) < MOST_BRANCHES:
            found += [terms.composed(r, dims_values(view.exprs)) for r in node.reads[1:]]
    return found


def _matched(terms: Terms, body: Term, part: Term, over: Sequence[Var]) -> dict[Var, Expr] | None:
    """Return what to put in the place of variables so that one view reads where another does; None for nothing.

    Each of them is one of its values, wherever the other view is not beyond an end that holds nothing.
    """
    found: dict[Var, Expr] = {}
    for dim, (expr, there) in enumerate(zip(body.exprs, part.exprs)):
        moving = [(a, c) for a, c in expr.terms if variables(Expr(0, ((a, 1),))) & set(over)]
        rest = Expr(expr.const, tuple([t for t in expr.terms if t not in moving]))
        if not moving and expr == there:
            continue
        var, step = moving[0] if len(moving) == 1 else (None, 1)
        if not isinstance(var, Var):
            return None
        distance = plus(there, times(rest, -1))
        if any(n % step for n in (distance.const, *[c for _, c in distance.terms])):
            return None
        place = Expr(distance.const // step, tuple([(a, c // step) for a, c in distance.terms]))
        size = terms.sizes[part.node][dim]
        has_end = step == 1 and is_number(rest) and _is_low(terms, part.fills[dim])
        is_within = inside(place, var.size)
        if has_end and size is not None and size <= rest.const + var.size:
            is_within = bounds(place)[0] >= 0
        if not is_within or found.setdefault(var, place) != place:
            return None
    return found if set(found) == set(over) else None


def _is_low(terms: Terms, fill: int | None) -> bool:
    """Tell whether what stands beyond the end of a dim is no part of a maximum."""
    return fill is not None and is_neutral(terms, Term(fill), "max")
