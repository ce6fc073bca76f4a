"""Choose the order in which variables are eliminated, by the sizes of the tables that arise alone."""

from collections.abc import Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from math import prod


def elimination_order(
    sizes: Sequence[int],
    near: Mapping[int, Set[int]],
    most: int,
    neighbours: int | None = None,
) -> tuple[list[int], int]:
    """Return an order of variables, and the entries of all tables together.

    near: with which variables each one has a table. most: entries of a table; variables that would need a larger one
    are left. neighbours: variables that have more of them when their turn comes are left too.
    Variables come first whose neighbours get the fewest new neighbours [Kjaerulff, Triangulation of graphs, 1990].
    """
    graph = {v: set(others) for v, others in near.items()}

    def rank(v: int) -> tuple[int, int]:
        others = graph[v]
        missing = sum([len(others - graph[u]) - 1 for u in others])
        return missing, sizes[v] * prod([sizes[u] for u in others])

    ranks = {v: rank(v) for v in graph}
    queue = [(*r, v) for v, r in ranks.items()]
    heapify(queue)
    order, total = [], 0
    while queue:
        missing, entries, v = heappop(queue)
        if ranks.get(v) != (missing, entries):
            continue  # it has changed since
        others = graph[v]
        if entries > most or (neighbours is not None and len(others) > neighbours):
            continue
        del ranks[v], graph[v]
        order.append(v)
        total += entries
        changed = set(others)
        for u in others:
            graph[u] |= others
            graph[u] -= {u, v}
        if missing:
            # Two of them meet: who is beside both has fewer to bring together.
            for u in others:
                changed |= graph[u]
        for u in sorted(changed):
            if (r := rank(u)) != ranks[u]:
                ranks[u] = r
                heappush(queue, (*r, u))
    return order, total
