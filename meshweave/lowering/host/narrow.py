"""Convert between f64, integers, f16 and bf16 on either target: through f32, rounded to odd where it is shortened.

So only one rounding counts. LLVM rounds twice for GPUs, and for CPUs that have no such instruction it calls a function
of its runtime library, which is not there. Rounding to odd keeps in the last bit whether anything was cut off [Boldo,
Melquiond, Emulation of FMA and correctly rounded sums, IEEE ToC 2008]. LLVM compares a bf16 that was made an f64 as a
bf16, and calls that library too.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import producer


def round_once(ops: Iterable[ir.Operation]) -> None:
    """Rewrite each op of a function that makes 16 bits of f64 or of an integer, or f64 of bf16."""
    for op in ops:
        if op.name == "arith.extf" and _is_longest(op):
            f32 = OpBuilder.before(op).one("arith.extf", ir.F32Type.get(), op.operands[0])
            op.operands[0] = f32
        if op.name in _FROM_INTEGER and _is_short(op):
            op = _through_float(op)
        if (
            op.name == "arith.truncf"
            and _is_short(op)
            and isinstance(op.operands[0].type, ir.F64Type)
        ):
            op.operands[0] = _odd(op)


def _is_longest(op: ir.Operation) -> bool:
    """Tell whether an op makes a bf16 an f64."""
    types = op.operands[0].type, op.results[0].type
    return isinstance(types[0], ir.BF16Type) and isinstance(types[1], ir.F64Type)


_FROM_INTEGER = ("arith.sitofp", "arith.uitofp")
CONVERSIONS = (*_FROM_INTEGER, "arith.truncf")


def _is_short(op: ir.Operation) -> bool:
    return isinstance(op.results[0].type, ir.F16Type | ir.BF16Type)


def _through_float(op: ir.Operation) -> ir.Operation:
    """Convert an integer to a float that holds it (an i64 beyond 2^53 nearly), and return the op that shortens this."""
    (value,), (old,) = op.operands, op.results
    width, b = ir.IntegerType(value.type).width, OpBuilder.before(op)
    if width > 8:
        new = b.one("arith.truncf", old.type, b.one(op.name, ir.F64Type.get(), value))
    elif isinstance(old.type, ir.BF16Type):  # exact: nothing is cut off that is not 0
        i16, i32 = (ir.IntegerType.get_signless(n) for n in (16, 32))
        bits = b.one("arith.bitcast", i32, b.one(op.name, ir.F32Type.get(), value))
        high = b.binary("shrui", bits, b.integer(16, i32))
        new = b.one("arith.bitcast", old.type, b.one("arith.trunci", i16, high))
    else:
        return op
    old.replace_all_uses_with(new)
    op.erase()
    return producer(new)


def _odd(op: ir.Operation) -> ir.Value:
    """Return the operand as f32, rounded to odd."""
    i32, f32, f64 = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.F64Type.get()
    value, b = op.operands[0], OpBuilder.before(op)
    one = b.integer(1, i32)
    near = b.one("arith.truncf", f32, value)
    back = b.one("arith.extf", f64, near)
    bits = b.one("arith.bitcast", i32, near)
    # Away from zero it was rounded up: the number below it in size is one less in its bits.
    sizes = b.one("math.absf", f64, back), b.one("math.absf", f64, value)
    up = b.compare(arith.CmpFPredicate.OGT, *sizes)
    below = b.select(up, b.binary("subi", bits, one), bits)
    odd = b.binary("ori", below, one)
    kept = b.select(b.compare(arith.CmpFPredicate.ONE, back, value), odd, bits)
    return b.one("arith.bitcast", f32, kept)
