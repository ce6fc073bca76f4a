"""Compute exp, exp2, expm1, log, log1p, tanh, erf and rsqrt in f32 as polynomials that LLVM's loop vectoriser can use.

f16 and bf16 are computed in f32; f64 and everything else goes to the C library. NaN goes through,
infinities and denormals are right; errors are at most about 5 units in the last place
(tests/lowering/test_mathpoly.py holds them to that). Coefficients: exp, log [Moshier, Cephes
Mathematical Library, 1992]; tanh, erf: rational minimax approximations on the range where the
function is not yet constant in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshweave.ir.bindings import arith, ir, math
from meshweave.ir.build import OpBuilder
from meshweave.ir.expressions import EXACT
from meshweave.ir.ops import ops_named, replace_op
from meshweave.transforms.kernels.kernel_patterns import FALLING

_P = arith.CmpFPredicate
_INFINITY = float("inf")


class F32:
    """Build expressions on f32 numbers at the current insertion point."""

    def __init__(self) -> None:
        self.type = ir.F32Type.get()
        self.integer = ir.IntegerType.get_signless(32)
        self._contract = ir.Attribute.parse("#arith.fastmath<contract>")

    def number(self, value: float) -> ir.Value:
        """Make an f32 constant."""
        return arith.constant(self.type, ir.FloatAttr.get(self.type, value))

    def bits(self, value: int) -> ir.Value:
        """Make an i32 constant."""
        return arith.constant(self.integer, ir.IntegerAttr.get(self.integer, value))

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Compute a + b."""
        return arith.addf(a, b, fastmath=self._contract)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Compute a - b."""
        return arith.subf(a, b, fastmath=self._contract)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Compute a * b."""
        return arith.mulf(a, b, fastmath=self._contract)

    def poly(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Compute the polynomial with these coefficients, highest power first."""
        result = self.number(coefficients[0])
        for c in coefficients[1:]:
            result = math.fma(result, x, self.number(c))
        return result

    def select(
        self, predicate: arith.CmpFPredicate, a: ir.Value, b: ir.Value, yes: ir.Value, no: ir.Value
    ) -> ir.Value:
        """Take `yes` where the comparison of a and b holds, else `no`."""
        return arith.select(arith.cmpf(predicate, a, b), yes, no)

    def clamp(self, x: ir.Value, low: float, high: float) -> ir.Value:
        """Limit x to [low, high]; NaN stays NaN."""
        lowest, highest = self.number(low), self.number(high)
        return self.select(_P.OGT, x, highest, highest, self.select(_P.OLT, x, lowest, lowest, x))

    def whole(self, n: ir.Value) -> ir.Value:
        """Convert a whole number of at most 2^21 to i32: its last bits once 1.5 * 2^23 is added.

        A NaN becomes some number, where arith.fptosi would give poison that spreads.
        """
        moved = arith.addf(n, self.number(12582912.0))
        return arith.subi(arith.bitcast(self.integer, moved), self.bits(0x4B400000))

    def power_of_two(self, n: ir.Value) -> ir.Value:
        """Compute 2^n for an i32 n in -126..127."""
        return arith.bitcast(self.type, arith.shli(arith.addi(n, self.bits(127)), self.bits(23)))


_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_TANH_P = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
           1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)  # fmt: skip
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
          -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_ERF_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
          -1.42647390514189e-02)  # fmt: skip
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


def _scaled_exp(b: F32, x: ir.Value, base: int) -> ir.Value:
    """Compute e^x or 2^x: 2^n times a polynomial of the remainder.

    n is split in two so that neither power overflows.
    """
    high, low = (128.0, -150.0) if base == 2 else (88.72284, -103.9721)
    inside = b.clamp(x, low, high)
    if base == 2:
        n = math.roundeven(inside)
        rest = b.mul(b.sub(inside, n), b.number(0.6931471805599453))
    else:
        n = math.roundeven(b.mul(inside, b.number(1.44269504088896341)))
        rest = math.fma(n, b.number(-0.693359375), inside)
        rest = math.fma(n, b.number(2.12194440e-4), rest)
    y = b.add(math.fma(b.poly(rest, _EXP), b.mul(rest, rest), rest), b.number(1.0))
    power = b.whole(n)
    half = arith.shrsi(power, b.bits(1))
    y = b.mul(b.mul(y, b.power_of_two(half)), b.power_of_two(arith.subi(power, half)))
    y = b.select(_P.OLT, x, b.number(low), b.number(0.0), y)
    end = _P.OGE if base == 2 else _P.OGT
    return b.select(end, x, b.number(high), b.number(_INFINITY), y)


def exp(b: F32, x: ir.Value) -> ir.Value:
    """Compute e^x."""
    return _scaled_exp(b, x, 0)


def exp_falling(b: F32, x: ir.Value) -> ir.Value:
    """Compute e^x for an x that is at most 0: nothing overflows, and what would be denormal is 0.

    n = round(x log2 e) is the sum's last bits where 1.5 * 2^23 is added: with 127 more, n as an exponent is a shift
    away. No n is out of range: what it is of x below the least, and of NaN, counts for nothing.
    """
    low, shift = -87.33654, 12582912.0 + 127.0
    moved = math.fma(x, b.number(1.44269504088896341), b.number(shift))
    n = arith.subf(moved, b.number(shift))
    rest = math.fma(n, b.number(-0.693359375), x)
    rest = math.fma(n, b.number(2.12194440e-4), rest)
    y = b.add(math.fma(b.poly(rest, _EXP), b.mul(rest, rest), rest), b.number(1.0))
    power = arith.bitcast(b.type, arith.shli(arith.bitcast(b.integer, moved), b.bits(23)))
    return b.select(_P.OLT, x, b.number(low), b.number(0.0), b.mul(y, power))


def exp2(b: F32, x: ir.Value) -> ir.Value:
    """Compute 2^x."""
    return _scaled_exp(b, x, 2)


def tanh(b: F32, x: ir.Value) -> ir.Value:
    """Compute the hyperbolic tangent: x where |x| is small, what is nearest to it, +-1, from 9.011 on.

    Derivatives need that, 1 - tanh^2: what is left of it where it should be 0 may be multiplied by much.
    """
    inside = b.clamp(x, -7.90531110763549805, 7.90531110763549805)
    square = b.mul(inside, inside)
    y = arith.divf(b.mul(inside, b.poly(square, _TANH_P)), b.poly(square, _TANH_Q))
    y = b.select(_P.OGE, math.absf(x), b.number(9.011), math.copysign(b.number(1.0), x), y)
    return b.select(_P.OLT, math.absf(x), b.number(0.0004), x, y)


def erf(b: F32, x: ir.Value) -> ir.Value:
    """Compute the error function, +-1 from 4 on."""
    inside = b.clamp(x, -4.0, 4.0)
    square = b.mul(inside, inside)
    y = arith.divf(b.mul(inside, b.poly(square, _ERF_P)), b.poly(square, _ERF_Q))
    slope = b.mul(
        x, b.number(1.1283791670955126)
    )  # 2 / sqrt(pi); exact enough, and right for denormals
    return b.select(_P.OLT, math.absf(x), b.number(2e-4), slope, y)


def log(b: F32, x: ir.Value) -> ir.Value:
    """Compute the natural logarithm: -inf at 0, NaN below; denormals are scaled by 2^25 first."""
    tiny = arith.cmpf(_P.OLT, x, b.number(1.17549435e-38))
    pattern = arith.bitcast(b.integer, arith.select(tiny, b.mul(x, b.number(33554432.0)), x))
    bias = arith.select(tiny, b.bits(151), b.bits(126))
    e = arith.sitofp(b.type, arith.subi(arith.shrui(pattern, b.bits(23)), bias))
    mantissa = arith.ori(arith.andi(pattern, b.bits(0x007FFFFF)), b.bits(0x3F000000))
    m = arith.bitcast(b.type, mantissa)
    small = arith.cmpf(_P.OLT, m, b.number(0.707106781186547524))
    e = arith.select(small, b.sub(e, b.number(1.0)), e)
    m = b.sub(arith.select(small, b.add(m, m), m), b.number(1.0))
    square = b.mul(m, m)
    y = b.mul(b.mul(b.poly(m, _LOG), m), square)
    y = math.fma(e, b.number(-2.12194440e-4), y)
    y = math.fma(square, b.number(-0.5), y)
    y = math.fma(e, b.number(0.693359375), b.add(m, y))
    y = b.select(_P.OEQ, x, b.number(0.0), b.number(-_INFINITY), y)
    y = b.select(_P.OEQ, x, b.number(_INFINITY), x, y)
    return b.select(_P.ULT, x, b.number(0.0), b.number(float("nan")), y)


def log1p(b: F32, x: ir.Value) -> ir.Value:
    """Compute log(1 + x) without losing small x: log(u) (x / (u - 1)) for u = 1 + x as it rounds."""
    u = arith.addf(x, b.number(1.0))
    d = arith.subf(u, b.number(1.0))
    y = arith.mulf(log(b, u), arith.divf(x, d))
    y = b.select(_P.OEQ, d, b.number(0.0), x, y)
    return b.select(_P.OEQ, x, b.number(_INFINITY), x, y)


def expm1(b: F32, x: ir.Value) -> ir.Value:
    """Compute e^x - 1 without losing small x: 2 t / (1 - t) for t = tanh(x / 2)."""
    large = b.sub(exp(b, x), b.number(1.0))
    t = tanh(b, b.mul(x, b.number(0.5)))
    small = arith.divf(b.add(t, t), b.sub(b.number(1.0), t))
    return b.select(_P.OLT, math.absf(x), b.number(1.0), small, large)


def rsqrt(b: F32, x: ir.Value) -> ir.Value:
    """Compute 1 / sqrt(x)."""
    return arith.divf(b.number(1.0), math.sqrt(x))


FUNCTIONS: dict[str, Callable[[F32, Any], Any]] = {
    f"math.{f.__name__}": f for f in (exp, exp2, expm1, log, log1p, tanh, erf, rsqrt)
}


CALLED = ("math.expm1", "math.log1p")
"""What MLIR would write as exp(x) - 1 and log(1 + x), which lose small x: the C library's own are called."""


def run(module: ir.Module) -> None:
    """Replace these functions on f32, f16 and bf16 numbers everywhere in `module`.

    Ops that are computed as written go to the C library, except rsqrt, which it lacks.
    """
    declared: set[str] = set()
    for op in ops_named(module, *FUNCTIONS):
        exact = EXACT in op.attributes
        if op.name in CALLED and (exact or isinstance(op.results[0].type, ir.F64Type)):
            _call(module, op, declared)
        elif not exact or op.name == "math.rsqrt":
            _replace(op)


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
    """Compute an op by its polynomial; in f64 only rsqrt, as the C library has the others."""
    type_, x = op.results[0].type, op.operands[0]
    with ir.InsertionPoint(op), op.location:
        if isinstance(type_, ir.F64Type):
            if op.name != "math.rsqrt":
                return
            y = arith.divf(arith.constant(type_, ir.FloatAttr.get(type_, 1.0)), math.sqrt(x))
        elif isinstance(type_, ir.F32Type):
            y = _function(op)(F32(), x)
        elif isinstance(type_, ir.F16Type | ir.BF16Type):
            b = F32()
            y = arith.truncf(type_, _function(op)(b, arith.extf(b.type, x)))
        else:
            return
    replace_op(op, [y])


def _function(op: ir.Operation) -> Callable[[F32, Any], Any]:
    return exp_falling if FALLING in op.attributes else FUNCTIONS[op.name]
