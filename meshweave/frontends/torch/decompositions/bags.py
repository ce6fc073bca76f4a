"""Decompose `embedding_bag` and its gradients: rows of a table are looked up, and added up bag by bag.

Both directions are ours, so what the forward op hands to the backward one need be right for that alone: the bag of each
row, the number of rows of each bag, and for maxima the row that each element is of.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.halves import wide

MEAN, MAX = 1, 2


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten._embedding_bag.default: _bags,
        aten._embedding_bag_forward_only.default: _bags,
        **gradients(),
    }


def gradients() -> dict[OpOverload, Callable[..., object]]:
    """Return those of the ops that autograd goes back by, and of the op that these belong to."""
    aten = torch.ops.aten
    return {
        aten._embedding_bag.default: _bags,
        aten._embedding_bag_backward.default: _table_slope,
        aten._embedding_bag_per_sample_weights_backward.default: _scale_slope,
    }


def _bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum, mean or maximum of each bag, the bag of each row, sizes of bags, and rows of the maxima."""
    starts = offsets[:-1] if include_last_offset else offsets
    count, places = starts.shape[0], torch.arange(indices.shape[0])
    bag = (starts.unsqueeze(-1) <= places).sum(0) - 1
    rows = wide(weight[indices])
    counted = indices != padding_idx
    if include_last_offset:
        counted = counted & (places < offsets[-1])
    sizes = torch.zeros(count, dtype=torch.int64).index_add(0, bag, counted.to(torch.int64))
    blank = torch.zeros(count, weight.shape[1], dtype=rows.dtype)
    where = bag.unsqueeze(-1).expand(rows.shape)
    if mode == MAX:
        rows = torch.where(counted.unsqueeze(-1), rows, float("-inf"))
        largest = blank.scatter_reduce(0, where, rows, "amax", include_self=False)
        first = torch.where(rows == largest[bag], places.unsqueeze(-1), indices.shape[0])
        chosen = torch.full_like(blank, indices.shape[0], dtype=torch.int64)
        chosen = chosen.scatter_reduce(0, where, first, "amin")
        empty = (sizes == 0).unsqueeze(-1)
        largest = torch.where(empty, 0.0, largest)
        maxima = torch.where(empty, -1, indices[chosen.clamp(max=indices.shape[0] - 1)])
        return largest.to(weight.dtype), bag, sizes, maxima
    if per_sample_weights is not None:
        rows = rows * wide(per_sample_weights).unsqueeze(-1)
    total = blank.index_add(0, bag, torch.where(counted.unsqueeze(-1), rows, 0.0))
    if mode == MEAN:
        total = total / sizes.clamp(min=1).unsqueeze(-1).to(total.dtype)
    # Whether a row counts is told by its bag: one that does not has none.
    return total.to(weight.dtype), torch.where(counted, bag, count), sizes, sizes


def _table_slope(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Add the slope of each bag to the rows that are in it."""
    slope = wide(grad)
    blank = torch.zeros(num_weights, grad.shape[1], dtype=slope.dtype)
    if mode == MAX:
        slope = torch.where(maximum_indices < 0, 0.0, slope)
        made = blank.scatter_add(0, maximum_indices.clamp(min=0), slope)
        return made.to(grad.dtype)
    if mode == MEAN:
        slope = slope / bag_size.clamp(min=1).unsqueeze(-1).to(slope.dtype)
    of_rows = _of_rows(slope, offset2bag)
    if per_sample_weights is not None:
        of_rows = of_rows * wide(per_sample_weights).unsqueeze(-1)
    if scale_grad_by_freq:
        times = torch.zeros(num_weights, dtype=torch.int64)
        times = times.index_add(0, indices, torch.ones_like(indices))
        of_rows = of_rows / times[indices].unsqueeze(-1).to(of_rows.dtype)
    return blank.index_add(0, indices, of_rows).to(grad.dtype)


def _scale_slope(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    made = (_of_rows(wide(grad), offset2bag) * wide(weight[indices])).sum(-1)
    return made.to(grad.dtype)


def _of_rows(slope: Tensor, bag: Tensor) -> Tensor:
    """Return the slope of the bag of each row; zeros where it has none."""
    count = slope.shape[0]
    inside = (bag < count).unsqueeze(-1)
    return torch.where(inside, slope[bag.clamp(max=count - 1)], 0.0)
