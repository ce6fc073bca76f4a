"""Put tensors together along a dim, and take parts of what was put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from meshweave.verification.terms.arith import predicate_of
from meshweave.verification.terms.diagonals import in_one_form
from meshweave.verification.terms.indices import (
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
    variables,
)
from meshweave.verification.terms.lookups import put_in_block
from meshweave.verification.terms.masks import is_masked, is_plain, settled
from meshweave.verification.terms.nodes import plain
from meshweave.verification.terms.samples import OpenError, place
from meshweave.verification.terms.terms import (
    Guard,
    MixedError,
    Node,
    Term,
    Terms,
    by_variables,
    dim_var,
    dims_values,
    is_only,
    view_variables,
)

FAR = 1 << 60
"""Where the last of some pieces ends."""
MOST_PLACES = 1 << 14
MOST_DIMS = 16  # of a choice between values
"""Places and coordinates at which it is looked whether slices take all of a tensor."""

Piece = tuple[tuple[int, int], Term]
"""From where to where along a dim, and the value there as a function of the place in the whole dim."""


def concat(terms: Terms, place: Var, pieces: Sequence[Piece]) -> Term:
    """Return the value that is `pieces` along the dim whose index is the variable `place`.

    Pieces that are made of pieces are taken apart, those that continue each other become one. The last has no end: what
    is read lies within the whole.
    """
    whole: list[Piece] = []
    for piece in [part for each in pieces for part in _apart(terms, place, each)]:
        piece = piece[0], _settled(terms, place, piece)
        while whole and (joined := _continued(terms, place, whole[-1], piece)) is not None:
            whole.pop()
            piece = joined
        whole.append(piece)
    if len(whole) == 1:
        return whole[0][1]
    kind, depends = (
        terms.type_of(whole[0][1]),
        {place}.union(*[view_variables(v) for _, v in whole]),
    )
    reason, guards = "", list[Guard]()
    spans = [at for at, _ in whole]
    spans[-1] = spans[-1][0], FAR
    try:
        views, exprs, sizes, guards = _abstract(terms, place, [v for _, v in whole])
    except MixedError:
        reason = "pieces at places that mix"
    unlike = terms.algebra and len({v.guards for _, v in whole}) > 1
    if unlike or not all(_of_ranks(e, place) for e, _ in guards):
        reason = "pieces that are not all defined"
    if reason and not terms.algebra:
        return terms.unknown(reason, kind, sorted(depends))
    if reason:  # each is undefined where it is: it has a normal form case by case
        parts, exprs = by_variables([v for _, v in whole], frozenset(), (place,))
        node = terms.put(Node("concat", tuple(spans), parts, kind), (None,) * len(exprs))
        return Term(node, tuple(exprs), (None,) * len(exprs))
    node = terms.put(Node("concat", tuple(spans), tuple(views), kind), sizes)
    return Term(node, tuple(exprs), (None,) * len(exprs), tuple(sorted(set(guards))))


def _of_ranks(guard: Expr, place: Var) -> bool:
    """Tell whether a guard of a piece may be one of the whole: it says where a rank has nothing, in other dims."""
    found = variables(guard)
    return place not in found and any(v.kind == "x" for v in found)


def _continued(terms: Terms, place: Var, one: Piece, two: Piece) -> Piece | None:
    """Return two pieces side by side as one, where one function of the place says both; None for no such."""
    ((start, middle), a), ((_, end), b) = one, two
    if a == b:
        return (start, end), a
    if terms.algebra and a.node != b.node and (covering := _covering(terms, place, one, two)):
        return (start, end), covering
    if terms.algebra and a.node != b.node and (alike := _of_one_form(terms, place, one, two)):
        return _continued(terms, place, *alike)
    if a.node != b.node or a.fills != b.fills or a.guards != b.guards:
        return None
    if any(place in variables(e) for e, _ in a.guards):
        return None
    here = [_from(e, place, start, middle) for e in a.exprs]
    there = [_from(e, place, middle, end) for e in b.exprs]
    if [_from(e, place, middle, end) for e in a.exprs] == there:
        return (start, end), a
    if [_from(e, place, start, middle) for e in b.exprs] == here:
        return (start, end), b
    steps = [plus(t, times(h, -1)) for h, t in zip(here, there)]
    if end - middle != middle - start or not all(map(is_number, steps)):
        return None
    offset = plus(of_var(place), Expr(-start))
    within = {_local(middle - start): remainder(offset, middle - start)}
    turns = quotient(offset, middle - start)
    exprs = [plus(substitute(h, within), times(turns, s.const)) for h, s in zip(here, steps)]
    return (start, end), terms.view(a.node, exprs, a.fills, a.guards)


def _of_one_form(terms: Terms, place: Var, one: Piece, two: Piece) -> tuple[Piece, Piece] | None:
    """Return pieces of one node, where one of them has equal places in dims of the other; None for any others.

    One at least is of one place; a longer one is looked at there.
    """
    (start, middle), end = one[0], two[0][1]
    lone = middle - start == 1, end - middle == 1
    if not any(lone):
        return None
    places = start if lone[0] else middle, middle if lone[1] else start
    here = [terms.composed(v, {place: Expr(n)}) for (_, v), n in zip((one, two), places)]
    found = in_one_form(terms, *here)
    if found is None or any(not own and a != b for own, a, b in zip(lone, here, found)):
        return None
    first, second = [
        (span, new if own else view) for (span, view), new, own in zip((one, two), found, lone)
    ]
    return first, second


def _covering(terms: Terms, place: Var, one: Piece, two: Piece) -> Term | None:
    """Return that of two pieces which, behind its mask, is the other one too."""
    for (_, view), ((start, end), other) in ((one, two), (two, one)):
        if is_masked(terms, view.node, within=1):
            there = {place: _place(start, end)}
            if settled(terms, terms.composed(view, there), within=1) == terms.composed(
                other, there
            ):
                return view
    return None


def _from(expr: Expr, place: Var, start: int, end: int) -> Expr:
    """Return an expression as a function of how far a place is from where a piece starts."""
    return substitute(expr, {place: _place(start, end)})


def _place(start: int, end: int) -> Expr:
    """Return a place in a piece, by how far it is from where the piece starts."""
    return plus(of_var(_local(end - start)), Expr(start)) if end - start > 1 else Expr(start)


def _local(size: int) -> Var:
    return Var("p", "here", size)


def _abstract(
    terms: Terms, place: Var, views: Sequence[Term]
) -> tuple[list[Term], list[Expr], list[int | None], list[tuple[Expr, int]]]:
    """Make the pieces functions of dim 0, the place, and one dim for each other expression."""
    exprs: list[Expr] = [of_var(place)]
    sizes: list[int | None] = [None]
    made, guards = list[Term](), list[Guard]()
    for view in views:
        own: list[Expr] = []
        guards += view.guards
        for expr, size, fill in zip(view.exprs, terms.sizes[view.node], view.fills):
            if place in variables(expr):
                moving = [t for t in expr.terms if place in variables(Expr(0, (t,)))]
                if variables(Expr(0, tuple(moving))) != {place}:
                    raise MixedError
                base = Expr(0, tuple([t for t in expr.terms if t not in moving]))
                here = substitute(Expr(expr.const, tuple(moving)), {place: of_var(dim_var(0))})
                if base.terms and not all(_unit(a) for a, _ in base.terms):
                    here = plus(here, of_var(_dim(exprs, sizes, base, None)))
                own.append(here)
            elif is_only(expr, size):
                own.append(expr)
            else:
                own.append(of_var(_dim(exprs, sizes, expr, size if fill is None else None)))
        made.append(Term(view.node, tuple(own), view.fills))
    return made, exprs, sizes, guards


def _unit(atom: object) -> bool:
    return isinstance(atom, Var) and atom.size == 1


def _dim(exprs: list[Expr], sizes: list[int | None], expr: Expr, size: int | None) -> Var:
    if expr in exprs[1:]:
        number = exprs.index(expr, 1)
        if size is not None:
            known = sizes[number]
            sizes[number] = size if known is None else min(known, size)
        return dim_var(number)
    exprs.append(expr)
    sizes.append(size)
    return dim_var(len(exprs) - 1)


def pieces_of(terms: Terms, view: Term, place: Var, start: int, end: int) -> list[Piece]:
    """Return the value from `start` to `end` along a dim, piece by piece."""
    node = terms.nodes[view.node]
    if node.op != "concat" or start >= end or any(f is not None for f in view.fills):
        return [((start, end), view)] if start < end else []
    shift = view.exprs[0].const
    if view.exprs[0] != plus(of_var(place), Expr(shift)):
        return [((start, end), view)]
    found = []
    for at, piece in zip(node.detail, node.reads):
        assert isinstance(at, tuple)
        low, high = max(start, at[0] - shift), min(end, at[1] - shift)
        if low < high:
            own = terms.composed(piece, dims_values(view.exprs), view.guards)
            found.append(((low, high), own))
    return found


def narrowed(terms: Terms, view: Term) -> Term:
    """Return a view of pieces as what is put together of the pieces that it reads, each as far as it does."""
    node = terms.nodes[view.node]
    if node.op != "concat" or len(view.exprs[0].terms) != 1:
        return view
    place, factor = view.exprs[0].terms[0]
    if not isinstance(place, Var) or place.kind == "h" or factor != 1:
        return view
    found = pieces_of(terms, view, place, 0, place.size)
    if not found or found[0][0][0] > 0:  # nothing is read of it, or not from its begin
        return view
    made = concat(terms, place, found)
    return view if _is_unknown(terms, made) else made


def reached(terms: Terms, view: Term) -> Term:
    """Return a view of pieces without those that lie behind all places that it reads, as rows of padding may."""
    node = terms.nodes[view.node]
    if node.op != "concat" or view.fills[:1] not in ((), (None,)):
        return view
    end = bounds(view.exprs[0])[1]
    spans = [span for span in node.detail if span[0] <= end]
    if not spans:  # all that is read lies before the first piece
        return view
    reads, sizes = node.reads[: len(spans)], terms.sizes[view.node]
    used = set[Var]().union(*map(view_variables, reads))
    if len(spans) == len(node.detail) or not used.issuperset(map(dim_var, range(1, len(sizes)))):
        return view
    if len(spans) == 1:
        return terms.composed(reads[0], dims_values(view.exprs)) if is_plain(view) else view
    # What guards and the ends of other dims say of the view holds without these pieces too.
    spans[-1] = spans[-1][0], FAR
    made = terms.put(Node("concat", tuple(spans), reads, node.type), sizes)
    return view._replace(node=made)


def _apart(terms: Terms, place: Var, piece: Piece) -> list[Piece]:
    """Return the pieces that a piece is made of; itself where they leave out its beginning."""
    (start, end), view = piece
    found = pieces_of(terms, view, place, start, end)
    return [piece] if found and found[0][0][0] > start else found


def by_place(terms: Terms, condition: Term, yes: Term, no: Term) -> Term | None:
    """Read `place >= number ? yes : no` (unsigned, of type index) as the two side by side along that place.

    A rank puts tensors side by side in this way, where `place` is the index in the whole dim. What both read must be a
    function of that place alone, in as far as they depend on its parts.
    """
    found = _compared_place(terms, condition)
    if found is None:
        return None
    expr, middle = found
    low, high = bounds(expr)
    part = next((a for a, c in reversed(expr.terms) if isinstance(a, Var) and c == 1), None)
    if low < 0 or part is None or not low < middle <= high:
        return None
    rest = plus(expr, times(of_var(part), -1))
    whole, end = Var("p", "whole", high + 1), high + 1
    pieces, caps = list[Piece](), list[Guard]()
    for view, start, stop in ((no, 0, middle), (yes, middle, end)):
        here = _local(stop - start)
        own = terms.composed(view, {part: plus(of_var(whole), times(rest, -1))})
        own = terms.composed(own, {whole: plus(of_var(here), Expr(start))})
        if stop == end:
            own, ends = _uncapped(own, here)
            caps = [(expr, start + n) for n in ends]
            stop = min([stop, *[n for _, n in caps]])
        back = {here: plus(of_var(whole), Expr(-start))}
        for (a, b), piece in pieces_of(terms, own, here, 0, stop - start):
            pieces.append(((start + a, start + b), _put_back(terms, piece, back)))
    made = concat(terms, whole, pieces)
    return None if _is_unknown(terms, made) else terms.composed(made, {whole: expr}, caps)


def _compared_place(terms: Terms, condition: Term) -> tuple[Expr, int] | None:
    """Return a place and a number where a condition says that the place is not below the number."""
    node = terms.nodes[condition.node]
    if node.op != "arith.cmpi" or predicate_of(node.detail) != 9 or condition.guards:
        return None
    place, least = [terms.composed(r, dims_values(condition.exprs)) for r in node.reads]
    if any(terms.nodes[v.node].op != "iota" or v.guards for v in (place, least)):
        return None
    return (place.exprs[0], least.exprs[0].const) if not least.exprs[0].terms else None


def _is_unknown(terms: Terms, view: Term) -> bool:
    return terms.nodes[view.node].op == "unknown"


def _uncapped(view: Term, place: Var) -> tuple[Term, list[int]]:
    """Return a view without the guards that say where a dim ends, and the places along it where they do."""
    caps = [
        (e, n)
        for e, n in view.guards
        if e == plus(of_var(place), Expr(e.const)) and 0 <= e.const < n
    ]
    rest = tuple([g for g in view.guards if g not in caps])
    return view._replace(guards=rest), [n - e.const for e, n in caps]


def _put_back(terms: Terms, view: Term, values: Mapping[Var, Expr]) -> Term:
    """Write a piece as a function of the place in the whole: its guards hold where it is read."""
    exprs = [substitute(e, values) for e in view.exprs]
    guards = [(substitute(e, values), n) for e, n in view.guards]
    return Term(view.node, tuple(exprs), view.fills, tuple(guards))


class StridedRange(NamedTuple):
    """Say which places along a dim are taken: `size` of them, from `begin` on, `stride` apart.

    place: the variable that is the index along the dim.
    """

    place: Var
    begin: Expr
    size: int
    stride: int = 1

    @property
    def is_all(self) -> bool:
        """Tell whether these are all places of the dim."""
        return self.size == self.place.size

    @property
    def offset(self) -> Expr:
        """Return how far a place is behind the first."""
        return plus(of_var(self.place), times(self.begin, -1))

    def put(self, expr: Expr, index: Var) -> Expr:
        """Write an expression of the index among the places that are taken as one of the place."""
        if index not in variables(expr):
            return expr
        coefficient = next((c for a, c in expr.terms if a == index), 0)
        rest = Expr(expr.const, tuple([t for t in expr.terms if t[0] != index]))
        if coefficient % self.stride or index in variables(rest):
            return substitute(expr, {index: quotient(self.offset, self.stride)})
        return plus(rest, times(self.offset, coefficient // self.stride))

    @property
    def is_fixed(self) -> bool:
        """Tell whether these are places side by side, the same on all ranks."""
        return not self.begin.terms and self.stride == 1

    @property
    def last(self) -> int:
        """Return how far the last place is from the first."""
        return (self.size - 1) * self.stride


def replaced(terms: Terms, into: Term, value: Term, boxes: Sequence[StridedRange]) -> Term:
    """Return `into` with `value` within a box for each dim; dims that the box takes in full may be left out."""
    if not boxes:
        return value
    box, *others = boxes
    if box.begin.terms:
        return _among(terms, box, (box.offset, box.last + 1), into, value, others)
    start, end, place = box.begin.const, box.begin.const + box.last + 1, box.place
    inner = [
        (at, _among(terms, box, None, piece, value, others))
        for at, piece in pieces_of(terms, into, place, start, end)
    ]
    around = pieces_of(terms, into, place, 0, start) + inner
    return concat(terms, place, around + pieces_of(terms, into, place, end, place.size))


def _among(
    terms: Terms,
    box: StridedRange,
    within: Guard | None,
    into: Term,
    value: Term,
    others: Sequence[StridedRange],
) -> Term:
    """Return `into` with `value` at the places of a box that `within` and its stride take."""
    taken = [within] if within else []
    if box.stride != 1 and box.size != 1:
        taken.append((remainder(box.offset, box.stride), 1))
    made = replaced(terms, into, value, others)
    for where in reversed(taken):
        made = chosen(terms, (where,), made, into)
    return made


def chosen(terms: Terms, taken: Sequence[Guard], value: Term, into: Term) -> Term:
    """Return `value` where one of some expressions is within its size, `into` elsewhere.

    Where `into` chooses between the same value and another one, the two choices become one.
    """
    while True:
        known = choice_of(terms, into)
        if known is None or known[1] != value:
            break
        taken, into = (*taken, *known[0]), known[2]
    taken = sorted(set(taken))
    if _is_always_taken(tuple(taken)):
        return value
    reads = [terms.iota(e) for e, _ in taken]
    test = plain(terms, "among", tuple([n for _, n in taken]), "i1", reads)
    return _select(terms, test, value, into)


def put_at(
    terms: Terms,
    into: Term,
    value: Term,
    moving: Sequence[tuple[Var, Term, int]],
) -> Term:
    """Return `into` with `value` at places that are computed.

    moving: for each dim its index, where the value begins, and its size there. The value is read at variables "g" 0,
    1, .. in these dims.
    """
    sizes = tuple([n for _, _, n in moving])
    bound = frozenset(Var("g", str(k), n) for k, n in enumerate(sizes))
    pairs = [v for place, begin, _ in moving for v in (terms.iota(of_var(place)), begin)]
    if sizes == (1,):
        whole = put_in_block(terms, into, value, *moving[0][:2])
        if whole is not None:
            value, *pairs = whole
    kind = terms.type_of(value)
    views = [value, into, *pairs]
    if any(variables(e) & bound for v in views for e, _ in v.guards):
        return terms.unknown(
            "a part of a tensor put at a place that is computed", kind, _all(views)
        )
    try:
        found = terms.free(views, bound)
    except MixedError:
        return terms.unknown("places that mix", kind, _all(views))
    defined = _defined(into.exprs, terms.sizes[into.node], found.exprs)
    number = terms.put(Node("put", sizes, found.views, kind), defined)
    return terms.view(number, found.exprs, (), found.guards)


def moved(terms: Terms, view: Term, boxes: Mapping[Var, StridedRange], chosen: bool) -> Term:
    """Return a value as it stands in boxes: for each index of its own the box of that dim.

    chosen: it becomes a branch of a choice. That is defined where the other branch is not: dims do not say what is
    undefined, so that guards do.
    """
    known = [
        (e, n)
        for e, n, f in zip(view.exprs, terms.sizes[view.node], view.fills)
        if chosen and n is not None and f is None and not inside(e, n)
    ]
    exprs, guards = list(view.exprs), [*view.guards, *known]
    for index, box in boxes.items():
        exprs = [box.put(e, index) for e in exprs]
        guards = [(box.put(e, index), n) for e, n in guards]
    made = terms.view(view.node, exprs, view.fills, guards)
    return made._replace(guards=tuple(sorted(set(guards)))) if chosen else made


def is_defined(terms: Terms, view: Term) -> bool:
    """Tell whether a view surely reads a defined element, or a fill, along each dim."""
    ends = zip(view.exprs, terms.sizes[view.node], view.fills)
    return all(n is None or f is not None or inside(e, n) for e, n, f in ends)


@lru_cache(maxsize=1 << 10)
def _defined(
    exprs: tuple[Expr, ...], sizes: tuple[int | None, ...], places: tuple[Expr, ...]
) -> tuple[int | None, ...]:
    """Return how far what lies at places `exprs`, of these sizes, is defined along other places."""
    ends = dict[Expr, int]()
    for expr, size in zip(exprs, sizes):
        if size is not None:
            ends[expr] = min(size, ends.get(expr, size))
    return tuple(map(ends.get, places))


def _all(views: Sequence[Term]) -> list[Var]:
    return sorted(set[Var]().union(*map(view_variables, views)))


def choice_of(terms: Terms, view: Term) -> tuple[list[Guard], Term, Term] | None:
    """Return where a view chooses its first value, that value, and the other; None for any other view."""
    node = terms.nodes[view.node]
    if node.op != "arith.select" or terms.nodes[node.reads[0].node].op != "among":
        return None
    values = dims_values(view.exprs)
    test, value, other = [terms.composed(r, values, view.guards) for r in node.reads]
    among = terms.nodes[test.node]
    places = [terms.composed(r, dims_values(test.exprs)).exprs[0] for r in among.reads]
    return list(zip(places, among.detail)), value, other


def _select(terms: Terms, test: Term, value: Term, into: Term) -> Term:
    """Choose a value that is read only where it is defined: what comes out is defined as far as `into` is."""
    views = (test, value, into)
    exprs = list(dict.fromkeys([e for v in views for e in v.exprs]))
    if len(exprs) > MOST_DIMS:  # each part more takes longer than the one before
        reason = f"parts at more than {MOST_DIMS} computed places"
        return terms.unknown(reason, terms.type_of(value), _all(views))
    if terms.algebra and set(value.guards) != set(into.guards):
        return guarded(terms, terms.type_of(value), views)
    reads = [
        Term(v.node, tuple([of_var(dim_var(exprs.index(e))) for e in v.exprs]), v.fills)
        for v in views
    ]
    sizes = _defined(into.exprs, terms.sizes[into.node], tuple(exprs))
    number = terms.put(Node("arith.select", (), tuple(reads), terms.type_of(value)), sizes)
    return terms.view(number, exprs, (), [g for v in views for g in v.guards])


def guarded(terms: Terms, type_: str, views: Sequence[Term]) -> Term:
    """Choose between values of which each is undefined somewhere: what comes out is only where that one is chosen."""
    reads, exprs = by_variables(views, frozenset())
    number = terms.put(Node("arith.select", (), reads, type_), (None,) * len(exprs))
    return terms.view(number, exprs)


def _settled(terms: Terms, along: Var, piece: Piece) -> Term:
    """Return what a piece chooses, where it chooses the same at all its places."""
    at, view = piece
    known = choice_of(terms, view)
    found = None if known is None else taken_at(known[0], {along: range(*at)})
    if known is not None and found is not None and len(found) == 1:
        return known[1] if True in found else known[2]
    if not terms.algebra or not is_masked(terms, view.node, within=1):
        return view
    start, end = at
    here = _local(end - start)
    moved_here = terms.composed(view, {along: _place(start, end)})
    made = settled(terms, moved_here, within=1)
    if is_masked(terms, made.node, within=1):
        return view
    return terms.composed(made, {here: plus(of_var(along), Expr(-start))})


@lru_cache(maxsize=1 << 10)
def _is_always_taken(taken: tuple[Guard, ...]) -> bool:
    return taken_at(taken, {}) == {True}


def taken_at(taken: Sequence[Guard], ranges: Mapping[Var, range]) -> set[bool] | None:
    """Tell at which places and coordinates one of some expressions is within its size; None where they are too many.

    ranges: of variables of which not all values count.
    """
    depends = sorted(set[Var]().union(*[variables(e) for e, _ in taken]))
    rows = [ranges.get(v, range(v.size)) for v in depends]
    if any(v.kind == "h" for v in depends) or prod(map(len, rows)) > MOST_PLACES:
        return None
    found = set[bool]()
    try:
        for numbers in product(*rows):
            at = dict(zip(depends, numbers))
            found.add(any(0 <= place(e, at) < n for e, n in taken))
            if len(found) == 2:
                break
    except OpenError:
        return None
    return found
