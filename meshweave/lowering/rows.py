"""Kernels that work row by row on the same rows become one kernel: a loop over rows, in it all
their inner loops.

A softmax or a layer norm then reads its row from memory once and does the rest in the first-level
cache. It is allowed when every buffer that one of them writes is touched by all of them in the same
row of the outer loops only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshweave.locations import location_text
from meshweave.lowering.bind import (
    Access,
    Nest,
    Pointers,
    all_strides,
    merged,
    merged_at,
    reordered,
    without_ones,
)
from meshweave.lowering.steps import Step

MOST_NESTS = 16
LARGEST_ROW = 1 << 17  # elements touched per row beyond which rows do not stay in the cache


@dataclass
class Unit:
    """What one compiled kernel does: `rows` outer loops shared by all `nests`, which name pointers
    of one table.
    """

    nests: list[Nest]
    rows: int
    pointers: Pointers
    steps: list[Step]

    @property
    def where(self) -> str:
        """Its place in the source."""
        return location_text(self.steps[0].op.location)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for units that are the same code."""
        sizes = tuple(nbytes for _, _, nbytes in self.pointers.places)
        scalars = tuple(s.type for s in self.pointers.scalars)
        return (self.rows, tuple(self.nests), sizes, self.pointers.exclusive(), scalars)


def ordered(nest: Nest) -> Nest:
    """The nest with parallel loops first, the one with the largest steps in the result outermost;
    loops of 1 left out.
    """
    nest = without_ones(nest)
    steps = nest.stores[0].access.strides
    parallel = [d for d in range(len(nest.sizes)) if d not in nest.reductions]
    order = sorted(parallel, key=lambda d: -abs(steps[d])) + sorted(nest.reductions)
    return nest if order == list(range(len(order))) else reordered(nest, order)


def shared_rows(nests: list[Nest], pointers: Pointers) -> int:
    """The number of outer loops that these nests can share; 0: none."""
    parallel = [len(n.sizes) - len(n.reductions) for n in nests]
    most = min(parallel)
    if all(p == len(n.sizes) == most for p, n in zip(parallel, nests)):
        most -= 1
    for k in range(most):
        if len({n.sizes[k] for n in nests}) != 1:
            most = k
            break
    roots = [root for root, _, _ in pointers.places]
    written = {roots[k] for k in pointers.written}
    touched = [(roots[a.pointer], a, n) for n in nests for a in n.accesses]
    gathered = {roots[node[1]] for n in nests for node in n.code if node[0] == "gather"}
    if written & gathered:
        return 0
    for rows in range(most, 0, -1):
        if _row_size(nests, rows) <= LARGEST_ROW and all(
            row_local([(a, n) for r, a, n in touched if r is root], pointers, rows)
            for root in written
        ):
            return rows
    return 0


def _row_size(nests: list[Nest], rows: int) -> int:
    return max(math.prod(n.sizes[rows:]) for n in nests)


def row_local(touched: list[tuple[Access, Nest]], pointers: Pointers, rows: int) -> bool:
    """Whether all these accesses to one buffer stay, in each iteration of the `rows` outer loops,
    in that row alone.
    """
    strides = {a.strides[:rows] for a, _ in touched}
    if len(strides) != 1:
        return False
    outer = next(iter(strides))
    sizes = touched[0][1].sizes[:rows]
    low, high = _span(touched, pointers, rows)
    reach = high - low + 1
    for stride, size in reversed(list(zip(outer, sizes))):
        if stride < reach:
            return False
        reach = stride * size
    return True


def _span(touched: list[tuple[Access, Nest]], pointers: Pointers, rows: int) -> tuple[int, int]:
    """Least and largest element offset that the inner loops of these accesses reach."""
    low, high = [], []
    for access, nest in touched:
        offset = pointers.places[access.pointer][1]
        if offset.terms:
            return 0, 1 << 62
        start = offset.const + access.const
        ends = [s * (n - 1) for s, n in zip(access.strides[rows:], nest.sizes[rows:])]
        low.append(start + sum(e for e in ends if e < 0))
        high.append(start + sum(e for e in ends if e > 0))
    return min(low), max(high)


def related(nest: Nest, group: list[Nest], pointers: Pointers) -> bool:
    """Whether `nest` touches a buffer that the group writes."""
    roots = [root for root, _, _ in pointers.places]
    ours = {roots[a.pointer] for a in nest.accesses}
    theirs = {roots[s.access.pointer] for n in group for s in n.stores}
    return bool(ours & theirs)


def finished(unit: Unit) -> Unit:
    """The unit with loops merged: the shared ones where all nests allow, the inner ones nest by
    nest.
    """
    rows, nests = unit.rows, unit.nests
    k = rows - 2
    while k >= 0:
        inner = nests[0].sizes[k + 1]
        everything = [s for n in nests for s in all_strides(n)]
        if all(s[k] == s[k + 1] * inner for s in everything):
            nests = [merged_at(n, k) for n in nests]
            rows -= 1
        k -= 1
    return Unit([merged(n, rows) for n in nests], rows, unit.pointers, unit.steps)
