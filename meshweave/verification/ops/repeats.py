"""Read loops of ops. Few trips are followed one by one; of many, one trip is read for all of them.

    for t in 0 to 100: s = s + A[t]                 s + sum_{t < 100} A[t]
    for t in 0 to 100: s[4 * t : 4 * t + 4] = f     f[i], with i / 4 in the place of t
    for t in 0 to n: s = f(t, s)                    where both programs have such loops: f is read once, and followed
    while p(s): s = f(s)                            one node of s, p and f, the same where these are the same

The last is for what nothing else says: a carried value stands for a whole tensor, of which a rank has a part that stays
where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from meshweave.ir.bindings import ir
from meshweave.ir.ops import body_of
from meshweave.verification.recurrences import LEAST_FOLDED, Trips
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.arith import kind_of
from meshweave.verification.terms.indices import (
    Expr,
    Var,
    bounds,
    is_number,
    of_var,
    plus,
    quotient,
    times,
    total,
    variables,
)
from meshweave.verification.terms.pieces import (
    StridedRange,
    choice_of,
    chosen,
    concat,
    pieces_of,
    replaced,
)
from meshweave.verification.terms.ranks import index_var, places_of
from meshweave.verification.terms.reductions.reduce import reduce
from meshweave.verification.terms.reductions.turns import operands_of
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import (
    Guard,
    Node,
    Term,
    Terms,
    bodies_of,
    dim_var,
    view_variables,
)
from meshweave.verification.walk import ProgramWalk, TripError, handles

MOST_TRIPS = 64
"""Trips of a loop that is followed trip by trip where one trip does not say what all of them do, or not enough."""
MOST_READINGS = 5
"""How often the body of a loop is read to find where the values that it carries lie."""


@handles("scf.for")
def _for(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    low, high, step = [walk.integer(v) for v in list(op.operands)[:3]]
    if low is None or high is None or not step:
        if any(v.kind == "t" for o in list(op.operands)[:3] for v in view_variables(walk.views[o])):
            raise TripError
        raise NotReadError("a loop whose number of trips is not known")
    trips = range(low, high, step)
    carried = [walk.views[v] for v in list(op.operands)[3:]]
    index = walk.shape(body_of(op).arguments[0])[1] == "index"
    if index and len(trips) > 1 and walk.once((trips, len(carried))):
        made = _read_once(walk, op, trips, carried)
        if made is not None:
            return made
    if len(trips) > MOST_TRIPS or (len(trips) > 1 and walk.shortens):
        before = walk.ops
        made = _many_trips(walk, op, trips, carried, len(trips) > MOST_TRIPS)
        if made is not None:
            if len(trips) <= MOST_TRIPS:
                walk.shortened = True
                walk.saved += (walk.ops - before) * (len(trips) - 1)
            return made
    for trip in trips:
        carried = _trip(walk, op, Expr(trip), carried)
    return carried


def _read_once(
    walk: ProgramWalk, op: ir.Operation, trips: range, carried: list[Term]
) -> list[Term] | None:
    """Read one trip as a function of its number and of what is carried, and follow it; None where it is no function."""
    number, last = Var("t", f"{walk.terms.fresh()}", len(trips)), len(trips) - 1
    place = total([(of_var(number), trips.step)], trips.start)
    trip, tried, forms = 0, None, walk.forms(walk, op)
    try:
        while trip <= last:
            walk.ops += 1
            read = partial(_trip, walk, op, place)
            known, given, nodes = walk.read_once((op, number), read, carried, forms)
            if last - trip >= LEAST_FOLDED and known is not tried:
                tried, which = known, range(trip, last)
                alike = Trips(walk.terms, known, given, nodes, walk.depth, number, which, forms)
                behind = alike.behind()
                if behind is not None:
                    walk.saved += known.ops * (last - trip)
                    trip, nodes = last, behind
            made = known.of_nodes(walk.terms, nodes)
            carried = [walk.terms.composed(view, {number: Expr(trip)}) for view in made]
            trip += 1
    except TripError:
        return None
    return carried


def _trip(walk: ProgramWalk, op: ir.Operation, place: Expr, carried: Sequence[Term]) -> list[Term]:
    """Return what a trip hands on. place: the index of the loop."""
    block = body_of(op)
    index, *inside = block.arguments
    type_ = walk.shape(index)[1]
    known = walk.terms.iota(place)
    walk.views[index] = known if type_ == "index" else walk.terms.constant(type_, place.const)
    walk.views.update(zip(inside, carried))
    return walk.block(block)


@handles("scf.while")
def _while(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    before, after = [region.blocks[0] for region in op.regions]
    carried = [walk.views[v] for v in op.operands]
    for _ in range(MOST_TRIPS):
        test, *handed = _before(walk, before, carried)
        known = walk.terms.constant_of(test)
        if known is None:
            break
        if not known:
            return handed
        walk.views.update(zip(after.arguments, handed))
        carried = walk.block(after)

    def read(states: Sequence[Term]) -> tuple[list[Term], list[Term]]:
        test, *handed = _before(walk, before, states)
        walk.views.update(zip(after.arguments, handed))
        return walk.block(after), [*handed, test]

    shapes = [walk.shape(v)[0] for v in before.arguments]
    carried = [walk.views[v] for v in op.operands]
    found = _Unfolded(walk, shapes, carried, read).settled()
    return [found.result(k, walk.shape(r)[0]) for k, r in enumerate(op.results)]


def _before(walk: ProgramWalk, block: ir.Block, states: Sequence[Term]) -> list[Term]:
    """Return the condition of a loop, and what it hands on."""
    walk.views.update(zip(block.arguments, states))
    return walk.block(block)


def _many_trips(
    walk: ProgramWalk, op: ir.Operation, trips: range, carried: Sequence[Term], only: bool
) -> list[Term] | None:
    """Read one trip for all of them.

    Return None where that does not say what all of them do. only: there is no other way; then it is a NotReadError.
    """
    if walk.shape(body_of(op).arguments[0])[1] != "index":
        if only:
            raise NotReadError("a loop of many trips that is counted in integers")
        return None
    trip = Var("b", f"_{walk.terms.fresh()}", len(trips))
    place = total([(of_var(trip), trips.step)], trips.start)
    values = body_of(op).arguments[1:]
    own = [_state(walk, k, walk.shape(v)) for k, v in enumerate(values)]
    made = _trip(walk, op, place, own)
    states = {view.node for view in own}
    closed = [
        _Closed(walk.terms, view, init, trip, states, walk.shape(v)[0]).of(new)
        for view, init, new, v in zip(own, carried, made, values)
    ]
    made = [v for v in closed if v is not None]
    if len(made) == len(closed) and (only or not any(_is_open(walk.terms, v) for v in made)):
        return made
    if only:
        raise NotReadError(f"a loop of {len(trips)} trips that carries more than sums and slices")
    return None


def _state(walk: ProgramWalk, number: int, type_: tuple[tuple[int, ...], str]) -> Term:
    """Return what stands for a carried value as it is on a rank."""
    shape, element = type_
    detail = (walk.terms.fresh(), number)
    node = walk.terms.put(Node("state", detail, (), element), shape)
    return walk.terms.view(node, places_of(shape))


@dataclass(frozen=True)
class _Closed:
    """Say what a loop makes of a carried value.

    state: what stands for the value; states: the nodes of all of them. init: the value before the loop.
    trip: the variable that is the number of the trip.
    """

    terms: Terms
    state: Term
    init: Term
    trip: Var
    states: set[int]
    shape: tuple[int, ...]

    def of(self, new: Term) -> Term | None:
        """Return the value behind the loop, where a trip makes `new` of it; None where there is no rule."""
        if new == self.state:
            return self.init
        return self._added(new) or self._put(new)

    def _added(self, new: Term) -> Term | None:
        """Read a sum, or another reduction, of what was there and of something that each trip has."""
        node = self.terms.nodes[new.node]
        kind = kind_of(node.op, node.type)
        if kind is None or len(node.reads) != 2:
            return None
        parts = operands_of(self.terms, node.op, new)
        others = [p for p in parts if p != self.state]
        if len(others) != len(parts) - 1 or not all(map(self._is_free, others)):
            return None
        made = self.init
        for part in others:
            over = reduce(self.terms, kind, part, [self.trip])
            made = apply(self.terms, node.op, node.detail, node.type, [made, over])
        return made

    def _put(self, new: Term) -> Term | None:
        """Read slices that each trip puts somewhere else."""
        if new == self.state:
            return self.init
        if self.trip not in view_variables(new) and self._is_free(new):
            return new
        if self.terms.nodes[new.node].op == "concat":
            return self._pieces(new)
        known = choice_of(self.terms, new)
        if known is None or known[2] != self.state:
            return None
        taken, value, _ = known
        if not any(self.trip in variables(e) for e, _ in taken):
            inner = self._put(value)
            return None if inner is None else chosen(self.terms, taken, inner, self.init)
        box = self._box(taken)
        if box is None or not self._is_free(value):
            return None
        turn = quotient(box.offset, box.size // self.trip.size)
        moved = self.terms.composed(value, {self.trip: turn})
        return replaced(self.terms, self.init, moved, [] if box.is_all else [box])

    def _pieces(self, new: Term) -> Term | None:
        place = next(
            (v for d, n in enumerate(self.shape) if of_var(v := index_var(d, n)) == new.exprs[0]),
            None,
        )
        if place is None:
            return None
        pieces = [(at, self._put(v)) for at, v in pieces_of(self.terms, new, place, 0, place.size)]
        if any(v is None for _, v in pieces):
            return None
        return concat(self.terms, place, [(at, v) for at, v in pieces if v is not None])

    def _box(self, taken: Sequence[Guard]) -> StridedRange | None:
        """Return what all trips take together, each the slice behind that of the trip before."""
        if len(taken) != 1:
            return None
        expr, size = taken[0]
        moving = [(a, c) for a, c in expr.terms if a == self.trip]
        rest = Expr(expr.const, tuple([t for t in expr.terms if t not in moving]))
        place = next(
            (v for d, n in enumerate(self.shape) if (v := index_var(d, n)) in variables(rest)), None
        )
        if moving != [(self.trip, -size)] or self.trip in variables(rest) or place is None:
            return None
        begin = plus(of_var(place), times(rest, -1))
        low, high = bounds(begin)
        if place in variables(begin) or low < 0 or high + size * self.trip.size > place.size:
            return None
        return StridedRange(place, begin, size * self.trip.size)

    def _is_free(self, view: Term) -> bool:
        return not self.states & nodes_of(self.terms, view)


def _is_open(terms: Terms, view: Term) -> bool:
    """Tell whether a part of a view is not known."""
    return any(terms.nodes[number].op == "unknown" for number in nodes_of(terms, view))


def nodes_of(terms: Terms, view: Term) -> set[int]:
    """Return the nodes that a view is made of."""
    found, todo = set[int](), [view.node]
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            node = terms.nodes[number]
            todo += [r.node for r in node.reads]
            # That of a loop may read what is around it.
            todo += [body for body, _ in bodies_of(node)]
    return found


@dataclass
class _Unfolded:
    """Hold a loop of which only one trip is read: what it carries are parts of tensors that symbols stand for.

    read: makes of carried values those of the next trip, and what else is asked for.
    places: for each carried value, for each dim of it, the place in the tensor; dims along which it is the same are
    left out. sizes: how long that tensor is.
    """

    walk: ProgramWalk
    shapes: Sequence[tuple[int, ...]]
    inits: Sequence[Term]
    read: Callable[[Sequence[Term]], tuple[list[Term], list[Term]]]
    places: list[dict[int, Expr]] = field(default_factory=list)
    sizes: list[dict[int, int | None]] = field(default_factory=list)
    nexts: list[Term] = field(default_factory=list)
    asked: list[Term] = field(default_factory=list)

    def settled(self) -> _Unfolded:
        """Find the places: those of the values before the loop, and of those that a trip makes of them."""
        self.places = [{} for _ in self.inits]
        self.sizes = [{} for _ in self.inits]
        self._learn(self.inits)
        self.walk.depth, kept, self.walk.keeps = self.walk.depth + 1, self.walk.keeps, True
        try:
            for _ in range(MOST_READINGS):
                self.nexts, self.asked = self.read(
                    [self._symbol(k) for k in range(len(self.inits))]
                )
                if not self._learn(self.nexts):
                    return self
        finally:
            self.walk.depth, self.walk.keeps = self.walk.depth - 1, kept
        raise NotReadError("a loop whose values do not stay where they are")

    def _learn(self, views: Sequence[Term]) -> bool:
        """Note where values lie; return whether that was news."""
        news = False
        for k, (view, shape) in enumerate(zip(views, self.shapes)):
            for dim, (expr, size) in _dims(self.walk.terms, view, shape).items():
                if dim not in self.places[k]:
                    self.places[k][dim], self.sizes[k][dim], news = expr, size, True
                if self.places[k][dim] != expr:
                    raise NotReadError("a loop that moves what it carries")
        return news

    def _symbol(self, number: int) -> Term:
        terms, dims = self.walk.terms, sorted(self.places[number])
        sizes = tuple([self.sizes[number][d] for d in dims])
        type_ = terms.type_of(self.inits[number])
        node = terms.put(Node("state", (self.walk.depth, number, sizes), (), type_), sizes)
        return terms.view(node, [self.places[number][d] for d in dims])

    def result(self, number: int, shape: tuple[int, ...]) -> Term:
        """Return a value behind the loop."""
        terms, view = self.walk.terms, self.asked[number]
        dims = _dims(terms, view, shape)
        exprs = [dims[d][0] for d in sorted(dims)]
        sizes = [dims[d][1] for d in sorted(dims)]
        reads = [_function(terms, view, exprs, sizes), _function(terms, self.asked[-1], [], [])]
        for k, (init, new) in enumerate(zip(self.inits, self.nexts)):
            places = [self.places[k][d] for d in sorted(self.places[k])]
            extents = [self.sizes[k][d] for d in sorted(self.places[k])]
            reads += [_function(terms, v, places, extents) for v in (init, new)]
        detail = (self.walk.depth, len(self.inits))
        node = Node("while", detail, tuple(reads), terms.type_of(view))
        return terms.view(terms.put(node, sizes), exprs)


def _dims(terms: Terms, view: Term, shape: tuple[int, ...]) -> dict[int, tuple[Expr, int | None]]:
    """Return for each dim of a value the place that it reads there, and how long the dim of what it reads is."""
    if view.guards or any(f is not None for f in view.fills):
        raise NotReadError("a loop over values with padding")
    found: dict[int, tuple[Expr, int | None]] = {}
    for expr, size in zip(view.exprs, terms.sizes[view.node]):
        if is_number(expr):
            continue
        own = [d for d, n in enumerate(shape) if index_var(d, n) in variables(expr)]
        if len(own) != 1 or (own[0] in found and found[own[0]][0] != expr):
            raise NotReadError("a loop over values that do not lie dim by dim")
        found.setdefault(own[0], (expr, size))
    return found


def _function(terms: Terms, view: Term, exprs: Sequence[Expr], sizes: Sequence[int | None]) -> Term:
    """Write a view as a function of places: a dim for each of them."""
    if view.guards or any(f is not None for f in view.fills):
        raise NotReadError("a loop over values with padding")
    made = []
    for expr, size in zip(view.exprs, terms.sizes[view.node]):
        if is_number(expr):
            made.append(Expr(expr.const))
            continue
        if expr not in exprs:
            raise NotReadError("a loop that moves what it carries, or that ranks may leave apart")
        number = exprs.index(expr)
        wanted = sizes[number]
        if size is not None and (wanted is None or size < wanted):
            raise NotReadError("a loop over values with padding")
        made.append(of_var(dim_var(number)))
    return Term(view.node, tuple(made), (None,) * len(made))
