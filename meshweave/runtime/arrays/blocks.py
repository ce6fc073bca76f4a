"""Find what a rank holds of a global array where it is one block: as a view, it needs no copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshweave.layout import Layout, Mesh
from meshweave.runtime.memory import Values
from meshweave.runtime.program import readable

SMALL = 1 << 16  # bytes of an array whose copy costs less than finding its views


def plain(layout: Layout) -> bool:
    """Tell whether each rank holds one block of the global array, in its order."""
    return layout.is_block and not layout.partial and layout.without_order() == layout


class HeldPart(NamedTuple):
    """Describe what a rank holds of an array: its place in the whole, and in the buffer of the rank."""

    rank: int
    place: tuple[slice, ...]
    inside: Any  # slices, and an ellipsis: of no dims it gives a view too


def parts(mesh: Mesh, layout: Layout, shape: Sequence[int]) -> list[HeldPart]:
    """Return the parts of an array that is laid out in blocks, each once, as the first rank that has it holds it."""
    found: dict[tuple[int, ...], HeldPart] = {}
    for rank in range(mesh.nranks):
        offsets = layout.offsets(mesh, shape, rank)
        valid = layout.valid_shape(mesh, shape, rank)
        if 0 not in valid:
            place = tuple([slice(o, o + n) for o, n in zip(offsets, valid, strict=True)])
            found.setdefault(offsets, HeldPart(rank, place, (*[slice(0, n) for n in valid], ...)))
    return list(found.values())


def views(array: Values, mesh: Mesh, layout: Layout) -> list[Values] | None:
    """Return what each rank holds of a large global array as views of it; None where they are no such.

    That needs parts without padding that lie in one piece, as a whole array does, and blocks of rows.
    """
    if array.nbytes < SMALL or not plain(layout):
        return None
    found, shape = [], array.shape
    local = layout.local_shape(mesh, shape)
    for rank in range(mesh.nranks):
        if layout.valid_shape(mesh, shape, rank) != local:
            return None
        starts = layout.offsets(mesh, shape, rank)
        part = array[tuple([slice(o, o + n) for o, n in zip(starts, local, strict=True)])]
        if not readable(part):
            return None
        found.append(part)
    return found
