"""Count how often a step runs an op: the trips of the loops around it, as far as they are numbers."""

from __future__ import annotations

from meshweave.ir.bindings import ir


def trips(loop: ir.Operation) -> int | None:
    """Return the trips of an scf.for; None where its bounds are not constants."""
    low, high, step = (_constant(v) for v in list(loop.operands)[:3])
    if low is None or high is None or not step or step < 0:
        return None
    return max(0, -(-(high - low) // step))


def trips_around(op: ir.Operation) -> int:
    """Return how often `op` runs each time its function does. A loop whose trips are not known counts once."""
    total = 1
    above = op.parent
    while above is not None and above.operation.name != "func.func":
        if above.operation.name == "scf.for":
            known = trips(above.operation)
            total *= 1 if known is None else known
        above = above.operation.parent
    return total


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    attr = owner.attributes["value"]
    return int(attr.value) if isinstance(attr, ir.IntegerAttr) else None
