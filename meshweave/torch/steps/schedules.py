"""Follow the schedulers of learning rates that a step of training calls: they run in Python, behind the program.

A scheduler counts its calls and writes the learning rates of its optimizer, which each call of the program reads. In
the trace of a step its call is noted, and nothing else; behind each call of the program what was noted is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree

from meshweave.errors import UsageError


class SchedulerCall(NamedTuple):
    """Hold a call of a scheduler in a step, with its arguments."""

    scheduler: LRScheduler
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self) -> None:
        """Call the scheduler."""
        self.scheduler.step(*self.args, **self.kwargs)


@contextmanager
def noted(step: str, calls: list[SchedulerCall]) -> Iterator[None]:
    """Note the calls of schedulers in this block, and do not make them.

    Raises UsageError where one is called with a tensor, or asked for its learning rates: the trace has neither.
    """

    def note(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        kind = type(scheduler).__name__
        if any(isinstance(leaf, Tensor) for leaf in _pytree.tree_leaves((args, kwargs))):
            raise UsageError(
                f"from_torch: {step} calls {kind}.step with a tensor: call it outside of the step"
            )
        calls.append(SchedulerCall(scheduler, args, kwargs))

    def refuse(scheduler: LRScheduler) -> None:
        raise UsageError(
            f"from_torch: {step} reads {type(scheduler).__name__}.get_last_lr: call it outside of the step"
        )

    own = {"step": note, "get_last_lr": refuse}
    saved = [
        (kind, name, kind.__dict__[name])
        for kind in _kinds(LRScheduler)
        for name in own
        if name in kind.__dict__
    ]
    try:
        for kind, name, _ in saved:
            setattr(kind, name, own[name])
        yield
    finally:
        for kind, name, method in saved:
            setattr(kind, name, method)


def check_order(step: str, calls: Sequence[SchedulerCall], optimizer: Optimizer) -> None:
    """Raise UsageError where a scheduler was called before a step of its optimizer: it would come behind it."""
    for call in calls:
        if call.scheduler.optimizer is optimizer or _any_of(call.scheduler, optimizer):
            raise UsageError(
                f"from_torch: {step} calls {type(call.scheduler).__name__}.step before a step of"
                f" {type(optimizer).__name__}: behind all of them is right"
            )


def _any_of(scheduler: LRScheduler, optimizer: Optimizer) -> bool:
    """Tell whether a scheduler made of others has one for an optimizer."""
    parts = getattr(scheduler, "_schedulers", ())
    return any(part.optimizer is optimizer for part in parts)


def _kinds(kind: type[LRScheduler]) -> list[type[LRScheduler]]:
    """Return a class and all that derive from it."""
    return [kind, *[one for child in kind.__subclasses__() for one in _kinds(child)]]
