"""From a program in the local view to a bundle: `compile_local`, one target so far, "cpu"."""

from meshweave.lowering.cpu import compile_local
from meshweave.lowering.hint_budget import HintBudget

TARGETS = {"cpu": compile_local}
PASSES = {HintBudget.name: HintBudget}
"""Passes that need the lowering to decide."""

__all__ = ["PASSES", "TARGETS", "compile_local"]
