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
        aten.frexp.Tensor: _frexp,
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


_FLOATS = {  # integers as wide, bits of the mantissa, what is added to an exponent
    torch.float32: (torch.int32, 23, 127),
    torch.float64: (torch.int64, 52, 1023),
}


def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mantissa of 0.5 up to 1 and an exponent, out of the bits; small numbers are made larger first."""
    if x.dtype not in _FLOATS:
        mantissa, exponent = _frexp(x.float())
        return mantissa.to(x.dtype), exponent
    whole, mantissa_bits, bias = _FLOATS[x.dtype]
    up = mantissa_bits + 1
    tiny = x.abs() < 2.0 ** (1 - bias)
    bits = torch.where(tiny, x * 2.0**up, x).view(whole)
    exponent = ((bits >> mantissa_bits) & (2 * bias + 1)) - (bias - 1) - tiny.to(whole) * up
    half = (bits & ~((2 * bias + 1) << mantissa_bits)) | ((bias - 1) << mantissa_bits)
    is_plain = (x != 0) & (x.abs() < torch.inf)
    found = torch.where(is_plain, half.view(x.dtype), x)
    return found, torch.where(is_plain, exponent, 0).to(torch.int32)
