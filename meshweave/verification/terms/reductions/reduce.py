"""Reduce terms over variables, in one form.

A reduction is a node `sum_{b < 8} body[h0, h1 + b]`. One rank's part of it begins at its own h1: an all_reduce binds
the coordinate in h1, so that its digit and b become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from meshweave.verification.terms.arith import kind_of, step_of
from meshweave.verification.terms.indices import DivMod, Expr, Var, bounds, of_var, plus, variables
from meshweave.verification.terms.lookups import looked_up
from meshweave.verification.terms.masks import is_masked, is_plain, settled
from meshweave.verification.terms.pieces import concat
from meshweave.verification.terms.reductions.digits import merged, split
from meshweave.verification.terms.reductions.dims import over_dims
from meshweave.verification.terms.reductions.ends import clipped, for_all, is_defined, widened
from meshweave.verification.terms.reductions.factors import (
    LINEAR,
    SUMS,
    connected,
    exponents_of,
    filled_read,
    flat_product,
    flattened,
    multiplied,
    multiplied_as,
    reads_of,
)
from meshweave.verification.terms.reductions.one_hot import one_hot
from meshweave.verification.terms.reductions.pending import without_pending
from meshweave.verification.terms.terms import (
    MixedError,
    Node,
    Term,
    Terms,
    by_variables,
    dims_values,
    opened,
    view_variables,
)

PADDING = "the reduction reads padding, which holds nothing defined"
IDEMPOTENT = ("max", "min", "maxu", "minu", "or", "and")
_LOOKED_INTO = (
    *("part", "arith.select", "concat", "reduce", "counted", "open", "const", "unknown"),
    *LINEAR,
    *SUMS,
)
"""Nodes that rules of reductions look into, beside those of a reduction's own kind."""
MOST_PIECES = 64
"""Pieces of a concatenation that are reduced one by one."""


def reduce(terms: Terms, kind: str, view: Term, over: Sequence[Var]) -> Term:
    """Reduce a view over all values of some of its variables; what was asked before is not done again."""
    alike = _alike_of(terms, kind, view, over)
    if alike is not None:
        return alike
    key = (kind, view, tuple(over))
    found = terms.known.get(key)
    if found is None:
        found = terms.known[key] = _over(terms, kind, view, over)
    return found


def _alike_of(terms: Terms, kind: str, view: Term, over: Sequence[Var]) -> Term | None:
    """Reduce what no rule looks into, or a reduction of that, as any such; None for anything else."""
    number, exprs, fills, guards = view
    if guards or fills.count(None) != len(fills):
        return None
    node, sizes, bound = terms.nodes[number], terms.sizes[number], tuple(over)
    if terms.algebra and is_masked(terms, number, within=1):
        return None
    if _is_plain(node, kind):
        made = _of_any(kind, exprs, (sizes,), (), bound, terms.algebra)
        return made and made.of(terms, [number])
    if node.op != "reduce" or node.detail[0] != kind:
        return None
    (body,) = node.reads
    if body.fills.count(None) != len(body.fills) or not _is_plain(terms.nodes[body.node], kind):
        return None
    inner = node.detail, (0, *body[1:])
    made = _of_any(kind, exprs, (terms.sizes[body.node], sizes), inner, bound, terms.algebra)
    return made and made.of(terms, [body.node, number])


def _is_plain(node: Node, kind: str) -> bool:
    """Tell whether a reduction of a node does not depend on what the node computes."""
    return node.op not in _LOOKED_INTO and kind_of(node.op, node.type) != kind


class _Alike(NamedTuple):
    """Hold the nodes that a reduction makes of any node that no rule looks into. view: what it gives.

    They are numbered behind that node, which is 0, and a reduction of it, which is 1 where there is one.
    """

    nodes: tuple[Node, ...]
    sizes: tuple[tuple[int | None, ...], ...]
    view: Term

    def of(self, terms: Terms, numbers: list[int]) -> Term:
        """Return what the reduction makes of a node. numbers: of it, and of the reduction of it."""
        type_ = terms.nodes[numbers[0]].type
        for node, sizes in zip(self.nodes, self.sizes):
            reads = tuple([Term(numbers[r.node], *r[1:]) for r in node.reads])
            numbers.append(terms.put(Node(node.op, node.detail, reads, type_), sizes))
        return Term(numbers[self.view.node], *self.view[1:])


@lru_cache(maxsize=1 << 12)
def _of_any(
    kind: str,
    exprs: tuple[Expr, ...],
    sizes: tuple[tuple[int | None, ...], ...],
    inner: tuple[Any, ...],
    over: tuple[Var, ...],
    algebra: bool,
) -> _Alike | None:
    """Reduce a node that no rule looks into, by its places alone; None where nothing is known of the result.

    sizes: of it, and of a reduction of it, which then is what is read. inner: detail and view of that; else empty.
    """
    terms = Terms(1 << 10, None, algebra)
    terms.put(Node("argument", (0,), (), ""), sizes[0])
    if inner:
        detail, read = inner
        terms.put(Node("reduce", detail, (Term(*read),), ""), sizes[1])
    made = _over(terms, kind, Term(len(sizes) - 1, exprs, (None,) * len(exprs)), over)
    if any(node.op == "unknown" for node in terms.nodes):
        return None
    return _Alike(tuple(terms.nodes[len(sizes) :]), tuple(terms.sizes[len(sizes) :]), made)


def _over(terms: Terms, kind: str, view: Term, over: Sequence[Var]) -> Term:
    if any(v.size == 1 for v in over):
        view = terms.composed(view, {v: Expr(0) for v in over if v.size == 1})
        over = [v for v in over if v.size != 1]
    used = view_variables(view)
    bound = [v for v in over if v in used]
    count = prod(v.size for v in over if v not in used)
    made = _reduced(terms, kind, view, bound) if bound else view
    return made if count == 1 or kind in IDEMPOTENT else _counted(terms, kind, made, count)


def _counted(terms: Terms, kind: str, view: Term, count: int) -> Term:
    """Reduce a value with itself, `count` times: a value that is that of another already, as often as both say."""
    if terms.constant_of(view) in (0, 0.0) and kind == "sum":
        return view
    node = terms.nodes[view.node]
    if node.op == "counted" and node.detail[0] == kind and is_plain(view):
        return _counted(terms, kind, reads_of(terms, view)[0], count * node.detail[1])
    found = terms.free([view], frozenset())
    node = Node("counted", (kind, count), found.views, terms.type_of(view))
    return terms.view(terms.put(node, found.sizes), found.exprs, (), found.guards)


def _reduced(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term:
    node = terms.nodes[view.node]
    if node.op == "part":
        rest, left = without_pending(terms, kind, view, bound)
        if left != bound:
            return reduce(terms, kind, rest, left)
    chosen = one_hot(terms, kind, view, bound)
    if chosen is not None:
        return reduce(terms, kind, *chosen)
    found = looked_up(terms, kind, view, bound)
    if found is not None:
        return reduce(terms, kind, *found)
    of_kind = kind_of(node.op, node.type) == kind and len(node.reads) == 2
    is_product = node.op == "product" and kind == "prod"
    is_linear = node.op in SUMS or (terms.algebra and node.op in LINEAR)
    if of_kind or is_product or (kind == "sum" and is_linear):
        made = _linear(terms, kind, view, bound)
        if made is not None:
            return made
    if node.op == "product" and kind == "sum":
        flat = flattened(terms, view, bound)
        if flat is not None:
            return reduce(terms, kind, *flat)
    no_fill = not any(f is not None for f in view.fills)  # a fill is no part of the pieces
    if node.op == "concat" and no_fill and not any(v in variables(view.exprs[0]) for v in bound):
        return _of_pieces(terms, kind, view, bound)
    if node.op == "concat" and no_fill and terms.algebra:
        made = _along_pieces(terms, kind, view, bound)
        if made is not None:
            return made
    if node.op == "counted" and node.detail[0] == kind and is_plain(view):
        (once,) = reads_of(terms, view)
        return _counted(terms, kind, reduce(terms, kind, once, bound), node.detail[1])
    if node.op == "open" and node.detail[0] == kind and is_plain(view):
        body, inner = opened(terms, view)
        made = closed(terms, kind, body, [*bound, *inner])
        if terms.nodes[made.node].op != "open":
            return made
    if node.op == "reduce" and node.detail[0] == kind:
        body, inner = opened(terms, view)
        over = [*bound, *inner]
        found = looked_up(terms, kind, body, over)
        return closed(terms, kind, body, over) if found is None else reduce(terms, kind, *found)
    return closed(terms, kind, view, bound)


def _linear(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term | None:
    """Let a reduction pass through ops of its kind, and factors that a sum does not run over pass out of it."""
    node = terms.nodes[view.node]
    reads = reads_of(terms, view)
    if any(f is not None for f in view.fills):
        if kind != "sum":
            return None
        filled = [filled_read(terms, view, r, node.op in SUMS) for r in reads]
        if None in filled:
            return None
        reads = [r for r in filled if r is not None]
    if (kind == "sum" and node.op in SUMS) or kind_of(node.op, node.type) == kind:
        parts = [reduce(terms, kind, r, bound) for r in reads]
        return terms.apply(node.op, node.detail, node.type, parts)
    factors = list(zip(reads, exponents_of(node)))
    if node.op == "product" and kind == "prod":
        return multiplied(
            terms, node.type, [(reduce(terms, kind, r, bound), e) for r, e in factors]
        )
    own = [f for f in factors if view_variables(f[0]) & set(bound)]
    rest = [f for f in factors if f not in own]
    if not rest:
        return None
    return multiplied_as(
        terms, node, [*rest, (reduce(terms, "sum", multiplied_as(terms, node, own), bound), 1)]
    )


def _of_pieces(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term:
    node = terms.nodes[view.node]
    place = Var("p", str(terms.fresh()), _bounds_size(view.exprs[0]))
    values = dims_values((of_var(place), *view.exprs[1:]))
    pieces = [
        (
            (start, min(end, max(place.size, start + 1))),
            reduce(terms, kind, terms.composed(r, values, view.guards), bound),
        )
        for (start, end), r in zip(node.detail, node.reads)
    ]
    made = concat(terms, place, pieces)
    return terms.composed(made, {place: view.exprs[0]})


def _along_pieces(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term | None:
    """Reduce the pieces that a variable runs through one by one; None where a place is more than the variable."""
    node, place = terms.nodes[view.node], view.exprs[0]
    along = next((v for v in bound if place.terms == ((v, 1),)), None)
    combining = step_of(kind, node.type)
    first = node.detail[0][0]
    if along is None or combining is None or place.const < first or len(node.reads) > MOST_PIECES:
        return None
    made: Term | None = None
    values = dims_values(view.exprs)
    for (start, end), piece in zip(node.detail, node.reads):
        low, high = max(start - place.const, 0), min(end - place.const, along.size)
        if low >= high:
            continue
        here = Var("b", f"_{terms.fresh()}", high - low)
        own = terms.composed(piece, values, view.guards)
        own = terms.composed(own, {along: plus(of_var(here), Expr(low))})
        part = reduce(terms, kind, own, [here if v == along else v for v in bound])
        made = part if made is None else terms.apply(combining, (), node.type, [made, part])
    return made


def _bounds_size(expr: Expr) -> int:
    """Return a size that an expression stays below."""
    return bounds(expr)[1] + 1


def closed(terms: Terms, kind: str, body: Term, bound: Sequence[Var]) -> Term:
    """Return the reduction of a body over variables that it depends on, in normal form."""
    over = list(bound)
    if body.guards or any(
        len(e.terms) > 1 or isinstance(e.terms[0][0], DivMod) for e in body.exprs if e.terms
    ):
        body, over = split(terms, body, over)
        body, over = merged(terms, body, over) if len(over) > 1 else (body, over)
        # what became one may be divided
        body, over = split(terms, body, over)
    if body.fills.count(None) != len(body.fills):
        body, over = clipped(terms, kind, body, over)
        flat = flat_product(terms, body)
        if flat is not None:
            return reduce(terms, kind, flat, over)
    used = view_variables(body)
    gone = [v for v in over if v not in used]
    if gone:
        body_view = reduce(terms, kind, body, [v for v in over if v not in gone])
        return reduce(terms, kind, body_view, gone)
    if not over:
        return body
    pushed = _pushed(terms, body, over) if kind == "sum" and terms.algebra else None
    if pushed is not None:
        return pushed
    if terms.algebra and is_masked(terms, body.node) and is_plain(body):
        made = settled(terms, body)
        if made != body and not is_masked(terms, made.node):
            return reduce(terms, kind, made, over)
        body, over = widened(terms, kind, body, over)
    guards = [for_all(guard, over) for guard in body.guards]
    known = [guard for guard in guards if guard is not None]
    if len(known) < len(guards) or not is_defined(terms, kind, body, over):
        return _left_open(terms, kind, body, over, PADDING)
    if known and not view_variables(body._replace(guards=())).issuperset(over):
        # a variable that only guards had, which hold for all its values
        return reduce(terms, kind, body._replace(guards=tuple(known)), over)
    limits = [n if f is None else None for n, f in zip(terms.sizes[body.node], body.fills)]
    try:
        found = over_dims(body.exprs, tuple(limits), tuple(over))
    except MixedError:
        return _left_open(terms, kind, body, over, "a reduction over places that mix")
    reads = (Term(body.node, found.body, body.fills),)
    node = Node("reduce", (kind, found.extents), reads, terms.type_of(body))
    return terms.view(terms.put(node, found.sizes), found.exprs, (), known)


def _pushed(terms: Terms, body: Term, over: list[Var]) -> Term | None:
    """Write the sum of a product whose factors run over different variables as a product of sums."""
    node = terms.nodes[body.node]
    if node.op not in LINEAR:
        return None
    used = [frozenset(view_variables(r) & set(over)) for r in reads_of(terms, body)]
    groups = connected(used)
    if len(groups) < 2:
        return None
    reads = [filled_read(terms, body, r, False) for r in reads_of(terms, body)]
    if None in reads:
        return None
    factors = [(r, e) for r, e in zip(reads, exponents_of(node)) if r is not None]
    sums = []
    for variables_, numbers in groups:
        part = multiplied_as(terms, node, [factors[k] for k in numbers])
        sums.append((reduce(terms, "sum", part, sorted(variables_)) if variables_ else part, 1))
    return multiplied_as(terms, node, sums)


def _others(body: Term, over: Sequence[Var]) -> list[Var]:
    return sorted(view_variables(body) - set(over))


def _left_open(terms: Terms, kind: str, body: Term, over: Sequence[Var], reason: str) -> Term:
    """Return a reduction of what may be undefined somewhere, as it is: it has a normal form case by case."""
    if not terms.algebra:
        return terms.unknown(reason, terms.type_of(body), _others(body, over))
    bound = [Var("b", str(k), v.size) for k, v in enumerate(over)]
    named = terms.composed(body, {v: of_var(b) for v, b in zip(over, bound)})
    (read,), exprs = by_variables([named], frozenset(bound))
    detail = (kind, tuple([v.size for v in bound]), reason)
    node = terms.put(Node("open", detail, (read,), terms.type_of(body)), (None,) * len(exprs))
    return terms.view(node, exprs)
