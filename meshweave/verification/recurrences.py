"""Fold trips of a loop that are alike: one node is what many of them make, in the place of a call for each.

    x = f(x, t) for t < 500      `trips 498 f` of f(x, 0), and f of that at t = 499

It is a function of what the symbols stand for before these trips, of the terms that a trip makes of symbols, and of
the places at which the next trip reads them. So it is the same node in both programs where these are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from meshweave.verification.calls import (
    CONSTANT,
    Forms,
    ReadCall,
    bound_view,
    form_places,
    in_form,
    reads_known,
    symbol_for,
)
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


@dataclass(frozen=True)
class Trips:
    """Hold trips of a loop.

    call: what a trip makes of symbols. given: the views of these that it reads. nodes: what they stand for before the
    first trip. depth: the number of calls around. number: the variable that numbers trips. which: the trips.
    forms: those of the carried values.
    """

    terms: Terms
    call: ReadCall
    given: Sequence[Term]
    nodes: Sequence[int]
    depth: int
    number: Var
    which: range
    forms: Forms = ()

    def behind(self) -> list[int] | None:
        """Return the nodes that symbols stand for behind these trips; None where trips are not alike."""
        terms, found = self.terms, self._next_values()
        if found is None:
            return None
        trip = of_var(Var("u", "trip", len(self.which)))
        at = {self.number: plus(trip, Expr(self.which.start))}
        found = [f._replace(places=tuple([substitute(e, at) for e in f.places])) for f in found]
        nexts = [Term(terms.put(Node("next", (self.depth, f), (), ""), ())) for f in found]
        starts, levels = list(map(Term, self.nodes)), self._levels()
        made = []
        for symbol, start in enumerate(self.nodes):
            if self._is_kept(found[symbol], symbol):
                made.append(start)
                continue
            own = tuple(sorted(_needed(found, symbol)))
            before = Term(terms.put(Node("given", (), tuple([starts[k] for k in own]), ""), ()))
            detail = (symbol, len(self.which), self.depth, levels[symbol], own)
            reads = (before, *[nexts[k] for k in own])
            node = Node("trips", detail, reads, terms.nodes[start].type)
            made.append(terms.put(node, terms.sizes[start]))
        return made

    def _levels(self) -> dict[int, int]:
        """Return what numbers symbols may be, in all trips."""
        reads = [self.terms.nodes[v.node] for v in self.given]
        symbols = [node.detail for node in reads if node.op == "symbol"]
        return {number: level for depth, number, _, level in symbols if depth == self.depth}

    def _is_kept(self, value: NextValue, symbol: int) -> bool:
        """Tell whether a symbol stands for the same in all trips."""
        node = self.terms.nodes[value.node]
        return node.op == "symbol" and node.detail[:2] == (self.depth, symbol) and not value.places

    def _next_values(self) -> list[NextValue] | None:
        """Return what each symbol stands for in the next trip; None where that reads other views than this one."""
        terms, trip, symbols = self.terms, self.number, dict[NextValue, int]()
        values, first = list[NextValue](), Expr(self.which.start)
        made = self.call.of_nodes(terms, self.nodes)
        every = zip_longest(self.call.views, made, self.given, self.forms)
        for called, view, reads, form in every:
            sizes, here = terms.sizes[view.node], terms.composed(view, {trip: first})
            used = (called.symbol,) if called.symbol >= 0 else called.detail[2]
            value = NextValue(called.view.node, used)
            formed = None if form is None else in_form(terms, here, form)
            if form is not None and formed is not None:
                if view.exprs != form.exprs or sizes != form.sizes:
                    places = form_places(form, view.exprs, sizes, trip)
                    if places is None or view.guards:
                        return None
                    value = value._replace(places=places, fills=view.fills)
                values.append(value)
                symbol = symbol_for(terms, formed.node, self.depth, len(values) - 1)
                if formed._replace(node=symbol) != reads:
                    return None
                continue
            if any(trip in variables(e) for e, _ in view.guards):
                return None
            fixed = [variables(e) <= {trip} for e in view.exprs]
            moves = [trip in variables(e) for e in view.exprs]
            if any(m and (not f or n == 1) for m, f, n in zip(moves, fixed, sizes)):
                return None
            if terms.nodes[view.node].op in CONSTANT:
                if here != reads or any(moves):
                    return None
                continue
            if reads_known(here.exprs, sizes):
                value = _at_places(value, view, fixed)
                here = bound_view(terms, here)
            number = symbols.setdefault(value, len(values))
            if number == len(values):
                values.append(value)
            symbol = symbol_for(terms, here.node, self.depth, number)
            if term((symbol, *here[1:])) != reads:
                return None
        return values


def _at_places(value: NextValue, view: Term, fixed: Sequence[bool]) -> NextValue:
    """Return a value at the known places of a view of it. fixed: which of its dims these are."""
    kept = iter(range(len(fixed)))
    places = [e if f else dim_place(next(kept)) for e, f in zip(view.exprs, fixed)]
    fills = [f if is_fixed else None for f, is_fixed in zip(view.fills, fixed)]
    return value._replace(places=tuple(places), fills=tuple(fills))


def _needed(values: Sequence[NextValue], symbol: int) -> set[int]:
    """Return the symbols that a symbol depends on in later trips, itself among them."""
    found, todo = {symbol}, [symbol]
    while todo:
        for other in values[todo.pop()].used:
            if other not in found:
                found.add(other)
                todo.append(other)
    return found
