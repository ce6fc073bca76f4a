"""Index tensors by slices, integers, newaxis, ellipsis, integer arrays, and masks known when tracing.

Other masks are refused, and so are functions whose results have shapes that depend on the elements: programs fix the
shapes of their tensors when they are traced. The errors say what to do instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshweave.errors import DimError
from meshweave.frontends.python.builder import Body, affine_map, fail, tensor_type
from meshweave.frontends.python.dtypes import INTEGERS, DType, bool_, int64, limits
from meshweave.frontends.python.functions.create import asarray
from meshweave.frontends.python.functions.elementwise import (
    add,
    alike,
    astype,
    clip,
    minimum,
    where,
)
from meshweave.frontends.python.functions.logic import (
    isnan,
    less,
    less_equal,
    logical_and,
    logical_or,
)
from meshweave.frontends.python.functions.manipulate import (
    axis_of,
    broadcast_to,
    expand_dims,
    flip,
    moveaxis,
    reshaped,
    sizes_of,
)
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Index,
    Shape,
    Tracer,
    broadcast_shapes,
    parallel,
    splat,
    tensor,
    tracing,
)

newaxis = None


def getitem(value: Tracer, key: Index) -> Tracer:
    """Return `value[key]`. Steps may be negative; an integer out of range is an error, a slice is cut as in Python."""
    value, keys = tensor(value), key if isinstance(key, tuple) else (key,)
    arrays = [k for k in keys if isinstance(k, Tracer | list | np.ndarray)]
    if any(not isinstance(k, np.ndarray) or k.ndim for k in arrays):
        return _by_arrays(value, keys)
    starts, sizes, steps, flipped, shape = [], [], [], [], []
    dim = 0
    for k in _complete(value, keys):
        if k is None:
            shape.append(1)
            continue
        n = value.shape[dim]
        if isinstance(k, slice):
            start, size, step, reverse = _slice(k, n)
            flipped += [dim] if reverse else []
            shape.append(size)
        else:
            start, size, step = _number(k, n, dim), 1, 1
        starts.append(start)
        sizes.append(size)
        steps.append(step)
        dim += 1
    cut = _extract(value, starts, sizes, steps)
    return reshaped(flip(cut, tuple(flipped)) if flipped else cut, tuple(shape))


def _complete(value: Tracer, keys: tuple[Any, ...]) -> list[Any]:
    """Return an entry for each dim, and None for each new one."""
    count = sum(k is not None and k is not Ellipsis for k in keys)
    if count > value.ndim:
        fail(f"{count} indices for {value.ndim} dims", DimError)
    places = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(places) > 1:
        fail("an index has one ellipsis at most")
    at = places[0] if places else len(keys)
    return [*keys[:at], *[slice(None)] * (value.ndim - count), *keys[at + 1 :]]


def _number(key: object, size: int, dim: int) -> int:
    if isinstance(key, bool | np.bool_):
        fail("an index is a bool: masks have shapes that only the run knows; use mw.where")
    try:
        number = operator.index(key)  # type: ignore[arg-type]  # the error says what is wrong
    except TypeError:
        fail(f"index {key!r}: integers, slices, None, ... and integer arrays are right")
    if not -size <= number < size:
        fail(f"index {number} is out of range: dim {dim} has size {size}", DimError)
    return number % size


def _slice(key: slice, size: int) -> tuple[int, int, int, bool]:
    """Return start, size and positive step of the elements, and whether they come in reverse order."""
    try:
        start, stop, step = key.indices(size)
    except (TypeError, ValueError) as error:
        fail(f"slice {key}: {error} (the bounds of a slice must be known when tracing)")
    count = len(range(start, stop, step))
    if step > 0:
        return (start if count else 0), count, step, False
    return (start + (count - 1) * step if count else 0), count, -step, True


@primitive
def _extract(value: Tracer, starts: list[int], sizes: list[int], steps: list[int]) -> Tracer:
    if tuple(sizes) == value.shape:
        return value
    if 0 in sizes:
        return splat(tracing(value), sizes, 0, value.dtype)
    trace = tracing(value)
    steps = [1 if n == 1 else s for n, s in zip(sizes, steps)]
    result = tensor_type(tuple(sizes), value.dtype)
    name = trace.let(
        f"tensor.extract_slice {trace.name(value)}{starts} {sizes} {steps} : {value.type} to {result}"
    )
    return Tracer(trace, name, sizes, value.dtype)


def _by_arrays(value: Tracer, keys: tuple[Any, ...]) -> Tracer:
    """Index by integer arrays, which broadcast, among slices and None: take along one dim, or along several merged.

    As in NumPy, their dims are put where the arrays are, and in front if something is between the arrays; integers
    beside arrays count as arrays.
    """
    every = _complete(value, tuple(k for key in keys for k in _expanded(key)))
    at = [i for i, k in enumerate(every) if k is not None and not isinstance(k, slice)]
    rest = getitem(value, tuple(slice(None) if i in at else k for i, k in enumerate(every)))
    sizes = [rest.shape[i] for i in at]
    indices = [in_range(every[i], n, i) for i, n in zip(at, sizes)]
    if len(at) == 1:
        return _gather(rest, tensor(indices[0]), at[0])
    adjacent = at == list(range(at[0], at[0] + len(at)))
    first = at[0] if adjacent else 0
    rest = moveaxis(rest, tuple(at), tuple(range(first, first + len(at))))
    if not any(isinstance(i, Tracer) for i in indices):
        indices = list(np.broadcast_arrays(*indices))
    flat: Any = 0
    for index, size in zip(indices, sizes):
        flat = index + flat * size
    before, after = rest.shape[:first], rest.shape[first + len(at) :]
    merged = reshaped(rest, (*before, prod(sizes), *after))
    return _gather(merged, tensor(flat), first)


def _expanded(key: Any) -> list[Any]:
    """Turn lists into arrays, and a mask known when tracing into the places where it holds."""
    if isinstance(key, list):
        key = asarray(key) if any(isinstance(k, Tracer) for k in key) else np.asarray(key)
        if not key.size:
            key = np.zeros(key.shape, np.int64)
    if isinstance(key, np.ndarray) and key.dtype == bool and key.ndim:
        return [_Places(places, size) for places, size in zip(np.nonzero(key), key.shape)]
    return [key]


class _Places(NamedTuple):
    """Hold the places along one dim of a mask where it is true, and that dim's size."""

    places: np.ndarray[Any, Any]
    size: int


def _signed(indices: Tracer, size: int) -> Tracer:
    """Return indices without sign as others: those beyond a dim of this size stay beyond it."""
    if indices.dtype.kind != "u":
        return indices
    last = min(size, int(limits(indices.dtype)[1]))
    return astype(minimum(indices, last), int64)


def in_range(key: object, size: int, dim: int) -> Tracer | np.ndarray[Any, Any]:
    """Return an index that counts from 0. One known when tracing is checked, a traced one is clamped."""
    if isinstance(key, _Places):
        if key.size != size:
            fail(f"a mask of {key.size} places for dim {dim} of size {size}")
        return key.places
    if isinstance(key, Tracer):
        if key.dtype is bool_:
            fail("an index is a mask: its result has a shape that only the run knows; use mw.where")
        if key.dtype.kind not in INTEGERS:
            fail(f"an index of dtype {key.dtype!r}, integers are right")
        wide = astype(_signed(key, size), int64)
        own = where(less(wide, 0), add(wide, size), wide)
        return clip(own, 0, max(size - 1, 0))
    if not isinstance(key, np.ndarray):
        return np.asarray(_number(key, size, dim))
    if key.dtype.kind not in "iu":
        fail(f"an index of dtype {key.dtype}, integers are right")
    wrong = key[(key < -size) | (key >= size)]
    if wrong.size:
        fail(f"index {wrong.flat[0]} is out of range: dim {dim} has size {size}", DimError)
    found = key.astype(np.int64)
    return np.where(found < 0, found + size, found)


def take(x: ArrayLike, indices: ArrayLike | list[int], /, axis: int | None = None) -> Tracer:
    """Take the slices of x at `indices` (integers of any shape) along `axis`, which the dims of `indices` replace.

    axis: None takes elements of the flattened array. Negative indices count from the end; those out of range take the
    first or the last slice.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> embed = mw.jit(lambda table, ids: mw.take(table, ids, axis=0))
    >>> np.asarray(embed(np.arange(6).reshape(3, 2), np.array([2, 0]))).tolist()
    [[4, 5], [0, 1]]
    """
    value, places = tensor(x), tensor(np.asarray(indices) if isinstance(indices, list) else indices)
    if axis is None:
        value, axis = reshaped(value, (value.size,)), 0
    return _gather(value, places, axis_of("take", axis, value.ndim))


@primitive
def _gather(value: Tracer, indices: Tracer, dim: int) -> Tracer:
    if indices.dtype.kind not in INTEGERS:
        fail(f"take: indices of dtype {indices.dtype!r}, integers are right")
    indices = _signed(indices, value.shape[dim])
    k = indices.ndim
    shape = value.shape[:dim] + indices.shape + value.shape[dim + 1 :]
    reads = tuple(f"d{dim + i}" for i in range(k))

    def place(b: Body, index: str) -> list[str]:
        before = [b.loop(d) for d in range(dim)]
        after = [b.loop(d + k - 1) for d in range(dim + 1, value.ndim)]
        return [*before, index, *after]

    return _lookup("take", value, indices, dim, shape, reads, place)


@primitive
def take_along_axis(x: ArrayLike, indices: ArrayLike, /, axis: int = -1) -> Tracer:
    """Take the elements of x at `indices` along `axis`, each at its own place along the other dims, which broadcast.

    Negative indices count from the end; those out of range take the first or the last element.
    """
    value, places = tensor(x), tensor(indices)
    if value.ndim != places.ndim:
        fail(f"take_along_axis: indices have {places.ndim} dims, x has {value.ndim}")
    if places.dtype.kind not in INTEGERS:
        fail(f"take_along_axis: indices of dtype {places.dtype!r}, integers are right")
    dim = axis_of("take_along_axis", axis, value.ndim)
    places = _signed(places, value.shape[dim])
    others = [v.shape[:dim] + v.shape[dim + 1 :] for v in (value, places)]
    whole = list(broadcast_shapes(*others))
    whole.insert(dim, places.shape[dim])
    shape = tuple(whole)
    reads = tuple(f"d{d}" if n == shape[d] else "0" for d, n in enumerate(places.shape))

    def place(b: Body, index: str) -> list[str]:
        zero_or_own = [
            b.index(0) if n == 1 and shape[d] != 1 else b.loop(d)
            for d, n in enumerate(value.shape)
            if d != dim
        ]
        return [*zero_or_own[:dim], index, *zero_or_own[dim:]]

    return _lookup("take_along_axis", value, places, dim, shape, reads, place)


def _lookup(
    name: str,
    value: Tracer,
    indices: Tracer,
    dim: int,
    shape: tuple[int, ...],
    reads: tuple[str, ...],
    place: Callable[[Body, str], list[str]],
) -> Tracer:
    """Read the elements of `value` at computed places, as an embedding lookup does."""
    n = value.shape[dim]
    if 0 in shape or n == 0:
        if n == 0 and 0 not in shape:
            fail(f"{name}: dim {dim} has size 0, there is nothing to take")
        return splat(tracing(value), shape, 0, value.dtype)
    source = tracing(value).name(value)

    def body(b: Body, ins: list[str]) -> str:
        at = ", ".join(place(b, clamped(b, ins[0], indices.dtype, n)))
        return b.let(f"tensor.extract {source}[{at}] : {value.type}")

    return parallel([indices], [affine_map(len(shape), reads)], shape, value.dtype, body)


def clamped(b: Body, index: str, dtype: DType, size: int) -> str:
    """Turn an integer into an index into `size` places: negative ones count from the end, others are clamped."""
    wide = b.let(f"arith.index_cast {index} : {dtype} to index")
    zero, last = b.index(0), b.index(size - 1)
    negative = b.let(f"arith.cmpi slt, {wide}, {zero} : index")
    from_end = b.let(f"arith.addi {wide}, {b.index(size)} : index")
    own = b.let(f"arith.select {negative}, {from_end}, {wide} : index")
    above = b.let(f"arith.maxsi {own}, {zero} : index")
    return b.let(f"arith.minsi {above}, {last} : index")


def repeat(
    x: ArrayLike, repeats: Shape | np.ndarray[Any, Any], /, axis: int | None = None
) -> Tracer:
    """Repeat each element `repeats` times along `axis`; None: in the flattened array.

    repeats: a number, or one for each place along `axis`, known when tracing, since the result's size depends on it.
    """
    value = tensor(x)
    if axis is None:
        value, axis = reshaped(value, (value.size,)), 0
    dim = axis_of("repeat", axis, value.ndim)
    counts = _repeats(repeats, value.shape[dim])
    if not counts:
        return value
    if len(counts) > 1:
        return take(value, np.repeat(np.arange(len(counts)), counts), axis=dim)
    count = counts[0]
    before, after = value.shape[: dim + 1], value.shape[dim + 1 :]
    spread = broadcast_to(reshaped(value, (*before, 1, *after)), (*before, count, *after))
    return reshaped(spread, (*value.shape[:dim], value.shape[dim] * count, *after))


def _repeats(repeats: Shape | np.ndarray[Any, Any], size: int) -> tuple[int, ...]:
    """Return how often `repeat` takes each of `size` places, or one number for all."""
    if isinstance(repeats, Tracer):
        fail("repeat: repeats is known only when the program runs, and so is the result's size")
    given = repeats.tolist() if isinstance(repeats, np.ndarray) else repeats
    counts = sizes_of("repeat: repeats as", given)
    if len(counts) not in (1, size) or any(n < 0 for n in counts):
        fail(f"repeat: repeats={given!r:.60}, one number or {size} that are not negative are right")
    return counts


def searchsorted(
    x1: ArrayLike, x2: ArrayLike, /, *, side: str = "left", sorter: ArrayLike | None = None
) -> Tracer:
    """Find the place in the sorted vector x1 where each element of x2 would be inserted, as int64.

    side: "left" before equal elements, "right" behind them; NaNs are the largest. sorter: the indices that sort x1,
    if it is not sorted.
    """
    row, wanted = alike(x1, x2)
    if row.ndim != 1:
        fail(f"searchsorted: x1 has {row.ndim} dims, 1 is right")
    if side not in ("left", "right"):
        fail(f'searchsorted: side={side!r}, "left" or "right" is right')
    if sorter is not None:
        row = take(row, sorter)
    if row.size > FEW_EDGES and row.size * wanted.size > MOST_COMPARED:
        return _bisected(row, wanted, side)
    return total(astype(_comes_first(row, expand_dims(wanted, -1), side), "i64"), axis=-1)


FEW_EDGES, MOST_COMPARED = 64, 1 << 19
"""Elements of a sorted vector, and comparisons with them, up to which all are compared: ranks that have parts of the
vector then add up what they count."""


def _comes_first(row: Tracer, wanted: Tracer, side: str) -> Tracer:
    """Tell whether elements of a sorted vector come before what would be inserted; NaNs are the largest."""
    floats = wanted.dtype.kind == "f"
    if side == "left":
        before = less(row, wanted)
        return logical_or(before, less(isnan(row), isnan(wanted))) if floats else before
    before = less_equal(row, wanted)
    return logical_or(before, isnan(wanted)) if floats else before


def _bisected(row: Tracer, wanted: Tracer, side: str) -> Tracer:
    """Count the elements of a sorted vector that come first by halves, quarters, .. of it."""
    found = splat(tracing(wanted), wanted.shape, 0, int64)
    for bit in reversed(range(row.size.bit_length())):
        tried = add(found, 1 << bit)
        there = _comes_first(take(row, add(tried, -1)), wanted, side)
        found = where(logical_and(less_equal(tried, row.size), there), tried, found)
    return found
