"""Hypothesis strategies: small meshes, layouts for them, and sizes that do not divide."""

from itertools import permutations, product
from math import prod

import numpy as np
from hypothesis import strategies as st

from meshweave.layout.digits import Values, dim_indices
from meshweave.layout.layout import AxisFactor, Factor, Layout, LocalFactor, Partial
from meshweave.layout.mesh import Mesh

SIZES = (0, 1, 2, 3, 5, 6, 7, 8, 10, 12)
AXES = ("x", "y", "z")
KINDS = ("sum", "max", "min", "prod", "avg")


@st.composite
def meshes(draw: st.DrawFn, max_ranks: int = 8) -> Mesh:
    """Meshes of 1 to 3 axes and at most `max_ranks` ranks."""
    sizes: dict[str, int] = {}
    left = max_ranks
    for name in draw(st.sampled_from([AXES[:1], AXES[:2], AXES])):
        sizes[name] = draw(st.integers(1, left))
        left //= sizes[name]
    return Mesh(**sizes)


def shapes(ndim: int, sizes: tuple[int, ...] = SIZES) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `ndim` dims, of sizes 0 and 1 and such that 2, 3 and 4 divide or not."""
    return st.tuples(*[st.sampled_from(sizes)] * ndim)


@st.composite
def layouts(
    draw: st.DrawFn, mesh: Mesh, ndim: int, kinds: tuple[str, ...] = ("sum", "max")
) -> Layout:
    """Layouts in blocks: each axis in some dim, pending with one of `kinds`, or unused."""
    places: list[int | str | None] = [None, *range(ndim), *kinds]
    dims: list[list[str]] = [[] for _ in range(ndim)]
    pending = []
    for axis in draw(st.permutations(mesh.names)):
        place = draw(st.sampled_from(places))
        if isinstance(place, int):
            dims[place].append(axis)
        elif place is not None:
            pending.append(Partial(place, (axis,)))
    return Layout.blocks(dims, pending)


@st.composite
def any_layouts(
    draw: st.DrawFn, mesh: Mesh, shape: tuple[int, ...], kinds: tuple[str, ...] = ("sum", "max")
) -> Layout:
    """All that the notation can say of a tensor on a mesh: local factors, sub-axes, irregular
    extents, memory orders, nested sizes, reductions pending.
    """
    plain = draw(layouts(mesh, len(shape), kinds))
    dims: list[tuple[Factor, ...]] = []
    for size, axes in zip(shape, plain.block_axes()):
        factors: list[Factor] = []
        for name in axes:
            whole, k = mesh.size(name), draw(st.sampled_from([1, 2, 3]))
            cut = k > 1 and whole % k == 0 and draw(st.booleans())
            factors.append(AxisFactor(name, (whole // k, k) if cut else None))
        if len(axes) == 1 and draw(st.integers(0, 4)) == 0:
            parts = mesh.size(axes[0])
            cuts = sorted(
                draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1))
            )
            ends = zip([0, *cuts], [*cuts, size])
            dims.append((AxisFactor(axes[0], None, tuple(b - a for a, b in ends)),))
            continue
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            extent = LocalFactor(draw(st.integers(1, 3)))
            factors.insert(draw(st.integers(0, len(factors))), extent)
        factors.insert(draw(st.integers(0, len(factors))), LocalFactor(None))
        dims.append(tuple(factors))
    uneven = draw(st.sampled_from(["flat", "nested"]))
    made = Layout(tuple(dims), plain.partial, None, uneven)
    if not dims or draw(st.booleans()):
        return made
    return Layout(made.dims, made.partial, draw(_orders(made)), uneven)


@st.composite
def notations(draw: st.DrawFn) -> Layout:
    """Layouts with all that the notation can say, for no mesh in particular."""
    names = list(draw(st.permutations(["a", "b", "x1", "_k", "tp"])))
    dims: list[tuple[Factor, ...]] = []
    for _ in range(draw(st.integers(0, 3))):
        factors: list[Factor] = []
        for kind in draw(st.lists(st.sampled_from(["axis", "sub", "local"]), max_size=3)):
            if kind == "local":
                factors.append(LocalFactor(draw(st.integers(1, 9))))
            elif names:
                sub = (draw(st.integers(1, 3)), draw(st.integers(2, 4))) if kind == "sub" else None
                factors.append(AxisFactor(names.pop(), sub))
        if draw(st.booleans()):
            factors.insert(draw(st.integers(0, len(factors))), LocalFactor(None))
        if names and not factors and draw(st.booleans()):
            extents = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
            factors.append(AxisFactor(names.pop(), None, tuple(extents)))
        dims.append(tuple(factors))
    pending = []
    while names and draw(st.booleans()):
        pending.append(Partial(draw(st.sampled_from(KINDS)), (names.pop(),)))
    uneven = draw(st.sampled_from(["flat", "nested"]))
    plain = Layout(tuple(dims), tuple(pending), None, uneven)
    if not dims or draw(st.booleans()):
        return plain
    return Layout(plain.dims, plain.partial, draw(_orders(plain)), uneven)


def _orders(layout: Layout) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    places = [
        (dim, k)
        for dim, factors in enumerate(layout.dims)
        for k in range(sum(isinstance(factor, LocalFactor) for factor in factors))
    ]
    return st.permutations(places).map(tuple)


def numbered(shape: tuple[int, ...], dtype: str = "f8") -> Values:
    """An array whose elements all differ and none of which is 0."""
    return (np.arange(int(np.prod(shape))) + 1).reshape(shape).astype(dtype)


def all_layouts(mesh: Mesh, ndim: int, kinds: tuple[str, ...] = ("sum",)) -> list[Layout]:
    """Every layout in blocks of a small mesh, with at most one kind of reduction pending."""
    found = set()
    for row in permutations(mesh.names):
        for places in product(range(ndim + 2), repeat=len(row)):
            dims = [[a for a, at in zip(row, places) if at == dim] for dim in range(ndim)]
            pending = tuple(a for a, at in zip(row, places) if at == ndim)
            partials = [[Partial(kind, pending)] for kind in kinds] if pending else [[]]
            found |= {Layout.blocks(dims, partial) for partial in partials}
    return sorted(found, key=str)


def valid_count(layout: Layout, mesh: Mesh, shape: tuple[int, ...], rank: int) -> int:
    """How many elements `rank` holds: its allocation without padding."""
    rows = [dim_indices(layout, mesh, shape, dim, rank) for dim in range(layout.ndim)]
    return prod(int((row >= 0).sum()) for row in rows)
