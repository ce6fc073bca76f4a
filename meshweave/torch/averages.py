"""Trace normalisations over a batch whose running statistics are the mean of all batches (`momentum=None`).

torch divides by the number of batches as a number of Python, which a trace does not have: here it is a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def cumulative_averages() -> Iterator[None]:
    """Let such modules count their batches in a tensor, in this block."""
    saved = _BatchNorm.forward

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

    _BatchNorm.forward = forward
    try:
        yield
    finally:
        _BatchNorm.forward = saved
