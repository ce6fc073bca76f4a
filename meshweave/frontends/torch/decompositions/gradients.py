"""Decompose the ops that torch's autograd goes back by into ops that torch-mlir takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions import bags
from meshweave.frontends.torch.decompositions.pools import each


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the decompositions by op: torch's own of some, ours of those that torch has none of."""
    aten = torch.ops.aten
    theirs = (aten.silu_backward.default, aten.mish_backward.default)
    return {
        **{op: decomposition_table[op] for op in theirs},
        aten.avg_pool2d_backward.default: _avg_pool,
        aten.avg_pool3d_backward.default: _avg_pool,
        aten._adaptive_avg_pool2d_backward.default: partial(_adaptive_avg_pool, 2),
        aten._adaptive_avg_pool3d_backward.default: partial(_adaptive_avg_pool, 3),
        aten.max_pool3d_with_indices_backward.default: _max_pool,
        aten.adaptive_max_pool2d_backward.default: partial(_to_maxima, 2),
        aten.adaptive_max_pool3d_backward.default: partial(_to_maxima, 3),
        aten._cdist_backward.default: _cdist,
        aten._weight_norm_interface_backward.default: _weight_norm,
        aten.replication_pad1d_backward.default: _replication_pad,
        aten.replication_pad2d_backward.default: _replication_pad,
        aten.replication_pad3d_backward.default: _replication_pad,
        aten.as_strided_scatter.default: _as_strided_scatter,
        aten.unfold_backward.default: _unfold,
        aten.grid_sampler_2d_backward.default: _grid_sampler,
        **bags.gradients(),
    }


LINEAR, REFLECTED = 0, 2


def _grid_sampler(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> Any:  # two tensors, or NotImplemented
    """Go back from a linear interpolation between four elements: to these, and to the place between them."""
    if interpolation_mode != LINEAR or padding_mode == REFLECTED:
        return NotImplemented
    batch, channels, *sizes = input.shape
    places, slopes = [], []  # along each dim: where, and how much that changes with the grid
    for dim, size in zip((1, 0), sizes, strict=True):
        scale = (size - 1) / 2 if align_corners else size / 2
        place = (grid[..., dim] + 1) * scale - (0 if align_corners else 0.5)
        inside = (place > 0) & (place < size - 1)
        slope = torch.full_like(place, scale)
        if padding_mode:
            place, slope = place.clamp(0, size - 1), torch.where(inside, slope, 0.0)
        places.append(place)
        slopes.append(slope)
    image = input.reshape(batch, channels, -1)
    found = torch.zeros_like(image)
    along = [torch.zeros_like(place) for place in places]
    for corner in itertools.product((0, 1), repeat=2):
        lows = [torch.floor(place) for place in places]
        parts = [p - low if up else 1 - (p - low) for p, low, up in zip(places, lows, corner)]
        at = [(low + up).to(torch.int64) for low, up in zip(lows, corner)]
        is_in = [(one >= 0) & (one < size) for one, size in zip(at, sizes)]
        flat = at[0].clamp(0, sizes[0] - 1) * sizes[1] + at[1].clamp(0, sizes[1] - 1)
        flat = flat.reshape(batch, 1, -1).expand(batch, channels, -1)
        slope = torch.where((is_in[0] & is_in[1]).unsqueeze(1), grad_output, 0.0)
        share = slope * (parts[0] * parts[1]).unsqueeze(1)
        found = found.scatter_add(2, flat, share.reshape(batch, channels, -1))
        value = (image.gather(2, flat).reshape(slope.shape) * slope).sum(1)
        for dim, up in enumerate(corner):
            change = value * parts[1 - dim]
            along[dim] = along[dim] + (change if up else -change)
    pulled = torch.stack([along[1] * slopes[1], along[0] * slopes[0]], -1)
    return found.reshape(input.shape), pulled


def _unfold(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """Add each element of the windows to where it is from."""
    if not sizes:
        return grad.squeeze(0)
    dim %= len(sizes)
    place = torch.arange(grad.shape[dim]).unsqueeze(-1) * step + torch.arange(size)
    parts = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return grad.new_zeros(sizes).index_add(dim, place.reshape(-1), parts)


def _as_strided_scatter(
    whole: Tensor,
    part: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """Write a part of a tensor where its strides say; leave it to its refusal where that is not of its own elements."""
    known = all(type(n) is int for n in (*size, *stride, *whole.shape))
    if not known or not whole.is_contiguous() or whole.storage_offset():
        return NotImplemented
    begin, reach = storage_offset or 0, 1
    for extent, step in sorted(zip(size, stride, strict=True), key=lambda pair: pair[1]):
        if extent > 1 and step < reach:  # two elements at one place
            return NotImplemented
        reach += (extent - 1) * step
    if begin + reach > whole.numel():
        return NotImplemented
    if tuple(size) == tuple(whole.shape) and tuple(stride) == whole.stride():
        return part.clone()
    places = torch.full((), begin)
    for dim, (extent, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(extent) * step
        places = places + along.reshape(-1, *[1] * (len(size) - 1 - dim))
    flat = whole.reshape(-1).scatter(0, places.reshape(-1), part.reshape(-1))
    return flat.reshape(whole.shape)


def _avg_pool(
    grad_output: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Spread each mean over its window: the gradient of a convolution of each channel by ones."""
    rank = 3 if grad_output.dim() == 5 or (input.dim() == 4 and len(kernel_size) == 3) else 2
    kernel, low = each(kernel_size, rank), each(padding, rank)
    step = each(stride, rank) if stride else kernel
    share = grad_output
    if divisor_override:
        share = share / divisor_override
    else:
        sizes = (input.shape[-rank:], grad_output.shape[-rank:], kernel, step, low)
        for dim, along in enumerate(zip(*sizes, strict=True)):
            counts = _counts(*along, count_include_pad).to(share.dtype)
            share = share / counts.reshape(-1, *[1] * (rank - 1 - dim))
    if rank == 3:  # of which there is no convolution of each channel
        for dim, size, k, s, p in zip(range(-3, 0), input.shape[-3:], kernel, step, low):
            begin = torch.arange(share.shape[dim]).unsqueeze(-1) * s - p
            share = _to_windows(share, dim, size, begin, begin + k)
        return share
    channels = math.prod(input.shape[:-rank])
    image = input.reshape(1, channels, *input.shape[-rank:])
    ones = torch.ones(channels, 1, *kernel, dtype=input.dtype)
    settings = ([0], step, low, [1] * rank, False, [0] * rank, channels, [True, False, False])
    slope = share.reshape(1, channels, *share.shape[-rank:])
    made = torch.ops.aten.convolution_backward.default(slope, image, ones, *settings)[0]
    return made.reshape(input.shape)


def _counts(size: int, windows: int, kernel: int, step: int, low: int, padded: bool) -> Tensor:
    """Return how many elements each window along a dim divides by."""
    begin = torch.arange(windows) * step - low
    end = (begin + kernel).clamp(max=size + low if padded else size)
    return end - (begin if padded else begin.clamp(min=0))


def _adaptive_avg_pool(rank: int, grad_output: Tensor, input: Tensor) -> Tensor:
    """Spread each mean over its window, dim by dim."""
    made = grad_output
    for dim in range(-rank, 0):
        made = _spread(made, dim, input.shape[dim])
    return made


def _spread(x: Tensor, dim: int, size: int) -> Tensor:
    windows = x.shape[dim]
    if size % windows == 0:
        return x.repeat_interleave(size // windows, dim) / (size // windows)
    window = torch.arange(windows).unsqueeze(-1)
    begin, end = window * size // windows, ((window + 1) * size + windows - 1) // windows
    counts = (end - begin).to(x.dtype).reshape(-1, *[1] * (-1 - dim))
    return _to_windows(x / counts, dim, size, begin, end)


def _to_windows(x: Tensor, dim: int, size: int, begin: Tensor, end: Tensor) -> Tensor:
    """Add each element along a dim to all places of its window, from `begin` to `end`."""
    place = torch.arange(size)
    inside = ((place >= begin) & (place < end)).to(x.dtype)
    return torch.matmul(x.transpose(dim, -1), inside).transpose(dim, -1)


def _max_pool(
    grad_output: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Add each slope to where its maximum lies."""
    return _to_maxima(3, grad_output, input, indices)


def _to_maxima(rank: int, slope: Tensor, input: Tensor, places: Tensor) -> Tensor:
    flat = (*input.shape[:-rank], -1)
    blank = torch.zeros_like(input).reshape(flat)
    return blank.scatter_add(-1, places.reshape(flat), slope.reshape(flat)).reshape(input.shape)


def _weight_norm(
    slope: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Go back from v times g / |v|, with the length |v| of each slice along a dim."""
    others = [d for d in range(v.dim()) if d != dim]
    along = (slope * v).sum(others, keepdim=True)
    return (g / norms) * (slope - v * (along / (norms * norms))), along / norms


def _cdist(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Pull each row of `x1` along its differences from the rows of `x2`."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    slope, distance = grad.unsqueeze(-1), cdist.unsqueeze(-1)
    sign, size = torch.sign(apart), apart.abs()
    if p == 0:
        return torch.zeros_like(x1)
    if p == 1:
        pull = sign
    elif p == math.inf:
        pull = sign * (size == distance).to(sign.dtype)
    elif p == 2:
        pull = torch.where(distance == 0, 0.0, apart / distance)
    else:
        part = torch.where(apart == 0, 0.0, size / distance) if p > 1 else size / distance
        pull = torch.where(apart == 0, 0.0, sign * part ** (p - 1))
    return (slope * pull).sum(-2)


def _replication_pad(grad_output: Tensor, input: Tensor, padding: Sequence[int]) -> Tensor:
    """Add what lies outside to the edge, dim by dim."""
    made = grad_output
    for k in range(len(padding) // 2):
        made = _to_edges(made, -1 - k, padding[2 * k], padding[2 * k + 1])
    return made


def _to_edges(x: Tensor, dim: int, low: int, high: int) -> Tensor:
    cut = [max(0, -low), max(0, -high)]  # of which nothing was read
    x, low, high = torch.constant_pad_nd(x, [0, 0] * (-1 - dim) + cut), max(0, low), max(0, high)
    size = x.shape[dim] - low - high
    if size == 1:
        return x.sum(dim, keepdim=True)
    first = x.narrow(dim, 0, low + 1).sum(dim, keepdim=True)
    last = x.narrow(dim, low + size - 1, high + 1).sum(dim, keepdim=True)
    return torch.cat([first, x.narrow(dim, low + 1, size - 2), last], dim)
