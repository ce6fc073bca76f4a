"""Reduce a tensor to a smaller one of larger elements that is planned alike.

Let P be the ranks along the axes that a plan may cut dims over. Over any of these axes, in any order, a dim of P * k
is cut in pieces that are k times those of a dim of P: both fit wherever one does (moves.py), and neither has padding.
So the tensor moves as one with P in place of that dim and elements k times as large: all bytes that a plan states are
the same, and so is what it costs. Only bounds of pending reductions differ: they count elements one by one.

A dim of another size n that neither end cuts counts n times in each step that does not cut it either. A step that does
takes at least the part of the dim that it takes of one of P, and fits at most where that fits. So if the cheapest
steps for P leave the dim alone, they are the cheapest for n.

Where launches are weighed against bytes by their share alone (`cost.steady`), the size of an element does not matter
either, so one search serves every such shape and dtype.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from meshweave.layout.layout import AxisFactor, Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import REST
from meshweave.plan.steps import PlanStep


class Scaled(NamedTuple):
    """Describe a shape as a smaller one.

    least:  the shape to search steps for.
    counts: the shape whose bytes those steps have, with elements `factor` times as large.
    free:   dims that the steps must leave alone: of one size in `least`, of another in the tensor.
    """

    least: tuple[int, ...]
    counts: tuple[int, ...]
    factor: int
    free: tuple[int, ...]

    def holds(self, steps: Sequence[PlanStep]) -> bool:
        """Tell whether the steps leave the free dims alone, and cut what they reduce evenly."""
        if not self.free:
            return True
        touched = any(step.target.axes_of(dim) for step in steps for dim in self.free)
        return not touched and all(step.op != "all_reduce" for step in steps)


def scaled(
    source: Layout, target: Layout, mesh: Mesh, shape: Sequence[int], free: bool = True
) -> Scaled | None:
    """Return the smallest shape that moves alike. free: also where that takes steps that leave dims alone.

    Returns None for layouts that are not in blocks over axes or sub-axes: their digits of fixed extent do not grow
    with the tensor.
    """
    unit = _unit(source, target, mesh)
    if unit is None:
        return None
    factor, least, counts, alone = 1, list(shape), list(shape), []
    for dim, size in enumerate(shape):
        if not size:
            continue
        if size % unit == 0:
            factor *= size // unit
            least[dim] = counts[dim] = unit
        elif free and not source.axes_of(dim) and not target.axes_of(dim):
            factor *= size
            least[dim], counts[dim] = unit, 1
            alone.append(dim)
    return Scaled(tuple(least), tuple(counts), factor, tuple(alone))


@lru_cache(maxsize=1 << 14)
def _unit(source: Layout, target: Layout, mesh: Mesh) -> int | None:
    """Return the number of ranks along the axes that a plan may cut dims over; see this file's docstring."""
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
