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
from itertools import zip_longest
from typing import Any, NamedTuple

from meshweave.verification.terms.indices import Expr, Var, inside, substitute, variables
from meshweave.verification.terms.levels import ANY, level
from meshweave.verification.terms.terms import Node, Term, Terms, dim_place, term

CONSTANT = ("const", "iota", "undefined", "unknown")
"""Nodes that stay what they are, since rules look at them."""


class Form(NamedTuple):
    """Say how each trip of a loop finds a carried value: at these places, in a tensor of these sizes.

    So the first trip finds it as all others do, also where it begins as a constant. owner: coordinates and indices of
    the part, by the indices of that tensor.
    """

    exprs: tuple[Expr, ...]
    sizes: tuple[int, ...]
    dims: tuple[Var, ...]
    owner: tuple[tuple[Var, Expr], ...] = ()


Forms = Sequence["Form | None"]


def with_symbols(
    terms: Terms, views: Sequence[Term], depth: int, forms: Forms = ()
) -> tuple[list[Term], list[int]]:
    """Return views that read symbols in the place of nodes, and the node that each symbol stands for.

    depth: the number of calls around this one. forms: those of the views, where they have one.
    """
    symbols: dict[int, int] = {}
    nodes, made = list[int](), []
    for view, form in zip_longest(views, forms):
        formed = None if form is None else in_form(terms, view, form)
        if formed is not None:  # has a symbol of its own, for other trips make other nodes
            nodes.append(formed.node)
            symbol = symbol_for(terms, formed.node, depth, len(nodes) - 1)
            made.append(formed._replace(node=symbol))
            continue
        if reads_known(view.exprs, terms.sizes[view.node]):
            view = bound_view(terms, view)
        number, exprs, fills, guards = view
        if number not in symbols:
            if terms.nodes[number].op in CONSTANT:
                made.append(view)
                continue
            nodes.append(number)
            symbols[number] = symbol_for(terms, number, depth, len(nodes) - 1)
        made.append(term((symbols[number], exprs, fills, guards)))
    return made, nodes


def in_form(terms: Terms, view: Term, form: Form) -> Term | None:
    """Return the same view of a node whose dims are those of a form; None where there is no such node."""
    number, exprs, fills, guards = view
    sizes = terms.sizes[number]
    if exprs == form.exprs and sizes == form.sizes and not guards:
        return view
    if guards or fills.count(None) != len(fills):
        return None
    places = form_places(form, exprs, sizes)
    if places is None:
        return None
    inner = Term(number, places, fills)
    made = terms.put(Node("at", form.sizes, (inner,), terms.nodes[number].type), form.sizes)
    return term((made, form.exprs, (None,) * len(form.exprs), ()))


@lru_cache(maxsize=1 << 12)
def form_places(
    form: Form, exprs: tuple[Expr, ...], sizes: tuple[int | None, ...], trip: Var | None = None
) -> tuple[Expr, ...] | None:
    """Return places over the dims of a form; None where other coordinates count, or some place is not defined.

    trip: what numbers the trips, on which places may depend too.
    """
    owner, dims = dict(form.owner), {v: dim_place(k) for k, v in enumerate(form.dims)}
    made = []
    for expr, size in zip(exprs, sizes):
        if not expr.terms or variables(expr) == {trip}:
            made.append(expr)
            continue
        of_whole = substitute(expr, owner)
        if not variables(of_whole) <= {*dims, trip}:
            return None
        if size is not None and not inside(of_whole, size):
            return None
        made.append(substitute(of_whole, dims))
    return tuple(made)


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
