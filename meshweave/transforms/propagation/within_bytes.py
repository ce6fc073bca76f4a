"""Compile a program that is placed within a bound on the bytes of a rank: layouts together with what runs again.

Placement chooses both at one optimum, with bytes between arguments and results counted by a model. The lowering says
what they are: the share of the model's bytes that it takes is what the next placement counts, up to MOST_TURNS times.

Where nothing within the bound is found so, `hint-budget` and `hint-recompute` search for slices and for what runs again
by themselves. Two placements are tried then: the fastest one whose arguments and results leave room, and the fastest
one that leaves room for what is alive between them too; and the one of the fewest bytes where neither is within the
bound. The one that takes least together with what runs again is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from meshweave.dialects.again import AGAIN, ROUNDS_AGAIN
from meshweave.errors import CompileError, MeshweaveError
from meshweave.hints.ledger import DEAD, RefusedHintError
from meshweave.ir.bindings import ir
from meshweave.plan.placement.goal import PlacementGoal
from meshweave.plan.placement.prices import MachinePrices
from meshweave.transforms.base import copied, mesh_of_module, walk
from meshweave.transforms.propagation.place import PLACEMENT, whole_budget
from meshweave.transforms.slicing.apply import is_bounded_alone
from meshweave.transforms.slicing.ledger import read_ledger
from meshweave.transforms.slicing.works import price_of

GOALS = (
    PlacementGoal(share=0.0, again=False),
    PlacementGoal(again=False),
    PlacementGoal(is_bytes=True, again=False),
)
"""What is placed for: no room for bytes between arguments and results, room for all, and the fewest bytes."""

MOST_TURNS = 3
"""Placements with what runs again, each with bytes as the one before was measured."""

NEAR = 0.02
"""Share of the bytes between arguments and results that the model may miss."""

LESS = 0.9
"""Share of the model's bytes that counts next where no placement is within the bound by the model."""


class Recipe(Protocol):
    """Place a module for a goal, and lower the program of one rank."""

    def in_one_piece(self, module: ir.Module, auto: PlacementGoal) -> tuple[Any, bool]:
        """Change a module, with no slices; return what it is lowered to, and whether that keeps the bound."""

    def cut_and_lowered(self, module: ir.Module, auto: PlacementGoal) -> tuple[ir.Module, Any]:
        """Search for slices, and for what runs again, within the bound; return the module and what it is lowered to."""


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
    module: ir.Module, recipe: Recipe, machine: MachinePrices | None
) -> tuple[ir.Module, Any]:
    """Return the program of one rank that takes the least predicted time, and what it is lowered to.

    Raises what was raised first for a placement where none is within the bound.
    """
    return _jointly(module, recipe) or _by_turns(module, recipe, machine)


def _jointly(module: ir.Module, recipe: Recipe) -> tuple[ir.Module, Any] | None:
    """Return the program with the layouts and what runs again of one optimum; None where it is not within the bound."""
    if not is_bounded_alone(module):
        return None
    best: tuple[float, ir.Module, Any] | None = None
    share = 1.0
    for _ in range(MOST_TURNS):
        trial = copied(module)
        try:
            made, is_kept = recipe.in_one_piece(trial, PlacementGoal(share=share))
        except CompileError:
            if PLACEMENT in trial.operation.attributes or best is not None:
                break
            share *= LESS  # the model may count too many
            continue
        said = {e.name: e.attr for e in trial.operation.attributes[PLACEMENT]}
        taken = said["seconds"].value + said["again"].value
        if is_kept and (best is None or taken < best[0]):
            best = taken, trial, made
        between = (said["nbytes"].value - said["resident"].value) / share
        measured = made.areas[1] / max(1.0, between)
        if is_kept and (taken <= said["free_seconds"].value or measured >= share * (1 - NEAR)):
            break
        share = max(measured, share * (1 + NEAR)) if not is_kept else measured
    return None if best is None else best[1:]


def _by_turns(
    module: ir.Module, recipe: Recipe, machine: MachinePrices | None
) -> tuple[ir.Module, Any]:
    """Return the best of programs for which layouts are chosen first, then slices or what runs again."""
    found: list[_Attempt] = []
    failed: MeshweaveError | None = None
    bound = 0.0
    for goal in GOALS:
        if goal.is_bytes and found:
            break
        trial = copied(module)
        try:
            placed, made = recipe.cut_and_lowered(trial, goal)
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
    if ROUNDS_AGAIN in module.operation.attributes:
        again += module.operation.attributes[ROUNDS_AGAIN].value
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
