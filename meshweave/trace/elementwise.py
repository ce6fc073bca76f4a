"""Elementwise functions of the array API standard, and a few of neural networks: one linalg.generic each, operands
broadcast and converted in its body.

Floating functions of integers and bools compute in float32, the default floating type; float16 and bfloat16 compute in
float32 inside each function and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshweave.errors import UsageError
from meshweave.trace.builder import Body, fail
from meshweave.trace.dtypes import (
    DType,
    as_dtype,
    bool_,
    float32,
    floating,
    promoted,
    weak_kind,
)
from meshweave.trace.tracer import (
    Tracer,
    check_device,
    operand_dtype,
    operands,
    pointwise,
    splat,
    tensor,
    tracing,
)

Emit = Callable[..., str]


def apply(
    values: list[Any], emit: Emit, compute: DType, out: DType, made: DType | None = None
) -> Tracer:
    """emit(b, compute, *names) on operands of type `compute`; it makes a value of type `made` (default: compute)."""
    given = operands(values)
    if not any(isinstance(v, Tracer) for v in given):
        given[0] = tensor(given[0])

    def body(b: Body, *args: Any) -> str:
        return b.cast(emit(b, compute, *_scalars(b, given, args, compute)), made or compute, out)

    return pointwise(given, out, body)


def _scalars(b: Body, given: Sequence[Any], args: Sequence[str], dtype: DType) -> list[str]:
    """Elements of tensors (args: their names) and Python scalars as names of scalars of one type."""
    try:
        return [
            b.cast(a, v.dtype, dtype) if isinstance(v, Tracer) else b.constant(v, dtype)
            for a, v in zip(args, given)
        ]
    except UsageError as error:
        fail(error.message)


def _wide(dtype: DType) -> DType:
    return float32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def refuse(name: str, dtype: DType, right: str) -> None:
    """Raise CompileError at the user's line: the dtype is not `right` for the function."""
    fail(f"{name}: dtype {dtype!r}, {right} is right")


def _floats(name: str, values: list[Any], emit: Emit) -> Tracer:
    dtype = floating(operand_dtype(operands(values)))
    return apply(values, emit, _wide(dtype), dtype)


def _math(name: str, doc: str, op: str | None = None) -> Callable[[Any], Tracer]:
    emit = lambda b, t, x: b.op(f"math.{op or name}", t, x)  # noqa: E731

    def function(x: Any, /) -> Tracer:
        return _floats(name, [x], emit)

    return named(function, name, f"{doc}, elementwise. Shape of x; its dtype, float32 of integers.")


def named(function: Callable[..., Tracer], name: str, doc: str) -> Callable[..., Tracer]:
    """The function under a name and with a docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _math("exp", "e to the power of x")
exp2 = _math("exp2", "2 to the power of x")
expm1 = _math("expm1", "exp(x) - 1, exact near 0")
log = _math("log", "The natural logarithm")
log1p = _math("log1p", "log(1 + x), exact near 0")
log2 = _math("log2", "The logarithm to base 2")
log10 = _math("log10", "The logarithm to base 10")
sqrt = _math("sqrt", "The square root")
rsqrt = _math("rsqrt", "1 / sqrt(x)")
sin = _math("sin", "The sine of radians")
cos = _math("cos", "The cosine of radians")
tan = _math("tan", "The tangent of radians")
asin = _math("asin", "The arc sine, in radians")
acos = _math("acos", "The arc cosine, in radians")
atan = _math("atan", "The arc tangent, in radians")
sinh = _math("sinh", "The hyperbolic sine")
cosh = _math("cosh", "The hyperbolic cosine")
tanh = _math("tanh", "The hyperbolic tangent")
asinh = _math("asinh", "The inverse hyperbolic sine")
acosh = _math("acosh", "The inverse hyperbolic cosine")
atanh = _math("atanh", "The inverse hyperbolic tangent")
erf = _math("erf", "The error function")


def reciprocal(x: Any, /) -> Tracer:
    """1 / x, elementwise."""
    return divide(1, x)


def sigmoid(x: Any, /) -> Tracer:
    """1 / (1 + exp(-x)), elementwise."""

    def emit(b: Body, t: DType, a: str) -> str:
        one = b.constant(1, t)
        below = b.op("math.exp", t, b.op("arith.negf", t, a))
        return b.op("arith.divf", t, one, b.op("arith.addf", t, one, below))

    return _floats("sigmoid", [x], emit)


def atan2(x1: Any, x2: Any, /) -> Tracer:
    """The angle of the point (x2, x1), in radians, elementwise."""
    return _floats("atan2", [x1, x2], lambda b, t, y, x: b.op("math.atan2", t, y, x))


def copysign(x1: Any, x2: Any, /) -> Tracer:
    """The size of x1 with the sign of x2, elementwise."""
    return _floats("copysign", [x1, x2], lambda b, t, x, y: b.op("math.copysign", t, x, y))


def hypot(x1: Any, x2: Any, /) -> Tracer:
    """sqrt(x1**2 + x2**2) without overflow in between, elementwise."""

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


def logaddexp(x1: Any, x2: Any, /) -> Tracer:
    """log(exp(x1) + exp(x2)) without overflow in between, elementwise."""

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        large = b.op("arith.maximumf", t, x, y)
        gap = b.op("math.absf", t, b.op("arith.subf", t, x, y))
        # equal infinities have no difference
        gap = b.select(b.compare("oeq", t, x, y), t, b.constant(0, t), gap)
        below = b.op("math.exp", t, b.op("arith.negf", t, gap))
        return b.op("arith.addf", t, large, b.op("math.log1p", t, below))

    return _floats("logaddexp", [x1, x2], emit)


def _arithmetic(name: str, doc: str, op: str) -> Callable[[Any, Any], Tracer]:
    def function(x1: Any, x2: Any, /) -> Tracer:
        dtype = operand_dtype(operands([x1, x2]))
        if dtype.kind == "b":
            refuse(name, dtype, "a number")
        suffix = "f" if dtype.kind == "f" else "i"
        return apply(
            [x1, x2], lambda b, t, x, y: b.op(f"arith.{op}{suffix}", t, x, y), dtype, dtype
        )

    return named(function, name, f"{doc}, elementwise; integers wrap around.")


add = _arithmetic("add", "x1 + x2", "add")
subtract = _arithmetic("subtract", "x1 - x2", "sub")


def multiply(x1: Any, x2: Any, /) -> Tracer:
    """x1 * x2, elementwise; integers wrap around, bools are both."""
    dtype = operand_dtype(operands([x1, x2]))
    op = {"f": "arith.mulf", "i": "arith.muli", "b": "arith.andi"}[dtype.kind]
    return apply([x1, x2], lambda b, t, x, y: b.op(op, t, x, y), dtype, dtype)


def divide(x1: Any, x2: Any, /) -> Tracer:
    """x1 / x2, elementwise, floating: integers divide in float32."""
    dtype = floating(operand_dtype(operands([x1, x2])))
    return apply([x1, x2], lambda b, t, x, y: b.op("arith.divf", t, x, y), dtype, dtype)


def _int_division(b: Body, t: DType, x: str, y: str) -> tuple[str, str, str, str]:
    """Quotient and remainder towards zero by a divisor that cannot trap, and whether it was 0, and -1."""
    zero, one, minus = b.constant(0, t), b.constant(1, t), b.constant(-1, t)
    by_zero, by_minus = b.compare("eq", t, y, zero), b.compare("eq", t, y, minus)
    safe = b.select(b.op("arith.ori", bool_, by_zero, by_minus), t, one, y)
    return b.op("arith.divsi", t, x, safe), b.op("arith.remsi", t, x, safe), by_zero, by_minus


def _signs_differ(b: Body, t: DType, rest: str, y: str) -> str:
    """Is the remainder not 0 and of the other sign than the divisor?"""
    zero = b.constant(0, t)
    less = "olt" if t.kind == "f" else "slt"
    differ = b.op("arith.xori", bool_, b.compare(less, t, rest, zero), b.compare(less, t, y, zero))
    some = b.compare("une" if t.kind == "f" else "ne", t, rest, zero)
    return b.op("arith.andi", bool_, some, differ)


def floor_divide(x1: Any, x2: Any, /) -> Tracer:
    """The largest integer not above x1 / x2, elementwise; an integer divided by 0 gives 0."""

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


def remainder(x1: Any, x2: Any, /) -> Tracer:
    """x1 - floor(x1 / x2) * x2, elementwise, with the sign of x2; an integer remainder by 0 is 0."""

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


def _quotient(name: str, x1: Any, x2: Any, integers: Emit, floats: Emit) -> Tracer:
    dtype = operand_dtype(operands([x1, x2]))
    if dtype.kind == "b":
        refuse(name, dtype, "a number")
    if dtype.kind == "i":
        return apply([x1, x2], integers, dtype, dtype)
    return apply([x1, x2], floats, _wide(dtype), dtype)


def pow(x1: Any, x2: Any, /) -> Tracer:
    """x1 to the power of x2, elementwise. Integers wrap around; a negative power of one gives 0, 1 or -1.

    A small whole exponent that is a Python number becomes products.
    """
    dtype = operand_dtype(operands([x1, x2]))
    if dtype.kind == "b":
        refuse("pow", dtype, "a number")
    whole = isinstance(x2, int) or (isinstance(x2, float) and x2.is_integer())
    if whole and 0 < x2 <= 8 and isinstance(x1, Tracer):
        return apply([x1], lambda b, t, x: _power(b, t, x, int(x2)), _wide(dtype), dtype)
    if dtype.kind == "f":
        return _floats("pow", [x1, x2], lambda b, t, x, y: b.op("math.powf", t, x, y))
    return apply([x1, x2], _int_power, dtype, dtype)


def _power(b: Body, t: DType, x: str, exponent: int) -> str:
    """By squaring."""
    op = "arith.mulf" if t.kind == "f" else "arith.muli"
    result = ""
    while True:
        if exponent & 1:
            result = b.op(op, t, result, x) if result else x
        exponent >>= 1
        if not exponent:
            return result
        x = b.op(op, t, x, x)


def _int_power(b: Body, t: DType, x: str, y: str) -> str:
    """By squaring, with every bit of the exponent; of a negative exponent: 1/x towards zero."""
    zero, one, minus = b.constant(0, t), b.constant(1, t), b.constant(-1, t)
    result, square = one, x
    for bit in range(t.bits - 1):
        on = b.op("arith.andi", t, y, b.constant(1 << bit, t))
        times = b.op("arith.muli", t, result, square)
        result = b.select(b.compare("ne", t, on, zero), t, times, result)
        square = b.op("arith.muli", t, square, square)
    odd = b.compare("ne", t, b.op("arith.andi", t, y, one), zero)
    of_minus = b.select(odd, t, minus, one)
    inverse = b.select(b.compare("eq", t, x, minus), t, of_minus, zero)
    inverse = b.select(b.compare("eq", t, x, one), t, one, inverse)
    return b.select(b.compare("slt", t, y, zero), t, inverse, result)


def square(x: Any, /) -> Tracer:
    """x * x, elementwise."""
    return multiply(x, x)


def negative(x: Any, /) -> Tracer:
    """-x, elementwise."""
    dtype = operand_dtype(operands([x]))
    if dtype.kind == "b":
        refuse("negative", dtype, "a number")

    def emit(b: Body, t: DType, a: str) -> str:
        if t.kind == "f":
            return b.op("arith.negf", t, a)
        return b.op("arith.subi", t, b.constant(0, t), a)

    return apply([x], emit, dtype, dtype)


def positive(x: Any, /) -> Tracer:
    """x itself."""
    return tensor(x)


def abs(x: Any, /) -> Tracer:
    """The absolute value, elementwise; of the least integer it is that integer."""
    dtype = operand_dtype(operands([x]))
    if dtype.kind == "b":
        refuse("abs", dtype, "a number")

    def emit(b: Body, t: DType, a: str) -> str:
        if t.kind == "f":
            return b.op("math.absf", t, a)
        opposite = b.op("arith.subi", t, b.constant(0, t), a)
        return b.select(b.compare("slt", t, a, b.constant(0, t)), t, opposite, a)

    return apply([x], emit, dtype, dtype)


def sign(x: Any, /) -> Tracer:
    """-1, 0 or 1, elementwise; NaN of NaN."""
    dtype = operand_dtype(operands([x]))
    if dtype.kind == "b":
        refuse("sign", dtype, "a number")

    def emit(b: Body, t: DType, a: str) -> str:
        zero = b.constant(0, t)
        less, more = ("olt", "ogt") if t.kind == "f" else ("slt", "sgt")
        if t.kind == "f":  # 0.0 of -0.0 too; NaN stays
            a = b.select(b.compare("oeq", t, a, zero), t, zero, a)
        below = b.select(b.compare(less, t, a, zero), t, b.constant(-1, t), a)
        return b.select(b.compare(more, t, a, zero), t, b.constant(1, t), below)

    return apply([x], emit, dtype, dtype)


def _rounding(name: str, doc: str, op: str) -> Callable[[Any], Tracer]:
    def function(x: Any, /) -> Tracer:
        dtype = operand_dtype(operands([x]))
        if dtype.kind != "f":
            return tensor(x)
        return apply([x], lambda b, t, a: b.op(f"math.{op}", t, a), _wide(dtype), dtype)

    return named(function, name, f"{doc}, elementwise; integers stay as they are.")


ceil = _rounding("ceil", "The least whole number not below x", "ceil")
floor = _rounding("floor", "The largest whole number not above x", "floor")
trunc = _rounding("trunc", "The whole number next to x towards 0", "trunc")
round = _rounding("round", "The nearest whole number, the even one of two", "roundeven")


def _extreme(name: str, doc: str, ops: dict[str, str]) -> Callable[[Any, Any], Tracer]:
    def function(x1: Any, x2: Any, /) -> Tracer:
        dtype = operand_dtype(operands([x1, x2]))
        op = ops[dtype.kind]
        return apply([x1, x2], lambda b, t, x, y: b.op(f"arith.{op}", t, x, y), dtype, dtype)

    return named(function, name, f"{doc}, elementwise; NaN where either is NaN.")


maximum = _extreme("maximum", "The larger of both", {"f": "maximumf", "i": "maxsi", "b": "ori"})
minimum = _extreme("minimum", "The smaller of both", {"f": "minimumf", "i": "minsi", "b": "andi"})


def clip(x: Any, /, min: Any = None, max: Any = None) -> Tracer:
    """x, but `min` where it is below and `max` where it is above, elementwise, in the dtype of x."""
    given = tensor(x)
    result = given if min is None else maximum(given, min)
    result = result if max is None else minimum(result, max)
    return astype(result, given.dtype)


def relu(x: Any, /) -> Tracer:
    """x where it is positive, else 0, elementwise."""
    return maximum(x, 0)


def real(x: Any, /) -> Tracer:
    """x itself: no dtype is complex."""
    return tensor(x)


def conj(x: Any, /) -> Tracer:
    """x itself: no dtype is complex."""
    return tensor(x)


def imag(x: Any, /) -> Tracer:
    """Zeros like x: no dtype is complex."""
    value = tensor(x)
    return splat(tracing(), value.shape, 0, value.dtype)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tracer:
    """The elements in another type: floats go to integers towards 0, to bool as `!= 0`.

    copy: values of programs do not change, so that a copy and the value are the same. device: see `asarray`.
    """
    check_device("astype", device)
    given, wanted = tensor(x), _dtype(dtype)
    if given.dtype == wanted:
        return given
    return apply([given], lambda b, t, a: a, given.dtype, wanted)


def _dtype(value: Any) -> DType:
    try:
        return as_dtype(value)
    except UsageError as error:
        fail(error.message)


def where(condition: Any, x1: Any, x2: Any, /) -> Tracer:
    """x1 where the condition holds, else x2, elementwise; all three broadcast.

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

    def body(b: Body, c: str, *args: Any) -> str:
        return b.select(c, dtype, *_scalars(b, given, args, dtype))

    return pointwise([chosen, *given], dtype, body)


def result_type(*values: Any) -> DType:
    """The dtype that an operation on these arrays, dtypes and Python scalars has."""
    strong, weak = [], []
    for value in values:
        kind = weak_kind(value)
        if kind is not None:
            weak.append(kind)
        elif isinstance(value, Tracer) and value.weak:
            weak.append(value.dtype.kind)
        else:
            plain = isinstance(value, type | str)
            strong.append(as_dtype(value if plain else getattr(value, "dtype", value)))
    if not strong and not weak:
        raise UsageError("result_type: at least one array or dtype is needed")
    return promoted(strong, weak)
