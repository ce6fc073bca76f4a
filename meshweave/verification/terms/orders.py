"""Say which elements come first in order, and join the first of blocks to those of the whole.

the first 3 of (the first 3 of t[0..7], the first 3 of t[8..15])   =   the first 3 of t[0..15]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from meshweave.verification.terms.indices import (
    Expr,
    Var,
    bounds,
    inside,
    of_var,
    plus,
    times,
    total,
    variables,
)
from meshweave.verification.terms.masks import as_place, is_plain
from meshweave.verification.terms.terms import Node, Term, Terms, dims_values

_KEPT = ("arith.index_cast", "arith.extsi", "arith.trunci", "arith.minsi", "arith.maxsi")
"""Ops that leave a place what it is: casts, and bounds of the dim that it is a place of."""


def ordered(terms: Terms, how: Hashable, keys: Term, size: int, place: Expr) -> Term:
    """Return which element comes `place`-th in order of `keys`, which are read at variable "b" 0 of that size.

    Raises MixedError where they are read at sums of it and others.
    """
    found = terms.free([keys], frozenset([Var("b", "0", size)]))
    node = Node("order", (how, size), found.views, "i32")
    number = terms.put(node, (*found.sizes, size))
    return terms.view(number, (*found.exprs, place), (), found.guards)


def in_order(terms: Terms, view: Term, along: Var) -> tuple[Term, Term] | None:
    """Return the tensor, read at "g" 0, whose elements a view has in an order, and the place in that; None for others.

    A place in a part that begins elsewhere is that of a tensor of places. along: what numbers the places of the order.
    """
    node = terms.nodes[view.node]
    if along.size == 1:  # there is only one order
        number = as_place(terms, view)
        return (view if number is None else terms.iota(number)), terms.iota(Expr(0))
    if not is_plain(view):
        return None
    if node.op == "gather":
        table, *indices = _reads(terms, view)
        place = place_of(terms, indices[0]) if len(indices) == 1 else None
    elif node.op == "arith.addi":
        added = _reads(terms, view)
        places = [p for p in (place_of(terms, r) for r in added) if p is not None]
        begins = [e for e in (as_place(terms, r) for r in added) if e is not None]
        if len(places) != 1 or len(begins) != 1:
            return None
        (place,), (begin,) = places, begins
        size = terms.nodes[place.node].detail[1]
        table = terms.iota(plus(begin, of_var(Var("g", "0", size))))
    else:
        return None
    if place is None or place.exprs[-1] != of_var(along):
        return None
    within = [v for e in (*table.exprs, *place.exprs[:-1]) for v in variables(e)]
    return None if along in within else (table, place)


def before_last(terms: Terms, keys: Term, bound: Var, last: Term | None) -> int | None:
    """Return how many keys, numbered by `bound`, come before those that are all one number; None where none are.

    last: a number that no other comes behind: keys of it that lie behind all others come behind these.
    """
    for expr, size, fill in zip(keys.exprs, terms.sizes[keys.node], keys.fills):
        if expr == of_var(bound) and size is not None and size < bound.size:
            return size if fill is not None and Term(fill) == last else None
    return None


def first_of_blocks(terms: Terms, table: Term, indices: Sequence[Term]) -> Term | None:
    """Return which elements of a tensor come first, where what is read says so for its blocks; None for anything else.

    table: where in the tensor the first elements of each block lie, block by block. indices: of these the first ones,
    in order of the elements.
    """
    if len(indices) != 1 or terms.nodes[table.node].op != "arith.addi" or not is_plain(table):
        return None
    last, places = (
        place_of(terms, indices[0]),
        {v for e in table.exprs for v in variables(e) if v.kind == "g"},
    )
    if last is None or len(places) != 1:
        return None
    node, (g,) = terms.nodes[last.node], places
    how, count = node.detail
    own, begin = sorted(_reads(terms, table), key=lambda r: terms.nodes[r.node].op != "order")
    inner = terms.nodes[own.node]
    if inner.op != "order" or inner.detail[0] != how or not is_plain(own) or g.size != count:
        return None
    size, few = inner.detail[1], bounds(own.exprs[-1])[1] + 1
    blocks = count // few
    q, r = Var("p", f"q{terms.fresh()}", blocks), Var("p", f"r{terms.fresh()}", few)
    at = total(((of_var(q), few), (of_var(r), 1)))
    own, begin = [terms.composed(v, {g: at}) for v in (own, begin)]
    keys = terms.composed(node.reads[0], {**dims_values(last.exprs[:-1]), Var("b", "0", count): at})
    is_r = own.exprs[-1] == (of_var(r) if few > 1 else Expr(0))
    if count % few or not is_r or as_place(terms, begin) != times(of_var(q), size):
        return None
    if few < size and not inside(last.exprs[-1], few):
        return None
    whole = _whole(terms, own, keys, q, blocks)
    return None if whole is None else ordered(terms, how, whole, blocks * size, last.exprs[-1])


def _whole(terms: Terms, own: Term, keys: Term, q: Var, blocks: int) -> Term | None:
    """Return the elements of the whole tensor, of which `keys` are those that come first in block `q`."""
    inner, size = terms.nodes[own.node], terms.nodes[own.node].detail[1]
    if terms.nodes[keys.node].op != "gather" or not is_plain(keys):
        return None
    table, *indices = _reads(terms, keys)
    if len(indices) != 1 or place_of(terms, indices[0]) != own or not is_plain(table):
        return None
    here = plus(times(of_var(q), size), of_var(Var("g", "0", size)))
    dims = [d for d, e in enumerate(table.exprs) if e == here]
    others = [e for d, e in enumerate(table.exprs) if d not in dims]
    if len(dims) != 1 or any(q in variables(e) for e in others):
        return None
    (dim,), n = dims, blocks * size
    block = terms.composed(inner.reads[0], dims_values(own.exprs[:-1]))
    read = terms.composed(table, {Var("g", "0", size): of_var(Var("b", "0", size))})
    if block != read or terms.sizes[table.node][dim] not in (n, None):
        return None
    exprs = [of_var(Var("b", "0", n)) if d == dim else e for d, e in enumerate(table.exprs)]
    return terms.view(table.node, exprs, table.fills)


def place_of(terms: Terms, view: Term) -> Term | None:
    """Return the place in an order that a number is, of any type; None for any other."""
    node = terms.nodes[view.node]
    if not is_plain(view):
        return None
    if node.op == "order":
        return view
    if node.op not in _KEPT:
        return None
    known = [place_of(terms, r) for r in _reads(terms, view)]
    found = [place for place in known if place is not None]
    if len(found) != 1 or not _keeps(terms, view, found[0]):
        return None
    return found[0]


def _keeps(terms: Terms, view: Term, place: Term) -> bool:
    """Tell whether a cast, or the bound of a place, leaves the place what it is."""
    name, size = terms.nodes[view.node].op, terms.nodes[place.node].detail[1]
    if name not in ("arith.minsi", "arith.maxsi"):
        kind = terms.type_of(view)
        return kind == "index" or size <= 1 << int(kind[1:]) - 1
    ends = [as_place(terms, r) for r in _reads(terms, view)]
    numbers = [e.const for e in ends if e is not None and not e.terms]
    if len(numbers) != 1:
        return False
    return numbers[0] >= size - 1 if name == "arith.minsi" else numbers[0] <= 0


def _reads(terms: Terms, view: Term) -> list[Term]:
    values = dims_values(view.exprs)
    return [terms.composed(r, values, view.guards) for r in terms.nodes[view.node].reads]
