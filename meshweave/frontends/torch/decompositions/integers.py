"""Decompose ops on integers that upstream knows of floats alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

Decomposition = Callable[..., Any]


def decompositions() -> dict[object, Decomposition]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.pow.Tensor_Tensor: _pow,
        aten.pow.Scalar: _pow_of_number,
        aten.angle.default: _angle,
        aten.square.default: lambda x: x.to(torch.int64) if x.dtype == torch.bool else x * x,
        aten.addbmm.default: _addbmm,
    }


def _pow(x: Tensor, y: Tensor) -> Tensor:
    """Multiply squares, one for each bit of the exponents; a product that is too large wraps around."""
    kind = torch.result_type(x, y)
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        return NotImplemented
    square, left = x.to(kind), y.to(kind)
    found = torch.ones_like(square * left)
    for _ in range(torch.iinfo(kind).bits - (kind != torch.uint8)):
        found = torch.where((left & 1) == 1, found * square, found)
        square, left = square * square, left >> 1
    return found


def _pow_of_number(x: float, y: Tensor) -> Tensor:
    if not isinstance(x, int) or y.is_floating_point():
        return NotImplemented
    return torch.pow(torch.full((), x, dtype=torch.result_type(y, x)), y)


def _addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Add products of a batch up; as torch does, with factors that are whole."""
    if x.is_floating_point():
        return NotImplemented
    return x * int(beta) + torch.bmm(batch1, batch2).sum(0).to(x.dtype) * int(alpha)


def scattered_means(
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str = "sum",
    *,
    include_self: bool = True,
) -> Tensor:
    """Divide sums of integers by how many they are, and round down; upstream rounds towards zero."""
    if reduce != "mean" or x.is_floating_point():
        return NotImplemented
    count = torch.ones_like(x)
    if not include_self:
        x, count = (torch.scatter(v, dim, index, 0) for v in (x, count))
    total = torch.scatter_add(x, dim, index, source)
    return total // torch.scatter_add(count, dim, index, torch.ones_like(source)).clamp(min=1)


def scattered_bools(op: OpOverload) -> Decomposition:
    """Put bools together at their places as integers: of one bit 1 + 1 is 0, and 1 is less than 0."""

    def computed(
        x: Tensor, dim: int, index: Tensor, source: Tensor, *more: Any, **options: Any
    ) -> Tensor:
        if x.dtype != torch.bool:
            return NotImplemented
        whole, parts = x.to(torch.int32), source.to(torch.int32)
        found: Tensor = op(whole, dim, index, parts, *more, **options)
        return found != 0

    return computed


def _angle(x: Tensor) -> Tensor:
    """Return pi for what is below zero, and a NaN for a NaN."""
    if x.is_complex():
        return NotImplemented
    real = x if x.is_floating_point() else x.to(torch.float32)
    return torch.where(real < 0, torch.pi, torch.where(real != real, real, 0.0))
