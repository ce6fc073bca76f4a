"""Compute functions of PyTorch that read numbers of tensors (checks, lengths) without reading them: traces have none.

`ctc_loss` is computed by torch's own kernels, called in Python while the program runs (`host.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from meshweave.errors import CompileError


class WithoutNumbers(TorchFunctionMode):  # type: ignore[misc]
    """Compute these functions so in this block."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _COMPUTED.get(func, func)(*args, **(kwargs or {}))


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return -log p of each target, or their sum, or the mean over targets of it by length."""
    lengths = [torch.as_tensor(n).reshape(-1) for n in (input_lengths, target_lengths)]
    alone = log_probs.dim() == 2
    if alone:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.unsqueeze(0) if targets.dim() == 1 else targets
    loss: Tensor = _ctc_losses(log_probs, targets, *lengths, blank, zero_infinity)
    if reduction in ("mean", 1):
        return (loss / lengths[1].clamp(min=1)).mean()
    if reduction in ("sum", 2):
        return loss.sum()
    return loss.squeeze(0) if alone else loss


@torch.library.custom_op("meshweave_called::ctc_loss", mutates_args=())  # type: ignore[untyped-decorator]
def _ctc_losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """Return the loss of each target."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    loss = torch._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)[0]
    return torch.where(loss == math.inf, 0.0, loss) if zero_infinity else loss


@torch.library.custom_op("meshweave_called::ctc_loss_backward", mutates_args=())  # type: ignore[untyped-decorator]
def _ctc_backward(
    slope: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    lengths = input_lengths.tolist(), target_lengths.tolist()
    found = torch._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    made: Tensor = torch.ops.aten._ctc_loss_backward(
        slope, log_probs, targets, *lengths, *found, blank, zero_infinity
    )
    return made.contiguous()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _back(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    return _ctc_backward(slope, *context.saved_tensors, *context.settings), *[None] * 5


_ctc_losses.register_fake(lambda x, *_: x.new_empty(x.shape[1]))
_ctc_backward.register_fake(lambda slope, x, *_: x.new_empty(x.shape))
_ctc_losses.register_autograd(_back, setup_context=_keep)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss; what torch refuses, a negative variance, is taken for `eps`, as one below that is."""
    spread = var if isinstance(var, Tensor) else torch.full_like(input, var)
    if spread.shape != input.shape and spread.shape == input.shape[:-1]:
        spread = spread.unsqueeze(-1)
    spread = spread.clone()
    with torch.no_grad():
        spread.clamp_(min=eps)
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return {"mean": loss.mean, "sum": loss.sum}.get(reduction, lambda: loss)()


def _cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Return how rows vary together; infinite or NaN where there are no degrees of freedom, as torch, which warns."""
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    weights = fweights
    if aweights is not None:
        weights = aweights if fweights is None else fweights * aweights
    if weights is None:
        count: Any = torch.full((), float(rows.shape[1]))
        mean = rows.sum(1) / rows.shape[1]
    else:
        count = weights.sum()
        mean = (rows * weights).sum(1) / count
    taken: Any = correction
    if aweights is not None and correction:
        assert weights is not None
        taken = correction * (weights * aweights).sum() / count
    apart = rows - mean.unsqueeze(1)
    weighted = apart if weights is None else apart * weights
    product = apart @ weighted.t().conj()
    freedom = (count - taken).clamp(min=0)
    return (product / freedom.to(product.real.dtype)).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    """Return the covariances by the deviations of both rows, which hold them within -1 and 1."""
    found = _cov(input)
    if not found.dim():
        return found / found
    deviation = torch.sqrt(found.diagonal().real if found.is_complex() else found.diagonal())
    found = found / deviation.unsqueeze(1) / deviation
    if found.is_complex():
        return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))
    return found.clip(-1, 1)


def _packed(*_: Any, **__: Any) -> Any:
    raise CompileError(
        "not supported: packed sequences: give a recurrent layer the padded tensor, "
        "and leave out what it gives behind the ends of rows"
    )


_COMPUTED: dict[Any, Callable[..., Any]] = {
    torch._C._VariableFunctions._pack_padded_sequence: _packed,
    functional.ctc_loss: _ctc_loss,
    torch.ctc_loss: _ctc_loss,
    functional.gaussian_nll_loss: _gaussian_nll_loss,
    torch.cov: _cov,
    Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    Tensor.corrcoef: _corrcoef,
}
