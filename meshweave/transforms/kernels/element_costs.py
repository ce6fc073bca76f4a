"""Estimate what one element of a body costs to compute, in additions."""

from __future__ import annotations

from meshweave.ir.expressions import AnyNode, Apply, Body, Gather, Index

CHEAP = 3.0
"""Additions of an element that are rather repeated than stored."""

FUNCTION = 16
"""Additions that take as long as a function of many instructions, such as a sine."""

# Rough price of a scalar op in additions; what is not here costs 1 (arith) or 16 (math).
_COSTS = {
    "arith.divf": 4, "arith.divsi": 16, "arith.divui": 16, "arith.remf": 16, "arith.remsi": 16, "arith.remui": 16,
    "math.sqrt": 4, "math.rsqrt": 4, "math.absf": 1, "math.absi": 1, "math.fma": 1, "math.copysign": 1,
    "math.floor": 1, "math.ceil": 1, "math.roundeven": 1, "math.trunc": 1,
}  # fmt: skip


def cost(body: Body) -> int:
    """Estimate the price of one element in additions."""
    return sum(map(_node_cost, body.nodes))


def functions(body: Body) -> int:
    """Count the functions of an element that are many instructions each, such as a sine."""
    return sum(
        [
            _node_cost(n) >= FUNCTION and n.name.startswith("math.")
            for n in body.nodes
            if isinstance(n, Apply)
        ]
    )


def _node_cost(node: AnyNode) -> int:
    if isinstance(node, Apply):
        known = _COSTS.get(node.name)
        return known if known is not None else FUNCTION if node.name.startswith("math.") else 1
    return 4 if isinstance(node, Gather) else int(isinstance(node, Index))
