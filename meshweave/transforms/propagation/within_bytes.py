"""Compile a program that is placed within a bound on the bytes of a rank: layouts first, then slices or recomputation.

Two placements are tried: the fastest one whose arguments and results leave room, and the fastest one that leaves room
for what is alive between them too. What is left of the bound goes to `hint-budget` and `hint-recompute`, which measure
by the lowering itself. The one that takes least together, with what runs again, is kept; no placement within the bound
takes less than the first one alone, so the gap is known. Where neither is within the bound the one of the fewest bytes
is tried: bytes between are counted by a model, which may be wrong by what buffers are rounded up to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshweave.dialects.again import AGAIN
from meshweave.errors import CompileError, MeshweaveError
from meshweave.hints.ledger import DEAD, RefusedHintError
from meshweave.ir.bindings import ir
from meshweave.plan.placement.goal import PlacementGoal
from meshweave.plan.placement.prices import MachinePrices
from meshweave.transforms.base import copied, mesh_of_module, walk
from meshweave.transforms.propagation.place import PLACEMENT, whole_budget
from meshweave.transforms.slicing.ledger import read_ledger
from meshweave.transforms.slicing.works import price_of

GOALS = (PlacementGoal(share=0.0), PlacementGoal(share=1.0), PlacementGoal(is_bytes=True))
"""What is placed for: no room for bytes between arguments and results, room for all, and the fewest bytes."""


@dataclass(frozen=True)
class _Attempt:
    """Hold a compiled placement: predicted seconds of the placement, and of what runs again."""

    module: ir.Module
    made: Any  # what the caller's function returned for it
    placed: float
    bound: float
    again: float
    is_whole: bool

    @property
    def seconds(self) -> float:
        return self.placed + self.again


def best_within(
    module: ir.Module,
    make: Callable[[ir.Module, PlacementGoal], tuple[ir.Module, Any]],
    machine: MachinePrices | None,
) -> tuple[ir.Module, Any]:
    """Return what `make` returned for the placement that takes the least predicted time.

    make: places a module for a goal, which leaves room for a share of the bytes in between, and lowers it: the program
    of one rank, and what it is lowered to. Raises what it raised first for a placement where none is within the bound.
    """
    found: list[_Attempt] = []
    failed: MeshweaveError | None = None
    bound = 0.0
    for goal in GOALS:
        if goal.is_bytes and found:
            break
        trial = copied(module)
        try:
            placed, made = make(trial, goal)
        except CompileError as error:
            is_placed = PLACEMENT in trial.operation.attributes
            if not is_placed and not goal.share:
                raise  # arguments and results alone are too large
            failed = failed or (_in_all(error, trial) if is_placed else error)
            continue
        found.append(_looked_at(placed, made, machine))
        bound = bound if goal.share else found[0].bound
        if found[-1].is_whole:
            break
    if not found:
        assert failed is not None
        raise failed
    best = min(found, key=lambda one: one.seconds)
    _note(best, bound)
    return best.module, best.made


def is_bounded(module: ir.Module) -> bool:
    """Tell whether the bytes that a program takes are bounded as a whole."""
    return whole_budget(module)[1] > 0


def _looked_at(module: ir.Module, made: Any, machine: MachinePrices | None) -> _Attempt:
    said, mesh = module.operation.attributes[PLACEMENT], mesh_of_module(module)
    machine = machine or MachinePrices()
    again = sum(
        price_of(op, mesh, machine).seconds
        for op in walk(module.operation)
        if AGAIN in op.attributes
    )
    ledger = read_ledger(module)
    budgets = {one.number for one in ledger.said if one.hint.key == "peak_bytes"}
    settled = [one for (number, _), one in ledger.outcomes.items() if number in budgets]
    whole = not again and all(one.unchanged for one in settled if one.kind != DEAD)
    seconds, gap = said["seconds"].value, said["gap"].value
    return _Attempt(module, made, seconds, seconds * (1 - gap), again, whole)


def _in_all(error: CompileError, module: ir.Module) -> CompileError:
    """Return the refusal of what a placement leaves for values in between, with the bytes of arguments and results."""
    refusal = error.refusal if isinstance(error, RefusedHintError) else None
    if refusal is None or not refusal.outcome.allow:
        return error
    resident = int(module.operation.attributes[PLACEMENT]["resident"].value)
    remedy = f"allow {resident + refusal.outcome.allow} bytes in all"
    said = replace(refusal, outcome=replace(refusal.outcome, remedy=remedy))
    return CompileError(
        f"arguments and results take {resident:,} bytes of a rank; for what is between: {said}",
        error.location,
    )


def _note(best: _Attempt, bound: float) -> None:
    """Say in the module how far the whole lies from the optimum at most, and what runs again."""
    noted = {entry.name: entry.attr for entry in best.module.operation.attributes[PLACEMENT]}
    gap = max(0.0, 1 - bound / best.seconds) if best.seconds > bound else 0.0
    f64 = ir.F64Type.get()
    noted |= {"gap": ir.FloatAttr.get(f64, gap), "again": ir.FloatAttr.get(f64, best.again)}
    best.module.operation.attributes[PLACEMENT] = ir.DictAttr.get(noted)
