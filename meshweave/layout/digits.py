"""Map between global tensors and shards: which element lies where, for the whole notation of layouts.

The index of a dim is the mixed-radix number whose digits are its factors, major first. Device digits choose the rank,
local digits the place in its allocation; an index at or beyond the size of the dim is padding. A shard is a rank's
allocation: an array of `layout.allocation_shape`. This file works element by element and is the reference for all code
that reasons about blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshweave.errors import LayoutError
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import Indices, dim_addresses, indices_at, is_run, run_at

Values = np.ndarray[Any, np.dtype[Any]]


def dim_indices(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int, rank: int) -> Indices:
    """Return the global index along `dim` of every local position of `rank`, -1 where the position is padding.

    Local positions count over the local factors of the dim, major first, whatever the memory order.
    """
    coordinates = [mesh.coordinate(rank, name) for name in layout.axes_of(dim)]
    return indices_at(layout, mesh, shape, dim, coordinates)


def _local_indices(layout: Layout, mesh: Mesh, shape: Sequence[int], rank: int) -> list[Indices]:
    return [dim_indices(layout, mesh, shape, dim, rank) for dim in range(layout.ndim)]


def _places(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> Indices:
    """Return the address in the allocation of each local position, as an array of local shape."""
    total: Indices = np.zeros((), np.int64)
    for dim in range(layout.ndim):
        total = total[..., None] + dim_addresses(layout, mesh, shape, dim)
    return total


def to_allocation(local: Values, layout: Layout, mesh: Mesh, shape: Sequence[int]) -> Values:
    """Store a rank's tensor of local shape as it lies in memory, in `layout.allocation_shape`."""
    if layout.order is None:
        return local
    flat: Values = np.empty(local.size, local.dtype)
    flat[_places(layout, mesh, shape)] = local
    return flat.reshape(layout.allocation_shape(mesh, shape))


def from_allocation(buffer: Values, layout: Layout, mesh: Mesh, shape: Sequence[int]) -> Values:
    """Read the tensor of local shape that a rank's buffer, of any shape, holds."""
    if layout.order is None:
        return buffer.reshape(layout.local_shape(mesh, shape))
    found: Values = buffer.reshape(-1)[_places(layout, mesh, shape)]
    return found


def padding(dtype: np.dtype[Any]) -> Any:
    """Return what `scatter` writes into padding so that a read of it shows: NaN, the largest integer, or True."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return dtype.type(True) if dtype.kind == "b" else np.array(np.nan).astype(dtype)[()]


def neutral(kind: str, dtype: np.dtype[Any]) -> Any:
    """Return the element that leaves a sum, max, min or prod unchanged. Raises LayoutError for avg, which has none."""
    if kind in ("sum", "prod"):
        return np.array(kind == "prod").astype(dtype)[()]
    if kind not in ("max", "min"):
        raise LayoutError(f"a reduction {kind} has no neutral element")
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max
    if dtype.kind == "b":
        return dtype.type(kind == "min")
    if dtype.kind == "c":
        raise LayoutError(f"a reduction {kind} of {dtype} is not defined")
    return np.array(-np.inf if kind == "max" else np.inf).astype(dtype)[()]


def reduce(kind: str, operands: Sequence[Values]) -> Values:
    """Reduce arrays of one shape and dtype by sum, max, min, prod or avg, in order and in that dtype.

    The avg of integers is the sum divided, rounded towards zero.
    """
    pairwise = {
        "sum": np.add,
        "avg": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }
    total: Values = np.array(operands[0])
    for operand in operands[1:]:
        pairwise[kind](total, operand, out=total)
    if kind != "avg":
        return total
    count = len(operands)
    if total.dtype.kind in "iu":
        return np.asarray((total - np.sign(total) * (abs(total) % count)) // count, total.dtype)
    return np.asarray(total / count, total.dtype)


def scatter(
    value: Values,
    mesh: Mesh,
    layout: Layout,
    empty: Callable[[list[int], np.dtype[Any]], Values] = np.empty,
) -> list[Values]:
    """Return the allocation of every rank for the global `value`. empty: makes new arrays of a shape and dtype.

    Padding holds `padding(dtype)`. In a partial layout the first rank of each group holds the value and the others the
    neutral element; for avg, which has no neutral element, all of them hold the value.
    """
    layout.check(mesh, value.shape)
    return [scatter_to(rank, value, mesh, layout, empty) for rank in range(mesh.nranks)]


def scatter_to(
    rank: int,
    value: Values,
    mesh: Mesh,
    layout: Layout,
    empty: Callable[[list[int], np.dtype[Any]], Values] = np.empty,
) -> Values:
    """Return the allocation of one rank, as `scatter` does for all; the layout is known to fit."""
    indices = _local_indices(layout, mesh, value.shape, rank)
    part = value[_boxed(np.ix_(*[i[i >= 0] for i in indices]))]
    for partial in layout.partial:
        if partial.kind != "avg" and mesh.group_index(partial.axes, rank) != 0:
            # The last pending reduction is the outermost: where it reads a neutral element, the
            # inner ones must result in one, and they do: their first rank holds it and the
            # others hold their own.
            part = np.full(part.shape, neutral(partial.kind, value.dtype), value.dtype)
            break
    return with_padding(part, mesh, layout, value.shape, rank, empty)


def with_padding(
    part: Values,
    mesh: Mesh,
    layout: Layout,
    shape: Sequence[int],
    rank: int,
    empty: Callable[[list[int], np.dtype[Any]], Values] = np.empty,
) -> Values:
    """Return the allocation of a rank whose elements, without padding and in the order of the dims, are `part`."""
    indices = _local_indices(layout, mesh, shape, rank)
    shard: Values = empty([len(i) for i in indices], part.dtype)
    if any((i < 0).any() for i in indices):
        shard[...] = padding(part.dtype)
    shard[_boxed(np.ix_(*[np.flatnonzero(i >= 0) for i in indices]))] = part
    return to_allocation(shard, layout, mesh, shape)


def without_padding(
    shard: Values, mesh: Mesh, layout: Layout, shape: Sequence[int], rank: int
) -> Values:
    """Return the elements of a rank's allocation, without padding and in the order of the dims: a view where one is."""
    local = from_allocation(shard, layout, mesh, shape)
    indices = _local_indices(layout, mesh, shape, rank)
    found: Values = local[_boxed(np.ix_(*[np.flatnonzero(i >= 0) for i in indices]))]
    return found


def part_shape(mesh: Mesh, layout: Layout, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return how many elements a rank holds along each dim, without padding."""
    return tuple(int((i >= 0).sum()) for i in _local_indices(layout, mesh, shape, rank))


def carried(
    shards: Sequence[Values],
    source: tuple[Mesh, Layout],
    target: tuple[Mesh, Layout],
    shape: Sequence[int],
) -> list[Values]:
    """Return the allocations of every rank of another mesh for the value whose allocations are `shards`.

    source, target: the mesh and the layout. Nothing is pending in either. Each rank of the target reads the elements
    that it holds, and no others, from the ranks of the source: no rank needs more than its own allocation.
    """
    assert not source[1].partial and not target[1].partial
    found = []
    for rank in range(target[0].nranks):
        indices = _local_indices(target[1], target[0], shape, rank)
        part = gather_at(shards, *source, shape, [i[i >= 0] for i in indices])
        found.append(with_padding(part, *target, shape, rank))
    return found


def gather(shards: Sequence[Values], mesh: Mesh, layout: Layout, shape: Sequence[int]) -> Values:
    """Return the global value that one allocation per rank represents, with pending reductions done.

    Among replicas the one of the smallest rank is read. Raises LayoutError when shards are missing or have another
    shape than `layout.allocation_shape(mesh, shape)`.
    """
    layout.check(mesh, shape)
    local = layout.allocation_shape(mesh, shape)
    if len(shards) != mesh.nranks:
        raise LayoutError(f"mesh ({mesh}) needs {mesh.nranks} shards, got {len(shards)}")
    for rank, shard in enumerate(shards):
        if shard.shape != local:
            raise LayoutError(
                f"rank {rank}: layout {layout} of {tuple(shape)} needs a shard of shape {local}, "
                f"got {shard.shape}"
            )
    shards = [from_allocation(shard, layout, mesh, shape) for shard in shards]
    value: Values = np.empty(tuple(shape), shards[0].dtype)
    used = layout.used_axes
    unread = [axis for axis in mesh.names if axis not in used] + list(layout.partial_axes())
    for rank in range(mesh.nranks):
        if mesh.group_index(unread, rank) == 0:
            indices = _local_indices(layout, mesh, shape, rank)
            inside = _boxed(np.ix_(*[np.flatnonzero(i >= 0) for i in indices]))
            reduced = _reduced(shards, mesh, layout, rank, len(layout.partial))
            value[_boxed(np.ix_(*[i[i >= 0] for i in indices]))] = reduced[inside]
    return value


def gather_at(
    shards: Sequence[Values],
    mesh: Mesh,
    layout: Layout,
    shape: Sequence[int],
    at: Sequence[Indices],
) -> Values:
    """Return the global value at some indices of each dim, as `value[np.ix_(*at)]` gives them; the rest is not read."""
    value: Values = np.empty([len(indices) for indices in at], shards[0].dtype)
    used = layout.used_axes
    unread = [axis for axis in mesh.names if axis not in used] + list(layout.partial_axes())
    for rank in range(mesh.nranks):
        if mesh.group_index(unread, rank) == 0:
            found = [_found(layout, mesh, shape, dim, rank, row) for dim, row in enumerate(at)]
            local = np.ix_(*[positions for positions, _ in found])
            held = {
                r: from_allocation(shards[r], layout, mesh, shape)[local if found else ...]
                for r in mesh.group(layout.partial_axes(), rank)
            }
            parts = [held.get(r, value) for r in range(mesh.nranks)]
            place = np.ix_(*[places for _, places in found]) if found else ...
            value[place] = _reduced(parts, mesh, layout, rank, len(layout.partial))
    return value


def _found(
    layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int, rank: int, at: Indices
) -> tuple[Indices, Indices]:
    """Return the local positions of those of the indices `at` that a rank holds, and their numbers in `at`."""
    if is_run(layout, mesh, tuple(shape), dim):
        begin, end = (int(bound) for bound in run_at(layout, mesh, tuple(shape), dim, rank))
        held = np.flatnonzero((at >= begin) & (at < end))
        return at[held] - begin, held
    index = dim_indices(layout, mesh, shape, dim, rank)
    order = np.argsort(index, kind="stable")
    nearest = np.searchsorted(index[order], at).clip(max=max(len(index) - 1, 0))
    held = np.flatnonzero(index[order][nearest] == at) if len(index) else np.zeros(0, np.int64)
    return order[nearest[held]], held


def _reduced(shards: Sequence[Values], mesh: Mesh, layout: Layout, rank: int, count: int) -> Values:
    """Return what `rank` holds once the first `count` pending reductions are done."""
    if count == 0:
        return shards[rank]
    last = layout.partial[count - 1]
    members = mesh.group(last.axes, rank)
    return reduce(last.kind, [_reduced(shards, mesh, layout, m, count - 1) for m in members])


def _boxed(box: tuple[Indices, ...]) -> tuple[Any, ...]:
    """Turn an open mesh of indices into slices where they are runs, which NumPy copies without a gather."""
    lists = [axis.reshape(-1) for axis in box]
    if all(len(at) and at[-1] - at[0] == len(at) - 1 for at in lists):
        return tuple(slice(int(at[0]), int(at[-1]) + 1) for at in lists)
    return box if lists else (...,)
