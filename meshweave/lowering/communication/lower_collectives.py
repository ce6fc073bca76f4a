"""lower-collectives: collectives of an engine in the place of the `dist` ops of one rank's program.

before:  %1 = "dist.all_reduce"(%0) {axes = ["y"], kind = "sum"} : (tensor<4x10xf32>) -> tensor<4x10xf32>
after:   %e = tensor.empty() : tensor<4x10xf32>
         %1 = "mw.collective"(%0, %e) {symbol = "mw_all_reduce_sum_f32", group = 0, ..}

Data that a collective does not find or leave back to back is moved around it: the member dim goes first
(`to_front`), or from the front to where it belongs (`from_front`), as transposes and reshapes that fuse-kernels
folds into what is next to them. Uneven dims are padded before and cut after. A collective that dist-overlap has
marked `dist.early` becomes an `mw.start` where it stands and an `mw.wait` right before the first reader.

Functions that the program calls several times stay functions; all other calls are inlined. `mw.program` says what the
engine has to know of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshweave.ir.bindings import ir
from meshweave.ir.build import i64
from meshweave.lowering.communication.collectives import Collectives
from meshweave.lowering.host.functions import inline_calls, keep_functions
from meshweave.lowering.host.prepare import ports
from meshweave.lowering.host.program_op import Interface, write_program
from meshweave.targets import Goal
from meshweave.transforms.base import Pass, ops_of


@dataclass(frozen=True)
class LowerCollectives(Pass):
    """Lower the collectives of a program for an engine, which settles its target."""

    name: ClassVar[str] = "lower-collectives"
    engine: str = "local"

    def run(self, module: ir.Module) -> None:
        context = module.operation.context
        with context, ir.Location.unknown(context):
            traits = Goal.of(engine=self.engine).traits
            inputs, outputs, mesh = ports(module)
            lowered = collectives_of(traits.target)(module, mesh, traits)
            interface = Interface(
                self.engine, mesh, lowered.groups, inputs, outputs, lowered.exchanges
            )
            write_program(module, interface)
            inline_calls(module, keep_functions(module))
            _number_tickets(module)


def _number_tickets(module: ir.Module) -> None:
    """Give each start, with its wait, a ticket of its own: inlining has made copies."""
    for number, op in enumerate(ops_of(module, "mw.start")):
        start = op.operation
        waits = [use.owner.operation for use in start.results[0].uses]
        for one in (start, *(wait for wait in waits if wait.name == "mw.wait")):
            one.attributes["ticket"] = i64(number)


def collectives_of(target: str) -> type[Collectives]:
    """Return how the collectives of a target are lowered."""
    if target != "gpu":
        return Collectives
    from meshweave.lowering.gpu.host.nccl import DeviceCollectives  # for gpus alone

    return DeviceCollectives
