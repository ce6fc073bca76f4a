"""Targets, engines and chips: what code is made for, and what runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshweave.device import CHIPS
from meshweave.errors import UsageError, did_you_mean

# Of each target the engines that run its programs, the default first.
TARGETS = {"cpu": ("local", "mpi"), "gpu": ("nccl", "emulate")}
CHIP = "sm_90"  # unless said


@dataclass(frozen=True)
class Goal:
    """What a program is compiled for. chip: of target gpu; of others empty."""

    target: str = "cpu"
    engine: str = "local"
    chip: str = ""

    @staticmethod
    def of(target: str | None = None, engine: str | None = None, chip: str | None = None) -> Goal:
        """The goal that is asked for: an engine has its target, a target its first engine, and a gpu
        the chip CHIP. UsageError when the parts are unknown or do not fit together.
        """
        known = {name: t for t, engines in TARGETS.items() for name in engines}
        if target is not None and target not in TARGETS:
            raise UsageError(f'no target "{target}"{_near(target, TARGETS)}')
        if engine is not None and engine not in known:
            raise UsageError(f'no engine "{engine}"{_near(engine, known)}')
        target = target or known[engine or "local"]
        engine = engine or TARGETS[target][0]
        if known[engine] != target:
            right = " or ".join(TARGETS[target])
            raise UsageError(
                f"engine {engine} runs target {known[engine]}: target {target} needs engine {right}"
            )
        if chip is not None and target != "gpu":
            raise UsageError(f"chip {chip}: target {target} has no chips, target gpu has")
        if chip is not None and chip not in CHIPS:
            raise UsageError(f'no chip "{chip}"{_near(chip, CHIPS)}')
        return Goal(target, engine, chip or CHIP if target == "gpu" else "")


def _near(name: str, names: Iterable[str]) -> str:
    """The nearest known name, else all of them."""
    return did_you_mean(name, names) or f"; there are {', '.join(names)}"
