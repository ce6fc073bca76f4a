"""Decompose ops on the bits of numbers: with a number of Python on either side, and a float's mantissa and exponent."""

from collections.abc import Callable

import torch
from torch import Tensor


def decompositions() -> dict[object, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    left, right = aten.bitwise_left_shift, aten.bitwise_right_shift
    return {
        aten.frexp.Tensor: _frexp,
        aten.bitwise_or.Scalar: lambda x, y: torch.bitwise_or(x, _number(y, x)),
        aten.bitwise_xor.Scalar: lambda x, y: torch.bitwise_xor(x, _number(y, x)),
        left.Tensor_Scalar: lambda x, y: torch.bitwise_left_shift(x, _number(y, x)),
        right.Tensor_Scalar: lambda x, y: torch.bitwise_right_shift(x, _number(y, x)),
        left.Scalar_Tensor: lambda x, y: torch.bitwise_left_shift(_number(x, y), y),
        right.Scalar_Tensor: lambda x, y: torch.bitwise_right_shift(_number(x, y), y),
    }


def _number(value: int, beside: Tensor) -> Tensor:
    """Return a number of Python as a tensor of the dtype that it has beside another."""
    return torch.full((), value, dtype=torch.result_type(beside, value))


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
