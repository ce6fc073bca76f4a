"""Read a function once: what it makes of symbols is what every call makes of its own arguments.

    @layer(s) = exp(s) + s      @layer(@layer(A)) is the node `call T [call T [A]]`, where T is the term exp(s) + s

A call of the whole program and one of a rank's program are the same node where they read the same nodes, and make
the same term of symbols in their place. What lies where is kept apart from it, in the views.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.verification.terms import Node, Terms, View

_CONSTANT = ("const", "iota", "undefined")
"""Nodes that stay what they are, since rules look at them."""


def with_symbols(terms: Terms, views: Sequence[View]) -> tuple[list[View], list[int]]:
    """Return views that read symbols in the place of nodes, and the node that each symbol stands for."""
    symbols: dict[int, int] = {}
    made = []
    for view in views:
        node, sizes = terms.nodes[view.node], terms.sizes[view.node]
        if node.op in _CONSTANT:
            made.append(view)
            continue
        if view.node not in symbols:
            symbol = Node("symbol", (len(symbols), sizes), (), node.type)
            symbols[view.node] = terms.put(symbol, sizes)
        made.append(view._replace(node=symbols[view.node]))
    return made, list(symbols)


def called(terms: Terms, view: View, nodes: Sequence[int]) -> View:
    """Return a view of a term over symbols as a view of what a call makes of nodes."""
    used = sorted(terms.symbols(view.node))
    if not used:
        return view
    term = terms.nodes[view.node]
    if term.op == "symbol":
        return view._replace(node=nodes[used[0]])
    reads = tuple([View(nodes[k]) for k in used])
    node = Node("call", (view.node, tuple(used)), reads, term.type)
    return view._replace(node=terms.put(node, terms.sizes[view.node]))
