"""Let ranks look up what they have of a tensor that is read at computed places: what another rank has counts nothing.

t[p]   =   sum over ranks of (p in this rank's block ? block[p - begin] : 0)
"""

from collections.abc import Sequence

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import terminator
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local
from meshweave.transforms.partitioning.place import CutDim, GlobalIndex
from meshweave.transforms.propagation.bodies import body_of, captured_by, found_dims, lookup


def fix_lookup(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Let a linalg op whose types are local read elements of the blocks that ranks have, and nothing else."""
    captured = captured_by(op)
    reader = lookup(op, body_of(op)) if captured else None
    for one, layout in zip(captured, operands[len(op.operands) :]):
        dims = found_dims(one, reader)
        cut = [d for d in dims if layout and local.mesh.axis_count(layout.axes_of(d)) > 1]
        if reader is not None and layout is not None and cut:
            _look_up(op, reader, dict.fromkeys(cut, layout), local)


def _look_up(op: ir.Operation, reader: ir.Operation, cut: dict[int, Layout], local: Local) -> None:
    """Read at places in the rank's block, along each dim that is cut."""
    b, tensor = OpBuilder.before(reader), reader.operands[0]
    held: ir.Value | None = None
    for dim, layout in cut.items():
        size, whole = tensor.type.shape[dim], local.uneven.get(tensor)
        ranks = local.mesh.axis_count(layout.axes_of(dim))
        end = whole[dim] if whole else size * ranks
        begin = GlobalIndex.of(OpBuilder.before(op), CutDim.of(layout, dim, end), local).offset
        place = b.binary("subi", reader.operands[dim + 1], begin)
        mine = b.compare(arith.CmpIPredicate.ult, place, b.index(size))
        reader.operands[dim + 1] = b.select(mine, place, b.index(0))
        held = mine if held is None else b.binary("andi", held, mine)
    end_of_body = terminator(op.regions[0].blocks[0])
    after = OpBuilder.before(end_of_body)
    nothing = after.constant(_nothing(reader.result.type))
    end_of_body.operands[0] = after.select(held, reader.result, nothing)


def _nothing(type_: ir.Type) -> ir.Attribute:
    """Return what adds nothing to a number, nor to a 0 with a sign."""
    if isinstance(type_, ir.FloatType):
        return ir.FloatAttr.get(type_, -0.0)
    return ir.IntegerAttr.get(type_, 0)
