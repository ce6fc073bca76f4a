"""Find what comes first in order of what ranks have: each finds its own, all gather these, and find the first of them.

top_k(x)   =   top_k of the ranks' top_k, and where these lie in the whole
sort(x)    =   the ranks' sorts, merged
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.dialects.dist import axes_attr
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, tensor_type
from meshweave.ir.sorting import Order, order, taken
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local, axis_index
from meshweave.transforms.partitioning.place import CutDim, GlobalIndex


def fix_order(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Let an order whose types are local, of a dim that is cut evenly, be that of the elements of all ranks."""
    keys, dim, layout = op.operands[0], op.attributes["dim"].value, operands[0]
    axes = layout.axes_of(dim) if layout is not None else ()
    ranks = local.mesh.axis_count(axes)
    if ranks == 1:
        return
    b, how, size = OpBuilder.before(op), Order.of(op), keys.type.shape[dim]
    count = op.results[0].type.shape[dim]
    own = order(b, keys, dim, min(count, size), how)
    best = _gathered(b, taken(b, keys, own, dim), axes, ranks, dim)
    places = _gathered(b, _in_whole(b, own, axes, size), axes, ranks, dim)
    made = taken(b, places, order(b, best, dim, count, how), dim)
    local.replace(op, [made])


def fix_sort(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Let a sort whose types are local, of a dim that is cut, put in order what all ranks have: each gets its part.

    Each puts its own in order, and they merge that.
    """
    dim, layout = op.attributes["dim"].value, operands[0]
    axes = layout.axes_of(dim) if layout is not None else ()
    if local.mesh.axis_count(axes) == 1:
        return
    b, how, values = OpBuilder.before(op), Order.of(op), list(op.operands)
    assert layout is not None
    places, size = op.results[-1], values[0].type.shape[dim]
    whole = local.uneven.get(values[0], tuple(values[0].type.shape))[dim]
    if values[0] in local.uneven and whole != size * local.mesh.axis_count(axes):
        end = GlobalIndex.of(b, CutDim.of(layout, dim, whole), local)
        values[0] = _padded_last(b, values[0], dim, end, how)
    if size == 1:
        own, moved = b.fill(b.integer(0, places.type.element_type), places.type), values
    else:
        own = order(b, values[0], dim, size, how)
        moved = [taken(b, value, own, dim) for value in values]
    if any(True for _ in places.uses):
        moved = [*moved, _in_whole(b, own, axes, size)]
    ends = {"axes": axes_attr(axes), "dim": i64(dim), **how.attributes}
    made = list(b.op("dist.merge", [v.type for v in moved], moved, **ends).results)
    made = [*made, own] if len(made) == len(values) else made
    local.replace(op, made)


def _padded_last(b: OpBuilder, keys: ir.Value, dim: int, end: GlobalIndex, how: Order) -> ir.Value:
    """Return keys with numbers in the place of padding that no other comes behind: of equal ones it is the last."""
    last = how.last(b, keys.type.element_type)

    def body(inner: OpBuilder, arguments: list[ir.Value]) -> ir.Value:
        return inner.select(end.inside(inner, inner.loop_index(dim)), arguments[0], last)

    return b.elementwise([keys], b.empty(keys.type), body)


def _in_whole(b: OpBuilder, places: ir.Value, axes: Sequence[str], size: int) -> ir.Value:
    """Return where places of a rank lie in the whole dim. size: of the rank's part of it."""
    begin = b.binary("muli", axis_index(b, axes), b.index(size))
    kind = places.type.element_type
    first = b.one("arith.index_cast", kind, begin)

    def body(inner: OpBuilder, arguments: list[ir.Value]) -> ir.Value:
        return inner.binary("addi", arguments[0], first)

    return b.elementwise([places], b.empty(places.type), body)


def _gathered(b: OpBuilder, value: ir.Value, axes: Sequence[str], ranks: int, dim: int) -> ir.Value:
    """Return what all ranks have, side by side along a dim."""
    shape = list(value.type.shape)
    shape[dim] *= ranks
    type_ = tensor_type(shape, value.type.element_type)
    return b.one("dist.all_gather", type_, value, axes=axes_attr(axes), dim=i64(dim))
