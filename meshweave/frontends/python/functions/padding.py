"""Put elements around tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.frontends.python.builder import fail, tensor_type
from meshweave.frontends.python.dtypes import Scalar
from meshweave.frontends.python.functions.manipulate import broadcast_to, concat, flip
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor, tracing

Ends = Sequence[tuple[int, int]]
_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(
    x: ArrayLike,
    /,
    pad_width: int | Sequence[Any],
    mode: str = "constant",
    *,
    constant_values: Scalar | Sequence[Any] = 0,
) -> Tracer:
    """Put elements in front of and behind those of x along each dim.

    pad_width: how many: one number, a pair for all dims, or a pair for each dim. mode: "constant", which puts
    `constant_values`, given as `pad_width` is; "edge" repeats the first and the last element, "reflect" and "symmetric"
    mirror, without and with the element at the end, "wrap" goes on at the other end.
    """
    value = tensor(x)
    ends = _ends(pad_width, value.ndim)
    if mode not in _MODES:
        fail(f"pad: mode={mode!r:.40}, one of {', '.join(_MODES)} is right")
    if mode == "constant":
        return _with_constants(value, ends, constant_values)
    for dim, (low, high) in enumerate(ends):
        if (low or high) and not value.shape[dim]:
            fail(f"pad: dim {dim} has no elements to go on with: mode='constant' is right")
        value = _around(value, dim, low, high, mode)
    return value


def _with_constants(value: Tracer, ends: Ends, constants: Any) -> Tracer:
    """Put a number around a tensor, or dim by dim other ones in front and behind."""
    try:
        rows = np.broadcast_to(np.asarray(constants), (value.ndim, 2)).tolist()
    except ValueError:
        fail(f"pad: constant_values={constants!r:.60}, a number, or a pair for each dim, is right")
    if len({repr(number) for row in rows for number in row}) <= 1:
        return padded(value, ends, rows[0][0] if rows else 0)
    for dim, (pair, row) in enumerate(zip(ends, rows)):
        for side, number in enumerate(row):
            own = [(0, 0)] * value.ndim
            own[dim] = (0, pair[1]) if side else (pair[0], 0)
            value = padded(value, own, number)
    return value


def _ends(width: Any, ndim: int) -> list[tuple[int, int]]:
    """Return how many elements come before and behind each dim."""
    try:
        rows: list[Any] = [width] if isinstance(width, int) else list(width)
        if rows and all(isinstance(w, int) for w in rows):
            rows = [(rows[0], rows[-1])] if len(rows) <= 2 else [None]
        pairs = [(operator.index(w[0]), operator.index(w[-1])) for w in rows]
        right = len(pairs) in (1, ndim) and all(len(w) <= 2 for w in rows)
    except (TypeError, IndexError):
        right = False
    if not right or any(n < 0 for pair in pairs for n in pair):
        fail(
            f"pad: pad_width={width!r:.60}, numbers that are not negative, a pair for each dim, are right"
        )
    return pairs * ndim if len(pairs) == 1 else pairs


@primitive
def padded(value: Tracer, ends: Ends, fill: Scalar) -> Tracer:
    """Put one value around a tensor."""
    if not any(map(any, ends)):
        return value
    trace = tracing(value)
    low, high = ([end[k] for end in ends] for k in (0, 1))
    shape = tuple(n + a + b for n, a, b in zip(value.shape, low, high))
    type_ = tensor_type(shape, value.dtype)
    start, loc = trace.scalar(fill, value.dtype), trace.loc()
    places = ", ".join(f"%p{d}: index" for d in range(value.ndim))
    name = trace.let(
        f"tensor.pad {trace.name(value)} low{low} high{high} {{\n^bb0({places}):\n"
        f"  tensor.yield {start} : {value.dtype.element}{loc}\n}} : {value.type} to {type_}"
    )
    return Tracer(trace, name, shape, value.dtype)


def _around(value: Tracer, dim: int, low: int, high: int, mode: str) -> Tracer:
    """Go on along a dim, where need be over and over, each time as far as what is there says."""
    first = value.shape[dim]
    while low or high:
        n = value.shape[dim]
        most = n - 1 if mode == "reflect" else n
        if (mode == "reflect" and n == 1) or mode == "edge":
            most = max(low, high)
        elif mode == "wrap":
            most = first
        front, back = min(low, most), min(high, most)
        parts = [
            _part(value, dim, front, mode, first, False),
            value,
            _part(value, dim, back, mode, first, True),
        ]
        value = concat([p for p in parts if p.shape[dim]], axis=dim)
        low, high = low - front, high - back
    return value


def _part(value: Tracer, dim: int, count: int, mode: str, first: int, behind: bool) -> Tracer:
    """Return what comes in front of a tensor along a dim, or behind it. first: the elements that there were."""
    n, lead = value.shape[dim], (slice(None),) * dim
    if mode == "edge" or (mode == "reflect" and n == 1):
        shape = (*value.shape[:dim], count, *value.shape[dim + 1 :])
        last = (*lead, slice(n - 1, n) if behind else slice(0, 1))
        return broadcast_to(value[last], shape)
    if mode == "wrap":
        cut = slice(n - first, n - first + count) if behind else slice(first - count, first)
    else:
        skip = mode == "reflect"
        cut = slice(n - count - skip, n - skip) if behind else slice(skip, count + skip)
    key = (*lead, cut)
    return value[key] if mode == "wrap" else flip(value[key], axis=dim)
