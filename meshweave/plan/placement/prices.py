"""Price moves and work in seconds: moves as the planner of redistributions prices them, work by rates of the machine.

What a move takes is a number of launches and a share of the tensor's bytes, which depend on the two layouts alone, not
on the tensor: each pair is planned once, without the digits that both have, and priced for all tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from meshweave.layout.factors import Axes
from meshweave.layout.layout import Layout, Partial
from meshweave.layout.mesh import Axis, Link, Mesh
from meshweave.plan.cost import SHARED_MEMORY, Profile
from meshweave.plan.placement.runs import OpRun
from meshweave.plan.redistribute import plan_redistribute

ITERATION = 2e-11
"""Seconds of a multiply-add in the loops of an op: 50 G/s, of one core with vectors."""

LARGE = 1 << 20
"""Elements of the tensor whose plan stands for those of all: its launches are a small part, as the planner counts."""


@dataclass(frozen=True)
class MachinePrices:
    """Say what a machine takes: its links and copies, and the seconds of an iteration of an op's loops."""

    profile: Profile = SHARED_MEMORY
    iteration: float = ITERATION

    def work(self, run: OpRun, views: bool) -> float:
        """Return the seconds a rank computes: as long as its loops take, or its memory, whichever is more.

        views: the op makes no new elements.
        """
        link = self.profile.link
        joined = run.joined * link.beta + (self.profile.launch + link.alpha if run.joined else 0.0)
        if views:
            return joined
        return joined + max(run.iterations * self.iteration, run.nbytes * self.profile.copy_beta)

    def move(self, source: Layout, target: Layout, mesh: Mesh, nbytes: int) -> float:
        """Return the seconds that a tensor of nbytes in all takes from one layout in blocks to another."""
        if source == target:
            return 0.0
        once, each = _rate(source, target, mesh, self.profile)
        return once + each * nbytes

    def window(self, nbytes: float) -> float:
        """Return the seconds of one exchange with neighbours that brings so many bytes."""
        profile = self.profile
        if not nbytes:
            return 0.0
        return profile.launch + profile.link.alpha + nbytes * profile.link.beta


@lru_cache(maxsize=1 << 16)
def _rate(source: Layout, target: Layout, mesh: Mesh, profile: Profile) -> tuple[float, float]:
    """Return the seconds of a move's launches, and those of each byte of the whole tensor."""
    rows, share = [], 1
    sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes}
    for have, want in zip(source.block_axes(), target.block_axes()):
        have, want = (tuple(a for a in row if sizes[a] > 1) for row in (have, want))
        common = 0
        while common < min(len(have), len(want)) and have[common] == want[common]:
            common += 1
        share *= prod([sizes[a] for a in have[:common]])
        if have[common:] or want[common:]:
            rows.append((have[common:], want[common:]))
    pending = [_pending(layout, sizes) for layout in (source, target)]
    left = [tuple(sorted(p)) for p in pending] if pending[0] != pending[1] else [(), ()]
    met = [a for have, want in sorted(rows) for a in (*have, *want)]
    met += [a for row in left for _, a in row]
    names = {a: f"a{number}" for number, a in enumerate(dict.fromkeys(met))}
    if not names:
        return 0.0, 0.0
    used = {*source.used_axes, *target.used_axes, *[a for p in pending for _, a in p]}
    for axis in mesh.axes:  # an idle axis helps: each of its ranks moves a part
        if sizes[axis.name] > 1 and axis.name not in used:
            names[axis.name] = f"a{len(names)}"
    axes = tuple((name, sizes[a], mesh.axis(a).link) for a, name in names.items())

    def named(row: Axes) -> Axes:
        return tuple(names[a] for a in row)

    spare: list[tuple[Axes, Axes]] = [((), ())] if len(rows) < source.ndim else []
    found = _canonical(
        tuple((named(have), named(want)) for have, want in (*sorted(rows), *spare)),
        *[tuple(sorted((kind, names[a]) for kind, a in row)) for row in left],
        axes,
        profile,
    )
    return found[0], found[1] / share


def _pending(layout: Layout, sizes: dict[str, int]) -> list[tuple[str, str]]:
    return [(p.kind, a) for p in layout.partial for a in p.axes if sizes[a] > 1]


@lru_cache(maxsize=1 << 14)
def _canonical(
    rows: tuple[tuple[Axes, Axes], ...],
    had: tuple[tuple[str, str], ...],
    wanted: tuple[tuple[str, str], ...],
    axes: tuple[tuple[str, int, Link | None], ...],
    profile: Profile,
) -> tuple[float, float]:
    """Return what `_rate` does, for a move of which all that both ends have is left out."""
    mesh = Mesh(*[Axis(*axis) for axis in axes])
    every = prod([size for _, size, _ in axes])
    shape = [every] * max(len(rows), 1)
    shape[-1] *= max(1, -(-LARGE // prod(shape)))
    ends = []
    for end, partial in ((0, had), (1, wanted)):
        dims = [row[end] for row in rows] or [()]
        ends.append(Layout.blocks(dims, _partials(partial)))
    seconds, own = [], None if profile == SHARED_MEMORY else profile
    for times in (1, 2):
        tensor = (*shape[:-1], times * shape[-1])
        plan = plan_redistribute(ends[0], ends[1], mesh, tensor, 4, profile=own)
        seconds.append(plan.seconds)
    nbytes = 4 * prod(shape)
    each = max(0.0, (seconds[1] - seconds[0]) / nbytes)
    return max(0.0, seconds[0] - each * nbytes), each


def _partials(pending: Sequence[tuple[str, str]]) -> list[Partial]:
    kinds: dict[str, list[str]] = {}
    for kind, axis in pending:
        kinds.setdefault(kind, []).append(axis)
    return [Partial(kind, tuple(axes)) for kind, axes in kinds.items()]
