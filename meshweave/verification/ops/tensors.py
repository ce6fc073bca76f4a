"""Read ops that move elements of tensors: slices, reshapes, concatenations, padding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC, reassociation, static_offsets
from meshweave.ir.expressions import Apply, Argument, Constant, Gather, Scalar, read_body
from meshweave.ir.ops import body_of, terminator
from meshweave.verification.ops.loops import gathered, sliced
from meshweave.verification.said import NotReadError
from meshweave.verification.terms.indices import (
    Expr,
    Var,
    bounds,
    inside,
    number,
    of_var,
    plus,
    quotient,
    remainder,
    substitute,
    times,
    total,
)
from meshweave.verification.terms.lookups import gather
from meshweave.verification.terms.pieces import (
    StridedRange,
    concat,
    is_defined,
    moved,
    narrowed,
    put_at,
    replaced,
)
from meshweave.verification.terms.ranks import index_var
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.substitution import Substitution
from meshweave.verification.terms.terms import MixedError, Term, Terms, at_only_place, term
from meshweave.verification.walk import ProgramWalk, handles, scalar


@handles("tensor.empty")
def _empty(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [walk.terms.undefined(walk.shape(op.results[0])[1])]


@handles("dist.constrain", "dist.redistribute", "hint.place", "tensor.cast", "linalg.copy")
def _same(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [walk.views[op.operands[0]]]


@handles("tensor.splat")
def _splat(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    return [walk.views[op.operands[0]]]


@handles("tensor.dim")
def _dim(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    dim = walk.integer(op.operands[1])
    if dim is None:
        raise NotReadError("a size of a dim that is not known")
    return [walk.terms.iota(Expr(walk.shape(op.operands[0])[0][dim]))]


@handles("tensor.extract")
def _extract(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    indices = [walk.views[v] for v in list(op.operands)[1:]]
    for index, size in zip(indices, walk.shape(op.operands[0])[0]):
        walk.check_within(op, index, 0, size)
    return [gathered(walk, op.operands[0], indices)]


@handles("tensor.from_elements")
def _from_elements(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    shape, _ = walk.shape(op.results[0])
    views = [walk.views[v] for v in op.operands]
    if len(views) == 1:
        return views
    if len(shape) != 1:
        raise NotReadError("a tensor of several dims from elements")
    place = index_var(0, shape[0])
    return [concat(walk.terms, place, [((k, k + 1), v) for k, v in enumerate(views)])]


@handles("tensor.generate")
def _generate(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    views: list[Term] = []
    for node in read_body(body_of(op)).nodes:
        if isinstance(node, Argument):
            views.append(walk.terms.iota(walk.places(op.results[0])[node.number]))
        elif isinstance(node, Apply):
            reads, detail = [views[k] for k in node.operands], walk.detail(node.attributes)
            views.append(apply(walk.terms, node.name, detail, walk.type_text(node.type), reads))
        elif isinstance(node, Constant):
            views.append(scalar(walk, node.value, walk.type_text(node.type)))
        elif isinstance(node, Scalar):
            views.append(walk.views[node.source])
        elif isinstance(node, Gather):
            views.append(gathered(walk, node.access, [views[k] for k in node.operands]))
        else:
            raise NotReadError("a body with a loop index")
    return [views[k] for k in read_body(body_of(op)).results]


def _offsets(walk: ProgramWalk, op: ir.Operation, first: int) -> list[Term]:
    """Return where a slice begins. first: the operand from which on offsets stand."""
    moving, found = list(op.operands)[first:], list[Term]()
    for offset in static_offsets(op):
        here = walk.views[moving.pop(0)] if offset == DYNAMIC else None
        found.append(here or walk.terms.iota(number(offset)))
    if moving:
        raise NotReadError("a slice whose size is not known")
    return found


def _kept(shape: Sequence[int], sizes: Sequence[int]) -> list[int | None]:
    """Return for each dim of a slice the dim of the tensor that it is; None for one that is left out."""
    found: list[int | None] = []
    at = 0
    for place, size in enumerate(sizes):
        left = len(sizes) - place
        if at < len(shape) and shape[at] == size and (size != 1 or len(shape) - at >= left):
            found.append(at)
            at += 1
        elif size == 1:
            found.append(None)
        else:
            raise NotReadError("a slice of another shape")
    if at != len(shape):
        raise NotReadError("a slice of another shape")
    return found


def _dims_kept(shape: Sequence[int], sizes: Sequence[int]) -> list[int | None]:
    """Match the dims of a slice with those of a tensor; dims of size 1 may be left out, as MLIR leaves them out."""
    if len(shape) == len(sizes):
        return list(range(len(shape)))
    at, found = 0, list[int | None]()
    for size in sizes:
        if at < len(shape) and shape[at] == size:
            found.append(at)
            at += 1
        else:
            found.append(None)
    return found if at == len(shape) else _kept(shape, sizes)


@handles("tensor.extract_slice")
def _extract_slice(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    operands = op.operands
    (shape, _), source = walk.shape(op.results[0]), operands[0]
    box, (given, _), view = _static_box(walk, op), walk.shape(source), walk.views[source]
    offsets, computed = _offset_places(walk, operands, box, 1)
    if offsets is not None and not computed:
        window = _window(offsets, box, given, shape)
        if window is not None:
            return [narrowed(walk.terms, window.of(walk.terms, view))]
    if DYNAMIC in box.sizes or DYNAMIC in box.strides:
        raise NotReadError("a slice whose size is not known")
    if offsets is not None and _is_bare(walk.terms, view):
        where = _reading(offsets, box, given, shape, view.exprs, walk.terms.sizes[view.node])
        if where is not None:
            for offset, (last, end) in zip(computed, where.ends):
                walk.check_within(op, offset, last, end)
            at = term((view.node, where.exprs, view.fills, ()))
            with suppress(MixedError):
                return [gather(walk.terms, at, computed)]
    every = _offsets(walk, op, 1)
    for offset, size, stride, end in zip(every, box.sizes, box.strides, given):
        walk.check_within(op, offset, (size - 1) * stride, end)
    made = sliced(walk, source, every, _steps(box, shape))
    return [narrowed(walk.terms, made)]


def _is_bare(terms: Terms, view: Term) -> bool:
    """Tell whether a view has no guards and no fills, and is not put together of pieces."""
    is_plain = not view.guards and view.fills.count(None) == len(view.fills)
    return is_plain and terms.nodes[view.node].op != "concat"


class _Moving(NamedTuple):
    """Say where a slice is read or put of which some offsets are computed.

    exprs: the places of a tensor, with variables "g" 0, 1, .. in the dims whose offsets are computed. ends: of each of
    these how far the last element is from the first, and the size. places: the index along it, and how many there are.
    boxes: the other dims that are taken in part.
    """

    exprs: tuple[Expr, ...]
    ends: tuple[tuple[int, int], ...]
    places: tuple[tuple[Var, int], ...] = ()
    boxes: tuple[StridedRange, ...] = ()


_Offsets = tuple["Expr | None", ...]
_Sizes = tuple["int | None", ...]


@lru_cache(maxsize=1 << 10)
def _reading(
    offsets: _Offsets, box: _Box, whole: tuple[int, ...], shape: tuple[int, ...],
    exprs: tuple[Expr, ...], sizes: _Sizes,
) -> _Moving | None:  # fmt: skip
    """Return where a slice is read of a tensor that lies at these places; None where it may reach beyond an end.

    sizes: of what lies there. An offset is None where it is computed.
    """
    values, ends = dict[Var, Expr](), list[tuple[int, int]]()
    for dim, (offset, place, size) in enumerate(zip(offsets, _steps(box, shape), whole)):
        if offset is not None:
            values[index_var(dim, size)] = here = plus(offset, place)
            if not inside(here, size):
                return None
        else:
            placeholder = Var("g", str(len(ends)), size - bounds(place)[1])
            values[index_var(dim, size)] = plus(of_var(placeholder), place)
            ends.append(((box.sizes[dim] - 1) * box.strides[dim], size))
    made, guards = at_only_place([substitute(e, values) for e in exprs], sizes, (), ())
    return None if guards else _Moving(tuple(made), tuple(ends))


@lru_cache(maxsize=1 << 10)
def _putting(
    offsets: _Offsets, box: _Box, whole: tuple[int, ...], shape: tuple[int, ...],
    exprs: tuple[Expr, ...], sizes: _Sizes,
) -> _Moving | None:  # fmt: skip
    """Return where a slice is put that lies at these places, see `_put`; None where it may reach beyond an end."""
    values, own = dict[Var, Expr](), dict[Var, StridedRange]()
    boxes, ends, moving = list[StridedRange](), list[tuple[int, int]](), list[tuple[Var, int]]()
    kept = _dims_kept(shape, box.sizes)
    for dim, (offset, size, stride, own_dim) in enumerate(
        zip(offsets, box.sizes, box.strides, kept)
    ):
        place, last = index_var(dim, whole[dim]), (size - 1) * stride
        if offset is not None:
            low, high = bounds(offset)
            if low < 0 or high + last >= whole[dim]:
                return None
            index = Var("p", str(own_dim), size)
            own[index] = StridedRange(place, offset, size, stride)
            boxes.append(own[index])
        elif stride != 1:
            return None
        else:
            index = Var("g", str(len(moving)), size)
            moving.append((place, size))
            ends.append((last, whole[dim]))
        if own_dim is not None:
            values[index_var(own_dim, shape[own_dim])] = of_var(index)
    made, guards = at_only_place([substitute(e, values) for e in exprs], sizes, (), ())
    if guards or not all(n is None or inside(e, n) for e, n in zip(made, sizes)):
        return None
    for index, taken in own.items():
        made = [taken.put(e, index) for e in made]
    made, guards = at_only_place(made, sizes, (), ())
    parts = sorted([b for b in boxes if not b.is_all], key=lambda b: not b.is_fixed)
    return None if guards else _Moving(tuple(made), tuple(ends), tuple(moving), tuple(parts))


class _Box(NamedTuple):
    """Hold what a slice op says of its place, DYNAMIC for what it does not."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def _static_box(walk: ProgramWalk, op: ir.Operation) -> _Box:
    key = tuple(map(op.attributes.__getitem__, _STATIC))
    return walk.said.once(key, lambda: _Box(*map(tuple, key)))


_STATIC = ("static_offsets", "static_sizes", "static_strides")


@lru_cache(maxsize=1 << 10)
def _steps(box: _Box, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Return how far behind the offset an element of a slice lies along each dim."""
    places = []
    for stride, kept in zip(box.strides, _dims_kept(shape, box.sizes)):
        here = number(0) if kept is None else of_var(index_var(kept, shape[kept]))
        places.append(times(here, stride))
    return tuple(places)


def _offset_places(
    walk: ProgramWalk, operands: Sequence[ir.Value], box: _Box, first: int
) -> tuple[_Offsets | None, list[Term]]:
    """Return where a slice begins: places, with None for those that are computed from data, and these.

    first: as of `_offsets`. The places are None where that is more than places.
    """
    if DYNAMIC not in box.offsets:
        return _as_expressions(box.offsets), []
    nodes, views, computed = walk.terms.nodes, walk.views, list[Term]()
    found, moving = list[Expr | None](), first
    for offset in box.offsets:
        if offset != DYNAMIC:
            found.append(Expr(offset))
            continue
        view = views[operands[moving]]
        moving += 1
        if nodes[view.node].op != "iota":
            found.append(None)
            computed.append(view)
        elif view.guards:
            return None, computed
        else:
            found.append(view.exprs[0])
    return (tuple(found) if moving == len(operands) else None), computed


@lru_cache(maxsize=1 << 10)
def _as_expressions(numbers: tuple[int, ...]) -> _Offsets:
    return tuple(map(number, numbers))


@lru_cache(maxsize=1 << 10)
def _window(
    offsets: _Offsets, box: _Box, whole: tuple[int, ...], shape: tuple[int, ...]
) -> Substitution | None:
    """Return what to put in the place of the indices of a tensor; None where a slice may reach beyond its end."""
    if DYNAMIC in box.sizes or DYNAMIC in box.strides:
        return None
    places = [
        plus(begin, at) for begin, at in zip(offsets, _steps(box, shape)) if begin is not None
    ]
    if not all(map(inside, places, whole)):
        return None
    return Substitution({index_var(d, n): e for d, (e, n) in enumerate(zip(places, whole))})


@handles("tensor.insert_slice")
def _insert_slice(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    operands, terms = op.operands, walk.terms
    value, target = operands[0], operands[1]
    box, (shape, _), (whole, _) = _static_box(walk, op), walk.shape(value), walk.shape(target)
    given, into = walk.views[value], walk.views[target]
    offsets, computed = _offset_places(walk, operands, box, 2)
    if offsets is not None and not computed:
        known = _target(offsets, box, whole, shape)
        if known is not None and not given.guards and (known.is_fixed or is_defined(terms, given)):
            made = known.window.of(terms, given)
            if not known.is_fixed:  # it becomes a branch of a choice, see `moved`
                made = made._replace(guards=())
            return [replaced(terms, into, made, known.boxes)]
    if DYNAMIC in box.sizes or DYNAMIC in box.strides:
        raise NotReadError("a slice whose size or stride is not known")
    if offsets is not None and computed and _is_bare(terms, given):
        where = _putting(offsets, box, whole, shape, given.exprs, terms.sizes[given.node])
        if where is not None and all(
            walk.check_within(op, offset, *end) for offset, end in zip(computed, where.ends)
        ):
            made = term((given.node, where.exprs, given.fills, ()))
            moving = [(p, offset, n) for (p, n), offset in zip(where.places, computed)]
            return [replaced(terms, into, put_at(terms, into, made, moving), where.boxes)]
    every = _offsets(walk, op, 2)
    return [_put(walk, op, every, box.sizes, box.strides, _dims_kept(shape, box.sizes))]


class _Target(NamedTuple):
    """Say where a slice is put. window: what to put in the place of its indices. boxes: dims that it takes a part of.

    is_fixed: the same on all ranks.
    """

    window: Substitution
    boxes: tuple[StridedRange, ...]
    is_fixed: bool


@lru_cache(maxsize=1 << 10)
def _target(
    offsets: _Offsets, box: _Box, whole: tuple[int, ...], shape: tuple[int, ...]
) -> _Target | None:
    """Return where a slice is put whose elements lie side by side; None where it may reach beyond an end."""
    if DYNAMIC in box.sizes or any(stride != 1 for stride in box.strides):
        return None
    if _window(offsets, box, whole, shape) is None:
        return None
    places = [index_var(d, n) for d, n in enumerate(whole)]
    begins = [offset for offset in offsets if offset is not None]
    boxes = list(map(StridedRange, places, begins, box.sizes))
    kept = zip(_dims_kept(shape, box.sizes), boxes)
    window = {index_var(d, shape[d]): b.offset for d, b in kept if d is not None}
    parts = sorted([b for b in boxes if not b.is_all], key=lambda b: not b.is_fixed)
    return _Target(Substitution(window), tuple(parts), all(b.is_fixed for b in boxes))


@handles("tensor.insert")
def _insert(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    indices = [walk.views[v] for v in list(op.operands)[2:]]
    ones = [1] * len(indices)
    return [_put(walk, op, indices, ones, ones, [None] * len(indices))]


def _put(
    walk: ProgramWalk,
    op: ir.Operation,
    offsets: Sequence[Term],
    sizes: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int | None],
) -> Term:
    """Put the first operand into the second. dims: for each dim of the second that of the first."""
    shape, whole = walk.shape(op.operands[0])[0], walk.shape(op.operands[1])[0]
    ends = zip(offsets, sizes, strides, whole)
    within = [walk.check_within(op, o, (n - 1) * by, end) for o, n, by, end in ends]
    if not all(within):
        raise NotReadError("a slice put beyond the end of a tensor")
    own, values = dict[Var, StridedRange](), dict[Var, Expr]()
    boxes, moving = list[StridedRange](), list[tuple[Var, Term, int]]()
    for dim, (offset, size, stride, kept) in enumerate(zip(offsets, sizes, strides, dims)):
        place = index_var(dim, whole[dim])
        index = None if kept is None else Var("p", str(kept), size)
        if walk.terms.nodes[offset.node].op == "iota" and not offset.guards:
            boxes.append(StridedRange(place, offset.exprs[0], size, stride))
            if index is not None:
                own[index] = boxes[-1]
        elif stride == 1:
            moving.append((place, offset, size))
            index = index and Var("g", str(len(moving) - 1), size)
        else:
            raise NotReadError("a slice whose stride is not known")
        if index is not None and kept is not None:
            values[index_var(kept, shape[kept])] = of_var(index)
    into = walk.views[op.operands[1]]
    given = walk.terms.composed(walk.views[op.operands[0]], values)
    chosen = bool(moving) or not all(b.is_fixed for b in boxes)
    value = moved(walk.terms, given, own, chosen)
    if moving:
        value = put_at(walk.terms, into, value, moving)
    parts = [b for b in boxes if not b.is_all]
    return replaced(walk.terms, into, value, sorted(parts, key=lambda b: not b.is_fixed))


@handles("tensor.concat")
def _concat(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    dim, at, pieces = op.attributes["dim"].value, 0, []
    place = index_var(dim, walk.shape(op.results[0])[0][dim])
    for value in op.operands:
        size = walk.shape(value)[0][dim]
        own = {index_var(dim, size): plus(of_var(place), Expr(-at))}
        pieces.append(((at, at + size), walk.terms.composed(walk.views[value], own)))
        at += size
    return [concat(walk.terms, place, pieces)]


@handles("tensor.pad")
def _pad(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    block = body_of(op)
    (filler,) = terminator(block).operands
    walk.views.update(
        (a, walk.terms.iota(e)) for a, e in zip(block.arguments, walk.places(op.results[0]))
    )
    walk.block(block)
    low, high = list(op.attributes["static_low"]), list(op.attributes["static_high"])
    if DYNAMIC in (*low, *high) or min(*low, *high, 0) < 0:
        raise NotReadError("padding whose size is not known")
    source, whole = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    values, boxes = {}, []
    for dim, (begin, size) in enumerate(zip(low, whole)):
        place = index_var(dim, size)
        values[index_var(dim, source[dim])] = plus(of_var(place), Expr(-begin))
        if source[dim] != size:
            boxes.append(StridedRange(place, Expr(begin), source[dim]))
    value = walk.terms.composed(walk.views[op.operands[0]], values)
    return [replaced(walk.terms, walk.views[filler], value, boxes)]


@handles("tensor.expand_shape")
def _expand(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    given, made = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    into = _expanding(given, made, _groups(walk, op))
    return [into.of(walk.terms, walk.views[op.operands[0]])]


def _groups(walk: ProgramWalk, op: ir.Operation) -> tuple[tuple[int, ...], ...]:
    """Return the groups of dims of a reshape."""
    said = op.attributes["reassociation"]
    return walk.said.once(said, lambda: tuple(map(tuple, reassociation(op))))


@lru_cache(maxsize=1 << 10)
def _expanding(
    given: tuple[int, ...], made: tuple[int, ...], groups: tuple[tuple[int, ...], ...]
) -> Substitution:
    values: dict[Var, Expr] = {}
    for dim, group in enumerate(groups):
        place = number(0)
        for d in group:
            place = total(((place, made[d]), (of_var(index_var(d, made[d])), 1)))
        values[index_var(dim, given[dim])] = place
    return Substitution(values)


@handles("tensor.collapse_shape")
def _collapse(walk: ProgramWalk, op: ir.Operation) -> Sequence[Term]:
    given, made = walk.shape(op.operands[0])[0], walk.shape(op.results[0])[0]
    if 0 in given:
        return [walk.terms.undefined(walk.shape(op.results[0])[1])]
    into = _collapsing(given, made, _groups(walk, op))
    return [into.of(walk.terms, walk.views[op.operands[0]])]


@lru_cache(maxsize=1 << 10)
def _collapsing(
    given: tuple[int, ...], made: tuple[int, ...], groups: tuple[tuple[int, ...], ...]
) -> Substitution:
    values: dict[Var, Expr] = {}
    for d in range(len(given)):
        values[index_var(d, given[d])] = number(0)
    for dim, group in enumerate(groups):
        rest = of_var(index_var(dim, made[dim]))
        for d in reversed(group):
            values[index_var(d, given[d])] = remainder(rest, given[d])
            rest = quotient(rest, given[d])
    return Substitution(values)
