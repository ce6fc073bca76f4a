"""List the moves of redistribution: from a layout in blocks, every layout that one exact step leads to.

A move is only offered where the flat rule for uneven sizes lets the local pieces fall exactly into place. Blocks of a
dim of n over axes of s ranks are c = ceil(n / s) long; cut further over g ranks they are d = ceil(n / (s * g)).
Coordinate k of the s starts at k * c, its pieces would have to start at k * g * d: the same place for all k only if
c == g * d, or s == 1, or n <= 1 (then everything lies at coordinate 0). Joining pieces is cutting them read backwards,
under the same condition.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from math import prod
from typing import NamedTuple

import numpy as np

from meshweave.layout.algebra import block_axes, merged, pending
from meshweave.layout.layout import AxisFactor, Layout, Partial
from meshweave.layout.mesh import Mesh
from meshweave.plan.overlap import overlap
from meshweave.plan.steps import OPS

Axes = tuple[str, ...]
MAX_REORDERED = 4  # axes of one dim; among more, only neighbours swap in one step


class State(NamedTuple):
    """Hold a layout in blocks without its axes of size 1, which hold everything and reduce nothing."""

    dims: tuple[Axes, ...]
    partial: tuple[tuple[str, Axes], ...]

    @staticmethod
    def of(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> "State | None":
        """Return what the layout amounts to on this shape; None when that is not in blocks."""
        dims = block_axes(layout, mesh, shape)
        if dims is None:
            return None
        return State(tuple(tuple(whole_axes(axes, mesh)) for axes in dims), pending(layout, mesh))

    def layout(self, mesh: Mesh) -> Layout:
        """Return the Layout that the state describes."""
        partial = [Partial(kind, axes) for kind, axes in self.partial]
        if not any(":" in name for axes in self.dims for name in axes):
            return Layout.blocks(self.dims, partial)
        dims = [tuple(map(axis_factor, whole_axes(axes, mesh))) for axes in self.dims]
        return Layout(tuple(dims), tuple(partial))

    def with_dim(self, dim: int, axes: Axes) -> "State":
        """Return the state with `dim` cut over `axes`."""
        return State((*self.dims[:dim], axes, *self.dims[dim + 1 :]), self.partial)


class Move(NamedTuple):
    """Describe a step towards `state`. unit: elements, as `cost.received` takes them for this op.

    senders: for an exchange, the largest number of ranks that send to one rank.
    own:     for an exchange, the elements of its target that a rank already has.
    """

    op: str
    axes: Axes
    state: State
    unit: int
    dim: int | None = None
    split_dim: int | None = None
    concat_dim: int | None = None
    kind: str | None = None
    senders: int = 0
    own: int = 0


class Moves:
    """Offer all moves for tensors of one shape on one mesh, towards `target`.

    What leads nowhere near the target is left out. Dims are cut only over axes of the target; while something moves,
    also over those for which the target has reductions pending (pieces can be embedded); and, while something must be
    reduced, over idle axes, which reduces the work on each rank. Axes are swapped against unused ones only where the
    target has those, and reductions are made pending only as the target has them.
    """

    def __init__(
        self,
        mesh: Mesh,
        shape: Sequence[int],
        target: State,
        names: Axes | None = None,
        ops: Sequence[str] = OPS,
    ) -> None:
        """Offer moves towards `target`.

        names: the axes, or sub-axes, that states are made of; None: the axes of the mesh.
        """
        self.mesh = mesh
        self.shape = tuple(shape)
        self.target = target
        self.names = mesh.names if names is None else names
        self.ops = frozenset(ops)
        self.sizes = {name: mesh.size(name) for name in self.names}
        self.wanted = [axis for axes in target.dims for axis in axes]
        self.embedded: list[str] = []
        if "embed" in self.ops:
            self.embedded = [a for kind, axes in target.partial if kind != "avg" for a in axes]
        self._locals: dict[tuple[Axes, ...], list[int]] = {}
        self._fits: dict[tuple[int, Axes, Axes], bool] = {}

    def count(self, axes: Axes) -> int:
        """Return the number of ranks along `axes`."""
        sizes = self.sizes
        return prod([sizes[name] for name in axes])

    def local_shape(self, state: State) -> list[int]:
        """Return the shape of the allocation in that layout."""
        return self.local_lengths(state.dims)

    def local_lengths(self, dims: tuple[Axes, ...]) -> list[int]:
        """Return the length of the pieces of each dim over these axes."""
        found = self._locals.get(dims)
        if found is None:
            found = [-(-n // self.count(axes)) for n, axes in zip(self.shape, dims, strict=True)]
            self._locals[dims] = found
        return found

    def fits(self, dim: int, held: Axes, cut: Axes) -> bool:
        """Tell whether pieces over `held` then `cut` lie within those over `held`: see this file's docstring."""
        key = (dim, held, cut)
        found = self._fits.get(key)
        if found is None:
            n, s = self.shape[dim], self.count(held)
            found = s == 1 or n <= 1
            if not found:
                g = self.count(cut)
                found = -(-n // s) == g * -(-n // (s * g))
            self._fits[key] = found
        return found

    def of(self, state: State) -> Iterator[Move]:
        """Yield every move from `state` except exchanges, in a fixed order."""
        local = self.local_shape(state)
        if self._may_reduce(state):
            yield from self._reductions(state, local)
            yield from self._pendings(state, local)
        yield from self._gathers(state, local)
        yield from self._exchanges(state, local)
        yield from self._slices(state, local)
        yield from self._permutes(state, local)

    def _may_reduce(self, state: State) -> bool:
        """Tell whether reductions may be done or made pending."""
        return state.partial != self.target.partial

    def exchanged(self, state: State) -> State | None:
        """Return what an exchange leads to; None where there is nothing to do or a pending axis is in the way."""
        after = State(self.target.dims, state.partial)
        held = {axis for _, axes in state.partial for axis in axes}
        return None if after == state or held & set(self.wanted) else after

    def exchange(self, state: State) -> Move | None:
        """Return the exchange that gives every dim its target; a relayout where no rank misses anything.

        Returns None where a pending axis is in the way.
        """
        after = self.exchanged(state)
        if after is None:
            return None
        plain = [s.layout(self.mesh).without_partial() for s in (state, after)]
        found = overlap(plain[0], plain[1], self.mesh, self.shape)
        whole = prod(self.local_shape(after))
        if ("exchange" if found.at_most else "relayout") not in self.ops:
            return None
        if not found.at_most:
            return Move("relayout", (), after, whole)
        own = whole - found.at_most
        return Move("exchange", found.axes, after, found.at_most, senders=found.senders, own=own)

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
        free = self._free(state)
        for dim, held in enumerate(state.dims):
            for cut in self._appended(dim, held, free):
                if self.fits(dim, held, cut):
                    after = state.with_dim(dim, held + cut)
                    yield Move("all_slice", cut, after, prod(self.local_shape(after)), dim=dim)

    def _unused(self, state: State) -> list[str]:
        """Return the axes over which no dim is cut and nothing is pending."""
        used = {axis for axes in _rows(state) for axis in axes}
        return [axis for axis in self.names if axis not in used]

    def _free(self, state: State) -> list[str]:
        """Return the axes that a dim may be cut over, those of the target first."""
        unused = self._unused(state)
        free = [axis for axis in self.wanted if axis in unused]
        if state.partial:  # over idle axes too: replicas then share the work of reducing
            return free + [axis for axis in unused if axis not in free]
        rows = zip(state.dims, self.target.dims, strict=True)
        if all(want[: len(have)] == have for have, want in rows):  # nothing has to be received
            return free
        return free + [axis for axis in self.embedded if axis in unused]

    def _appended(self, dim: int, held: Axes, free: Sequence[str]) -> list[Axes]:
        """Return what may be added to a dim: each free axis, or at once all that the target has after `held`."""
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
        for row in self._groups(axes):
            yield Move("all_reduce", row, _reduced(state, row), prod(local), kind=kind)

    def _groups(self, axes: Axes) -> list[Axes]:
        """Return the groups of pending axes that one reduction may handle: each alone, then all."""
        return [(axis,) for axis in axes] + ([axes] if len(axes) > 1 else [])

    def _pendings(self, state: State, local: list[int]) -> Iterator[Move]:
        """Yield moves that make a reduction pending, innermost: it reads operands before any other reduction does.

        Over axes that no dim is cut over, all but one rank take the neutral element; over those at the end of a dim,
        every rank embeds its piece in it.
        """
        want, have = self.target.partial, state.partial
        held = {axis for axes in state.dims for axis in axes}
        for at, (kind, axes) in enumerate(want):
            added = axes if want[at + 1 :] == have else ()
            if have and have[0][0] == kind and want[at + 1 :] == have[1:]:
                added = tuple(axis for axis in axes if axis not in have[0][1])
                if len(added) + len(have[0][1]) != len(axes):
                    continue
            free = tuple(axis for axis in added if axis not in held)
            if free:
                after = State(state.dims, merged(((kind, free), *have)))
                yield Move("local", free, after, prod(local), kind=kind)
            if "embed" in self.ops and kind != "avg":
                yield from self._embeds(state, kind, set(added))

    def _embeds(self, state: State, kind: str, added: set[str]) -> Iterator[Move]:
        for dim, axes in enumerate(state.dims):
            for keep in reversed(range(len(axes))):
                cut = axes[keep:]
                if cut[0] not in added:
                    break
                if self.fits(dim, axes[:keep], cut):
                    dims = state.with_dim(dim, axes[:keep]).dims
                    after = State(dims, merged(((kind, cut), *state.partial)))
                    unit = prod(self.local_shape(after))
                    yield Move("embed", cut, after, unit, dim=dim, kind=kind)

    def _permutes(self, state: State, local: list[int]) -> Iterator[Move]:
        seen = {state}
        for after in self._rearranged(state):
            if after not in seen:
                seen.add(after)
                yield Move("permute", self._moved(state, after), after, prod(local))

    def _rearranged(self, state: State) -> Iterator[State]:
        """Yield the same blocks on other ranks: the target, reordered dims, a wanted axis in place of another."""
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
        """Return the axes along which a permute between the two moves data, in the order of the mesh."""
        rows = zip(_rows(one), _rows(other), strict=True)
        changed = {axis for mine, its in rows if mine != its for axis in mine + its}
        return tuple(axis for axis in self.names if axis in changed)

    def sources(self, one: State, other: State) -> tuple[int, ...]:
        """Return, for each member over the moved axes, the member it receives from.

        A member that has the block it wants keeps it; among those that want another, the first receives from the first
        that has it to give.
        """
        axes = self._moved(one, other)
        sizes = [self.sizes[axis] for axis in axes]
        members = np.arange(prod(sizes))
        digits = dict(zip(axes, np.unravel_index(members, sizes), strict=True))
        rows = [pair for pair in zip(_rows(one), _rows(other), strict=True) if pair[0] != pair[1]]
        have, want = np.zeros_like(members), np.zeros_like(members)
        for held, wanted in rows:
            for axis in held:
                have = have * self.sizes[axis] + digits[axis]
            for axis in wanted:
                want = want * self.sizes[axis] + digits[axis]
        moved = np.flatnonzero(have != want)
        givers = moved[np.argsort(have[moved], kind="stable")]
        members[moved[np.argsort(want[moved], kind="stable")]] = givers
        return tuple(members.tolist())

    def certain(self, source: State) -> list[Move]:
        """Return a path that always exists: reduce, gather every dim, cut every dim, make pending."""
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
    kind, every = state.partial[0]
    rest = tuple(axis for axis in every if axis not in axes)
    return State(state.dims, merged(((kind, rest), *state.partial[1:])))


def axis_factor(ref: str) -> AxisFactor:
    """Return the factor of an axis or sub-axis given by its name: `x` or `x:(m)k`."""
    name, _, sub = ref.partition(":")
    if not sub:
        return AxisFactor(name)
    m, _, k = sub[1:].partition(")")
    return AxisFactor(name, (int(m), int(k)))


def whole_axes(axes: Sequence[str], mesh: Mesh) -> list[str]:
    """Merge neighbouring sub-axes that make up a whole axis."""
    if not any(":" in ref for ref in axes):
        return list(axes)
    done: list[AxisFactor] = []
    for factor in map(axis_factor, axes):
        while done and factor.sub and done[-1].name == factor.name and done[-1].sub:
            (m, k), (inner_m, inner_k) = done[-1].sub, factor.sub
            if m * k != inner_m:
                break
            done.pop()
            factor = AxisFactor(factor.name, (m, k * inner_k))
        if factor.sub == (1, mesh.size(factor.name)):
            factor = AxisFactor(factor.name)
        done.append(factor)
    return [factor.ref for factor in done]


def common_names(mesh: Mesh, states: Sequence[State]) -> Axes | None:
    """Return axes, cut into sub-axes wherever a state cuts them, of which all the states are made.

    Returns None where there are none: cuts that do not divide each other, or a pending axis that is cut.
    """
    cuts: dict[str, set[int]] = {name: {1, mesh.size(name)} for name in mesh.names}
    for state in states:
        for ref in (ref for axes in state.dims for ref in axes):
            factor = axis_factor(ref)
            if factor.sub:
                cuts[factor.name] |= {factor.sub[0], factor.sub[0] * factor.sub[1]}
    whole = {axis for state in states for _, axes in state.partial for axis in axes}
    names: list[str] = []
    for name in mesh.names:
        chain = sorted(cuts[name])
        if any(high % low for low, high in pairwise(chain)):
            return None
        if len(chain) <= 2:
            names.append(name)
        elif name in whole:
            return None
        else:
            names += [f"{name}:({low}){high // low}" for low, high in pairwise(chain)]
    return tuple(names)


def in_names(state: State, names: Axes, mesh: Mesh) -> State:
    """Return the same state with each axis as the run of `names` that it is made of."""

    def cut(axes: Axes) -> Axes:
        return tuple(part for ref in axes for part in _parts(ref, names, mesh))

    return State(tuple(map(cut, state.dims)), state.partial)


def _parts(ref: str, names: Axes, mesh: Mesh) -> list[str]:
    if ref in names:
        return [ref]
    factor = axis_factor(ref)
    m, k = factor.sub or (1, mesh.size(factor.name))
    found = []
    for part in names:
        inner = axis_factor(part)
        if inner.name == factor.name and inner.sub and m <= inner.sub[0] < m * k:
            found.append(part)
    return found
