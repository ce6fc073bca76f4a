"""Read optimization barriers, as jax.checkpoint leaves them, as the wish to compute again what is behind them.

before:  b = f(a);  c, d = optimization_barrier(a, e);  g = f(c);  h = k(g, d)
after:   b = f(a);  g = f(a) {hint.again = 1};  h = k(g, e)

Without the barrier `g` would be `b`, kept from there on. A barrier behind which nothing comes again binds nothing.
"""

from math import prod

from meshweave.dialects.again import AGAIN, Repeats
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.locations import location_text
from meshweave.ir.ops import Ops, body_of, ops_where, replace_op

BARRIER = "again.barrier"
"""What stands for a barrier on one value until all is lowered: no pass of upstream knows it."""

SMALL = 256
"""What has no more elements than one part of so many of the largest value is kept."""


def lower_barrier(op: ir.Operation) -> None:
    """Put a barrier on each tensor; elements are computed again anyway."""
    b = OpBuilder.before(op)
    values = [
        b.one(BARRIER, v.type, v) if len(getattr(v.type, "shape", ())) else v for v in op.operands
    ]
    replace_op(op, values)


def _elements(op: ir.Operation) -> int:
    """Count the elements that an op makes."""
    return sum(prod(getattr(v.type, "shape", ())) for v in op.results)


def mark_copies(main: ir.Operation, ops: Ops) -> bool:
    """Mark what is computed again behind barriers, and take these off; tell whether there were any.

    ops: those of `main`.
    """
    barriers = ops.get(BARRIER, ())
    if not barriers:
        return False
    found = Repeats(BARRIER)
    found.read(body_of(main), {})
    least = max(map(_elements, ops_where(main, lambda op: True))) // SMALL
    copies = [(op, copy) for op, copy in found.copies if _elements(op) > least]
    for op, copy in copies:
        op.attributes[AGAIN] = i64(copy)
    if copies:
        main.attributes[AGAIN] = ir.StringAttr.get(location_text(barriers[0]))
    for op in barriers:
        replace_op(op, [op.operands[0]])
    return True


LOWER = {"stablehlo.optimization_barrier": lower_barrier}
