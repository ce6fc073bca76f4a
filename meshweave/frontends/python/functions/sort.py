"""Define sort and argsort by `mw.sort`, top_k by `mw.order`, the places of the first elements in order."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.frontends.python.builder import fail, tensor_type
from meshweave.frontends.python.dtypes import DEFAULT_INT, int32
from meshweave.frontends.python.functions.elementwise import astype
from meshweave.frontends.python.functions.index import take_along_axis
from meshweave.frontends.python.functions.manipulate import axis_of
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor, tracing
from meshweave.ir.wanted import FEW


def argsort(
    x: ArrayLike, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Tracer:
    """Return the indices that sort x along `axis`, as int64; equal elements keep their order, NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("argsort", axis, value.ndim)
    return _sorted(value, dim, descending)[1]


def sort(
    x: ArrayLike, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Tracer:
    """Sort x along `axis`; NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("sort", axis, value.ndim)
    return _sorted(value, dim, descending)[0]


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
    if k * FEW > value.shape[dim]:
        first = (*[slice(None)] * dim, slice(k))
        made, places = _sorted(value, dim, largest)
        return made[first], places[first]
    places = _places(value, dim, k, largest)
    return take_along_axis(value, places, axis=dim), places


@primitive
def _places(value: Tracer, dim: int, count: int, descending: bool) -> Tracer:
    """Return the places of the first `count` elements in order along `dim`."""
    trace = tracing(value)
    shape = (*value.shape[:dim], count, *value.shape[dim + 1 :])
    name = trace.let(
        f'"mw.order"({trace.name(value)}) {{dim = {dim} : i64{_marks(value, descending)}}}'
        f" : ({value.type}) -> {tensor_type(shape, int32)}"
    )
    return astype(Tracer(trace, name, shape, int32), DEFAULT_INT)


@primitive
def _sorted(value: Tracer, dim: int, descending: bool) -> tuple[Tracer, Tracer]:
    """Return the elements in order along `dim`, and the places where they were."""
    made, places = _sort([value], dim, _marks(value, descending))
    return made, astype(places, DEFAULT_INT)


@primitive
def put_back(value: Tracer, places: Tracer, dim: int) -> Tracer:
    """Return elements in the order that they had before a sort along `dim`, which took them from `places`.

    Each place is there once: elements in order of these are where they were.
    """
    return _sort([astype(places, int32), value], dim, "")[1]


def _sort(values: Sequence[Tracer], dim: int, marks: str) -> list[Tracer]:
    """Add an `mw.sort`; return its results, of which the last are the places."""
    trace, shape = tracing(*values), values[0].shape
    given = ", ".join(v.type for v in values)
    made, names = trace.fresh(), ", ".join(map(trace.name, values))
    trace.block.lines.append(
        f'{made}:{len(values) + 1} = "mw.sort"({names}) {{dim = {dim} : i64{marks}}}'
        f" : ({given}) -> ({given}, {tensor_type(shape, int32)}){trace.loc()}"
    )
    kinds = [*[v.dtype for v in values], int32]
    return [Tracer(trace, f"{made}#{k}", shape, kind) for k, kind in enumerate(kinds)]


def _marks(value: Tracer, descending: bool) -> str:
    """Return the marks of an order of values."""
    return ", descending" * descending + ", unsigned" * (value.dtype.kind == "u")
