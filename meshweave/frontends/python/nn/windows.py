"""Define convolutions and pooling over windows of images whose channels are the last dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from meshweave.frontends.python.builder import Body, affine_map, fail, tensor_type
from meshweave.frontends.python.dtypes import DType, accumulator, floating, limits, op_of
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import ones
from meshweave.frontends.python.functions.manipulate import concat, sizes_of
from meshweave.frontends.python.functions.padding import padded
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Shape,
    Tracer,
    operand_dtype,
    splat,
    tensor,
    tracing,
)

Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]]
"""What is around an image: "VALID" nothing, "SAME" as much as keeps places / stride, a number, or (before, after)."""


def conv(
    x: ArrayLike,
    weight: ArrayLike,
    /,
    *,
    stride: Shape = 1,
    padding: Padding = "VALID",
    dilation: Shape = 1,
    groups: int = 1,
) -> Tracer:
    """Convolve images x [batch, *space, channels] with weight [*window, channels / groups, features].

    stride, dilation: the steps from place to place of the result and of the window, one or one for each dim of space.
    padding: "VALID", "SAME", or how many zeros are around. groups: parts of the channels that are convolved apart.
    Products of 16-bit floats add up in float32.
    """
    image, window = tensor(x), tensor(weight)
    ndim = image.ndim - 2
    if ndim < 1 or window.ndim != image.ndim:
        fail(f"conv: x has {image.ndim} dims and weight {window.ndim}: [batch, *space, channels] "
             "and [*window, channels, features] are right")  # fmt: skip
    *sizes, inner, features = window.shape
    if groups < 1 or inner * groups != image.shape[-1] or features % groups:
        fail(
            f"conv: {image.shape[-1]} channels in {groups} groups, weight of {inner} channels and {features} features"
        )
    dtype = operand_dtype([image, window])
    e.checked("conv", [image, window])
    steps = [_each("conv: stride", s, ndim) for s in (stride, dilation)]
    ends = _ends("conv", padding, image.shape[1:-1], sizes, *steps)
    image, window = (e.astype(v, dtype) for v in (image, window))
    image = padded(image, [(0, 0), *ends, (0, 0)], 0)
    if groups == 1:
        return convolved(image, window, steps, dtype)
    per = features // groups
    parts = [
        convolved(
            image[..., g * inner : (g + 1) * inner],
            window[..., g * per : (g + 1) * per],
            steps,
            dtype,
        )
        for g in range(groups)
    ]
    return concat(parts, axis=-1)


@primitive
def convolved(image: Tracer, window: Tracer, steps: list[list[int]], dtype: DType) -> Tracer:
    """Sum products over loops: batch, places, features, then those of the window and its channels."""
    space, wide = len(steps[0]), accumulator(dtype)
    reads = [f"d{d + 1} * {s} + d{space + 2 + d} * {t}" for d, (s, t) in enumerate(zip(*steps))]
    maps = [
        ["d0", *reads, f"d{2 * space + 2}"],
        [*(f"d{space + 2 + d}" for d in range(space + 1)), f"d{space + 1}"],
    ]
    places = _places(image.shape[1:-1], window.shape[:space], *steps)
    shape = (image.shape[0], *places, window.shape[-1])

    def body(b: Body, ins: list[str], total: str) -> str:
        values = [b.cast(v, dtype, wide) for v in ins]
        product = b.op(op_of("mul", wide), wide, *values)
        return b.op(op_of("add", wide), wide, total, product)

    made = _looped([image, window], maps, shape, space + 1, wide, 0, body)
    return e.astype(made, dtype)


def _looped(
    values: list[Tracer],
    reads: list[list[str]],
    shape: tuple[int, ...],
    folded: int,
    dtype: DType,
    start: float,
    body: Callable[[Body, list[str], str], str],
) -> Tracer:
    """Fold over the last `folded` loops; the others are the dims of the result."""
    if 0 in shape:
        return splat(tracing(), shape, 0, dtype)
    trace, count = tracing(*values), len(shape) + folded
    maps = [affine_map(count, tuple(r)) for r in reads]
    maps.append(affine_map(count, tuple(f"d{d}" for d in range(len(shape)))))
    kinds = ["parallel"] * len(shape) + ["reduction"] * folded
    init, type_ = trace.filled(shape, dtype, start), tensor_type(shape, dtype)
    return Tracer(trace, trace.generic(maps, kinds, values, init, type_, body), shape, dtype)


def max_pool(
    x: ArrayLike,
    window: Shape,
    /,
    *,
    stride: Shape | None = None,
    padding: Padding = "VALID",
    dilation: Shape = 1,
) -> Tracer:
    """Return the largest element in each window of images [batch, *space, channels]; NaN where there is one.

    stride: by default the window. padding: as of `conv`, with what is never the largest.
    """
    value = tensor(x)
    e.checked("max_pool", [value])
    op = {"f": "maximumf", "i": "maxsi", "u": "maxui"}[value.dtype.kind]
    return _pooled(
        "max_pool", value, window, stride, padding, dilation, f"arith.{op}", limits(value.dtype)[0]
    )


def avg_pool(
    x: ArrayLike,
    window: Shape,
    /,
    *,
    stride: Shape | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Tracer:
    """Compute the mean of each window of images [batch, *space, channels], with the arguments of `max_pool`.

    count_include_pad: whether zeros around count in the mean.
    """
    value = tensor(x)
    out = floating(value.dtype)
    wide = e.astype(value, accumulator(out))
    total = _pooled("avg_pool", wide, window, stride, padding, 1, "arith.addf", 0)
    sizes = _each("avg_pool: window", window, value.ndim - 2)
    count: ArrayLike = float(math.prod(sizes))
    if not count_include_pad:
        there = ones((1, *value.shape[1:-1], 1), dtype=wide.dtype)
        count = _pooled("avg_pool", there, window, stride, padding, 1, "arith.addf", 0)
    return e.astype(e.divide(total, count), out)


def _pooled(
    name: str,
    value: Tracer,
    window: Shape,
    stride: Shape | None,
    padding: Padding,
    dilation: Shape,
    op: str,
    start: float,
) -> Tracer:
    """Fold each window by an op of arith."""
    ndim = value.ndim - 2
    if ndim < 1:
        fail(f"{name}: x has {value.ndim} dims, [batch, *space, channels] is right")
    sizes = _each(f"{name}: window", window, ndim)
    steps = [
        _each(f"{name}: stride", s, ndim) for s in (sizes if stride is None else stride, dilation)
    ]
    ends = _ends(name, padding, value.shape[1:-1], sizes, *steps)
    image = padded(value, [(0, 0), *ends, (0, 0)], start)
    return folded(image, sizes, steps, op, start)


@primitive
def folded(
    value: Tracer, sizes: list[int], steps: list[list[int]], op: str, start: float
) -> Tracer:
    """Fold each window of an image by an op of arith."""
    image, ndim = value, value.ndim - 2
    places = _places(image.shape[1:-1], sizes, *steps)
    shape = (value.shape[0], *places, value.shape[-1])
    reads = [f"d{d + 1} * {s} + d{ndim + 2 + d} * {t}" for d, (s, t) in enumerate(zip(*steps))]
    tap = [f"d{ndim + 2 + d}" for d in range(ndim)]
    frame = splat(tracing(value), sizes, 0, value.dtype)  # says how large the window is
    maps = [["d0", *reads, f"d{ndim + 1}"], tap]
    fold = lambda b, ins, best: b.op(op, value.dtype, best, ins[0])  # noqa: E731
    return _looped([image, frame], maps, shape, ndim, value.dtype, start, fold)


def _each(name: str, given: Shape, ndim: int) -> list[int]:
    """Return a positive number for each dim of space."""
    sizes = sizes_of(name, given)
    sizes = sizes * ndim if len(sizes) == 1 else sizes
    if len(sizes) != ndim or any(n < 1 for n in sizes):
        fail(f"{name}: {given}, a number from 1 or {ndim} of them are right")
    return list(sizes)


def _ends(
    name: str,
    padding: Padding,
    places: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """Return how much is before and after each dim of space."""
    if padding == "VALID":
        return [(0, 0)] * len(places)
    if padding == "SAME":
        wanted = [-(-n // s) for n, s in zip(places, stride)]
        spans = [(w - 1) * d + 1 for w, d in zip(window, dilation)]
        more = [
            max((count - 1) * s + span - n, 0)
            for n, count, s, span in zip(places, wanted, stride, spans)
        ]
        return [(n // 2, n - n // 2) for n in more]
    given = [padding] * len(places) if isinstance(padding, int) else list(padding)
    ends = [(end, end) if isinstance(end, int) else end for end in given]
    pairs = [end for end in ends if isinstance(end, tuple | list) and len(end) == 2]
    if len(pairs) != len(places) or len(given) != len(places) or any(min(end) < 0 for end in pairs):
        fail(
            f'{name}: padding={padding!r}, "VALID", "SAME", a number, or a pair for each dim of space'
        )
    return [(low, high) for low, high in pairs]


def _places(
    image: Sequence[int], window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return how many windows there are along each dim of space."""
    spans = [(w - 1) * d + 1 for w, d in zip(window, dilation)]
    return [max((n - span) // s + 1, 0) for n, span, s in zip(image, spans, stride)]
