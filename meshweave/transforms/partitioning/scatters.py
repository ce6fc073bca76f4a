"""Cut a scatter over ranks: each makes the updates that it has, at those places that lie in its part.

indices of loops count from where the rank's block begins, places from where its part of the tensor does; what lies
beyond the end of a loop that is reduced is no update
"""

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import body_of, terminator
from meshweave.ir.scatters import Scatter
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local, block_offset
from meshweave.transforms.partitioning.ops import Block, LocalLoop


def fix_scatter(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Let a scatter whose types are local count as ranks do."""
    what = Scatter(op)
    loops = _loops(what, operands, local)
    b, end = OpBuilder.before(op), terminator(body_of(op))
    _shift_indices(what, loops, b)
    inner = OpBuilder.before(end)
    for number, loop in enumerate(loops):
        if number not in what.to and loop.ragged(local):
            bound = Block.of(b, loop.axes, loop.local, loop.whole)
            holds = bound.inside(inner, body_of(op).arguments[number])
            end.operands[0] = inner.binary("andi", end.operands[0], holds)
    layout, shape = operands[-1], op.results[0].type.shape
    axes = layout.block_axes() if layout is not None else ()
    for number, dim in what.dims.items():
        if axes and axes[dim]:
            begin = block_offset(b, axes[dim], shape[dim])
            end.operands[1 + number] = inner.binary("subi", end.operands[1 + number], begin)


def _loops(what: Scatter, operands: Sequence[Layout | None], local: Local) -> list[LocalLoop]:
    """Return what each loop is on a rank."""
    loops = [LocalLoop() for _ in what.sizes]
    for value, row, layout in zip(what.inputs, what.rows, operands):
        axes, whole = layout.block_axes() if layout is not None else (), local.uneven.get(value)
        for d, number in enumerate(row):
            loop, size = loops[number], value.type.shape[d]
            loop.axes, loop.local = axes[d], size
            loop.whole = whole[d] if whole else size * local.mesh.axis_count(axes[d])
    return loops


def _shift_indices(what: Scatter, loops: Sequence[LocalLoop], b: OpBuilder) -> None:
    """Let each index of a loop that is cut, and is read, count from the beginning of the rank's block."""
    block = body_of(what.op)
    for number, loop in enumerate(loops):
        index = block.arguments[number]
        readers = [(use.owner, use.operand_number) for use in index.uses]
        if not loop.axes or not readers:
            continue
        begin = block_offset(b, loop.axes, loop.local)
        first = OpBuilder(ir.InsertionPoint.at_block_begin(block), what.op.location)
        shifted = first.binary("addi", index, begin)
        for reader, operand in readers:
            reader.operands[operand] = shifted
