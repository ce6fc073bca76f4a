"""Reductions of the array API standard: sum, prod, max, min, mean, var, std, any, all, argmax, argmin, cumulative ones,
and softmax. Sums of float16 and bfloat16 add up in float32; sums of narrower integers and bools are int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshweave.errors import UsageError
from meshweave.trace import elementwise as e
from meshweave.trace import logic
from meshweave.trace.builder import fail, tensor_type
from meshweave.trace.dtypes import (
    DEFAULT_INT,
    DType,
    as_dtype,
    bool_,
    float32,
    floating,
    limits,
    weak_kind,
)
from meshweave.trace.manipulate import _reshaped, axes_of, axis_of, expand_dims
from meshweave.trace.tracer import Tracer, tensor, tracing


def _reduce(value: Tracer, dims: tuple[int, ...], keepdims: bool, op: str, initial: Any) -> Tracer:
    """Combine along `dims` with an op of arith that starts from `initial`."""
    shape = tuple(n for d, n in enumerate(value.shape) if d not in dims)
    if dims:
        trace = tracing(value)
        init, type_ = trace.filled(shape, value.dtype, initial), tensor_type(shape, value.dtype)
        name = trace.let(
            f"linalg.reduce {{ {op} }} ins({trace.name(value)} : {value.type}) "
            f"outs({init} : {type_}) dimensions = {sorted(dims)}"
        )
        value = Tracer(trace, name, shape, value.dtype)
    if keepdims:
        kept = list(shape)
        for d in sorted(dims):
            kept.insert(d, 1)
        return _reshaped(value, tuple(kept))
    return value


def _wanted(name: str, dtype: Any) -> DType | None:
    if dtype is None:
        return None
    try:
        return as_dtype(dtype)
    except UsageError as error:
        fail(f"{name}: {error.message}")


def _accumulated(
    name: str, x: Any, axis: Any, dtype: Any, keepdims: bool, op: str, initial: int
) -> Tracer:
    value = tensor(x)
    out = _wanted(name, dtype) or _summed_type(value.dtype)
    if out.kind == "b":
        fail(f"{name}: dtype {out!r}, a number is right")
    wide = float32 if out.kind == "f" and out.bits == 16 else out
    suffix = "f" if wide.kind == "f" else "i"
    dims = axes_of(name, axis, value.ndim)
    made = _reduce(e.astype(value, wide), dims, keepdims, f"arith.{op}{suffix}", initial)
    return e.astype(made, out)


def _summed_type(dtype: DType) -> DType:
    return dtype if dtype.kind == "f" or dtype.bits >= DEFAULT_INT.bits else DEFAULT_INT


def sum(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tracer:
    """The sum along `axis` (a dim, several, or None: all). dtype: of the result; int64 of narrower integers.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> rows = mw.jit(lambda x: mw.sum(x, axis=1), mesh="x=2", in_layouts="[_, x]")
    >>> np.asarray(rows(np.ones((2, 6), np.float32))).tolist()
    [6.0, 6.0]
    """
    return _accumulated("sum", x, axis, dtype, keepdims, "add", 0)


def prod(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tracer:
    """The product along `axis`, as `sum`."""
    return _accumulated("prod", x, axis, dtype, keepdims, "mul", 1)


def _extreme(name: str, doc: str, ops: dict[str, str], end: int) -> Callable[..., Tracer]:
    def function(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Tracer:
        value = tensor(x)
        dims = axes_of(name, axis, value.ndim)
        if 0 in [value.shape[d] for d in dims]:
            fail(f"{name}: there are no elements along dims {dims}")
        op, start = ops[value.dtype.kind], limits(value.dtype)[end]
        return _reduce(value, dims, keepdims, f"arith.{op}", start)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {doc} element along `axis`; NaN where there is one."
    return function


max = _extreme("max", "largest", {"f": "maximumf", "i": "maxsi", "b": "ori"}, 0)
min = _extreme("min", "smallest", {"f": "minimumf", "i": "minsi", "b": "andi"}, 1)


def any(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Tracer:
    """Whether an element along `axis` is not 0; bool."""
    value = e.astype(tensor(x), bool_)
    return _reduce(value, axes_of("any", axis, value.ndim), keepdims, "arith.ori", False)


def all(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Tracer:
    """Whether no element along `axis` is 0; bool."""
    value = e.astype(tensor(x), bool_)
    return _reduce(value, axes_of("all", axis, value.ndim), keepdims, "arith.andi", True)


def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Tracer:
    """How many elements along `axis` are not 0; int64."""
    return sum(e.astype(tensor(x), bool_), axis=axis, keepdims=keepdims)


def _count(value: Tracer, dims: tuple[int, ...]) -> int:
    return math.prod(value.shape[d] for d in dims)


def mean(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Tracer:
    """The mean along `axis`; of integers in float32."""
    value = tensor(x)
    dims, out = axes_of("mean", axis, value.ndim), floating(value.dtype)
    return e.astype(_mean(value, dims, keepdims), out)


def _mean(value: Tracer, dims: tuple[int, ...], keepdims: bool) -> Tracer:
    """In float32 or wider."""
    wide = e.astype(value, _computed(value.dtype))
    count = _count(value, dims)
    return e.divide(sum(wide, axis=dims, keepdims=keepdims), float(count))


def _computed(dtype: DType) -> DType:
    return float32 if dtype.kind != "f" or dtype.bits == 16 else dtype


def var(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tracer:
    """The variance along `axis`: squared deviations from the mean over (number - correction).

    NaN when that is not above 0.
    """
    value = tensor(x)
    return e.astype(_variance("var", value, axis, correction, keepdims), floating(value.dtype))


def std(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tracer:
    """The square root of the variance along `axis`."""
    value = tensor(x)
    found = e.sqrt(_variance("std", value, axis, correction, keepdims))
    return e.astype(found, floating(value.dtype))


def _variance(name: str, value: Tracer, axis: Any, correction: float, keepdims: bool) -> Tracer:
    dims = axes_of(name, axis, value.ndim)
    apart = e.subtract(e.astype(value, _computed(value.dtype)), _mean(value, dims, True))
    total = sum(e.multiply(apart, apart), axis=dims, keepdims=keepdims)
    if weak_kind(correction) is None:
        fail(f"{name}: correction={correction!r:.40}, a Python number is right")
    left = _count(value, dims) - correction
    return e.divide(total, float(left) if left > 0 else math.nan)


def _where_extreme(name: str, doc: str, extreme: Any) -> Callable[..., Tracer]:
    def function(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Tracer:
        from meshweave.trace.create import iota

        value = given = tensor(x)
        in_a_row = axis is None
        if axis is None:
            value, axis = _reshaped(value, (value.size,)), 0
        dim = axis_of(name, axis, value.ndim)
        if not value.shape[dim]:
            fail(f"{name}: there are no elements along dim {dim}")
        best = extreme(value, axis=dim, keepdims=True)
        found = logic.equal(value, best)
        if value.dtype.kind == "f":
            found = logic.logical_or(found, logic.isnan(value))  # beside a NaN the extreme is NaN
        places = e.where(found, iota(value.shape, dim, DEFAULT_INT), value.shape[dim])
        where = min(places, axis=dim, keepdims=keepdims)
        return _reshaped(where, (1,) * given.ndim) if keepdims and in_a_row else where

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The index of the first {doc} element along `axis` (None: among all in a row), of a NaN where there is one; "
        "int64."
    )
    return function


argmax = _where_extreme("argmax", "largest", max)
argmin = _where_extreme("argmin", "smallest", min)


def softmax(x: Any, /, axis: int = -1) -> Tracer:
    """exp(x) over its sum along `axis`, without overflow."""
    value = tensor(x)
    dim = axis_of("softmax", axis, value.ndim)
    wide = e.astype(value, _computed(value.dtype))
    above = e.exp(e.subtract(wide, max(wide, axis=dim, keepdims=True)))
    shares = e.divide(above, sum(above, axis=dim, keepdims=True))
    return e.astype(shares, floating(value.dtype))


def log_softmax(x: Any, /, axis: int = -1) -> Tracer:
    """The logarithm of softmax, without overflow."""
    value = tensor(x)
    dim = axis_of("log_softmax", axis, value.ndim)
    wide = e.astype(value, _computed(value.dtype))
    below = e.subtract(wide, max(wide, axis=dim, keepdims=True))
    found = e.subtract(below, e.log(sum(e.exp(below), axis=dim, keepdims=True)))
    return e.astype(found, floating(value.dtype))


def logsumexp(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Tracer:
    """log(sum(exp(x))) along `axis`, without overflow."""
    value = tensor(x)
    dims = axes_of("logsumexp", axis, value.ndim)
    wide = e.astype(value, _computed(value.dtype))
    most = max(wide, axis=dims, keepdims=True)
    most = e.where(logic.isfinite(most), most, 0.0)
    total = e.log(sum(e.exp(e.subtract(wide, most)), axis=dims, keepdims=keepdims))
    found = e.add(total, most if keepdims else _reshaped(most, total.shape))
    return e.astype(found, floating(value.dtype))


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tracer:
    """Sums of the first 1, 2, .. elements along `axis`, in that order; with `include_initial` that of none first."""
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial, e.add, 0)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tracer:
    """Products of the first 1, 2, .. elements along `axis`, as `cumulative_sum`."""
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial, e.multiply, 1)


def _cumulative(
    name: str, x: Any, axis: int | None, dtype: Any, include: bool, combine: Any, initial: int
) -> Tracer:
    from meshweave.trace.control import scan
    from meshweave.trace.create import full
    from meshweave.trace.manipulate import concat, moveaxis

    value = tensor(x)
    if axis is None:
        if value.ndim != 1:
            fail(f"{name}: x has {value.ndim} dims: say along which axis")
        axis = 0
    dim = axis_of(name, axis, value.ndim)
    out = _wanted(name, dtype) or _summed_type(value.dtype)
    wide = float32 if out.kind == "f" and out.bits == 16 else out
    value = e.astype(value, wide)
    rest = value.shape[:dim] + value.shape[dim + 1 :]
    start = full(rest, initial, dtype=wide)

    def step(carry: Tracer, row: Tracer) -> tuple[Tracer, Tracer]:
        following = combine(carry, row)
        return following, following

    if value.shape[dim]:
        _, rows = scan(step, start, moveaxis(value, dim, 0))
        made = moveaxis(rows, 0, dim)
    else:
        made = value
    if include:
        made = concat([expand_dims(start, dim), made], dim)
    return e.astype(made, out)


def diff(
    x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Tracer:
    """Differences of neighbours along `axis`, taken `n` times.

    prepend, append: arrays put before and behind x along `axis` first.
    """
    from meshweave.trace.manipulate import concat

    value = tensor(x)
    dim = axis_of("diff", axis, value.ndim)
    if n < 0:
        fail(f"diff: n={n}, 0 or more is right")
    ends = [end for end in (prepend, value, append) if end is not None]
    value = concat(ends, dim) if len(ends) > 1 and n else value
    before = (slice(None),) * dim
    tail, head = (*before, slice(1, None)), (*before, slice(None, -1))
    minus = logic.not_equal if value.dtype is bool_ else e.subtract
    for _ in range(n):
        value = minus(value[tail], value[head])
    return value
