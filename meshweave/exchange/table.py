"""Compute the exchange between two layouts: the table of pieces that takes any layout to any other in one launch.

The two layouts determine the table. Each rank receives every element of its target that it does not hold itself, once,
from the rank that differs from it only in the coordinates of axes that the source shards dims over: among replicas,
and pending operands, the nearest. No plan can do with fewer bytes. The pieces of one rank are made on demand, from the
digits of its own coordinates: the work is in proportion to them, however many ranks there are.

A message from one rank to another is its pieces in the order of the table, each packed row-major over its extents.
Sender and receiver make it each for itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from meshweave.errors import LayoutError
from meshweave.layout.algebra import Role, Shared, refine_dim
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import (
    Digit,
    Indices,
    coordinate,
    digits,
    dim_addresses,
    has_digits,
    indices_at,
    is_run,
    locate,
    run_at,
    step_of,
)


class Piece(NamedTuple):
    """Describe a strided box that one rank copies from the allocation of another, or from its own. Units are elements.

    peer:    the rank that holds the elements, or, of a piece to send, the rank that wants them.
    extents: of the box, major first; () is one element.
    source:  address of its first element in the allocation of the sender, and its strides.
    target:  the same in the allocation of the receiver.
    """

    peer: int
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
        rows = [_shares(self, dim, False, at) for dim, at in self._at(self.target, rank)]
        first, found = int(self._first(np.array([rank]))[0]), list[Piece]()
        for shares in product(*[row.items() for row in rows]):
            sender = first + sum(offset for offset, _ in shares)
            found += _pieces(sender, [loops for _, loops in shares])
        return tuple(sorted(found, key=lambda piece: (piece.peer, piece.target)))

    def sends(self, rank: int) -> tuple[Piece, ...]:
        """Return the pieces that `rank` has to send to others, by receiver."""
        rows = [_shares(self, dim, True, at) for dim, at in self._at(self.source, rank)]
        peers = self._peers(rank)
        offsets = [self._offsets(self.target, dim, peers) for dim in range(len(rows))]
        wanting = np.ones(len(peers), bool)
        for row, held in zip(rows, offsets, strict=True):
            wanting &= np.isin(held, list(row))
        found = list[Piece]()
        for k in np.flatnonzero(wanting & (peers != rank)).tolist():
            shares = [row[int(held[k])] for row, held in zip(rows, offsets, strict=True)]
            found += _pieces(int(peers[k]), shares)
        return tuple(sorted(found, key=lambda piece: (piece.peer, piece.target)))

    def counts(self, rank: int) -> dict[int, int]:
        """Return the number of elements that come to `rank` from each sender, itself included."""
        found: dict[int, int] = {}
        for piece in self.receives(rank):
            found[piece.peer] = found.get(piece.peer, 0) + piece.size
        return found

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes in which a sender can differ from a receiver."""
        refs = [ref for dim in range(self.source.ndim) for ref in self.source.axes_of(dim)]
        names = {ref.partition(":")[0] for ref in refs}
        return tuple(name for name in self.mesh.names if name in names)

    @property
    def repeats(self) -> int:
        """Return the most ranks that one rank may have to give an element to, itself included.

        They are alike in coordinates that the source or the target tell; each axis is looked at by itself.
        """
        most = 1
        for axis in self.axes:
            ranks = np.arange(self.mesh.size(axis), dtype=np.int64) * self.mesh.stride(axis)
            wanted = [self._offsets(self.target, dim, ranks) for dim in range(self.target.ndim)]
            alike = np.stack([self._first(ranks), *wanted])
            most *= int(np.unique(alike, axis=1, return_counts=True)[1].max())
        for dim, size in enumerate(self.target.local_shape(self.mesh, self.shape)):
            window = self.target.window(dim)
            if window is not None and window[0]:
                most *= max(1, -(-size // window[0]))  # windows that an index is in
        return most

    def _at(self, layout: Layout, rank: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each dim with the coordinates that a rank has on its axes."""
        for dim in range(layout.ndim):
            yield dim, tuple(self.mesh.coordinate(rank, ref) for ref in layout.axes_of(dim))

    def _offsets(self, layout: Layout, dim: int, ranks: Indices) -> Indices:
        """Return what the axes of a dim contribute to the numbers of ranks."""
        found: Indices = np.zeros_like(ranks)
        for ref in layout.axes_of(dim):
            found = found + coordinate(self.mesh, ref, ranks) * self.mesh.stride(ref)
        return found

    def _first(self, ranks: Indices) -> Indices:
        """Return the ranks that differ from these in that they have coordinate 0 on all axes of the source."""
        for dim in range(self.source.ndim):
            ranks = ranks - self._offsets(self.source, dim, ranks)
        return ranks

    def _peers(self, rank: int) -> Indices:
        """Return the ranks that differ from a rank in coordinates of the source's axes alone, in order."""
        found = self._first(np.array([rank], np.int64))
        for dim in range(self.source.ndim):
            for ref in self.source.axes_of(dim):
                steps = np.arange(self.mesh.size(ref), dtype=np.int64) * self.mesh.stride(ref)
                found = (found[:, None] + steps).reshape(-1)
        return np.sort(found)


def _pieces(peer: int, rows: Sequence[tuple["Loop", ...]]) -> Iterator[Piece]:
    """Yield the boxes that are all combinations of one loop of each dim."""
    for loops in product(*rows):
        levels = [level for loop in loops for level in loop.levels if level.times != 1]
        yield Piece(
            peer,
            tuple(level.times for level in levels),
            sum(loop.source for loop in loops),
            tuple(level.source_step for level in levels),
            sum(loop.target for loop in loops),
            tuple(level.target_step for level in levels),
        )


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


Shares = dict[int, tuple[Loop, ...]]
"""What a rank has in common along a dim with others, by what the axes of these contribute to their numbers."""


@lru_cache(maxsize=1 << 9)
def _shares(table: Table, dim: int, sends: bool, at: tuple[int, ...]) -> Shares:
    """Return what others have of the indices of a dim that the coordinates `at` hold.

    sends: they hold them in the source, and the others in the target; else it is the other way round.
    """
    source, target, mesh, shape = table.source, table.target, table.mesh, table.shape
    own, other = (source, target) if sends else (target, source)
    steps = [step_of(layout, mesh, shape, dim) for layout in (source, target)]
    runs = is_run(source, mesh, shape, dim) and is_run(target, mesh, shape, dim)
    if runs and steps[0] is not None and steps[1] is not None:
        return _runs(table, dim, sends, at, (steps[0], steps[1]))
    if (found := _by_digits(table, dim, sends, at)) is not None:
        return found
    index = indices_at(own, mesh, shape, dim, at)
    if other.window(dim) is not None:
        return _in_windows(table, dim, index)
    here = np.flatnonzero(index >= 0)
    coordinates, places = locate(other, mesh, shape, dim, index[here])
    offsets: Indices = np.zeros(len(here), np.int64)
    for ref, values in zip(other.axes_of(dim), coordinates, strict=True):
        offsets = offsets + values * mesh.stride(ref)
    mine = dim_addresses(own, mesh, shape, dim)[here]
    theirs = dim_addresses(other, mesh, shape, dim)[places]
    given, taken = (mine, theirs) if sends else (theirs, mine)
    order = np.lexsort((taken, offsets))
    given, taken, offsets = given[order], taken[order], offsets[order]
    ends = [*np.flatnonzero(np.diff(offsets, append=-1)) + 1]
    return {
        int(offsets[start]): tuple(loops_of(given[start:end], taken[start:end]))
        for start, end in zip([0, *ends], ends)
    }


def _runs(
    table: Table, dim: int, sends: bool, at: tuple[int, ...], steps: tuple[int, int]
) -> Shares:
    """Do the work of `_shares` where both layouts hold runs of indices, from where these begin and end."""
    source, target, mesh, shape = table.source, table.target, table.mesh, table.shape
    own, other = (source, target) if sends else (target, source)
    here = sum(value * mesh.stride(ref) for ref, value in zip(own.axes_of(dim), at))
    low, high = (int(end) for end in run_at(own, mesh, shape, dim, here))
    offsets = _coordinates(other, mesh, dim)
    starts, ends = run_at(other, mesh, shape, dim, offsets)
    begin, end = np.maximum(starts, low), np.minimum(ends, high)
    found: Shares = {}
    for k in np.flatnonzero(begin < end):
        first, count = int(begin[k]), int(end[k] - begin[k])
        mine, theirs = first - low, first - int(starts[k])
        given, taken = (mine, theirs) if sends else (theirs, mine)
        start = given * steps[0], taken * steps[1]
        found[int(offsets[k])] = (Loop(*start, (Level(count, *steps),)),)
    return found


def _in_windows(table: Table, dim: int, index: Indices) -> Shares:
    """Do the work of `_shares` of what a rank of the source sends: `index` is what it holds, others hold windows."""
    mesh, shape = table.mesh, table.shape
    given = dim_addresses(table.source, mesh, shape, dim)
    offsets = _coordinates(table.target, mesh, dim)
    taken = dim_addresses(table.target, mesh, shape, dim)
    found: Shares = {}
    for offset, start, end in zip(offsets, *run_at(table.target, mesh, shape, dim, offsets)):
        here = np.flatnonzero((index >= max(start, 0)) & (index < end))
        here = here[np.argsort(index[here])]
        if len(here):
            found[int(offset)] = tuple(loops_of(given[here], taken[index[here] - start]))
    return found


def _by_digits(table: Table, dim: int, sends: bool, at: tuple[int, ...]) -> Shares | None:
    """Do the work of `_shares` by digits: those of a common refinement, or those of one layout in runs of the other.

    Returns None where there are neither.
    """
    mesh, shape, layouts = table.mesh, table.shape, (table.source, table.target)
    plain = [has_digits(layout, mesh, shape, dim) for layout in layouts]
    own = 0 if sends else 1
    rows = [digits(layout, mesh, shape)[dim] for layout in layouts]
    held = [d.stride for d in rows[own] if d.axis is not None]
    least = sum(value * stride for value, stride in zip(at, held, strict=True))
    if not shape[dim] or (plain[own] and least >= shape[dim]):
        return {}
    try:
        if all(plain):
            shared = refine_dim(*layouts, mesh, shape, dim)
            return _walked(shared, (0, shape[dim]), own, least, (0, 0))
    except LayoutError:
        pass
    for run, layout in ((1, table.target), (0, table.source)):
        step = step_of(layout, mesh, shape, dim)
        if not plain[1 - run] or step is None or not is_run(layout, mesh, shape, dim):
            continue
        whole, ranks = _within_runs(rows[1 - run], mesh, run, step), _coordinates(layout, mesh, dim)
        if run == own:
            named = zip(layout.axes_of(dim), at, strict=True)
            ranks = np.array([sum(value * mesh.stride(ref) for ref, value in named)], np.int64)
        found: Shares = {}
        for rank, low, high in zip(ranks.tolist(), *run_at(layout, mesh, shape, dim, ranks)):
            base = (-int(low) * step * (run == 0), -int(low) * step * (run == 1))
            part = _walked(whole, (int(low), int(high)), own, least, base)
            found |= part if run == own else {rank + none: part[none] for none in part}
        return found
    return None


def _coordinates(layout: Layout, mesh: Mesh, dim: int) -> Indices:
    """Return what each combination of coordinates on the axes of a dim contributes to the numbers of ranks."""
    found: Indices = np.zeros(1, np.int64)
    for ref in layout.axes_of(dim):
        part = np.arange(mesh.size(ref), dtype=np.int64) * mesh.stride(ref)
        found = (found[:, None] + part).reshape(-1)
    return found


def _within_runs(row: Sequence[Digit], mesh: Mesh, run: int, step: int) -> tuple[Shared, ...]:
    """Return the digits of one layout, as shared with the other, number `run`, in which neighbours are `step` apart."""
    found = []
    for digit in row:
        if digit.extent != 1:
            weight = digit.memory if digit.axis is None else mesh.stride(digit.axis)
            roles = [Role(digit.axis is not None, weight)] * 2
            roles[run] = Role(False, digit.stride * step)
            found.append(Shared(digit.extent, digit.stride, *roles))
    return tuple(found)


def _walked(
    shared: Sequence[Shared], span: tuple[int, int], own: int, least: int, base: tuple[int, int]
) -> Shares:
    """Walk the indices in a span digit by digit: those local to both are levels of loops, others choose a loop.

    own: whose digits are fixed, the source's (0) or the target's (1), to those of the index `least`. base: the
    addresses of index 0 in both.
    """
    starts, local = [(0, 0, *base)], list[Shared]()
    for k, digit in enumerate(shared):
        roles = digit.one, digit.other
        if not any(role.device for role in roles):
            local.append(digit)
            continue
        value = least // digit.stride % digit.extent if k else least // digit.stride
        values = range(value, value + 1) if roles[own].device else range(digit.extent)
        to = roles[1 - own].weight if roles[1 - own].device else 0
        steps = [0 if role.device else role.weight for role in roles]
        starts = [
            (offset + v * to, index + v * digit.stride, s + v * steps[0], t + v * steps[1])
            for offset, index, s, t in starts
            for v in values
            if v < digit.extent
        ]
    found = {}
    for offset, index, s, t in starts:
        loops = tuple(_nested(local, span[0] - index, span[1] - index, s, t))
        if loops:
            found[offset] = loops
    return found


def _nested(
    local: Sequence[Shared], low: int, high: int, source: int, target: int,
    levels: tuple[Level, ...] = (),
) -> Iterator[Loop]:  # fmt: skip
    """Yield loops over the values of digits that are local to both, whose index is from low to below high."""
    if not local:
        if low <= 0 < high:
            yield Loop(source, target, levels)
        return
    digit, rest = local[0], local[1:]
    most = sum((inner.extent - 1) * inner.stride for inner in rest)
    cuts = low - most, low, high - most, high  # some of it inside, all, some, none
    ends = [min(max(-(-cut // digit.stride), 0), digit.extent) for cut in cuts]
    first, begin, end, last = ends[0], ends[1], max(ends[1], ends[2]), ends[3]
    parts = [(v, 1) for v in range(first, min(begin, last))]
    parts += [(begin, end - begin)] if begin < end else []
    parts += [(v, 1) for v in range(max(end, first), last)]
    for value, count in parts:
        places = source + value * digit.one.weight, target + value * digit.other.weight
        level = Level(count, digit.one.weight, digit.other.weight)
        inner = (low - value * digit.stride, high - value * digit.stride)
        if count > 1:
            inner = 0, most + 1
        yield from _nested(rest, *inner, *places, (*levels, level) if count > 1 else levels)


def loops_of(given: Indices, taken: Indices) -> Iterator[Loop]:
    """Express pairs of addresses as few nested loops, in order: runs of equal steps, then runs of equal runs."""
    if len(given) == 1:  # as many are
        yield Loop(int(given[0]), int(taken[0]), ())
        return
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
