"""Find the cheapest way between two layouts in blocks, by A* over layouts.

The cost of a step is its time in the alpha-beta model (cost.py). What a layout still lacks of the target must be
received at some time, so the time for that bounds the rest of the way from below. Among plans of equal cost the first
found is taken, and moves have a fixed order: the same question always has the same answer.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf, prod

from meshweave.layout.mesh import Link
from meshweave.plan import cost
from meshweave.plan.bounds import Missing
from meshweave.plan.cost import Profile
from meshweave.plan.moves import Axes, Move, Moves, State
from meshweave.plan.steps import COLLECTIVES

SEARCH_LIMIT = 2000  # layouts looked at before the best plan known by then is taken
MOVES_LIMIT = 20_000  # moves tried before that
HURRY_AFTER = (
    120  # layouts looked at before the estimates count HURRY times: fewer detours are tried
)
HURRY = 2.0


class Search:
    """Search by A* for one target; estimates never exceed the true rest, so the first path to arrive is the cheapest.

    limit:     layouts looked at; with a limit of its own the search never hurries.
    exhausted: after `path`: whether the search ended by itself, so that its answer is proved.
    stopped:   after `path`: whether it ended at a limit, with the best answer known by then.
    """

    def __init__(
        self, moves: Moves, itemsize: int, profile: Profile, limit: int = SEARCH_LIMIT
    ) -> None:
        self.moves = moves
        self.itemsize = itemsize
        self.profile = profile
        self.limit = limit
        self.exhausted, self.stopped = True, False
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
        """Return the bytes the busiest rank receives."""
        if move.op == "exchange":
            return move.unit * self.itemsize
        return cost.received(move.op, move.unit, self.moves.count(move.axes)) * self.itemsize

    def seconds(self, move: Move) -> float:
        """Return the seconds a step takes; a local one is never free, so that a plan has no idle steps."""
        if move.op == "exchange":
            link, own = self.link(move.axes), move.own * self.itemsize
            return cost.exchange_seconds(self.nbytes(move), own, move.senders, link, self.profile)
        if move.op in COLLECTIVES:
            ranks, link = self.moves.count(move.axes), self.link(move.axes)
            return cost.seconds(move.op, self.nbytes(move), ranks, link, self.profile)
        ndim = len(self.moves.shape)
        return cost.local_seconds(move.op, move.unit * self.itemsize, ndim, self.profile)

    def rest(self, state: State) -> float:
        """Return a lower bound of the seconds from `state` to the target."""
        elements = self.missing.elements(state)
        return self.least + self.beta * elements if elements else 0.0

    def path(self, start: State, memory_bytes: int | None) -> list[Move] | None:
        """Return the cheapest moves from start to the target within memory; None when there are none.

        memory_bytes: cap on the total bytes of the input and output of a step; None: no tensor on the way is larger
                      than the larger end, or, where that cannot be, as little as the cheapest plan takes.
        """
        ends = [prod(self.moves.local_shape(s)) for s in (start, self.moves.target)]
        if memory_bytes is not None:
            return self._cheapest(start, inf, memory_bytes)
        found = self._cheapest(start, max(ends), inf)
        if found is None:
            found = self._cheapest(start, inf, inf)
        return self.moves.certain(start) if found is None else found

    def _cheapest(self, start: State, largest: float, cap: float) -> list[Move] | None:
        target = self.moves.target
        best: dict[State, float] = {start: 0.0}
        came: dict[State, tuple[State, Move]] = {}
        queue: list[tuple[float, int, State, float]] = [(self.rest(start), 0, start, 0.0)]
        pushed, looked_at, tried, hurry = 0, 0, 0, 1.0
        self.exhausted = True
        while queue:
            _, _, state, spent = heappop(queue)
            if spent > best[state]:
                continue
            if state == target:
                return _way(came, state)
            if looked_at == self.limit or tried >= MOVES_LIMIT:
                self.exhausted, self.stopped = False, True
                return _way(came, target) if target in came else None
            looked_at += 1
            if looked_at == HURRY_AFTER and self.limit == SEARCH_LIMIT:
                hurry, self.exhausted = HURRY, False
                queue = [(g + hurry * self.rest(s), k, s, g) for _, k, s, g in queue]
                heapify(queue)
            here = prod(self.moves.local_shape(state))
            for move in islice(self._moves(state, start, spent, best), MOVES_LIMIT - tried):
                tried += 1
                total = spent + self.seconds(move)
                if total >= best.get(move.state, inf):
                    continue
                there = prod(self.moves.local_shape(move.state))
                if there > largest or (here + there) * self.itemsize > cap:
                    continue
                estimate = total + self.rest(move.state)
                if estimate >= best.get(target, inf):
                    continue
                best[move.state] = total
                came[move.state] = (state, move)
                pushed += 1
                weighed = total + hurry * (estimate - total)
                heappush(queue, (weighed, pushed, move.state, total))
        return None

    def _moves(
        self, state: State, start: State, spent: float, best: dict[State, float]
    ) -> Iterator[Move]:
        """Yield the moves from a state.

        An exchange does everything at once, so it is only of use at first, or once nothing is pending or what the
        target has: from elsewhere it brings no less in more launches.
        """
        ops = self.moves.ops
        yield from (move for move in self.moves.of(state) if move.op in ops)
        settled = state.partial in ((), self.moves.target.partial)
        if state == start or (settled and state.partial != start.partial):
            after = self.moves.exchanged(state)
            if after is None or spent + self._at_least(state) >= best.get(after, inf):
                return  # counting its bytes would be for nothing
            if spent + self.rest(state) < best.get(self.moves.target, inf):
                move = self.moves.exchange(state)
                if move is not None:
                    yield move

    def _at_least(self, state: State) -> float:
        """Return a quick lower bound of the seconds of an exchange; 0 where it may be a mere relayout."""
        elements = self.missing.of_dims(state)
        return self.least + self.beta * cost.EXCHANGE_SLOWDOWN * elements if elements else 0.0


def _way(came: dict[State, tuple[State, Move]], state: State) -> list[Move]:
    moves: list[Move] = []
    while state in came:
        state, move = came[state]
        moves.append(move)
    return moves[::-1]
