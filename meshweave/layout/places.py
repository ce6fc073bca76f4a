"""Locate elements: on which ranks they lie and at which address of their allocations, both ways.

Dims are separable. The index of a dim gives the coordinates of the axes of that dim and a local position; the local
position gives its part of the address, and the parts add up. Coordinates of other axes are free: the tensor is
replicated (or partial) over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.errors import LayoutError
from meshweave.layout.layout import AxisFactor, Layout, LocalFactor
from meshweave.layout.mesh import Mesh

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Digit:
    """Describe one digit of the index of a dim.

    extent: its values are 0..extent-1.
    stride: its weight in the index (for uneven(nested): on the first coordinate).
    axis:   the axis or sub-axis whose coordinate it is; None for a local digit.
    memory: elements between neighbouring values in the allocation; 0 for a device digit.
    """

    extent: int
    stride: int
    axis: str | None
    memory: int


@lru_cache(maxsize=1 << 12)
def digits(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> tuple[tuple[Digit, ...], ...]:
    """Return the digits of each dim, major first: one for each factor, including those of extent 1."""
    memory = _memory(layout, mesh, shape)
    found = []
    for dim, factors in enumerate(layout.dims):
        row, stride, local = [], 1, len(memory[dim])
        extents = layout.extents(mesh, shape, dim)
        for factor, extent in zip(reversed(factors), reversed(extents), strict=True):
            if isinstance(factor, LocalFactor):
                local -= 1
                row.append(Digit(extent, stride, None, memory[dim][local]))
            else:
                row.append(Digit(extent, stride, factor.ref, 0))
            window = factor.window if isinstance(factor, LocalFactor) else None
            stride = window[0] if window is not None else stride * extent
        found.append(tuple(reversed(row)))
    return tuple(found)


def _memory(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> list[list[int]]:
    """Return the memory stride of each local factor of each dim."""
    extents = [layout.local_extents(mesh, shape, dim) for dim in range(layout.ndim)]
    order = layout.order or [(d, k) for d, row in enumerate(extents) for k in range(len(row))]
    strides = [[0] * len(row) for row in extents]
    stride = 1
    for dim, k in reversed(order):
        strides[dim][k] = stride
        stride *= extents[dim][k]
    return strides


def dim_addresses(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> Indices:
    """Return, for each local position of a dim, its part of the address in the allocation."""
    addresses: Indices = np.zeros(1, np.int64)
    for digit in digits(layout, mesh, tuple(shape))[dim]:
        if digit.axis is None:
            part = np.arange(digit.extent, dtype=np.int64) * digit.memory
            addresses = (addresses[:, None] + part).reshape(-1)
    return addresses


def step_of(layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int) -> int | None:
    """Return the one distance in memory between neighbours along a dim; None when there are several, 1 of one."""
    local = [d for d in digits(layout, mesh, shape)[dim] if d.axis is None and d.extent != 1]
    for major, minor in pairwise(local):
        if major.memory != minor.memory * minor.extent:
            return None
    return local[-1].memory if local else 1


def irregular(layout: Layout, dim: int) -> tuple[int, ...] | None:
    """Return the listed extents of an irregular dim; None for any other."""
    first = layout.dims[dim][0]
    return first.extents if isinstance(first, AxisFactor) else None


def is_nested(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> bool:
    """Tell whether the sizes of the dim come from nested chunking, and so may differ from the flat ones."""
    return (
        layout.uneven == "nested"
        and len(layout.axes_of(dim)) > 1
        and prod(layout.extents(mesh, shape, dim)) != shape[dim]
    )


def has_digits(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> bool:
    """Tell whether the digits of a dim say which index lies where, and each lies in one place: no listed sizes."""
    listed = irregular(layout, dim) is not None or is_nested(layout, mesh, shape, dim)
    return not listed and layout.window(dim) is None


def indices_at(
    layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int, coordinates: Sequence[Any]
) -> Indices:
    """Return the global index of every local position at these coordinates, -1 where it is padding.

    coordinates: one for each axis of the dim, major first: numbers, or arrays of one shape. The result has that shape,
    followed by the local positions.
    """
    size, listed = shape[dim], irregular(layout, dim)
    at = [np.asarray(c, np.int64)[..., None] for c in coordinates]
    if listed is not None:
        extents = np.array(listed, np.int64)
        starts = np.cumsum(extents) - extents
        places: Indices = np.arange(max(listed), dtype=np.int64)
        return np.where(places < extents[at[0]], starts[at[0]] + places, -1)
    row = digits(layout, mesh, tuple(shape))[dim]
    values = _values(row, at)
    if not is_nested(layout, mesh, shape, dim):
        low = (layout.window(dim) or (0, 0))[1]
        index: Any = sum((v * d.stride for v, d in zip(values, row, strict=True)), low)
        found: Indices = np.where((index >= 0) & (index < size), index, -1)
        return found
    start: Any = np.zeros(1, np.int64)
    left: Any = np.full(1, size, np.int64)
    for value, digit in zip(values, row, strict=True):
        piece = -(-left // digit.extent) if digit.extent else left
        begin = np.minimum(value * piece, left)
        start, left = start + begin, np.minimum(piece, left - begin)
    return np.where(left > 0, start, -1)


def _values(row: Sequence[Digit], at: list[Any]) -> list[Any]:
    """Return the value of every digit: device digits from `at`, local digits over all positions."""
    count = prod(digit.extent for digit in row if digit.axis is None)
    places: Indices = np.arange(count, dtype=np.int64)
    values, weight, coordinates = [], count, iter(at)
    for digit in row:
        if digit.axis is None:
            weight = weight // digit.extent if digit.extent else 0
            values.append(places // max(1, weight) % max(1, digit.extent))
        else:
            values.append(next(coordinates))
    return values


@lru_cache(maxsize=1 << 12)
def is_run(layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int) -> bool:
    """Tell whether a rank holds one run of indices of the dim, local positions in order, padding around it."""
    if irregular(layout, dim) is not None or layout.window(dim) is not None:
        return True
    locals_ = 0
    for digit in digits(layout, mesh, shape)[dim]:
        if digit.extent != 1:
            if locals_ and digit.axis is not None:
                return False
            locals_ += digit.axis is None
    # Where sizes are nested, every piece of a local digit ends in padding of its own.
    return locals_ < 2 or not is_nested(layout, mesh, shape, dim)


def run_at(
    layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int, ranks: npt.ArrayLike
) -> tuple[Indices, Indices]:
    """Return where the run that each of `ranks` holds of a dim begins and ends (see `is_run`).

    A window that begins before the dim does begins at a negative index; one beyond the dim ends before it begins.
    """
    size, listed = shape[dim], irregular(layout, dim)
    at = [coordinate(mesh, name, ranks) for name in layout.axes_of(dim)]
    if listed is not None:
        ends = np.cumsum(listed)
        return ends[at[0]] - np.array(listed)[at[0]], ends[at[0]]
    row = [digit for digit in digits(layout, mesh, shape)[dim] if digit.axis is not None]
    local = prod(layout.local_extents(mesh, shape, dim))
    start: Indices = np.zeros(np.shape(ranks), np.int64)
    if not is_nested(layout, mesh, shape, dim):
        for value, digit in zip(at, row, strict=True):
            start = start + value * digit.stride
        if (window := layout.window(dim)) is not None:
            start = start + window[1]
            return start, np.minimum(start + local, size)
        start = np.minimum(start, size)
        return start, np.minimum(start + local, size)
    left = np.full_like(start, size)
    for value, digit in zip(at, row, strict=True):
        piece = -(-left // digit.extent)
        begin = np.minimum(value * piece, left)
        start, left = start + begin, np.minimum(piece, left - begin)
    return start, start + left


def coordinate(mesh: Mesh, name: str, ranks: npt.ArrayLike) -> Indices:
    """Return the coordinates of many ranks on an axis or sub-axis."""
    found: Indices = np.asarray(ranks, np.int64) // mesh.stride(name) % mesh.size(name)
    return found


def locate(
    layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int, index: npt.ArrayLike
) -> tuple[list[Indices], Indices]:
    """Locate indices of a dim: return the coordinates for each axis of the dim, and the local positions.

    Raises LayoutError for windows: they may hold an index in several places.
    """
    if layout.window(dim) is not None:
        raise LayoutError(f"layout {layout}: an index of dim {dim} may be in several windows")
    given: Indices = np.asarray(index, np.int64)
    listed = irregular(layout, dim)
    if listed is not None:
        starts = np.cumsum([0, *listed[:-1]])
        at = np.searchsorted(starts, given, side="right") - 1
        return [at], given - starts[at]
    row = digits(layout, mesh, tuple(shape))[dim]
    nested = is_nested(layout, mesh, shape, dim)
    coordinates: list[Indices] = []
    place: Indices = np.zeros_like(given)
    rest, left = given, np.full_like(given, shape[dim])
    for digit in row:
        weight = -(-left // digit.extent) if nested else np.full_like(given, digit.stride)
        value = rest // np.maximum(weight, 1)
        rest = rest - value * weight
        left = np.minimum(weight, left - value * weight)
        if digit.axis is None:
            place = place * digit.extent + value
        else:
            coordinates.append(value)
    return coordinates, place


def owners(
    layout: Layout, mesh: Mesh, shape: Sequence[int], index: Sequence[int]
) -> tuple[int, ...]:
    """Return every rank that holds the element (or, in a partial layout, an operand of it), in order.

    Raises LayoutError for an index outside the tensor.
    """
    _check_index(layout, shape, index)
    base, taken = 0, []
    for dim, at in enumerate(index):
        coordinates, _ = locate(layout, mesh, shape, dim, at)
        for name, value in zip(layout.axes_of(dim), coordinates, strict=True):
            base += int(value) * mesh.stride(name)
            taken.append((mesh.stride(name), mesh.size(name)))
    free = free_strides(mesh, taken)
    offsets = [sum(row) for row in product(*[[v * s for v in range(k)] for s, k in free])]
    return tuple(sorted(base + offset for offset in offsets))


def free_strides(mesh: Mesh, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (stride, count) in ranks of what the digits `taken` (stride, count) leave of the mesh."""
    free, low = [], 1
    for stride, count in sorted(taken):
        if count == 1:
            continue
        if stride > low:
            free.append((low, stride // low))
        low = stride * count
    if mesh.nranks > low:
        free.append((low, mesh.nranks // low))
    return free


def address(layout: Layout, mesh: Mesh, shape: Sequence[int], index: Sequence[int]) -> int:
    """Return the place of an element in the allocation of each rank that holds it.

    Raises LayoutError for an index outside the tensor.
    """
    _check_index(layout, shape, index)
    parts = [
        dim_addresses(layout, mesh, shape, dim)[int(locate(layout, mesh, shape, dim, at)[1])]
        for dim, at in enumerate(index)
    ]
    return int(sum(parts))


def element(
    layout: Layout, mesh: Mesh, shape: Sequence[int], rank: int, place: int
) -> tuple[int, ...] | None:
    """Return the index of the element that `rank` holds at a place of its allocation; None where that is padding.

    Raises LayoutError for a place outside the allocation.
    """
    size = prod(layout.local_shape(mesh, shape))
    if not 0 <= place < size:
        raise LayoutError(f"layout {layout}: an allocation has {size} places, got place {place}")
    found = []
    for dim, row in enumerate(digits(layout, mesh, tuple(shape))):
        position = 0
        for digit in row:
            if digit.axis is None:
                position = position * digit.extent + place // digit.memory % digit.extent
        coordinates = [mesh.coordinate(rank, name) for name in layout.axes_of(dim)]
        found.append(int(indices_at(layout, mesh, shape, dim, coordinates)[position]))
    return None if min(found, default=0) < 0 else tuple(found)


def _check_index(layout: Layout, shape: Sequence[int], index: Sequence[int]) -> None:
    if len(index) != layout.ndim:
        raise LayoutError(f"layout {layout} has {layout.ndim} dims, index {tuple(index)} has not")
    for dim, (at, size) in enumerate(zip(index, shape, strict=True)):
        if not 0 <= at < size:
            raise LayoutError(f"index {at} of dim {dim} is not in 0..{size - 1}")
