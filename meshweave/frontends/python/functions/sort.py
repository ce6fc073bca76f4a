"""Define sort, argsort and top_k by `mw.order`, the places of the elements in order."""

from __future__ import annotations

from meshweave.frontends.python.builder import fail, tensor_type
from meshweave.frontends.python.dtypes import DEFAULT_INT, int32
from meshweave.frontends.python.functions.elementwise import astype
from meshweave.frontends.python.functions.index import take_along_axis
from meshweave.frontends.python.functions.manipulate import axis_of
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor, tracing


def argsort(
    x: ArrayLike, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Tracer:
    """Return the indices that sort x along `axis`, as int64; equal elements keep their order, NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("argsort", axis, value.ndim)
    return _places(value, dim, value.shape[dim], descending)


def sort(
    x: ArrayLike, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Tracer:
    """Sort x along `axis`; NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("sort", axis, value.ndim)
    places = argsort(value, axis=dim, descending=descending)
    return take_along_axis(value, places, axis=dim)


def top_k(
    x: ArrayLike, k: int, /, *, axis: int = -1, largest: bool = True
) -> tuple[Tracer, Tracer]:
    """Return the k largest (or smallest) elements along `axis`, in order, and their indices; NaNs are the largest.

    Of equal elements those come first that have the smaller indices.
    """
    value = tensor(x)
    dim = axis_of("top_k", axis, value.ndim)
    if not 0 <= k <= value.shape[dim]:
        fail(f"top_k: k is {k}, and there are {value.shape[dim]} elements along dim {dim}")
    places = _places(value, dim, k, largest)
    return take_along_axis(value, places, axis=dim), places


@primitive
def _places(value: Tracer, dim: int, count: int, descending: bool) -> Tracer:
    """Return the places of the first `count` elements in order along `dim`."""
    trace = tracing(value)
    shape = (*value.shape[:dim], count, *value.shape[dim + 1 :])
    marks = [", descending"] * descending + [", unsigned"] * (value.dtype.kind == "u")
    name = trace.let(
        f'"mw.order"({trace.name(value)}) {{dim = {dim} : i64{"".join(marks)}}}'
        f" : ({value.type}) -> {tensor_type(shape, int32)}"
    )
    return astype(Tracer(trace, name, shape, int32), DEFAULT_INT)
