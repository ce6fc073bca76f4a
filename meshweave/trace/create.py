"""Creation functions of the array API standard."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.errors import UsageError
from meshweave.runtime.array import Array, as_numpy
from meshweave.trace.builder import Body, broadcast_map, current, fail, tensor_type
from meshweave.trace.dtypes import (
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DType,
    as_dtype,
    bool_,
    float64,
    int64,
    limits,
    promoted,
    weak_kind,
)
from meshweave.trace.manipulate import broadcast_to, sizes_of, stack
from meshweave.trace.tracer import Tracer, check_device, splat, tensor, tracing


def _type(name: str, dtype: Any, default: DType) -> DType:
    if dtype is None:
        return default
    try:
        return as_dtype(dtype)
    except UsageError as error:
        fail(f"{name}: {error.message}")


def asarray(
    value: Any, /, dtype: Any = None, *, device: Any = None, copy: bool | None = None
) -> Tracer:
    """A Python scalar, an array, or (nested) lists of these and of traced values, as a tensor of the program.

    device: None or the mesh, which all tensors of the program lie on. copy: values of programs do not change, so that
    a copy and the value are the same.
    """
    from meshweave.trace.elementwise import astype

    check_device("asarray", device)
    if isinstance(value, list | tuple):
        if _has_tracer(value):
            rows = [asarray(row) for row in value]
            made = stack(rows)
        else:
            made = tensor(_plain(value))
    else:
        made = tensor(value)
    wanted = _type("asarray", dtype, made.dtype)
    return astype(made, wanted)


def _plain(value: Any) -> np.ndarray[Any, Any]:
    """Nested lists of Python scalars, in the default types."""
    try:
        array = np.asarray(value)
    except ValueError:
        fail("asarray: the lists are not of one length, or hold what is no number")
    if array.dtype.kind not in "bif":
        fail(f"asarray: a list of {array.dtype}")
    kind = {"b": "b", "i": "i", "f": "f"}[array.dtype.kind]
    if array.size == 0 or weak_kind(_first(value)) is not None:
        return array.astype(promoted([], [kind]).numpy)
    return array


def _first(value: Any) -> Any:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def _has_tracer(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tracer(v) for v in value)
    return isinstance(value, Tracer)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of another library, in the processor's memory: in a traced function as a constant of the program, else
    as an Array of one rank, which keeps the memory unless `copy` is True.

    Raises UsageError for what has no `__dlpack__`.
    """
    if current() is not None:
        if isinstance(x, Tracer):
            return x
        if not hasattr(x, "__dlpack__"):
            fail(f"from_dlpack: a {type(x).__name__} has no __dlpack__")
        return asarray(as_numpy(x, "from_dlpack"), device=device)
    if device is not None:
        raise UsageError(f"from_dlpack: device={device!r:.40}: the processor's memory is the only")
    made = Array.from_dlpack(x)
    return made.holding([shard.copy() for shard in made.shards]) if copy else made


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tracer:
    """A tensor of one value, by default of the value's type."""
    from meshweave.trace.elementwise import astype

    check_device("full", device)
    sizes = _sizes("full", shape)
    kind = weak_kind(fill_value)
    if kind is not None:
        wanted = _type("full", dtype, promoted([], [kind]))
        return splat(tracing(), sizes, fill_value, wanted)
    value = tensor(fill_value)
    return broadcast_to(astype(value, _type("full", dtype, value.dtype)), sizes)


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    sizes = sizes_of(name, shape)
    if any(n < 0 for n in sizes):
        fail(f"{name}: shape {sizes}, sizes must not be negative")
    return sizes


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tracer:
    """Zeros, by default of float32."""
    return full(shape, 0, dtype=_type("zeros", dtype, DEFAULT_FLOAT), device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tracer:
    """Ones, by default of float32."""
    return full(shape, 1, dtype=_type("ones", dtype, DEFAULT_FLOAT), device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tracer:
    """A tensor whose elements do not matter: zeros."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tracer:
    """One value in the shape, and by default the dtype, of x."""
    like = tensor(x)
    return full(like.shape, fill_value, dtype=dtype or like.dtype, device=device)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tracer:
    """Zeros in the shape, and by default the dtype, of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tracer:
    """Ones in the shape, and by default the dtype, of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tracer:
    """A tensor like x whose elements do not matter: zeros."""
    return zeros_like(x, dtype=dtype, device=device)


def computed(shape: tuple[int, ...], dtype: DType, body: Callable[[Body], str]) -> Tracer:
    """A tensor made of loop indices alone: body(b) is the element at (b.loop(0), b.loop(1), ..)."""
    trace, type_ = tracing(), tensor_type(shape, dtype)
    maps, kinds = [broadcast_map(shape, shape)], ["parallel"] * len(shape)
    empty_ = trace.empty(type_)
    name = trace.generic(maps, kinds, [], empty_, type_, lambda b, ins, out: body(b))
    return Tracer(trace, name, shape, dtype)


def iota(shape: tuple[int, ...], dim: int, dtype: DType) -> Tracer:
    """Each element its index along a dim."""
    return computed(shape, dtype, lambda b: _index(b, dim, dtype))


def _index(b: Body, dim: int, dtype: DType) -> str:
    number = b.let(f"arith.index_cast {b.loop(dim)} : index to i64")
    return b.cast(number, int64, dtype)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tracer:
    """start, start + step, .. up to but without stop; with one number: from 0 up to it."""
    if stop is None:
        start, stop = 0, start
    numbers = (start, stop, step)
    check_device("arange", device)
    numbers = tuple(_python(v) for v in numbers)
    if any(weak_kind(v) is None or not math.isfinite(v) for v in numbers) or numbers[2] == 0:
        fail(f"arange: {numbers}, finite Python numbers and a step that is not 0 are right")
    start, stop, step = numbers
    default = DEFAULT_FLOAT if any(isinstance(v, float) for v in numbers) else DEFAULT_INT
    wanted = _type("arange", dtype, default)
    count = max(0, math.ceil((stop - start) / step))
    if wanted.kind == "b":
        fail(f"arange: dtype {wanted!r}, a number is right")
    if wanted.kind == "i" and count:
        low, high = limits(wanted)
        for end in (int(start), int(start) + (count - 1) * int(step)):
            if not low <= end <= high:
                fail(f"arange: {end} is no {wanted!r}")
    return _progression(count, start, step, wanted)


def _python(value: Any) -> Any:
    """A NumPy scalar as Python's, all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _progression(count: int, start: Any, step: Any, dtype: DType) -> Tracer:
    wide = float64 if dtype.kind == "f" else int64

    def body(b: Body) -> str:
        index = _index(b, 0, wide)
        mul, add = (
            ("arith.mulf", "arith.addf") if wide.kind == "f" else ("arith.muli", "arith.addi")
        )
        scaled = b.op(mul, wide, index, b.constant(step, wide))
        return b.cast(b.op(add, wide, scaled, b.constant(start, wide)), wide, dtype)

    return computed((count,), dtype, body)


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tracer:
    """`num` numbers from start to stop at equal distances, stop included unless `endpoint` is False."""
    wanted = _type("linspace", dtype, DEFAULT_FLOAT)
    check_device("linspace", device)
    start, stop, num = _python(start), _python(stop), _python(num)
    if weak_kind(start) is None or weak_kind(stop) is None or not isinstance(num, int) or num < 0:
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
        if wanted.kind == "i":
            value = b.op("math.floor", float64, value)
        return b.cast(value, float64, wanted)

    return computed((num,), wanted, body)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: Any = None,
) -> Tracer:
    """Ones on the diagonal `k` (above the main one when positive), zeros elsewhere."""
    check_device("eye", device)
    wanted = _type("eye", dtype, DEFAULT_FLOAT)
    shape = _sizes("eye", (n_rows, n_rows if n_cols is None else n_cols))

    def body(b: Body) -> str:
        on = b.compare("eq", int64, _gap(b, 0, 1), b.constant(k, int64))
        return b.cast(on, bool_, wanted)

    return computed(shape, wanted, body)


def _gap(b: Body, row: int, column: int) -> str:
    """The index of the column minus that of the row, as i64."""
    return b.op("arith.subi", int64, _index(b, column, int64), _index(b, row, int64))


def tril(x: Any, /, *, k: int = 0) -> Tracer:
    """x on and below the diagonal `k` of each matrix, 0 above."""
    return _triangle("tril", x, k, "sle")


def triu(x: Any, /, *, k: int = 0) -> Tracer:
    """x on and above the diagonal `k` of each matrix, 0 below."""
    return _triangle("triu", x, k, "sge")


def _triangle(name: str, x: Any, k: int, predicate: str) -> Tracer:
    from meshweave.trace.tracer import pointwise

    value = tensor(x)
    if value.ndim < 2:
        fail(f"{name}: x has {value.ndim} dims, at least 2 are right")
    row, column = value.ndim - 2, value.ndim - 1

    def body(b: Body, element: str) -> str:
        kept = b.compare(predicate, int64, _gap(b, row, column), b.constant(k, int64))
        return b.select(kept, value.dtype, element, b.constant(0, value.dtype))

    return pointwise([value], value.dtype, body)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tracer]:
    """For vectors the coordinates of every point of their grid, one tensor each; "xy" swaps the first two dims."""
    from meshweave.trace.manipulate import _reshaped

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
        grids.append(broadcast_to(_reshaped(value, tuple(ones_)), tuple(shape)))
    return grids
