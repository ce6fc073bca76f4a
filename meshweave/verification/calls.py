"""Read a function once: what it makes of symbols is what every call makes of its own arguments.

    @layer(s) = exp(s) + s      @layer(@layer(A)) is the node `call T [call T [A]]`, where T is the term exp(s) + s

What is in brackets is a node of its own, `given`, which the results of a call have in common.
Trips of a loop are such calls of its body, which may read symbols of the calls around it: `depth` tells whose they are.
A call of the whole program and one of a rank's program are the same node where they read the same nodes, and make
the same term of symbols in their place. What lies where is kept apart from it, in the views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from meshweave.verification.terms.indices import Expr
from meshweave.verification.terms.levels import ANY, level
from meshweave.verification.terms.terms import Node, Term, Terms, dim_place, term

CONSTANT = ("const", "iota", "undefined", "unknown")
"""Nodes that stay what they are, since rules look at them."""


def with_symbols(terms: Terms, views: Sequence[Term], depth: int) -> tuple[list[Term], list[int]]:
    """Return views that read symbols in the place of nodes, and the node that each symbol stands for.

    depth: the number of calls around this one.
    """
    symbols: dict[int, int] = {}
    made = []
    for view in views:
        if reads_known(view.exprs, terms.sizes[view.node]):
            view = bound_view(terms, view)
        number, exprs, fills, guards = view
        symbol = symbols.get(number)
        if symbol is None:
            if terms.nodes[number].op in CONSTANT:
                made.append(view)
                continue
            symbol = symbols[number] = symbol_for(terms, number, depth, len(symbols))
        made.append(term((symbol, exprs, fills, guards)))
    return made, list(symbols)


def symbol_for(terms: Terms, number: int, depth: int, count: int) -> int:
    """Return the symbol that stands for a node."""
    sizes, type_ = terms.sizes[number], terms.nodes[number].type
    may_be = level(terms, Term(number)) if terms.algebra else ANY
    key = depth, count, sizes, type_, may_be
    found = terms.symbols.get(key)
    if found is None:
        node = Node("symbol", (depth, count, sizes, may_be), (), type_)
        found = terms.symbols[key] = terms.put(node, sizes)
    return found


@lru_cache(maxsize=1 << 12)
def reads_known(exprs: tuple[Expr, ...], sizes: tuple[int | None, ...]) -> bool:
    """Tell whether a view reads a known place of a dim; a dim of one has no other."""
    return any(not e.terms and (size != 1 or e.const) for e, size in zip(exprs, sizes))


def bound_view(terms: Terms, view: Term) -> Term:
    """Return a view that reads no known place: the node that it reads instead has those, and dims for the others.

    Else what is carried from trip to trip would have a dim more for each place that some trip has read.
    """
    node = terms.nodes[view.node]
    if node.op in CONSTANT:
        return view
    moving = [k for k, e in enumerate(view.exprs) if e.terms]
    numbers = {k: dim_place(number) for number, k in enumerate(moving)}
    places = tuple([numbers.get(k, e) for k, e in enumerate(view.exprs)])
    fills = tuple([None if k in numbers else f for k, f in enumerate(view.fills)])
    sizes = [terms.sizes[view.node][k] for k in moving]
    made = terms.put(Node("at", (), (Term(view.node, places, fills),), node.type), sizes)
    rest = [(view.exprs[k], view.fills[k]) for k in moving]
    return Term(made, tuple([e for e, _ in rest]), tuple([f for _, f in rest]), view.guards)


class CalledView(NamedTuple):
    """Describe a result of a call.

    given: which of the groups of symbols it depends on, -1 for none. symbol: the symbol that it is, -1 for none.
    detail: of the node of the call. view: the term over symbols.
    """

    given: int
    symbol: int
    detail: tuple[Any, ...]
    view: Term


@dataclass(frozen=True)
class ReadCall:
    """Hold what a call makes of symbols. groups: those that results depend on, by number. ops: how many were read."""

    views: Sequence[CalledView]
    groups: Sequence[tuple[int, ...]]
    ops: int

    @classmethod
    def of(cls, terms: Terms, views: Sequence[Term], depth: int, ops: int) -> ReadCall:
        """Make it of terms over symbols. depth: the number of calls around this one."""
        groups: dict[tuple[int, ...], int] = {}
        made = []
        for view in views:
            node = terms.nodes[view.node]
            if node.op == "symbol" and node.detail[0] == depth:
                made.append(CalledView(-1, node.detail[1], (), view))
                continue
            used = tuple(sorted([k for d, k in terms.symbols_of(view.node) if d == depth]))
            group = groups.setdefault(used, len(groups)) if used else -1
            made.append(CalledView(group, -1, (view.node, depth, used), view))
        return cls(made, list(groups), ops)

    def of_nodes(self, terms: Terms, nodes: Sequence[int]) -> list[Term]:
        """Return the views of what a call makes of nodes in the place of symbols."""
        every = [Term(node) for node in nodes]
        given = []
        for group in self.groups:
            reads = tuple(map(every.__getitem__, group))
            given.append((Term(terms.put(Node("given", (), reads, ""), ())),))
        made = []
        for number, symbol, detail, (node, exprs, fills, guards) in self.views:
            if symbol >= 0:
                node = nodes[symbol]
            elif number >= 0:
                call = Node("call", detail, given[number], terms.nodes[node].type)
                node = terms.put(call, terms.sizes[node])
            made.append(term((node, exprs, fills, guards)))
        return made
