"""Decide masks: conditions on places that hold all over one slice, and nowhere in another.

    exp(i >= j ? s[i, j] : -inf)      exp(s[i, j]) where i = 64 + i0 and j < 64;  0 where i < 64 and j = 64 + j0

So what skips the slices that a mask takes out, and does without the mask in those that it leaves whole, is compared
with what masks all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshweave.verification.terms.arith import UNSIGNED, is_integer, predicate_of
from meshweave.verification.terms.indices import Expr, Var, bounds, of_var, plus, times
from meshweave.verification.terms.terms import Node, Term, Terms, dim_var, dims_values, opened

_CASTS = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.trunci")
_SUMS = {"arith.addi": 1, "arith.subi": -1}
_PRODUCTS = ("arith.muli", "product")


def as_place(terms: Terms, view: Term) -> Expr | None:
    """Return an integer that is computed from places as a place; None for any other, and where it may wrap around."""
    made = _computed(terms, view)
    if made is None or terms.type_of(view) == "index":
        return made
    low, high = bounds(made)
    half = 1 << int(terms.type_of(view)[1:]) - 1
    return made if -half <= low and high < half else None


def _computed(terms: Terms, view: Term) -> Expr | None:
    node = terms.nodes[view.node]
    if view.guards or not (node.type == "index" or is_integer(node.type)):
        return None
    if node.op == "iota":
        return view.exprs[0]
    if node.op == "const":
        return Expr(node.detail[0]) if isinstance(node.detail[0], int) else None
    if node.op not in (*_CASTS, *_SUMS, *_PRODUCTS) or any(f is not None for f in view.fills):
        return None
    reads = [terms.composed(r, dims_values(view.exprs)) for r in node.reads]
    found = [as_place(terms, r) for r in reads]
    parts = [e for e in found if e is not None]
    if len(parts) < len(found):
        return None
    if node.op in _SUMS:
        return plus(parts[0], times(parts[1], _SUMS[node.op]))
    if node.op in _CASTS:
        is_known = node.op != "arith.index_castui" or bounds(parts[0])[0] >= 0
        return parts[0] if is_known else None
    exponents = node.detail if node.op == "product" else (1, 1)
    moving = [e for e in parts if e.terms]
    if any(k != 1 for k in exponents) or len(moving) > 1:
        return None
    made = moving[0] if moving else Expr(1)
    for number in [e.const for e in parts if not e.terms]:
        made = times(made, number)
    return made


def is_masked(terms: Terms, number: int, within: int = 0) -> bool:
    """Tell whether a node chooses between values by places: with a condition, or as it is put together of pieces.

    within: reductions that are looked into.
    """
    key = number, within
    found = terms.masked.get(key)
    if found is None:
        node = terms.nodes[number]
        if node.op == "reduce":
            found = within > 0 and is_masked(terms, node.reads[0].node, within - 1)
        elif not _is_scalar(node):
            found = node.op == "concat"
        else:
            found = node.op == "arith.select" and on_places(terms, node.reads[0].node)
            found = found or any(is_masked(terms, r.node, within) for r in node.reads)
        terms.masked[key] = found
    return found


def _is_scalar(node: Node) -> bool:
    return node.op.startswith(("arith.", "math.")) or node.op == "product"


def on_places(terms: Terms, number: int) -> bool:
    """Tell whether a node is computed from places and numbers only."""
    found = terms.on_places.get(number)
    if found is None:
        node = terms.nodes[number]
        found = node.op in ("iota", "const")
        found = found or (_is_scalar(node) and all(on_places(terms, r.node) for r in node.reads))
        terms.on_places[number] = found
    return found


def settled(terms: Terms, view: Term, within: int = 0) -> Term:
    """Return a view without what its variables decide: conditions, pieces. within: reductions that are looked into."""
    if not is_masked(terms, view.node, within) or not is_plain(view):
        return view
    if terms.nodes[view.node].op == "concat":
        return view  # `Terms.view` has taken its piece
    key = "settled", view, within
    found = terms.known.get(key)
    if found is None:
        found = terms.known[key] = _settled(terms, view, within)
    return found


def _settled(terms: Terms, view: Term, within: int) -> Term:
    node = terms.nodes[view.node]
    if node.op == "reduce":
        body, inner = opened(terms, view)
        made = settled(terms, body, within - 1)
        if made == body:
            return view
        return terms.apply("reduce", (node.detail[0], *inner), node.type, [made])
    reads = [terms.composed(r, dims_values(view.exprs)) for r in node.reads]
    parts = [settled(terms, r, within) for r in reads]
    if node.op == "arith.select":
        parts[0] = _decided(terms, parts[0])
    is_same = parts == reads and all(p.node == r.node for p, r in zip(parts, node.reads))
    return view if is_same else terms.apply(node.op, node.detail, node.type, parts)


def _decided(terms: Terms, condition: Term) -> Term:
    """Return a condition on places, as a constant where its variables decide it."""
    node = terms.nodes[condition.node]
    if not node.op.startswith("arith.") or not is_plain(condition):
        return condition
    reads = [terms.composed(r, dims_values(condition.exprs)) for r in node.reads]
    if node.op == "arith.cmpi":
        return _compared(terms, condition, reads)
    parts = [_decided(terms, r) for r in reads]
    return condition if parts == reads else terms.apply(node.op, node.detail, node.type, parts)


def _compared(terms: Terms, condition: Term, reads: Sequence[Term]) -> Term:
    """Compare places by their ranges: where both count from the same place, by that of their difference."""
    a, b = [as_place(terms, r) for r in reads]
    if a is None or b is None:
        return condition
    node = terms.nodes[condition.node]
    if predicate_of(node.detail) not in UNSIGNED:
        a, b = plus(a, times(b, -1)), Expr(0)
    made = terms.apply(node.op, node.detail, node.type, [terms.iota(a), terms.iota(b)])
    return condition if terms.constant_of(made) is None else made


def seen(terms: Terms, node: Node, sizes: Sequence[int | None]) -> Iterator[Term]:
    """Yield elements of a masked reduction that its mask may leave in all rows: the first, the last, that of the row.

    sizes: of the dims of the node. Of other reductions nothing is yielded.
    """
    body = node.reads[0]
    if node.op != "reduce" or not is_masked(terms, body.node) or not is_plain(body):
        return
    rows = {dim_var(k): Var("i", f"row{k}", n) for k, n in enumerate(sizes) if n}
    bound = [Var("b", str(k), n) for k, n in enumerate(node.detail[1])]
    choices = [{v: Expr(0) for v in bound}, {v: Expr(v.size - 1) for v in bound}]
    for row in rows.values():
        choices.append({v: of_var(row) if row.size <= v.size else Expr(0) for v in bound})
    for choice in choices:
        places = {h: of_var(row) for h, row in rows.items()}
        yield settled(terms, terms.composed(body, {**places, **choice}))


def is_plain(view: Term) -> bool:
    """Tell whether a view has no guards, and nothing beyond ends."""
    return not view.guards and view.fills.count(None) == len(view.fills)
