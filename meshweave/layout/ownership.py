"""Describe ownership of a tensor as Python slices, `[0:4, :]`, for messages."""

from collections.abc import Sequence

import numpy as np

from meshweave.layout.digits import dim_indices
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import Indices, is_run, run_at

MAX_RANKS = 4  # ranks named in `ownership_summary`
MAX_RUNS = 3  # runs of a dim that are written out
MAX_POSITIONS = 1 << 16  # indices of a dim that are looked at one by one


def ownership_text(layout: Layout, mesh: Mesh, shape: Sequence[int], rank: int) -> str:
    """Describe the part of a tensor that a rank holds: `[0:4, :]`; runs of indices are joined with +, `[0:2+4:6]`."""
    return f"[{', '.join(dim_ownership_text(layout, mesh, tuple(shape), d, rank) for d in range(layout.ndim))}]"


def ownership_summary(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> str:
    """Describe what the first ranks hold, and how many ranks there are: `rank 0 [0:4, :], rank 1 [4:8, :]`."""
    if not any(layout.axes_of(dim) for dim in range(layout.ndim)):
        return "whole on one rank" if mesh.nranks == 1 else f"whole on each of {mesh.nranks} ranks"
    count = min(mesh.nranks, MAX_RANKS)
    words = [f"rank {rank} {ownership_text(layout, mesh, shape, rank)}" for rank in range(count)]
    if mesh.nranks > count:
        words.append(f".. {mesh.nranks} ranks")
    return ", ".join(words)


def dim_ownership_text(
    layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int, rank: int
) -> str:
    """Describe what a rank holds of one dim, as one Python slice or several."""
    whole = not layout.axes_of(dim) and layout.window(dim) is None
    if whole and is_run(layout, mesh, shape, dim):
        return ":"
    if is_run(layout, mesh, shape, dim):
        begin, end = (max(0, int(end)) for end in run_at(layout, mesh, shape, dim, rank))
        return f"{begin}:{end}" if begin < end else "-"
    if layout.local_shape(mesh, shape)[dim] > MAX_POSITIONS:
        return ".."
    index = dim_indices(layout, mesh, shape, dim, rank)
    inside = index[index >= 0]
    if not len(inside):
        return "-"
    runs = [str(low) if high - low == 1 else f"{low}:{high}" for low, high in runs_of(inside)]
    return "+".join(runs if len(runs) <= MAX_RUNS else [*runs[:MAX_RUNS], ".."])


def runs_of(indices: Indices) -> list[tuple[int, int]]:
    """Return (begin, end) of each run of consecutive numbers in a row of at least one."""
    ends = [*(np.flatnonzero(np.diff(indices) != 1) + 1).tolist(), len(indices)]
    return [(int(indices[a]), int(indices[b - 1]) + 1) for a, b in zip([0, *ends[:-1]], ends)]
