"""Replace ops of scalars in the text of kernels by code that can be vectorised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.expressions import EXACT
from meshweave.ir.ops import Ops, ops_by_name, producer, replace_op
from meshweave.lowering.buffers.bufferize import run_passes
from meshweave.lowering.cpu.mathpoly import angle, error, exponential, logarithm, power, quotient
from meshweave.lowering.cpu.mathpoly.floats import Floats
from meshweave.lowering.cpu.mathpoly.guard import LIBRARY, guard_loops
from meshweave.lowering.cpu.mathpoly.signs import SIGNS, sign_as_bits
from meshweave.transforms.kernels.kernel_patterns import FALLING

Function: TypeAlias = Callable[..., ir.Value]

FUNCTIONS: dict[str, Function] = {
    "math.atan": angle.atan,
    "math.atan2": angle.atan2,
    "math.cos": angle.cos,
    "math.cosh": exponential.cosh,
    "math.erf": error.erf,
    "math.exp": exponential.exp,
    "math.exp2": exponential.exp2,
    "math.expm1": exponential.expm1,
    "math.log": logarithm.log,
    "math.log1p": logarithm.log1p,
    "math.log2": logarithm.log2,
    "math.powf": power.powf,
    "math.rsqrt": power.rsqrt,
    "math.sin": angle.sin,
    "math.sinh": exponential.sinh,
    "math.tan": angle.tan,
    "math.tanh": exponential.tanh,
    "arith.remf": quotient.remainder,
}
"""What computes an op of numbers, of f32 or f64."""

LIMITED: dict[str, Function] = {
    "math.cos": angle.too_large,
    "math.sin": angle.too_large,
    "math.tan": angle.too_large,
    "arith.remf": quotient.too_many,
}
"""What tells where such a function must not be used."""

ALWAYS = ("math.rsqrt", "arith.remf")
"""Ops that are replaced even where the program is computed as written: the C library lacks one, the other is exact."""

CALLED = ("math.expm1", "math.log1p")
"""What MLIR would write as exp(x) - 1 and log(1 + x), which lose small x: the C library's own are called."""

DIVISIONS: dict[str, tuple[Function, bool]] = {
    "arith.divsi": (quotient.divided, True),
    "arith.divui": (quotient.divided, False),
    "arith.remsi": (quotient.left, True),
    "arith.remui": (quotient.left, False),
}


def replace_functions(module: ir.Module) -> None:
    """Replace these functions of f64, f32, f16 and bf16 numbers, and quotients of integers, everywhere in `module`.

    Signs of f16 and bf16 are changed as bits. Ops that are computed as written go to the C library, except `ALWAYS`.
    """
    ops = ops_by_name(module, FUNCTIONS)
    if _replaced(ops, LIMITED):
        run_passes(module, "builtin.module(cse)")  # the same address is the same value
        guard_loops(module, _replaced(ops_by_name(module, LIMITED), LIMITED), _outside)
        ops = ops_by_name(module, FUNCTIONS)
    for op in _replaced(ops, FUNCTIONS):
        if LIBRARY in op.attributes:
            del op.attributes[LIBRARY]
        else:
            _replace(op)
    ops = ops_by_name(module, (*SIGNS, *CALLED, *DIVISIONS))
    for name in SIGNS:
        for op in ops.get(name, ()):
            sign_as_bits(op)
    declared: set[str] = set()
    for name in CALLED:
        for op in ops.get(name, ()):
            _call(module, op, declared)
    for name, (function, signed) in DIVISIONS.items():
        for op in filter(_is_divided, ops.get(name, ())):
            with ir.InsertionPoint(op), op.location:
                replace_op(op, [function(*op.operands, signed)])


def _replaced(ops: Ops, names: Collection[str]) -> list[ir.Operation]:
    """Return those of `ops` of these names, of numbers of known types, that are not to be computed as written."""
    kinds = ir.F64Type | ir.F32Type | ir.F16Type | ir.BF16Type
    return [
        op
        for name in names
        for op in ops.get(name, ())
        if isinstance(op.results[0].type, kinds)
        and (EXACT not in op.attributes or op.name in ALWAYS)
    ]


def _is_divided(op: ir.Operation) -> bool:
    """Tell whether an op divides integers of up to 32 bits by what is not known now."""
    width = getattr(op.results[0].type, "width", 64)
    divisor = producer(op.operands[1])
    return 1 < width <= 32 and (divisor is None or divisor.name != "arith.constant")


def _call(module: ir.Module, op: ir.Operation, declared: set[str]) -> None:
    """Let the C library's function do an op on scalars. declared: the names that the module has."""
    type_ = op.results[0].type
    wide = type_ if isinstance(type_, ir.F64Type) else ir.F32Type.get()
    name = op.name.removeprefix("math.") + ("" if isinstance(type_, ir.F64Type) else "f")
    if name not in declared:
        head = OpBuilder(ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown())
        head.op(
            "func.func",
            regions=1,
            sym_name=ir.StringAttr.get(name),
            function_type=ir.TypeAttr.get(ir.FunctionType.get([wide], [wide])),
            sym_visibility=ir.StringAttr.get("private"),
            **{"llvm.readnone": ir.UnitAttr.get()},  # it reads and writes no memory
        )
        declared.add(name)
    b, x = OpBuilder.before(op), op.operands[0]
    x = x if type_ == wide else b.one("arith.extf", wide, x)
    y = b.one("func.call", wide, x, callee=ir.FlatSymbolRefAttr.get(name))
    replace_op(op, [y if type_ == wide else b.one("arith.truncf", type_, y)])


def _replace(op: ir.Operation) -> None:
    """Compute an op by its function."""
    type_ = op.results[0].type
    with ir.InsertionPoint(op), op.location:
        b, operands = _widened(op.operands)
        function = exponential.exp_falling if _falls(op) else FUNCTIONS[op.name]
        y = function(b, *operands)
        y = y if y.type == type_ else arith.truncf(type_, y)
    replace_op(op, [y])


def _falls(op: ir.Operation) -> bool:
    """Tell whether an op is the exponential of f32 numbers, or shorter ones, that are at most 0."""
    return FALLING in op.attributes and not isinstance(op.results[0].type, ir.F64Type)


def _outside(op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value:
    """Tell whether an op may not be replaced where its operands are these."""
    b, wide = _widened(operands)
    return LIMITED[op.name](b, *wide)


def _widened(operands: Sequence[ir.Value]) -> tuple[Floats, list[ir.Value]]:
    """Return f64 and f32 numbers as they are, and shorter ones as f32."""
    b = Floats(64 if isinstance(operands[0].type, ir.F64Type) else 32)
    return b, [v if v.type == b.type else arith.extf(b.type, v) for v in operands]
