"""Let ops read dims from their end on: the last rank's block comes to the first one, which reads it backwards.

flip([a b | c d])   =   [flip(c d) | flip(a b)]
"""

from collections.abc import Sequence

from meshweave.dialects.dist import axes_attr
from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import OpBuilder, i64
from meshweave.layout.layout import Layout
from meshweave.transforms.partitioning.local import Local
from meshweave.transforms.propagation.rules.structured import coefficients


def turn(op: ir.Operation, operands: Sequence[Layout | None], local: Local) -> None:
    """Exchange blocks along dims that a linalg op, whose types are local, reads from their end on."""
    if op.name != "linalg.generic":
        return
    maps = [attr.value for attr in linalg.get_indexing_maps(op.opview)]
    made = [_turned(op, k, map_, operands[k], local) for k, map_ in enumerate(maps)]
    if made != maps:
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in made])


def _turned(
    op: ir.Operation, number: int, map_: ir.AffineMap, layout: Layout | None, local: Local
) -> ir.AffineMap:
    """Turn one operand; return the map by which it is read then."""
    exprs = list(map_.results)
    for dim, expr in enumerate(exprs):
        axes = layout.axes_of(dim) if layout is not None else ()
        members = local.mesh.axis_count(axes)
        if members == 1 or not isinstance(expr, ir.AffineAddExpr):
            continue
        value, size = op.operands[number], op.operands[number].type.shape[dim]
        loop = _loop(expr, size * members - 1)
        if loop is None:
            continue
        sources = ir.ArrayAttr.get([i64(k) for k in range(members - 1, -1, -1)])
        b = OpBuilder.before(op)
        op.operands[number] = b.one(
            "dist.permute", value.type, value, axes=axes_attr(axes), sources=sources
        )
        exprs[dim] = size - 1 - ir.AffineDimExpr.get(loop)
    return ir.AffineMap.get(map_.n_dims, 0, exprs)


def _loop(expr: ir.AffineExpr, last: int) -> int | None:
    """Return the loop that an expression counts down from `last`."""
    found = dict(coefficients(expr) or {})
    if found.pop(None, 0) != last or list(found.values()) != [-1]:
        return None
    return next(iter(found))
