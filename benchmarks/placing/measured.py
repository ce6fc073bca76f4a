"""Programs placed, predicted and measured on engine `local`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import meshweave as mw
from benchmarks.placing.programs import Plan, Program
from meshweave.api.program import Program as Compiled
from meshweave.api.program import build, reported
from meshweave.plan.placement.goal import PlacementGoal
from meshweave.plan.placement.prices import MachinePrices
from meshweave.report import Report
from meshweave.runtime.arrays.array import run_arrays
from meshweave.runtime.engine import engine

SECONDS = 1.0  # that each plan is measured for


def leaves(tree: Any) -> list[Any]:
    """The arrays of a pytree, as programs take them."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for each in tree for leaf in leaves(each)]
    return [tree]


def text_of(program: Program, mesh: str, plan: Plan | None) -> str:
    """The program in MLIR with a plan's layouts; None: with none."""
    said = {} if plan is None else {"in_layouts": plan.inputs, "out_layouts": plan.outputs}
    return mw.jit(program.function, mesh=mesh, **said).lower(*program.kinds).program.text


def report(text: str, machine: MachinePrices, auto: bool = True) -> Report:
    """What compiling decides; auto: with what is not said placed, not propagated."""
    goal = PlacementGoal() if auto else None
    return reported(text, "program", None, "local", verify=False, auto=goal, machine=machine)


@dataclass
class Runner:
    """A compiled plan with its arguments laid out: what it takes is the least of many turns."""

    program: Compiled
    arrays: list[Any]
    ranks: int
    best: float = float("inf")

    @staticmethod
    def of(text: str, values: Any, machine: MachinePrices, auto: bool) -> Runner:
        """Compile a program."""
        goal = PlacementGoal() if auto else None
        made = build(text, name="program", verify=False, auto=goal, machine=machine)
        loaded = Compiled(made, engine("local"), name="program")
        mesh = loaded.mesh
        arrays = [
            mw.Array.from_numpy(value, mesh=mesh, layout=port.layout)
            for value, port in zip(leaves(values), loaded.inputs)
        ]
        return Runner(loaded, arrays, mesh.nranks)

    def turn(self) -> None:
        """Run once; what counts is the processor time of a rank, which other work on the machine changes least.

        Results stay where they are, as Arrays: what it takes to put them together is no part of a plan.
        """
        began = time.process_time()
        run_arrays(self.program.executable, self.arrays)
        self.best = min(self.best, (time.process_time() - began) / self.ranks)


def measured(runners: list[Runner]) -> None:
    """Run all by turns for a while, after a turn that is not counted."""
    for runner in runners:
        runner.turn()
        runner.best = float("inf")
    ends = time.perf_counter() + SECONDS * len(runners)
    while time.perf_counter() < ends or any(r.best == float("inf") for r in runners):
        for runner in runners:
            runner.turn()
