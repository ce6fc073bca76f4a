"""Mixed-radix digits: which element of a tensor lies where, for the whole notation of layouts.

The index of a dim is the mixed-radix number whose digits are its factors, major first. Device
digits choose the rank, local digits the place in its allocation; an index at or beyond the size of
the dim is padding. This file works element by element and is the reference for all that reasons
about blocks.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshweave.errors import LayoutError
from meshweave.layout.layout import AxisFactor, Layout, LocalFactor
from meshweave.layout.mesh import Mesh

Values = np.ndarray[Any, np.dtype[Any]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


def dim_indices(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int, rank: int) -> Indices:
    """Global index along `dim` of every local position of `rank`, -1 where the position is padding.

    Local positions count over the local factors of the dim, major first, whatever the memory order.
    Raises LayoutError for uneven(nested) in a dim that has local factors other than a minor-most
    `_`.
    """
    factors = layout.dims[dim]
    if layout.uneven == "nested" and len(layout.axes_of(dim)) > 1:
        return _nested_indices(layout, mesh, shape, dim, rank)
    first = factors[0]
    if isinstance(first, AxisFactor) and first.extents is not None:
        at = mesh.coordinate(rank, first.ref)
        return _run(sum(first.extents[:at]), first.extents[at], max(first.extents))
    indices = np.zeros(1, np.int64)
    stride = prod(extents := layout.extents(mesh, shape, dim))
    for factor, extent in zip(factors, extents, strict=True):
        stride = stride // extent if extent else 0
        if isinstance(factor, LocalFactor):
            digit = np.arange(extent, dtype=np.int64)
            indices = (indices[:, None] + digit * stride).reshape(-1)
        else:
            indices = indices + mesh.coordinate(rank, factor.ref) * stride
    return np.where(indices < shape[dim], indices, -1)


def _nested_indices(
    layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int, rank: int
) -> Indices:
    factors, start, size, chunk = layout.dims[dim], 0, shape[dim], shape[dim]
    if any(isinstance(f, LocalFactor) for f in factors[:-1]) or factors[-1] != LocalFactor(None):
        raise LayoutError(
            f"layout {layout}: uneven(nested) with local factors in dim {dim} is not supported yet"
        )
    for ref in layout.axes_of(dim):
        coordinate = mesh.coordinate(rank, ref)
        piece = -(-size // mesh.size(ref))
        chunk = -(-chunk // mesh.size(ref))
        begin = min(coordinate * piece, size)
        start, size = start + begin, min(piece, size - begin)
    return _run(start, size, chunk)


def _run(start: int, size: int, allocated: int) -> Indices:
    places = np.arange(allocated, dtype=np.int64)
    return np.where(places < size, start + places, -1)


def _local_indices(layout: Layout, mesh: Mesh, shape: Sequence[int], rank: int) -> list[Indices]:
    if layout.order is not None:
        raise LayoutError(f"layout {layout}: its memory order is not supported yet")
    return [dim_indices(layout, mesh, shape, dim, rank) for dim in range(layout.ndim)]


def padding(dtype: np.dtype[Any]) -> Any:
    """What scatter writes into padding, so that a read of it shows: NaN, the largest integer, or
    True.
    """
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return dtype.type(True) if dtype.kind == "b" else np.array(np.nan).astype(dtype)[()]


def neutral(kind: str, dtype: np.dtype[Any]) -> Any:
    """The element that leaves a sum, max, min or prod as it is. An avg has none: LayoutError."""
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
    """sum, max, min, prod or avg of arrays of one shape and dtype, taken in order, in that dtype.

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


def scatter(value: Values, mesh: Mesh, layout: Layout) -> list[Values]:
    """The allocation of every rank for the global `value`.

    Padding holds `padding(dtype)`. Of a partial layout the first rank of each group holds the value
    and the others the neutral element; for avg, which has none, all of them hold the value.
    """
    layout.check(mesh, value.shape)
    shards: list[Values] = []
    for rank in range(mesh.nranks):
        indices = _local_indices(layout, mesh, value.shape, rank)
        shard: Values = np.empty([len(i) for i in indices], value.dtype)
        if any((i < 0).any() for i in indices):
            shard[...] = padding(value.dtype)
        inside = np.ix_(*[np.flatnonzero(i >= 0) for i in indices])
        shard[_boxed(inside)] = value[_boxed(np.ix_(*[i[i >= 0] for i in indices]))]
        for partial in layout.partial:
            if partial.kind != "avg" and mesh.group_index(partial.axes, rank) != 0:
                # The last pending reduction is the outermost: where it reads a neutral element, the
                # inner ones must result in one, and they do: their first rank holds it and the
                # others hold their own.
                fill = neutral(partial.kind, value.dtype)
                shard[_boxed(inside)] = fill
                break
        shards.append(shard)
    return shards


def gather(shards: Sequence[Values], mesh: Mesh, layout: Layout, shape: Sequence[int]) -> Values:
    """The global value that one allocation per rank stands for; pending reductions are done.

    Of replicas the one of the smallest rank is read. Raises LayoutError when shards are missing or
    have another shape than `layout.local_shape(mesh, shape)`.
    """
    layout.check(mesh, shape)
    local = layout.local_shape(mesh, shape)
    if len(shards) != mesh.nranks:
        raise LayoutError(f"mesh ({mesh}) needs {mesh.nranks} shards, got {len(shards)}")
    for rank, shard in enumerate(shards):
        if shard.shape != local:
            raise LayoutError(
                f"rank {rank}: layout {layout} of {tuple(shape)} needs a shard of shape {local}, "
                f"got {shard.shape}"
            )
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


def _reduced(shards: Sequence[Values], mesh: Mesh, layout: Layout, rank: int, count: int) -> Values:
    """What `rank` holds once the first `count` pending reductions are done."""
    if count == 0:
        return shards[rank]
    last = layout.partial[count - 1]
    members = mesh.group(last.axes, rank)
    return reduce(last.kind, [_reduced(shards, mesh, layout, m, count - 1) for m in members])


def _boxed(box: tuple[Indices, ...]) -> tuple[Any, ...]:
    """The same open mesh of indices with slices where they are runs: NumPy copies those without a
    gather.
    """
    lists = [axis.reshape(-1) for axis in box]
    if all(len(at) and at[-1] - at[0] == len(at) - 1 for at in lists):
        return tuple(slice(int(at[0]), int(at[-1]) + 1) for at in lists)
    return box if lists else (...,)
