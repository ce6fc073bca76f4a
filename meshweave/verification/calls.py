"""Read a function once: what it makes of symbols is what every call makes of its own arguments.

    @layer(s) = exp(s) + s      @layer(@layer(A)) is the node `call T [call T [A]]`, where T is the term exp(s) + s

Trips of a loop are such calls of its body, which may read symbols of the calls around it: `depth` tells whose they are.
A call of the whole program and one of a rank's program are the same node where they read the same nodes, and make
the same term of symbols in their place. What lies where is kept apart from it, in the views.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.terms.levels import ANY, level
from meshweave.verification.terms.terms import Node, Term, Terms, dim_place

_CONSTANT = ("const", "iota", "undefined", "unknown")
"""Nodes that stay what they are, since rules look at them."""


def with_symbols(terms: Terms, views: Sequence[Term], depth: int) -> tuple[list[Term], list[int]]:
    """Return views that read symbols in the place of nodes, and the node that each symbol stands for.

    depth: the number of calls around this one.
    """
    symbols: dict[int, int] = {}
    made = []
    for view in views:
        number, exprs, fills, guards = _bound(terms, view)
        if terms.nodes[number].op in _CONSTANT:
            made.append(view)
            continue
        symbol = symbols.get(number)
        if symbol is None:
            symbol = symbols[number] = _symbol(terms, number, depth, len(symbols))
        made.append(Term(symbol, exprs, fills, guards))
    return made, list(symbols)


def _symbol(terms: Terms, number: int, depth: int, count: int) -> int:
    """Return the symbol that stands for a node."""
    sizes, may_be = terms.sizes[number], level(terms, Term(number)) if terms.algebra else ANY
    return terms.put(
        Node("symbol", (depth, count, sizes, may_be), (), terms.nodes[number].type), sizes
    )


def _bound(terms: Terms, view: Term) -> Term:
    """Return a view that reads no known place: the node that it reads instead has those, and dims for the others.

    Else what is carried from trip to trip would have a dim more for each place that some trip has read. A dim of one
    has no other place.
    """
    for expr, size in zip(view.exprs, terms.sizes[view.node]):
        if not expr.terms and (size != 1 or expr.const):
            break
    else:
        return view
    node = terms.nodes[view.node]
    if node.op in _CONSTANT:
        return view
    moving = [k for k, e in enumerate(view.exprs) if e.terms]
    numbers = {k: dim_place(number) for number, k in enumerate(moving)}
    places = tuple([numbers.get(k, e) for k, e in enumerate(view.exprs)])
    fills = tuple([None if k in numbers else f for k, f in enumerate(view.fills)])
    sizes = [terms.sizes[view.node][k] for k in moving]
    made = terms.put(Node("at", (), (Term(view.node, places, fills),), node.type), sizes)
    rest = [(view.exprs[k], view.fills[k]) for k in moving]
    return Term(made, tuple([e for e, _ in rest]), tuple([f for _, f in rest]), view.guards)


def called(terms: Terms, views: Sequence[Term], nodes: Sequence[int], depth: int) -> list[Term]:
    """Return views of terms over symbols as views of what a call makes of nodes."""
    given: dict[frozenset[tuple[int, int]], tuple[tuple[int, ...], tuple[Term, ...]]] = {}
    made, every = [], [Term(node) for node in nodes]
    for view in views:
        number, exprs, fills, guards = view
        term, symbols = terms.nodes[number], terms.symbols(number)
        if term.op == "symbol" and term.detail[0] == depth:
            made.append(Term(nodes[term.detail[1]], exprs, fills, guards))
            continue
        if symbols not in given:
            numbers = tuple(sorted([k for d, k in symbols if d == depth]))
            given[symbols] = numbers, tuple([every[k] for k in numbers])
        used, reads = given[symbols]
        if used:
            node = Node("call", (number, depth, used), reads, term.type)
            number = terms.put(node, terms.sizes[number])
            made.append(Term(number, exprs, fills, guards))
        else:
            made.append(view)
    return made
