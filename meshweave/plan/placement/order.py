"""Choose the order in which variables are eliminated, by the sizes of the tables that arise alone."""

from collections.abc import Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from math import inf, prod


def elimination_order(
    sizes: Sequence[int],
    near: Mapping[int, Set[int]],
    most: int,
    neighbours: int | None = None,
    whole: float = inf,
) -> tuple[list[int], float]:
    """Return an order of variables, and the entries of all tables together.

    near: with which variables each one has a table. most: entries of a table; variables that would need a larger one
    are left. neighbours: variables that have more of them when their turn comes are left too. whole: give up, with an
    infinite number of entries, where one is left or all tables together have more than so many.
    Variables come first whose neighbours get the fewest new neighbours [Kjaerulff, Triangulation of graphs, 1990].
    """
    graph = {v: set(others) for v, others in near.items()}
    most_near = len(graph) if neighbours is None else neighbours

    def rank(v: int) -> tuple[int, int] | None:
        others = graph[v]
        # What it takes to look at these grows with the square of their number.
        if len(others) > most_near:
            return None
        missing = sum([len(others - graph[u]) - 1 for u in others])
        return missing, sizes[v] * prod([sizes[u] for u in others])

    ranks = {v: rank(v) for v in graph}
    queue = [(*r, v) for v, r in ranks.items() if r is not None]
    heapify(queue)
    order, total = list[int](), 0.0
    while queue:
        missing, entries, v = heappop(queue)
        if ranks.get(v) != (missing, entries):
            continue  # it has changed since
        others = graph[v]
        if entries > most:
            if whole < inf:
                return order, inf
            continue
        del ranks[v], graph[v]
        order.append(v)
        total += entries
        if total > whole:
            return order, inf
        meet = [(u, w) for u in others for w in others - graph[u] if u < w] if missing else []
        for u in others:
            graph[u] |= others
            graph[u] -= {u, v}
        # Who is beside two that meet has fewer to bring together.
        changed = set(others).union(*[graph[u] & graph[w] for u, w in meet])
        for u in sorted(changed):
            if (r := rank(u)) != ranks[u]:
                ranks[u] = r
                if r is not None:
                    heappush(queue, (*r, u))
    return order, total
