"""hint-strip: take all hints away: regions are spliced in, time axes leave the layouts. Results stay the same.

before:  %r = "hint.region"() ({ %s = linalg.matmul ..;  "hint.yield"(%s) }) {hints = {slice = "t=4"}}
after:   %s = linalg.matmul ..
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.again import AGAIN
from meshweave.ir.bindings import ir
from meshweave.ir.ops import replace_op
from meshweave.transforms.base import Pass, inline_single_block, mesh_of_module, walk
from meshweave.transforms.slicing.apply import split_constraints
from meshweave.transforms.slicing.ledger import HELD, LEDGER, OP, REGION, regions_of


@dataclass(frozen=True)
class HintStrip(Pass):
    """Take all hints away; a constraint keeps what it says about the mesh."""

    name: ClassVar[str] = "hint-strip"

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module)
        for region in regions_of(module):
            split_constraints(region, mesh)
        for op in walk(module):
            if op.name == "hint.place":
                replace_op(op, [op.operands[0]])
        for region in reversed(regions_of(module)):
            inline_single_block(region)
        for op in walk(module):
            if AGAIN in op.attributes:
                del op.attributes[AGAIN]
        forget(module)


def forget(module: ir.Module, ledger: bool = True) -> None:
    """Take away the numbers of ops and regions, and the ledger if asked."""
    for op in walk(module):
        for name in (OP, REGION, HELD):
            if name in op.attributes:
                del op.attributes[name]
    if ledger and LEDGER in module.operation.attributes:
        del module.operation.attributes[LEDGER]
