"""Find elements whose number depends on the elements: in programs, whose shapes are fixed, as many as `size` says."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import DType, Scalar, bool_, float16, float32, int32, int64
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import full, iota, ones, zeros
from meshweave.frontends.python.functions.index import take
from meshweave.frontends.python.functions.logic import equal, less, logical_or, not_equal
from meshweave.frontends.python.functions.manipulate import concat, reshaped
from meshweave.frontends.python.functions.reduce import cumulative_sum
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.functions.sort import argsort, put_back
from meshweave.frontends.python.functions.update import Reach, put_at
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor, tracing


class UniqueAllResult(NamedTuple):
    """Hold the unique values, where each is first, which of them each element is, and how often each is there."""

    values: Tracer
    indices: Tracer
    inverse_indices: Tracer
    counts: Tracer


class UniqueCountsResult(NamedTuple):
    """Hold the unique values, and how often each is there."""

    values: Tracer
    counts: Tracer


class UniqueInverseResult(NamedTuple):
    """Hold the unique values, and which of them each element is."""

    values: Tracer
    inverse_indices: Tracer


def nonzero(x: ArrayLike, /, *, size: int | None = None, fill_value: int = 0) -> tuple[Tracer, ...]:
    """Return the places of the elements that are not 0, in row-major order, as a vector of int64 for each dim.

    size: how many, in a traced function: what is beyond is left out, and `fill_value` put where there are fewer.
    """
    value, count = tensor(x), _size("nonzero", size, x)
    if not value.ndim:
        fail("nonzero: x has no dims, at least 1 is right")
    holds = e.astype(reshaped(value, (value.size,)), bool_)
    kind = _counting(value.size)
    places, there = _places(holds, _rank(holds), count), _there(holds, count)
    numbers = e.astype(_put(iota(holds.shape, 0, kind), places, count), int64)
    found, rest = [], value.size
    for d, n in enumerate(value.shape):
        rest = rest // max(n, 1)
        own = e.floor_divide(numbers, rest) if rest > 1 else numbers
        if n == 1:
            own = zeros((count,), dtype=int64)
        elif d:
            own = e.remainder(own, max(n, 1))
        found.append(e.where(there, own, fill_value))
    return tuple(found)


def unique_values(
    x: ArrayLike, /, *, size: int | None = None, fill_value: Scalar | None = None
) -> Tracer:
    """Return the elements that differ, the smallest first, each once; each NaN is one of its own.

    size: how many, in a traced function: what is beyond is left out, and `fill_value`, by default the smallest element,
    put where there are fewer.
    """
    return _unique("unique_values", x, size, fill_value).values


def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: Scalar | None = None
) -> UniqueCountsResult:
    """Return the elements that differ, and how often each is there. size, fill_value: as of `unique_values`."""
    found = _unique("unique_counts", x, size, fill_value)
    return UniqueCountsResult(found.values, found.counts)


def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: Scalar | None = None
) -> UniqueInverseResult:
    """Return the elements that differ, and which of them each element is. size, fill_value: as of `unique_values`."""
    found = _unique("unique_inverse", x, size, fill_value)
    return UniqueInverseResult(found.values, found.inverse_indices)


def unique_all(
    x: ArrayLike, /, *, size: int | None = None, fill_value: Scalar | None = None
) -> UniqueAllResult:
    """Return the elements that differ, where each is first, which of them each element is, and how often each is there.

    size, fill_value: as of `unique_values`.
    """
    return _unique("unique_all", x, size, fill_value)


def _size(name: str, size: int | None, x: ArrayLike) -> int:
    tracing(x)
    if size is None:
        fail(
            f"{name}: the shape of the result depends on the elements, and programs have fixed shapes: size=n says how "
            "many there are at most"
        )
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        fail(f"{name}: size={size!r:.40}, a number that is not negative is right")
    return size


def _rank(first: Tracer) -> Tracer:
    """Return for each place how many hold up to it, less 1."""
    kind = _counting(first.size)
    return e.subtract(cumulative_sum(e.astype(first, kind), dtype=kind), 1)


def _counting(n: int) -> DType:
    """Return the dtype in which n things are counted: half as wide as that of results, where that is enough."""
    return int32 if n < 1 << 31 else int64


def _places(holds: Tracer, rank: Tracer, count: int) -> Tracer:
    """Return for each place where it goes among the first `count` that hold: `count` where it is none of these."""
    return e.where(holds, rank, count)


def _there(holds: Tracer, count: int) -> Tracer:
    """Return for each of the first `count` that hold whether there is one."""
    if not holds.size:
        return zeros((count,), dtype=bool_)
    kind = _counting(holds.size)
    return less(iota((count,), 0, kind), total(e.astype(holds, kind), dtype=kind))


def _put(values: Tracer, places: Tracer, count: int) -> Tracer:
    """Return a vector of `count` elements, into which values are put at their places, and zeros else.

    Each rank of a mesh puts its own, and what all have put is combined: numbers are added, and of floats, whose sums
    lose the sign of zeros, the largest is taken, with -inf in place of the zeros.
    """
    kind, is_float = values.dtype, values.dtype.kind == "f"
    into = full((count,), -inf if is_float else 0, dtype=kind)
    if not count or not values.size:
        return into
    reach, how = Reach(into.shape, values.shape, ((0,),), (0,)), "max" if is_float else "add"
    return put_at(into, values, [places], reach, how)


def _unique(
    name: str, x: ArrayLike, size: int | None, fill_value: Scalar | None
) -> UniqueAllResult:
    value, count = tensor(x), _size(name, size, x)
    n = value.size
    flat, none = reshaped(value, (n,)), zeros((count,), dtype=int64)
    if not n:
        empty = full((count,), fill_value or 0, dtype=value.dtype)
        return UniqueAllResult(empty, none, zeros(value.shape, dtype=int64), none)
    order = e.astype(argsort(flat), _counting(n))
    row = take(flat, order)
    differs = not_equal(row, concat([row[:1], row[:-1]]))
    first = logical_or(equal(iota((n,), 0, order.dtype), 0), differs)
    rank = _rank(first)
    places, there = _places(first, rank, count), _there(first, count)
    values = _values(row, places, count)
    if count:
        fill = values[0] if fill_value is None else e.astype(tensor(fill_value), value.dtype)
        values = e.where(there, values, fill)
    counts = _put(ones((n,), dtype=rank.dtype), rank, count)
    inverse = put_back(rank, order, 0)
    return UniqueAllResult(
        values,
        e.astype(_put(order, places, count), int64),
        reshaped(e.astype(inverse, int64), value.shape),
        e.astype(counts, int64),
    )


def _values(row: Tracer, places: Tracer, count: int) -> Tracer:
    """Return the elements of a row at their places among `count`."""
    kind = row.dtype
    narrow = kind.kind == "f" and kind.bits < float16.bits  # some of these have no -inf
    wide = float32 if narrow else kind
    return e.astype(_put(e.astype(row, wide), places, count), kind)
