"""Compute what a move between two layouts must bring: elements a rank lacks, and from how many ranks.

Both are products over dims. Where a dim is even and the digits of the two layouts have a common refinement, a few
digits say it all, however many ranks there are; elsewhere the sizes over the coordinates of the axes that matter are
computed, all at once.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from meshweave.errors import LayoutError
from meshweave.layout.algebra import Role, Shared, refine, refine_dim
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import (
    Indices,
    coordinate,
    digits,
    has_digits,
    indices_at,
    is_nested,
    is_run,
    locate,
    run_at,
)

MAX_GRID = 1 << 18  # coordinates looked at; where there are more, only ends and middles of the axes
MAX_LISTED = 1 << 22  # indices looked at one by one


class MissingPart(NamedTuple):
    """Describe what a rank of the target lacks.

    missing: elements, on the rank that lacks most.
    wanted:  elements of the target, on the rank that holds most.
    senders: the largest number of other ranks that have to send to one rank.
    axes:    along which elements move.
    at_most: elements that any rank lacks: `missing`, unless there are too many ranks to look at all of them; then
             `missing` counts those looked at.
    """

    missing: int
    wanted: int
    senders: int
    axes: tuple[str, ...]
    at_most: int


@lru_cache(maxsize=1 << 14)
def overlap(source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]) -> MissingPart:
    """Compute what moving from source to target brings to ranks, with pending operands kept apart.

    Each rank receives every element of its target that it does not hold itself, once. Pending reductions are ignored:
    an operand moves among the ranks that share its place in them.
    """
    shared = _shared(source, target, mesh, shape)
    if shared is not None:
        return _by_digits(shared, mesh, shape)
    return _by_sizes(source, target, mesh, shape)


def _shared(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]
) -> tuple[tuple[Shared, ...], ...] | None:
    for layout in (source, target):
        for dim, size in enumerate(shape):
            if not has_digits(layout, mesh, shape, dim):
                return None
            if prod(layout.extents(mesh, shape, dim)) != size:
                return None
    try:
        return refine(source, target, mesh, shape)
    except LayoutError:
        return None


def _by_digits(
    shared: tuple[tuple[Shared, ...], ...], mesh: Mesh, shape: tuple[int, ...]
) -> MissingPart:
    wanted = held = senders = 1
    elsewhere, moved = False, set()
    for digit in (digit for row in shared for digit in row):
        have, want = digit.one, digit.other
        if not want.device:
            wanted *= digit.extent
            held *= 1 if have.device else digit.extent
            senders *= digit.extent if have.device else 1
        elsewhere |= have.device and want.device and have.weight != want.weight
        if have.device and have != want:
            moved |= axes_within(mesh, mesh.names, have.weight, digit.extent)
    missing = 0 if 0 in shape else wanted if elsewhere else wanted - held
    axes = tuple(name for name in mesh.names if name in moved)
    most = 0 if 0 in shape else wanted
    return MissingPart(missing, most, senders if elsewhere else senders - 1, axes, missing)


def axes_within(mesh: Mesh, names: Iterable[str], weight: int, extent: int) -> set[str]:
    """Return those of the axes or sub-axes `names` that `extent` values, `weight` ranks apart, run over."""
    return {
        name
        for name in names
        if mesh.size(name) > 1
        and mesh.stride(name) < weight * extent
        and weight < mesh.stride(name) * mesh.size(name)
    }


def _by_sizes(source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]) -> MissingPart:
    rows = [_own(source, dim) | _own(target, dim) for dim in range(len(shape))]
    used = [name for name in mesh.names if any(name in row for row in rows)]
    used = [name for name in used if mesh.size(name) > 1]
    exact = prod(map(mesh.size, used)) <= MAX_GRID
    exact = exact and all(
        _is_quick(source, target, mesh, shape, dim)
        or prod(map(mesh.size, row)) * size <= MAX_LISTED
        for dim, (row, size) in enumerate(zip(rows, shape, strict=True))
    )
    wanted: Indices = np.ones([1] * len(used), np.int64)
    held = wanted
    senders = 1
    for dim, row in enumerate(rows):
        ranks = _grid(mesh, [name if name in row else None for name in used], exact)
        want, have = _sizes(source, target, mesh, shape, dim, ranks)
        wanted, held = wanted * want, held * have
        senders *= _most_senders(source, target, mesh, shape, dim)
    missing = int((wanted - held).max(initial=0))
    axes = tuple(
        name
        for name in used
        if any(
            name in _own(source, dim) and not same_sizes(source, target, mesh, shape, dim)
            for dim in range(len(shape))
        )
    )
    others = prod(map(mesh.size, axes)) - 1
    most = int(wanted.max(initial=0))
    at_most = missing if exact else prod(target.local_shape(mesh, shape))
    return MissingPart(missing, most, min(senders, others) if at_most else 0, axes, at_most)


def same_sizes(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int
) -> bool:
    """Tell whether both layouts cut a dim over the same factors, and into the same sizes."""
    nested = [is_nested(layout, mesh, shape, dim) for layout in (source, target)]
    return source.dims[dim] == target.dims[dim] and nested[0] == nested[1]


def _own(layout: Layout, dim: int) -> set[str]:
    return {ref.partition(":")[0] for ref in layout.axes_of(dim)}


def _grid(mesh: Mesh, names: Sequence[str | None], every: bool) -> Indices:
    """Return ranks over the coordinates of the named axes (all, or ends and middles), 0 on the others.

    The result has one array dim for each entry of `names`; None: an axis that does not matter here.
    """
    ranks: Indices = np.zeros([1] * len(names), np.int64)
    for at, name in enumerate(names):
        if name is not None:
            size = mesh.size(name)
            values = range(size) if every else sorted({0, size // 2, size - 1})
            part = np.array(values, np.int64) * mesh.stride(name)
            ranks = ranks + part.reshape([-1 if i == at else 1 for i in range(len(names))])
    return ranks


def _sizes(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int, ranks: Indices
) -> tuple[Indices, Indices]:
    """Return how much of a dim each rank needs, and how much of that it has."""
    if is_run(source, mesh, shape, dim) and is_run(target, mesh, shape, dim):
        (start, end), (low, high) = (
            run_at(layout, mesh, shape, dim, ranks) for layout in (source, target)
        )
        start, low = np.maximum(start, 0), np.maximum(low, 0)
        both = np.minimum(end, high) - np.maximum(start, low)
        return np.maximum(0, high - low), np.maximum(0, both)
    counted = _counted(source, target, mesh, shape, dim, ranks)
    if counted is not None:
        return counted
    coordinates = [coordinate(mesh, name, ranks) for name in target.axes_of(dim)]
    if ranks.size * prod(target.local_extents(mesh, shape, dim)) > MAX_LISTED:
        least = np.zeros(ranks.shape, np.int64)  # no rank is known to miss anything
        if has_digits(target, mesh, shape, dim):
            every = np.full(ranks.shape, shape[dim], np.int64)
            least = _below(_row(target, mesh, shape, dim, ranks), every)
        return least, least
    index = indices_at(target, mesh, shape, dim, coordinates)
    index = np.broadcast_to(index, (*ranks.shape, index.shape[-1]))
    here = index >= 0
    places, _ = locate(source, mesh, shape, dim, np.maximum(index, 0))
    own = here
    for name, place in zip(source.axes_of(dim), places, strict=True):
        own = own & (place == coordinate(mesh, name, ranks)[..., None])
    return here.sum(-1), own.sum(-1)


def _is_quick(source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int) -> bool:
    """Tell whether `_sizes` can avoid looking at every index."""
    if is_run(source, mesh, shape, dim) and is_run(target, mesh, shape, dim):
        return True
    return _counted(source, target, mesh, shape, dim, np.zeros(1, np.int64)) is not None


class DigitConstraint(NamedTuple):
    """Constrain a digit of an index to the value it must have on each rank; None: any value."""

    extent: int
    stride: int
    value: Indices | None


def _counted(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: tuple[int, ...],
    dim: int,
    ranks: Indices,
) -> tuple[Indices, Indices] | None:
    """Compute `_sizes` by digits: those of one layout within the runs of the other, or those of their refinement.

    Returns None where sizes are irregular or nested, or nothing fits together.
    """
    layouts = (source, target)
    bad = [not has_digits(layout, mesh, shape, dim) for layout in layouts]
    runs = [is_run(layout, mesh, shape, dim) for layout in layouts]
    if runs[0] and not bad[1]:
        start, end = run_at(source, mesh, shape, dim, ranks)
        row = _row(target, mesh, shape, dim, ranks)
        every = np.full_like(start, shape[dim])
        return _below(row, every), _below(row, end) - _below(row, start)
    if runs[1] and not bad[0]:
        low, high = run_at(target, mesh, shape, dim, ranks)
        low = np.maximum(low, 0)
        high = np.maximum(high, low)
        row = _row(source, mesh, shape, dim, ranks)
        return high - low, _below(row, high) - _below(row, low)
    padded = [prod(layout.extents(mesh, shape, dim)) for layout in layouts]
    if any(bad) or padded[0] != padded[1]:
        return None
    try:
        shared = refine_dim(source, target, mesh, (*shape[:dim], padded[0], *shape[dim + 1 :]), dim)
    except LayoutError:
        return None
    wants = [_value(digit.other, digit.extent, ranks) for digit in shared]
    haves = [_value(digit.one, digit.extent, ranks) for digit in shared]
    agree: Indices = np.ones(ranks.shape, np.int64)
    for have, want in zip(haves, wants, strict=True):
        if have is not None and want is not None:
            agree = agree * (have == want)
    both = [have if want is None else want for have, want in zip(haves, wants, strict=True)]
    bound = np.full(ranks.shape, shape[dim], np.int64)
    wanted, held = (
        _below(
            [DigitConstraint(d.extent, d.stride, v) for d, v in zip(shared, row, strict=True)],
            bound,
        )
        for row in (wants, both)
    )
    return wanted, agree * held


def _value(role: Role, extent: int, ranks: Indices) -> Indices | None:
    return ranks // role.weight % extent if role.device else None


def _row(
    layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int, ranks: Indices
) -> list[DigitConstraint]:
    return [
        DigitConstraint(
            d.extent, d.stride, None if d.axis is None else coordinate(mesh, d.axis, ranks)
        )
        for d in digits(layout, mesh, shape)[dim]
        if d.extent != 1
    ]


def _below(row: Sequence[DigitConstraint], bound: Indices) -> Indices:
    """Count the numbers below `bound` that have the fixed digits.

    Goes through the digits major first: values below the digit of the bound leave the minor digits free, an equal
    value keeps the count `tight`.
    """
    count, tight, rest = np.zeros_like(bound), np.ones_like(bound), bound
    free = prod(place.extent for place in row if place.value is None)
    for place in row:
        here = rest // max(place.stride, 1)
        rest = rest - here * place.stride
        if place.value is None:
            free = free // place.extent if place.extent else 0
            count = count + tight * np.minimum(here, place.extent) * free
            tight = tight * (here < place.extent)
        else:
            count = count + tight * (place.value < here) * free
            tight = tight * (place.value == here)
    return count if row else np.minimum(bound, 1)


def _most_senders(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int
) -> int:
    """Bound the number of source coordinates that hold what one target coordinate needs along `dim`."""
    parts = prod(mesh.size(name) for name in source.axes_of(dim))
    if same_sizes(source, target, mesh, shape, dim):
        return 1
    have, want = (layout.local_shape(mesh, shape)[dim] for layout in (source, target))
    if not has_digits(source, mesh, shape, dim):
        return min(parts, max(1, want))
    if is_run(source, mesh, shape, dim) and is_run(target, mesh, shape, dim):
        return min(parts, -(-want // max(1, have)) + 1)
    return min(parts, max(1, want))
