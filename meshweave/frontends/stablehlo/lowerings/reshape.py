"""Write a reshape that both merges dims and takes some apart as two, group by group.

    4x8x8x16 -> 4x64x4x4   =   4x8x8x16 -> 4x64x16 -> 4x64x4x4

Upstream would put all elements in a row between them: no dim but the first could be cut then.
"""

import math
from functools import lru_cache

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.ops import replace_op


def lower_reshape(op: ir.Operation) -> None:
    """Put a tensor between a reshape's operand and its result with one dim for each group of theirs."""
    source, target = op.operands[0].type, op.results[0].type
    shapes = tuple(source.shape), tuple(target.shape)
    between = middle(*shapes)
    if between is None or between in shapes:
        return
    b, kind = OpBuilder.before(op), source.element_type
    merged = b.one("stablehlo.reshape", tensor_type(between, kind), op.operands[0])
    replace_op(op, [b.one("stablehlo.reshape", target, merged)])


@lru_cache(1024)
def middle(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the extents of the smallest groups of dims that have equally many elements on both sides.

    None where there is but one group, or nothing in the tensor.
    """
    if not source or not target or 0 in source:
        return None
    rest, found = [list(source), list(target)], list[int]()
    while all(rest):
        sides = [[row.pop(0)] for row in rest]
        while math.prod(sides[0]) != math.prod(sides[1]):
            k = int(math.prod(sides[0]) > math.prod(sides[1]))
            sides[k].append(rest[k].pop(0))
        found.append(math.prod(sides[0]))
    return tuple(found) if len(found) > 1 else None


LOWER = {"stablehlo.reshape": lower_reshape}
