"""dist-fuse-collectives: fewer collectives that do the same, in the program of one rank.

before:  p = all_reduce(a) over x;  q = all_reduce(b) over x;  r = all_reduce(p) over y
after:   s = all_reduce(concat(a, b)) over x, y               where q was reduced over y too

Equal collectives become one, those in a group of one rank go. Two in a row become one: all_reduces, all_gathers,
reduce_scatters and all_slices over one axis after the other; an all_reduce and an all_slice become a reduce_scatter, an
all_gather and an all_slice an all_to_all, or nothing where the slice takes back what was gathered; a reduce_scatter
and an all_gather an all_reduce (fusion/chains.py has the conditions). The one op stands where the first stood; what
makes the result larger only happens where no more than a few views lie in between.

Then small all_reduces of one group, kind and element type become one of their elements back to back. One more joins
where what it saves, the launch and the latency of all rounds, is more than copying its elements in and out takes
(plan/cost.py), up to `max-bytes` in all. The merged one stands where the first stood if the operand of the newcomer is
there by then, and otherwise where the newcomer stood, if nobody reads the others before and the ops in between take
less time than is saved: no all_reduce waits behind a long computation.

Exchanges that bring windows of one value become one that brings them all, where that takes no longer (fuse_windows.py).

Reductions of floats by sum, prod and avg may be done in another order of the members, which moves last bits; not with
`bit-exact`, nor in regions whose hints say `numerics = "bit_exact"`. All else keeps every bit. Averages of integers,
cut off at each step, are never done in one.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import axes_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.layout.mesh import Mesh
from meshweave.plan.collectives import dist_ops
from meshweave.transforms.base import Pass, mesh_of_module, ops_of, use_count
from meshweave.transforms.communication.fusion.chains import (
    CollectivePair,
    group_of,
    merge_axes,
    rounds,
)
from meshweave.transforms.communication.fusion.small import BlockOrder, merge_small
from meshweave.transforms.communication.fusion.windows import EXCHANGE, merge_windows

BLOCKWISE = dist_ops(lambda row: row.is_blockwise)
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class FuseCollectives(Pass):
    """Merge collectives of the local view where that saves launches or bytes.

    max_bytes: of an all_reduce made of several small ones; 0: none is made.
    bit_exact: keep the order in which floats are added.
    """

    name: ClassVar[str] = "dist-fuse-collectives"
    max_bytes: int = MAX_BYTES
    bit_exact: bool = False

    def run(self, module: ir.Module) -> None:
        ops = [view.operation for view in ops_of(module, *BLOCKWISE)]
        exchanges = [view.operation for view in ops_of(module, EXCHANGE)]
        mesh = mesh_of_module(module, concrete=True) if ops or exchanges else None
        if mesh is None:
            return
        for block in dict.fromkeys(op.block for op in exchanges):
            merge_windows(block, mesh)
        blocks = dict.fromkeys(op.block for op in ops)
        for block in blocks:
            exact = self.bit_exact or says_bit_exact(block.owner)
            fuse_block(block, mesh, exact, self.max_bytes)


def says_bit_exact(op: ir.Operation) -> bool:
    """Tell whether the innermost region that says anything of numerics says `bit_exact`.

    `op` is the first looked at.
    """
    while op is not None:
        op = op.operation
        hints = op.attributes.get("hints") if op.name == "hint.region" else None
        if isinstance(hints, ir.DictAttr) and "numerics" in hints:
            said = hints["numerics"]
            if isinstance(said, ir.DictAttr) and "value" in said:
                said = said["value"]
            return getattr(said, "value", None) == "bit_exact"
        op = op.parent
    return False


def fuse_block(block: ir.Block, mesh: Mesh, bit_exact: bool, max_bytes: int) -> None:
    """Apply all rules to the collectives of one block."""
    order = BlockOrder(block)
    _distinct(order, mesh, bit_exact)
    for op in _collectives(order):
        _chain(op, order, mesh, bit_exact)
    _distinct(order, mesh, bit_exact)
    reductions = [op for op in _collectives(order) if op.name == "dist.all_reduce"]
    merge_small(
        [op for op in reductions if not (bit_exact and _rounds(op))], order, mesh, max_bytes
    )


def _collectives(order: BlockOrder) -> list[ir.Operation]:
    return [op for op in order.ops if op is not None and op.name in BLOCKWISE]


def _rounds(op: ir.Operation) -> bool:
    """Tell whether the last bits of an all_reduce depend on the order of the members."""
    return rounds(op.attributes["kind"].value, op.results[0].type.element_type)


def _distinct(order: BlockOrder, mesh: Mesh, bit_exact: bool) -> None:
    """Let the first of equal ops serve all, and those in a group of one hand on their operand."""
    known: dict[ir.Value, ir.Value] = {}
    for op in _collectives(order):
        operand, result = op.operands[0], op.results[0]
        if mesh.axis_count(axes_of(op)) == 1 and operand.type == result.type:
            order.replace(op, operand)
            continue
        key = (op.name, operand, result.type, *_meaning(op, mesh, bit_exact))
        if key in known:
            order.replace(op, known[key].results[0])
        else:
            known[key] = op


def _meaning(op: ir.Operation, mesh: Mesh, bit_exact: bool) -> tuple[Hashable, ...]:
    """Return what an op does besides its name: the order of its members only where it matters."""
    free = op.name == "dist.all_reduce" and not (bit_exact and _rounds(op))
    axes = (group_of if free else merge_axes)(mesh, axes_of(op))
    return axes, *((name, op.attributes[name]) for name in sorted(op.attributes) if name != "axes")


def _chain(op: ir.Operation, order: BlockOrder, mesh: Mesh, bit_exact: bool) -> None:
    """Fuse `op` and what it reads, as often as possible."""
    while True:
        inner = op.operands[0].owner
        if isinstance(inner, ir.Block):
            return
        inner = inner.operation
        if inner.name not in BLOCKWISE or inner.block != op.block:
            return
        alone = use_count(inner.results[0]) == 1
        fused = CollectivePair(inner, op, alone, mesh, bit_exact).fused()
        if fused is None or (fused.grows and not order.only_views(inner, op)):
            return
        value = inner.operands[0]
        if fused.name is None:
            order.replace(op, value)
            if alone:
                order.erase(inner)
            return
        place = op if fused.grows else inner
        b = OpBuilder(ir.InsertionPoint(place), op.location)
        made = b.op(fused.name, [op.results[0].type], [value], **fused.attributes)
        order.put(made, place)
        order.replace(op, made.results[0])
        order.erase(inner)
        op = made
