"""Trace averages of torch that divide by a count in a tensor, read as a number, which a trace does not have.

These are normalisations over a batch whose running statistics are the mean of all batches (`momentum=None`), and models
whose parameters are averages of those of another (`AveragedModel`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode


@contextmanager
def cumulative_averages() -> Iterator[None]:
    """Let such modules count in a tensor, in this block."""
    saved, update = _BatchNorm.forward, AveragedModel.update_parameters

    def forward(module: Any, input: Tensor) -> Tensor:
        counts = module.training and module.track_running_stats
        if module.momentum is not None or not counts or module.num_batches_tracked is None:
            found: Tensor = saved(module, input)
            return found
        module._check_input_dim(input)
        mean, var = torch.zeros_like(module.running_mean), torch.zeros_like(module.running_var)
        module.num_batches_tracked.add_(1)
        made: Tensor = functional.batch_norm(  # writes the statistics of this batch
            input, mean, var, module.weight, module.bias, True, 1.0, module.eps
        )
        for value, now in ((module.running_mean, mean), (module.running_var, var)):
            value.add_((now - value) / module.num_batches_tracked)
        return made

    def update_parameters(averages: Any, model: nn.Module) -> None:
        first = averages.n_averaged == 0
        with torch.no_grad():
            with _Counted(averages.n_averaged):
                update(averages, model)
            for average, value in _pairs(averages, model):
                average.copy_(torch.where(first, value.to(average.dtype), average))

    _BatchNorm.forward, AveragedModel.update_parameters = forward, update_parameters
    try:
        yield
    finally:
        _BatchNorm.forward, AveragedModel.update_parameters = saved, update


def _pairs(averages: Any, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Give what is averaged, and what of."""
    sides = averages.module, model
    if averages.use_buffers:
        return zip(*(chain(m.parameters(), m.buffers()) for m in sides), strict=True)
    return zip(*(m.parameters() for m in sides), strict=True)


class _Counted(TorchFunctionMode):  # type: ignore[misc]
    """Answer that a count is above 0, and take weights that are made of it as tensors."""

    def __init__(self, count: Tensor) -> None:
        super().__init__()
        self._count = count

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and args[0] is self._count and func in _ANSWERS:
            return _ANSWERS[func]
        if func is torch._foreach_lerp_ and isinstance(args[2], Tensor):
            for average, value in zip(*args[:2], strict=True):
                average.lerp_(value, args[2].to(average.dtype))
            return None
        return func(*args, **(kwargs or {}))


_ANSWERS = {Tensor.eq: False, Tensor.__eq__: False, Tensor.gt: True, Tensor.__gt__: True}
