"""What is chosen for the programs of the benchmark gives what the programs give unplaced, on small sizes."""

import importlib
import sys

import numpy as np
import pytest
from commands import ROOT
from depth import some

import meshweave as mw
from meshweave.plan.placement.prices import MachinePrices


def load(name: str) -> object:
    """Import a module of the benchmarks, which are no part of the package."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"benchmarks.placing.{name}")


PROGRAMS = {p.name: p for p in load("programs").programs(0)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", some(PROGRAMS, 8))
def test_plans_that_are_chosen_give_what_the_program_gives(name: str) -> None:
    """On each mesh of the table, with nothing said, and with what the first plan on both axes says."""
    program, leaves = PROGRAMS[name], load("measured").leaves  # type: ignore[attr-defined]
    values = program.drawn(1)
    with mw.kernels(flash=False):
        wanted = [np.asarray(x) for x in leaves(mw.jit(program.function)(*values))]
    some = next(iter(program.plans.values()))
    said = {"in_layouts": some.inputs, "out_layouts": some.outputs}
    for mesh, given in (("dp=4, tp=1", {}), ("dp=2, tp=2", {}), (some.mesh(4), said)):
        placed = mw.jit(program.function, mesh=mesh, layouts="auto", **given)
        for one, other in zip(leaves(placed(*values)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-5)
        placed.close()


def test_plans_that_are_written_have_predictions() -> None:
    text_of, report = (getattr(load("measured"), name) for name in ("text_of", "report"))
    program = PROGRAMS["mlp"]
    for plan in program.plans.values():
        text = text_of(program, plan.mesh(4), plan)
        for auto in (True, False):
            placement = report(text, MachinePrices(), auto).placement
            assert (placement is not None) == auto
            assert placement is None or placement.seconds > 0
