"""Tensors that are planned alike: a tensor of a new shape is a smaller one of larger elements.

Let P be the ranks along the axes that a plan may cut dims over. Over any of these axes, in any
order, a dim of P * k is cut in pieces that are k times those of a dim of P: both fit wherever one
does (moves.py), and neither has padding. So the tensor moves as one with P in place of that dim and
elements k times as large: all bytes that a plan states are the same, and so is what it costs. Only
the bound of a target with reductions pending is not: it is of elements one by one.

Where launches are weighed against bytes by `cost.share` alone, the size of an element does not
matter either, so one search serves every such shape and dtype.
"""

from collections.abc import Sequence
from functools import lru_cache

from meshweave.layout.layout import AxisFactor, Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import REST


def scaled(
    source: Layout, target: Layout, mesh: Mesh, shape: Sequence[int]
) -> tuple[tuple[int, ...], int] | None:
    """The smallest shape that moves alike, and how many elements one of its own stands for.

    None for layouts that are not in blocks over axes or sub-axes: their digits of fixed extent do
    not grow with the tensor.
    """
    unit = _unit(source, target, mesh)
    if unit is None:
        return None
    factor, least = 1, []
    for size in shape:
        times = 1 if size % unit else size // unit
        if times > 1:
            factor *= times
            size = unit
        least.append(size)
    return tuple(least), factor


@lru_cache(maxsize=1 << 14)
def _unit(source: Layout, target: Layout, mesh: Mesh) -> int | None:
    """Ranks along the axes that a plan may cut dims over; see this file's docstring."""
    if not (_in_blocks(source) and _in_blocks(target)):
        return None
    # While something is pending, dims are cut over idle axes too.
    every = source.partial or target.partial
    return mesh.axis_count(
        mesh.names if every else dict.fromkeys((*source.used_axes, *target.used_axes))
    )


def _in_blocks(layout: Layout) -> bool:
    if layout.is_block:
        return True
    regular = layout.order is None and layout.uneven == "flat"
    return regular and all(
        factors[-1] == REST
        and all(isinstance(f, AxisFactor) and f.extents is None for f in factors[:-1])
        for factors in layout.dims
    )
