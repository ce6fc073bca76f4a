"""Indexing: slices, integers, newaxis, ellipsis, integer arrays, and masks that are known when tracing; others, whose
results have shapes that only the run knows, are refused.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshweave.trace.builder import Body, affine_map, broadcast_map, fail, tensor_type
from meshweave.trace.dtypes import DType, bool_, int64
from meshweave.trace.elementwise import add, astype, clip, where
from meshweave.trace.manipulate import _reshaped, axis_of, flip, moveaxis
from meshweave.trace.tracer import Tracer, broadcast_shapes, tensor, tracing

newaxis = None


def getitem(value: Tracer, key: Any) -> Tracer:
    """`value[key]`. Steps may be negative; an integer out of range is an error, a slice is cut as in Python."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(_is_array(k) for k in keys):
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
    return _reshaped(flip(cut, tuple(flipped)) if flipped else cut, tuple(shape))


def _is_array(key: Any) -> bool:
    return isinstance(key, Tracer | list) or (isinstance(key, np.ndarray) and key.ndim > 0)


def _complete(value: Tracer, keys: tuple[Any, ...]) -> list[Any]:
    """An entry for each dim, and None for each new one."""
    named = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if named > value.ndim:
        fail(f"{named} indices for {value.ndim} dims")
    if sum(1 for k in keys if k is Ellipsis) > 1:
        fail("an index has one ellipsis at most")
    rest = [slice(None)] * (value.ndim - named)
    if not any(k is Ellipsis for k in keys):
        return [*keys, *rest]
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    return [*keys[:at], *rest, *keys[at + 1 :]]


def _number(key: Any, size: int, dim: int) -> int:
    if isinstance(key, bool | np.bool_):
        fail("an index is a bool: masks have shapes that only the run knows; use mw.where")
    try:
        number = operator.index(key)
    except TypeError:
        fail(f"index {key!r}: integers, slices, None, ... and integer arrays are right")
    if not -size <= number < size:
        fail(f"index {number} is out of range: dim {dim} has size {size}")
    return number % size


def _slice(key: slice, size: int) -> tuple[int, int, int, bool]:
    """Start, size and positive step of the elements, and whether they come in reverse order."""
    try:
        start, stop, step = key.indices(size)
    except (TypeError, ValueError) as error:
        fail(f"slice {key}: {error} (the bounds of a slice must be known when tracing)")
    count = len(range(start, stop, step))
    if step > 0:
        return (start if count else 0), count, step, False
    return (start + (count - 1) * step if count else 0), count, -step, True


def _extract(value: Tracer, starts: list[int], sizes: list[int], steps: list[int]) -> Tracer:
    if tuple(sizes) == value.shape:
        return value
    if 0 in sizes:
        from meshweave.trace.create import zeros

        return zeros(tuple(sizes), dtype=value.dtype)
    trace = tracing(value)
    steps = [1 if n == 1 else s for n, s in zip(sizes, steps)]
    result = tensor_type(tuple(sizes), value.dtype)
    name = trace.let(
        f"tensor.extract_slice {trace.name(value)}{starts} {sizes} {steps} : {value.type} to {result}"
    )
    return Tracer(trace, name, sizes, value.dtype)


def _by_arrays(value: Tracer, keys: tuple[Any, ...]) -> Tracer:
    """Integer arrays, which broadcast, among slices and None: a take along one dim, or along several put together.

    As in NumPy their dims stand where the arrays do, and in front when there is something between them; integers
    beside arrays count as such.
    """
    every = _complete(value, tuple(k for key in keys for k in _spelled(key)))
    at = [i for i, k in enumerate(every) if _is_advanced(k)]
    rest = getitem(value, tuple(slice(None) if i in at else k for i, k in enumerate(every)))
    sizes = [rest.shape[i] for i in at]
    indices = [_in_range(every[i], n, i) for i, n in zip(at, sizes)]
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
    merged = _reshaped(rest, (*before, prod(sizes), *after))
    return _gather(merged, tensor(flat), first)


def _spelled(key: Any) -> list[Any]:
    """A key as arrays know it: lists as arrays, a mask that is known when tracing as the places where it holds."""
    if isinstance(key, list):
        from meshweave.trace.create import asarray

        key = asarray(key) if any(isinstance(k, Tracer) for k in key) else np.asarray(key)
        if not key.size:
            key = np.zeros(key.shape, np.int64)
    if isinstance(key, np.ndarray) and key.dtype == bool and key.ndim:
        return [_Places(places, size) for places, size in zip(np.nonzero(key), key.shape)]
    return [key]


class _Places(NamedTuple):
    """Where a mask holds along one of its dims, which has so many places."""

    places: Any
    size: int


def _is_advanced(key: Any) -> bool:
    return key is not None and not isinstance(key, slice)


def _in_range(key: Any, size: int, dim: int) -> Any:
    """An index that counts from 0: what is known when tracing is checked, a traced one stops at the ends."""
    if isinstance(key, _Places):
        if key.size != size:
            fail(f"a mask of {key.size} places for dim {dim} of size {size}")
        return key.places
    if isinstance(key, Tracer):
        if key.dtype is bool_:
            fail("an index is a mask: its result has a shape that only the run knows; use mw.where")
        if key.dtype.kind != "i":
            fail(f"an index of dtype {key.dtype!r}, integers are right")
        from meshweave.trace.logic import less

        wide = astype(key, int64)
        own = where(less(wide, 0), add(wide, size), wide)
        return clip(own, 0, max(size - 1, 0))
    if not isinstance(key, np.ndarray):
        return np.asarray(_number(key, size, dim))
    if key.dtype.kind not in "iu":
        fail(f"an index of dtype {key.dtype}, integers are right")
    wrong = key[(key < -size) | (key >= size)]
    if wrong.size:
        fail(f"index {wrong.flat[0]} is out of range: dim {dim} has size {size}")
    found = key.astype(np.int64)
    return np.where(found < 0, found + size, found)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Tracer:
    """The slices of x at `indices` (integers of any shape) along `axis`; the result has the dims of `indices` there.

    Negative indices count from the end; those out of range take the first or the last slice.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> embed = mw.jit(lambda table, ids: mw.take(table, ids, axis=0))
    >>> np.asarray(embed(np.arange(6).reshape(3, 2), np.array([2, 0]))).tolist()
    [[4, 5], [0, 1]]
    """
    value, places = tensor(x), tensor(np.asarray(indices) if isinstance(indices, list) else indices)
    if axis is None:
        if value.ndim != 1:
            fail(f"take: x has {value.ndim} dims: say along which axis")
        axis = 0
    return _gather(value, places, axis_of("take", axis, value.ndim))


def _gather(value: Tracer, indices: Tracer, dim: int) -> Tracer:
    if indices.dtype.kind != "i":
        fail(f"take: indices of dtype {indices.dtype!r}, integers are right")
    k = indices.ndim
    shape = value.shape[:dim] + indices.shape + value.shape[dim + 1 :]
    reads = tuple(f"d{dim + i}" for i in range(k))

    def place(b: Body, index: str) -> list[str]:
        before = [b.loop(d) for d in range(dim)]
        after = [b.loop(d + k - 1) for d in range(dim + 1, value.ndim)]
        return [*before, index, *after]

    return _lookup("take", value, indices, dim, shape, reads, place)


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Tracer:
    """Element by element: x at `indices` along `axis`, at the element's own place along the others (which broadcast).

    Negative indices count from the end; those out of range take the first or the last element.
    """
    value, places = tensor(x), tensor(indices)
    if value.ndim != places.ndim:
        fail(f"take_along_axis: indices have {places.ndim} dims, x has {value.ndim}")
    if places.dtype.kind != "i":
        fail(f"take_along_axis: indices of dtype {places.dtype!r}, integers are right")
    dim = axis_of("take_along_axis", axis, value.ndim)
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
    place: Any,
) -> Tracer:
    """Elements of `value` at computed places, as an embedding lookup."""
    n = value.shape[dim]
    if 0 in shape or n == 0:
        if n == 0 and 0 not in shape:
            fail(f"{name}: dim {dim} has size 0, there is nothing to take")
        from meshweave.trace.create import zeros

        return zeros(shape, dtype=value.dtype)
    trace = tracing(value)
    type_ = tensor_type(shape, value.dtype)
    source = trace.name(value)

    def body(b: Body, ins: list[str], out: str) -> str:
        at = ", ".join(place(b, clamped(b, ins[0], indices.dtype, n)))
        return b.let(f"tensor.extract {source}[{at}] : {value.type}")

    maps = [affine_map(len(shape), reads), broadcast_map(shape, shape)]
    kinds = ["parallel"] * len(shape)
    result = trace.generic(maps, kinds, [indices], trace.empty(type_), type_, body)
    return Tracer(trace, result, shape, value.dtype)


def clamped(b: Body, index: str, dtype: DType, size: int) -> str:
    """An integer as an index into `size` places: a negative one counts from the end, one out of range is cut."""
    wide = b.let(f"arith.index_cast {index} : {dtype} to index")
    zero, last = b.index(0), b.index(size - 1)
    negative = b.let(f"arith.cmpi slt, {wide}, {zero} : index")
    from_end = b.let(f"arith.addi {wide}, {b.index(size)} : index")
    own = b.let(f"arith.select {negative}, {from_end}, {wide} : index")
    above = b.let(f"arith.maxsi {own}, {zero} : index")
    return b.let(f"arith.minsi {above}, {last} : index")


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Tracer:
    """For each element of x2 the place in the sorted vector x1 where it would stand: before ("left") or behind
    ("right") equal ones; NaNs are the largest. sorter: the indices that sort x1, when it is not sorted. int64.
    """
    from meshweave.trace.logic import isnan, less, less_equal, logical_or
    from meshweave.trace.manipulate import expand_dims
    from meshweave.trace.reduce import sum as total

    row, wanted = tensor(x1), tensor(x2)
    if row.ndim != 1:
        fail(f"searchsorted: x1 has {row.ndim} dims, 1 is right")
    if side not in ("left", "right"):
        fail(f'searchsorted: side={side!r}, "left" or "right" is right')
    if sorter is not None:
        row = take(row, sorter)
    wanted = expand_dims(wanted, -1)
    if side == "left":
        before = less(row, wanted)
        if wanted.dtype.kind == "f":
            before = logical_or(before, less(isnan(row), isnan(wanted)))
    else:
        before = less_equal(row, wanted)
        if wanted.dtype.kind == "f":
            before = logical_or(before, isnan(wanted))
    return total(astype(before, "i64"), axis=-1)
