"""Decompose products of numbers of 8 bits with scales, and rounding to integers and back."""

from collections.abc import Callable

import torch
from torch import Tensor


def decompositions() -> dict[object, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten._weight_int8pack_mm.default: _weight_int8pack_mm,
        aten._scaled_mm.default: _scaled_mm,
        aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize,
    }


def _weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Multiply by the rows of a matrix of int8, each with a scale, in f32."""
    return (x.float() @ weight.float().t() * scales.float()).to(x.dtype)


def _scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Multiply matrices of floats of 8 bits in f32; a scale is one number, or one for each row of a, column of b."""
    product = (a.float() @ b.float()) * scale_a * scale_b
    product = product if bias is None else product + bias.float()
    product = product if scale_result is None else product * scale_result
    return product.to(out_dtype or a.dtype)


def _fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, least: int, most: int
) -> tuple[Tensor, Tensor]:
    """Round to integers times the scale of each channel; the mask says which are not cut off."""
    shape = [-1 if dim == axis % x.ndim else 1 for dim in range(x.ndim)]
    size, zero = scale.view(shape), zero_point.view(shape).to(x.dtype)
    number = zero + torch.round(x * (1 / size))
    return (number.clamp(least, most) - zero) * size, (number >= least) & (number <= most)
