"""Compute with the digits of layouts: compare spellings, find common refinements, reshape and transpose.

A view of a tensor (reshape, transpose) moves no element iff each new dim is a run of digits of the old dims, in their
order. A digit that falls across a boundary is cut; an axis is then cut into sub-axes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from meshweave.errors import LayoutError
from meshweave.layout.layout import AxisFactor, Factor, Layout, LocalFactor, shape_text
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import axis_factors
from meshweave.layout.places import (
    Digit,
    digits,
    dim_addresses,
    free_strides,
    has_digits,
    irregular,
    is_nested,
    is_run,
    locate,
    step_of,
)

MAX_COMPARED = 1 << 22  # indices of a dim that `same_placement` compares one by one

Pending = tuple[tuple[str, tuple[str, ...]], ...]


def pending(layout: Layout, mesh: Mesh) -> Pending:
    """Return the reductions still to do, without axes of size 1, as `merged` has them."""
    if not layout.partial:
        return ()
    return merged(
        (p.kind, tuple(name for name in p.axes if mesh.size(name) > 1)) for p in layout.partial
    )


def merged(pending: Iterable[tuple[str, tuple[str, ...]]]) -> Pending:
    """Return reductions as Layout has them: none without axes, neighbours of one kind merged, axes sorted."""
    done: list[tuple[str, tuple[str, ...]]] = []
    for kind, axes in pending:
        if axes and done and done[-1][0] == kind:
            axes = done.pop()[1] + axes
        if axes:
            done.append((kind, tuple(sorted(axes))))
    return tuple(done)


def same_placement(one: Layout, other: Layout, mesh: Mesh, shape: Sequence[int]) -> bool:
    """Tell whether two layouts place every element alike: same ranks, same address, same pending reductions.

    The layouts may be spelled differently. Returns False for different spellings of a dim of irregular or nested sizes
    that is longer than MAX_COMPARED.
    """
    if one == other:
        return True
    sizes = [prod(layout.local_shape(mesh, shape)) for layout in (one, other)]
    if sizes[0] != sizes[1] or pending(one, mesh) != pending(other, mesh):
        return False
    return 0 in shape or all(same_dim(one, other, mesh, shape, dim) for dim in range(one.ndim))


def same_dim(one: Layout, other: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> bool:
    """Tell whether two layouts place the indices of a dim alike, as `same_placement` does of all dims."""
    both, size = (one, other), shape[dim]
    free = [
        free_strides(mesh, [(mesh.stride(a), mesh.size(a)) for a in layout.axes_of(dim)])
        for layout in both
    ]
    if free[0] != free[1]:
        return False
    if any(layout.window(dim) is not None for layout in both):
        return one.dims[dim] == other.dims[dim]
    if all(has_digits(layout, mesh, shape, dim) for layout in both):
        rows = [digits(layout, mesh, tuple(shape))[dim] for layout in both]
        forms = [
            normal([(d.extent, mesh.stride(d.axis) if d.axis else 0, d.memory) for d in row], size)
            for row in rows
        ]
        return forms[0] == forms[1]
    if size > MAX_COMPARED:
        return False
    index = np.arange(size)
    places = []
    for layout in both:
        coordinates, position = locate(layout, mesh, shape, dim, index)
        steps = (c * mesh.stride(a) for c, a in zip(coordinates, layout.axes_of(dim)))
        ranks = sum(steps, 0 * index)
        places.append((ranks, dim_addresses(layout, mesh, shape, dim)[position]))
    return all(bool(np.array_equal(*pair)) for pair in zip(*places, strict=True))


def normal(row: Iterable[tuple[int, int, int]], size: int) -> list[tuple[int, int, int]]:
    """Return the digits that tell indices below `size` apart, the minor one first; neighbours that form one are one.

    A digit, major first in `row`, is its extent and its weights in ranks and in memory. Digits of equal normal form
    place every index alike, and no others do.
    """
    done: list[tuple[int, int, int]] = []
    below = 1
    for extent, rank, place in reversed(list(row)):
        if below < size and extent != 1:
            if done and (rank, place) == tuple(done[-1][0] * weight for weight in done[-1][1:]):
                inner, rank, place = done.pop()
                extent, below = extent * inner, below // inner
            extent = min(extent, -(-size // below))
            done.append((extent, rank, place))
            below *= extent
    return done


def block_axes(
    layout: Layout, mesh: Mesh, shape: Sequence[int]
) -> tuple[tuple[str, ...], ...] | None:
    """Return, for each dim, the axes or sub-axes of the plain blocks that the layout amounts to on this shape.

    Axes are listed major first, without those of size 1. Returns None when the layout amounts to anything else.
    """
    if layout.is_block:
        return tuple(
            tuple(name for name in axes if mesh.size(name) > 1) for axes in layout.block_axes()
        )
    if layout.allocation_shape(mesh, shape) != (local := layout.local_shape(mesh, shape)):
        return None
    rows = [_block_row(layout, mesh, tuple(shape), dim) for dim in range(layout.ndim)]
    step = 1
    for dim in reversed(range(layout.ndim)):
        if local[dim] > 1 and step_of(layout, mesh, tuple(shape), dim) != step:
            return None
        step *= local[dim]
    return tuple(row for row in rows if row is not None) if None not in rows else None


def _block_row(
    layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int
) -> tuple[str, ...] | None:
    axes = tuple(name for name in layout.axes_of(dim) if mesh.size(name) > 1)
    size, listed = shape[dim], irregular(layout, dim)
    chunk = -(-size // prod(mesh.size(name) for name in axes))
    if listed is not None:
        flat = tuple(max(0, min(chunk, size - k * chunk)) for k in range(len(listed)))
        return axes if listed == flat else None
    run = is_run(layout, mesh, shape, dim) and has_digits(layout, mesh, shape, dim)
    return axes if run and prod(layout.local_extents(mesh, shape, dim)) == chunk else None


# Common refinement


@dataclass(frozen=True)
class Role:
    """Say what a digit of a common refinement does in one of the two layouts.

    device: whether it chooses the rank.
    weight: distance between its values, in ranks or in elements of memory.
    """

    device: bool
    weight: int


@dataclass(frozen=True)
class Shared:
    """Hold one digit of a common refinement: part of one digit of each layout."""

    extent: int
    stride: int
    one: Role
    other: Role


def refine(
    one: Layout, other: Layout, mesh: Mesh, shape: Sequence[int]
) -> tuple[tuple[Shared, ...], ...]:
    """Return, for each dim, the coarsest digits of which the digits of both layouts are made, major first.

    The size of a dim may cut its major digit short. Raises LayoutError naming the dim where no refinement exists:
    extents that do not divide each other, irregular or nested sizes.
    """
    return tuple(refine_dim(one, other, mesh, shape, dim) for dim in range(len(shape)))


def refine_dim(
    one: Layout, other: Layout, mesh: Mesh, shape: Sequence[int], dim: int
) -> tuple[Shared, ...]:
    """Refine one dim, as `refine` does for all."""
    for layout in (one, other):
        if not has_digits(layout, mesh, shape, dim):
            raise LayoutError(f"layout {layout}: dim {dim} is not made of regular digits")
    rows = [digits(layout, mesh, tuple(shape))[dim] for layout in (one, other)]
    return _refined(rows[0], rows[1], mesh, shape[dim], f"dim {dim} of {one} and {other}")


def _refined(
    one: Sequence[Digit], other: Sequence[Digit], mesh: Mesh, size: int, what: str
) -> tuple[Shared, ...]:
    if size <= 1:
        return ()
    cuts = {1}
    for digit in (*one, *other):
        if digit.extent > 1:
            cuts |= {digit.stride, digit.stride * digit.extent}
    chain = sorted(cut for cut in cuts if cut < size)
    for low, high in pairwise(chain):
        if high % low:
            raise LayoutError(f"{what} have no common refinement: {low} does not divide {high}")
    shared = []
    for low, high in zip(chain, [*chain[1:], 0]):
        extent = high // low if high else -(-size // low)
        if extent > 1:
            roles = [_role(row, low, mesh) for row in (one, other)]
            shared.append(Shared(extent, low, roles[0], roles[1]))
    return tuple(reversed(shared))


def _role(row: Sequence[Digit], low: int, mesh: Mesh) -> Role:
    for digit in row:
        if digit.stride <= low < digit.stride * digit.extent:
            unit = mesh.stride(digit.axis) if digit.axis is not None else digit.memory
            return Role(digit.axis is not None, unit * (low // digit.stride))
    raise AssertionError(f"no digit of {row} covers {low}")


# Views


def transpose(layout: Layout, permutation: Sequence[int]) -> Layout:
    """Return the layout of the transposed tensor that leaves every element where it is in memory.

    permutation: dim i of the result is dim permutation[i]. To copy into default order, use `.without_order()` of the
    result. Raises LayoutError when it is not a permutation of the dims.
    """
    if sorted(permutation) != list(range(layout.ndim)):
        raise LayoutError(
            f"layout {layout}: {tuple(permutation)} is not a permutation of its {layout.ndim} dims"
        )
    at = {dim: new for new, dim in enumerate(permutation)}
    order = tuple((at[dim], k) for dim, k in layout.order or _default_order(layout.dims))
    dims = tuple(layout.dims[dim] for dim in permutation)
    return Layout(dims, layout.partial, order, layout.uneven)


def reshape(layout: Layout, mesh: Mesh, shape: Sequence[int], new_shape: Sequence[int]) -> Layout:
    """Return the layout of the reshaped tensor (row-major) that leaves every element on its rank, at its address.

    Raises LayoutError where none exists: a digit that falls across a new dim and does not divide, padding in a dim
    that is split or merged, or sizes that do not agree.
    """
    if prod(shape) != prod(new_shape):
        raise LayoutError(
            f"a tensor {shape_text(shape)} cannot be reshaped to {shape_text(new_shape)}"
        )
    dims: list[tuple[Factor, ...]] = []
    moved: dict[tuple[int, int], list[tuple[int, int]]] = {}
    nested = False
    for old, new in _groups(shape, new_shape):
        if len(old) == len(new) == 1:
            factors = layout.dims[old[0]]
            count = sum(isinstance(f, LocalFactor) for f in factors)
            moved |= {(old[0], k): [(new[0], k)] for k in range(count)}
            nested |= is_nested(layout, mesh, shape, old[0])
            dims.append(factors)
        else:
            pieces = _digits_of_group(layout, mesh, shape, old)
            dims += _cut(pieces, new, new_shape, layout, moved)
    order = None
    if layout.order is not None:
        order = [place for ref in layout.order for place in moved.get(ref, ())]
        order += [place for place in _default_order(dims) if place not in order]
    uneven = "nested" if nested else "flat"
    if uneven == "flat" and layout.uneven == "nested":
        uneven = "nested" if any(len(list(axis_factors(f))) > 1 for f in dims) else "flat"
    return Layout(tuple(dims), layout.partial, None if order is None else tuple(order), uneven)


def _default_order(dims: Sequence[Sequence[Factor]]) -> list[tuple[int, int]]:
    counts = [sum(isinstance(factor, LocalFactor) for factor in factors) for factors in dims]
    return [(dim, k) for dim, count in enumerate(counts) for k in range(max(count, 1))]


def _groups(
    shape: Sequence[int], new_shape: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pair the smallest runs of old dims and new dims, from the left, that hold the same elements."""
    groups = []
    i = j = 0
    while i < len(shape) or j < len(new_shape):
        old: list[int] = []
        new: list[int] = []
        left = right = 1
        while not (old and new and left == right):
            if i < len(shape) and (left <= right or j == len(new_shape)):
                old.append(i)
                left *= shape[i]
                i += 1
            elif j < len(new_shape):
                new.append(j)
                right *= new_shape[j]
                j += 1
            else:
                break
        groups.append((tuple(old), tuple(new)))
    return groups


@dataclass
class _Piece:
    extent: int
    axis: AxisFactor | None
    ref: tuple[int, int]  # dim and number of a local digit
    dim: int


def _digits_of_group(
    layout: Layout, mesh: Mesh, shape: Sequence[int], dims: Sequence[int]
) -> list[_Piece]:
    """Return the digits of some dims, major first. Raises LayoutError when one of the dims has padding."""
    pieces = []
    for dim in dims:
        extents, k = layout.extents(mesh, shape, dim), 0
        if prod(extents) != shape[dim] or irregular(layout, dim) is not None:
            raise LayoutError(
                f"layout {layout}: dim {dim} of {shape_text(shape)} is uneven, so it cannot be split or "
                "merged in place"
            )
        for factor, extent in zip(layout.dims[dim], extents, strict=True):
            axis = factor if isinstance(factor, AxisFactor) else None
            if extent > 1:
                pieces.append(_Piece(extent, axis, (dim, k), dim))
            k += axis is None
    return pieces


def _cut(
    pieces: list[_Piece],
    new: Sequence[int],
    new_shape: Sequence[int],
    layout: Layout,
    moved: dict[tuple[int, int], list[tuple[int, int]]],
) -> list[tuple[Factor, ...]]:
    """Return the factors of the new dims of a group; records in `moved` where each local factor goes."""
    dims, queue = [], list(pieces)
    for dim in new:
        rest, k = new_shape[dim], 0
        factors: list[Factor] = []
        while rest > 1:
            piece = queue[0]
            if rest % piece.extent == 0:
                taken = queue.pop(0)
            elif piece.extent % rest == 0:
                taken, queue[0] = _halves(piece, rest)
            else:
                raise LayoutError(
                    f"layout {layout}: a digit of {piece.extent} of dim {piece.dim} falls across "
                    f"the end of new dim {dim} of {shape_text(new_shape)}, where {rest} are left"
                )
            rest //= taken.extent
            factors.append(taken.axis or LocalFactor(taken.extent))
            if taken.axis is None:
                moved.setdefault(taken.ref, []).append((dim, k))
                k += 1
        dims.append(_last_as_rest(factors, layout.order is None))
    return dims


def _halves(piece: _Piece, major: int) -> tuple[_Piece, _Piece]:
    minor = piece.extent // major
    if piece.axis is None:
        return (
            _Piece(major, None, piece.ref, piece.dim),
            _Piece(minor, None, piece.ref, piece.dim),
        )
    m = piece.axis.sub[0] if piece.axis.sub else 1
    name = piece.axis.name
    return (
        _Piece(major, AxisFactor(name, (m, major)), piece.ref, piece.dim),
        _Piece(minor, AxisFactor(name, (m * major, minor)), piece.ref, piece.dim),
    )


def _last_as_rest(factors: list[Factor], merge: bool) -> tuple[Factor, ...]:
    """Write the minor-most local factor as `_`; with `merge`, together with the local factors just before it."""
    for at in reversed(range(len(factors))):
        if isinstance(factors[at], LocalFactor):
            start = at
            while merge and start and isinstance(factors[start - 1], LocalFactor):
                start -= 1
            return (*factors[:start], LocalFactor(None), *factors[at + 1 :])
    return tuple(factors)
