"""Price moves between layouts in blocks: the seconds of launches, and those of each byte of the whole tensor.

Both depend on the two layouts alone, not on the tensor, and on little of these: digits that both have are left out, and
dims are alike, as are axes of one size. Pairs of layouts are sorted into groups with the same price, and one of each
group is planned.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from meshweave.layout.factors import Axes
from meshweave.layout.layout import Layout, Partial
from meshweave.layout.mesh import Axis, Link, Mesh
from meshweave.plan.cost import SHARED_MEMORY, Profile, link_of, local_seconds, seconds
from meshweave.plan.placement.runs import axis_turns
from meshweave.plan.placement.terms import Numbers
from meshweave.plan.redistribute import Plan, plan_redistribute

Places = npt.NDArray[np.intp]

MOST_SEARCHED = 2
"""Axes of a move that is planned; beyond, a formula prices it, since the planner searches among many orders."""

MOST_ROWS = 1 << 10
"""Rows of layouts whose numbers are kept."""

LARGE = 1 << 20
"""Elements of the tensor whose plan stands for those of all: its launches are a small part, as the planner counts."""


def planned_for(profile: Profile) -> Profile | None:
    """Return the machine as the planner is told of it: None if nobody has measured it."""
    return None if profile == SHARED_MEMORY else profile


class MoveRates:
    """Keep the rates of moves between the layouts seen so far on one mesh, in two matrices that grow."""

    def __init__(self, mesh: Mesh, profile: Profile) -> None:
        self.mesh, self.profile = mesh, profile
        self.numbers: dict[Layout, int] = {}
        self.rows: dict[int, tuple[Sequence[Layout], Places]] = {}
        self.digits = _Digits(mesh)
        self.once = np.full((64, 64), np.nan)
        self.each = np.full((64, 64), np.nan)

    def between(
        self, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> tuple[Numbers, Numbers]:
        """Return the seconds of launches, and of each byte, from each of the sources to each of the targets."""
        rows, columns = self._row(sources), self._row(targets)
        once = self.once.take(rows, 0).take(columns, 1)
        if np.isnan(once).any():
            self._plan(sources, targets, *np.nonzero(np.isnan(once)))
            once = self.once.take(rows, 0).take(columns, 1)
        return once, self.each.take(rows, 0).take(columns, 1)

    def along(
        self, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> tuple[Numbers, Numbers]:
        """Return the seconds of launches, and of each byte, from each of the sources to the target at its place."""
        at = self._row(sources), self._row(targets)
        if np.isnan(self.once[at]).any():
            (missing,) = np.nonzero(np.isnan(self.once[at]))
            self._plan(sources, targets, missing, missing)
        return self.once[at], self.each[at]

    def _plan(
        self, sources: Sequence[Layout], targets: Sequence[Layout], i: Places, j: Places
    ) -> None:
        """Find the rates from the i-th sources to the j-th targets, pair by pair."""
        keys, shares = self.digits.moved(sources, targets, i, j)
        first, group = _groups(keys)
        rates = np.array(
            [_rate(sources[i[n]], targets[j[n]], self.mesh, self.profile) for n in first]
        )
        a, b = self._row(sources)[i], self._row(targets)[j]
        self.once[a, b], self.each[a, b] = rates[group, 0], rates[group, 1] / shares

    def _row(self, layouts: Sequence[Layout]) -> Places:
        """Return the numbers of layouts; they are asked for often, and layouts take long to hash."""
        known = self.rows.get(id(layouts))
        if known is None or known[0] is not layouts:
            if len(self.rows) >= MOST_ROWS:
                self.rows.clear()
            numbers = np.array([self._number(x) for x in layouts], np.intp)
            known = self.rows[id(layouts)] = layouts, numbers
        return known[1]

    def _number(self, layout: Layout) -> int:
        number = self.numbers.get(layout)
        if number is None:
            number = self.numbers[layout] = len(self.numbers)
            if number == len(self.once):
                pad = ((0, number), (0, number))
                self.once = np.pad(self.once, pad, constant_values=np.nan)
                self.each = np.pad(self.each, pad, constant_values=np.nan)
        return number


class _Digits:
    """Number the axes of dims, the sums to do, and the sets of axes of layouts on a mesh.

    turns: each way to put axes of one size and link in each other's places.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes}
        self.rows: dict[Axes, int] = {}
        self.changes: dict[tuple[Axes, Axes], int] = {((), ()): 0}
        self.sums: dict[tuple[tuple[str, str], ...], int] = {(): 0}
        self.turns = axis_turns(mesh)

    def moved(
        self, sources: Sequence[Layout], targets: Sequence[Layout], i: Places, j: Places
    ) -> tuple[Places, Numbers]:
        """Return, for each pair, what its price depends on, and into how many parts what both have cuts the tensor.

        The former is a row: how dims change, in order of these numbers; the sums of both ends; and all axes in use;
        the least such row with axes in each other's places.
        """
        (have, had, busy), (want, wanted, used) = self._numbered(sources), self._numbered(targets)
        pairs = have[i] * len(self.rows) + want[j]
        met, at = np.unique(pairs, return_inverse=True)
        names = list(self.rows)
        changes = [self._change(names[n // len(names)], names[n % len(names)]) for n in met]
        found = np.array(changes, np.float64).reshape(-1, 2)[at.reshape(pairs.shape)]
        alike, sums = had[i] == wanted[j], (had[i], wanted[j])
        best: Places | None = None
        for turn in self.turns:
            dims = self._turned_changes(turn)[found[..., 0].astype(np.intp)]
            ends = [np.where(alike, 0, self._turned_sums(turn)[end]) for end in sums]
            both = self._turned_sets(turn)[busy[i] | used[j]]
            keys = np.column_stack([np.sort(dims, axis=1), *ends, both])
            best = keys if best is None else _lesser(best, keys)
        assert best is not None
        return best, found[..., 1].prod(axis=1)

    def _turned_changes(self, turn: dict[str, str]) -> Places:
        """Return the number that each change of a dim has with axes in the places of others."""
        turned = [
            tuple(tuple(turn[a] for a in end) for end in change) for change in list(self.changes)
        ]
        return np.array([self.changes.setdefault((a, b), len(self.changes)) for a, b in turned])

    def _turned_sums(self, turn: dict[str, str]) -> Places:
        turned = [tuple(sorted((k, turn[a]) for k, a in row)) for row in list(self.sums)]
        return np.array([self.sums.setdefault(row, len(self.sums)) for row in turned])

    def _turned_sets(self, turn: dict[str, str]) -> Places:
        places = {axis: n for n, axis in enumerate(self.sizes)}
        every = np.arange(1 << len(places))
        return sum([(every >> n & 1) << places[turn[a]] for a, n in places.items()], 0 * every)

    def _numbered(self, layouts: Sequence[Layout]) -> tuple[Places, Places, Places]:
        """Return the numbers of the axes of each dim, those of sums, and the axes in use, of each layout."""
        places = {axis: n for n, axis in enumerate(self.sizes)}
        dims, sums, used = [], [], []
        for layout in layouts:
            rows, pending = _rows(layout, self.sizes), _pending(layout, self.sizes)
            dims.append([self.rows.setdefault(row, len(self.rows)) for row in rows])
            sums.append(self.sums.setdefault(tuple(sorted(pending)), len(self.sums)))
            axes = {*[a for row in rows for a in row], *[a for _, a in pending]}
            used.append(sum([1 << places[a] for a in axes]))
        shape = len(layouts), layouts[0].ndim
        return np.array(dims, np.intp).reshape(shape), np.array(sums), np.array(used)

    def _change(self, have: Axes, want: Axes) -> tuple[int, int]:
        """Return the number of how a dim changes, 0 if it does not, and the parts that both ends cut it into."""
        common = _common(have, want)
        change = have[common:], want[common:]
        number = self.changes.setdefault(change, len(self.changes))
        return number, prod([self.sizes[a] for a in have[:common]])


def _groups(keys: Places) -> tuple[Places, Places]:
    """Return the first of each group of equal rows, and the group of each row."""
    group = np.zeros(len(keys), np.intp)
    for column in keys.T:  # each time few numbers, so that they do not grow
        both = group * (int(column.max()) + 1) + column
        _, first, group = np.unique(both, return_index=True, return_inverse=True)
    return first, group.reshape(-1)


def _lesser(one: Places, other: Places) -> Places:
    """Return, row by row, the one that comes first in order."""
    rows, at = np.arange(len(one)), (one != other).argmax(axis=1)
    return np.where((other[rows, at] < one[rows, at])[:, None], other, one)


def _rows(layout: Layout, sizes: dict[str, int]) -> list[Axes]:
    """Return the axes of each dim that have more than one rank."""
    return [tuple(a for a in row if sizes[a] > 1) for row in layout.block_axes()]


def _common(have: Axes, want: Axes) -> int:
    """Return how many axes two dims begin with alike."""
    at = 0
    while at < min(len(have), len(want)) and have[at] == want[at]:
        at += 1
    return at


@lru_cache(maxsize=64)
def move_rates(mesh: Mesh, profile: Profile, thread: int) -> MoveRates:
    """Return those of a thread: no other one changes them meanwhile."""
    return MoveRates(mesh, profile)


def _rate(source: Layout, target: Layout, mesh: Mesh, profile: Profile) -> tuple[float, float]:
    """Return the seconds of a move's launches, and those of each byte of what is one tensor to the axes that change."""
    sizes = {axis.name: mesh.size(axis.name) for axis in mesh.axes}
    rows = []
    for have, want in zip(_rows(source, sizes), _rows(target, sizes)):
        if have != want:
            common = _common(have, want)
            rows.append((have[common:], want[common:]))
    rows.sort(key=lambda row: (len(row[0]), len(row[1]), row))
    pending = [_pending(layout, sizes) for layout in (source, target)]
    left = [tuple(sorted(p)) for p in pending] if pending[0] != pending[1] else [(), ()]
    met = [a for have, want in rows for a in (*have, *want)]
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
        return _formula(ends[0], ends[1], reduced, made, mesh, profile)
    used = {*source.used_axes, *target.used_axes, *[a for p in pending for _, a in p]}
    for axis in mesh.axes:  # an idle axis helps: each of its ranks moves a part
        if sizes[axis.name] > 1 and axis.name not in used:
            names[axis.name] = f"a{len(names)}"
    axes = tuple((name, sizes[a], mesh.axis(a).link) for a, name in names.items())

    def named(row: Axes) -> Axes:
        return tuple(names[a] for a in row)

    spare: list[tuple[Axes, Axes]] = [((), ())] if len(rows) < source.ndim else []
    return _canonical(
        tuple((named(have), named(want)) for have, want in (*rows, *spare)),
        *[tuple(sorted((kind, names[a]) for kind, a in row)) for row in left],
        axes,
        profile,
    )


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
    plan, nbytes = _planned(ends, mesh, shape, profile), 4 * prod(shape)
    if any(step.op == "exchange" for step in plan.steps):  # its rounds depend on who sends
        shape[-1] *= 2
        each = max(0.0, (_planned(ends, mesh, shape, profile).seconds - plan.seconds) / nbytes)
        return max(0.0, plan.seconds - each * nbytes), each
    once = 0.0
    for step in plan.steps:
        link = link_of(mesh, step.axes or mesh.names, profile)
        once += seconds(step.op, 0, mesh.axis_count(step.axes), link, profile)
    return once, max(0.0, plan.seconds - once) / nbytes


def _planned(ends: Sequence[Layout], mesh: Mesh, shape: Sequence[int], profile: Profile) -> Plan:
    """Return the plan of a move of floats."""
    return plan_redistribute(ends[0], ends[1], mesh, tuple(shape), 4, profile=planned_for(profile))


def _partials(pending: Sequence[tuple[str, str]]) -> list[Partial]:
    kinds: dict[str, list[str]] = {}
    for kind, axis in pending:
        kinds.setdefault(kind, []).append(axis)
    return [Partial(kind, tuple(axes)) for kind, axes in kinds.items()]
