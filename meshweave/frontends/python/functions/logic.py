"""Define the elementwise comparisons, tests, bit operations and logic of the array API standard."""

from __future__ import annotations

import math

from meshweave.frontends.python.builder import Body, Emit, fail
from meshweave.frontends.python.dtypes import (
    DTYPES,
    INTEGERS,
    DType,
    DTypeLike,
    as_dtype,
    bool_,
    float32,
    int32,
    int64,
    limits,
)
from meshweave.frontends.python.functions.elementwise import (
    Binary,
    Unary,
    apply,
    astype,
    binary,
    checked,
    imag,
    named,
    real,
    refuse,
)
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, operand_dtype, operands, tensor


def _comparison(name: str, sign: str, predicates: tuple[str, str, str]) -> Binary:
    def function(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
        dtype = operand_dtype(operands([x1, x2]))
        if dtype.kind == "c" and predicates[0] not in ("oeq", "une"):
            refuse(name, dtype, "a real one")
        predicate = predicates[{"i": 1, "u": 2, "b": 2}.get(dtype.kind, 0)]
        emit = lambda b, t, x, y: b.compare(predicate, t, x, y)  # noqa: E731
        return apply([x1, x2], emit, dtype, bool_, bool_)

    return primitive(named(function, name, f"Tell whether x1 {sign} x2, elementwise; bool."))


equal = _comparison("equal", "==", ("oeq", "eq", "eq"))
not_equal = _comparison("not_equal", "!=", ("une", "ne", "ne"))
less = _comparison("less", "<", ("olt", "slt", "ult"))
less_equal = _comparison("less_equal", "<=", ("ole", "sle", "ule"))
greater = _comparison("greater", ">", ("ogt", "sgt", "ugt"))
greater_equal = _comparison("greater_equal", ">=", ("oge", "sge", "uge"))


def _test(name: str, doc: str, emit: Emit, otherwise: bool) -> Unary:
    def function(x: ArrayLike, /) -> Tracer:
        dtype = operand_dtype(operands([x]))
        if dtype.kind == "c":
            combine = logical_and if otherwise else logical_or
            return combine(function(real(x)), function(imag(x)))
        if dtype.kind != "f":
            return apply([x], lambda b, t, a: b.constant(otherwise, bool_), dtype, bool_, bool_)
        return apply([x], emit, dtype, bool_, bool_)

    return primitive(named(function, name, f"Tell whether x is {doc}, elementwise; bool."))


def _against_infinity(predicate: str) -> Emit:
    return lambda b, t, x: b.compare(predicate, t, b.op("math.absf", t, x), b.constant(math.inf, t))


isnan = _test("isnan", "NaN", lambda b, t, x: b.compare("uno", t, x, x), False)
isinf = _test("isinf", "infinite", _against_infinity("oeq"), False)
isfinite = _test("isfinite", "neither infinite nor NaN", _against_infinity("olt"), True)


@primitive
def signbit(x: ArrayLike, /) -> Tracer:
    """Tell whether the sign bit of x is set, for -0.0 and NaN too, elementwise; bool."""
    dtype = checked("signbit", [x])
    if dtype.kind in INTEGERS:
        return less(x, 0)

    def emit(b: Body, t: DType, a: str) -> str:
        bits = int64 if t.bits == 64 else int32
        number = b.let(f"arith.bitcast {a} : {t} to {bits}")
        return b.compare("slt", bits, number, b.constant(0, bits))

    return apply([x], emit, float32 if dtype.bits < 32 else dtype, bool_, bool_)


_BITS = "for integers or bools, elementwise"
bitwise_and = binary("bitwise_and", f"Compute x1 & x2 {_BITS}.", i="andi", b="andi")
bitwise_or = binary("bitwise_or", f"Compute x1 | x2 {_BITS}.", i="ori", b="ori")
bitwise_xor = binary("bitwise_xor", f"Compute x1 ^ x2 {_BITS}.", i="xori", b="xori")


@primitive
def bitwise_invert(x: ArrayLike, /) -> Tracer:
    """Compute ~x for integers, `not x` for bools, elementwise."""
    dtype = checked("bitwise_invert", [x], "ib")
    ones = -1 if dtype.kind == "i" else limits(dtype)[1]
    return apply([x], lambda b, t, a: b.op("arith.xori", t, a, b.constant(ones, t)), dtype, dtype)


@primitive
def bitwise_left_shift(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute x1 * 2**x2 for integers, elementwise, wrapping around; 0 where x2 is the number of bits or more."""
    dtype = checked("bitwise_left_shift", [x1, x2], "i")

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        fits = b.compare("ult", t, y, b.constant(t.bits, t))
        amount = b.select(fits, t, y, b.constant(0, t))
        return b.select(fits, t, b.op("arith.shli", t, x, amount), b.constant(0, t))

    return apply([x1, x2], emit, dtype, dtype)


@primitive
def bitwise_right_shift(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute floor(x1 / 2**x2) for integers, elementwise."""
    dtype = checked("bitwise_right_shift", [x1, x2], "i")

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        if t.kind == "u":
            fits, zero = b.compare("ult", t, y, b.constant(t.bits, t)), b.constant(0, t)
            return b.select(fits, t, b.op("arith.shrui", t, x, b.select(fits, t, y, zero)), zero)
        amount = b.op("arith.minui", t, y, b.constant(t.bits - 1, t))
        return b.op("arith.shrsi", t, x, amount)

    return apply([x1, x2], emit, dtype, dtype)


def _logical(name: str, word: str, op: str) -> Binary:
    def function(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
        emit = lambda b, t, x, y: b.op(f"arith.{op}", t, x, y)  # noqa: E731
        return apply([astype(tensor(x1), bool_), astype(tensor(x2), bool_)], emit, bool_, bool_)

    doc = f"Compute x1 {word} x2, elementwise, where 0 counts as false; bool."
    return primitive(named(function, name, doc))


logical_and = _logical("logical_and", "and", "andi")
logical_or = _logical("logical_or", "or", "ori")
logical_xor = _logical("logical_xor", "xor", "xori")


def logical_not(x: ArrayLike, /) -> Tracer:
    """Compute `not x`, elementwise, where 0 counts as false; bool."""
    return bitwise_invert(astype(tensor(x), bool_))


@primitive
def nextafter(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Return the next float after x1 in the direction of x2, elementwise; x2 where both are equal."""
    dtype = checked("nextafter", [x1, x2], "f")
    bits = DTYPES[f"i{dtype.bits}"]

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        zero, one = b.constant(0, t), b.constant(1, bits)
        number = b.let(f"arith.bitcast {x} : {t} to {bits}")
        rises, above = b.compare("ogt", t, y, x), b.compare("ogt", t, x, zero)
        away = b.compare("eq", bool_, rises, above)  # from 0: the bits of the size grow
        moved = b.select(
            away, bits, b.op("arith.addi", bits, number, one), b.op("arith.subi", bits, number, one)
        )
        found = b.let(f"arith.bitcast {moved} : {bits} to {t}")
        least = b.op("math.copysign", t, b.let(f"arith.bitcast {one} : {bits} to {t}"), y)
        found = b.select(b.compare("oeq", t, x, zero), t, least, found)
        found = b.select(b.compare("oeq", t, x, y), t, y, found)
        return b.select(b.compare("uno", t, x, y), t, b.op("arith.addf", t, x, y), found)

    return apply([x1, x2], emit, dtype, dtype)


@primitive
def view(x: ArrayLike, /, dtype: DTypeLike) -> Tracer:
    """Return the bits of x as elements of another dtype of the same width, elementwise."""
    value, wanted = tensor(x), as_dtype(dtype)
    if value.dtype.bits != wanted.bits or "c" in (value.dtype.kind, wanted.kind):
        fail(
            f"view: {value.dtype!r} of {value.dtype.bits} bits as {wanted!r} of {wanted.bits}: "
            "real dtypes of one width are right"
        )

    if value.dtype.kind in INTEGERS and wanted.kind in INTEGERS:
        return astype(value, wanted)
    bits = DTYPES[f"i{wanted.bits}"]
    given = astype(value, bits) if value.dtype.kind == "u" else value
    target = bits if wanted.kind == "u" else wanted

    def emit(b: Body, t: DType, a: str) -> str:
        return a if t is target else b.let(f"arith.bitcast {a} : {t} to {target}")

    return astype(apply([given], emit, given.dtype, target, target), wanted)
