"""Join reductions over parts that lie side by side to one over the whole: a sum that is carried over slices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from itertools import product as product_of

from meshweave.verification.terms.arith import kind_of
from meshweave.verification.terms.diagonals import in_one_form
from meshweave.verification.terms.indices import (
    Expr,
    Var,
    inside,
    is_number,
    of_var,
    plus,
    substitute,
    times,
    total,
    variables,
)
from meshweave.verification.terms.masks import is_masked, is_plain, settled
from meshweave.verification.terms.nodes import Factor
from meshweave.verification.terms.reductions.dims import weight
from meshweave.verification.terms.reductions.factors import (
    LINEAR,
    exponents_of,
    multiplied_as,
    reads_of,
)
from meshweave.verification.terms.reductions.reduce import IDEMPOTENT, closed
from meshweave.verification.terms.terms import Term, Terms, opened

MOST_SUMS = 3
"""Sums within sums that are looked into for parts that can be joined."""


def combine(terms: Terms, kind: str, a: Term, b: Term, depth: int = 0) -> Term | None:
    """Join two reductions over places side by side, or sums that hold such; None where there are none.

    depth: how many sums around these are looked into.
    """
    if kind in IDEMPOTENT and a == b:
        return a
    alike = in_one_form(terms, a, b) if terms.algebra else None
    if alike is not None:
        return combine(terms, kind, *alike, depth)
    if not _alike(terms, kind, a.node, b.node, depth):
        return None
    made = _side_by_side(terms, kind, a, b)
    if made is None and kind == "sum":
        made = _factored(terms, a, b, depth)
    if made is None and depth < MOST_SUMS:
        made = _absorbed(terms, kind, a, b, depth)
    return made


def _alike(terms: Terms, kind: str, a: int, b: int, depth: int) -> bool:
    """Tell whether terms can be such that `combine` joins them, from what they are, wherever they are read."""
    one, other = terms.nodes[a], terms.nodes[b]
    inner = inner_node(terms, kind, a), inner_node(terms, kind, b)
    if inner[0] == inner[1] or "concat" in (one.op, other.op):
        return True
    if any(is_masked(terms, number) for number in inner):
        return True
    shared = {r.node for r in one.reads} & {r.node for r in other.reads}
    if kind == "sum" and one.op in LINEAR and one.op == other.op and shared:
        return True
    if depth == MOST_SUMS:
        return False
    return any(
        kind_of(node.op, node.type) == kind
        and len(node.reads) == 2
        and any(_alike(terms, kind, r.node, rest, depth + 1) for r in node.reads)
        for node, rest in ((one, b), (other, a))
    )


def _side_by_side(terms: Terms, kind: str, a: Term, b: Term) -> Term | None:
    """Join reductions of one body whose places differ by as much as the one is long, or by a number."""
    if a.guards or b.guards:  # both together are defined where each is
        made = _side_by_side(terms, kind, a._replace(guards=()), b._replace(guards=()))
        return made and made._replace(guards=tuple(sorted({*made.guards, *a.guards, *b.guards})))
    if inner_node(terms, kind, a.node) != inner_node(terms, kind, b.node):
        return _behind_mask(terms, kind, a, b) or _behind_mask(terms, kind, b, a)
    (first, over), (second, others) = windows(terms, kind, a), windows(terms, kind, b)
    if first.guards or second.guards or first == second:
        return None
    if len(over) < len(others):
        (first, over), (second, others) = (second, others), (first, over)
    fills = _fills(terms, first, second)
    if fills is None:
        return None
    for grown in over:
        rest = [v for v in over if v != grown]
        pairs = list(zip(over, others)) if len(over) == len(others) else list(zip(rest, others))
        if len(over) - len(others) > 1 or any(x.size != y.size for x, y in pairs if x != grown):
            continue
        names = {y: of_var(x) for x, y in pairs}
        length = next((y.size for x, y in pairs if x == grown), 1)
        moved = [substitute(e, names) for e in second.exprs]
        steps = [weight(e, grown) for e in first.exprs]
        here = [_without(e, grown) for e in first.exprs]
        there = [_without(e, grown) for e in moved]
        even = len(over) > len(others) or steps == [weight(e, grown) for e in moved]
        if None in here or None in there or not even:
            continue
        for low, high, size in ((here, there, grown.size), (there, here, length)):
            if all(h == plus(e, Expr(c * size)) for e, h, c in zip(low, high, steps) if e):
                new = Var("b", f"_{terms.fresh()}", grown.size + length)
                base = [e for e in low if e is not None]
                return joined_over(terms, kind, first, fills, base, steps, new, rest)
    return _stepped(terms, kind, (first, over), (second, others), fills)


def _behind_mask(terms: Terms, kind: str, a: Term, b: Term) -> Term | None:
    """Join a reduction, `b`, with that of a masked body, `a`, which at its places is the same without the mask."""
    if not is_masked(terms, inner_node(terms, kind, a.node)):
        return None
    (body, over), (part, own) = windows(terms, kind, a), windows(terms, kind, b)
    if not over or not is_plain(body) or not is_plain(part):
        return None
    for grown, gone in product_of(over, own if len(own) == len(over) else [None]):
        rest, left = [v for v in over if v != grown], [v for v in own if v != gone]
        length, place = (gone.size, of_var(gone)) if gone else (1, Expr(0))
        for order, shift in product_of(permutations(left), (-length, grown.size)):
            if [v.size for v in order] != [v.size for v in rest]:
                continue
            names = {x: of_var(y) for x, y in zip(rest, order)} | {grown: plus(place, Expr(shift))}
            if settled(terms, terms.composed(body, names)) == part:
                new = Var("b", f"_{terms.fresh()}", grown.size + length)
                wide = terms.composed(body, {grown: plus(of_var(new), Expr(min(0, shift)))})
                return closed(terms, kind, wide, [new, *rest])
    return None


def _without(expr: Expr, var: Var) -> Expr | None:
    """Return an expression at 0 of a variable; None where the variable is divided."""
    rest = Expr(expr.const, tuple([t for t in expr.terms if t[0] != var]))
    return None if var in variables(rest) else rest


def joined_factors(terms: Terms, factors: dict[Term, int]) -> tuple[Term, Term, Term] | None:
    """Return two factors side by side, and what both are; None where there are none."""
    single = [v for v, e in factors.items() if e == 1]
    for a, b in combinations(single, 2):
        made = _side_by_side(terms, "prod", a, b)
        if made is not None:
            return a, b, made
    return None


def _stepped(
    terms: Terms,
    kind: str,
    one: tuple[Term, list[Var]],
    two: tuple[Term, list[Var]],
    fills: Sequence[int | None],
) -> Term | None:
    """Join two reductions whose places differ by numbers: a variable of two values says which."""
    (first, over), (second, others) = one, two
    if [v.size for v in over] != [v.size for v in others]:
        return None
    names = {y: of_var(x) for x, y in zip(over, others)}
    moved = [substitute(e, names) for e in second.exprs]
    steps = [plus(h, times(e, -1)) for e, h in zip(first.exprs, moved)]
    if any(not is_number(s) for s in steps):
        return None
    sign = next((s.const for s in steps if s.const), 0)
    if not sign:
        return None
    base = first.exprs if sign > 0 else moved
    counts = [s.const if sign > 0 else -s.const for s in steps]
    new = Var("b", f"_{terms.fresh()}", 2)
    return joined_over(terms, kind, first, fills, base, counts, new, over)


def joined_over(
    terms: Terms,
    kind: str,
    body: Term,
    fills: Sequence[int | None],
    base: Sequence[Expr],
    steps: Sequence[int],
    new: Var,
    rest: Sequence[Var],
) -> Term:
    """Return a reduction over a variable, that starts at `base` and makes `steps`, and others."""
    exprs = [total(((e, 1), (of_var(new), c))) for e, c in zip(base, steps)]
    return closed(terms, kind, terms.view(body.node, exprs, fills), [new, *rest])


def _fills(terms: Terms, a: Term, b: Term) -> list[int | None] | None:
    """Return what stands beyond the ends of both, None where they differ."""
    found: list[int | None] = []
    for k, size in enumerate(terms.sizes[a.node]):
        one, other = a.fills[k], b.fills[k]
        for mine, yours, view in ((one, other, a), (other, one, b)):
            if mine is None and yours is not None and not (size and inside(view.exprs[k], size)):
                return None
        if None not in (one, other) and one != other:
            return None
        found.append(one if one is not None else other)
    return found


def inner_node(terms: Terms, kind: str, number: int) -> int:
    """Return the node whose elements a reduction of a kind adds up; of anything else itself."""
    node = terms.nodes[number]
    return node.reads[0].node if node.op == "reduce" and node.detail[0] == kind else number


def windows(terms: Terms, kind: str, view: Term) -> tuple[Term, list[Var]]:
    """Return what a reduction of a kind is over, and its variables; of anything else itself, over none."""
    node = terms.nodes[view.node]
    if node.op == "reduce" and node.detail[0] == kind:
        return opened(terms, view)
    return view, []


def _factored(terms: Terms, a: Term, b: Term, depth: int) -> Term | None:
    """Join products that share factors, and whose other factors can be joined; sums that are scaled alike always."""
    node, other = terms.nodes[a.node], terms.nodes[b.node]
    if node.op not in LINEAR or node.op != other.op:
        return None
    if any(f is not None for f in (*a.fills, *b.fills)):
        return None
    mine, yours = [
        list(zip(reads_of(terms, v), exponents_of(n))) for v, n in ((a, node), (b, other))
    ]
    common = [f for f in mine if f in yours]
    rest = [[f for f in side if f not in common] for side in (mine, yours)]
    if not common or not all(rest):
        return None
    one, two = [multiplied_as(terms, node, r) for r in rest]
    joined = combine(terms, "sum", one, two, depth)
    if joined is None and not depth and node.op == "product" and _is_scale(terms, common):
        joined = terms.apply("arith.addf", (), node.type, [one, two])
    return None if joined is None else multiplied_as(terms, node, [*common, (joined, 1)])


def _is_scale(terms: Terms, factors: Sequence[Factor]) -> bool:
    """Tell whether factors are inverse exponentials: what two accumulators of a softmax are scaled by."""
    return all(e <= 0 and terms.nodes[v.node].op == "math.exp" for v, e in factors)


def _absorbed(terms: Terms, kind: str, a: Term, b: Term, depth: int) -> Term | None:
    """Join one operand of a sum with what is added to it."""
    for one, other in ((a, b), (b, a)):
        node = terms.nodes[one.node]
        if kind_of(node.op, node.type) != kind or len(node.reads) != 2:
            continue
        x, y = reads_of(terms, one)
        for part, rest in ((x, y), (y, x)):
            joined = combine(terms, kind, part, other, depth + 1)
            if joined is not None:
                return terms.apply(node.op, node.detail, node.type, [joined, rest])
    return None
