"""Trace `torch.amp.GradScaler` in a step: what it decides by numbers of Python, the program chooses.

scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
-> gradients divided by the scale; where one of them is inf or NaN, parameters and state stay as they are
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from meshweave.errors import UsageError

_KEPT = ("_scale", "_growth_tracker")
_FUSED = "_step_supports_amp_scaling"  # an optimizer with it divides by the scale in its own kernel


class ScalerEntry(NamedTuple):
    """Name a tensor of a scaler: its scale, or how many steps in a row were finite."""

    scaler: GradScaler
    key: str

    def find(self) -> Tensor | None:
        """Return the tensor that is there now."""
        found: Tensor | None = getattr(self.scaler, self.key)
        return found


def entries(name: str, scaler: GradScaler) -> dict[str, ScalerEntry]:
    """Return the tensors of a scaler by name, made if need be. name: of the scaler in the step."""
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    return {f"{name}.{key.strip('_')}": ScalerEntry(scaler, key) for key in _KEPT}


def options(scaler: GradScaler) -> dict[str, float]:
    """Return the numbers of a scaler that are compiled in."""
    return {
        "growth_factor": scaler._growth_factor,
        "backoff_factor": scaler._backoff_factor,
        "growth_interval": scaler._growth_interval,
    }


class TracedScalers:
    """Let the scalers of a step be traced, and optimizers step only where all gradients are finite."""

    def __init__(
        self, step: str, scalers: Mapping[str, GradScaler], optimizers: Collection[Optimizer]
    ) -> None:
        """Take what a step has, by name. step: its own."""
        self._step, self._scalers, self._optimizers = step, scalers, optimizers
        self._skips: dict[int, Tensor] = {}  # whether the step of an optimizer is left out
        self._before: dict[int, list[tuple[Tensor, Tensor]]] = {}

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Trace the methods of scalers in this block. Raises UsageError where a scale is not updated."""
        ours: dict[str, Any] = {
            "_unscale_grads_": lambda _, *args: self._unscaled(*args),
            "_maybe_opt_step": lambda _, *args, **kwargs: self._stepped(*args, **kwargs),
            "update": lambda scaler, new_scale=None: self._updated(scaler, new_scale),
            "scale": lambda scaler, outputs: self._scaled(scaler, outputs),
        }
        self._saved = {name: getattr(GradScaler, name) for name in ours}
        states = {name: dict(one._per_optimizer_states) for name, one in self._scalers.items()}
        fused = [one for one in self._optimizers if _FUSED in vars(one)]
        flags = [getattr(one, _FUSED) for one in fused]
        for name, method in ours.items():
            setattr(GradScaler, name, method)
        for one in fused:
            setattr(one, _FUSED, False)
        for scaler in self._scalers.values():
            scaler._per_optimizer_states.clear()
        try:
            yield
            for name, scaler in self._scalers.items():
                if scaler._per_optimizer_states:
                    raise UsageError(
                        f"from_torch: {self._step} unscales gradients, or steps, by {name}: call {name}.update() last"
                    )
        finally:
            for name, method in self._saved.items():
                setattr(GradScaler, name, method)
            for one, flag in zip(fused, flags, strict=True):
                setattr(one, _FUSED, flag)
            for name, scaler in self._scalers.items():
                scaler._per_optimizer_states.clear()
                scaler._per_optimizer_states.update(states[name])

    def begin(self, optimizer: Optimizer) -> None:
        """Remember what an optimizer is about to write, where its step may be left out."""
        if id(optimizer) not in self._skips:
            return
        trained = [p for p in _parameters(optimizer) if p.grad is not None]
        state = [v for p in trained for v in optimizer.state.get(p, {}).values()]
        written = [*trained, *[value for value in state if isinstance(value, Tensor)]]
        with torch.no_grad():
            self._before[id(optimizer)] = [(one, one.detach().clone()) for one in written]

    def end(self, optimizer: Optimizer) -> None:
        """Let all be as it was where a gradient is not finite."""
        skip = self._skips.get(id(optimizer))
        if skip is not None:
            with torch.no_grad():
                for one, old in self._before.pop(id(optimizer)):
                    one.copy_(torch.where(skip, old, one))

    def _scaled(self, scaler: GradScaler, outputs: Any) -> Any:
        if scaler.is_enabled() and all(scaler is not one for one in self._scalers.values()):
            raise UsageError(
                f"from_torch: {self._step} scales by a {type(scaler).__name__} that it is not called with and does not"
                " refer to: give it as an argument"
            )
        return self._saved["scale"](scaler, outputs)

    def _unscaled(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Multiply gradients by `inv_scale`; return whether one is not finite, as 0.0 or 1.0."""
        with torch.no_grad():
            for one in _parameters(optimizer):
                if one.grad is None:
                    continue
                if one.grad.dtype == torch.float16 and not allow_fp16:
                    raise UsageError(
                        f"from_torch: {self._step} unscales gradients of f16: parameters of f32 under torch.autocast"
                        " are right"
                    )
                bad = (~torch.isfinite(one.grad)).any()
                found_inf = torch.maximum(found_inf, bad.to(found_inf.dtype))
                one.grad.mul_(inv_scale)
        return {found_inf.device: found_inf}

    def _stepped(
        self, optimizer: Optimizer, state: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        self._skips[id(optimizer)] = _any(state["found_inf_per_device"].values())
        try:
            optimizer.step(*args, **kwargs)
        finally:
            del self._skips[id(optimizer)]

    def _updated(self, scaler: GradScaler, new_scale: Any) -> None:
        """Write the scale of the next step, as `torch._amp_update_scale_` does."""
        rows = scaler._per_optimizer_states.values()
        found = [one for row in rows for one in row["found_inf_per_device"].values()]
        if not scaler.is_enabled() or new_scale is not None or not found:
            self._saved["update"](scaler, new_scale)
            return
        skip, number = _any(found), options(scaler)
        scale, tracker = (one.find() for one in entries("", scaler).values())
        assert scale is not None
        assert tracker is not None
        # Of f64, as Python's numbers are.
        grown = (scale.double() * number["growth_factor"]).float()
        shrunk = (scale.double() * number["backoff_factor"]).float()
        grows = tracker + 1 == number["growth_interval"]
        after = torch.where(grows & torch.isfinite(grown), grown, scale)
        count = torch.where(skip | grows, torch.zeros_like(tracker), tracker + 1)
        scale.copy_(torch.where(skip, shrunk, after))
        tracker.copy_(count)
        scaler._per_optimizer_states.clear()


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _any(found: Collection[Tensor]) -> Tensor:
    """Tell whether one of these numbers is not 0."""
    return torch.stack(list(found)).sum() > 0
