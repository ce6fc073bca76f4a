"""The moves of redistribution: from a layout in blocks, every layout that one exact step leads to.

A move is only offered where the flat rule for uneven sizes lets the local pieces fall exactly into
place. Blocks of a dim of n over axes of s ranks are c = ceil(n / s) long; cut further over g ranks
they are d = ceil(n / (s * g)). Coordinate k of the s starts at k * c, its pieces would have to
start at k * g * d: the same place for all k only if c == g * d, or s == 1, or n <= 1 (all there is
lies at coordinate 0). Joining pieces is cutting them read backwards: the same condition.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from math import prod
from typing import NamedTuple

from meshweave.layout.algebra import block_axes
from meshweave.layout.algebra import pending as find_pending
from meshweave.layout.layout import AxisFactor, Layout, Partial
from meshweave.layout.mesh import Mesh
from meshweave.plan.overlap import overlap
from meshweave.plan.steps import OPS, Shuffle

Axes = tuple[str, ...]
MAX_REORDERED = 4  # axes of one dim; of more, only neighbours swap in one step


class State(NamedTuple):
    """A layout in blocks without its axes of size 1, which hold everything and reduce nothing."""

    dims: tuple[Axes, ...]
    partial: tuple[tuple[str, Axes], ...]

    @staticmethod
    def of(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> "State | None":
        """What the layout amounts to on this shape; None when that is not in blocks."""
        dims = block_axes(layout, mesh, shape)
        pending = tuple((k, tuple(sorted(axes))) for k, axes in find_pending(layout, mesh))
        if dims is None:
            return None
        return State(tuple(tuple(whole_axes(axes, mesh)) for axes in dims), pending)

    def layout(self, mesh: Mesh) -> Layout:
        """The Layout it stands for."""
        pending = [Partial(kind, axes) for kind, axes in self.partial]
        if not any(":" in name for axes in self.dims for name in axes):
            return Layout.blocks(self.dims, pending)
        dims = [tuple(map(axis_factor, whole_axes(axes, mesh))) for axes in self.dims]
        return Layout(tuple(dims), tuple(pending))

    def with_dim(self, dim: int, axes: Axes) -> "State":
        return State((*self.dims[:dim], axes, *self.dims[dim + 1 :]), self.partial)


class Move(NamedTuple):
    """A step towards `state`. unit: elements, as `cost.received` takes them for this op.

    senders: of an exchange, the ranks that send to one rank, at most.
    own:     of an exchange, the elements that a rank has of its target.
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
    """All moves for tensors of one shape on one mesh, towards `target`.

    What leads nowhere near the target is left out: dims are cut only over axes of the target (while
    something moves, those too over which it has reductions pending: pieces can be embedded), and,
    while there is something to reduce, over idle ones, which makes that less on each rank; axes are
    swapped against unused ones only where the target has those, and reductions are made pending
    only as the target has them.
    """

    def __init__(
        self,
        mesh: Mesh,
        shape: Sequence[int],
        target: State,
        names: Axes | None = None,
        ops: Sequence[str] = OPS,
    ) -> None:
        """names: the axes, or sub-axes, that states are made of; None: the axes of the mesh."""
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
        """Ranks along `axes`."""
        sizes = self.sizes
        return prod([sizes[name] for name in axes])

    def local_shape(self, state: State) -> list[int]:
        """Shape of the allocation in that layout."""
        return self.local_lengths(state.dims)

    def local_lengths(self, dims: tuple[Axes, ...]) -> list[int]:
        """How long the pieces of each dim are over these axes."""
        found = self._locals.get(dims)
        if found is None:
            found = [-(-n // self.count(axes)) for n, axes in zip(self.shape, dims, strict=True)]
            self._locals[dims] = found
        return found

    def fits(self, dim: int, held: Axes, cut: Axes) -> bool:
        """Whether pieces over `held` then `cut` lie within those over `held`: see this file's
        docstring.
        """
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
        """Every move from `state` but exchanges, in a fixed order."""
        local = self.local_shape(state)
        if self._may_reduce(state):
            yield from self._reductions(state, local)
            yield from self._pendings(state, local)
        yield from self._gathers(state, local)
        yield from self._exchanges(state, local)
        yield from self._slices(state, local)
        yield from self._permutes(state, local)

    def _may_reduce(self, state: State) -> bool:
        """Whether reductions may be done or made pending."""
        return state.partial != self.target.partial

    def exchanged(self, state: State) -> State | None:
        """What an exchange leads to; None where there is nothing to do or a pending axis in the way."""
        after = State(self.target.dims, state.partial)
        held = {axis for _, axes in state.partial for axis in axes}
        return None if after == state or held & set(self.wanted) else after

    def exchange(self, state: State) -> Move | None:
        """The exchange that gives every dim its target (a relayout where nobody misses anything);
        None where a pending axis is in the way.
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
        """Axes over which no dim is cut and nothing pending."""
        used = {axis for axes in _rows(state) for axis in axes}
        return [axis for axis in self.names if axis not in used]

    def _free(self, state: State) -> list[str]:
        """Axes that a dim may be cut over, those of the target first."""
        unused = self._unused(state)
        free = [axis for axis in self.wanted if axis in unused]
        if state.partial:  # over idle axes too: replicas then share the work of reducing
            return free + [axis for axis in unused if axis not in free]
        rows = zip(state.dims, self.target.dims, strict=True)
        if all(want[: len(have)] == have for have, want in rows):  # nothing has to be received
            return free
        return free + [axis for axis in self.embedded if axis in unused]

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
        for row in self._groups(axes):
            yield Move("all_reduce", row, _reduced(state, row), prod(local), kind=kind)

    def _groups(self, axes: Axes) -> list[Axes]:
        """Of pending axes those to reduce at once."""
        return [(axis,) for axis in axes] + ([axes] if len(axes) > 1 else [])

    def _pendings(self, state: State, local: list[int]) -> Iterator[Move]:
        """Make a reduction pending: innermost, where it reads operands before any other reduction
        does.

        Over axes that no dim is cut over, all but one rank take the neutral element; over those at
        the end of a dim, every rank embeds its piece in it.
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
                after = State(state.dims, normal(((kind, free), *have)))
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
                    after = State(dims, normal(((kind, cut), *state.partial)))
                    unit = prod(self.local_shape(after))
                    yield Move("embed", cut, after, unit, dim=dim, kind=kind)

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
        return tuple(axis for axis in self.names if axis in changed)

    def sources(self, one: State, other: State) -> Shuffle:
        """For each member over the moved axes the member it receives from; who has its block keeps
        it.
        """
        axes = self._moved(one, other)
        number = {axis: k for k, axis in enumerate(axes)}
        rows = [pair for pair in zip(_rows(one), _rows(other), strict=True) if pair[0] != pair[1]]
        have, want = (
            tuple(tuple(number[axis] for axis in pair[side]) for pair in rows) for side in (0, 1)
        )
        return Shuffle(tuple(self.sizes[axis] for axis in axes), have, want)

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
    return State(state.dims, normal(((kind, rest), *state.partial[1:])))


def normal(pending: tuple[tuple[str, Axes], ...]) -> tuple[tuple[str, Axes], ...]:
    """As Layout has it: nothing without axes, neighbours of one kind as one, axes sorted."""
    done: list[tuple[str, Axes]] = []
    for kind, axes in pending:
        if axes and done and done[-1][0] == kind:
            axes = done.pop()[1] + axes
        if axes:
            done.append((kind, tuple(sorted(axes))))
    return tuple(done)


def axis_factor(ref: str) -> AxisFactor:
    """The factor of an axis or sub-axis by its name: `x` or `x:(m)k`."""
    name, _, sub = ref.partition(":")
    if not sub:
        return AxisFactor(name)
    m, _, k = sub[1:].partition(")")
    return AxisFactor(name, (int(m), int(k)))


def whole_axes(axes: Sequence[str], mesh: Mesh) -> list[str]:
    """The same with neighbouring sub-axes that make up a whole axis as that axis."""
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
    """Axes, cut into sub-axes wherever a state cuts them, of which all the states are made.

    None where there are none: cuts that do not divide each other, or a pending axis that is cut.
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
    """The same state with each axis as the run of `names` that it is made of."""

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
