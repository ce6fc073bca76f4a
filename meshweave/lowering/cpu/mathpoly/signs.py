"""Change signs of f16 and bf16 as bits: in f32 they would be lengthened, rounded, and lose what a NaN says."""

from __future__ import annotations

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import replace_op

SIGNS = ("math.absf", "math.copysign", "arith.negf")
SIGN, SIZE = -(1 << 15), (1 << 15) - 1


def sign_as_bits(op: ir.Operation) -> None:
    """Replace one of `SIGNS`, of numbers of 16 bits, by what it does to their bits; others stay."""
    (result,) = op.results
    if not isinstance(result.type, ir.F16Type | ir.BF16Type):
        return
    i16, b = ir.IntegerType.get_signless(16), OpBuilder.before(op)
    bits = [b.one("arith.bitcast", i16, operand) for operand in op.operands]
    if op.name == "arith.negf":
        made = b.binary("xori", bits[0], b.integer(SIGN, i16))
    else:
        made = b.binary("andi", bits[0], b.integer(SIZE, i16))
    if op.name == "math.copysign":
        made = b.binary("ori", made, b.binary("andi", bits[1], b.integer(SIGN, i16)))
    replace_op(op, [b.one("arith.bitcast", result.type, made)])
