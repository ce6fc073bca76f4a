"""Fold trips of a loop that are alike: one node is what many of them make, in the place of a call for each.

    x = f(x, t) for t < 500      `trips 498 f` of f(x, 0), and f of that at t = 499

It is a function of what the symbols stand for before these trips, of the terms that a trip makes of symbols, and of the
places at which the next trip reads them. So it is the same node in both programs where these are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshweave.verification.calls import CONSTANT, ReadCall, bound_view, reads_known, symbol_for
from meshweave.verification.terms.indices import Expr, Var, of_var, plus, substitute, variables
from meshweave.verification.terms.terms import Node, Term, Terms, dim_place, term

LEAST_FOLDED = 4
"""Trips that are folded; fewer are followed one by one."""


class NextValue(NamedTuple):
    """Say what a symbol stands for in the next trip: a term over symbols, at places.

    used: the symbols that the term reads. places: over the dims of what the symbol stands for and the number of the
    trip; none where that is the term itself.
    """

    node: int
    used: tuple[int, ...]
    places: tuple[Expr, ...] = ()
    fills: tuple[int | None, ...] = ()


def folded(
    terms: Terms,
    call: ReadCall,
    given: Sequence[Term],
    nodes: Sequence[int],
    depth: int,
    trips: tuple[Var, range],
) -> list[int] | None:
    """Return the nodes that symbols stand for behind some trips; None where trips are not alike.

    call: what a trip makes of symbols. given: the views of these that it reads. nodes: what they stand for before the
    first trip. depth: the number of calls around it. trips: the variable that numbers them, and which trips these are.
    """
    number, which = trips
    found = _next_values(terms, call, given, nodes, depth, trips)
    if found is None:
        return None
    at = {number: plus(of_var(Var("u", "trip", len(which))), Expr(which.start))}
    found = [f._replace(places=tuple([substitute(e, at) for e in f.places])) for f in found]
    made = []
    for symbol, start in enumerate(nodes):
        if _is_kept(terms, found[symbol], depth, symbol):
            made.append(start)
            continue
        own = sorted(_needed(found, symbol))
        before = Node("given", (), tuple([Term(nodes[k]) for k in own]), "")
        values = tuple([(k, found[k]) for k in own])
        may_be = terms.nodes[given_node(given, terms, depth, symbol)].detail[-1]
        detail = (symbol, len(which), depth, may_be, values)
        node = Node("trips", detail, (Term(terms.put(before, ())),), terms.nodes[start].type)
        made.append(terms.put(node, terms.sizes[start]))
    return made


def given_node(given: Sequence[Term], terms: Terms, depth: int, symbol: int) -> int:
    """Return the node of a symbol."""
    return next(v.node for v in given if terms.nodes[v.node].detail[:2] == (depth, symbol))


def _is_kept(terms: Terms, value: NextValue, depth: int, symbol: int) -> bool:
    """Tell whether a symbol stands for the same in all trips."""
    node = terms.nodes[value.node]
    return node.op == "symbol" and node.detail[:2] == (depth, symbol) and not value.places


def _needed(values: Sequence[NextValue], symbol: int) -> set[int]:
    """Return the symbols that a symbol depends on in later trips, itself among them."""
    found, todo = {symbol}, [symbol]
    while todo:
        for other in values[todo.pop()].used:
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def _next_values(
    terms: Terms,
    call: ReadCall,
    given: Sequence[Term],
    nodes: Sequence[int],
    depth: int,
    trips: tuple[Var, range],
) -> list[NextValue] | None:
    """Return what each symbol stands for in the next trip; None where that trip reads other views than this one."""
    number, which = trips
    first = {number: Expr(which.start)}
    symbols: dict[NextValue, int] = {}
    for called, view, reads in zip(call.views, call.of_nodes(terms, nodes), given, strict=True):
        if any(number in variables(e) for e, _ in view.guards):
            return None
        sizes = terms.sizes[view.node]
        fixed = [variables(e) <= {number} for e in view.exprs]
        moves = [number in variables(e) for e in view.exprs]
        if any(m and (not f or n == 1) for m, f, n in zip(moves, fixed, sizes)):
            return None
        here = terms.composed(view, first)
        if terms.nodes[view.node].op in CONSTANT:
            if here != reads or any(moves):
                return None
            continue
        used = (called.symbol,) if called.symbol >= 0 else called.detail[2]
        value = NextValue(called.view.node, used)
        if reads_known(here.exprs, sizes):
            kept = iter(range(len(fixed)))
            places = [e if f else dim_place(next(kept)) for e, f in zip(view.exprs, fixed)]
            fills = [f if is_fixed else None for f, is_fixed in zip(view.fills, fixed)]
            value = value._replace(places=tuple(places), fills=tuple(fills))
            here = bound_view(terms, here)
        symbol = symbols.setdefault(value, len(symbols))
        if term((symbol_for(terms, here.node, depth, symbol), *here[1:])) != reads:
            return None
    return list(symbols)
