"""Define the creation functions of the array API standard."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import Body, fail
from meshweave.frontends.python.dtypes import (
    DEFAULT_INT,
    INTEGERS,
    DType,
    DTypeLike,
    RealScalar,
    Scalar,
    bool_,
    default_floating,
    float64,
    int64,
    limits,
    promoted,
    result_type,
    weak_kind,
)
from meshweave.frontends.python.functions.elementwise import astype
from meshweave.frontends.python.functions.manipulate import broadcast_to, reshaped, sizes_of, stack
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Device,
    Nested,
    Shape,
    Tracer,
    check_device,
    dtype_of,
    parallel,
    pointwise,
    splat,
    tensor,
    tracing,
)


def asarray(
    value: ArrayLike | Nested,
    /,
    dtype: DTypeLike | None = None,
    *,
    device: Device = None,
    copy: bool | None = None,
) -> Tracer:
    """Make a tensor of the program from a Python scalar, an array, or (nested) lists of these and of traced values.

    device: None or the mesh, which all tensors of the program lie on. copy: has no effect, since values of programs
    never change.
    """
    check_device("asarray", device)
    if isinstance(value, list | tuple):
        if any(isinstance(leaf, Tracer) for leaf in tree.flatten(value)[0]):
            made = stack([asarray(row, dtype) for row in value])
        else:
            made = tensor(_plain(value, None if dtype is None else dtype_of("asarray", dtype)))
        return made if dtype is None else astype(made, dtype)
    if not isinstance(value, Scalar | Tracer):
        value = tensor(value)
    return tensor(value) if dtype is None else astype(value, dtype_of("asarray", dtype))


def _plain(value: Nested, dtype: DType | None) -> np.ndarray[Any, Any]:
    """Convert nested lists to an array; Python scalars take the default dtypes where `dtype` is None."""
    try:
        array = np.asarray(value)
    except ValueError:
        fail("asarray: the lists are not of one length, or hold what is no number")
    if array.dtype.kind not in "biufc":
        fail(f"asarray: a list of {array.dtype}")
    if array.size and weak_kind(tree.flatten(value)[0][0]) is None:
        return array
    if dtype is None:
        return array.astype(promoted([], [array.dtype.kind]).numpy)
    if array.size and dtype.kind in INTEGERS:
        low, high = limits(dtype)
        for end in (array.min(), array.max()):
            if not low <= end <= high:
                fail(f"asarray: {end} is no {dtype!r}")
    return array


def full(
    shape: Shape, fill_value: ArrayLike, *, dtype: DTypeLike | None = None, device: Device = None
) -> Tracer:
    """Make a tensor of one value, by default of the value's dtype."""
    check_device("full", device)
    sizes = _sizes("full", shape)
    if isinstance(fill_value, Scalar):
        wanted = dtype_of("full", dtype, result_type(fill_value))
        return splat(tracing(), sizes, fill_value, wanted)
    value = tensor(fill_value) if dtype is None else astype(fill_value, dtype_of("full", dtype))
    return broadcast_to(value, sizes)


def _sizes(name: str, shape: Shape) -> tuple[int, ...]:
    sizes = sizes_of(name, shape)
    if any(n < 0 for n in sizes):
        fail(f"{name}: shape {sizes}, sizes must not be negative")
    return sizes


def zeros(shape: Shape, *, dtype: DTypeLike | None = None, device: Device = None) -> Tracer:
    """Make a tensor of zeros, by default float32."""
    return full(shape, 0, dtype=dtype_of("zeros", dtype, default_floating()), device=device)


def ones(shape: Shape, *, dtype: DTypeLike | None = None, device: Device = None) -> Tracer:
    """Make a tensor of ones, by default float32."""
    return full(shape, 1, dtype=dtype_of("ones", dtype, default_floating()), device=device)


def empty(shape: Shape, *, dtype: DTypeLike | None = None, device: Device = None) -> Tracer:
    """Make a tensor whose elements do not matter: zeros."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(
    x: ArrayLike, /, fill_value: ArrayLike, *, dtype: DTypeLike | None = None, device: Device = None
) -> Tracer:
    """Make a tensor of one value, with the shape and by default the dtype of x."""
    like = tensor(x)
    return full(like.shape, fill_value, dtype=dtype or like.dtype, device=device)


def zeros_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: Device = None) -> Tracer:
    """Make a tensor of zeros, with the shape and by default the dtype of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: Device = None) -> Tracer:
    """Make a tensor of ones, with the shape and by default the dtype of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: Device = None) -> Tracer:
    """Make a tensor like x whose elements do not matter: zeros."""
    return zeros_like(x, dtype=dtype, device=device)


def computed(shape: tuple[int, ...], dtype: DType, body: Callable[[Body], str]) -> Tracer:
    """Make a tensor from loop indices alone: body(b) is the element at (b.loop(0), b.loop(1), ...)."""
    return parallel([], [], shape, dtype, lambda b, ins: body(b))


def iota(shape: tuple[int, ...], dim: int, dtype: DType) -> Tracer:
    """Make a tensor whose elements are their indices along `dim`."""
    return computed(shape, dtype, lambda b: _index(b, dim, dtype))


def _index(b: Body, dim: int, dtype: DType) -> str:
    number = b.let(f"arith.index_cast {b.loop(dim)} : index to i64")
    return b.cast(number, int64, dtype)


def arange(
    start: RealScalar,
    /,
    stop: RealScalar | None = None,
    step: RealScalar = 1,
    *,
    dtype: DTypeLike | None = None,
    device: Device = None,
) -> Tracer:
    """Make the vector start, start + step, ... up to but without stop; one number alone is the stop, from 0."""
    if stop is None:
        start, stop = 0, start
    check_device("arange", device)
    numbers = tuple(_python(v) for v in (start, stop, step))
    if any(weak_kind(v) in (None, "c") or not math.isfinite(v) for v in numbers) or numbers[2] == 0:
        fail(f"arange: {numbers}, finite Python numbers and a step that is not 0 are right")
    start, stop, step = numbers
    default = default_floating() if any(isinstance(v, float) for v in numbers) else DEFAULT_INT
    wanted = dtype_of("arange", dtype, default)
    count = max(0, math.ceil((stop - start) / step))
    if wanted.kind == "b":
        fail(f"arange: dtype {wanted!r}, a number is right")
    if wanted.kind in INTEGERS and count:
        low, high = limits(wanted)
        for end in (int(start), int(start) + (count - 1) * int(step)):
            if not low <= end <= high:
                fail(f"arange: {end} is no {wanted!r}")
    return _progression(count, start, step, wanted)


def _python(value: RealScalar) -> Any:  # an int where whole numbers are, whatever is promised
    """Return a NumPy scalar as Python's, anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _progression(count: int, start: RealScalar, step: RealScalar, dtype: DType) -> Tracer:
    wide = float64 if dtype.kind in "fc" else int64

    def body(b: Body) -> str:
        index = _index(b, 0, wide)
        scaled = b.op(f"arith.mul{wide.kind}", wide, index, b.constant(step, wide))
        moved = b.op(f"arith.add{wide.kind}", wide, scaled, b.constant(start, wide))
        return b.cast(moved, wide, dtype)

    return computed((count,), dtype, body)


def linspace(
    start: RealScalar,
    stop: RealScalar,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: Device = None,
    endpoint: bool = True,
) -> Tracer:
    """Make `num` evenly spaced numbers from start to stop, which is included unless `endpoint` is False."""
    wanted = dtype_of("linspace", dtype, default_floating())
    check_device("linspace", device)
    start, stop, num = _python(start), _python(stop), _python(num)
    ends = [weak_kind(start), weak_kind(stop)]
    if None in ends or "c" in ends or not isinstance(num, int) or num < 0:
        fail(f"linspace: {(start, stop, num)}, Python numbers and a count are right")
    if wanted.kind == "b":
        fail(f"linspace: dtype {wanted!r}, a number is right")
    parts = num - 1 if endpoint else num
    step = (stop - start) / parts if parts > 0 else 0.0

    def body(b: Body) -> str:
        index = _index(b, 0, int64)
        scaled = b.op(
            "arith.mulf", float64, b.cast(index, int64, float64), b.constant(step, float64)
        )
        value = b.op("arith.addf", float64, scaled, b.constant(start, float64))
        if endpoint and num > 1:  # exactly there, whatever the sum is rounded to
            last = b.compare("eq", int64, index, b.constant(num - 1, int64))
            value = b.select(last, float64, b.constant(stop, float64), value)
        if wanted.kind in INTEGERS:
            value = b.op("math.floor", float64, value)
        return b.cast(value, float64, wanted)

    return computed((num,), wanted, body)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: Device = None,
) -> Tracer:
    """Make a matrix with ones on diagonal `k` (above the main one when positive) and zeros elsewhere."""
    check_device("eye", device)
    wanted = dtype_of("eye", dtype, default_floating())
    shape = _sizes("eye", (n_rows, n_rows if n_cols is None else n_cols))

    diagonal = _within(k, *shape)

    def body(b: Body) -> str:
        on = b.compare("eq", int64, _gap(b, 0, 1), b.constant(diagonal, int64))
        return b.cast(on, bool_, wanted)

    return computed(shape, wanted, body)


def _within(k: int, rows: int, columns: int) -> int:
    """Return a diagonal of as many elements that is in a matrix or just beside it."""
    return max(-rows, min(operator.index(k), columns))


def _gap(b: Body, row: int, column: int) -> str:
    """Return the index of the column minus that of the row, as i64."""
    return b.op("arith.subi", int64, _index(b, column, int64), _index(b, row, int64))


def tril(x: ArrayLike, /, *, k: int = 0) -> Tracer:
    """Keep x on and below diagonal `k` of each matrix, with 0 above."""
    return _triangle("tril", x, k, "sle")


def triu(x: ArrayLike, /, *, k: int = 0) -> Tracer:
    """Keep x on and above diagonal `k` of each matrix, with 0 below."""
    return _triangle("triu", x, k, "sge")


@primitive
def _triangle(name: str, x: ArrayLike, k: int, predicate: str) -> Tracer:
    value = tensor(x)
    if value.ndim < 2:
        fail(f"{name}: x has {value.ndim} dims, at least 2 are right")
    row, column = value.ndim - 2, value.ndim - 1
    diagonal = _within(k, *value.shape[-2:])

    def body(b: Body, element: str) -> str:
        kept = b.compare(predicate, int64, _gap(b, row, column), b.constant(diagonal, int64))
        return b.select(kept, value.dtype, element, b.constant(0, value.dtype))

    return pointwise([value], value.dtype, body)


def meshgrid(*arrays: ArrayLike, indexing: str = "xy") -> list[Tracer]:
    """Return the coordinates of every point of the grid of vectors, one tensor each; "xy" swaps the first two dims."""
    values = [tensor(x) for x in arrays]
    for value in values:
        if value.ndim > 1:
            fail(f"meshgrid: an array has {value.ndim} dims, vectors are right")
    if indexing not in ("xy", "ij"):
        fail(f'meshgrid: indexing={indexing!r}, "xy" or "ij" is right')
    order = list(range(len(values)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(values)
    for value, d in zip(values, order):
        shape[d] = value.size
    grids = []
    for value, d in zip(values, order):
        ones_ = [1] * len(shape)
        ones_[d] = value.size
        grids.append(broadcast_to(reshaped(value, tuple(ones_)), tuple(shape)))
    return grids
