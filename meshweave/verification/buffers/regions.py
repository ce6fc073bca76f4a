"""Say which bytes of a buffer a view covers, and how two views lie to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple


class Form(NamedTuple):
    """Hold const + sum of factor * number over `terms`, which are sorted; a number is that of a scalar (scalars.py)."""

    const: int
    terms: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Form, factor: int = 1) -> Form:
        """Add a multiple of another form."""
        const = self.const + other.const * factor
        if not other.terms:
            return Form(const, self.terms)
        sums = dict(self.terms)
        for atom, by in other.terms:
            sums[atom] = sums.get(atom, 0) + by * factor
        return Form(const, tuple(sorted((a, f) for a, f in sums.items() if f)))

    def times(self, factor: int) -> Form:
        """Multiply the form by a number."""
        if factor == 0:
            return ZERO
        return Form(self.const * factor, tuple([(a, f * factor) for a, f in self.terms]))


ZERO = Form(0)
Bounds = Mapping[int, tuple[int, int]]
NO_BOUNDS: Bounds = {}
Dims = tuple[tuple[int, int], ...]


class ByteRegion(NamedTuple):
    """Hold bytes of a buffer: `dims` are (size, step) with the outermost first, bytes back to back being a dim too."""

    offset: Form
    dims: Dims

    @property
    def nbytes(self) -> int:
        """Count the bytes."""
        return prod(size for size, _ in self.dims)

    @property
    def reach(self) -> int:
        """Return how many bytes there are from the first to the last."""
        return 1 + sum((size - 1) * step for size, step in self.dims)

    def is_all_of(self, nbytes: int) -> bool:
        """Tell whether these are the first `nbytes` bytes, in order."""
        return self.dims == ((nbytes, 1),) and self.offset == ZERO


def whole(nbytes: int) -> ByteRegion:
    """Return the region of the first `nbytes` bytes."""
    return ByteRegion(ZERO, ((nbytes, 1),))


def region(offset: Form, sizes: Sequence[int], strides: Sequence[int], width: int) -> ByteRegion:
    """Return the bytes of elements of `width` bytes; offset and strides are in bytes."""
    return ByteRegion(offset, _dims(tuple(sizes), tuple(strides), width))


@lru_cache(maxsize=1 << 14)
def _dims(sizes: tuple[int, ...], strides: tuple[int, ...], width: int) -> Dims:
    return merged([*zip(sizes, strides), (width, 1)])


def merged(dims: Iterable[tuple[int, int]]) -> Dims:
    """Leave out dims of one, and join those that walk memory as one."""
    found: list[tuple[int, int]] = []
    for size, step in dims:
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return tuple(found) or ((1, 1),)


def apart(a: ByteRegion, b: ByteRegion, bounds: Bounds = NO_BOUNDS) -> bool:
    """Tell whether two regions surely share no byte. bounds: the least and the largest that numbers may be."""
    between = b.offset.plus(a.offset, -1)
    least, largest = reached(between, bounds)
    if least >= a.reach or -largest >= b.reach:
        return True
    steps = {step for _, step in (*a.dims, *b.dims) if step > 1}
    return any(_apart_within(a.dims, b.dims, between, step) for step in steps)


def reached(form: Form, bounds: Bounds) -> tuple[float, float]:
    """Return the least and the largest that a form may be."""
    low, high = float(form.const), float(form.const)
    for atom, factor in form.terms:
        ends = [factor * end for end in bounds.get(atom, (-inf, inf))]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _apart_within(a: Dims, b: Dims, between: Form, period: int) -> bool:
    """Tell whether two regions share no byte because of where they lie in each stretch of `period` bytes."""
    if any(factor % period for _, factor in between.terms):
        return False
    first, second = (
        1 + sum((size - 1) * step for size, step in dims if step % period) for dims in (a, b)
    )
    start = between.const % period
    return start >= first and start + second <= period


def inside(inner: ByteRegion, outer: ByteRegion, bounds: Bounds = NO_BOUNDS) -> ByteRegion | None:
    """Return where the bytes of `inner` are among those of `outer`, counted in order; None where that is not known."""
    weights, steps = _weights(outer.dims), [step for _, step in outer.dims]
    between = ByteRegion(inner.offset.plus(outer.offset, -1), tuple(_broken(inner.dims, steps)))
    return _moved(between, outer.dims, steps, weights, bounds)


def within(inner: ByteRegion, outer: ByteRegion, bounds: Bounds = NO_BOUNDS) -> ByteRegion | None:
    """Return the bytes of a buffer that `inner` names among those of `outer`; the reverse of `inside`."""
    weights, steps = _weights(outer.dims), [step for _, step in outer.dims]
    apart = ByteRegion(inner.offset, tuple(_broken(inner.dims, weights)))
    found = _moved(apart, outer.dims, weights, steps, bounds)
    return found and ByteRegion(outer.offset.plus(found.offset), found.dims)


def _broken(dims: Dims, steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield dims such that none walks past a step of `steps` that divides it: runs of several are broken there."""
    for size, step in dims:
        for wide in steps:
            if size * step > wide > step and size * step % wide == wide % step == 0:
                yield size * step // wide, wide
                size = wide // step
        yield size, step


def _moved(
    region: ByteRegion, dims: Dims, steps: Sequence[int], to: Sequence[int], bounds: Bounds
) -> ByteRegion | None:
    """Return a region over dims of `steps` as one over these dims with the steps `to`; None where it may leave them."""
    rest, offset = region.offset.const, 0
    low, high = [0.0] * len(steps), [0.0] * len(steps)
    for k, (step, other) in enumerate(zip(steps, to)):
        low[k] = high[k] = rest // step
        offset += rest // step * other
        rest %= step
    moved, terms = list[tuple[int, int]](), list[tuple[int, int]]()
    along = [_along(step, steps) for _, step in (*region.dims, *region.offset.terms)]
    if None in along:
        return None
    dims_of = iter([k for k in along if k is not None])
    for (size, step), k in zip(region.dims, dims_of):
        high[k] += (size - 1) * (step // steps[k])
        moved.append((size, step // steps[k] * to[k]))
    for (atom, factor), k in zip(region.offset.terms, dims_of):
        least, largest = reached(Form(0, ((atom, factor // steps[k]),)), bounds)
        low[k], high[k] = low[k] + least, high[k] + largest
        terms.append((atom, factor // steps[k] * to[k]))
    if rest or any(a < 0 or b >= size for a, b, (size, _) in zip(low, high, dims)):
        return None
    return ByteRegion(Form(offset, tuple(terms)), merged(moved))


def _along(step: int, steps: Sequence[int]) -> int | None:
    """Return the outermost dim whose steps `step` is a multiple of."""
    return next((k for k, one in enumerate(steps) if step % one == 0), None)


def _weights(dims: Dims) -> list[int]:
    """Return how many bytes of a region lie within one step of each of its dims."""
    found, total = [], 1
    for size, _ in reversed(dims):
        found.append(total)
        total *= size
    return found[::-1]
