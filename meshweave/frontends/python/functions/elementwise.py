"""Define elementwise functions: those of the array API standard, and a few for neural networks.

Each is one linalg.generic, whose body also broadcasts and converts the operands.

Floating functions of integers and bools compute in float32, the default floating type; float16 and bfloat16 compute in
float32 inside each function and round once.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from meshweave.errors import UsageError
from meshweave.frontends.python.builder import Body, Emit, fail
from meshweave.frontends.python.dtypes import (
    INTEGERS,
    DType,
    DTypeLike,
    Scalar,
    accumulator,
    bool_,
    complex_of,
    floating,
    op_of,
    part,
)
from meshweave.frontends.python.functions.of_complex import OF_COMPLEX
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Device,
    Operand,
    Tracer,
    check_device,
    dtype_of,
    is_weak,
    meets,
    operand_dtype,
    operands,
    pointwise,
    same,
    splat,
    tensor,
    tracing,
)

Function = TypeVar("Function", bound=Callable[..., object])
Unary: TypeAlias = Callable[[ArrayLike], Tracer]
Binary: TypeAlias = Callable[[ArrayLike, ArrayLike], Tracer]


def apply(
    values: Sequence[ArrayLike], emit: Emit, compute: DType, out: DType, made: DType | None = None
) -> Tracer:
    """Apply emit(b, compute, *names) to the elements of operands of type `compute`.

    made: the type of what `emit` gives (default: compute), converted to `out`.
    """
    given = operands(values)
    weak = out.kind == "f" and all(map(is_weak, given))
    if not any(isinstance(v, Tracer) for v in given):
        given[0] = tensor(given[0], operand_dtype(given[:1]))

    def body(b: Body, *args: str | Scalar) -> str:
        return b.cast(emit(b, compute, *_scalars(b, given, args, compute)), made or compute, out)

    return pointwise(given, out, body, weak)


def _scalars(
    b: Body, given: Sequence[Operand], args: Sequence[str | Scalar], dtype: DType
) -> list[str]:
    """Return the names of the operands as scalars of one type; args: names of elements, and Python scalars."""
    try:
        return [
            b.cast(str(a), v.dtype, dtype) if isinstance(v, Tracer) else b.constant(v, dtype)
            for a, v in zip(args, given)
        ]
    except UsageError as error:
        fail(error.message)


def refuse(name: str, dtype: DType, right: str) -> None:
    """Raise CompileError at the user's line: the dtype is not `right` for the function."""
    fail(f"{name}: dtype {dtype!r}, {right} is right")


def checked(name: str, values: Sequence[ArrayLike], kinds: str = "fi") -> DType:
    """Return the dtype that operands promote to. Raises CompileError at the user's line: no kind of `kinds`."""
    dtype = operand_dtype(operands(values))
    if dtype.kind not in kinds and not (dtype.kind == "u" and "i" in kinds):
        refuse(name, dtype, _WORDS[kinds])
    return dtype


def alike(*values: ArrayLike) -> list[Tracer]:
    """Return values in the dtype that they promote to, of which Python scalars keep all digits."""
    dtype = operand_dtype(operands(values))
    return [astype(v, dtype) for v in values]


_WORDS = {
    "fi": "a real number",
    "fic": "a number",
    "fib": "a real one",
    "ib": "an integer or bool",
    "i": "an integer",
    "f": "a floating one",
}


def binary(name: str, doc: str, **ops: str) -> Binary:
    """Make the function of two arrays that computes, for each kind of dtype, an op: of arith for f, i, u and b.

    Integers without sign have the op of those with it where nothing is said.
    """
    by_kind = {"u": ops["i"], **ops}

    def function(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
        dtype = checked(name, [x1, x2], "".join([kind for kind in ops if kind != "u"]))
        op = f"{'complex' if dtype.kind == 'c' else 'arith'}.{by_kind[dtype.kind]}"
        return apply([x1, x2], lambda b, t, x, y: b.op(op, t, x, y), dtype, dtype)

    return primitive(named(function, name, doc))


def _floats(
    name: str, values: Sequence[ArrayLike], emit: Emit, of_complex: Emit | None = None
) -> Tracer:
    dtype = _float_dtype(values)
    if dtype.kind == "c":
        if of_complex is None:
            refuse(name, dtype, "a real one")
        else:
            emit = of_complex
    return apply(values, emit, accumulator(dtype), dtype)


def _float_dtype(values: Sequence[ArrayLike]) -> DType:
    """Return the floating dtype that a function of `values` has."""
    given = operands(values)
    dtype = operand_dtype(given)
    return tracing(*given).weak_float if all(map(is_weak, given)) else floating(dtype)


def _math(name: str, doc: str, op: str | None = None) -> Unary:
    emit = lambda b, t, x: b.op(f"math.{op or name}", t, x)  # noqa: E731

    def function(x: ArrayLike, /) -> Tracer:
        return _floats(name, [x], emit, OF_COMPLEX.get(name))

    doc = f"{doc}, elementwise. Shape of x; its dtype, float32 of integers."
    return primitive(named(function, name, doc))


def _complex_op(name: str) -> Emit:
    return lambda b, t, x: b.op(f"complex.{name}", t, x)


def named(function: Function, name: str, doc: str) -> Function:
    """Give a function its name and docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _math("exp", "Compute e to the power of x")
exp2 = _math("exp2", "Compute 2 to the power of x")
expm1 = _math("expm1", "Compute exp(x) - 1, accurately near 0")
log = _math("log", "Compute the natural logarithm")
log1p = _math("log1p", "Compute log(1 + x), accurately near 0")
log2 = _math("log2", "Compute the logarithm to base 2")
log10 = _math("log10", "Compute the logarithm to base 10")
sqrt = _math("sqrt", "Compute the square root")
rsqrt = _math("rsqrt", "Compute 1 / sqrt(x)")
sin = _math("sin", "Compute the sine of radians")
cos = _math("cos", "Compute the cosine of radians")
tan = _math("tan", "Compute the tangent of radians")
asin = _math("asin", "Compute the arc sine, in radians")
acos = _math("acos", "Compute the arc cosine, in radians")
atan = _math("atan", "Compute the arc tangent, in radians")
sinh = _math("sinh", "Compute the hyperbolic sine")
cosh = _math("cosh", "Compute the hyperbolic cosine")
tanh = _math("tanh", "Compute the hyperbolic tangent")
asinh = _math("asinh", "Compute the inverse hyperbolic sine")
acosh = _math("acosh", "Compute the inverse hyperbolic cosine")
atanh = _math("atanh", "Compute the inverse hyperbolic tangent")
erf = _math("erf", "Compute the error function")


def reciprocal(x: ArrayLike, /) -> Tracer:
    """Compute 1 / x, elementwise."""
    return divide(1, x)


@primitive
def sigmoid(x: ArrayLike, /) -> Tracer:
    """Compute 1 / (1 + exp(-x)), elementwise."""

    def emit(b: Body, t: DType, a: str) -> str:
        one = b.constant(1, t)
        below = b.op("math.exp", t, b.op("arith.negf", t, a))
        return b.op("arith.divf", t, one, b.op("arith.addf", t, one, below))

    return _floats("sigmoid", [x], emit)


@primitive
def atan2(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute the angle of the point (x2, x1), in radians, elementwise."""
    return _floats("atan2", [x1, x2], lambda b, t, y, x: b.op("math.atan2", t, y, x))


@primitive
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Return the magnitude of x1 with the sign of x2, elementwise."""
    return _floats("copysign", [x1, x2], lambda b, t, x, y: b.op("math.copysign", t, x, y))


@primitive
def hypot(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute sqrt(x1**2 + x2**2) without intermediate overflow, elementwise."""

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        x, y = b.op("math.absf", t, x), b.op("math.absf", t, y)
        large, small = b.op("arith.maxnumf", t, x, y), b.op("arith.minnumf", t, x, y)
        ratio = b.op("arith.divf", t, small, large)
        one, zero = b.constant(1, t), b.constant(0, t)
        length = b.op("arith.addf", t, one, b.op("arith.mulf", t, ratio, ratio))
        found = b.op("arith.mulf", t, large, b.op("math.sqrt", t, length))
        found = b.select(b.compare("oeq", t, large, zero), t, zero, found)
        invalid = b.compare("uno", t, x, y)
        found = b.select(invalid, t, b.op("arith.addf", t, x, y), found)
        endless = b.constant(math.inf, t)
        return b.select(b.compare("oeq", t, large, endless), t, endless, found)

    return _floats("hypot", [x1, x2], emit)


@primitive
def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute log(exp(x1) + exp(x2)) without intermediate overflow, elementwise."""

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        large = b.op("arith.maximumf", t, x, y)
        gap = b.op("math.absf", t, b.op("arith.subf", t, x, y))
        # equal infinities have no difference
        gap = b.select(b.compare("oeq", t, x, y), t, b.constant(0, t), gap)
        below = b.op("math.exp", t, b.op("arith.negf", t, gap))
        return b.op("arith.addf", t, large, b.op("math.log1p", t, below))

    return _floats("logaddexp", [x1, x2], emit)


_WRAP = "elementwise; integers wrap around"
add = binary("add", f"Compute x1 + x2, {_WRAP}.", f="addf", i="addi", c="add")
subtract = binary("subtract", f"Compute x1 - x2, {_WRAP}.", f="subf", i="subi", c="sub")
multiply = binary(
    "multiply",
    f"Compute x1 * x2, {_WRAP}, the product of bools is `and`.",
    f="mulf",
    i="muli",
    b="andi",
    c="mul",
)


@primitive
def divide(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute x1 / x2, elementwise; the result is floating, float32 for integers."""
    dtype = _float_dtype([x1, x2])
    op = "complex.div" if dtype.kind == "c" else "arith.divf"
    return apply([x1, x2], lambda b, t, x, y: b.op(op, t, x, y), dtype, dtype)


def _int_division(b: Body, t: DType, x: str, y: str) -> tuple[str, str, str, str]:
    """Divide integers, truncating; 0 and -1 are replaced as divisors first, since they can trap.

    Return the quotient, the remainder, whether the divisor is 0, and whether it is -1.
    """
    zero, one = b.constant(0, t), b.constant(1, t)
    if t.kind == "u":
        by_zero = b.compare("eq", t, y, zero)
        safe = b.select(by_zero, t, one, y)
        quotient, rest = b.op("arith.divui", t, x, safe), b.op("arith.remui", t, x, safe)
        return quotient, rest, by_zero, b.constant(False, bool_)
    minus = b.constant(-1, t)
    by_zero, by_minus = b.compare("eq", t, y, zero), b.compare("eq", t, y, minus)
    safe = b.select(b.op("arith.ori", bool_, by_zero, by_minus), t, one, y)
    quotient, rest = b.op("arith.divsi", t, x, safe), b.op("arith.remsi", t, x, safe)
    return quotient, rest, by_zero, by_minus


def _signs_differ(b: Body, t: DType, rest: str, y: str) -> str:
    """Tell whether the remainder is not 0 and its sign differs from the divisor's."""
    if t.kind == "u":
        return b.constant(False, bool_)
    zero = b.constant(0, t)
    less = "olt" if t.kind == "f" else "slt"
    differ = b.op("arith.xori", bool_, b.compare(less, t, rest, zero), b.compare(less, t, y, zero))
    some = b.compare("une" if t.kind == "f" else "ne", t, rest, zero)
    return b.op("arith.andi", bool_, some, differ)


@primitive
def floor_divide(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Return the largest integer not above x1 / x2, elementwise; an integer divided by 0 gives 0."""

    def integers(b: Body, t: DType, x: str, y: str) -> str:
        quotient, rest, by_zero, by_minus = _int_division(b, t, x, y)
        below = b.op("arith.subi", t, quotient, b.constant(1, t))
        floor = b.select(_signs_differ(b, t, rest, y), t, below, quotient)
        zero = b.constant(0, t)
        floor = b.select(by_minus, t, b.op("arith.subi", t, zero, x), floor)
        return b.select(by_zero, t, zero, floor)

    def floats(b: Body, t: DType, x: str, y: str) -> str:
        rest = b.op("arith.remf", t, x, y)
        quotient = b.op("arith.divf", t, b.op("arith.subf", t, x, rest), y)
        one, half = b.constant(1, t), b.constant(0.5, t)
        below = b.op("arith.subf", t, quotient, one)
        quotient = b.select(_signs_differ(b, t, rest, y), t, below, quotient)
        floor = b.op("math.floor", t, quotient)
        far = b.compare("ogt", t, b.op("arith.subf", t, quotient, floor), half)
        floor = b.select(far, t, b.op("arith.addf", t, floor, one), floor)
        zero, exact = b.constant(0, t), b.op("arith.divf", t, x, y)
        none = b.compare("oeq", t, floor, zero)
        floor = b.select(none, t, b.op("math.copysign", t, floor, exact), floor)
        return b.select(b.compare("oeq", t, y, zero), t, exact, floor)

    return _quotient("floor_divide", x1, x2, integers, floats)


@primitive
def remainder(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute x1 - floor(x1 / x2) * x2, elementwise, with the sign of x2; an integer remainder by 0 is 0."""

    def integers(b: Body, t: DType, x: str, y: str) -> str:
        _, rest, by_zero, by_minus = _int_division(b, t, x, y)
        moved = b.op("arith.addi", t, rest, y)
        rest = b.select(_signs_differ(b, t, rest, y), t, moved, rest)
        none = b.op("arith.ori", bool_, by_zero, by_minus)
        return b.select(none, t, b.constant(0, t), rest)

    def floats(b: Body, t: DType, x: str, y: str) -> str:
        rest = b.op("arith.remf", t, x, y)
        moved = b.select(_signs_differ(b, t, rest, y), t, b.op("arith.addf", t, rest, y), rest)
        none = b.compare("oeq", t, rest, b.constant(0, t))
        return b.select(none, t, b.op("math.copysign", t, b.constant(0, t), y), moved)

    return _quotient("remainder", x1, x2, integers, floats)


def _quotient(name: str, x1: ArrayLike, x2: ArrayLike, integers: Emit, floats: Emit) -> Tracer:
    dtype = checked(name, [x1, x2])
    if dtype.kind in INTEGERS:
        return apply([x1, x2], integers, dtype, dtype)
    return apply([x1, x2], floats, accumulator(dtype), dtype)


@primitive
def pow(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute x1 to the power of x2, elementwise. Integers wrap around; their negative powers are 0, 1 or -1.

    A small whole exponent given as a Python number becomes products.
    """
    dtype = checked("pow", [x1, x2], "fic")
    if isinstance(x2, int | float) and x2 in range(1, 9) and isinstance(x1, Tracer):
        times = int(x2)
        return apply([x1], lambda b, t, x: _power(b, t, x, times), accumulator(dtype), dtype)
    if dtype.kind in "fc":
        of_complex = lambda b, t, x, y: b.op("complex.pow", t, x, y)  # noqa: E731
        return _floats("pow", [x1, x2], lambda b, t, x, y: b.op("math.powf", t, x, y), of_complex)
    return apply([x1, x2], _int_power, dtype, dtype)


def _power(b: Body, t: DType, x: str, exponent: int) -> str:
    """Compute x to a positive power by repeated squaring."""
    op = op_of("mul", t)
    result = ""
    while True:
        if exponent & 1:
            result = b.op(op, t, result, x) if result else x
        exponent >>= 1
        if not exponent:
            return result
        x = b.op(op, t, x, x)


def _int_power(b: Body, t: DType, x: str, y: str) -> str:
    """Compute an integer power by squaring, bit by bit; for a negative exponent 1/x, truncated, is the base."""
    zero, one = b.constant(0, t), b.constant(1, t)
    result, square = one, x
    for bit in range(t.bits if t.kind == "u" else t.bits - 1):
        on = b.op("arith.andi", t, y, b.constant(1 << bit, t))
        times = b.op("arith.muli", t, result, square)
        result = b.select(b.compare("ne", t, on, zero), t, times, result)
        square = b.op("arith.muli", t, square, square)
    if t.kind == "u":
        return result
    minus = b.constant(-1, t)
    odd = b.compare("ne", t, b.op("arith.andi", t, y, one), zero)
    of_minus = b.select(odd, t, minus, one)
    inverse = b.select(b.compare("eq", t, x, minus), t, of_minus, zero)
    inverse = b.select(b.compare("eq", t, x, one), t, one, inverse)
    return b.select(b.compare("slt", t, y, zero), t, inverse, result)


def square(x: ArrayLike, /) -> Tracer:
    """Compute x * x, elementwise."""
    return multiply(x, x)


@primitive
def negative(x: ArrayLike, /) -> Tracer:
    """Compute -x, elementwise."""
    dtype = checked("negative", [x], "fic")

    def emit(b: Body, t: DType, a: str) -> str:
        if t.kind in "fc":
            return b.op("arith.negf" if t.kind == "f" else "complex.neg", t, a)
        return b.op("arith.subi", t, b.constant(0, t), a)

    return apply([x], emit, dtype, dtype)


def positive(x: ArrayLike, /) -> Tracer:
    """Return x itself."""
    return tensor(x)


@primitive
def abs(x: ArrayLike, /) -> Tracer:
    """Compute the absolute value, elementwise, of complex numbers as real ones; the most negative integer stays."""
    dtype = checked("abs", [x], "fic")
    if dtype.kind == "c":
        size = lambda b, t, a: b.let(f"complex.abs {a} : {t}")  # noqa: E731
        return apply([x], size, dtype, part(dtype), part(dtype))

    def emit(b: Body, t: DType, a: str) -> str:
        if t.kind == "f":
            return b.op("math.absf", t, a)
        if t.kind == "u":
            return a
        opposite = b.op("arith.subi", t, b.constant(0, t), a)
        return b.select(b.compare("slt", t, a, b.constant(0, t)), t, opposite, a)

    return apply([x], emit, dtype, dtype)


@primitive
def sign(x: ArrayLike, /) -> Tracer:
    """Return -1, 0 or 1, elementwise, of a complex number x / abs(x), and NaN for NaN."""
    dtype = checked("sign", [x], "fic")
    if dtype.kind == "c":
        return apply([x], _complex_sign, dtype, dtype)

    def emit(b: Body, t: DType, a: str) -> str:
        zero = b.constant(0, t)
        if t.kind == "u":
            return b.select(b.compare("ne", t, a, zero), t, b.constant(1, t), zero)
        less, more = ("olt", "ogt") if t.kind == "f" else ("slt", "sgt")
        if t.kind == "f":  # 0.0 of -0.0 too; NaN stays
            a = b.select(b.compare("oeq", t, a, zero), t, zero, a)
        below = b.select(b.compare(less, t, a, zero), t, b.constant(-1, t), a)
        return b.select(b.compare(more, t, a, zero), t, b.constant(1, t), below)

    return apply([x], emit, dtype, dtype)


def _complex_sign(b: Body, t: DType, z: str) -> str:
    zero = b.constant(0, t)
    none = b.compare("oeq", t, z, zero)
    return b.select(none, t, zero, b.op("complex.sign", t, z))


def _rounding(name: str, doc: str, op: str) -> Unary:
    def function(x: ArrayLike, /) -> Tracer:
        dtype = operand_dtype(operands([x]))
        if dtype.kind == "c":
            refuse(name, dtype, "a real one")
        if dtype.kind != "f":
            return tensor(x)
        return apply([x], lambda b, t, a: b.op(f"math.{op}", t, a), accumulator(dtype), dtype)

    return primitive(named(function, name, f"{doc}, elementwise; integers stay as they are."))


ceil = _rounding("ceil", "Round up to a whole number", "ceil")
floor = _rounding("floor", "Round down to a whole number", "floor")
trunc = _rounding("trunc", "Round towards 0 to a whole number", "trunc")
_whole = _rounding("round", "Round to the nearest whole number, ties to even", "roundeven")


def round(x: ArrayLike, /, decimals: int = 0) -> Tracer:
    """Round to the nearest number of `decimals` digits behind the point, ties to even; integers stay as they are."""
    value = tensor(x)
    if not decimals or value.dtype.kind != "f":
        if decimals < 0:
            refuse(f"round: decimals={decimals}", value.dtype, "a floating one")
        return _whole(x)
    scale = 10.0 ** builtins.abs(decimals)
    near, far = (multiply, divide) if decimals > 0 else (divide, multiply)
    return far(_whole(near(value, scale)), scale)


_NAN = "elementwise; NaN where either is NaN"
maximum = binary(
    "maximum",
    f"Return the larger of x1 and x2, {_NAN}.",
    f="maximumf",
    i="maxsi",
    u="maxui",
    b="ori",
)
minimum = binary(
    "minimum",
    f"Return the smaller of x1 and x2, {_NAN}.",
    f="minimumf",
    i="minsi",
    u="minui",
    b="andi",
)


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tracer:
    """Limit x to the range from `min` to `max`, elementwise, in the dtype of x."""
    given = tensor(x)
    result = given if min is None else maximum(given, min)
    result = result if max is None else minimum(result, max)
    return astype(result, given.dtype)


@primitive
def relu(x: ArrayLike, /) -> Tracer:
    """Return x where it is positive, else 0, elementwise."""
    return maximum(x, 0)


def of_parts(re: Tracer, im: Tracer) -> Tracer:
    """Return complex numbers of real and imaginary parts of one dtype."""
    wide = complex_of(re.dtype)
    return apply([re, im], lambda b, t, x, y: b.complex(wide, x, y), re.dtype, wide, wide)


def real(x: ArrayLike, /) -> Tracer:
    """Return the real part, elementwise; real numbers are their own."""
    return _part(tensor(x), 0)


def imag(x: ArrayLike, /) -> Tracer:
    """Return the imaginary part, elementwise; zeros for real numbers."""
    value = tensor(x)
    if value.dtype.kind != "c":
        return splat(tracing(), value.shape, 0, value.dtype)
    return _part(value, 1)


@primitive
def _part(value: Tracer, number: int) -> Tracer:
    dtype = value.dtype
    if dtype.kind != "c":
        return value
    return apply([value], lambda b, t, a: b.part(number, t, a), dtype, part(dtype), part(dtype))


@primitive
def conj(x: ArrayLike, /) -> Tracer:
    """Return the complex conjugate, elementwise; real numbers are their own."""
    value = tensor(x)
    if value.dtype.kind != "c":
        return value
    return apply([value], _complex_op("conj"), value.dtype, value.dtype)


@primitive
def astype(
    x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: Device = None
) -> Tracer:
    """Convert the elements to another dtype: floats to integers by truncation, numbers to bool as `!= 0`.

    copy: has no effect, since values of programs never change. device: see `asarray`.
    """
    check_device("astype", device)
    wanted = dtype_of("astype", dtype)
    (given,) = operands([x])
    if not isinstance(given, Tracer):
        return tensor(given, wanted)
    if given.weak:
        meets(given, wanted)
    if given.dtype == wanted:
        return same(given, given.key)
    return pointwise([given], wanted, lambda b, a: b.cast(a, given.dtype, wanted))


@primitive
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Choose x1 where the condition holds, else x2, elementwise; all three broadcast.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> clipped = mw.jit(lambda x: mw.where(x < 0, 0, x))
    >>> np.asarray(clipped(np.array([-1.0, 2.0], np.float32))).tolist()
    [0.0, 2.0]
    """
    chosen = tensor(condition)
    if chosen.dtype is not bool_:
        refuse("where: condition", chosen.dtype, "bool")
    given = operands([x1, x2])
    dtype = operand_dtype(given)
    weak = dtype.kind == "f" and all(map(is_weak, given))

    def body(b: Body, c: str, *args: str | Scalar) -> str:
        return b.select(c, dtype, *_scalars(b, given, args, dtype))

    return pointwise([chosen, *given], dtype, body, weak)
