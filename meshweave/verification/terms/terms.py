"""Hold what values mean: terms over whole tensors, each with a number, equal ones with the same.

A node is a function of its dims: an argument, a constant, a scalar op applied to other nodes at places given by its
dims, a reduction, a concatenation. A `Term` reads a node at places that depend on a rank's coordinates and on the index
within its tensor: it says exactly what a value of one rank holds. Two values are the same when their views are.

    matmul cut over x, before the all_reduce:    sum_{b < 4} A[i, h + b] * B[h + b, j]   at h = 4*x

Nothing is said of places outside a node's dims: what padding holds is undefined, unless the view has a `fill` there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

from meshweave.verification.terms.indices import (
    Expr,
    Owned,
    Var,
    bounds,
    inside,
    of_var,
    substitute,
    variables,
)

Guard = tuple[Expr, int]
"""An expression and a size: it must be from 0 to size - 1, else the value is undefined."""


class Term(NamedTuple):
    """Read a node. exprs: a place for each dim of it.

    fills: for each dim the node that stands beyond its end, None where nothing is known of it.
    guards: where these do not hold the value is undefined.
    """

    node: int
    exprs: tuple[Expr, ...] = ()
    fills: tuple[int | None, ...] = ()
    guards: tuple[Guard, ...] = ()


term: Callable[[tuple[Any, ...]], Term] = partial(tuple.__new__, Term)
"""Make a term of its four fields, in half the time."""


class Node(NamedTuple):
    """Describe a node. sizes: for each dim how far it is defined, from 0 on; None: everywhere."""

    op: str
    detail: tuple[Any, ...]  # names and numbers, hashable
    reads: tuple[Term, ...]
    type: str


node_of: Callable[[tuple[Any, ...]], Node] = partial(tuple.__new__, Node)
"""Make a node of its four fields, in half the time."""


_WITH_BODIES = ("call", "next")
_IN_COMMON = ("given", "next")
"""What results of a call, or of trips, have in common."""
_NO_SYMBOLS: frozenset[tuple[int, int]] = frozenset()


def bodies_of(node: Node) -> list[tuple[int, int]]:
    """Return the terms over symbols that a node is made of, and the number of calls around those that it reads."""
    if node.op == "call":
        return [node.detail[:2]]
    if node.op == "next":
        depth, value = node.detail
        return [(value.node, depth)]
    return []


class Rules(Protocol):
    """Apply a scalar op to terms, as `scalars.apply` does."""

    def __call__(
        self,
        terms: Terms,
        name: str,
        detail: tuple[Hashable, ...],
        type_: str,
        reads: Sequence[Term],
        /,
    ) -> Term: ...


@dataclass
class Terms:
    """Number nodes, `most` at most, `given` ones not counted.

    rules: how scalar ops are applied. Reductions ask them too, though many of these rules are about reductions.
    numbers: the nodes that are known numbers, or places.
    constants: what is made of attributes that are constants.
    rounds: where it is a set, a number that is rounded to fewer bits and lengthened again is taken as it was, and noted
    here with the shorter type. rounded: there was one.
    algebra: whether rules of arithmetic make terms equal. Without them a sum or a product is as the program writes it,
    which is enough where both programs write it alike, and takes half the time.
    """

    most: int
    rules: Rules | None = None
    algebra: bool = True
    rounds: set[tuple[int, str]] | None = None
    rounded: bool = False
    nodes: list[Node] = field(default_factory=list)
    sizes: list[tuple[int | None, ...]] = field(default_factory=list)
    places: list[object] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    place: object = None
    levels: dict[int, int] = field(default_factory=dict)
    signs: dict[int, int] = field(default_factory=dict)
    masked: dict[tuple[int, int], bool] = field(default_factory=dict)
    cased: dict[int, bool] = field(default_factory=dict)
    on_places: dict[int, bool] = field(default_factory=dict)
    parts: dict[tuple[str, str, int], tuple[int, ...]] = field(default_factory=dict)
    known: dict[Hashable, Term] = field(default_factory=dict)
    constants: dict[Hashable, Term] = field(default_factory=dict)
    _numbers: dict[Node, int] = field(default_factory=dict)
    symbols: dict[Hashable, int] = field(default_factory=dict)
    _symbols: list[frozenset[tuple[int, int]]] = field(default_factory=list)
    _fresh: int = 0
    _iota: int = -1
    _given: int = 0
    _undefined: dict[str, Term] = field(default_factory=dict)

    def apply(
        self, name: str, detail: tuple[Hashable, ...], type_: str, reads: Sequence[Term]
    ) -> Term:
        """Return what a scalar op makes of values, by the rules. detail: see `scalars.apply`."""
        assert self.rules is not None, "terms without rules only hold what they are given"
        return self.rules(self, name, detail, type_, reads)

    def put(self, node: Node, sizes: Sequence[int | None]) -> int:
        """Return the number of a node."""
        count = len(self.nodes)
        number = self._numbers.setdefault(node, count)  # asked once: what a node reads is long
        if number != count:
            return number
        if count == self.most + self._given:
            del self._numbers[node]
            raise LimitError(f"the limit of {self.most} terms")
        self.nodes.append(node)
        self.sizes.append(tuple(sizes))
        self.places.append(self.place)
        if node.op in ("const", "iota"):
            self.numbers.add(number)
        elif node.op in _IN_COMMON:
            self._given += 1
        return number

    def symbols_of(self, number: int) -> frozenset[tuple[int, int]]:
        """Return depth and number of the symbols that a node is a function of; a call has those of what it reads."""
        known, nodes = self._symbols, self.nodes
        for k in range(len(known), number + 1):  # what a node reads has a smaller number
            op, detail, reads, _ = nodes[k]
            found: frozenset[tuple[int, int]] = _NO_SYMBOLS
            for read in reads:
                other = known[read[0]]
                if other is not found and not other <= found:
                    found = found | other if found else other
            if op == "symbol":
                found = frozenset([detail[:2]])
            elif op in _WITH_BODIES:
                for body, depth in bodies_of(
                    nodes[k]
                ):  # it may read symbols of the calls around it
                    found = found.union([s for s in known[body] if s[0] < depth])
            known.append(found)
        return known[number]

    def fresh(self) -> int:
        """Return a number that was not given before."""
        self._fresh += 1
        return self._fresh

    def view(
        self,
        node: int,
        exprs: Sequence[Expr],
        fills: Sequence[int | None] = (),
        guards: Sequence[Guard] = (),
    ) -> Term:
        """Make a view in normal form; of a concatenation, where the place is within one piece, that piece."""
        sizes = self.sizes[node]
        if 1 in sizes:
            if guards or fills.count(None) != len(fills):
                exprs, guards = at_only_place(exprs, sizes, fills, guards)
            else:
                exprs, guards = _only_places(tuple(exprs), sizes)
        known: tuple[int | None, ...] = (None,) * len(sizes)
        if fills.count(None) != len(fills):
            known = tuple(
                [
                    None if f is None or n is None or inside(e, n) else f
                    for e, n, f in zip(exprs, sizes, fills)
                ]
            )
        kept = self._guards(guards, exprs, sizes, known) if guards else ()
        made = term((node, tuple(exprs), known, kept))
        if self.nodes[node].op == "concat" and known.count(None) == len(known):
            return self._piece(made)
        return made

    def _guards(
        self,
        guards: Sequence[Guard],
        exprs: Sequence[Expr],
        sizes: Sequence[int | None],
        fills: Sequence[int | None],
    ) -> tuple[Guard, ...]:
        """Leave out what holds always, and what the dims of the node say anyway."""
        # Beyond these sizes the view is undefined.
        said = [(e, n) for e, n, f in zip(exprs, sizes, fills) if n is not None and f is None]
        return tuple(
            sorted(
                {
                    (e, n)
                    for e, n in guards
                    if not inside(e, n) and not any(e == d and m <= n for d, m in said)
                }
            )
        )

    def _piece(self, view: Term) -> Term:
        node = self.nodes[view.node]
        low, high = bounds(view.exprs[0])
        for (start, end), piece in zip(node.detail, node.reads):
            if start <= low and high < end:
                return self.composed(piece, dims_values(view.exprs), view.guards)
        return view

    def composed(
        self, view: Term, values: Mapping[Var, Expr], guards: Sequence[Guard] = ()
    ) -> Term:
        """Return a view with expressions in the place of variables, and guards added."""
        exprs = _put_in(view.exprs, tuple(values.items()))
        inner = [(substitute(e, values), n) for e, n in view.guards] if view.guards else ()
        if not guards and not inner and exprs == view.exprs:
            return view
        return self.view(view.node, exprs, view.fills, (*inner, *guards))

    def at_dims(self, view: Term, exprs: tuple[Expr, ...], guards: Sequence[Guard] = ()) -> Term:
        """Return a view over the dims of a node at the places that these are."""
        if guards or view.guards:
            return self.composed(view, dims_values(exprs), guards)
        made = _at_dims(view.exprs, exprs)
        return view if made == view.exprs else self.view(view.node, made, view.fills)

    def constant(self, type_: str, value: Hashable) -> Term:
        """Return a scalar known now."""
        return Term(self.put(Node("const", (value,), (), type_), ()))

    def iota(self, expr: Expr) -> Term:
        """Return a place as a number of type index."""
        if self._iota < 0:
            self._iota = self.put(Node("iota", (), (), "index"), (None,))
        return term((self._iota, (expr,), (None,), ()))

    def unknown(self, reason: str, type_: str, depends: Sequence[Var]) -> Term:
        """Return a value that is equal to no other. depends: what it may depend on."""
        node = self.put(Node("unknown", (reason, self.fresh()), (), type_), (None,) * len(depends))
        return Term(node, tuple(map(of_var, depends)), (None,) * len(depends))

    def undefined(self, type_: str) -> Term:
        """Return what a tensor holds before it is written."""
        found = self._undefined.get(type_)
        if found is None:
            node = self.put(Node("undefined", (), (), type_), ())
            found = self._undefined[type_] = Term(node)
        return found

    def type_of(self, view: Term) -> str:
        """Return the element type."""
        return self.nodes[view.node].type

    def constant_of(self, view: Term) -> Hashable | None:
        """Return the value of a constant, None for anything else."""
        node = self.nodes[view.node]
        return node.detail[0] if node.op == "const" else None

    def free(self, views: Sequence[Term], bound: frozenset[Var]) -> FreeViews:
        """Make views functions of dims: see `Abstraction`. Raises MixedError where that cannot be."""
        reads = []
        for number, exprs, fills, _ in views:
            sizes = self.sizes[number]
            if fills.count(None) != len(fills):
                sizes = tuple([n if f is None else None for n, f in zip(sizes, fills)])
            reads.append((exprs, sizes))
        inner, places, ends = _abstracted(tuple(reads), bound)
        made = tuple([term((v.node, exprs, v.fills, ())) for v, exprs in zip(views, inner)])
        return FreeViews(made, places, ends, tuple([g for v in views for g in v.guards]))


class FreeViews(NamedTuple):
    """Hold views over dims and bound variables, without their guards.

    exprs: what each dim stands for. sizes: how far each is defined.
    """

    views: tuple[Term, ...]
    exprs: tuple[Expr, ...]
    sizes: tuple[int | None, ...]
    guards: tuple[Guard, ...]


@dataclass
class Abstraction:
    """Replace in expressions all but the bound variables by dims, one for each expression that is different.

    exprs: what each dim stands for. sizes: how far each is defined.
    """

    bound: frozenset[Var]
    exprs: list[Expr] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    _known: dict[Expr, int] = field(default_factory=dict)

    def expr(self, expr: Expr, size: int | None) -> Expr:
        """Return an expression with dims in the place of all but the bound variables."""
        if is_only(expr, size):
            return expr
        if not variables(expr) & self.bound:
            return of_var(self._dim(expr, size, shared=True))
        inner = tuple([(a, c) for a, c in expr.terms if variables(Expr(0, ((a, 1),))) & self.bound])
        part = Expr(0, inner)
        if variables(part) - self.bound:
            part = self._listed(part)
        free = Expr(expr.const, tuple([t for t in expr.terms if t not in inner]))
        low, high = bounds(part)
        room = None if size is None else size - high if low >= 0 else 0
        if room == 1 and bounds(free) != (0, 0) and any(v.kind == "g" for v in variables(part)):
            room = 0  # of a place that is computed it is not known that only the first is read
        return _joined(self._dim(free, room, shared=False), part)

    def _listed(self, part: Expr) -> Expr:
        """Return a sum of places that layouts list, with dims for the coordinates: these may be any.

        Raises MixedError for anything else, such as a quotient of a sum of both.
        """
        if not all(isinstance(atom, Owned) and atom.inputs[-1].terms for atom, _ in part.terms):
            raise MixedError
        if not all(
            variables(atom.inputs[-1]) <= self.bound
            for atom, _ in part.terms
            if isinstance(atom, Owned)
        ):
            raise MixedError
        values = {
            v: of_var(self._dim(of_var(v), None, shared=True))
            for v in sorted(variables(part) - self.bound)
        }
        return substitute(part, values)

    def _dim(self, expr: Expr, size: int | None, shared: bool) -> Var:
        number = self._known.get(expr) if shared else None
        if number is None:
            number = len(self.exprs)
            self.exprs.append(expr)
            self.sizes.append(size)
            if shared:
                self._known[expr] = number
        elif size is not None:
            known = self.sizes[number]
            self.sizes[number] = size if known is None else min(size, known)
        return dim_var(number)


class LimitError(Exception):
    """Say that a check has a limit, which it has reached."""


class MixedError(Exception):
    """Say that an expression mixes bound variables with others in a quotient or remainder."""


def at_only_place(
    exprs: Sequence[Expr],
    sizes: Sequence[int | None],
    fills: Sequence[int | None],
    guards: Sequence[Guard],
) -> tuple[Sequence[Expr], Sequence[Guard]]:
    """Read dims of one place at that place, with a guard where it might be another."""
    made, kept = list(exprs), list(guards)
    for dim, (expr, size) in enumerate(zip(exprs, sizes)):
        filled = bool(fills) and fills[dim] is not None
        if size == 1 and not filled and not any(v.kind == "h" for v in variables(expr)):
            made[dim] = Expr(0)
            kept += [] if inside(expr, 1) else apart((expr, 1))
    return made, kept


@lru_cache(maxsize=1 << 14)
def _at_dims(exprs: tuple[Expr, ...], places: tuple[Expr, ...]) -> tuple[Expr, ...]:
    values = dims_values(places)
    return tuple([substitute(e, values) for e in exprs])


@lru_cache(maxsize=1 << 14)
def _put_in(exprs: tuple[Expr, ...], values: tuple[tuple[Var, Expr], ...]) -> tuple[Expr, ...]:
    """Return expressions with others in the place of variables: the body of a loop asks it in each reading."""
    given = dict(values)
    return tuple([substitute(e, given) if e.terms else e for e in exprs])


_Places = tuple[tuple[Expr, ...], tuple["int | None", ...]]


@lru_cache(maxsize=1 << 12)
def _abstracted(
    reads: tuple[_Places, ...], bound: frozenset[Var]
) -> tuple[tuple[tuple[Expr, ...], ...], tuple[Expr, ...], tuple[int | None, ...]]:
    """Return places over dims and bound variables, and for each dim what it stands for and how far it is defined."""
    found = Abstraction(bound)
    made = tuple([tuple(map(found.expr, exprs, sizes)) for exprs, sizes in reads])
    return made, tuple(found.exprs), tuple(found.sizes)


@lru_cache(maxsize=1 << 12)
def _only_places(
    exprs: tuple[Expr, ...], sizes: tuple[int | None, ...]
) -> tuple[tuple[Expr, ...], tuple[Guard, ...]]:
    made, guards = at_only_place(exprs, sizes, (), ())
    return tuple(made), tuple(guards)


def apart(guard: Guard) -> list[Guard]:
    """Return guards that together say the same: a sum is 0 where all that it adds up is."""
    expr, size = guard
    if size != 1 or expr.const or bounds(expr)[0] < 0 or any(c < 0 for _, c in expr.terms):
        return [guard]
    return [(Expr(0, ((atom, 1),)), 1) for atom, _ in expr.terms]


def is_only(expr: Expr, size: int | None) -> bool:
    """Tell whether an expression is the one place of a dim of one: that is no dim of what reads it."""
    return size == 1 and not expr.terms and expr.const == 0


@lru_cache(maxsize=1 << 10)
def dim_var(number: int) -> Var:
    """Return the variable that stands for dim `number` of a node."""
    return Var("h", str(number), 0)


@lru_cache(maxsize=1 << 10)
def dim_place(number: int) -> Expr:
    """Return the place that is dim `number` of a node."""
    return of_var(dim_var(number))


def dims_values(exprs: Sequence[Expr]) -> dict[Var, Expr]:
    """Return what to put in the place of the dims of a node."""
    return {dim_var(k): e for k, e in enumerate(exprs)}


def opened(terms: Terms, view: Term) -> tuple[Term, list[Var]]:
    """Return the body of a reduction at the places of a view, and its bound variables, new ones."""
    node = terms.nodes[view.node]
    sizes = node.detail[1]
    assert isinstance(sizes, tuple)
    values = dims_values(view.exprs)
    inner = []
    for k, size in enumerate(sizes):
        inner.append(Var("b", f"_{terms.fresh()}", size))
        values[Var("b", str(k), size)] = of_var(inner[-1])
    return terms.composed(node.reads[0], values, view.guards), inner


def by_variables(
    views: Sequence[Term], bound: frozenset[Var], first: tuple[Var, ...] = ()
) -> tuple[tuple[Term, ...], list[Expr]]:
    """Return views over dims and bound variables, and what each dim stands for: one for each other variable.

    first: variables of the first dims. Guards stay with each view: `Terms.free` leaves them to what reads the views.
    """
    found = frozenset[Var]().union(*map(view_variables, views)) - bound
    free = [*first, *sorted(found.difference(first))]
    dims = {v: dim_place(k) for k, v in enumerate(free)}
    made = [
        Term(
            view.node,
            tuple([substitute(e, dims) for e in view.exprs]),
            view.fills,
            tuple(sorted({(substitute(e, dims), n) for e, n in view.guards})),
        )
        for view in views
    ]
    return tuple(made), list(map(of_var, free))


def _joined(dim: Var, part: Expr) -> Expr:
    return Expr(part.const, tuple(sorted([*part.terms, (dim, 1)])))


def view_variables(view: Term) -> frozenset[Var]:
    """Return the variables that a view depends on."""
    empty: frozenset[Var] = frozenset()
    return empty.union(*[variables(e) for e in view.exprs], *[variables(e) for e, _ in view.guards])
