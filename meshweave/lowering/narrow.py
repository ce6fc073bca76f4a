"""f64 to f16 and bf16, on either target: through f32, rounded to odd on the way, so that the second rounding is the
only one.

For CPUs LLVM calls a function of its runtime library, which is not there; for GPUs it rounds twice. Rounding to odd
keeps in the last bit whether anything was cut off [Boldo, Melquiond, Emulation of FMA and correctly rounded sums, IEEE
ToC 2008].
"""

from __future__ import annotations

from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.base import walk

_ONE, _OGT = 6, 2  # predicates of cmpf: ordered and not equal, ordered and greater


def round_once(function: Any) -> None:
    """Rewrite each arith.truncf from f64 to 16 bits in the bodies of a function's ops."""
    for op in walk(function):
        if op.name == "arith.truncf" and _is_long(op):
            op.operands[0] = _odd(op)


def _is_long(op: Any) -> bool:
    given, made = op.operands[0].type, op.results[0].type
    return isinstance(given, ir.F64Type) and isinstance(made, ir.F16Type | ir.BF16Type)


def _odd(op: Any) -> Any:
    """The operand as f32, rounded to odd."""
    i32, f32, f64 = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.F64Type.get()
    value, ip = op.operands[0], ir.InsertionPoint(op)

    def one(name: str, kind: Any, *operands: Any, **attributes: Any) -> Any:
        return ir.Operation.create(
            name, [kind], list(operands), attributes, loc=op.location, ip=ip
        ).result

    def compared(predicate: int, a: Any, b: Any) -> Any:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)
        return one("arith.cmpf", ir.IntegerType.get_signless(1), a, b, predicate=number)

    number = one("arith.constant", i32, value=ir.IntegerAttr.get(i32, 1))
    near = one("arith.truncf", f32, value)
    back = one("arith.extf", f64, near)
    bits = one("arith.bitcast", i32, near)
    # Away from zero it was rounded up: the number below it in size is one less in its bits.
    up = compared(_OGT, one("math.absf", f64, back), one("math.absf", f64, value))
    below = one("arith.select", i32, up, one("arith.subi", i32, bits, number), bits)
    odd = one("arith.ori", i32, below, number)
    kept = one("arith.select", i32, compared(_ONE, back, value), odd, bits)
    return one("arith.bitcast", f32, kept)
