"""Find elements whose number depends on the elements: in programs, whose shapes are fixed, as many as `size` says."""

from __future__ import annotations

from typing import NamedTuple

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import Scalar, bool_, int64
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import full, iota, ones, zeros
from meshweave.frontends.python.functions.index import take
from meshweave.frontends.python.functions.logic import less, not_equal
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
    numbers, there = _places(holds, _rank(holds), count)
    found, rest = [], value.size
    for n in value.shape:
        rest = rest // max(n, 1)
        own = e.remainder(e.floor_divide(numbers, max(rest, 1)), max(n, 1))
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
    return e.subtract(cumulative_sum(e.astype(first, int64)), 1)


def _places(holds: Tracer, rank: Tracer, count: int) -> tuple[Tracer, Tracer]:
    """Return where the first `count` elements are that hold, as int64, and for each of these whether there is one.

    rank: as of `_rank`. Each rank of a mesh counts its own, and all add up what is found.
    """
    every, none = iota(holds.shape, 0, int64), zeros((count,), dtype=int64)
    if not holds.size or not count:
        return none, zeros((count,), dtype=bool_)
    places = e.where(holds, rank, count)
    made = put_at(none, every, [places], _along(none, every), "add")
    return made, less(iota((count,), 0, int64), total(e.astype(holds, int64)))


def _along(into: Tracer, values: Tracer) -> Reach:
    """Say that each of some values has a place in a vector."""
    return Reach(into.shape, values.shape, ((0,),), (0,))


def _unique(
    name: str, x: ArrayLike, size: int | None, fill_value: Scalar | None
) -> UniqueAllResult:
    value, count = tensor(x), _size(name, size, x)
    n = value.size
    flat, none = reshaped(value, (n,)), zeros((count,), dtype=int64)
    if not n:
        empty = full((count,), fill_value or 0, dtype=value.dtype)
        return UniqueAllResult(empty, none, zeros(value.shape, dtype=int64), none)
    order = argsort(flat)
    row = take(flat, order)
    first = concat([ones((1,), dtype=bool_), not_equal(row[1:], row[:-1])])
    rank = _rank(first)
    fill = row[0] if fill_value is None else e.astype(tensor(fill_value), value.dtype)
    places, there = _places(first, rank, count)
    values = e.where(there, take(row, places), fill)
    indices = e.where(there, take(order, places), none)
    inverse = put_back(rank, order, 0)
    one = ones((n,), dtype=int64)
    counts = put_at(none, one, [rank], _along(none, one), "add") if count else none
    return UniqueAllResult(values, indices, reshaped(inverse, value.shape), counts)
