"""Cut a scatter over ranks: each makes the updates that it has, at those places that lie in its part.

indices of loops count as in the whole dim, places from where the rank's part of the tensor begins; what lies
beyond the end of a loop that is reduced is no update
"""

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import body_of, terminator
from meshweave.ir.scatters import Scatter
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local, axis_index
from meshweave.transforms.partitioning.ops import LocalLoop
from meshweave.transforms.partitioning.place import GlobalIndex


def fix_scatter(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Let a scatter whose types are local count as ranks do."""
    what = Scatter(op)
    loops = _loops(what, operands, local)
    b, end = OpBuilder.before(op), terminator(body_of(op))
    _shift_indices(what, loops, b, local)
    inner = OpBuilder.before(end)
    for number, loop in enumerate(loops):
        if number not in what.to and loop.cut is not None and loop.ragged(local):
            holds = GlobalIndex.of(b, loop.cut, local).inside(inner, body_of(op).arguments[number])
            end.operands[0] = inner.binary("andi", end.operands[0], holds)
    layout, shape = operands[-1], op.results[0].type.shape
    for number, dim in what.dims.items():
        axes = layout.axes_of(dim) if layout is not None else ()
        if axes:
            begin = b.binary("muli", axis_index(b, axes), b.index(shape[dim]))
            end.operands[1 + number] = inner.binary("subi", end.operands[1 + number], begin)


def _loops(what: Scatter, operands: Sequence[Layout | None], local: Local) -> list[LocalLoop]:
    """Return what each loop is on a rank."""
    loops = [LocalLoop() for _ in what.sizes]
    for value, row, layout in zip(what.inputs, what.rows, operands):
        for d, number in enumerate(row):
            if layout is not None:
                loops[number].see(value, layout, d, local)
    return loops


def _shift_indices(what: Scatter, loops: Sequence[LocalLoop], b: OpBuilder, local: Local) -> None:
    """Let each index of a loop that is cut, and is read, count as in the whole dim."""
    block = body_of(what.op)
    for number, loop in enumerate(loops):
        index = block.arguments[number]
        readers = [(use.owner, use.operand_number) for use in index.uses]
        if loop.cut is None or not readers:
            continue
        place = GlobalIndex.of(b, loop.cut, local)
        first = OpBuilder(ir.InsertionPoint.at_block_begin(block), what.op.location)
        shifted = place.whole(first, index)
        for reader, operand in readers:
            reader.operands[operand] = shifted
