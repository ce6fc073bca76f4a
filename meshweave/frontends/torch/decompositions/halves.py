"""Compute ops on 16-bit floats in f32, and round once, as torch does: upstream rounds within them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

HALVES = (torch.float16, torch.bfloat16)


def wide(x: Tensor) -> Tensor:
    """Return x in the type that it is computed in: float32 for 16-bit floats."""
    return x.to(torch.float32) if x.dtype in HALVES else x


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of rows and a matrix in the type that it is computed in."""
    if a.dtype not in HALVES:
        return torch.matmul(a, b)
    return torch.ops.meshweave.summed_products(a, b)


def rounded_once(op: OpOverload) -> Callable[..., Any]:
    """Compute an op on 16-bit floats in f32, as torch does: upstream rounds within it."""

    def computed(*args: Any, **options: Any) -> Any:
        kinds = {a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point()}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind not in HALVES or options.get("dtype") is not None:
            return NotImplemented
        made = op(*[wide(a) if isinstance(a, Tensor) else a for a in args], **options)
        return made.to(kind)

    return computed
