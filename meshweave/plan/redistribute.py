"""Plan a redistribution: the cheapest steps from one layout to another, by A* over layouts.

The cost of a step is its time in the alpha-beta model (cost.py); what a layout still misses of the
target is received at some time, so the time for that bounds the rest of the way from below. Of
plans that cost the same the first found is taken, and moves have a fixed order: the same question
always has the same answer.
"""

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import inf, prod
from typing import Any

from meshweave.errors import LayoutError, PlanError
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Link, Mesh
from meshweave.plan import cost
from meshweave.plan.bounds import Missing, lower_bound
from meshweave.plan.cost import SHARED_MEMORY, Profile
from meshweave.plan.moves import Axes, Move, Moves, State
from meshweave.plan.steps import COLLECTIVES, Plan, Step

__all__ = ["Plan", "Step", "cache_clear", "cache_info", "plan_redistribute"]

SEARCH_LIMIT = 2000  # layouts looked at before the plan that is always there is taken


def plan_redistribute(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: Sequence[int],
    itemsize: int,
    *,
    profile: Profile = SHARED_MEMORY,
    memory_bytes: int | None = None,
) -> Plan:
    """The plan that takes a tensor of global `shape` from `source` to `target` on `mesh`.

    itemsize:     bytes of an element.
    memory_bytes: cap on what the input and output of a step take together on a rank. None: twice
    the larger of the local tensors at both ends, or, where no exact plan stays within that, as
    little as the cheapest one takes. Axes of size 1 cost no step. Pure, and cached by value: see
    `cache_info`. Raises LayoutError when a layout does not fit mesh and shape; PlanError when a
    layout is not in blocks or no plan stays within memory_bytes.
    """
    return _plan(source, target, mesh, tuple(shape), itemsize, profile, memory_bytes)


@lru_cache(maxsize=1 << 16)
def _plan(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: tuple[int, ...],
    itemsize: int,
    profile: Profile,
    memory_bytes: int | None,
) -> Plan:
    for layout in (source, target):
        layout.check(mesh, shape)
    try:
        start, end = State.of(source, mesh), State.of(target, mesh)
    except LayoutError as error:
        raise PlanError(f"redistribute {source} -> {target}: {error.message}") from None
    search = _Search(Moves(mesh, shape, end), itemsize, profile)
    moves = search.path(start, memory_bytes)
    if moves is None:
        raise PlanError(
            f"redistribute {source} -> {target}: no plan found within {memory_bytes} bytes per rank"
        )
    steps = _steps(moves, search, start, source, target)
    return _summed(steps, search, start, end)


cache_info = _plan.cache_info
cache_clear = _plan.cache_clear


def _steps(
    moves: list[Move], search: "_Search", start: State, source: Layout, target: Layout
) -> tuple[Step, ...]:
    steps, state, before = [], start, source
    for number, move in enumerate(moves):
        after = target if number == len(moves) - 1 else move.state.layout()
        sources = search.moves.sources(state, move.state) if move.op == "permute" else None
        steps.append(
            Step(
                move.op,
                move.axes,
                before,
                after,
                search.nbytes(move),
                dim=move.dim,
                split_dim=move.split_dim,
                concat_dim=move.concat_dim,
                kind=move.kind,
                sources=sources,
            )
        )
        state, before = move.state, after
    return tuple(steps)


def _summed(steps: tuple[Step, ...], search: "_Search", start: State, end: State) -> Plan:
    moves = search.moves
    bound = lower_bound(moves, start, end) * search.itemsize
    locals_ = [
        [prod(layout.local_shape(moves.mesh, moves.shape)) for layout in (step.source, step.target)]
        for step in steps
    ] or [[prod(moves.local_shape(start))]]
    nbytes = sum(step.nbytes for step in steps)
    assert nbytes >= bound, f"{steps} receive {nbytes} bytes, less than the bound {bound}"
    return Plan(
        steps,
        nbytes=nbytes,
        lower_bound=bound,
        launches=sum(step.op in COLLECTIVES for step in steps),
        peak_bytes=max(map(sum, locals_)) * search.itemsize,
        proved_minimal=nbytes == bound,
    )


class _Search:
    """A* for one target; estimates never exceed the true rest, so the first path to arrive is the
    cheapest.
    """

    def __init__(self, moves: Moves, itemsize: int, profile: Profile) -> None:
        self.moves = moves
        self.itemsize = itemsize
        self.profile = profile
        self.links: dict[Axes, Link] = {}
        self.missing = Missing(moves)
        singles = [self.link((axis.name,)) for axis in moves.mesh.axes]
        self.least = profile.launch + min((link.alpha for link in singles), default=0.0)
        self.beta = itemsize * min((link.beta for link in singles), default=0.0)

    def link(self, axes: Axes) -> Link:
        if axes not in self.links:
            self.links[axes] = cost.link_of(self.moves.mesh, axes, self.profile)
        return self.links[axes]

    def nbytes(self, move: Move) -> int:
        """Bytes the busiest rank receives."""
        return cost.received(move.op, move.unit, self.moves.count(move.axes)) * self.itemsize

    def seconds(self, move: Move) -> float:
        if move.op in COLLECTIVES:
            ranks = self.moves.count(move.axes)
            link = self.link(move.axes)
            return cost.seconds(move.op, self.nbytes(move), ranks, link, self.profile)
        # Never free, so that a plan has no idle steps even of empty tensors.
        return cost.copy_seconds(1 + move.unit * self.itemsize, self.profile)

    def rest(self, state: State) -> float:
        """At least this long from `state` to the target."""
        elements = self.missing.elements(state)
        return self.least + self.beta * elements if elements else 0.0

    def path(self, start: State, memory_bytes: int | None) -> list[Move] | None:
        """The cheapest moves from start to the target within memory; None when there are none."""
        ends = [prod(self.moves.local_shape(s)) for s in (start, self.moves.target)]
        soft = 2 * max(ends) * self.itemsize
        found = self._cheapest(start, soft if memory_bytes is None else memory_bytes)
        if found is not None or memory_bytes is not None:
            return found
        found = self._cheapest(start, inf)
        return self.moves.certain(start) if found is None else found

    def _cheapest(self, start: State, cap: float) -> list[Move] | None:
        target = self.moves.target
        best: dict[State, float] = {start: 0.0}
        came: dict[State, tuple[State, Move]] = {}
        queue: list[tuple[float, int, State, float]] = [(self.rest(start), 0, start, 0.0)]
        pushed, looked_at = 0, 0
        while queue and looked_at < SEARCH_LIMIT:
            _, _, state, spent = heappop(queue)
            if spent > best[state]:
                continue
            if state == target:
                return _way(came, state)
            looked_at += 1
            here = prod(self.moves.local_shape(state))
            for move in self.moves.of(state):
                total = spent + self.seconds(move)
                if total >= best.get(move.state, inf):
                    continue
                if (here + prod(self.moves.local_shape(move.state))) * self.itemsize > cap:
                    continue
                best[move.state] = total
                came[move.state] = (state, move)
                pushed += 1
                heappush(queue, (total + self.rest(move.state), pushed, move.state, total))
        return None


def _way(came: dict[State, tuple[State, Move]], state: State) -> list[Move]:
    moves: list[Any] = []
    while state in came:
        state, move = came[state]
        moves.append(move)
    return moves[::-1]
