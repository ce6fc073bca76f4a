"""Who holds what, in words: each rank's part of a tensor as Python slices, `[0:4, :]`."""

from collections.abc import Sequence

import numpy as np

from meshweave.layout.digits import dim_indices
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import is_run, run_at

MAX_RANKS = 4  # named in `held_by`
MAX_RUNS = 3  # of a dim, written out
MAX_POSITIONS = 1 << 16  # of a dim, looked at one by one


def held(layout: Layout, mesh: Mesh, shape: Sequence[int], rank: int) -> str:
    """What a rank holds of a tensor: `[0:4, :]`; runs of indices are joined with +, `[0:2+4:6]`."""
    return f"[{', '.join(held_of_dim(layout, mesh, tuple(shape), d, rank) for d in range(layout.ndim))}]"


def held_by(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> str:
    """What the first ranks hold, and how many there are: `rank 0 [0:4, :], rank 1 [4:8, :]`."""
    if not any(layout.axes_of(dim) for dim in range(layout.ndim)):
        return "whole on one rank" if mesh.nranks == 1 else f"whole on each of {mesh.nranks} ranks"
    count = min(mesh.nranks, MAX_RANKS)
    words = [f"rank {rank} {held(layout, mesh, shape, rank)}" for rank in range(count)]
    if mesh.nranks > count:
        words.append(f".. {mesh.nranks} ranks")
    return ", ".join(words)


def held_of_dim(layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int, rank: int) -> str:
    """What a rank holds of one dim, as a Python slice or several."""
    if not layout.axes_of(dim) and is_run(layout, mesh, shape, dim):
        return ":"
    if is_run(layout, mesh, shape, dim):
        begin, end = (int(place) for place in run_at(layout, mesh, shape, dim, rank))
        return f"{begin}:{end}" if begin < end else "-"
    if layout.local_shape(mesh, shape)[dim] > MAX_POSITIONS:
        return ".."
    index = dim_indices(layout, mesh, shape, dim, rank)
    inside = index[index >= 0]
    if not len(inside):
        return "-"
    ends = [*(np.flatnonzero(np.diff(inside) != 1) + 1).tolist(), len(inside)]
    pairs = [(int(inside[a]), int(inside[b - 1])) for a, b in zip([0, *ends[:-1]], ends)]
    runs = [str(low) if low == high else f"{low}:{high + 1}" for low, high in pairs]
    return "+".join(runs if len(runs) <= MAX_RUNS else [*runs[:MAX_RUNS], ".."])
