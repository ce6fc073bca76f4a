"""Decompose pools: those that upstream refuses, that have no batch, or that are of integers."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.halves import rounded_once
from meshweave.frontends.torch.decompositions.ways import around, first_of


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.max_pool3d_with_indices.default: _by_floats(
            aten.max_pool3d_with_indices.default, _max_pool
        ),
        aten.max_pool2d_with_indices.default: _by_floats(
            aten.max_pool2d_with_indices.default, around(_max_pool_of_planes)
        ),
        aten.avg_pool1d.default: _pooled(aten.avg_pool1d.default, 3),
        aten.avg_pool2d.default: _pooled(aten.avg_pool2d.default, 4),
        aten.avg_pool3d.default: _pooled(aten.avg_pool3d.default, 5),
        aten.adaptive_max_pool1d.default: _adaptive_max_pool,
        aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        aten.adaptive_max_pool3d.default: _adaptive_max_pool,
    }


def _by_floats(op: OpOverload, computed: Callable[..., Any]) -> Callable[..., Any]:
    """Return what pools integers by the op on f64, which holds those of 53 bits, and floats as `computed` does."""

    def pooled(x: Tensor, *settings: Any, **options: Any) -> Any:
        if x.is_floating_point():
            return computed(x, *settings, **options)
        made, places = op(x.double(), *settings, **options)
        return made.to(x.dtype), places

    return pooled


def _adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and its place.

    Window i of n along a dim of size s is floor(i s / n) to ceil((i + 1) s / n), of which upstream does only those of
    one size. Here a shorter one takes its last element again, which changes no maximum.
    """
    ndim = len(output_size)
    sizes, first = x.shape[-ndim:], x.dim() - ndim
    places = []
    for d, (size, count) in enumerate(zip(sizes, output_size)):
        longest = max(-(-(i + 1) * size // count) - i * size // count for i in range(count))
        window = torch.arange(count).unsqueeze(-1)
        last = torch.div((window + 1) * size - 1, count, rounding_mode="floor")
        start = torch.div(window * size, count, rounding_mode="floor")
        places.append(torch.minimum(start + torch.arange(longest), last))
        dim = first + 2 * d  # each dim before it is two by now: the window, and the place in it
        x = x.index_select(dim, places[-1].reshape(-1)).unflatten(dim, (count, longest))
    outer, inner = range(first, x.dim(), 2), range(first + 1, x.dim(), 2)
    x = x.permute(*range(first), *outer, *inner).flatten(first + ndim)
    flat = torch.zeros(1, dtype=torch.int64)
    for d, (place, size) in enumerate(zip(places, sizes)):
        shape = [1] * (2 * ndim)
        shape[d], shape[ndim + d] = place.shape
        flat = flat * size + place.reshape(shape)
    flat = flat.flatten(ndim).expand(x.shape)
    best = _largest(x, -1).unsqueeze(-1)
    return torch.amax(x, -1), torch.gather(flat, -1, best).squeeze(-1)


def _largest(windows: Tensor, dim: int) -> Tensor:
    """Return the place of the largest element along a dim; of NaNs the last, as torch's pools have it."""
    found = torch.argmax(windows, dim)
    if not windows.is_floating_point():
        return found
    shape = [1] * windows.dim()
    shape[dim] = -1
    places = torch.arange(windows.shape[dim]).reshape(shape)
    last = torch.amax(torch.where(torch.isnan(windows), places, -1), dim)
    return torch.where(last < 0, found, last)


def _pooled(op: OpOverload, rank: int) -> Callable[..., Any]:
    return first_of(rounded_once(op), _batched(op, rank))


def _batched(op: OpOverload, rank: int) -> Callable[..., Any]:
    """Give an image without a batch one: upstream's lowering fails on it, or ends the process."""

    def batched(x: Tensor, *settings: Any, **options: Any) -> Any:
        if x.dim() == rank:
            return NotImplemented
        made = op(x.unsqueeze(0), *settings, **options)
        return [m.squeeze(0) for m in made] if isinstance(made, tuple) else made.squeeze(0)

    return batched


def _max_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window of three dims, and its place: upstream's lowering ends the process."""
    kernel, low, far = (each(numbers, 3) for numbers in (kernel_size, padding, dilation))
    step = each(stride, 3) if len(stride) else kernel
    sizes = x.shape[-3:]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, far)]
    counts = []
    for size, span, s, p in zip(sizes, spans, step, low):
        reach = size + 2 * p - span
        count = (-(-reach // s) if ceil_mode else reach // s) + 1
        counts.append(count - (ceil_mode and (count - 1) * s >= size + p))  # none begins beyond
    pads = [
        (p, max(0, (n - 1) * s + span - size - p))
        for n, s, span, size, p in zip(counts, step, spans, sizes, low)
    ]
    wide = torch.nn.functional.pad(x, [n for pair in reversed(pads) for n in pair], value=-math.inf)
    parts = []
    for offsets in itertools.product(*map(range, kernel)):
        part = wide
        for dim, (offset, d, s, n) in enumerate(zip(offsets, far, step, counts)):
            begin = offset * d
            index: list[Any] = [..., *([slice(None)] * 3)]
            index[1 + dim] = slice(begin, begin + (n - 1) * s + 1, s)
            part = part[tuple(index)]
        parts.append(part)
    windows = torch.stack(parts)
    largest, rest = torch.amax(windows, 0), _largest(windows, 0)
    flat, inner = torch.zeros(1, dtype=torch.int64), []
    for k in reversed(kernel):
        inner.append(rest % k)
        rest = torch.div(rest, k, rounding_mode="floor")
    for dim, place in enumerate(reversed(inner)):
        begin = torch.arange(counts[dim]).reshape(-1, *[1] * (2 - dim)) * step[dim] - low[dim]
        first = _first(counts[dim], step[dim], low[dim], far[dim]).reshape(begin.shape)
        place = torch.where(largest == -math.inf, first, place)
        flat = flat * sizes[dim] + begin + place * far[dim]
    return largest, flat


def _max_pool_of_planes(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window of two dims, and its place: upstream has none of NaN and of -inf."""
    op, (rows, columns) = torch.ops.aten.max_pool2d_with_indices.default, x.shape[-2:]
    kernel, step, low, far = (
        each(n, 2) for n in (kernel_size, stride or kernel_size, padding, dilation)
    )
    settings = kernel, step, low, far, ceil_mode
    whole = x if x.dim() == 4 else x.unsqueeze(0)  # upstream fails on an image without a batch
    made, places = op(whole, *settings)
    number = torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns)
    last, _ = op(torch.where(torch.isnan(whole), number, -1.0), *settings)
    places = torch.where(torch.isnan(made), last.to(torch.int64), places)
    at = zip(made.shape[-2:], step, low, far)
    row, column = [torch.arange(n) * s - p + _first(n, s, p, d) * d for n, s, p, d in at]
    places = torch.where(made == -math.inf, row.unsqueeze(-1) * columns + column, places)
    return (made, places) if x.dim() == 4 else (made.squeeze(0), places.squeeze(0))


def _first(count: int, step: int, low: int, far: int) -> Tensor:
    """Return which element of each window along a dim is the first that is no padding: torch's, of nothing but -inf."""
    begin = torch.arange(count) * step - low
    return torch.div(far - 1 - begin.clamp(max=0), far, rounding_mode="floor")


def each(numbers: Sequence[int], rank: int) -> list[int]:
    """Return a setting of a pool for each dim."""
    return list(numbers) * (rank if len(numbers) == 1 else 1)
