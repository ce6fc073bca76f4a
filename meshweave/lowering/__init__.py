"""From a program in the local view to a bundle, for each target."""

from typing import Any

from meshweave.bindings import ir
from meshweave.bundle import Bundle
from meshweave.fast_paths import ALL, Choice
from meshweave.lowering import cpu
from meshweave.lowering.cpu import compile_local
from meshweave.lowering.hint_budget import HintBudget
from meshweave.lowering.program import Program, lower
from meshweave.targets import Goal

PASSES = {HintBudget.name: HintBudget}
"""Passes that need the lowering to decide."""


def compile_program(module: Any, engine: str) -> Bundle:
    """Compile `@main` of a module in the local view for the target that an engine runs."""
    with module.context, ir.Location.unknown():
        return bundle_of(lower(module, engine), Goal.of(engine=engine))


def bundle_of(program: Program, goal: Goal, kernels: Choice = ALL) -> Bundle:
    """The bundle of a program for a goal, within the program's context.

    kernels: those that may be taken where the target has some of its own.
    """
    if goal.target == "gpu":  # whose parts cost nothing where nobody needs them
        from meshweave.lowering.gpu import target as gpu_target
        from meshweave.lowering.gpu.kernel import Target

        disabled = frozenset(kernels.disabled)
        return gpu_target.bundle_of(program, Target(goal.chip, disabled=disabled))
    return cpu.bundle_of(program)


__all__ = ["PASSES", "bundle_of", "compile_local", "compile_program"]
