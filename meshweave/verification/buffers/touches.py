"""Check what kernels may write in place, alone and row by row with others, by the elements that an iteration touches.

A kernel promises no order of its iterations. So it may write where it reads only if each iteration reads no other
element than the one that it writes. Kernels of an `mw.fuse` run row after row: what two of them touch, one of them
writing, must lie in one row of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshweave.verification.buffers.program import Indices, Kernel
from meshweave.verification.buffers.regions import ByteRegion, Form, apart, merged
from meshweave.verification.buffers.relation import Doubt, Span
from meshweave.verification.buffers.views import Buffer


@dataclass(frozen=True)
class Touch:
    """Describe elements of `width` bytes that iterations read or write.

    span: what they are in. offset: of the first, in bytes of the space. steps: from one iteration to the next, for each
    loop; None: any element of `region`.
    """

    span: Span
    offset: Form
    steps: tuple[int, ...] | None
    width: int
    writes: bool
    region: ByteRegion


@dataclass(frozen=True)
class Touched:
    """Hold what the iterations of a kernel touch."""

    name: str
    sizes: tuple[int, ...]
    reductions: frozenset[int]
    touches: tuple[Touch, ...]
    product: bool = False

    @property
    def written(self) -> list[Touch]:
        """List what is written."""
        return [t for t in self.touches if t.writes]


def launched(
    name: str,
    kernel: Kernel,
    forms: Mapping[int, Form],
    given: Mapping[int, Sequence[Buffer]],
    outs: Sequence[Buffer],
) -> Touched:
    """Return what a launch touches. forms: operands that are scalars. given: which buffers the others may be."""
    pairs = [(b, indices, False) for k, indices in kernel.loads for b in given.get(k, ())]
    pairs += [(out, indices, True) for out, indices in zip(outs, kernel.outputs)]
    touches = tuple([_touch(kernel.sizes, b, i, forms, writes) for b, i, writes in pairs])
    return Touched(name, kernel.sizes, kernel.reductions, touches, kernel.product)


def copied(sources: Sequence[Buffer], target: Buffer) -> Touched:
    """Return what a copy touches. sources: which buffers it may be from."""
    pairs = [*[(source, False) for source in sources], (target, True)]
    touches = [
        _touched(b, Form(b.base.start).plus(b.offset), b.strides, target.sizes, writes)
        for b, writes in pairs
    ]
    return Touched("a copy", target.sizes, frozenset(), tuple(touches))


def _touch(
    sizes: tuple[int, ...],
    buffer: Buffer,
    indices: Indices,
    forms: Mapping[int, Form],
    writes: bool,
) -> Touch:
    offset = Form(buffer.base.start).plus(buffer.offset)
    if indices is None:
        region = buffer.region
        moved = ByteRegion(Form(buffer.base.start).plus(region.offset), region.dims)
        return Touch(buffer.base, offset, None, buffer.width, writes, moved)
    steps = [0] * len(sizes)
    for index, stride in zip(indices, buffer.strides):
        offset = offset.plus(Form(index.const * stride))
        for loop, factor in index.loops:
            steps[loop] += factor * stride
        for operand, factor in index.operands:
            offset = offset.plus(forms[operand], factor * stride)
    return _touched(buffer, offset, tuple(steps), sizes, writes)


def _touched(
    buffer: Buffer, offset: Form, steps: tuple[int, ...], sizes: tuple[int, ...], writes: bool
) -> Touch:
    low = sum(min(0, step * (size - 1)) for size, step in zip(sizes, steps))
    dims = sorted(((size, abs(s)) for size, s in zip(sizes, steps) if s), key=lambda d: -d[1])
    region = ByteRegion(offset.plus(Form(low)), merged([*dims, (buffer.width, 1)]))
    return Touch(buffer.base, offset, steps, buffer.width, writes, region)


def meet(a: Touch, b: Touch) -> bool:
    """Tell whether two may touch one byte."""
    return (
        a.span.space == b.span.space
        and a.span.start < b.span.end
        and b.span.start < a.span.end
        and not apart(a.region, b.region)
    )


def in_place(touched: Touched) -> Doubt | None:
    """Return None where a kernel reads each element that it writes right before, or not at all; else what is wrong."""
    for write in touched.written:
        for other in touched.touches:
            if other is write or not meet(write, other):
                continue
            if other.writes:
                return Doubt(
                    _known(write, other), f"{touched.name} writes two results to the same bytes"
                )
            if not _same_element(touched, write, other):
                reason = f"{touched.name} writes in place what another iteration of it reads"
                return Doubt(_known(write, other), reason)
    return None


def _known(a: Touch, b: Touch) -> bool:
    """Tell whether two surely touch one byte, as far as a simple look tells."""
    between = b.region.offset.plus(a.region.offset, -1)
    return not between.terms and all(len(t.region.dims) == 1 for t in (a, b))


def _same_element(touched: Touched, write: Touch, read: Touch) -> bool:
    """Tell whether each iteration reads the element that it alone writes."""
    wide = [d for d, size in enumerate(touched.sizes) if size > 1]
    if read.steps is None or write.steps is None or any(d in touched.reductions for d in wide):
        return False
    if (read.offset, read.width) != (write.offset, write.width):
        return False
    if any(read.steps[d] != write.steps[d] for d in wide):
        return False
    return _distinct([(touched.sizes[d], abs(write.steps[d])) for d in wide], write.width)


def _distinct(dims: Sequence[tuple[int, int]], width: int) -> bool:
    """Tell whether elements of `width` bytes that lie in these (size, step) share no byte."""
    reach = width
    for size, step in sorted(dims, key=lambda dim: dim[1]):
        if step < reach:
            return False
        reach += step * (size - 1)
    return True


def row_by_row(members: Sequence[Touched], rows: int) -> Doubt | None:
    """Return None where kernels may run row after row of their `rows` outer loops; else what is wrong."""
    orders = [_order(member, members[0]) for member in members]
    for (a, first), (b, second) in combinations(list(zip(members, orders)), 2):
        for one in a.touches:
            for other in b.touches:
                if not (one.writes or other.writes) or not meet(one, other):
                    continue
                if not _in_one_row((a, first, one), (b, second, other), rows):
                    reason = f"{a.name} and {b.name}, which run row by row, touch other rows of it"
                    return Doubt(False, reason)
    return None


def _order(member: Touched, first: Touched) -> list[int]:
    """Return the loops of a kernel as they run: parallel ones first, by how far apart their results lie.

    Behind a product they run in the order in which it stores what they read of it.
    """
    wide = [d for d, size in enumerate(member.sizes) if size > 1 and d not in member.reductions]
    steps = member.written[0].steps or (0,) * len(member.sizes)
    order = sorted(wide, key=lambda d: -abs(steps[d]))
    if not first.product or member is first:
        return order
    store = first.written[0]
    wanted = [store.steps[d] for d in _order(first, first)] if store.steps is not None else []
    for touch in member.touches:
        if touch.writes or touch.steps is None or touch.offset != store.offset:
            continue
        found = [touch.steps[d] for d in order]
        if len(set(wanted)) == len(wanted) and sorted(found) == sorted(wanted):
            return [order[found.index(step)] for step in wanted]
    return order


Placed = tuple[Touched, Sequence[int], Touch]


def _in_one_row(a: Placed, b: Placed, rows: int) -> bool:
    """Tell whether two touches of the same bytes are always in the same row of both kernels."""
    outer, lows, highs = [], [], []
    start = a[2].offset
    for touched, order, touch in (a, b):
        if touch.steps is None or len(order) < rows:
            return False
        outer.append([(touched.sizes[d], touch.steps[d]) for d in order[:rows]])
        between = touch.offset.plus(start, -1)
        if between.terms:
            return False
        inner = [
            touch.steps[d] * (touched.sizes[d] - 1)
            for d in range(len(touched.sizes))
            if d not in order[:rows]
        ]
        lows.append(between.const + sum(min(0, reach) for reach in inner))
        highs.append(between.const + sum(max(0, reach) for reach in inner) + touch.width)
    if outer[0] != outer[1]:
        return False
    return _distinct([(size, abs(step)) for size, step in outer[0]], max(highs) - min(lows))
