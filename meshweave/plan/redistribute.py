"""Plan a redistribution: find the cheapest steps from one layout to another, and what is proved of them.

Between blocks the steps are searched (search.py), once for all shapes that move alike (scale.py). Any other layouts
move by an exchange, or by a relayout to blocks, a search there, and a relayout back, whichever takes less time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from math import prod

from meshweave.errors import PlanError
from meshweave.exchange.table import Table
from meshweave.layout.algebra import block_axes, pending, same_placement
from meshweave.layout.layout import AxisFactor, Factor, Layout, LocalFactor
from meshweave.layout.mesh import Mesh
from meshweave.layout.places import has_digits
from meshweave.plan import cost
from meshweave.plan.bounds import lower_bound
from meshweave.plan.check import flaw, right_for
from meshweave.plan.cost import SHARED_MEMORY, Profile
from meshweave.plan.moves import Move, Moves, State, common_names, in_names
from meshweave.plan.overlap import MissingPart, overlap
from meshweave.plan.scale import scaled
from meshweave.plan.search import Search
from meshweave.plan.steps import COLLECTIVES, DETAILS, OPS, Plan, PlanStep

__all__ = [
    "Plan",
    "PlanStep",
    "cache_clear",
    "cache_info",
    "plan_redistribute",
    "search_info",
]


def plan_redistribute(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: Sequence[int],
    itemsize: int,
    *,
    profile: Profile | None = None,
    memory_bytes: int | None = None,
    ops: tuple[str, ...] = OPS,
) -> Plan:
    """Return the plan that takes a tensor of global `shape` from `source` to `target` on `mesh`.

    itemsize:     bytes of an element.
    profile:      the machine. None: SHARED_MEMORY, but with launches that never outweigh the bytes of small tensors
                  (`cost.steady`; for large ones they are right within a factor of 1.42), unless the axes of the mesh
                  state their links.
    memory_bytes: cap on the total bytes of the input and output of a step on a rank. None: no tensor on the way is
                  larger than the larger end; where only certain steps may be used and none does that, as little as the
                  cheapest plan takes.
    ops:          the steps that may be used.

    Axes of size 1 cost no step, nor does another spelling of the same layout. Pure, and cached by value: see
    `cache_info`. A shape in blocks that only differs in size from one planned before needs no search (scale.py),
    unless profile, links or memory_bytes are stated: see `search_info`. Raises LayoutError when a layout does not fit
    mesh and shape; PlanError when no plan of these steps stays within memory_bytes.
    """
    return _plan(source, target, mesh, tuple(shape), itemsize, profile, memory_bytes, ops)


@lru_cache(maxsize=1 << 16)
def _plan(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: tuple[int, ...],
    itemsize: int,
    profile: Profile | None,
    memory_bytes: int | None,
    ops: tuple[str, ...],
) -> Plan:
    source.check_owned()
    for layout in (source, target):
        layout.check(mesh, shape)
    true = profile or SHARED_MEMORY
    ask = _Question(mesh, shape, itemsize, true, memory_bytes, frozenset(ops))
    halved = None
    if profile is None and all(axis.link is None for axis in mesh.axes):
        halved = cost.halvings(true, max(map(ask.nbytes, (source, target))))
        for free in (True, False) if memory_bytes is None else ():
            alike = scaled(source, target, mesh, shape, free)
            if alike is None:
                break
            found = _steps_alike(source, target, mesh, alike.least, halved, ops)
            if alike.holds(found.steps):
                by = _Question(mesh, alike.counts, alike.factor * itemsize, true, None, ask.ops)
                part = prod(alike.least) // max(1, prod(alike.counts))
                steps = tuple([by.sized(step, part) for step in found.steps])
                if found.grows_to(alike.least, shape) or not flaw(
                    steps, source, target, mesh, shape
                ):
                    return _summed(replace(found, steps=steps), by, source, target, ask)
    return _summed(_cheapest(ask, source, target, halved), ask, source, target, ask)


@dataclass(frozen=True)
class _Way:
    """Hold steps, and whether the search for them stopped at its limit.

    units: see `right_for`; None where nothing is known but for the shape that the steps were replayed for.
    """

    steps: tuple[PlanStep, ...]
    stopped: bool = False
    units: tuple[int, ...] | None = None

    def grows_to(self, least: Sequence[int], shape: Sequence[int]) -> bool:
        """Tell whether the steps, which were replayed for the shape `least`, are right for `shape` without a replay."""
        units = self.units or (0,) * len(shape)
        return all(
            size == small or (unit > 0 < size and size % unit == 0)
            for unit, small, size in zip(units, least, shape, strict=True)
        )


ELEMENT = 1 << 40
"""Bytes of an element where they do not matter: large enough that no cost is rounded."""


@lru_cache(maxsize=1 << 14)
def _steps_alike(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    least: tuple[int, ...],
    halved: int,
    ops: tuple[str, ...],
) -> _Way:
    """Return the steps for all shapes that move like `least` and weigh launches alike (see scale.py).

    Their bytes are those of elements of ELEMENT bytes.
    """
    ask = _Question(mesh, least, ELEMENT, SHARED_MEMORY, None, frozenset(ops))
    found = _cheapest(ask, source, target, halved)
    return replace(found, units=right_for(found.steps, mesh, least))


def _cheapest(ask: "_Question", source: Layout, target: Layout, halved: int | None) -> _Way:
    """Return the steps that take least time, replayed on digits; halved: with launches as in `cost.steady`."""
    if halved is not None:
        nbytes = max(map(ask.nbytes, (source, target)))
        ask = replace(ask, profile=cost.steady(ask.profile, nbytes, halved))
    ways = [way for way in ask.candidates(source, target) if ask.allows(way.steps)]
    ways.sort(key=lambda way: sum(map(ask.seconds, way.steps)))
    for way in chain(ways, ask.certain(source, target)):
        if flaw(way.steps, source, target, ask.mesh, ask.shape) is None:
            return way
    raise PlanError(f"redistribute {source} -> {target}: {ask.why_not(source, target)}")


cache_info = _plan.cache_info
search_info = _steps_alike.cache_info


def cache_clear() -> None:
    """Forget all plans."""
    _plan.cache_clear()
    _steps_alike.cache_clear()


def _summed(way: _Way, ask: "_Question", source: Layout, target: Layout, true: "_Question") -> Plan:
    """Return the plan of these steps. true: the question with the true shape, where that of `ask` only moves alike."""
    steps = way.steps
    by = true if source.partial or target.partial else ask
    bound = lower_bound(source, target, by.mesh, by.shape) * by.itemsize
    ends = max(map(ask.nbytes, (source, target)))
    peak = max([ask.peak(step) for step in steps], default=ask.nbytes(source))
    nbytes = sum(step.nbytes for step in steps)
    assert nbytes >= bound, f"{steps} receive {nbytes} bytes, less than the bound {bound}"
    return Plan(
        steps,
        nbytes=nbytes,
        lower_bound=bound,
        launches=sum(step.op in COLLECTIVES for step in steps),
        peak_bytes=peak,
        staging_bytes=max(0, peak - ends),
        proved_minimal=nbytes == bound,
        seconds=sum(map(ask.seconds, steps)),
        search_stopped=way.stopped,
    )


@dataclass(frozen=True)
class _Question:
    """Hold what is asked besides the two layouts."""

    mesh: Mesh
    shape: tuple[int, ...]
    itemsize: int
    profile: Profile
    memory_bytes: int | None
    ops: frozenset[str]
    _nbytes: dict[Layout, int] = field(default_factory=dict, compare=False, repr=False)

    def nbytes(self, layout: Layout) -> int:
        """Return the bytes of an allocation."""
        found = self._nbytes.get(layout)
        if found is None:
            found = prod(layout.local_shape(self.mesh, self.shape)) * self.itemsize
            self._nbytes[layout] = found
        return found

    def sized(self, step: PlanStep, times: int) -> PlanStep:
        """Return a step of `_steps_alike` for a shape `times` as large, with its bytes here."""
        if not step.nbytes:
            return step
        return replace(step, nbytes=step.nbytes // (ELEMENT * times) * self.itemsize)

    def peak(self, step: PlanStep) -> int:
        return self.nbytes(step.source) + self.nbytes(step.target)

    def seconds(self, step: PlanStep) -> float:
        if step.op not in COLLECTIVES:
            ndim = len(self.shape)
            return cost.local_seconds(step.op, self.nbytes(step.target), ndim, self.profile)
        ranks = self.mesh.axis_count(step.axes)
        link = cost.link_of(self.mesh, step.axes or self.mesh.names, self.profile)
        if step.op == "exchange":
            own = self.nbytes(step.target) - step.nbytes
            senders = self.overlap(step.source, step.target).senders
            return cost.exchange_seconds(step.nbytes, own, senders, link, self.profile)
        return cost.seconds(step.op, step.nbytes, ranks, link, self.profile)

    def overlap(self, source: Layout, target: Layout) -> MissingPart:
        return overlap(source.without_partial(), target.without_partial(), self.mesh, self.shape)

    def allows(self, steps: Sequence[PlanStep]) -> bool:
        cap = self.memory_bytes
        return all(s.op in self.ops and (cap is None or self.peak(s) <= cap) for s in steps)

    def why_not(self, source: Layout, target: Layout) -> str:
        if self.memory_bytes is not None:
            return f"no plan found within {self.memory_bytes} bytes per rank"
        needed = sorted({s.op for way in self.candidates(source, target) for s in way.steps})
        missing = ", ".join(op for op in needed if op not in self.ops)
        return f"it takes {missing or 'steps'}, of which none may be used"

    def same_buffer(self, one: Layout, other: Layout) -> bool:
        buffers = [la.allocation_shape(self.mesh, self.shape) for la in (one, other)]
        return buffers[0] == buffers[1]

    def candidates(self, source: Layout, target: Layout) -> Iterator[_Way]:
        """Yield every way worth a look, including those that are not allowed."""
        if same_placement(source, target, self.mesh, self.shape):
            same = self.same_buffer(source, target)
            yield _Way(() if same else (PlanStep("relayout", (), source, target, 0),))
            if same or "relayout" in self.ops:
                return
        blocks = [block_axes(la, self.mesh, self.shape) is not None for la in (source, target)]
        if all(blocks):
            found = self.searched(source, target)
            if found is not None:
                yield found
                if self.allows(found.steps):
                    return
        else:
            yield from self.around(source, target, blocks)
        if pending(source, self.mesh) == pending(target, self.mesh):
            yield _Way((self.direct(source, target),))
        else:
            yield _Way(self.reduced_first(source, target))

    def searched(self, source: Layout, target: Layout) -> _Way | None:
        """Return the cheapest steps between two layouts in blocks."""
        states = [State.of(layout, self.mesh, self.shape) for layout in (source, target)]
        known = [state for state in states if state is not None]
        names = common_names(self.mesh, known)
        if len(known) < 2 or names is None:
            return None
        start, end = (in_names(state, names, self.mesh) for state in known)
        moves = Moves(self.mesh, self.shape, end, names, tuple(sorted(self.ops)))
        search = Search(moves, self.itemsize, self.profile)
        path = search.path(start, self.memory_bytes)
        if path is None:
            return None
        return _Way(_steps(path, search, start, source, target), search.stopped)

    def around(self, source: Layout, target: Layout, blocks: Sequence[bool]) -> Iterator[_Way]:
        """Relayout to blocks, search there, relayout back: where only the memory order differs."""
        plain = [layout.without_order() for layout in (source, target)]
        if all(block_axes(layout, self.mesh, self.shape) is not None for layout in plain):
            found = self.searched(*plain)
            if found is not None:
                before, after = (() if b else (True,) for b in blocks)
                steps = (
                    *(PlanStep("relayout", (), source, plain[0], 0) for _ in before),
                    *found.steps,
                    *(PlanStep("relayout", (), plain[1], target, 0) for _ in after),
                )
                yield replace(found, steps=steps)

    def certain(self, source: Layout, target: Layout) -> Iterator[_Way]:
        """Yield the way that is right for all layouts, if it is allowed; it is made when it is asked for."""
        way = _Way(self.reduced_first(source, target, certain=True))
        if self.allows(way.steps):
            yield way

    def direct(self, source: Layout, target: Layout, certain: bool = False) -> PlanStep:
        """Return one exchange; a relayout where no rank misses anything.

        certain: over all axes that a sender may differ in.
        """
        found = self.overlap(source, target)
        axes = Table(source, target, self.mesh, self.shape).axes if certain else found.axes
        if not (axes if certain else found.at_most):
            return PlanStep("relayout", (), source, target, 0)
        return PlanStep("exchange", axes, source, target, found.at_most * self.itemsize)

    def reduced_first(
        self, source: Layout, target: Layout, certain: bool = False
    ) -> tuple[PlanStep, ...]:
        """Do all reductions where the elements lie, exchange, make pending what the target has.

        certain: in the one way that is right for all layouts: no pieces are cut, and an exchange goes over all axes.
        """
        steps: list[PlanStep] = []
        now = source
        if now.order is not None and pending(now, self.mesh):
            steps.append(PlanStep("relayout", (), now, now.without_order(), 0))
            now = now.without_order()
        while now.partial:
            steps.append(self.reduction(now, target, certain))
            now = steps[-1].target
        bare = target.without_partial()
        same = same_placement(now, bare, self.mesh, self.shape)
        if not same or not self.same_buffer(now, bare):
            steps.append(self.direct(now, bare, certain))
        rest = target.partial
        for at in reversed(range(len(rest))):
            after = target.with_partial(rest[at:])
            before = (
                steps[-1].target
                if at == len(rest) - 1 and steps
                else target.with_partial(rest[at + 1 :])
            )
            partial = rest[at]
            steps.append(PlanStep("local", partial.axes, before, after, 0, kind=partial.kind))
        return tuple(_chained(steps, source, target))

    def reduction(self, now: Layout, target: Layout, whole: bool) -> PlanStep:
        """Return a reduce_scatter of the first pending reduction where a dim divides, else an all_reduce.

        The dim that the target has on these axes is tried first. whole: always an all_reduce.
        """
        partial, rest = now.partial[0], now.partial[1:]
        axes = tuple(name for name in partial.axes if self.mesh.size(name) > 1)
        group = self.mesh.axis_count(axes)
        dims = sorted(range(now.ndim), key=lambda d: (not set(axes) & set(target.axes_of(d)), d))
        for dim in () if whole else dims:
            factors = self.split(now, dim, axes, group)
            if factors is not None and group > 1:
                rows = (*now.dims[:dim], factors, *now.dims[dim + 1 :])
                after = Layout(rows, rest, None, now.uneven)
                nbytes = cost.received("reduce_scatter", self.nbytes(after), group)
                return PlanStep(
                    "reduce_scatter", axes, now, after, nbytes, dim=dim, kind=partial.kind
                )
        after = now.with_partial(rest)
        count = self.nbytes(now) // self.itemsize
        nbytes = cost.received("all_reduce", count, group) * self.itemsize
        return PlanStep("all_reduce", partial.axes, now, after, nbytes, kind=partial.kind)

    def split(
        self, now: Layout, dim: int, axes: Sequence[str], group: int
    ) -> tuple[Factor, ...] | None:
        """Return the factors of a dim whose local positions are cut in `group` equal runs over `axes`."""
        if not has_digits(now, self.mesh, self.shape, dim):
            return None
        factors = now.dims[dim]
        at = next(i for i, factor in enumerate(factors) if isinstance(factor, LocalFactor))
        extent = now.extents(self.mesh, self.shape, dim)[at]
        local = factors[at]
        if extent == 0 or extent % group or not isinstance(local, LocalFactor):
            return None
        inner = LocalFactor(None if local.extent is None else extent // group)
        return (*factors[:at], *map(AxisFactor, axes), inner, *factors[at + 1 :])


def _chained(steps: Sequence[PlanStep], source: Layout, target: Layout) -> Iterator[PlanStep]:
    """Yield the same steps, each starting with the layout that the one before ends with."""
    now = source
    for number, step in enumerate(steps):
        after = target if number == len(steps) - 1 else step.target
        yield replace(step, source=now, target=after)
        now = after


def _steps(
    path: Sequence[Move], search: Search, start: State, source: Layout, target: Layout
) -> tuple[PlanStep, ...]:
    steps, state, before = [], start, source
    for number, move in enumerate(path):
        last = number == len(path) - 1
        after = target if last else move.state.layout(search.moves.mesh)
        sources = search.moves.sources(state, move.state) if move.op == "permute" else None
        details = {name: getattr(move, name) for name in DETAILS}
        nbytes = search.nbytes(move)
        steps.append(
            PlanStep(move.op, move.axes, before, after, nbytes, sources=sources, **details)
        )
        state, before = move.state, after
    return tuple(steps)
