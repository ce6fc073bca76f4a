"""Join what ranks have selected of their own elements: all gather it, and each selects of that.

argmax(x)   =   argmax of the ranks' pairs of a number and its place
"""

from collections.abc import Sequence

from meshweave.dialects.dist import axes_attr
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, Values, dims_map, i64, tensor_type
from meshweave.ir.selections import Selection
from meshweave.transforms.partitioning.local import Local


def join(op: ir.Operation, selects: Selection, axes: Sequence[str], local: Local) -> None:
    """Let a linalg op that selects, whose types are local, select of the elements of all ranks along `axes`."""
    b, members = OpBuilder.after(op), local.mesh.axis_count(axes)
    starts = list(op.operands)[len(op.operands) - len(op.results) :]
    uses = [[(u.owner.operation, u.operand_number) for u in result.uses] for result in op.results]
    gathered = [_gathered(b, result, axes, members) for result in op.results]
    ndim = len(op.results[0].type.shape)
    every, rest = dims_map(ndim + 1, range(ndim + 1)), dims_map(ndim + 1, range(1, ndim + 1))
    kinds = [IteratorType.REDUCTION, *[IteratorType.PARALLEL] * ndim]
    maps = [every] * len(gathered) + [rest] * len(gathered)

    def body(inner: OpBuilder, arguments: Values) -> Values:
        given, held = arguments[: len(gathered)], arguments[len(gathered) :]
        return selects.combine(inner, held, given)

    made = b.generic(gathered, starts, maps, kinds, body)
    for readers, value, old in zip(uses, made.results, op.results, strict=True):
        if old in local.uneven:
            local.uneven[value] = local.uneven[old]
        for reader, number in readers:
            reader.operands[number] = value


def _gathered(b: OpBuilder, value: ir.Value, axes: Sequence[str], members: int) -> ir.Value:
    """Return what the members have, side by side along a new first dim."""
    shape, element = list(value.type.shape), value.type.element_type
    groups = [[0, 1], *[[d] for d in range(2, len(shape) + 1)]] if shape else []
    one = b.expand_shape(value, tensor_type([1, *shape], element), groups)
    type_ = tensor_type([members, *shape], element)
    return b.one("dist.all_gather", type_, one, axes=axes_attr(axes), dim=i64(0))
