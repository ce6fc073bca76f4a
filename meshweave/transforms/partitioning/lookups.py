"""Let ranks look up what they have of a tensor that is read at computed places: what another rank has counts nothing.

t[p]   =   sum over ranks of (this rank has p ? its part[p - begin] : 0)      in blocks
t[p]   =   sum over ranks of (p % 4 == x ? its part[p / 4] : 0)               in the cyclic layout [_*x], x=4

What is put at a computed place is put there by the rank that has it; the others put back what is there.
"""

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC, OpBuilder, static_offsets
from meshweave.ir.ops import terminator
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local
from meshweave.transforms.partitioning.place import CutDim, PlaceFinder
from meshweave.transforms.propagation.bodies import (
    body_of,
    captured_by,
    found_dims,
    is_tensor,
    lookup,
)


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
        finder = _finder(OpBuilder.before(op), tensor, dim, layout, local)
        mine, place = finder.find(b, reader.operands[dim + 1])
        reader.operands[dim + 1] = place
        held = mine if held is None else b.binary("andi", held, mine)
    end_of_body = terminator(op.regions[0].blocks[0])
    after = OpBuilder.before(end_of_body)
    nothing = after.constant(_nothing(reader.result.type))
    end_of_body.operands[0] = after.select(held, reader.result, nothing)


def look_up_slice(op: ir.Operation, layout: Layout, local: Local) -> list[int]:
    """Let a slice, whose types are local, read at computed places in the rank's block; return the dims of these."""
    b, tensor = OpBuilder.before(op), op.operands[0]
    held: ir.Value | None = None
    found = _moving(op, 1, layout, local)
    for dim, operand in found.items():
        finder = _finder(b, tensor, dim, layout, local)
        mine, op.operands[operand] = finder.find(b, op.operands[operand])
        held = mine if held is None else b.binary("andi", held, mine)
    if held is None:
        return []
    result, after = op.results[0], OpBuilder.after(op)
    readers = [(use.owner.operation, use.operand_number) for use in result.uses]
    nothing = after.constant(_nothing(result.type.element_type))
    made = _chosen(after, held, result, nothing)
    if result in local.uneven:
        local.uneven[made] = local.uneven[result]
    for reader, number in readers:
        reader.operands[number] = made
    return list(found)


def put_slice(op: ir.Operation, layout: Layout, local: Local) -> bool:
    """Let the rank that has the computed place of a slice put it there, the others what is there; tell whether it does.

    layout: of the tensor that it is put into. Along all other dims the slice is full.
    """
    b, into = OpBuilder.before(op), op.operands[1]
    for dim, operand in _moving(op, 2, layout, local).items():
        mine, place = _finder(b, into, dim, layout, local).find(b, op.operands[operand])
        op.operands[operand] = place
        value = op.operands[0]
        at = [place if d == dim else 0 for d in range(layout.ndim)]
        sizes = [1 if d == dim else n for d, n in enumerate(into.type.shape)]
        old = b.extract_slice(into, value.type, at, sizes)
        op.operands[0] = _chosen(b, mine, value, old)
        return True
    return False


def _moving(op: ir.Operation, first: int, layout: Layout, local: Local) -> dict[int, int]:
    """Return the dims that are cut and where a slice takes one index, each with the operand that says which."""
    moving = [d for d, offset in enumerate(static_offsets(op)) if offset == DYNAMIC]
    ranks = local.mesh.axis_count
    return {d: first + k for k, d in enumerate(moving) if ranks(layout.axes_of(d)) > 1}


def _finder(b: OpBuilder, tensor: ir.Value, dim: int, layout: Layout, local: Local) -> PlaceFinder:
    """Return what finds places along a dim of a tensor, whose type is local, in the rank's part."""
    size, whole = tensor.type.shape[dim], local.uneven.get(tensor)
    end = whole[dim] if whole else size * local.mesh.axis_count(layout.axes_of(dim))
    return PlaceFinder.of(b, CutDim.of(layout, dim, end), size, local)


def _chosen(b: OpBuilder, held: ir.Value, value: ir.Value, other: ir.Value) -> ir.Value:
    """Return a tensor where a condition holds, else another, or a number."""
    rest = [other] if is_tensor(other.type) else []

    def body(inner: OpBuilder, elements: list[ir.Value]) -> ir.Value:
        return inner.select(held, elements[0], elements[1] if rest else other)

    return b.elementwise([value, *rest], b.empty(value.type), body)


def _nothing(type_: ir.Type) -> ir.Attribute:
    """Return what adds nothing to a number, nor to a 0 with a sign."""
    if isinstance(type_, ir.FloatType):
        return ir.FloatAttr.get(type_, -0.0)
    return ir.IntegerAttr.get(type_, 0)
