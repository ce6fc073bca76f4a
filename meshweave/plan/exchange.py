"""Compute the exchange between two layouts: the table of pieces that takes any layout to any other in one launch.

The two layouts determine the table. Each rank receives every element of its target that it does not hold itself, once,
from the rank that differs from it only in the coordinates of axes that the source shards dims over: among replicas,
and pending operands, the nearest. No plan can do with fewer bytes. The pieces of one rank are made on demand.

A message from one rank to another is its pieces in the order of the table, each packed row-major over its extents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

import numpy as np

from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import (
    Indices,
    digits,
    dim_addresses,
    indices_at,
    is_run,
    locate,
    run_at,
)


class Piece(NamedTuple):
    """Describe a strided box that one rank copies from the allocation of another, or from its own. Units are elements.

    sender:  the rank that holds the elements.
    extents: of the box, major first; () is one element.
    source:  address of its first element in the allocation of the sender, and its strides.
    target:  the same in the allocation of the receiver.
    """

    sender: int
    extents: tuple[int, ...]
    source: int
    source_strides: tuple[int, ...]
    target: int
    target_strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of elements in the box."""
        return prod(self.extents)


@dataclass(frozen=True)
class Table:
    """List what every rank sends and receives to get a tensor of `shape` from source to target."""

    source: Layout
    target: Layout
    mesh: Mesh
    shape: tuple[int, ...]

    def receives(self, rank: int) -> tuple[Piece, ...]:
        """Return the pieces that make up the target of `rank`, by sender, including its own."""
        return _receives(self, rank)

    def sends(self, rank: int) -> Iterator[tuple[int, Piece]]:
        """Yield (receiver, piece) for all that `rank` has to send to others, by receiver."""
        for receiver in self.mesh.group(self.axes, rank):
            if receiver != rank:
                for piece in self.receives(receiver):
                    if piece.sender == rank:
                        yield receiver, piece

    def counts(self, rank: int) -> dict[int, int]:
        """Return the number of elements that come to `rank` from each sender, itself included."""
        found: dict[int, int] = {}
        for piece in self.receives(rank):
            found[piece.sender] = found.get(piece.sender, 0) + piece.size
        return found

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes in which a sender can differ from a receiver."""
        refs = [ref for dim in range(self.source.ndim) for ref in self.source.axes_of(dim)]
        names = {ref.partition(":")[0] for ref in refs}
        return tuple(name for name in self.mesh.names if name in names)


class Level(NamedTuple):
    """Repeat a number of `times`, with a step in the source and one in the target."""

    times: int
    source_step: int
    target_step: int


class Loop(NamedTuple):
    """Walk the addresses of a dim from a first one, in the source and in the target, as nested loops."""

    source: int
    target: int
    levels: tuple[Level, ...]


Group = tuple[int, tuple[Loop, ...]]  # offset in ranks of a sender's coordinates, what it holds


@lru_cache(maxsize=1 << 10)
def _receives(table: Table, rank: int) -> tuple[Piece, ...]:
    source, mesh = table.source, table.mesh
    taken = {
        (mesh.stride(ref), mesh.size(ref))
        for dim in range(source.ndim)
        for ref in source.axes_of(dim)
    }
    base = rank - sum(rank // stride % size * stride for stride, size in taken)
    rows = []
    for dim in range(source.ndim):
        at = tuple(mesh.coordinate(rank, ref) for ref in table.target.axes_of(dim))
        rows.append(_groups(table, dim, at))
    pieces = []
    for groups in product(*rows):
        sender = base + sum(offset for offset, _ in groups)
        for loops in product(*[loops for _, loops in groups]):
            levels = [level for loop in loops for level in loop.levels if level.times != 1]
            pieces.append(
                Piece(
                    sender,
                    tuple(level.times for level in levels),
                    sum(loop.source for loop in loops),
                    tuple(level.source_step for level in levels),
                    sum(loop.target for loop in loops),
                    tuple(level.target_step for level in levels),
                )
            )
    return tuple(sorted(pieces, key=lambda piece: (piece.sender, piece.target)))


@lru_cache(maxsize=1 << 14)
def _groups(table: Table, dim: int, at: tuple[int, ...]) -> tuple[Group, ...]:
    """Locate in the source the indices of a dim that the coordinates `at` hold in the target."""
    source, target, mesh, shape = table.source, table.target, table.mesh, table.shape
    steps = [_step(layout, mesh, shape, dim) for layout in (source, target)]
    runs = is_run(source, mesh, shape, dim) and is_run(target, mesh, shape, dim)
    if runs and steps[0] is not None and steps[1] is not None:
        return _runs(table, dim, at, (steps[0], steps[1]))
    index = indices_at(target, mesh, shape, dim, at)
    here = np.flatnonzero(index >= 0)
    coordinates, places = locate(source, mesh, shape, dim, index[here])
    offsets: Indices = np.zeros(len(here), np.int64)
    for ref, values in zip(source.axes_of(dim), coordinates, strict=True):
        offsets = offsets + values * mesh.stride(ref)
    given = dim_addresses(source, mesh, shape, dim)[places]
    taken = dim_addresses(target, mesh, shape, dim)[here]
    found = []
    for offset in np.unique(offsets):
        mine = offsets == offset
        order = np.argsort(taken[mine], kind="stable")
        found.append((int(offset), tuple(_loops(given[mine][order], taken[mine][order]))))
    return tuple(found)


def _step(layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int) -> int | None:
    """Return the one distance in memory between neighbours along a dim; None when there are several."""
    local = [d for d in digits(layout, mesh, shape)[dim] if d.axis is None and d.extent != 1]
    for major, minor in pairwise(local):
        if major.memory != minor.memory * minor.extent:
            return None
    return local[-1].memory if local else 1


def _runs(table: Table, dim: int, at: tuple[int, ...], steps: tuple[int, int]) -> tuple[Group, ...]:
    """Do the work of `_groups` where both layouts hold runs of indices, from where these begin and end."""
    source, target, mesh, shape = table.source, table.target, table.mesh, table.shape
    here = sum(value * mesh.stride(ref) for ref, value in zip(target.axes_of(dim), at))
    low, high = (int(end) for end in run_at(target, mesh, shape, dim, here))
    offsets: Indices = np.zeros(1, np.int64)
    for ref in source.axes_of(dim):
        part = np.arange(mesh.size(ref), dtype=np.int64) * mesh.stride(ref)
        offsets = (offsets[:, None] + part).reshape(-1)
    starts, ends = run_at(source, mesh, shape, dim, offsets)
    begin, end = np.maximum(starts, low), np.minimum(ends, high)
    found = []
    for k in np.flatnonzero(begin < end):
        first, count = int(begin[k]), int(end[k] - begin[k])
        start = (first - int(starts[k])) * steps[0], (first - low) * steps[1]
        found.append((int(offsets[k]), (Loop(*start, (Level(count, *steps),)),)))
    return tuple(found)


def _loops(given: Indices, taken: Indices) -> Iterator[Loop]:
    """Express pairs of addresses as few nested loops: runs of equal steps, then runs of equal runs."""
    none: tuple[Level, ...] = ()
    pending = [(given, taken, _steps_of(given, taken), none)]
    while pending:
        given, taken, steps, levels = pending.pop()
        while len(given) > 1:
            run = _first_run(steps)
            whole = _whole_runs(steps, run, len(given))
            end = whole * run
            if end < len(given):
                pending.append((given[end:], taken[end:], steps[:, end:], levels))
            levels = (Level(run, int(steps[0, 0]), int(steps[1, 0])), *levels)
            given, taken = given[:end:run], taken[:end:run]
            steps = _steps_of(given, taken)
        yield Loop(int(given[0]), int(taken[0]), levels)


def _steps_of(given: Indices, taken: Indices) -> Indices:
    """Return the steps from each pair of addresses to the next."""
    return np.stack([np.diff(given), np.diff(taken)])


_WINDOW = 64  # how far to look first: the work is in proportion to what is found


def _first_run(steps: Indices) -> int:
    """Count the addresses, from the start, that lie at equal steps."""
    width = _WINDOW
    while True:
        breaks = np.flatnonzero((steps[:, :width] != steps[:, :1]).any(0))
        if len(breaks):
            return int(breaks[0]) + 1
        if width >= steps.shape[1]:
            return int(steps.shape[1]) + 1
        width *= 4


def _whole_runs(steps: Indices, run: int, count: int) -> int:
    """Count the runs of that length, from the start, that take the steps of the first one."""
    every, looked = count // run, _WINDOW
    while True:
        some = min(every, looked)
        inside = np.concatenate([steps[:, : some * run], steps[:, :1]], axis=1)[:, : some * run]
        inside = inside.reshape(2, some, run)[:, :, : run - 1]
        others = np.flatnonzero((inside != steps[:, :1, None]).any((0, 2)))
        if len(others) or some == every:
            return int(others[0]) if len(others) else every
        looked *= 4


def busiest(table: Table, ranks: Sequence[int] | None = None) -> int:
    """Return the number of elements that the busiest of the ranks (by default of all) receives from others."""
    every = range(table.mesh.nranks) if ranks is None else ranks
    return max(
        sum(n for sender, n in table.counts(rank).items() if sender != rank) for rank in every
    )
