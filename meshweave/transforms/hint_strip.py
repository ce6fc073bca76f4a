"""hint-strip: take all hints away: regions are spliced in, time axes leave the layouts. Results stay the same.

before:  %r = "hint.region"() ({ %s = linalg.matmul ..;  "hint.yield"(%s) }) {hints = {slice = "t=4"}}
after:   %s = linalg.matmul ..
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.transforms.base import Pass, inline_single_block, replace, walk
from meshweave.transforms.hint_apply import split_constraints
from meshweave.transforms.hint_ledger import HELD, LEDGER, OP, REGION, regions_of
from meshweave.transforms.mesh import mesh_of_module


@dataclass(frozen=True)
class HintStrip(Pass):
    """Take all hints away; a constraint keeps what it says about the mesh."""

    name: ClassVar[str] = "hint-strip"

    def run(self, module: Any) -> None:
        context = module.operation.context
        with context, ir.Location.unknown(context):
            mesh = mesh_of_module(module)
            for region in regions_of(module):
                split_constraints(region, mesh)
            for op in walk(module):
                if op.name == "hint.place":
                    replace(op, [op.operands[0]])
            for region in reversed(regions_of(module)):
                inline_single_block(region)
            forget(module)


def forget(module: Any, ledger: bool = True) -> None:
    """Take away the numbers of ops and regions, and the ledger if asked."""
    for op in walk(module):
        for name in (OP, REGION, HELD):
            if name in op.attributes:
                del op.attributes[name]
    if ledger and LEDGER in module.operation.attributes:
        del module.operation.attributes[LEDGER]
