"""Bound from below what any plan must receive: elements of its target block that a rank does not hold."""

from collections.abc import Sequence
from itertools import product
from math import prod

from meshweave.layout.algebra import pending
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.moves import Axes, Moves, State
from meshweave.plan.overlap import overlap

SAMPLED_RANKS = 8  # how many ranks the estimate of a search looks at
GROUPED_RANKS = 64  # on larger meshes, the bound is 0 for targets with pending reductions

Interval = tuple[int, int]
Box = tuple[Interval, ...]
Rows = tuple[Axes, ...]


def lower_bound(source: Layout, target: Layout, mesh: Mesh, shape: Sequence[int]) -> int:
    """Return a number of elements that some rank receives in any plan from source to target.

    What a rank of the target does not hold has to come in; with a source that has pending reductions that is
    everything. And an element with P pending operands costs P - 1 messages until a first rank has all of them, and one
    for each of the O - 1 others that want it, so some rank receives at least (P + O - 2) / ranks of what any rank
    wants: the tensor, or what its windows cover. Where reductions are pending in the target, see `_grouped`.
    """
    if pending(target, mesh):
        return _grouped(source, target, mesh, tuple(shape))
    found = overlap(source.without_partial(), target, mesh, tuple(shape))
    reduced = pending(source, mesh)
    if not reduced:
        return found.missing
    operands = prod(mesh.size(axis) for _, axes in reduced for axis in axes)
    parts = prod(mesh.size(ref) for dim in range(target.ndim) for ref in target.axes_of(dim))
    messages = operands + mesh.nranks // parts - 2
    covered = prod(_covered(target, mesh, shape, dim) for dim in range(target.ndim))
    return max(found.wanted, -(-covered * messages // mesh.nranks))


def _covered(layout: Layout, mesh: Mesh, shape: Sequence[int], dim: int) -> int:
    """Return the number of indices of a dim that lie on any rank: all of them, but for a dim in windows."""
    window = layout.window(dim)
    if window is None:
        return shape[dim]
    step, low = window
    size = layout.local_shape(mesh, shape)[dim]
    covered = end = 0
    for coordinate in range(mesh.axis_count(layout.axes_of(dim))):
        start = max(end, step * coordinate + low)
        end = min(shape[dim], max(end, step * coordinate + low + size))
        covered += max(0, end - start)
    return covered


def _grouped(source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]) -> int:
    """Return the bound where reductions are pending in the target; 0 for large meshes and layouts not in blocks.

    Take the ranks G that share a block of the target: the g ranks over its pending axes. Whatever is in the block and
    not somewhere in G has to come in; with a source that has pending reductions, each element of which G lacks some
    operand. The pieces that G holds are counted as if they never overlapped, which can only make the bound smaller.
    """
    states = [State.of(layout, mesh, shape) for layout in (source, target)]
    one, other = states
    if one is None or other is None or mesh.nranks > GROUPED_RANKS:
        return 0
    moves = Moves(mesh, shape, other)
    used = {axis.partition(":")[0] for state in (one, other) for axis in _axes(state)}
    idle = [axis for axis in mesh.names if axis not in used]
    within = _pending(other)
    worst = 0
    for rank in range(mesh.nranks):
        if mesh.group_index([*idle, *within], rank) == 0:
            group = mesh.group(within, rank)
            box = _box(moves, other, rank)
            lacking = prod(high - low for low, high in box) - _held(moves, one, group, box)
            worst = max(worst, -(-lacking // len(group)))
    return worst


def _held(moves: Moves, source: State, group: tuple[int, ...], box: Box) -> int:
    """Bound from above the elements of `box` of which the group holds every operand."""
    pending = _pending(source)
    operands: dict[int, set[Box]] = {
        index: set() for index in range(moves.mesh.axis_count(pending))
    }
    for rank in group:
        part = _overlap(_box(moves, source, rank), box)
        operands[moves.mesh.group_index(pending, rank)].add(part)
    counts = [
        sum(prod(high - low for low, high in part) for part in parts) for parts in operands.values()
    ]
    return min(prod(high - low for low, high in box), *counts)


def _pending(state: State) -> Axes:
    return tuple(axis for _, axes in state.partial for axis in axes)


def _axes(state: State) -> Axes:
    return tuple(axis for axes in state.dims for axis in axes) + _pending(state)


def _box(moves: Moves, state: State, rank: int) -> Box:
    """Return the indices that a rank holds, as (from, to) for each dim."""
    box = []
    for n, axes in zip(moves.shape, state.dims, strict=True):
        chunk = -(-n // moves.mesh.axis_count(axes))
        low = min(n, moves.mesh.group_index(axes, rank) * chunk)
        box.append((low, min(n, low + chunk)))
    return tuple(box)


def _overlap(one: Box, other: Box) -> Box:
    lows = [max(a, b) for (a, _), (b, _) in zip(one, other, strict=True)]
    highs = [min(a, b) for (_, a), (_, b) in zip(one, other, strict=True)]
    return tuple((low, max(low, high)) for low, high in zip(lows, highs, strict=True))


class Missing:
    """Compute the same bound, quickly, for every layout on the way to one target, over a few fixed ranks.

    The maximum over any ranks is a bound; using the same ranks for all layouts keeps it consistent from step to step.
    Where reductions are pending in the target, the bound is that of `_grouped`, with what a group holds counted dim by
    dim, as if all of it fitted together.
    """

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        ranks = _sample(moves.mesh)
        self.places = [
            {name: moves.mesh.coordinate(rank, name) for name in moves.names} for rank in ranks
        ]
        self.boxes = [_box(moves, moves.target, rank) for rank in ranks]
        self.sizes = [prod(high - low for low, high in box) for box in self.boxes]
        self.total = prod(moves.shape)
        self.owners = moves.mesh.nranks // moves.count(tuple(moves.wanted))
        self.within = frozenset(_pending(moves.target))
        self.group = moves.count(_pending(moves.target))
        self.known: dict[tuple[Rows, frozenset[str]], int] = {}

    def elements(self, state: State) -> int:
        """Return a number of elements that some rank still has to receive."""
        if state.partial and not self.within:
            operands = self.moves.count(_pending(state))
            messages = self.total * (operands + self.owners - 2)
            return max(*self.sizes, -(-messages // self.moves.mesh.nranks))
        if not self.within.issuperset(_pending(state)):
            return -(-max(self.sizes) // self.group)  # each element lacks an operand in each group
        return -(-self._lacking(state.dims, self.within) // self.group)

    def of_dims(self, state: State) -> int:
        """Return the elements of its part of the target's dims that some rank lacks, whatever is pending."""
        return self._lacking(state.dims, frozenset())

    def _lacking(self, dims: Rows, within: frozenset[str]) -> int:
        """Return the largest number of elements of a part of the target that the ranks along `within` lack."""
        found = self.known.get((dims, within))
        if found is None:
            found = 0
            chunks = self.moves.local_lengths(dims)
            for place, box, size in zip(self.places, self.boxes, self.sizes, strict=True):
                held = 1
                for axes, chunk, ends in zip(dims, chunks, box, strict=True):
                    held *= self._held(axes, chunk, ends, place, within)
                found = max(found, size - held)
            self.known[dims, within] = found
        return found

    def _held(
        self, axes: Axes, chunk: int, ends: Interval, place: dict[str, int], within: frozenset[str]
    ) -> int:
        """Bound from above how many indices of a dim, of those between `ends`, the ranks hold."""
        sizes = self.moves.sizes
        first = last = 0
        pieces = 1
        for axis in axes:
            size, at = sizes[axis], place[axis]
            if axis in within:
                first, last, pieces = first * size, last * size + size - 1, pieces * size
            else:
                first, last = first * size + at, last * size + at
        span = min(ends[1], (last + 1) * chunk) - max(ends[0], first * chunk)
        return max(0, min(span, pieces * chunk))


def _sample(mesh: Mesh) -> list[int]:
    """Return all ranks of a small mesh; for a large one, those at the ends and middles of its axes."""
    if mesh.nranks <= SAMPLED_RANKS:
        return list(range(mesh.nranks))
    ends = [sorted({0, axis_size // 2, axis_size - 1}) for axis_size in map(mesh.size, mesh.names)]
    corners = [mesh.rank_of(dict(zip(mesh.names, at, strict=True))) for at in product(*ends)]
    return corners[:: -(-len(corners) // SAMPLED_RANKS)]
