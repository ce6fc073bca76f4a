"""The moves of redistribution: from a layout in blocks, every layout that one exact step leads to.

A move is only offered where the flat rule for uneven sizes lets the local pieces fall exactly into
place. Blocks of a dim of n over axes of s ranks are c = ceil(n / s) long; cut further over g ranks
they are d = ceil(n / (s * g)). Coordinate k of the s starts at k * c, its pieces would have to
start at k * g * d: the same place for all k only if c == g * d, or s == 1, or n <= 1 (all there is
lies at coordinate 0). Joining pieces is cutting them read backwards: the same condition.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod
from typing import NamedTuple

from meshweave.layout.layout import Layout, Partial
from meshweave.layout.mesh import Mesh

Axes = tuple[str, ...]
MAX_REORDERED = 4  # axes of one dim; of more, only neighbours swap in one step


class State(NamedTuple):
    """A layout in blocks without its axes of size 1, which hold everything and reduce nothing."""

    dims: tuple[Axes, ...]
    partial: tuple[tuple[str, Axes], ...]

    @staticmethod
    def of(layout: Layout, mesh: Mesh) -> "State":
        """Raises LayoutError when the layout is not in blocks."""

        def wide(axes: Axes) -> Axes:
            return tuple(name for name in axes if mesh.size(name) > 1)

        pending = tuple((p.kind, wide(p.axes)) for p in layout.partial)
        dims = tuple(map(wide, layout.block_axes()))
        return State(dims, _normal(pending))

    def layout(self) -> Layout:
        """The Layout it stands for."""
        return Layout.blocks(self.dims, [Partial(kind, axes) for kind, axes in self.partial])

    def with_dim(self, dim: int, axes: Axes) -> "State":
        return State((*self.dims[:dim], axes, *self.dims[dim + 1 :]), self.partial)


class Move(NamedTuple):
    """A step towards `state`. unit: elements, as `cost.received` takes them for this op."""

    op: str
    axes: Axes
    state: State
    unit: int
    dim: int | None = None
    split_dim: int | None = None
    concat_dim: int | None = None
    kind: str | None = None


class Moves:
    """All moves for tensors of one shape on one mesh, towards `target`.

    What leads nowhere near the target is left out: dims are cut only over axes of the target, axes
    are swapped against unused ones only where the target has those, and reductions are made pending
    only as the target has them.
    """

    def __init__(self, mesh: Mesh, shape: Sequence[int], target: State) -> None:
        self.mesh = mesh
        self.shape = tuple(shape)
        self.target = target
        self.sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes}
        self.wanted = [axis for axes in target.dims for axis in axes]

    def count(self, axes: Axes) -> int:
        """Ranks along `axes`."""
        sizes = self.sizes
        return prod([sizes[name] for name in axes])

    def local_shape(self, state: State) -> list[int]:
        """Shape of the allocation in that layout."""
        return [-(-n // self.count(axes)) for n, axes in zip(self.shape, state.dims, strict=True)]

    def fits(self, dim: int, held: Axes, cut: Axes) -> bool:
        """Whether pieces over `held` then `cut` lie within those over `held`: see this file's
        docstring.
        """
        n, s = self.shape[dim], self.count(held)
        if s == 1 or n <= 1:
            return True
        g = self.count(cut)
        return -(-n // s) == g * -(-n // (s * g))

    def of(self, state: State) -> Iterator[Move]:
        """Every move from `state`, in a fixed order."""
        local = self.local_shape(state)
        if state.partial != self.target.partial:
            yield from self._reductions(state, local)
            yield from self._pendings(state, local)
        yield from self._gathers(state, local)
        yield from self._exchanges(state, local)
        yield from self._slices(state, local)
        yield from self._permutes(state, local)

    def _gathers(self, state: State, local: list[int]) -> Iterator[Move]:
        for dim, axes in enumerate(state.dims):
            for keep in range(len(axes)):
                if self.fits(dim, axes[:keep], axes[keep:]):
                    after = state.with_dim(dim, axes[:keep])
                    yield Move("all_gather", axes[keep:], after, prod(local), dim=dim)

    def _exchanges(self, state: State, local: list[int]) -> Iterator[Move]:
        for concat, axes in enumerate(state.dims):
            for keep in range(len(axes)):
                moved = axes[keep:]
                if not self.fits(concat, axes[:keep], moved):
                    continue
                for split, held in enumerate(state.dims):
                    if split != concat and self.fits(split, held, moved):
                        after = state.with_dim(concat, axes[:keep]).with_dim(split, held + moved)
                        # A block is cut along `split`; the other dims still have their old sizes.
                        unit = prod(local[:split]) * prod(local[split + 1 :])
                        unit *= -(-local[split] // self.count(moved))
                        yield Move(
                            "all_to_all", moved, after, unit, split_dim=split, concat_dim=concat
                        )

    def _slices(self, state: State, local: list[int]) -> Iterator[Move]:
        used = {a for axes in state.dims for a in axes} | {a for _, p in state.partial for a in p}
        free = [axis for axis in self.wanted if axis not in used]
        for dim, held in enumerate(state.dims):
            for cut in self._appended(dim, held, free):
                if self.fits(dim, held, cut):
                    after = state.with_dim(dim, held + cut)
                    yield Move("all_slice", cut, after, prod(self.local_shape(after)), dim=dim)

    def _appended(self, dim: int, held: Axes, free: Sequence[str]) -> list[Axes]:
        """What to add to a dim: each free axis, or at once all that the target has after `held`."""
        rows: list[Axes] = [(axis,) for axis in free]
        rest = self.target.dims[dim][len(held) :]
        if len(rest) > 1 and self.target.dims[dim] == held + rest and set(rest) <= set(free):
            rows.append(rest)
        return rows

    def _reductions(self, state: State, local: list[int]) -> Iterator[Move]:
        if not state.partial:
            return
        kind, axes = state.partial[0]  # reductions happen in order
        for dim, held in enumerate(state.dims):
            rows = self._appended(dim, held, axes)
            for row in rows if len(axes) == 1 else [*rows, axes]:
                if self.fits(dim, held, row):
                    after = _reduced(state, row).with_dim(dim, held + row)
                    unit = prod(self.local_shape(after))
                    yield Move("reduce_scatter", row, after, unit, dim=dim, kind=kind)
        for row in [(axis,) for axis in axes] + ([axes] if len(axes) > 1 else []):
            yield Move("all_reduce", row, _reduced(state, row), prod(local), kind=kind)

    def _pendings(self, state: State, local: list[int]) -> Iterator[Move]:
        """Make a reduction pending: innermost, where it reads operands before any other reduction
        does.
        """
        want, have = self.target.partial, state.partial
        held = {axis for axes in state.dims for axis in axes}
        for at, (kind, axes) in enumerate(want):
            added: Axes = ()
            if want[at + 1 :] == have:
                added = axes
            elif have and have[0][0] == kind and want[at + 1 :] == have[1:]:
                added = tuple(axis for axis in axes if axis not in have[0][1])
                if len(added) + len(have[0][1]) != len(axes):
                    continue
            if added and not held & set(added):
                after = State(state.dims, _normal(((kind, added), *have)))
                yield Move("local", added, after, prod(local), kind=kind)

    def _permutes(self, state: State, local: list[int]) -> Iterator[Move]:
        seen = {state}
        for after in self._rearranged(state):
            if after not in seen:
                seen.add(after)
                yield Move("permute", self._moved(state, after), after, prod(local))

    def _rearranged(self, state: State) -> Iterator[State]:
        """The same blocks on other ranks: the target, reordered dims, a wanted axis for another."""
        target = self.target
        if self._same_blocks(state, target):
            yield target
        used = {a for axes in state.dims for a in axes} | {a for _, p in state.partial for a in p}
        for dim, axes in enumerate(state.dims):
            if len(axes) <= MAX_REORDERED:
                for row in permutations(axes):
                    yield state.with_dim(dim, row)
            else:
                for at in range(len(axes) - 1):
                    swapped = (axes[at + 1], axes[at])
                    yield state.with_dim(dim, axes[:at] + swapped + axes[at + 2 :])
            for new in target.dims[dim]:
                for at, old in enumerate(axes):
                    if new not in used and self.sizes[new] == self.sizes[old]:
                        yield state.with_dim(dim, (*axes[:at], new, *axes[at + 1 :]))

    def _same_blocks(self, one: State, other: State) -> bool:
        kinds = [kind for kind, _ in one.partial] == [kind for kind, _ in other.partial]
        return kinds and all(
            self.count(mine) == self.count(its)
            for mine, its in zip(_rows(one), _rows(other), strict=True)
        )

    def _moved(self, one: State, other: State) -> Axes:
        """The axes along which a permute between the two moves data, in the order of the mesh."""
        rows = zip(_rows(one), _rows(other), strict=True)
        changed = {axis for mine, its in rows if mine != its for axis in mine + its}
        return tuple(axis for axis in self.mesh.names if axis in changed)

    def sources(self, one: State, other: State) -> tuple[int, ...]:
        """For each member over the moved axes the member it receives from; who has its block keeps
        it.
        """
        axes = self._moved(one, other)
        have, want = [
            [tuple(self._index(row, axes, k) for row in rows) for k in range(self.count(axes))]
            for rows in self._changed_rows(one, other)
        ]
        sources = {k: k for k, block in enumerate(want) if have[k] == block}
        givers: dict[tuple[int, ...], list[int]] = {}
        for k in reversed(range(len(have))):
            if k not in sources:
                givers.setdefault(have[k], []).append(k)
        for k, block in enumerate(want):
            if k not in sources:
                sources[k] = givers[block].pop()
        return tuple(sources[k] for k in range(len(want)))

    def _changed_rows(self, one: State, other: State) -> tuple[list[Axes], list[Axes]]:
        rows = [pair for pair in zip(_rows(one), _rows(other), strict=True) if pair[0] != pair[1]]
        return [mine for mine, _ in rows], [its for _, its in rows]

    def _index(self, row: Axes, axes: Axes, member: int) -> int:
        """Linear coordinate over `row` of a member of a group over `axes`."""
        coordinates = {}
        for axis in reversed(axes):
            member, coordinates[axis] = divmod(member, self.sizes[axis])
        index = 0
        for axis in row:
            index = index * self.sizes[axis] + coordinates[axis]
        return index

    def certain(self, source: State) -> list[Move]:
        """A path that is always there: reduce, gather every dim, cut every dim, make pending."""
        path: list[Move] = []
        state, target = source, self.target
        while state.partial:
            kind, axes = state.partial[0]
            after = _reduced(state, axes)
            path.append(Move("all_reduce", axes, after, prod(self.local_shape(state)), kind=kind))
            state = after
        for dim, axes in enumerate(state.dims):
            if axes:
                unit = prod(self.local_shape(state))
                state = state.with_dim(dim, ())
                path.append(Move("all_gather", axes, state, unit, dim=dim))
        for dim, axes in enumerate(target.dims):
            if axes:
                state = state.with_dim(dim, axes)
                unit = prod(self.local_shape(state))
                path.append(Move("all_slice", axes, state, unit, dim=dim))
        for kind, axes in reversed(target.partial):
            state = State(state.dims, ((kind, axes), *state.partial))
            path.append(Move("local", axes, state, prod(self.local_shape(state)), kind=kind))
        return path


def _rows(state: State) -> list[Axes]:
    return [*state.dims, *(axes for _, axes in state.partial)]


def _reduced(state: State, axes: Axes) -> State:
    kind, pending = state.partial[0]
    rest = tuple(axis for axis in pending if axis not in axes)
    return State(state.dims, _normal(((kind, rest), *state.partial[1:])))


def _normal(pending: tuple[tuple[str, Axes], ...]) -> tuple[tuple[str, Axes], ...]:
    """As Layout has it: nothing without axes, neighbours of one kind as one, axes sorted."""
    done: list[tuple[str, Axes]] = []
    for kind, axes in pending:
        if axes and done and done[-1][0] == kind:
            axes = done.pop()[1] + axes
        if axes:
            done.append((kind, tuple(sorted(axes))))
    return tuple(done)
