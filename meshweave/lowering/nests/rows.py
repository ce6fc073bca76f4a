"""Bind launches to memory, and join those that work on the same rows: one loop over rows, in it all their inner loops.

A softmax or a layer norm then reads its row from memory once and does the rest in the first-level
cache. It is allowed when every buffer that one of them writes is touched by all of them in the same
row of the outer loops only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Load
from meshweave.ir.locations import location_text
from meshweave.ir.sorting import SWITCH
from meshweave.lowering.buffers.steps import Buffers, Root, Step
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.bind import (
    Access,
    LoopNest,
    Pointers,
    all_strides,
    bind,
    merged,
    merged_at,
    reordered,
    without_ones,
)
from meshweave.lowering.nests.bodies import constant_of
from meshweave.lowering.nests.kernels import ElementRef, FusedKernel, Output

MOST_NESTS = 16
MOST_LOOPS = 64  # around anything
LARGEST_ROW = 1 << 17  # elements touched per row beyond which rows do not stay in the cache


@dataclass
class KernelUnit:
    """Hold what one compiled kernel does: `rows` outer loops shared by all `nests`, which use one table of pointers."""

    nests: list[LoopNest]
    rows: int
    pointers: Pointers
    steps: list[Step]

    @property
    def where(self) -> str:
        """Return its place in the source."""
        return location_text(self.steps[0].op.location)

    @property
    def title(self) -> str:
        """Return what it does in a word or two, for reports."""
        if any(nest.contraction for nest in self.nests):
            return "matrix product"
        copies = all(isinstance(node, Load) for nest in self.nests for node in nest.code)
        return "copy" if copies else "loops"

    @property
    def key(self) -> tuple[object, ...]:
        """Return a value that is equal for units with the same code."""
        sizes = tuple([place.nbytes for place in self.pointers.places])
        scalars = tuple(s.type for s in self.pointers.scalars)
        return (self.rows, tuple(self.nests), sizes, self.pointers.exclusive(), scalars)


Entry: TypeAlias = KernelUnit | Step
"""What a function runs in its turn: one kernel call, or an op that stays."""


def in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries, each before those of its bodies."""
    for entry in entries:
        yield entry
        if isinstance(entry, Step):
            for body in entry.bodies:
                yield from in_order(body)


def numbers_of(op: ir.Operation) -> range | None:
    """Return the numbers that the counter of an scf.for has, where they are known."""
    known = [constant_of(value) for value in list(op.operands)[:3]]
    if op.name != "scf.for" or any(number is None for number in known):
        return None
    return range(*[number.value for number in known if number is not None])


def iterations_of(entries: Iterable[Entry]) -> int:
    """Count the iterations of the kernels of a block; of a loop around them that has no known end, those of a round."""
    total = 0
    for entry in entries:
        if isinstance(entry, KernelUnit):
            total += sum(math.prod(nest.sizes) for nest in entry.nests)
            continue
        numbers = numbers_of(entry.op)
        times = 1 if numbers is None else len(numbers)
        total += times * sum(iterations_of(body) for body in entry.bodies)
    return total


def ordered(nest: LoopNest) -> LoopNest:
    """Put parallel loops first, the one with the largest steps in the result outermost; leave out loops of 1."""
    nest = without_ones(nest)
    steps = nest.stores[0].access.strides
    parallel = [d for d in range(len(nest.sizes)) if d not in nest.reductions]
    order = sorted(parallel, key=lambda d: -abs(steps[d])) + sorted(nest.reductions)
    return nest if order == list(range(len(order))) else reordered(nest, order)


def loop_order(nest: LoopNest, rows: int) -> list[int]:
    """Return the inner loops, outermost first. The innermost is the one that most accesses walk with step 1."""
    dims = list(range(rows, len(nest.sizes)))
    if len(dims) < 2:
        return dims

    def volume(access: Access) -> int:
        return math.prod(n for n, s in zip(nest.sizes, access.strides) if s)

    def weight(dim: int) -> tuple[int, int]:
        reads = sum(volume(a) for a in nest.accesses if a.strides[dim] in (1, -1))
        writes = sum(volume(s.access) for s in nest.stores if s.access.strides[dim] in (1, -1))
        return (reads + writes, dim)

    innermost = max(dims, key=weight)
    others = [d for d in dims if d != innermost]
    return [*sorted(others, key=lambda d: d in nest.reductions), innermost]


def before_vectors(nests: Iterable[LoopNest]) -> int:
    """Count the outer loops that nests can share while each reduction keeps the loop its vectors run along.

    A sum over the first dim of a matrix, or a product of one row, adds rows to rows. With its columns as shared
    loops it would walk down each column alone.
    """
    return min([loop_order(nest, 0)[-1] for nest in nests if nest.reductions], default=MOST_LOOPS)


def streams(nest: LoopNest, behind: LoopNest, pointers: Pointers) -> bool:
    """Tell whether a nest multiplies one row by weights that lie along the depth, too many for a cache.

    behind: a nest that would run for each of its sums. Where that does not read the weights too it is better left for
    afterwards: alone, the product reads them as fast as memory is.
    """
    parallel = nest.parallel
    walks = [(load, [d for d in parallel if load.access.strides[d]]) for load in nest.loads]
    rows = [load for load, dims in walks if not dims and any(load.access.strides)]
    weights = [load for load, dims in walks if dims == parallel]
    if not nest.reductions or not rows or not parallel or len(rows) + len(weights) != len(walks):
        return False
    last = loop_order(nest, 0)[-1]
    if last not in nest.reductions or math.prod(nest.sizes) < LARGEST_ROW:
        return False
    roots = pointers.roots
    read = {roots[access.pointer] for access in behind.accesses}
    return all(roots[load.access.pointer] not in read for load in weights)


def shared_rows(
    nests: list[LoopNest], pointers: Pointers, most: int = MOST_LOOPS, largest: int = LARGEST_ROW
) -> int:
    """Return the number of outer loops, at most `most`, that these nests can share; 0 for none.

    largest: elements of a row, at most.
    One that puts elements in order shares none: it does so for all of a dim that is a loop of its places.
    """
    if any(SWITCH in nest.switches for nest in nests):
        return 0
    parallel = [len(n.sizes) - len(n.reductions) for n in nests]
    most = min(most, *parallel)
    if all(p == len(n.sizes) == most for p, n in zip(parallel, nests)):
        most -= 1
    for k in range(most):
        if len({(n.sizes[k], n.limit(k)) for n in nests}) != 1:
            most = k
            break
    roots = pointers.roots
    touched: dict[Root, list[tuple[Access, LoopNest]]] = {r: [] for r in pointers.written_roots}
    for nest in nests:
        if any(roots[g.access.pointer] in touched for g in nest.gathers):
            return 0
        for access in nest.accesses:
            root = roots[access.pointer]
            if root in touched:
                touched[root].append((access, nest))
    for rows in range(most, 0, -1):
        row = max(math.prod(n.sizes[rows:]) for n in nests)
        if row <= largest and all(row_local(t, pointers, rows) for t in touched.values()):
            return rows
    return 0


def row_local(touched: list[tuple[Access, LoopNest]], pointers: Pointers, rows: int) -> bool:
    """Tell whether accesses to one buffer stay, in each iteration of the `rows` outer loops, in that row alone."""
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


def _span(touched: list[tuple[Access, LoopNest]], pointers: Pointers, rows: int) -> tuple[int, int]:
    """Return the least and the largest element offset that the inner loops of these accesses reach."""
    lows, highs = [], []
    for access, nest in touched:
        start = pointers.places[access.pointer].offset
        if start.terms:
            return 0, 1 << 62
        low = high = start.const
        for stride, size in zip(access.strides[rows:], nest.sizes[rows:]):
            if stride < 0:
                low += stride * (size - 1)
            else:
                high += stride * (size - 1)
        lows.append(low)
        highs.append(high)
    return min(lows), max(highs)


def related(nest: LoopNest, group: list[LoopNest], pointers: Pointers) -> bool:
    """Tell whether `nest` touches a buffer that the group writes."""
    roots = pointers.roots
    ours = {roots[a.pointer] for a in nest.accesses}
    theirs = {roots[s.access.pointer] for n in group for s in n.stores}
    return bool(ours & theirs)


def finished(unit: KernelUnit) -> KernelUnit:
    """Merge loops of a unit: the shared ones where all nests allow, the inner ones nest by nest."""
    rows, nests = unit.rows, unit.nests
    k = rows - 2
    while k >= 0:
        inner = nests[0].sizes[k + 1]
        everything = [s for n in nests for s in all_strides(n)]
        limited = nests[0].limit(k) is not None or nests[0].limit(k + 1) is not None
        if not limited and all(s[k] == s[k + 1] * inner for s in everything):
            nests = [merged_at(n, k) for n in nests]
            rows -= 1
        k -= 1
    return KernelUnit([merged(n, rows) for n in nests], rows, unit.pointers, unit.steps)


Follow = Callable[[LoopNest, LoopNest], LoopNest]
"""Return the second nest with its loops in the order that suits the first, a contraction."""


def nest_of(step: Step, pointers: Pointers, buffers: Buffers) -> LoopNest:
    """Return the loop nest of a launch or a copy; what it touches is added to `pointers`."""
    kernel = step.kernel or copy_kernel(step)
    return ordered(bind(kernel, step, pointers, buffers.symbols.form))


def unit_of(
    steps: Sequence[Step], rows: int, buffers: Buffers, follow: Follow | None
) -> KernelUnit:
    """Return the unit that runs these launches and copies, whose `rows` outer loops are shared.

    follow: how nests behind a contraction are ordered, for targets that compute them with it.
    """
    pointers = Pointers()
    nests: list[LoopNest] = []
    for step in steps:
        nest = nest_of(step, pointers, buffers)
        if nests and nests[0].contraction and follow is not None:
            nest = follow(nests[0], nest)
        nests.append(nest)
    return finished(KernelUnit(nests, rows, pointers, list(steps)))


def copy_kernel(step: Step) -> FusedKernel:
    """Return the kernel that copies one buffer to another."""
    source, target = step.operands[0], step.outputs[0]
    if source.shape != target.shape:
        raise CompileError("a copy between shapes", location_text(step.op.location))
    whole = linear.identity(len(target.shape))
    return FusedKernel(
        target.shape,
        frozenset(),
        (ir.RankedTensorType.get(source.shape, source.element),),
        (Load(ElementRef(0, whole), source.element),),
        (Output(whole, target.element, 0),),
    )
