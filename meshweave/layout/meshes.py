"""Say a layout of one mesh in the axes of another one with as many ranks: rank r of the one is rank r of the other.

An axis is the part of a rank's number between two products of sizes: of 12 ranks on `x=2, y=6`, y is what 2 and 12
enclose. On `a=4, b=3` that is the second half of a, `a:(2)2`, and b. So most layouts of one mesh are layouts of
another, with no element elsewhere; all without pending reductions, memory orders and nested sizes are on one axis.
"""

from collections.abc import Sequence
from dataclasses import replace

from meshweave.layout.layout import AxisFactor, Factor, Layout, Partial
from meshweave.layout.mesh import Mesh


def on_mesh(layout: Layout, mesh: Mesh, other: Mesh) -> Layout | None:
    """Return the layout of `other` that has each element on the same rank, at the same place; None if there is none.

    layout: of `mesh`, which has as many ranks as `other`.

    >>> on_mesh(Layout.parse("[y, x]"), Mesh("x=2, y=6"), Mesh("a=4, b=3"))
    Layout.parse("[a:(2)2*b, a:(1)2]")
    """
    assert mesh.nranks == other.nranks
    dims = [_dim(factors, mesh, other) for factors in layout.dims]
    partial = [_pending(p, mesh, other) for p in layout.partial]
    if None in dims or None in partial:
        return None
    plain, waits = [row or () for row in dims], [p for row in partial for p in row or ()]
    found = Layout(tuple(plain), tuple(waits), None, layout.uneven)
    if layout.order is None and layout.uneven == "flat":
        return found
    # Numbers of local factors, and nested sizes, mean another thing where neighbours in a dim have become one factor.
    if [len(row) for row in found.dims] != [len(row) for row in layout.dims]:
        return None
    return Layout(found.dims, found.partial, layout.order, layout.uneven)


def _dim(factors: Sequence[Factor], mesh: Mesh, other: Mesh) -> tuple[Factor, ...] | None:
    found: list[Factor] = []
    for factor in factors:
        if not isinstance(factor, AxisFactor):
            found.append(factor)
            continue
        parts = _parts(factor.ref, mesh, other)
        if parts is None or (factor.extents is not None and len(parts) > 1):
            return None
        found += [replace(part, extents=factor.extents) for part in parts]
    return tuple(found)


def _pending(partial: Partial, mesh: Mesh, other: Mesh) -> tuple[Partial, ...] | None:
    """Return the same reduction over other axes: whole ones, as the notation has it; none if it is over one rank."""
    axes: list[str] = []
    for name in partial.axes:
        parts = _parts(name, mesh, other)
        if parts is None or any(part.sub is not None for part in parts):
            return None
        axes += [part.name for part in parts]
    return (Partial(partial.kind, tuple(axes)),) if axes else ()


def _parts(ref: str, mesh: Mesh, other: Mesh) -> list[AxisFactor] | None:
    """Return the axes of another mesh, or parts of these, that an axis is, major first; None if there are none."""
    end = mesh.nranks // mesh.stride(ref)  # product of all sizes up to it
    begin = end // mesh.axis_count((ref,))
    found, before = [], 1
    for axis in other.axes:
        size = other.size(axis.name)
        first, last = max(before, begin), min(before * size, end)
        if first < last:
            if first % before or last % first or (before * size) % last:
                return None
            sub = first // before, last // first
            found.append(AxisFactor(axis.name, None if sub == (1, size) else sub))
        before *= size
    return found
