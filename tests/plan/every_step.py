"""The fewest bytes of any row of collectives, slices and local steps between layouts in blocks, by trying all of them.

Knows nothing of how plans are made: a step leads from one layout to another when it does so to random operands, run
on the simulator, and what it moves is what the simulator counts.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations, permutations
from math import inf

import numpy as np
from strategies import all_layouts

from meshweave.layout import Layout, Mesh
from meshweave.layout.layout import Partial
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import PlanStep

Shape = tuple[int, ...]
Move = tuple[str, tuple[str, ...], Layout, dict]
LARGE = 1000  # operands are whole numbers below it: sums are exact


def fewest_bytes(mesh: Mesh, shape: Shape) -> dict[tuple[Layout, Layout], int]:
    """From every layout to every other: bytes of the busiest rank of each step, in all, of elements of one byte."""
    every = all_layouts(mesh, len(shape))
    edges = {source: list(_edges(mesh, shape, source, every)) for source in every}
    found = {}
    for source in every:
        best, queue = {source: 0}, [(0, str(source), source)]
        while queue:
            spent, _, at = heappop(queue)
            for target, nbytes in edges[at] if spent == best[at] else ():
                if spent + nbytes < best.get(target, inf):
                    best[target] = spent + nbytes
                    heappush(queue, (best[target], str(target), target))
        found |= {(source, target): nbytes for target, nbytes in best.items()}
    return found


def _edges(
    mesh: Mesh, shape: Shape, source: Layout, every: list[Layout]
) -> Iterator[tuple[Layout, int]]:
    shards, value = _operands(mesh, shape, source)
    for step in _steps(mesh, source, every):
        ran = simulate([step], shards, mesh, shape)
        if _stands_for(value, ran.shards, mesh, step.target):
            yield step.target, ran.busiest[0] // value.itemsize


def steps_and_verdicts(mesh: Mesh, shape: Shape, source: Layout) -> Iterator[tuple[PlanStep, bool]]:
    """Everything that might be a step from `source`, and whether it is one."""
    shards, value = _operands(mesh, shape, source)
    for step in _steps(mesh, source, all_layouts(mesh, len(shape))):
        ran = simulate([step], shards, mesh, shape)
        yield step, _stands_for(value, ran.shards, mesh, step.target)


def _steps(mesh: Mesh, source: Layout, every: list[Layout]) -> Iterator[PlanStep]:
    for op, axes, target, fields in _moves(mesh, source, every):
        yield PlanStep(op, axes, source, target, 0, **fields)


def _moves(mesh: Mesh, source: Layout, every: list[Layout]) -> Iterator[Move]:
    """Everything that might be a step from `source`."""
    dims, pending = source.block_axes(), source.partial_axes()
    free = [axis for axis in mesh.names if axis not in source.used_axes]

    def layout(rows: dict[int, tuple[str, ...]], axes: tuple[str, ...] = pending) -> Layout:
        new = [rows.get(dim, row) for dim, row in enumerate(dims)]
        return Layout.blocks(new, [Partial("sum", axes)] if axes else [])

    def less(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in pending if axis not in axes)

    for dim, row in enumerate(dims):
        for axes in _rows(free, permutations):
            yield "all_slice", axes, layout({dim: row + axes}), {"dim": dim}
        for axes in _rows(pending, permutations):
            after = layout({dim: row + axes}, less(axes))
            yield "reduce_scatter", axes, after, {"dim": dim, "kind": "sum"}
        for keep in range(len(row)):
            kept, axes = row[:keep], row[keep:]
            yield "all_gather", axes, layout({dim: kept}), {"dim": dim}
            yield "embed", axes, layout({dim: kept}, pending + axes), {"dim": dim, "kind": "sum"}
            for split in set(range(len(dims))) - {dim}:
                after = layout({dim: kept, split: dims[split] + axes})
                yield "all_to_all", axes, after, {"concat_dim": dim, "split_dim": split}
    for axes in _rows(pending, combinations):
        yield "all_reduce", axes, layout({}, less(axes)), {"kind": "sum"}
    for axes in _rows(free, combinations):
        yield "local", axes, layout({}, pending + axes), {"kind": "sum"}
    have = _blocks(mesh, source)
    for target in every:
        want = _blocks(mesh, target)
        if target != source and sorted(have) == sorted(want):
            yield "permute", mesh.names, target, {"sources": _sources(have, want)}


def _rows(axes, choose) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(axes) + 1):
        yield from choose(axes, count)


def _blocks(mesh: Mesh, layout: Layout) -> list[tuple[int, ...]]:
    """What each rank holds: the place of its block in every dim, the number of its operand, and how many there are."""
    rows = [*layout.block_axes(), layout.partial_axes()]
    counts = [mesh.axis_count(row) for row in rows]
    return [(*counts, *(mesh.group_index(row, r) for row in rows)) for r in range(mesh.nranks)]


def _sources(have: list[tuple[int, ...]], want: list[tuple[int, ...]]) -> tuple[int, ...]:
    """For each rank one that has what it wants: itself if it does."""
    taken = [rank if have[rank] == want[rank] else None for rank in range(len(have))]
    left = [rank for rank in range(len(have)) if rank not in taken]
    for rank, block in enumerate(want):
        if taken[rank] is None:
            taken[rank] = next(giver for giver in left if have[giver] == block)
            left.remove(taken[rank])
    return tuple(taken)


def _parts(mesh: Mesh, layout: Layout, shape: Shape) -> list[tuple[tuple[slice, ...], int]]:
    """Of each rank the part of the tensor that it holds, and the number of its operand."""
    pending = layout.partial_axes()
    parts = []
    for rank in range(mesh.nranks):
        sizes, begin = (f(mesh, shape, rank) for f in (layout.valid_shape, layout.offsets))
        here = tuple(slice(b, b + n) for b, n in zip(begin, sizes, strict=True))
        parts.append((here, mesh.group_index(pending, rank)))
    return parts


def _operands(mesh: Mesh, shape: Shape, layout: Layout) -> tuple[list[np.ndarray], np.ndarray]:
    """Random operands of a random tensor, as they lie on the ranks; padding is anything."""
    rng = np.random.default_rng(1)
    given = rng.integers(1, LARGE, (mesh.axis_count(layout.partial_axes()), *shape)).astype("f8")
    shards = []
    for here, operand in _parts(mesh, layout, shape):
        piece = given[operand][here]
        shard = rng.integers(LARGE, 2 * LARGE, layout.local_shape(mesh, shape)).astype("f8")
        shard[tuple(map(slice, piece.shape))] = piece
        shards.append(shard)
    return shards, given.sum(0)


def _stands_for(value: np.ndarray, shards, mesh: Mesh, layout: Layout) -> bool:
    """Whether the shards are the tensor in this layout: replicas alike, operands with the right sum."""
    found = np.full((mesh.axis_count(layout.partial_axes()), *value.shape), np.nan)
    for (here, operand), shard in zip(_parts(mesh, layout, value.shape), shards, strict=True):
        place = found[operand][here]
        mine = shard[tuple(map(slice, place.shape))]
        if (~np.isnan(place) & (place != mine)).any():
            return False
        place[...] = mine
    return bool((found.sum(0) == value).all())
