"""Define an op of torch that gives a value a layout, `meshweave::constrain`: value and gradient pass unchanged."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

torch.library.define("meshweave::constrain", "(Tensor value, str layout, str[] axes) -> Tensor")


def _same_form(value: Tensor, layout: str, axes: Sequence[str]) -> Tensor:
    return torch.empty_like(value)


def _backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
    return slope, None, None


torch.library.register_fake("meshweave::constrain", _same_form)
torch.library.register_autograd("meshweave::constrain", _backward)


OPERATION = torch.ops.meshweave.constrain.default


def constrain(value: Tensor, layout: str, axes: Sequence[str]) -> Tensor:
    """Give a value a layout over these axes of the mesh; over others it may be sharded further."""
    made: Tensor = torch.ops.meshweave.constrain(value, layout, list(axes))
    return made
