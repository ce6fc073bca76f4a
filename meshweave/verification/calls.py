"""Read a function once: what it makes of symbols is what every call makes of its own arguments.

    @layer(s) = exp(s) + s      @layer(@layer(A)) is the node `call T [call T [A]]`, where T is the term exp(s) + s

Trips of a loop are such calls of its body, which may read symbols of the calls around it: `depth` tells whose they are.
A call of the whole program and one of a rank's program are the same node where they read the same nodes, and make
the same term of symbols in their place. What lies where is kept apart from it, in the views.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.products import ANY, level
from meshweave.verification.terms import Node, Terms, View, dim_place

_CONSTANT = ("const", "iota", "undefined", "unknown")
"""Nodes that stay what they are, since rules look at them."""


def with_symbols(terms: Terms, views: Sequence[View], depth: int) -> tuple[list[View], list[int]]:
    """Return views that read symbols in the place of nodes, and the node that each symbol stands for.

    depth: the number of calls around this one.
    """
    symbols: dict[int, int] = {}
    made = []
    for view in views:
        view = _bound(terms, view)
        node, sizes = terms.nodes[view.node], terms.sizes[view.node]
        if node.op in _CONSTANT:
            made.append(view)
            continue
        if view.node not in symbols:
            may_be = level(terms, View(view.node)) if terms.algebra else ANY
            symbol = Node("symbol", (depth, len(symbols), sizes, may_be), (), node.type)
            symbols[view.node] = terms.put(symbol, sizes)
        made.append(View(symbols[view.node], *view[1:]))
    return made, list(symbols)


def _bound(terms: Terms, view: View) -> View:
    """Return a view that reads no known place: the node that it reads instead has those, and dims for the others.

    Else what is carried from trip to trip would have a dim more for each place that some trip has read.
    """
    if all(e.terms for e in view.exprs):
        return view
    node = terms.nodes[view.node]
    moving = [k for k, e in enumerate(view.exprs) if e.terms]
    if node.op in _CONSTANT or len(moving) == len(view.exprs):
        return view
    numbers = {k: dim_place(number) for number, k in enumerate(moving)}
    places = tuple([numbers.get(k, e) for k, e in enumerate(view.exprs)])
    fills = tuple([None if k in numbers else f for k, f in enumerate(view.fills)])
    sizes = [terms.sizes[view.node][k] for k in moving]
    made = terms.put(Node("at", (), (View(view.node, places, fills),), node.type), sizes)
    rest = [(view.exprs[k], view.fills[k]) for k in moving]
    return View(made, tuple([e for e, _ in rest]), tuple([f for _, f in rest]), view.guards)


def called(terms: Terms, views: Sequence[View], nodes: Sequence[int], depth: int) -> list[View]:
    """Return views of terms over symbols as views of what a call makes of nodes."""
    given: dict[frozenset[tuple[int, int]], tuple[tuple[int, ...], tuple[View, ...]]] = {}
    made, every = [], [View(node) for node in nodes]
    for view in views:
        symbols = terms.symbols(view.node)
        if symbols not in given:
            numbers = tuple(sorted([k for d, k in symbols if d == depth]))
            given[symbols] = numbers, tuple([every[k] for k in numbers])
        used, reads = given[symbols]
        term = terms.nodes[view.node]
        if not used:
            made.append(view)
        elif term.op == "symbol":
            made.append(View(nodes[used[0]], *view[1:]))
        else:
            node = Node("call", (view.node, depth, used), reads, term.type)
            made.append(View(terms.put(node, terms.sizes[view.node]), *view[1:]))
    return made
