"""Price moves and work in seconds: moves as the planner of redistributions prices them, work by rates of the machine.

What a move takes is a number of launches and a share of the tensor's bytes, which depend on the two layouts alone, not
on the tensor: each pair is planned once, without the digits that both have, and priced for all tensors.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import ceil, prod
from threading import get_ident

import numpy as np

from meshweave.errors import PlanError
from meshweave.layout.factors import FOUND, PLACED, Axes, Rule, pieces
from meshweave.layout.layout import Layout, Partial
from meshweave.layout.mesh import Axis, Link, Mesh
from meshweave.plan.cost import SHARED_MEMORY, Profile, link_of, local_seconds, seconds
from meshweave.plan.placement.runs import RuleRuns
from meshweave.plan.placement.terms import Numbers
from meshweave.plan.redistribute import plan_redistribute

MOST_SEARCHED = 2
"""Axes of a move that is planned; beyond, a formula prices it, since the planner searches among many orders."""

LARGE = 1 << 20
"""Elements of the tensor whose plan stands for those of all: its launches are a small part, as the planner counts."""


NOTHING, LOOPS, PRODUCT = "nothing", "loops", "product"
"""Kinds of work: none, as of views and passes; loops over elements; sums of products of two tensors."""


@dataclass(frozen=True)
class OpWork:
    """Say what an op computes, whatever the layouts.

    element: its element type. adds, functions: of one iteration of its loops: additions, and functions of many
    instructions, such as a sine. kept: of each operand and result, whether it is in memory, not only within a kernel.
    far: whether it was made long before it is read, as an argument. reads: how many of these are operands.
    launches: the op is a kernel of its own.
    """

    kind: str = NOTHING
    element: str = "f32"
    adds: int = 1
    functions: int = 0
    kept: tuple[bool, ...] = ()
    far: tuple[bool, ...] = ()
    reads: int = 0
    launches: bool = False


SIDES = (1, 4, 16, 64, 256)
"""Least side of a product, of its rows, columns and the dim that is summed, for which there is a rate."""

SIZES = (1 << 19, 1 << 23, 1 << 26)
"""Bytes touched between two reads of the same for which there is a rate of memory: as caches hold, and memory."""

ELEMENTS = {"f32": 1.0, "f64": 2.0, "bf16": 1.0, "f16": 1.0}
"""Element types, and the time of an iteration over that of one of f32: as many more bytes as fill a vector."""


@dataclass(frozen=True)
class MachinePrices:
    """Say what a machine takes, in seconds: its links and copies, and what a core computes.

    profile:   of links, and of a byte read or written in memory.
    iteration: of an addition in the loops of an op, among many.
    function:  of a function of many instructions, as an exponential.
    kernel:    to start a kernel. call: to call a program.
    products:  of a multiply-add of f32 in products with least sides of SIDES.
    read, written: of a byte that was touched SIZES bytes ago.
    """

    profile: Profile = SHARED_MEMORY
    iteration: float = 2e-11
    function: float = 6.5e-10
    kernel: float = 3e-7
    call: float = 3e-5
    products: tuple[float, ...] = (4.5e-11, 2.8e-11, 2.8e-11, 2.4e-11, 2.2e-11)
    read: tuple[float, ...] = (1.2e-11, 1.3e-11, 4.5e-11)
    written: tuple[float, ...] = (3.4e-11, 4e-11, 6e-11)

    def work(self, rule: Rule, runs: RuleRuns, work: OpWork, mesh: Mesh, reach: float) -> Numbers:
        """Return the seconds that the busiest rank computes in each run of an op.

        reach: bytes that a rank touches in a run of the program, before it reads an argument again.
        """
        link = self.profile.link
        once = self.profile.launch + link.alpha
        joined = np.array(
            [run.joined * link.beta + (once if run.joined else 0.0) for run in runs.runs]
        )
        if work.kind == NOTHING:
            return joined
        iterations = np.array([float(run.iterations) for run in runs.runs])
        wide = ELEMENTS.get(work.element, 1.0)
        if work.kind == PRODUCT:
            sides = _sides(rule, runs, mesh)
            computed = iterations * np.interp(np.log(sides), np.log(SIDES), self.products) * wide
        else:
            each = work.adds * self.iteration + work.functions * self.function
            computed = iterations * each * wide
        local = _local_bytes(rule, runs, mesh, work)
        touched = sum([row for row, _, _ in local], np.zeros(len(runs.runs)))
        read = np.zeros(len(runs.runs))
        for row, far, made in local:
            after = np.maximum(touched, reach) if far else touched
            rates = self.written if made else self.read
            read += row * np.interp(np.log(np.maximum(after, 1.0)), np.log(SIZES), rates)
        return joined + np.maximum(computed, read) + (self.kernel if work.launches else 0.0)

    def least_work(self, rule: Rule, work: OpWork, mesh: Mesh) -> float:
        """Return seconds that no run of an op is below: all ranks share its loops and its bytes."""
        if work.kind == NOTHING:
            return 0.0
        each = work.adds * self.iteration + work.functions * self.function
        rate = min(self.products) if work.kind == PRODUCT else each
        loops = [f.size for f in rule.factors if f.kind not in (PLACED, FOUND)]
        computed = prod(loops) * rate * ELEMENTS.get(work.element, 1.0)
        rows = zip(rule.nbytes, rule.sizes, work.kept)
        kept = sum([nbytes for nbytes, shape, is_kept in rows if is_kept and shape])
        read = kept * min(*self.read, *self.written)
        return max(computed, read) / mesh.nranks + (self.kernel if work.launches else 0.0)

    def moves(
        self, sources: Sequence[Layout], targets: Sequence[Layout], mesh: Mesh, nbytes: int
    ) -> Numbers:
        """Return the seconds of a tensor of nbytes in all from each of some layouts in blocks to each of others."""
        once, each = _rates(mesh, self.profile, get_ident()).between(sources, targets)
        return once + each * nbytes

    def window(self, nbytes: Numbers) -> Numbers:
        """Return the seconds of exchanges with neighbours that bring so many bytes."""
        profile = self.profile
        once = profile.launch + profile.link.alpha
        return np.where(nbytes, once + nbytes * profile.link.beta, 0.0)


def _sizes(mesh: Mesh) -> dict[str, int]:
    return {axis.name: mesh.size(axis.name) for axis in mesh.axes}


def _sides(rule: Rule, runs: RuleRuns, mesh: Mesh) -> Numbers:
    """Return the least side of a product on the busiest rank, for each run: rows, columns, or what is summed."""
    sizes = _sizes(mesh)
    named = [{f for dim in dims for f in dim} for dims in rule.tensors if dims is not None]
    first, second = named[0], named[1] if len(named) > 2 else set()
    result = named[-1]
    sums = (first & second) - result
    groups = [g for g in ((first & result) - second, (second & result) - first, sums) if g]
    found = []
    for run in runs.runs:
        placed = dict(run.placed)
        extents = [
            prod([ceil(rule.factors[f].size / pieces(placed.get(f, ()), sizes)) for f in group])
            for group in groups
        ]
        found.append(float(min(extents)) if len(groups) == 3 else 1.0)
    return np.array(found)


def _local_bytes(
    rule: Rule, runs: RuleRuns, mesh: Mesh, work: OpWork
) -> list[tuple[Numbers, bool, bool]]:
    """Return the bytes that the busiest rank has of each tensor in memory, for each run; whether far, and made."""
    sizes, found = _sizes(mesh), []
    for t, (ends, at) in enumerate(zip(runs.ends, runs.at)):
        shape = rule.sizes[t]
        if not ends or not shape or not (work.kept[t] if t < len(work.kept) else True):
            continue
        item = rule.nbytes[t] / max(1, prod(shape))
        local = [
            item * prod([ceil(n / pieces(end.axes_of(d), sizes)) for d, n in enumerate(shape)])
            for end in ends
        ]
        found.append((np.array(local)[at], t < len(work.far) and work.far[t], t >= work.reads))
    return found


def planned_for(profile: Profile) -> Profile | None:
    """Return the machine as the planner is told of it: None if nobody has measured it."""
    return None if profile == SHARED_MEMORY else profile


def rates_of(prices: MachinePrices) -> tuple[float, ...]:
    """Return a machine as numbers, in a fixed order."""
    profile = prices.profile
    return (
        *(prices.iteration, profile.copy_beta, profile.launch, *astuple(profile.link)),
        *(prices.function, prices.kernel, prices.call),
        *(*prices.products, *prices.read, *prices.written),
    )


def machine_option(prices: MachinePrices) -> str:
    """Return the machine as an option of dist-place."""
    return f"machine={','.join(map(repr, rates_of(prices)))}"


def machine_of(rates: Sequence[float]) -> MachinePrices:
    """Return the machine of such an option. Raises PlanError for another number of rates."""
    right = len(rates_of(MachinePrices()))
    if len(rates) != right:
        raise PlanError(
            f"machine: {len(rates)} rates; {right} are right, as machine_option says them"
        )
    iteration, copied, launch, alpha, beta, function, kernel, call, *tables = rates
    first, second = len(SIDES), len(SIDES) + len(SIZES)
    rows = tuple(tables[:first]), tuple(tables[first:second]), tuple(tables[second:])
    profile = Profile(Link(alpha, beta), launch, copied)
    return MachinePrices(profile, iteration, function, kernel, call, *rows)


class _Rates:
    """Keep the rates of moves between the layouts seen so far on one mesh, in two matrices that grow."""

    def __init__(self, mesh: Mesh, profile: Profile) -> None:
        self.mesh, self.profile = mesh, profile
        self.numbers: dict[Layout, int] = {}
        self.layouts: list[Layout] = []
        self.once = np.full((64, 64), np.nan)
        self.each = np.full((64, 64), np.nan)

    def between(
        self, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> tuple[Numbers, Numbers]:
        """Return the seconds of launches, and of each byte, from each of the sources to each of the targets."""
        at = np.ix_([self._number(x) for x in sources], [self._number(x) for x in targets])
        once = self.once[at]
        if np.isnan(once).any():
            for i, j in zip(*np.nonzero(np.isnan(once))):
                a, b = self.numbers[sources[i]], self.numbers[targets[j]]
                self.once[a, b], self.each[a, b] = _rate(
                    sources[i], targets[j], self.mesh, self.profile
                )
            once = self.once[at]
        return once, self.each[at]

    def _number(self, layout: Layout) -> int:
        number = self.numbers.get(layout)
        if number is None:
            number = self.numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
            if number == len(self.once):
                pad = ((0, number), (0, number))
                self.once = np.pad(self.once, pad, constant_values=np.nan)
                self.each = np.pad(self.each, pad, constant_values=np.nan)
        return number


@lru_cache(maxsize=64)
def _rates(mesh: Mesh, profile: Profile, thread: int) -> _Rates:
    """Return those of a thread: no other one changes them meanwhile."""
    return _Rates(mesh, profile)


def _rate(source: Layout, target: Layout, mesh: Mesh, profile: Profile) -> tuple[float, float]:
    """Return the seconds of a move's launches, and those of each byte of the whole tensor."""
    if source == target:
        return 0.0, 0.0
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
    if len(names) > MOST_SEARCHED:
        ends = [tuple(dict.fromkeys(a for row in rows for a in row[end])) for end in (0, 1)]
        reduced, made = [
            tuple(axis for kind, axis in row if (kind, axis) not in other)
            for row, other in (left, left[::-1])
        ]
        found = _formula(ends[0], ends[1], reduced, made, mesh, profile)
        return found[0], found[1] / share
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


def _formula(
    have: Axes, want: Axes, reduced: Axes, made: Axes, mesh: Mesh, profile: Profile
) -> tuple[float, float]:
    """Return what `_rate` does for a move of many axes, which the planner would search long for.

    Axes that are added cut first; then what is pending is reduced, to where it goes or on all ranks, axes change their
    dims, and those that go away are gathered: each in one collective. Over axes that become pending each rank puts its
    part among neutral elements, or all ranks but the first are filled with them.
    """
    once, each = 0.0, 0.0
    share = 1.0 / mesh.axis_count(have)
    kept = tuple(a for a in have if a in want)
    gone = tuple(a for a in have if a not in want and a not in made)
    embedded = tuple(a for a in made if a in have)
    scattered = tuple(a for a in reduced if a in want)
    new = tuple(a for a in want if a not in have and a not in scattered)
    share /= mesh.axis_count(new)
    local = local_seconds("all_slice", 0, 0, profile) * share if new else 0.0
    for op, axes in (
        ("reduce_scatter", scattered),
        ("all_reduce", tuple(a for a in reduced if a not in want)),
        ("all_to_all", kept),
        ("all_gather", gone),
    ):
        if not axes:
            continue
        ranks, link = mesh.axis_count(axes), link_of(mesh, axes, profile)
        share *= {"reduce_scatter": 1 / ranks, "all_gather": float(ranks)}.get(op, 1.0)
        part = share * (ranks - 1) / ranks
        each += link.beta * {"all_reduce": 2 * part, "reduce_scatter": share * (ranks - 1)}.get(
            op, part
        )
        once += seconds(op, 0, ranks, link, profile)
    if made:
        share *= mesh.axis_count(embedded)
        op = "embed" if len(embedded) == len(made) else "local"
        local += local_seconds(op, 0, 0, profile) * share
    return once, each + local


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
    taken = []
    for times in (1, 2):
        tensor = (*shape[:-1], times * shape[-1])
        plan = plan_redistribute(ends[0], ends[1], mesh, tensor, 4, profile=planned_for(profile))
        taken.append(plan.seconds)
    nbytes = 4 * prod(shape)
    each = max(0.0, (taken[1] - taken[0]) / nbytes)
    return max(0.0, taken[0] - each * nbytes), each


def _partials(pending: Sequence[tuple[str, str]]) -> list[Partial]:
    kinds: dict[str, list[str]] = {}
    for kind, axis in pending:
        kinds.setdefault(kind, []).append(axis)
    return [Partial(kind, tuple(axes)) for kind, axes in kinds.items()]
