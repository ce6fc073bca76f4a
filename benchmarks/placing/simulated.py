"""Plans for any number of ranks by the model alone: seconds, bytes that the busiest rank receives, and the gap."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.placing.measured import text_of
from benchmarks.placing.programs import Plan, Program
from meshweave.dialects import context
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.layout.mesh import Link
from meshweave.pipeline import run_pipeline
from meshweave.plan.cost import Profile
from meshweave.plan.placement.prices import MachinePrices
from meshweave.plan.placement.terms import cost_of
from meshweave.transforms.propagation.interface import open_interfaces
from meshweave.transforms.propagation.place import placed

ZEROS = ((0.0,) * 5, (0.0,) * 3, (0.0,) * 3)
BYTES = MachinePrices(Profile(Link(0.0, 1.0), 0.0, 0.0), 0.0, 0.0, 0.0, 0.0, *ZEROS)
"""A machine on which a byte that is received takes a second, and nothing else takes any time."""


@dataclass(frozen=True)
class Simulated:
    """What a plan takes."""

    seconds: float
    nbytes: float
    gap: float


def simulated(program: Program, mesh: str, plan: Plan | None, machine: MachinePrices) -> Simulated:
    """A program with the layouts of a plan, what it leaves open placed at the optimum; None: with nothing said."""
    ctx = context(unregistered=True)
    with ctx, ir.Location.unknown():
        module = load_module(text_of(program, mesh, plan), ctx, program.name)
        run_pipeline(module, "hint-apply,outline-repeats,dist-donate")
        open_interfaces(module, Mesh.parse(mesh))
        _, _, choices = placed(module, Mesh.parse(mesh), machine)
        _, other, _ = placed(module, Mesh.parse(mesh), BYTES)
    return Simulated(choices.cost, cost_of(choices.picks, other.terms), choices.gap)


def compared(
    program: Program, ranks: int, machine: MachinePrices
) -> tuple[Simulated, str, dict[str, Simulated]]:
    """The best chosen plan over the meshes that people use, its mesh, and each written one."""
    written = {
        name: simulated(program, plan.mesh(ranks), plan, machine)
        for name, plan in program.plans.items()
    }
    meshes = list(dict.fromkeys(plan.mesh(ranks) for plan in program.plans.values()))
    chosen = {mesh: simulated(program, mesh, None, machine) for mesh in meshes}
    best = min(chosen, key=lambda mesh: chosen[mesh].seconds)
    return chosen[best], best, written
