"""Define Layout: for each dim of a tensor the factors its index is made of, and which reductions are still pending.

    [x, _]            rows over x              [x*y, _]   over x and y, x major    []    a scalar
    [_, y] +sum(x)    columns over y, each rank of x holds an addend
    [_*x*4, _]        block-cyclic             [x{3,5}]   irregular            [x:(1)2]  sub-axis
    [x*_{4,-1,6}]     windows: coordinate c holds indices 4c-1 to 4c+4, a block of 4 and its neighbours

A Layout is canonical from the moment it is made, so equal layouts print alike and `Layout.parse(str(l)) == l`. Every
dim has a factor `_` (minor-most if it was not written; not printed after device factors alone). Neighbouring local
factors, sub-axes and partials of one kind are merged. An `order` or `uneven` that says the default is dropped.
Pending reductions happen in the order written: `+sum(x) +max(y)` sums over x, then takes the maximum over y.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from meshweave.errors import LayoutError
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import (
    KINDS,
    REST,
    AxisFactor,
    Factor,
    LocalFactor,
    Partial,
    axis_factors,
    canonical,
    parse_pieces,
    print_pieces,
)

__all__ = ["KINDS", "AxisFactor", "Factor", "Layout", "LocalFactor", "Partial"]


@dataclass(frozen=True, eq=False)
class Layout:
    """Describe where the elements of a tensor lie on a mesh: `Layout.parse("[x, _]")` is rows over x.

    dims:    for each dim its factors, major first.
    partial: reductions still to do, in this order.
    order:   local factors (dim, k) in memory, major first; None: dims in order, local factors in order.
    uneven:  sizes that do not divide: "flat" (ceil, then a short tail) or "nested" (axis after axis).

    `mesh` in the methods below is the devices, `shape` the global shape. Raises LayoutError for an axis used twice,
    two `_` in a dim, or an order that is not a permutation.

    >>> layout = Layout.parse("[x, _]")
    >>> layout.local_shape(Mesh(x=4), (10, 6)), layout.valid_shape(Mesh(x=4), (10, 6), 3)
    ((3, 6), (1, 6))
    """

    dims: tuple[tuple[Factor, ...], ...]
    partial: tuple[Partial, ...] = ()
    order: tuple[tuple[int, int], ...] | None = None
    uneven: str = "flat"
    text: str = field(init=False, repr=False)
    # The blocks, or why there are none.
    _blocks: "tuple[tuple[str, ...], ...] | str" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pieces = canonical(self.dims, self.partial, self.order, self.uneven)
        for name, value in zip(("dims", "partial", "order", "uneven"), pieces, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "text", print_pieces(*pieces))
        object.__setattr__(self, "_blocks", _find_blocks(self))

    @staticmethod
    def parse(text: str) -> "Layout":
        """Parse the text of a layout. Raises LayoutError saying at which column what was expected."""
        return _parse(text)

    @staticmethod
    def replicated(ndim: int) -> "Layout":
        """Return the layout in which every rank holds the whole tensor of `ndim` dims."""
        return _blocks(((),) * ndim, ())

    @staticmethod
    def blocks(axes_per_dim: Sequence[Sequence[str]], partial: Sequence[Partial] = ()) -> "Layout":
        """Return a layout of blocks, dim i over axes_per_dim[i], major first.

        `blocks([("x", "y"), ()])` is `[x*y, _]`. partial: the reductions pending.
        """
        return _blocks(tuple(tuple(axes) for axes in axes_per_dim), tuple(partial))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f'Layout.parse("{self.text}")'

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self.text == other.text)

    @property
    def ndim(self) -> int:
        """Return the number of dims of the tensors it is for."""
        return len(self.dims)

    @property
    def is_block(self) -> bool:
        """Tell whether every dim is in plain blocks: whole axes, then the rest of the dim. Partials may be pending."""
        return not isinstance(self._blocks, str)

    def block_axes(self) -> tuple[tuple[str, ...], ...]:
        """Return the axes of each dim, major first.

        Raises LayoutError naming the factor when a dim is not in plain blocks.
        """
        if isinstance(self._blocks, str):
            raise LayoutError(self._blocks)
        return self._blocks

    def axes_of(self, dim: int) -> tuple[str, ...]:
        """Return the device axes or sub-axes of a dim, major first."""
        return tuple(factor.ref for factor in axis_factors(self.dims[dim]))

    def window(self, dim: int) -> tuple[int, int] | None:
        """Return (step, low) of a dim in windows, None for any other: see `LocalFactor`."""
        factor = self.dims[dim][-1]
        return factor.window if isinstance(factor, LocalFactor) else None

    @property
    def used_axes(self) -> tuple[str, ...]:
        """Return the axes of the dims in order, then the partial ones; an axis split into sub-axes is listed once."""
        names = [factor.name for dim in self.dims for factor in axis_factors(dim)]
        return tuple(dict.fromkeys(names + [axis for p in self.partial for axis in p.axes]))

    def partial_axes(self, kind: str | None = None) -> tuple[str, ...]:
        """Return the axes over which a reduction (of this kind, if one is given) is still to do."""
        return tuple(a for p in self.partial if kind in (None, p.kind) for a in p.axes)

    def without_partial(self) -> "Layout":
        """Return the same blocks with nothing pending."""
        return self.with_partial(()) if self.partial else self

    def without_order(self) -> "Layout":
        """Return the same ownership in default memory order."""
        if self.order is None:
            return self
        return Layout(self.dims, self.partial, None, self.uneven)

    def with_partial(self, partial: Sequence[Partial]) -> "Layout":
        """Return the same blocks with the reductions `partial` pending instead."""
        if isinstance(self._blocks, str):
            return Layout(self.dims, tuple(partial), self.order, self.uneven)
        return _blocks(self._blocks, tuple(partial))

    def with_axes(self, dim: int, axes: Sequence[str]) -> "Layout":
        """Return the same layout, but with `dim` in plain blocks over `axes`, major first."""
        if isinstance(self._blocks, str):
            factors: tuple[Factor, ...] = (*map(AxisFactor, axes), REST)
            dims = (*self.dims[:dim], factors, *self.dims[dim + 1 :])
            return Layout(dims, self.partial, self.order, self.uneven)
        return _blocks((*self._blocks[:dim], tuple(axes), *self._blocks[dim + 1 :]), self.partial)

    def check(self, mesh: Mesh, shape: Sequence[int]) -> None:
        """Raise LayoutError unless this layout can lay a tensor of `shape` on `mesh` (which may be symbolic)."""
        if len(shape) != self.ndim:
            raise LayoutError(
                f"layout {self} has {self.ndim} dims, the tensor {shape_text(shape)} has {len(shape)}"
            )
        for dim, size in enumerate(shape):
            if size < 0:
                raise LayoutError(f"dim {dim} of a tensor has size {size}, at least 0 is right")
        for dim, factor in _check_mesh(self, mesh):
            _check_extents(self, factor, dim, mesh, shape[dim])

    def check_owned(self) -> None:
        """Raise LayoutError where a dim is in windows: an element may lie in several of them, or nowhere."""
        for dim in range(self.ndim):
            if self.window(dim) is not None:
                raise LayoutError(
                    f"layout {self}: dim {dim} is in windows, which ops read; a tensor lies in blocks"
                )

    def extents(self, mesh: Mesh, shape: Sequence[int], dim: int) -> tuple[int, ...]:
        """Return the extents of the factors of a dim, major first; `_` is ceil(size / product of the others).

        The extent of an irregular factor is its number of coordinates, that of its `_` the largest of the listed
        extents.
        """
        factors = self.dims[dim]
        known = [_extent(factor, mesh) for factor in factors]
        listed = [f.extents for f in axis_factors(factors) if f.extents is not None]
        others = prod(extent for extent in known if extent is not None)
        rest = max(listed[0]) if listed else -(-shape[dim] // others)
        return tuple(rest if extent is None else extent for extent in known)

    def local_shape(self, mesh: Mesh, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the number of positions a rank has along each dim, padding included; the same on every rank.

        It is the shape of the buffer too, unless the memory order is not the default: see `allocation_shape`.
        """
        if isinstance(self._blocks, str):
            return tuple(
                prod(
                    extent
                    for factor, extent in zip(factors, self.extents(mesh, shape, dim), strict=True)
                    if isinstance(factor, LocalFactor)
                )
                for dim, factors in enumerate(self.dims)
            )
        return tuple(
            [
                -(-size // mesh.axis_count(axes)) if axes else size
                for size, axes in zip(shape, self._blocks, strict=True)
            ]
        )

    def allocation_shape(self, mesh: Mesh, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a rank's buffer, row-major contiguous.

        It is `local_shape`; where the memory order is not the default, it is the extents of all local factors in
        memory order, major first. On size 6, `[2*_] order(0.1, 0.0)` has local shape (6,) and allocation shape (3, 2).
        """
        if self.order is None:
            return self.local_shape(mesh, shape)
        extents = [self.local_extents(mesh, shape, dim) for dim in range(self.ndim)]
        return tuple(extents[dim][k] for dim, k in self.order)

    def local_extents(self, mesh: Mesh, shape: Sequence[int], dim: int) -> tuple[int, ...]:
        """Return the extents of the local factors of a dim, major first."""
        every = zip(self.dims[dim], self.extents(mesh, shape, dim), strict=True)
        return tuple(extent for factor, extent in every if isinstance(factor, LocalFactor))

    def offsets(self, mesh: Mesh, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return the global index, along each dim, of the first element in the allocation of `rank` (block layouts).

        It can lie at or beyond the end of the dim, on a rank that has only padding.
        """
        locals_ = self.local_shape(mesh, shape)
        return tuple(
            mesh.group_index(axes, rank) * chunk if axes else 0
            for axes, chunk in zip(self.block_axes(), locals_, strict=True)
        )

    def valid_shape(self, mesh: Mesh, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return how much of the allocation of `rank`, along each dim, is not padding (block layouts)."""
        return tuple(
            max(0, min(chunk, size - offset))
            for chunk, size, offset in zip(
                self.local_shape(mesh, shape), shape, self.offsets(mesh, shape, rank), strict=True
            )
        )

    def is_even(self, mesh: Mesh, shape: Sequence[int]) -> bool:
        """Tell whether no rank has padding."""
        for dim, size in enumerate(shape):
            listed = [f.extents for f in axis_factors(self.dims[dim]) if f.extents is not None]
            window = self.window(dim)
            if window is not None:
                step, low = window
                last = step * (mesh.axis_count(self.axes_of(dim)) - 1) + low
                if low < 0 or last + self.local_shape(mesh, shape)[dim] > size:
                    return False
            elif listed:
                if len(set(listed[0])) > 1:
                    return False
            elif prod(self.extents(mesh, shape, dim)) != size:
                return False
        return True


def shape_text(shape: Sequence[int]) -> str:
    """Write a shape as `8x6`."""
    return "x".join(map(str, shape)) or "(scalar)"


def _extent(factor: Factor, mesh: Mesh) -> int | None:
    return factor.extent if isinstance(factor, LocalFactor) else mesh.size(factor.ref)


@lru_cache(maxsize=1 << 16)
def _parse(text: str) -> Layout:
    return Layout(*parse_pieces(text))


@lru_cache(maxsize=1 << 16)
def _blocks(axes_per_dim: tuple[tuple[str, ...], ...], partial: tuple[Partial, ...]) -> Layout:
    return Layout(tuple(tuple(map(AxisFactor, axes)) for axes in axes_per_dim), partial)


def _find_blocks(layout: Layout) -> tuple[tuple[str, ...], ...] | str:
    if layout.order is not None:
        return f"layout {layout}: its memory order is not supported yet"
    if layout.uneven != "flat":
        return f"layout {layout}: uneven({layout.uneven}) is not supported yet"
    for dim, factors in enumerate(layout.dims):
        for factor in factors[:-1]:
            if not isinstance(factor, AxisFactor) or factor.ref != str(factor) or factor.sub:
                return f"layout {layout}: factor {factor} of dim {dim} is not supported yet"
        if factors[-1] != REST:
            return f"layout {layout}: factor {factors[-1]} of dim {dim} is not supported yet"
    return tuple(tuple(factor.name for factor in axis_factors(dim)) for dim in layout.dims)


@lru_cache(maxsize=1 << 14)
def _check_mesh(layout: Layout, mesh: Mesh) -> tuple[tuple[int, AxisFactor], ...]:
    """Return the irregular factors with their dims. Raises LayoutError where the mesh lacks an axis of the layout."""
    for name in layout.used_axes:
        try:
            mesh.axis(name)
        except LayoutError as error:
            raise LayoutError(f"layout {layout}: {error.message}") from None
    rows = [(dim, f) for dim, factors in enumerate(layout.dims) for f in axis_factors(factors)]
    for dim, factor in rows:
        if not isinstance(mesh.axis(factor.name).size, str):
            try:
                mesh.size(factor.ref)
            except LayoutError as error:
                raise LayoutError(f"layout {layout}, dim {dim}: {error.message}") from None
    return tuple((dim, factor) for dim, factor in rows if factor.extents is not None)


def _check_extents(layout: Layout, factor: AxisFactor, dim: int, mesh: Mesh, size: int) -> None:
    assert factor.extents is not None
    symbol = mesh.axis(factor.name).size
    if isinstance(symbol, str):
        raise LayoutError(
            f"layout {layout}: {factor} lists {len(factor.extents)} extents, but {factor.name} has "
            f"{symbol} ranks: give it a number first"
        )
    count = mesh.size(factor.ref)
    if (len(factor.extents), sum(factor.extents)) != (count, size):
        raise LayoutError(
            f"layout {layout}: {factor} lists {len(factor.extents)} extents that sum to "
            f"{sum(factor.extents)}, dim {dim} needs {count} that sum to {size}"
        )
