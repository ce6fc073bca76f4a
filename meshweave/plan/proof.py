"""Prove that no plan of collectives and slices has fewer bytes than a given one.

The search for plans leaves out moves that hardly ever pay; a proof may not. `EveryMove` offers them all: between any
two layouts in blocks, whatever the target is.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from math import prod

from meshweave.layout.algebra import merged
from meshweave.layout.mesh import Link, Mesh
from meshweave.plan.cost import Profile
from meshweave.plan.moves import Axes, Move, Moves, State, common_names, in_names
from meshweave.plan.search import Search
from meshweave.plan.steps import OPS, Plan

PROOF_LIMIT = 2000  # layouts that `minimal_among` looks at

BYTES_ONLY = Profile(Link(0.0, 1.0), 0.0, 1e-12)
"""A machine on which only bytes count."""


def minimal_among(plan: Plan, mesh: Mesh, shape: Sequence[int], itemsize: int) -> str | None:
    """Name the class of plans among which this plan is proved to have the fewest bytes.

    "all plans"; "collectives", if an exhaustive search finds none of collectives, slices and local steps between
    layouts in blocks with fewer; None where nothing is proved.
    """
    if plan.proved_minimal or not plan.steps:
        return "all plans"
    if any(step.op in ("exchange", "relayout") for step in plan):
        return None
    states = [
        State.of(layout, mesh, shape) for layout in (plan.steps[0].source, plan.steps[-1].target)
    ]
    plain = Mesh(**{name: mesh.size(name) for name in mesh.names})
    known = [state for state in states if state is not None]
    names = common_names(plain, known)
    if len(known) < 2 or names is None:
        return None
    start, end = (in_names(state, names, plain) for state in known)
    moves = EveryMove(plain, shape, start, end, names)
    search = Search(moves, itemsize, BYTES_ONLY, limit=PROOF_LIMIT)
    found = search.path(start, 1 << 62)
    if found is None or not search.exhausted:
        return None
    return "collectives" if plan.nbytes <= sum(map(search.nbytes, found)) else None


class EveryMove(Moves):
    """Offer every step between layouts in blocks except exchanges and relayouts."""

    def __init__(
        self, mesh: Mesh, shape: Sequence[int], start: State, target: State, names: Axes
    ) -> None:
        """Offer the moves between start and target. names: the axes, or sub-axes, that layouts are made of."""
        ops = [op for op in OPS if op not in ("exchange", "relayout")]
        super().__init__(mesh, shape, target, names, ops)
        said = dict.fromkeys(kind for state in (start, target) for kind, _ in state.partial)
        # Any kind that has a neutral element is as good as another: one is there to embed with.
        self.kinds = tuple(said) if set(said) - {"avg"} else (*said, "sum")

    def _may_reduce(self, state: State) -> bool:
        return True

    def _free(self, state: State) -> list[str]:
        return self._unused(state)

    def _appended(self, dim: int, held: Axes, free: Sequence[str]) -> list[Axes]:
        return [row for count in range(1, len(free) + 1) for row in permutations(free, count)]

    def _groups(self, axes: Axes) -> list[Axes]:
        return _subsets(axes)

    def _pendings(self, state: State, local: list[int]) -> Iterator[Move]:
        for kind in self.kinds:
            for axes in _subsets(self._unused(state)):
                after = State(state.dims, merged(((kind, axes), *state.partial)))
                yield Move("local", axes, after, prod(local), kind=kind)
            if kind != "avg":
                yield from self._embeds(state, kind, set(self.names))

    def _rearranged(self, state: State) -> Iterator[State]:
        counts = [self.count(axes) for axes in state.dims]
        pending = [self.count(axes) for _, axes in state.partial]
        for rows in self._filled([*counts, *pending], len(counts), self.names):
            partial = zip((kind for kind, _ in state.partial), rows[len(counts) :], strict=True)
            yield State(tuple(rows[: len(counts)]), tuple(partial))

    def _filled(
        self, counts: Sequence[int], ordered: int, free: Sequence[str]
    ) -> Iterator[list[Axes]]:
        """Yield rows of `free` axes, one for each of `counts` ranks; the first `ordered` rows in any order of axes."""
        if not counts:
            yield []
            return
        for row in self._rows(counts[0], free, ordered > 0):
            rest = [axis for axis in free if axis not in row]
            for others in self._filled(counts[1:], ordered - 1, rest):
                yield [row if ordered > 0 else tuple(sorted(row)), *others]

    def _rows(self, count: int, free: Sequence[str], ordered: bool) -> Iterator[Axes]:
        """Yield the rows of free axes with that many ranks, in any order or in that of `free`."""
        if count == 1:
            yield ()
        for at, axis in enumerate(free):
            if self.sizes[axis] > 1 and count % self.sizes[axis] == 0:
                rest = [*free[:at], *free[at + 1 :]] if ordered else free[at + 1 :]
                for others in self._rows(count // self.sizes[axis], rest, ordered):
                    yield (axis, *others)


def _subsets(axes: Sequence[str]) -> list[Axes]:
    return [row for count in range(1, len(axes) + 1) for row in combinations(axes, count)]
