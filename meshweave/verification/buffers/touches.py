"""Check what kernels may write in place, alone and row by row with others, by the elements that an iteration touches.

A kernel promises no order of its iterations. So it may write where it reads only if each iteration reads no other
element than the one that it writes. Kernels of an `mw.fuse` run row after row: what two of them touch, one of them
writing, must lie in one row of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from meshweave.verification.buffers.program import AffineIndex, Indices, Kernel
from meshweave.verification.buffers.regions import ByteRegion, Dims, Form, apart, merged
from meshweave.verification.buffers.relation import Doubt, Span
from meshweave.verification.buffers.views import Buffer


class Touch(NamedTuple):
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


class Touched(NamedTuple):
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
    touches = [_touched(b, _start(b, 0), b.strides, target.sizes, writes) for b, writes in pairs]
    return Touched("a copy", target.sizes, frozenset(), tuple(touches))


def _touch(
    sizes: tuple[int, ...],
    buffer: Buffer,
    indices: Indices,
    forms: Mapping[int, Form],
    writes: bool,
) -> Touch:
    if indices is None:
        region = buffer.region
        moved = ByteRegion(Form(buffer.base.start).plus(region.offset), region.dims)
        return Touch(buffer.base, _start(buffer, 0), None, buffer.width, writes, moved)
    const, steps, operands = _walked(len(sizes), indices, buffer.strides)
    offset = _start(buffer, const)
    for operand, factor in operands:
        offset = offset.plus(forms[operand], factor)
    return _touched(buffer, offset, steps, sizes, writes)


def _start(buffer: Buffer, const: int) -> Form:
    """Return where a buffer begins in its space, and so many bytes on."""
    return Form(buffer.base.start + buffer.offset.const + const, buffer.offset.terms)


@lru_cache(maxsize=1 << 12)
def _walked(
    count: int, indices: tuple[AffineIndex, ...], strides: tuple[int, ...]
) -> tuple[int, tuple[int, ...], list[tuple[int, int]]]:
    """Return the bytes before the first element, the step of each of `count` loops, and that of each operand."""
    const, steps = 0, [0] * count
    operands = list[tuple[int, int]]()
    for index, stride in zip(indices, strides):
        const += index.const * stride
        for loop, factor in index.loops:
            steps[loop] += factor * stride
        operands += [(operand, factor * stride) for operand, factor in index.operands]
    return const, tuple(steps), operands


def _touched(
    buffer: Buffer, offset: Form, steps: tuple[int, ...], sizes: tuple[int, ...], writes: bool
) -> Touch:
    low, dims = _covered(sizes, steps, buffer.width)
    region = ByteRegion(Form(offset.const + low, offset.terms), dims)
    return Touch(buffer.base, offset, steps, buffer.width, writes, region)


@lru_cache(maxsize=1 << 12)
def _covered(sizes: tuple[int, ...], steps: tuple[int, ...], width: int) -> tuple[int, Dims]:
    """Return where the first byte that loops touch lies, and the bytes from there on."""
    low = sum(min(0, step * (size - 1)) for size, step in zip(sizes, steps))
    dims = sorted(((size, abs(s)) for size, s in zip(sizes, steps) if s), key=lambda d: -d[1])
    return low, merged([*dims, (width, 1)])


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
    orders: dict[int, tuple[int, ...]] = {}

    def row(number: int, touch: Touch) -> _Row | None:
        if number not in orders:
            orders[number] = tuple(_order(members[number], members[0])[:rows])
        sizes = members[number].sizes
        return _row(sizes, touch.steps, touch.width, orders[number], rows)

    for a, b in combinations(range(len(members)), 2):
        for one in members[a].touches:
            (space, start, end), writes = one.span, one.writes
            for other in members[b].touches:
                there, begin, stop = other.span
                if start >= stop or begin >= end or not (writes or other.writes) or space != there:
                    continue
                if not meet(one, other):
                    continue
                between = other.offset.plus(one.offset, -1)
                if not _in_one_row(row(a, one), row(b, other), between):
                    who = f"{members[a].name} and {members[b].name}"
                    reason = f"{who}, which run row by row, touch other rows of it"
                    return Doubt(False, reason)
    return None


class _Row(NamedTuple):
    """Describe what a kernel touches in a row: size and step of its outer loops, from where to where without them."""

    outer: tuple[tuple[int, int], ...]
    low: int
    high: int


@lru_cache(maxsize=1 << 12)
def _row(
    sizes: tuple[int, ...],
    steps: tuple[int, ...] | None,
    width: int,
    outer: tuple[int, ...],
    rows: int,
) -> _Row | None:
    """Return what a touch of these steps touches in a row; None where that is not known. outer: the loops over rows."""
    if steps is None or len(outer) < rows:
        return None
    low, high = 0, width
    for d, (size, step) in enumerate(zip(sizes, steps)):
        if step and d not in outer:
            low, high = low + min(0, step * (size - 1)), high + max(0, step * (size - 1))
    return _Row(tuple([(sizes[d], steps[d]) for d in outer]), low, high)


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


def _in_one_row(a: _Row | None, b: _Row | None, between: Form) -> bool:
    """Tell whether two touches of the same bytes are always in the same row of both kernels. between: their offsets."""
    if a is None or b is None or between.terms or a.outer != b.outer:
        return False
    high, low = max(a.high, between.const + b.high), min(a.low, between.const + b.low)
    return _distinct([(size, abs(step)) for size, step in a.outer], high - low)
