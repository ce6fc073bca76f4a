"""Decide which values are tensors in memory, and which are computed inside the kernels that read them.

fuse-kernels asks for the ops of one rank, placement for ops that are not cut yet: what they know of an op differs, not
what follows from it. The kind of an op is one of those below, or another name. Its price is that of an element, in
additions, with all that is computed inside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshweave.transforms.kernels.element_costs import CHEAP, FUNCTION

MAP, COPY, SPLAT = "map", "copy", "splat"
"""Elementwise ops, those that only move elements, and one number everywhere."""


def stored_for_product(kind: str, shown: str) -> bool:
    """Tell whether a product, which reads tensors, needs the result of an op as one.

    shown: the kind of the op whose elements a chain of copies and views shows; through these products read.
    """
    return not {kind, shown}.isdisjoint((MAP, SPLAT))


def stored_for_inside(kind: str, price: float) -> bool:
    """Tell whether an op inside another one, as in a loop, needs a result as a tensor: it would be computed often."""
    return kind == MAP and price > 0


def stored_for_repeats(
    kind: str, price: float, sizes: Sequence[int], used: Collection[int]
) -> bool:
    """Tell whether an op needs a result as a tensor since it would compute each element repeatedly.

    sizes: of the loops of the op, the innermost last. used: the loops over which the result changes. Over the innermost
    loop what is not dear is computed once, before it.
    """
    if kind != MAP or price <= CHEAP or not used:
        return False
    wide = [loop for loop, size in enumerate(sizes) if size != 1]
    others = [loop for loop in wide if loop not in used]
    return bool(others) and (price >= FUNCTION or others[-1] != wide[-1])


def stored_for_several(kind: str, price: float, kernels: int, reads: int = 1) -> bool:
    """Tell whether a result is a tensor since several kernels would compute it, at more than what storing it costs.

    reads: the tensors of its size that one kernel would read in its place.
    """
    return kind == MAP and kernels > 1 and (price > CHEAP or reads > 1)
