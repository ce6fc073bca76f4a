"""Comparisons, tests, bits and logic of the array API standard, elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshweave.trace.builder import Body
from meshweave.trace.dtypes import DTYPES, DType, bool_, float32, int32, int64
from meshweave.trace.elementwise import Emit, apply, astype, named, refuse
from meshweave.trace.tracer import Tracer, operand_dtype, operands, tensor


def _comparison(name: str, sign: str, predicates: tuple[str, str, str]) -> Callable[..., Tracer]:
    def function(x1: Any, x2: Any, /) -> Tracer:
        dtype = operand_dtype(operands([x1, x2]))
        predicate = predicates["fib".index(dtype.kind)]
        emit = lambda b, t, x, y: b.compare(predicate, t, x, y)  # noqa: E731
        return apply([x1, x2], emit, dtype, bool_, bool_)

    return named(function, name, f"x1 {sign} x2, elementwise; bool.")


equal = _comparison("equal", "==", ("oeq", "eq", "eq"))
not_equal = _comparison("not_equal", "!=", ("une", "ne", "ne"))
less = _comparison("less", "<", ("olt", "slt", "ult"))
less_equal = _comparison("less_equal", "<=", ("ole", "sle", "ule"))
greater = _comparison("greater", ">", ("ogt", "sgt", "ugt"))
greater_equal = _comparison("greater_equal", ">=", ("oge", "sge", "uge"))


def _test(name: str, doc: str, emit: Emit, otherwise: bool) -> Callable[[Any], Tracer]:
    def function(x: Any, /) -> Tracer:
        dtype = operand_dtype(operands([x]))
        if dtype.kind != "f":
            return apply([x], lambda b, t, a: b.constant(otherwise, bool_), dtype, bool_, bool_)
        return apply([x], emit, dtype, bool_, bool_)

    return named(function, name, f"Whether x is {doc}, elementwise; bool.")


def _against_infinity(predicate: str) -> Emit:
    return lambda b, t, x: b.compare(predicate, t, b.op("math.absf", t, x), b.constant(math.inf, t))


isnan = _test("isnan", "NaN", lambda b, t, x: b.compare("uno", t, x, x), False)
isinf = _test("isinf", "infinite", _against_infinity("oeq"), False)
isfinite = _test("isfinite", "neither infinite nor NaN", _against_infinity("olt"), True)


def signbit(x: Any, /) -> Tracer:
    """Whether the sign of x is minus, also that of -0.0 and NaN, elementwise; bool."""
    dtype = operand_dtype(operands([x]))
    if dtype.kind == "i":
        return less(x, 0)
    if dtype.kind == "b":
        refuse("signbit", dtype, "a number")

    def emit(b: Body, t: DType, a: str) -> str:
        bits = int64 if t.bits == 64 else int32
        number = b.let(f"arith.bitcast {a} : {t} to {bits}")
        return b.compare("slt", bits, number, b.constant(0, bits))

    return apply([x], emit, float32 if dtype.bits == 16 else dtype, bool_, bool_)


def _bitwise(name: str, sign: str, op: str) -> Callable[[Any, Any], Tracer]:
    def function(x1: Any, x2: Any, /) -> Tracer:
        dtype = operand_dtype(operands([x1, x2]))
        if dtype.kind == "f":
            refuse(name, dtype, "an integer or bool")
        return apply([x1, x2], lambda b, t, x, y: b.op(f"arith.{op}", t, x, y), dtype, dtype)

    return named(function, name, f"x1 {sign} x2 of integers or bools, elementwise.")


bitwise_and = _bitwise("bitwise_and", "&", "andi")
bitwise_or = _bitwise("bitwise_or", "|", "ori")
bitwise_xor = _bitwise("bitwise_xor", "^", "xori")


def bitwise_invert(x: Any, /) -> Tracer:
    """~x of integers, not x of bools, elementwise."""
    dtype = operand_dtype(operands([x]))
    if dtype.kind == "f":
        refuse("bitwise_invert", dtype, "an integer or bool")
    ones = True if dtype.kind == "b" else -1
    return apply([x], lambda b, t, a: b.op("arith.xori", t, a, b.constant(ones, t)), dtype, dtype)


def _integers(name: str, *values: Any) -> DType:
    dtype = operand_dtype(operands(list(values)))
    if dtype.kind != "i":
        refuse(name, dtype, "an integer")
    return dtype


def bitwise_left_shift(x1: Any, x2: Any, /) -> Tracer:
    """x1 * 2**x2 of integers, elementwise, wrapping around; 0 for as many bits as there are, or more."""
    dtype = _integers("bitwise_left_shift", x1, x2)

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        fits = b.compare("ult", t, y, b.constant(t.bits, t))
        amount = b.select(fits, t, y, b.constant(0, t))
        return b.select(fits, t, b.op("arith.shli", t, x, amount), b.constant(0, t))

    return apply([x1, x2], emit, dtype, dtype)


def bitwise_right_shift(x1: Any, x2: Any, /) -> Tracer:
    """floor(x1 / 2**x2) of integers, elementwise."""
    dtype = _integers("bitwise_right_shift", x1, x2)

    def emit(b: Body, t: DType, x: str, y: str) -> str:
        amount = b.op("arith.minui", t, y, b.constant(t.bits - 1, t))
        return b.op("arith.shrsi", t, x, amount)

    return apply([x1, x2], emit, dtype, dtype)


def _logical(name: str, word: str, op: str) -> Callable[[Any, Any], Tracer]:
    def function(x1: Any, x2: Any, /) -> Tracer:
        emit = lambda b, t, x, y: b.op(f"arith.{op}", t, x, y)  # noqa: E731
        return apply([astype(tensor(x1), bool_), astype(tensor(x2), bool_)], emit, bool_, bool_)

    return named(function, name, f"x1 {word} x2, elementwise, where 0 is false; bool.")


logical_and = _logical("logical_and", "and", "andi")
logical_or = _logical("logical_or", "or", "ori")
logical_xor = _logical("logical_xor", "xor", "xori")


def logical_not(x: Any, /) -> Tracer:
    """not x, elementwise, where 0 is false; bool."""
    return bitwise_invert(astype(tensor(x), bool_))


def nextafter(x1: Any, x2: Any, /) -> Tracer:
    """The float next to x1 on the way to x2, elementwise; x2 where both are equal."""
    dtype = operand_dtype(operands([x1, x2]))
    if dtype.kind != "f":
        refuse("nextafter", dtype, "a floating one")
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
