"""Make the program of one rank of a module: the passes of a target, the checks, then buffers."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from meshweave.certificate import UNCHECKED, Certificate
from meshweave.errors import CompileError, MeshweaveError
from meshweave.hints.fast_paths import ALL, Choice
from meshweave.ir.pipeline_text import GLOBAL_PASSES
from meshweave.report import OpRow, Reason
from meshweave.targets import Goal

if TYPE_CHECKING:  # here, for what is read from the disk needs no compiler
    from meshweave.ir.bindings import ir
    from meshweave.lowering.host.program import LoweredProgram
    from meshweave.plan.placement.goal import PlacementGoal
    from meshweave.plan.placement.prices import MachinePrices

Progress = Callable[[str], None]
LAST_WHOLE = "outline-repeats"  # the last pass before layouts are chosen


def passes_with(
    kernels: Choice = ALL,
    passes: Sequence[str] = GLOBAL_PASSES,
    target: str = "cpu",
    auto: "PlacementGoal | None" = None,
    explain: bool = False,
    machine: "MachinePrices | None" = None,
    loose: bool = False,
) -> tuple[str, ...]:
    """Return the passes for a target, with the kernels that `kernels` disables and enables as options.

    auto: what layouts are placed for; None: they are propagated. explain: note what other layouts would cost.
    machine: that placement predicts for; None: ranks as threads of one host. loose: of hint-apply.
    """
    if auto is not None:
        passes = tuple("dist-place" if name == "dist-propagate" else name for name in passes)
    options: dict[str, list[str]] = {
        name: []
        for name in (
            "hint-apply",
            "remake-scores",
            "hint-budget",
            "hint-recompute",
            "select-kernels",
        )
    }
    options["hint-apply"] += ["loose=true"] if loose else []
    options["dist-place"] = ["explain=true"] if explain else []
    if auto is not None:
        options["dist-place"] += auto.options
    if machine is not None:
        from meshweave.plan.placement.prices import machine_option

        options["dist-place"].append(machine_option(machine))
    if kernels.disabled:
        for name in ("select-kernels", "hint-budget", "hint-recompute", "remake-scores"):
            options[name].append(f"disable={','.join(kernels.disabled)}")
    if kernels.enabled:
        options["select-kernels"].append(f"enable={','.join(kernels.enabled)}")
    if target != Goal.target:
        for name, found in options.items():
            found += [f"target={target}"] if name != "dist-place" else []
    return tuple(
        f"{name}{{{' '.join(said)}}}" if (said := options.get(name)) else name for name in passes
    )


def silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class RankRecipe:
    """Say how a module becomes the program of one rank, and that buffers.

    strip: remove hints first. later: leave the checks to `bundle_of`. reasons: find why tensors move, and call the
    arguments so there. machine: that placement predicts for.
    """

    engine: str = "local"
    progress: Progress = silent
    kernels: Choice = ALL
    verify: bool = True
    later: bool = False
    strip: bool = False
    reasons: Sequence[str] | None = None
    machine: "MachinePrices | None" = None

    def cut_and_lowered(
        self, module: "ir.Module", auto: "PlacementGoal | None"
    ) -> "tuple[ir.Module, LoweredProgram]":
        """Make the program of one rank of a whole program, with layouts for a goal, and lower it. Return both.

        Where nothing is said but what bytes it may take, it is first made as if that had not been said: only if it
        takes more, ops are put in the region that a search for slices needs, at which layouts and kernels end.
        """
        from meshweave.lowering.budget import at_most, check_budgets
        from meshweave.transforms.base import copied
        from meshweave.transforms.slicing.apply import is_bounded_alone

        if self.strip or not is_bounded_alone(module):
            program = self._cut_and_lowered(module, auto, loose=False)
            check_budgets(module, program)
            return module, program
        trial = copied(module)
        alone, is_kept = self.in_one_piece(trial, auto)
        if is_kept:
            return trial, alone
        try:
            program = self._cut_and_lowered(module, auto, loose=False)
            check_budgets(module, program)
        except CompileError as error:
            raise at_most(error, alone.areas[1]) from None
        # A preferred budget gets what takes least.
        return (module, program) if program.areas[1] <= alone.areas[1] else (trial, alone)

    def in_one_piece(
        self, module: "ir.Module", auto: "PlacementGoal | None"
    ) -> "tuple[LoweredProgram, bool]":
        """Make the program of one rank with no region for its budget; return it, and whether it keeps the budget."""
        from meshweave.lowering.budget import keeps_budget

        program = self._cut_and_lowered(module, auto, loose=True)
        return program, keeps_budget(module, program)

    def _cut_and_lowered(
        self, module: "ir.Module", auto: "PlacementGoal | None", loose: bool
    ) -> "LoweredProgram":
        passes = passes_with(
            self.kernels,
            target=Goal.of(engine=self.engine).target,
            auto=auto,
            explain=self.reasons is not None,
            machine=self.machine,
            loose=loose,
        )
        passes = ("hint-strip", *passes) if self.strip else passes
        certify, reasons, rows = _cut(module, passes, self.progress, self.verify, self.reasons)
        program = self._lowered(module, certify)
        program.reasons, program.whole = reasons, rows
        return program

    def lowered(self, module: "ir.Module") -> "LoweredProgram":
        """Lower the program of one rank. Raises CompileError where a region takes more than its required budget."""
        from meshweave.lowering.budget import check_budgets

        program = self._lowered(module, None)
        check_budgets(module, program)
        return program

    def _lowered(
        self, module: "ir.Module", certify: Callable[[], Certificate] | None
    ) -> "LoweredProgram":
        """Lower the program of one rank.

        certify: checks it against the whole program; what cannot be lowered may be wrong.
        """
        from meshweave.lowering.stages import lower

        certificate = UNCHECKED
        if certify is not None and not self.later:
            self.progress("verify")
            certificate = certify()
        self.progress("lower")
        try:
            program = lower(module, self.engine, self.kernels.disabled, self.verify, self.later)
        except MeshweaveError:
            if certify is not None and self.later:
                certify()
            raise
        program.certificate, program.certify = certificate, certify if self.later else None
        return program


def _cut(
    module: "ir.Module",
    passes: Sequence[str],
    progress: Progress,
    verify: bool,
    names: Sequence[str] | None,
) -> "tuple[Callable[[], Certificate] | None, tuple[Reason, ...], tuple[OpRow, ...]]":
    """Make the program of one rank of a module.

    Return what checks it against the module before layouts were chosen; and, where there are `names`, why tensors move,
    and all ops.
    """
    from meshweave.api.verify import certificate
    from meshweave.pipeline import run_pipeline
    from meshweave.transforms.base import copied

    first = passes.index(LAST_WHOLE) + 1
    run_pipeline(module, ",".join(passes[:first]), progress=progress, verify=False)
    whole = copied(module) if verify else None
    found: tuple[Reason, ...] = ()
    rows: tuple[OpRow, ...] = ()
    if names is None:
        run_pipeline(module, ",".join(passes[first:]), progress=progress, verify=False)
    else:
        found, rows = _run_and_ask(module, passes[first:], progress, names)
    verified(module)
    return None if whole is None else partial(certificate, whole, module), found, rows


def _run_and_ask(
    module: "ir.Module", passes: Sequence[str], progress: Progress, names: Sequence[str]
) -> "tuple[tuple[Reason, ...], tuple[OpRow, ...]]":
    """Run the passes that choose layouts and those behind them; return why tensors move, and the ops in between."""
    from meshweave.pipeline import run_pipeline
    from meshweave.see.outline import outline
    from meshweave.see.reasons import find_reasons, note_constraints, note_said

    def run(some: Sequence[str]) -> None:
        run_pipeline(module, ",".join(some), progress=progress, verify=False)

    chosen, planned = passes.index("dist-insert-redistribute"), passes.index("dist-partition")
    note_said(module)
    run(passes[:chosen])
    note_constraints(module)
    run(passes[chosen:planned])
    found, rows = find_reasons(module, names), outline(module)
    run(passes[planned:])
    return found, rows


def verified(module: "ir.Module") -> None:
    """Verify a module: after a change of the mesh and after all passes, since after each would double their time."""
    from meshweave.ir.bindings import ir
    from meshweave.ir.locations import compile_error

    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise compile_error(error) from None


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector: compiling makes few cycles, and looking for them takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
