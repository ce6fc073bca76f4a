"""dist-report: what the redistributes of a program cost on a mesh with symbolic sizes, as formulas, in a remark.

before:  mesh (x=N, y=2), redistributes from [x, _] to [_, x] and so on
remark:  mesh (x=N, y=2): redistributes receive 4*ceil(8/N)*ceil(10/N)*(N - 1) bytes in 1 launch, peak ..; exact for
         N=2; N=4

Bytes are those of the busiest rank in each step, each redistribute counted once; peak is what input and output of a
step take together on a rank. `exact for`: of a few choices of numbers those for which no other plan is cheaper. The
module does not change.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.ir.bindings import ir
from meshweave.transforms.base import Pass, fail, mesh_of_module, mesh_op, remark
from meshweave.transforms.propagation.symbolic import Costs, module_costs


@dataclass(frozen=True)
class Report(Pass):
    """Say bytes, launches and peak of all redistributes as formulas in the symbols of the mesh."""

    name: ClassVar[str] = "dist-report"

    def run(self, module: ir.Module) -> None:
        op = mesh_op(module)
        if op is None:
            return
        with module.operation.context:
            costs = module_costs(module)
        mesh = mesh_of_module(module)
        if costs is None:
            fail(op, f"{self.name}: mesh ({mesh}) has no symbolic size: plans state their bytes")
        remark(op, f"mesh ({mesh}): {_text(costs)}")


def _text(costs: Costs) -> str:
    launches = f"{costs.launches} launch{'es' if costs.launches != 1 else ''}"
    parts = [
        f"redistributes receive {costs.nbytes} bytes in {launches}, peak {costs.peak_bytes} bytes",
        f"exact for {'; '.join(costs.sizes) or 'none of the usual numbers'}",
    ]
    if costs.late:
        parts.append(f"{costs.late} beyond blocks have no formula and are not counted")
    return "; ".join(parts)
