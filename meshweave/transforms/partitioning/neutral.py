"""Return neutral elements as attributes.

A reduction may meet them in padding, and all ranks but the first start from them.
"""

import math

from meshweave.ir.bindings import ir


def neutral_attr(kind: str, type_: ir.Type) -> ir.Attribute:
    """Return the element `e` with `reduce(kind, e, x) == x`, for a scalar type.

    Integers compare signed, i1 as 0 and 1.
    """
    if isinstance(type_, ir.IntegerType):
        width = type_.width
        lowest, highest = (0, 1) if width == 1 else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
        value = {"sum": 0, "avg": 0, "prod": 1, "max": lowest, "min": highest}[kind]
        return ir.IntegerAttr.get(type_, -1 if width == 1 and value == 1 else value)
    if isinstance(type_, ir.IndexType):
        return ir.IntegerAttr.get(
            type_, {"sum": 0, "avg": 0, "prod": 1, "max": -(1 << 63), "min": (1 << 63) - 1}[kind]
        )
    value = {"sum": 0.0, "avg": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[kind]
    return ir.FloatAttr.get(type_, value)
