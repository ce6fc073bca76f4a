"""Define the reductions and cumulative functions of the array API standard, and softmax.

Sums of float16 and bfloat16 add up in float32; sums of narrower integers and bools are int64, without sign uint64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from meshweave.frontends.python.builder import Emit, fail, tensor_type
from meshweave.frontends.python.dtypes import (
    DEFAULT_INT,
    DTYPES,
    DType,
    DTypeLike,
    Scalar,
    accumulator,
    bool_,
    floating,
    limits,
    op_of,
    uint64,
    weak_kind,
)
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import iota
from meshweave.frontends.python.functions.elementwise import named
from meshweave.frontends.python.functions.manipulate import (
    axes_of,
    axis_of,
    concat,
    expand_dims,
    reshaped,
)
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Axes,
    Tracer,
    dtype_of,
    splat,
    tensor,
    tracing,
)


@primitive
def _reduce(
    value: Tracer, dims: tuple[int, ...], keepdims: bool, op: str, initial: Scalar
) -> Tracer:
    """Combine the elements along `dims` with an op of arith, starting from `initial`."""
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
        return reshaped(value, tuple(kept))
    return value


def _accumulated(
    name: str,
    x: ArrayLike,
    axis: Axes,
    dtype: DTypeLike | None,
    keepdims: bool,
    op: str,
    initial: int,
) -> Tracer:
    value = tensor(x)
    out = dtype_of(name, dtype, summed_type(value.dtype))
    if out.kind == "b":
        fail(f"{name}: dtype {out!r}, a number is right")
    wide = accumulator(out)
    dims = axes_of(name, axis, value.ndim)
    made = _reduce(e.astype(value, wide), dims, keepdims, op_of(op, wide), initial)
    return e.astype(made, out)


def summed_type(dtype: DType) -> DType:
    """Return the dtype of sums: 64 bits for narrow integers."""
    if dtype.kind in "fc" or dtype.bits >= DEFAULT_INT.bits:
        return dtype
    return uint64 if dtype.kind == "u" else DEFAULT_INT


def sum(
    x: ArrayLike, /, axis: Axes = None, *, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tracer:
    """Sum along `axis` (a dim, several, or None: all). dtype: of the result, of narrow integers int64 or uint64.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> rows = mw.jit(lambda x: mw.sum(x, axis=1), mesh="x=2", in_layouts="[_, x]")
    >>> np.asarray(rows(np.ones((2, 6), np.float32))).tolist()
    [6.0, 6.0]
    """
    return _accumulated("sum", x, axis, dtype, keepdims, "add", 0)


def prod(
    x: ArrayLike, /, axis: Axes = None, *, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tracer:
    """Multiply along `axis`, with the dtypes of `sum`."""
    return _accumulated("prod", x, axis, dtype, keepdims, "mul", 1)


def _signed(value: Tracer) -> Tracer:
    """Return numbers without sign as ones with it, in the same order: ranks know the extremes of these."""
    return value if value.dtype.kind != "u" else _sign_flipped(value, DTYPES[value.dtype.element])


def _sign_flipped(value: Tracer, dtype: DType) -> Tracer:
    sign = DTYPES[value.dtype.element]
    low, _ = limits(sign)
    flip: Emit = lambda b, t, x: b.op("arith.xori", t, x, b.constant(low, t))  # noqa: E731
    return e.apply([value], flip, sign, dtype, sign)


def _extreme(name: str, doc: str, ops: dict[str, str], end: int) -> Callable[..., Tracer]:
    def function(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
        value = tensor(x)
        e.checked(name, [value], "fib")
        dims = axes_of(name, axis, value.ndim)
        if 0 in [value.shape[d] for d in dims]:
            fail(f"{name}: there are no elements along dims {dims}")
        given = _signed(value)
        op, start = ops[given.dtype.kind], limits(given.dtype)[end]
        best = _reduce(given, dims, keepdims, f"arith.{op}", start)
        return best if given is value else _sign_flipped(best, value.dtype)

    return named(function, name, f"Return the {doc} element along `axis`; NaN where there is one.")


max = _extreme("max", "largest", {"f": "maximumf", "i": "maxsi", "b": "ori"}, 0)
min = _extreme("min", "smallest", {"f": "minimumf", "i": "minsi", "b": "andi"}, 1)


def any(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Tell whether an element along `axis` is not 0; bool."""
    value = e.astype(tensor(x), bool_)
    return _reduce(value, axes_of("any", axis, value.ndim), keepdims, "arith.ori", False)


def all(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Tell whether no element along `axis` is 0; bool."""
    value = e.astype(tensor(x), bool_)
    return _reduce(value, axes_of("all", axis, value.ndim), keepdims, "arith.andi", True)


def count_nonzero(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Count the elements along `axis` that are not 0; int64."""
    return sum(e.astype(tensor(x), bool_), axis=axis, keepdims=keepdims)


def mean(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Compute the mean along `axis`; float32 for integers."""
    value = tensor(x)
    dims, out = axes_of("mean", axis, value.ndim), floating(value.dtype)
    return e.astype(_mean(value, dims, keepdims), out)


def _mean(value: Tracer, dims: tuple[int, ...], keepdims: bool) -> Tracer:
    """Compute the mean in float32 or wider."""
    return e.divide(
        sum(_wide(value), axis=dims, keepdims=keepdims),
        float(math.prod(value.shape[d] for d in dims)),
    )


def _wide(value: Tracer) -> Tracer:
    """Convert to the floating type that sums of `value` add up in, float32 or wider."""
    return e.astype(value, accumulator(floating(value.dtype)))


def var(
    x: ArrayLike,
    /,
    axis: Axes = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Tracer:
    """Compute the variance along `axis`: the sum of squared deviations from the mean over (count - correction).

    The result is NaN if that divisor is not above 0. ddof: NumPy's name of correction.
    """
    value, less = tensor(x), correction if ddof is None else ddof
    return e.astype(_variance("var", value, axis, less, keepdims), floating(value.dtype))


def std(
    x: ArrayLike,
    /,
    axis: Axes = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Tracer:
    """Compute the square root of the variance along `axis`, with the arguments of `var`."""
    value, less = tensor(x), correction if ddof is None else ddof
    found = e.sqrt(_variance("std", value, axis, less, keepdims))
    return e.astype(found, floating(value.dtype))


def _variance(name: str, value: Tracer, axis: Axes, correction: float, keepdims: bool) -> Tracer:
    e.checked(name, [value], "fib")
    dims = axes_of(name, axis, value.ndim)
    apart = e.subtract(_wide(value), _mean(value, dims, True))
    total = sum(e.multiply(apart, apart), axis=dims, keepdims=keepdims)
    if weak_kind(correction) is None:
        fail(f"{name}: correction={correction!r:.40}, a Python number is right")
    left = math.prod(value.shape[d] for d in dims) - correction
    return e.divide(total, float(left) if left > 0 else math.nan)


def _where_extreme(name: str, doc: str, extreme: Callable[..., Tracer]) -> Callable[..., Tracer]:
    def function(x: ArrayLike, /, axis: int | None = None, *, keepdims: bool = False) -> Tracer:
        value = given = tensor(x)
        in_a_row = axis is None
        if axis is None:
            value, axis = reshaped(value, (value.size,)), 0
        dim = axis_of(name, axis, value.ndim)
        if not value.shape[dim]:
            fail(f"{name}: there are no elements along dim {dim}")
        best = extreme(value, axis=dim, keepdims=True)
        found = logic.equal(value, best)
        if value.dtype.kind == "f":
            found = logic.logical_or(found, logic.isnan(value))  # beside a NaN the extreme is NaN
        places = e.where(found, iota(value.shape, dim, DEFAULT_INT), value.shape[dim])
        where = min(places, axis=dim, keepdims=keepdims)
        return reshaped(where, (1,) * given.ndim) if keepdims and in_a_row else where

    doc = f"Return the index of the first {doc} element (or NaN) along `axis` (None: in the flattened array); int64."
    return named(function, name, doc)


argmax = _where_extreme("argmax", "largest", max)
argmin = _where_extreme("argmin", "smallest", min)


@primitive
def softmax(x: ArrayLike, /, axis: int = -1) -> Tracer:
    """Compute exp(x) divided by its sum along `axis`, without overflow."""
    value, dim, below = _below_largest("softmax", x, axis)
    above = e.exp(below)
    shares = e.divide(above, sum(above, axis=dim, keepdims=True))
    return e.astype(shares, floating(value.dtype))


def _below_largest(name: str, x: ArrayLike, axis: int) -> tuple[Tracer, int, Tracer]:
    """Return x, its dim `axis`, and its elements less the largest along it, which exp cannot overflow."""
    value = tensor(x)
    dim = axis_of(name, axis, value.ndim)
    wide = _wide(value)
    return value, dim, e.subtract(wide, max(wide, axis=dim, keepdims=True))


@primitive
def log_softmax(x: ArrayLike, /, axis: int = -1) -> Tracer:
    """Compute the logarithm of softmax, without overflow."""
    value, dim, below = _below_largest("log_softmax", x, axis)
    found = e.subtract(below, e.log(sum(e.exp(below), axis=dim, keepdims=True)))
    return e.astype(found, floating(value.dtype))


@primitive
def logsumexp(x: ArrayLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tracer:
    """Compute log(sum(exp(x))) along `axis`, without overflow."""
    value = tensor(x)
    dims = axes_of("logsumexp", axis, value.ndim)
    wide = _wide(value)
    most = max(wide, axis=dims, keepdims=True)
    most = e.where(logic.isfinite(most), most, 0.0)
    total = e.log(sum(e.exp(e.subtract(wide, most)), axis=dims, keepdims=keepdims))
    found = e.add(total, most if keepdims else reshaped(most, total.shape))
    return e.astype(found, floating(value.dtype))


@primitive
def _scan_elements(value: Tracer, dim: int, op: str, initial: float) -> Tracer:
    """Combine the elements along `dim` in order with an op of arith, starting from `initial`."""
    trace, dtype = tracing(value), value.dtype
    rest = value.shape[:dim] + value.shape[dim + 1 :]
    start = trace.filled(rest, dtype, initial if dtype.kind in "fc" else int(initial))
    loc = trace.loc()
    name = trace.let(
        f'"mw.scan"({trace.name(value)}, {start}) ({{\n^bb0(%a: {dtype.element}, %b: {dtype.element}):\n'
        f'  %c = {op} %a, %b : {dtype.element}{loc}\n  "mw.yield"(%c) : ({dtype.element}) -> (){loc}\n'
        f"}}) {{dim = {dim} : i64}} : ({value.type}, {tensor_type(rest, dtype)}) -> {value.type}"
    )
    return Tracer(trace, name, value.shape, dtype)


def _cumulative(name: str, doc: str, op: str, initial: float) -> Callable[..., Tracer]:
    def function(
        x: ArrayLike,
        /,
        axis: int | None = None,
        *,
        dtype: DTypeLike | None = None,
        include_initial: bool = False,
    ) -> Tracer:
        value = tensor(x)
        if axis is None and value.ndim != 1:
            fail(f"{name}: x has {value.ndim} dims: say along which axis")
        dim = axis_of(name, 0 if axis is None else axis, value.ndim)
        out = dtype_of(name, dtype, summed_type(value.dtype))
        if out.kind == "b":
            fail(f"{name}: dtype {out!r}, a number is right")
        wide = accumulator(out)
        made = _scan_elements(e.astype(value, wide), dim, op_of(op, wide), initial)
        if include_initial:
            rest = value.shape[:dim] + value.shape[dim + 1 :]
            start = splat(tracing(), rest, int(initial), wide)
            made = concat([expand_dims(start, dim), made], dim)
        return e.astype(made, out)

    return named(function, name, doc)


cumulative_sum = _cumulative(
    "cumulative_sum",
    "Sum the first 1, 2, ... elements along `axis`, in that order; `include_initial` puts the empty sum in front.",
    "add",
    -0.0,
)
cumulative_prod = _cumulative(
    "cumulative_prod",
    "Multiply the first 1, 2, ... elements along `axis`, as `cumulative_sum` adds them.",
    "mul",
    1.0,
)


def diff(
    x: ArrayLike,
    /,
    n: int = 1,
    axis: int = -1,
    *,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Tracer:
    """Subtract neighbours along `axis`, `n` times.

    prepend, append: arrays joined to x along `axis` first.
    """
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
