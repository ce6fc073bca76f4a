"""Reduce terms over variables, and join reductions over parts to one over the whole.

A reduction is a node `sum_{b < 8} body[h0, h1 + b]`. One rank's part of it begins at its own h1: an all_reduce binds
the coordinate in h1, so that its digit and b become one. A sum carried over slices joins parts that lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, permutations
from itertools import product as product_of
from math import prod
from typing import Any, NamedTuple

from meshweave.verification.terms.arith import kind_of, predicate_of, step_of
from meshweave.verification.terms.indices import (
    DivMod,
    Expr,
    Var,
    bounds,
    inside,
    is_number,
    of_var,
    plus,
    quotient,
    remainder,
    substitute,
    times,
    total,
    variables,
)
from meshweave.verification.terms.lookups import all_of, conditions_of, looked_up
from meshweave.verification.terms.masks import is_masked, is_plain, settled
from meshweave.verification.terms.nodes import Factor, factors_of, is_neutral
from meshweave.verification.terms.pieces import concat
from meshweave.verification.terms.terms import (
    Abstraction,
    Guard,
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
MOST_SUMS = 3
"""Sums within sums that are looked into for parts that can be joined."""
MOST_PARTS = 64
"""Parts of a sum that are looked at for those that come in turn."""
MOST_COORDINATES = 1 << 12
"""Coordinates at which it is looked whether parts are the same in another order."""
_LINEAR = ("product", "complex.mul")
_SUMS = ("arith.addf", "arith.addi", "arith.subf", "arith.subi", "arith.negf", "complex.add")

_LOOKED_INTO = (
    *("part", "arith.select", "concat", "reduce", "counted", "open", "const", "unknown"),
    *_LINEAR,
    *_SUMS,
)
"""Nodes that rules of reductions look into, beside those of a reduction's own kind."""


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
        return _counted(terms, kind, _reads(terms, view)[0], count * node.detail[1])
    found = terms.free([view], frozenset())
    node = Node("counted", (kind, count), found.views, terms.type_of(view))
    return terms.view(terms.put(node, found.sizes), found.exprs, (), found.guards)


def _reduced(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term:
    node = terms.nodes[view.node]
    if node.op == "part":
        rest, left = _settled(terms, kind, view, bound)
        if left != bound:
            return reduce(terms, kind, rest, left)
    chosen = _one_hot(terms, kind, view, bound)
    if chosen is not None:
        return chosen
    found = looked_up(terms, kind, view, bound)
    if found is not None:
        return reduce(terms, kind, *found)
    of_kind = kind_of(node.op, node.type) == kind and len(node.reads) == 2
    is_product = node.op == "product" and kind == "prod"
    is_linear = node.op in _SUMS or (terms.algebra and node.op in _LINEAR)
    if of_kind or is_product or (kind == "sum" and is_linear):
        made = _linear(terms, kind, view, bound)
        if made is not None:
            return made
    if node.op == "product" and kind == "sum":
        flat = _flattened(terms, view, bound)
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
        (once,) = _reads(terms, view)
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


def _settled(terms: Terms, kind: str, view: Term, bound: list[Var]) -> tuple[Term, list[Var]]:
    """Do reductions that an argument came with: those of this kind, before which no other is to be done."""
    node = terms.nodes[view.node]
    pending: list[tuple[str, int]] = list(node.detail[1])
    first = len(view.exprs) - len(pending)
    left, kept = list(bound), list[tuple[Expr, tuple[str, int]]]()
    guarded = {v for e, _ in view.guards for v in variables(e)}
    for expr, (one, size) in zip(view.exprs[first:], pending):
        var = expr.terms[0][0] if len(expr.terms) == 1 and not expr.const else None
        alone = (
            var in left and var not in guarded and sum(var in variables(e) for e in view.exprs) == 1
        )
        if one == kind and not any(k != kind for _, (k, _) in kept) and alone and var.size == size:  # type: ignore[union-attr]
            left.remove(var)  # type: ignore[arg-type]
        else:
            kept.append((expr, (one, size)))
    if len(kept) == len(pending):
        return view, bound
    return part(terms, node.detail[0], node.type, terms.sizes[view.node][:first], kept)(
        view.exprs[:first], view.guards
    ), left


def part(
    terms: Terms,
    number: int,
    type_: str,
    shape: Sequence[int | None],
    pending: list[tuple[Expr, tuple[str, int]]],
) -> Callable[[Sequence[Expr], Sequence[Guard]], Term]:
    """Return a reader of an argument with reductions pending: for each the member that is read, its kind and size."""
    if not pending:
        node = terms.put(Node("argument", (number,), (), type_), shape)
    else:
        detail = (number, tuple([p for _, p in pending]))
        sizes = [*shape, *[size for _, (_, size) in pending]]
        node = terms.put(Node("part", detail, (), type_), sizes)
    members = [e for e, _ in pending]
    return lambda exprs, guards: terms.view(node, [*exprs, *members], (), guards)


def _linear(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term | None:
    """Let a reduction pass through ops of its kind, and factors that a sum does not run over pass out of it."""
    node = terms.nodes[view.node]
    reads = _reads(terms, view)
    if any(f is not None for f in view.fills):
        if kind != "sum":
            return None
        filled = [_filled(terms, view, r, node.op in _SUMS) for r in reads]
        if None in filled:
            return None
        reads = [r for r in filled if r is not None]
    if (kind == "sum" and node.op in _SUMS) or kind_of(node.op, node.type) == kind:
        parts = [reduce(terms, kind, r, bound) for r in reads]
        return terms.apply(node.op, node.detail, node.type, parts)
    factors = list(zip(reads, _exponents(node)))
    if node.op == "product" and kind == "prod":
        return _multiplied(
            terms, node.type, [(reduce(terms, kind, r, bound), e) for r, e in factors]
        )
    own = [f for f in factors if view_variables(f[0]) & set(bound)]
    rest = [f for f in factors if f not in own]
    if not rest:
        return None
    return _times(terms, node, [*rest, (reduce(terms, "sum", _times(terms, node, own), bound), 1)])


def _flattened(terms: Terms, view: Term, bound: list[Var]) -> tuple[Term, list[Var]] | None:
    """Write a sum of products of sums as one sum: `sum_k (sum_l A[k, l] * B[l]) * C[k]` is one over k and l."""
    factors, inner = list[Factor](), list[Var]()
    for factor, exponent in factors_of(terms, view):
        node = terms.nodes[factor.node]
        is_sum = node.op == "reduce" and node.detail[0] == "sum" and exponent == 1
        if is_sum and view_variables(factor) & set(bound):
            factor, own = opened(terms, factor)
            inner += own
        factors.append((factor, exponent))
    if not inner:
        return None
    return _multiplied(terms, terms.type_of(view), factors), [*bound, *inner]


def _exponents(node: Node) -> Sequence[int]:
    return node.detail if node.op == "product" else (1,) * len(node.reads)


def _times(terms: Terms, node: Node, factors: Sequence[Factor]) -> Term:
    """Multiply as a node does."""
    if node.op == "product" or len(factors) < 2:
        return _multiplied(terms, node.type, factors)
    return terms.apply(node.op, node.detail, node.type, [v for v, _ in factors])


def _multiplied(terms: Terms, type_: str, factors: Sequence[Factor]) -> Term:
    return terms.apply("product", tuple([e for _, e in factors]), type_, [v for v, _ in factors])


def _filled(terms: Terms, view: Term, read: Term, all_dims: bool) -> Term | None:
    """Return what an op reads with nothing beyond the ends where the op's result has nothing."""
    fills = list(read.fills)
    for expr, size, fill in zip(view.exprs, terms.sizes[view.node], view.fills):
        if fill is None:
            continue
        at = [k for k, e in enumerate(read.exprs) if e == expr]
        if not is_neutral(terms, Term(fill), "sum") or (all_dims and not at):
            return None
        if any(terms.sizes[read.node][k] != size for k in at):
            return None
        for k in at:
            fills[k] = fill
    return read._replace(fills=tuple(fills))


def _of_pieces(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term:
    node = terms.nodes[view.node]
    place = Var("p", str(terms.fresh()), bounds_size(view.exprs[0]))
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
    if along is None or combining is None or place.const < first or len(node.reads) > MOST_PARTS:
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


def bounds_size(expr: Expr) -> int:
    """Return a size that an expression stays below."""
    return bounds(expr)[1] + 1


def _one_hot(terms: Terms, kind: str, view: Term, bound: list[Var]) -> Term | None:
    """Read `sum over b of (b == k ? value : 0)` as the value at b = k."""
    node = terms.nodes[view.node]
    if node.op != "arith.select" or any(f is not None for f in view.fills):
        return None
    if any(variables(e) & set(bound) for e, _ in view.guards):
        return None
    values = dims_values(view.exprs)
    condition, yes, no = [terms.composed(r, values) for r in node.reads]
    if not is_neutral(terms, no, kind):
        return None
    tests = conditions_of(terms, condition)
    for number, test in enumerate(tests):
        solved = _equal(terms, test, bound)
        if solved is None:
            continue
        rest = [terms.composed(t, solved) for k, t in enumerate(tests) if k != number]
        made = terms.composed(yes, solved, view.guards)
        if rest:
            reads = [all_of(terms, rest), made, no]
            made = terms.apply("arith.select", (), terms.type_of(no), reads)
        return reduce(terms, kind, made, [v for v in bound if v not in solved])
    return None


def _equal(terms: Terms, condition: Term, bound: Sequence[Var]) -> dict[Var, Expr] | None:
    """Return at which values of bound variables a condition holds that says of two places that they are the same."""
    test = terms.nodes[condition.node]
    if test.op != "arith.cmpi" or predicate_of(test.detail) != 0 or condition.guards:
        return None
    ends = [terms.composed(r, dims_values(condition.exprs)) for r in test.reads]
    if any(terms.nodes[e.node].op != "iota" or e.guards for e in ends):
        return None
    for one, other in ((ends[0], ends[1]), (ends[1], ends[0])):
        solved = _solved(one.exprs[0], other.exprs[0], bound)
        if solved is not None:
            return solved
    return None


def _solved(expr: Expr, value: Expr, bound: Sequence[Var]) -> dict[Var, Expr] | None:
    """Return what makes `expr`, of bound variables, give `value`, when there is exactly one such choice."""
    own = {a for a, _ in expr.terms}
    if variables(value) & set(bound) or not own or not own <= set(bound):
        return None
    value = plus(value, Expr(-expr.const))
    weight, found = 1, {}
    rest = value
    for atom, coefficient in sorted(expr.terms, key=lambda t: t[1]):
        if coefficient != weight or not isinstance(atom, Var):
            return None
        found[atom] = remainder(rest, atom.size)
        rest = quotient(rest, atom.size)
        weight *= atom.size
    return found if inside(value, weight) else None


def closed(terms: Terms, kind: str, body: Term, bound: Sequence[Var]) -> Term:
    """Return the reduction of a body over variables that it depends on, in normal form."""
    over = list(bound)
    if body.guards or any(
        len(e.terms) > 1 or isinstance(e.terms[0][0], DivMod) for e in body.exprs if e.terms
    ):
        body, over = _split(terms, body, over)
        body, over = _merged(terms, body, over) if len(over) > 1 else (body, over)
        body, over = _split(terms, body, over)  # what became one may be divided
    if body.fills.count(None) != len(body.fills):
        body, over = clipped(terms, kind, body, over)
        flat = _flat(terms, body)
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
        body, over = _widened(terms, kind, body, over)
    guards = [_for_all(guard, over) for guard in body.guards]
    known = [guard for guard in guards if guard is not None]
    if len(known) < len(guards) or not _defined(terms, kind, body, over):
        return _left_open(terms, kind, body, over, PADDING)
    if known and not view_variables(body._replace(guards=())).issuperset(over):
        # a variable that only guards had, which hold for all its values
        return reduce(terms, kind, body._replace(guards=tuple(known)), over)
    limits = [n if f is None else None for n, f in zip(terms.sizes[body.node], body.fills)]
    try:
        found = _over_dims(body.exprs, tuple(limits), tuple(over))
    except MixedError:
        return _left_open(terms, kind, body, over, "a reduction over places that mix")
    reads = (Term(body.node, found.body, body.fills),)
    node = Node("reduce", (kind, found.extents), reads, terms.type_of(body))
    return terms.view(terms.put(node, found.sizes), found.exprs, (), known)


def _flat(terms: Terms, body: Term) -> Term | None:
    """Return a product of products as one, where nothing is left of the ends that kept them apart; None for no such."""
    node = terms.nodes[body.node]
    if node.op != "product" or not terms.algebra or body.fills.count(None) != len(body.fills):
        return None
    if not any(terms.nodes[r.node].op == "product" and is_plain(r) for r in node.reads):
        return None
    made = _multiplied(terms, node.type, list(zip(_reads(terms, body), _exponents(node))))
    return None if made.node == body.node else made


def _for_all(guard: Guard, over: Sequence[Var]) -> Guard | None:
    """Return the guard that says of a place that it holds for all values of some variables; None for no such."""
    expr, size = guard
    bound = [(a, c) for a, c in expr.terms if variables(Expr(0, ((a, 1),))) & set(over)]
    if not bound:
        return guard
    if not all(a in over and c > 0 for a, c in bound):
        return None
    free = Expr(expr.const, tuple([t for t in expr.terms if t not in bound]))
    room = size - bounds(Expr(0, tuple(bound)))[1]
    return (free, room) if room > 0 else None


class _OverDims(NamedTuple):
    """Hold a reduction as a function of dims.

    body: where what is reduced is read, over dims and bound variables. extents: of these. exprs, sizes: what each dim
    stands for, and how far it is defined.
    """

    body: tuple[Expr, ...]
    extents: tuple[int, ...]
    exprs: tuple[Expr, ...]
    sizes: tuple[int | None, ...]


@lru_cache(maxsize=1 << 12)
def _over_dims(
    exprs: tuple[Expr, ...], limits: tuple[int | None, ...], over: tuple[Var, ...]
) -> _OverDims:
    """Replace all but the bound variables by dims, and number those in the order in which they appear."""
    order = [v for e in exprs for v in _in_order(e) if v in over]
    bound = sorted(over, key=order.index)
    names = {v: of_var(Var("b", str(k), v.size)) for k, v in enumerate(bound)}
    found = Abstraction(Terms(0), frozenset(Var("b", str(k), v.size) for k, v in enumerate(bound)))
    body = tuple([found.expr(substitute(e, names), n) for e, n in zip(exprs, limits)])
    extents = tuple([v.size for v in bound])
    return _OverDims(body, extents, tuple(found.exprs), tuple(found.sizes))


def _pushed(terms: Terms, body: Term, over: list[Var]) -> Term | None:
    """Write the sum of a product whose factors run over different variables as a product of sums."""
    node = terms.nodes[body.node]
    if node.op not in _LINEAR:
        return None
    used = [frozenset(view_variables(r) & set(over)) for r in _reads(terms, body)]
    groups = _connected(used)
    if len(groups) < 2:
        return None
    reads = [_filled(terms, body, r, False) for r in _reads(terms, body)]
    if None in reads:
        return None
    factors = [(r, e) for r, e in zip(reads, _exponents(node)) if r is not None]
    sums = []
    for variables_, numbers in groups:
        part = _times(terms, node, [factors[k] for k in numbers])
        sums.append((reduce(terms, "sum", part, sorted(variables_)) if variables_ else part, 1))
    return _times(terms, node, sums)


def _connected(used: Sequence[frozenset[Var]]) -> list[tuple[frozenset[Var], list[int]]]:
    """Group factors that share variables: the variables of each group and the numbers of its factors."""
    groups: list[tuple[frozenset[Var], list[int]]] = []
    for number, own in enumerate(used):
        shared = [g for g in groups if g[0] & own]
        groups = [g for g in groups if g not in shared]
        merged = own.union(*[g[0] for g in shared])
        groups.append((merged, sorted([number, *[k for g in shared for k in g[1]]])))
    return groups


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


def _in_order(expr: Expr) -> list[Var]:
    return sorted(variables(expr), key=lambda v: (-_weight(expr, v), v))


def _weight(expr: Expr, var: Var) -> int:
    return next((c for a, c in expr.terms if a == var), 0)


def _defined(terms: Terms, kind: str, body: Term, over: Sequence[Var]) -> bool:
    """Tell whether no padding is read, or what it holds is known."""
    for expr, size, fill in zip(body.exprs, terms.sizes[body.node], body.fills):
        if size is None or not variables(expr) & set(over) or inside(expr, size):
            continue
        if fill is not None:
            if not is_neutral(terms, Term(fill), kind):
                return False
            continue
        free = [t for t in expr.terms if not variables(Expr(0, (t,))) & set(over)]
        part = Expr(0, tuple([t for t in expr.terms if t not in free]))
        if not free or variables(part) - set(over) or bounds(part)[0] < 0:
            return False
    return True


def _split(terms: Terms, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Write a variable that is divided by a number as two digits."""
    for _ in range(8):
        found = next((p for e in body.exprs for p in _parts(e) if _plain(p) in over), None)
        if found is None:
            break
        var = _plain(found)
        assert var is not None
        if var.size % found.by:
            break
        high = Var("b", f"_{terms.fresh()}", var.size // found.by)
        low = Var("b", f"_{terms.fresh()}", found.by)
        both = total(((of_var(high), found.by), (of_var(low), 1)))
        body = terms.composed(body, {var: both})
        over = [v for v in over if v != var] + [high, low]
    return body, over


def _parts(expr: Expr) -> list[DivMod]:
    found = []
    for atom, _ in expr.terms:
        if isinstance(atom, DivMod):
            found += [*_parts(atom.of), atom]
    return found


def _plain(part: DivMod) -> Var | None:
    terms = part.of.terms
    if len(terms) == 1 and not part.of.const and terms[0][1] == 1 and isinstance(terms[0][0], Var):
        return terms[0][0]
    return None


def _merged(terms: Terms, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Make one variable of two that are digits of one number wherever they stand."""
    done = False
    while not done:
        done = True
        for major, minor in permutations(over, 2):
            joined = Var("b", f"_{terms.fresh()}", major.size * minor.size)
            made = _as_digits(terms, body, major, minor, joined)
            if made is not None:
                body, over = made, [v for v in over if v not in (major, minor)] + [joined]
                done = False
                break
    return body, over


def _as_digits(terms: Terms, body: Term, major: Var, minor: Var, joined: Var) -> Term | None:
    """Return a body over the number that two variables are digits of; None where it is no function of that."""
    if not _digits(body, major, minor) and not _are_mixed(body, major, minor):
        return None
    made = terms.composed(body, {major: Expr(0), minor: of_var(joined)})
    if _digits(body, major, minor):
        return made
    number = total(((of_var(major), minor.size), (of_var(minor), 1)))
    return made if terms.composed(made, {joined: number}) == body else None


def _are_mixed(body: Term, major: Var, minor: Var) -> bool:
    """Tell whether a sum of both variables is divided somewhere."""
    both, exprs = {major, minor}, (*body.exprs, *[e for e, _ in body.guards])
    return any(not isinstance(a, Var) and _inner(a) >= both for e in exprs for a, _ in e.terms)


def _digits(body: Term, major: Var, minor: Var) -> bool:
    seen = False
    for expr in (*body.exprs, *[e for e, _ in body.guards]):
        high, low = _weight(expr, major), _weight(expr, minor)
        if high != low * minor.size:
            return False
        seen = seen or low != 0
        if any(isinstance(a, Var) is False and {major, minor} & _inner(a) for a, _ in expr.terms):
            return False
    return seen


def _inner(atom: object) -> frozenset[Var]:
    return variables(Expr(0, ((atom, 1),)))  # type: ignore[arg-type]


def clipped(terms: Terms, kind: str, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Leave out what lies beyond the end of a dim and holds the neutral element."""
    for expr, size, fill in zip(body.exprs, terms.sizes[body.node], body.fills):
        if size is None or fill is None or not is_neutral(terms, Term(fill), kind):
            continue
        if len(expr.terms) == 1 and expr.terms[0][0] in over and expr.terms[0][1] == 1:
            var = expr.terms[0][0]
            assert isinstance(var, Var)
            if 0 <= expr.const < size < expr.const + var.size:
                short = Var("b", f"_{terms.fresh()}", size - expr.const)
                body = terms.composed(body, {var: of_var(short)})
                return clipped(terms, kind, body, [short if v == var else v for v in over])
    return body, over


def _widened(terms: Terms, kind: str, body: Term, over: list[Var]) -> tuple[Term, list[Var]]:
    """Run over all places of a dim where a mask leaves nothing of those that are not reduced."""
    for number, var in enumerate(over):
        first, end = _room(terms, body, var)
        if first < 0 and not _is_nothing(terms, kind, body, var, first, 0):
            first = 0
        if end > var.size and not _is_nothing(terms, kind, body, var, var.size, end):
            end = var.size
        if (first, end) != (0, var.size):
            wide = Var("b", f"_{terms.fresh()}", end - first)
            body = terms.composed(body, {var: plus(of_var(wide), Expr(first))})
            over = [*over[:number], wide, *over[number + 1 :]]
    return body, over


def _room(terms: Terms, body: Term, var: Var) -> tuple[int, int]:
    """Return from where to where a variable may run: as far as all dims that it is the place in."""
    own = [(e, n) for e, n in zip(body.exprs, terms.sizes[body.node]) if var in variables(e)]
    sizes = [(e.const, n) for e, n in own if n is not None]
    if not sizes or any(e.terms != ((var, 1),) for e, _ in own):
        return 0, var.size
    return min(0, max(-c for c, _ in sizes)), max(var.size, min(n - c for c, n in sizes))


def _is_nothing(terms: Terms, kind: str, body: Term, var: Var, first: int, end: int) -> bool:
    """Tell whether a mask leaves nothing of the places from `first` to `end`."""
    here = Var("b", f"_{terms.fresh()}", end - first)
    there = terms.composed(body, {var: plus(of_var(here), Expr(first))})
    return is_neutral(terms, settled(terms, there), kind)


def combine(terms: Terms, kind: str, a: Term, b: Term, depth: int = 0) -> Term | None:
    """Join two reductions over places side by side, or sums that hold such; None where there are none.

    depth: how many sums around these are looked into.
    """
    if kind in IDEMPOTENT and a == b:
        return a
    if not _alike(terms, kind, a.node, b.node, depth):
        return None
    made = _side_by_side(terms, kind, a, b)
    if made is None and kind == "sum":
        made = _factored(terms, a, b, depth)
    if made is None and depth < MOST_SUMS:
        made = _absorbed(terms, kind, a, b, depth)
    return made


def _alike(terms: Terms, kind: str, a: int, b: int, depth: int) -> bool:
    """Tell whether terms can be such that `combine` joins them, from what they are, wherever they are read."""
    one, other = terms.nodes[a], terms.nodes[b]
    inner = _inner_node(terms, kind, a), _inner_node(terms, kind, b)
    if inner[0] == inner[1] or "concat" in (one.op, other.op):
        return True
    if any(is_masked(terms, number) for number in inner):
        return True
    shared = {r.node for r in one.reads} & {r.node for r in other.reads}
    if kind == "sum" and one.op in _LINEAR and one.op == other.op and shared:
        return True
    if depth == MOST_SUMS:
        return False
    return any(
        kind_of(node.op, node.type) == kind
        and len(node.reads) == 2
        and any(_alike(terms, kind, r.node, rest, depth + 1) for r in node.reads)
        for node, rest in ((one, b), (other, a))
    )


def _side_by_side(terms: Terms, kind: str, a: Term, b: Term) -> Term | None:
    """Join reductions of one body whose places differ by as much as the one is long, or by a number."""
    if a.guards or b.guards:  # both together are defined where each is
        made = _side_by_side(terms, kind, a._replace(guards=()), b._replace(guards=()))
        return made and made._replace(guards=tuple(sorted({*made.guards, *a.guards, *b.guards})))
    if _inner_node(terms, kind, a.node) != _inner_node(terms, kind, b.node):
        return _behind_mask(terms, kind, a, b) or _behind_mask(terms, kind, b, a)
    (first, over), (second, others) = _windows(terms, kind, a), _windows(terms, kind, b)
    if first.guards or second.guards or first == second:
        return None
    if len(over) < len(others):
        (first, over), (second, others) = (second, others), (first, over)
    fills = _fills(terms, first, second)
    if fills is None:
        return None
    for grown in over:
        rest = [v for v in over if v != grown]
        pairs = list(zip(over, others)) if len(over) == len(others) else list(zip(rest, others))
        if len(over) - len(others) > 1 or any(x.size != y.size for x, y in pairs if x != grown):
            continue
        names = {y: of_var(x) for x, y in pairs}
        length = next((y.size for x, y in pairs if x == grown), 1)
        moved = [substitute(e, names) for e in second.exprs]
        steps = [_weight(e, grown) for e in first.exprs]
        here = [_without(e, grown) for e in first.exprs]
        there = [_without(e, grown) for e in moved]
        even = len(over) > len(others) or steps == [_weight(e, grown) for e in moved]
        if None in here or None in there or not even:
            continue
        for low, high, size in ((here, there, grown.size), (there, here, length)):
            if all(h == plus(e, Expr(c * size)) for e, h, c in zip(low, high, steps) if e):
                new = Var("b", f"_{terms.fresh()}", grown.size + length)
                base = [e for e in low if e is not None]
                return _joined(terms, kind, first, fills, base, steps, new, rest)
    return _stepped(terms, kind, (first, over), (second, others), fills)


def _behind_mask(terms: Terms, kind: str, a: Term, b: Term) -> Term | None:
    """Join a reduction, `b`, with that of a masked body, `a`, which at its places is the same without the mask."""
    if not is_masked(terms, _inner_node(terms, kind, a.node)):
        return None
    (body, over), (part, own) = _windows(terms, kind, a), _windows(terms, kind, b)
    if not over or not is_plain(body) or not is_plain(part):
        return None
    for grown, gone in product_of(over, own if len(own) == len(over) else [None]):
        rest, left = [v for v in over if v != grown], [v for v in own if v != gone]
        length, place = (gone.size, of_var(gone)) if gone else (1, Expr(0))
        for order, shift in product_of(permutations(left), (-length, grown.size)):
            if [v.size for v in order] != [v.size for v in rest]:
                continue
            names = {x: of_var(y) for x, y in zip(rest, order)} | {grown: plus(place, Expr(shift))}
            if settled(terms, terms.composed(body, names)) == part:
                new = Var("b", f"_{terms.fresh()}", grown.size + length)
                wide = terms.composed(body, {grown: plus(of_var(new), Expr(min(0, shift)))})
                return closed(terms, kind, wide, [new, *rest])
    return None


def _without(expr: Expr, var: Var) -> Expr | None:
    """Return an expression at 0 of a variable; None where the variable is divided."""
    rest = Expr(expr.const, tuple([t for t in expr.terms if t[0] != var]))
    return None if var in variables(rest) else rest


def in_turn(terms: Terms, kind: str, name: str, a: Term, b: Term) -> Term | None:
    """Join what is added up in another order on each rank, as in a ring: all parts, once one has come from each.

    name: the op that combines a and b.
    """
    nodes = _nodes_of(terms, kind, name, a.node) + _nodes_of(terms, kind, name, b.node)
    if len(nodes) > MOST_PARTS or len(set(nodes)) == len(nodes):
        return None
    parts = [*operands_of(terms, name, a), *operands_of(terms, name, b)]
    bodies: dict[int, list[Term]] = {}
    for part in parts if len(parts) <= MOST_PARTS else ():
        bodies.setdefault(_inner_node(terms, kind, part.node), []).append(part)
    for group in bodies.values():
        made = _all_in_turn(terms, kind, group) if len(group) > 1 else None
        if made is not None:
            for other in parts:
                if other not in group:
                    made = terms.apply(name, (), terms.type_of(made), [made, other])
            return made
    return None


def _nodes_of(terms: Terms, kind: str, name: str, number: int) -> tuple[int, ...]:
    """Return the nodes whose elements nested ops of a name combine, about MOST_PARTS at most."""
    key = (kind, name, number)
    found = terms.parts.get(key)
    if found is None:
        node, found = terms.nodes[number], ()
        if node.op != name:
            found = (-1, -1) if node.op == "concat" else (_inner_node(terms, kind, number),)
        else:
            for read in node.reads:
                found += _nodes_of(terms, kind, name, read.node)
        found = terms.parts[key] = found[: MOST_PARTS + 1]
    return found


def operands_of(terms: Terms, name: str, view: Term) -> list[Term]:
    """Return what nested ops of a name combine."""
    node = terms.nodes[view.node]
    if node.op != name or any(f is not None for f in view.fills):
        return [view]
    return [v for r in _reads(terms, view) for v in operands_of(terms, name, r)]


def _all_in_turn(terms: Terms, kind: str, group: Sequence[Term]) -> Term | None:
    """Join reductions of one body whose places are the same ones on all ranks, in another order."""
    (first, over), *others = [_windows(terms, kind, v) for v in group]
    rows = [first.exprs]
    for other, own in others:
        if [v.size for v in own] != [v.size for v in over]:
            return None
        rows.append(
            tuple([substitute(e, {y: of_var(x) for x, y in zip(over, own)}) for e in other.exprs])
        )
    views = [first, *[v for v, _ in others]]
    if any(v.guards or any(f is not None for f in v.fills) for v in views):
        return None
    shared = [_shared([row[d] for row in rows]) for d in range(len(first.exprs))]
    moving = [[plus(e, times(s, -1)) for e, s in zip(row, shared)] for row in rows]
    found = _progression(moving)
    if found is None:
        return None
    base = [plus(s, Expr(n)) for s, n in zip(shared, found[0])]
    new = Var("b", f"_{terms.fresh()}", len(group))
    return _joined(terms, kind, first, first.fills, base, found[1], new, over)


def _shared(exprs: Sequence[Expr]) -> Expr:
    """Return the terms that expressions have in common."""
    return Expr(0, tuple([t for t in exprs[0].terms if all(t in e.terms for e in exprs)]))


def _progression(rows: Sequence[Sequence[Expr]]) -> tuple[list[int], list[int]] | None:
    """Return the first of some places and the step between them, where they are the same for all coordinates.

    rows: the places, expressions of coordinates, each with a number for each dim. None where they are not.
    """
    depends = sorted(set[Var]().union(*[variables(e) for row in rows for e in row]))
    if not depends or any(v.kind not in "ix" for v in depends):
        return None
    if prod(v.size for v in depends) > MOST_COORDINATES:
        return None
    seen = set()
    for at in product_of(*[range(v.size) for v in depends]):
        known = dict(zip(depends, map(Expr, at)))
        places = [[substitute(e, known) for e in row] for row in rows]
        if any(e.terms for row in places for e in row):
            return None
        seen.add(tuple(sorted(tuple([e.const for e in row]) for row in places)))
    if len(seen) != 1:
        return None
    (places_,) = seen
    steps = [[b - a for a, b in zip(one, two)] for one, two in pairwise(places_)]
    return (list(places_[0]), steps[0]) if all(s == steps[0] and any(s) for s in steps) else None


def joined_factors(terms: Terms, factors: dict[Term, int]) -> tuple[Term, Term, Term] | None:
    """Return two factors side by side, and what both are; None where there are none."""
    single = [v for v, e in factors.items() if e == 1]
    for a, b in combinations(single, 2):
        made = _side_by_side(terms, "prod", a, b)
        if made is not None:
            return a, b, made
    return None


def _stepped(
    terms: Terms,
    kind: str,
    one: tuple[Term, list[Var]],
    two: tuple[Term, list[Var]],
    fills: Sequence[int | None],
) -> Term | None:
    """Join two reductions whose places differ by numbers: a variable of two values says which."""
    (first, over), (second, others) = one, two
    if [v.size for v in over] != [v.size for v in others]:
        return None
    names = {y: of_var(x) for x, y in zip(over, others)}
    moved = [substitute(e, names) for e in second.exprs]
    steps = [plus(h, times(e, -1)) for e, h in zip(first.exprs, moved)]
    if any(not is_number(s) for s in steps):
        return None
    sign = next((s.const for s in steps if s.const), 0)
    if not sign:
        return None
    base = first.exprs if sign > 0 else moved
    counts = [s.const if sign > 0 else -s.const for s in steps]
    new = Var("b", f"_{terms.fresh()}", 2)
    return _joined(terms, kind, first, fills, base, counts, new, over)


def _joined(
    terms: Terms,
    kind: str,
    body: Term,
    fills: Sequence[int | None],
    base: Sequence[Expr],
    steps: Sequence[int],
    new: Var,
    rest: Sequence[Var],
) -> Term:
    exprs = [total(((e, 1), (of_var(new), c))) for e, c in zip(base, steps)]
    return closed(terms, kind, terms.view(body.node, exprs, fills), [new, *rest])


def _fills(terms: Terms, a: Term, b: Term) -> list[int | None] | None:
    """Return what stands beyond the ends of both, None where they differ."""
    found: list[int | None] = []
    for k, size in enumerate(terms.sizes[a.node]):
        one, other = a.fills[k], b.fills[k]
        for mine, yours, view in ((one, other, a), (other, one, b)):
            if mine is None and yours is not None and not (size and inside(view.exprs[k], size)):
                return None
        if None not in (one, other) and one != other:
            return None
        found.append(one if one is not None else other)
    return found


def _inner_node(terms: Terms, kind: str, number: int) -> int:
    """Return the node whose elements a reduction of a kind adds up; of anything else itself."""
    node = terms.nodes[number]
    return node.reads[0].node if node.op == "reduce" and node.detail[0] == kind else number


def _windows(terms: Terms, kind: str, view: Term) -> tuple[Term, list[Var]]:
    node = terms.nodes[view.node]
    if node.op == "reduce" and node.detail[0] == kind:
        return opened(terms, view)
    return view, []


def _reads(terms: Terms, view: Term) -> list[Term]:
    return [terms.at_dims(r, view.exprs, view.guards) for r in terms.nodes[view.node].reads]


def _factored(terms: Terms, a: Term, b: Term, depth: int) -> Term | None:
    """Join products that share factors, and whose other factors can be joined; sums that are scaled alike always."""
    node, other = terms.nodes[a.node], terms.nodes[b.node]
    if node.op not in _LINEAR or node.op != other.op:
        return None
    if any(f is not None for f in (*a.fills, *b.fills)):
        return None
    mine, yours = [list(zip(_reads(terms, v), _exponents(n))) for v, n in ((a, node), (b, other))]
    common = [f for f in mine if f in yours]
    rest = [[f for f in side if f not in common] for side in (mine, yours)]
    if not common or not all(rest):
        return None
    one, two = [_times(terms, node, r) for r in rest]
    joined = combine(terms, "sum", one, two, depth)
    if joined is None and not depth and node.op == "product" and _is_scale(terms, common):
        joined = terms.apply("arith.addf", (), node.type, [one, two])
    return None if joined is None else _times(terms, node, [*common, (joined, 1)])


def _is_scale(terms: Terms, factors: Sequence[Factor]) -> bool:
    """Tell whether factors are inverse exponentials: what two accumulators of a softmax are scaled by."""
    return all(e <= 0 and terms.nodes[v.node].op == "math.exp" for v, e in factors)


def _absorbed(terms: Terms, kind: str, a: Term, b: Term, depth: int) -> Term | None:
    """Join one operand of a sum with what is added to it."""
    for one, other in ((a, b), (b, a)):
        node = terms.nodes[one.node]
        if kind_of(node.op, node.type) != kind or len(node.reads) != 2:
            continue
        x, y = _reads(terms, one)
        for part, rest in ((x, y), (y, x)):
            joined = combine(terms, kind, part, other, depth + 1)
            if joined is not None:
                return terms.apply(node.op, node.detail, node.type, [joined, rest])
    return None
