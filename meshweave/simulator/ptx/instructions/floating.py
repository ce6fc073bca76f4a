"""Execute arithmetic of floating point, and the operations that integers share with it.

These are add, sub, mul, mad, min, max, abs, neg, div.

f32 and f64 are those of NumPy, rounded to nearest even; other roundings and fused operations come
from `numbers`. The approximations (`.approx`, `.full`) are closer than the device's: ex2, lg2, sin, cos
and tanh are computed in f64 and rounded, about 2 ulp (tanh 2^-11, sin and cos 2^-20.5 absolute) off on
the device; division, rcp and sqrt are correctly rounded here, up to 2 ulp off there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.simulator.ptx.handlers import (
    Builder,
    Handler,
    Scope,
    computed,
    elementwise,
    type_of,
    unsigned,
)
from meshweave.simulator.ptx.instructions import integer
from meshweave.simulator.ptx.instructions.integer import is_float
from meshweave.simulator.ptx.numbers import direct as directed
from meshweave.simulator.ptx.numbers import (
    fma32,
    fma64,
    fma_small,
    narrow,
    saturate,
    two_sum,
    widen,
)
from meshweave.simulator.ptx.program import Instruction

_DIRECTED = ("rz", "rm", "rp")


def _mode(instruction: Instruction) -> str | None:
    for part in instruction.parts:
        if part in _DIRECTED:
            return part
    return None


def _with_mode(mode: str, exact: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Any:
    """Round an f32 operation as `mode` says. exact: returns its result in f64 and the error of that."""

    def run(*values: np.ndarray) -> np.ndarray:
        total, error = exact(*[value.astype(np.float64) for value in values])
        result = total.astype(np.float32)
        off = total - result
        return directed(result, np.where(off == 0, error, off), mode)

    return run


def _exact_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product = x * y
    return product, np.zeros_like(product)


_EXACT: dict[str, Any] = {
    "add": two_sum,
    "sub": lambda x, y: two_sum(x, -y),
    "mul": _exact_product,
    "fma": lambda x, y, z: two_sum(x * y, z),
}
_PLAIN = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def arithmetic(instruction: Instruction, scope: Scope) -> Handler:
    """Execute add, sub and mul of any type."""
    kind, name = type_of(instruction), instruction.parts[0]
    if not is_float(kind):
        if name == "mul":
            return integer.multiply(instruction, scope)
        if instruction.has("cc"):
            return integer.with_carry(instruction, scope)
        if instruction.has("sat"):
            raise instruction.refuse()
        kind = {"s16x2": "u16x2"}.get(kind, unsigned(kind))
        return elementwise(instruction, scope, kind, _PLAIN[name], 2)
    mode = _mode(instruction)
    if mode is None:
        return elementwise(instruction, scope, kind, _PLAIN[name], 2)
    if kind != "f32":
        raise instruction.refuse("this rounding is emulated for f32 alone")
    return elementwise(instruction, scope, kind, _with_mode(mode, _EXACT[name]), 2)


def fused(instruction: Instruction, scope: Scope) -> Handler:
    """Execute fma, and mad of floating point, which is the same."""
    kind = type_of(instruction)
    if not is_float(kind):
        carry = instruction.has("cc")
        return (integer.with_carry if carry else integer.multiply)(instruction, scope)
    mode = _mode(instruction)
    if mode is not None:
        if kind != "f32":
            raise instruction.refuse("this rounding is emulated for f32 alone")
        return elementwise(instruction, scope, kind, _with_mode(mode, _EXACT["fma"]), 3)
    if kind in ("f32", "f64"):
        return elementwise(instruction, scope, kind, fma32 if kind == "f32" else fma64, 3)
    return _fused_small(instruction, scope, kind)


def _fused_small(instruction: Instruction, scope: Scope, kind: str) -> Handler:
    small = kind.startswith("bf16")
    sources = [scope.slot(instruction, n, kind) for n in (1, 2, 3)]

    def run(*values: np.ndarray) -> np.ndarray:
        if small:
            values = tuple(widen(value) for value in values)
        out = fma_small(*values)
        if instruction.has("relu"):
            out = np.where(np.isnan(out), out, np.maximum(out, 0))
        if instruction.has("sat"):
            out = saturate(out)
        return bf16_of(out) if small else out.astype(np.float16)

    return computed(run, scope.slot(instruction, 0, kind), sources)


def bf16_of(values: np.ndarray) -> np.ndarray:
    """Round f64 to bf16 once, by way of f32 rounded to odd."""
    middle = values.astype(np.float32)
    off = values - middle
    bits = middle.view(np.uint32)
    even = (bits & np.uint32(1)) == 0
    inexact = (off != 0) & np.isfinite(off)
    towards = np.where(off > 0, np.float32(np.inf), np.float32(-np.inf))
    return narrow(np.where(even & inexact, np.nextafter(middle, towards), middle))


def division(instruction: Instruction, scope: Scope) -> Handler:
    """Execute div of any type."""
    kind = type_of(instruction)
    if not is_float(kind):
        return integer.divide(instruction, scope)
    if _mode(instruction):
        raise instruction.refuse("division with this rounding is not emulated")
    return elementwise(instruction, scope, kind, np.divide, 2)


def _nan_through(function: Any) -> Any:
    return lambda *values: _reduce(function, values)


def _reduce(function: Any, values: tuple[np.ndarray, ...]) -> np.ndarray:
    out = values[0]
    for value in values[1:]:
        out = function(out, value)
    return out


def _number_of(greater: bool) -> Any:
    """Return min or max that prefers numbers to NaN, and orders -0 below +0."""

    def run(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        out: np.ndarray = (np.fmax if greater else np.fmin)(x, y)
        zeros = (x == 0) & (y == 0)
        if zeros.any():
            first = np.signbit(y) if greater else np.signbit(x)
            out = np.where(zeros, np.where(first, x, y), out)
        return out

    return run


def extreme(instruction: Instruction, scope: Scope) -> Handler:
    """Execute min and max: of signed integers with `.relu`, of floats with or without `.NaN`.

    `.xorsign.abs` is refused.
    """
    kind, greater = type_of(instruction), instruction.parts[0] == "max"
    if not is_float(kind):
        chosen = np.maximum if greater else np.minimum
        if instruction.has("relu"):
            return elementwise(
                instruction, scope, kind, lambda x, y: np.maximum(chosen(x, y), 0), 2
            )
        return elementwise(instruction, scope, kind, chosen, 2)
    if instruction.has("xorsign"):
        raise instruction.refuse()
    number = _number_of(greater)
    function = number
    if instruction.has("NaN"):

        def function(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.where(np.isnan(x) | np.isnan(y), np.nan, number(x, y)).astype(x.dtype)

    count = len(instruction.operands) - 1
    return elementwise(instruction, scope, kind, _nan_through(function), count)


def sign(instruction: Instruction, scope: Scope) -> Handler:
    """Execute abs and neg; of floating point they change the sign bit alone."""
    kind, negate = type_of(instruction), instruction.parts[0] == "neg"
    if kind in ("bf16", "bf16x2"):
        raw = "u16" if kind == "bf16" else "bf16x2"
        top = np.uint16(0x8000)
        slots = scope.slot(instruction, 0, raw), [scope.slot(instruction, 1, raw)]
        return computed(lambda x: x ^ top if negate else x & ~top, *slots)
    if is_float(kind):
        return elementwise(instruction, scope, kind, np.negative if negate else np.abs, 1)
    if negate:
        return elementwise(instruction, scope, unsigned(kind), np.negative, 1)
    return elementwise(instruction, scope, kind, np.absolute, 1)


def _reciprocal(x: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.divide(x.dtype.type(1), x)
    return out


def _reciprocal_root(x: np.ndarray) -> np.ndarray:
    return (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype)


def _rounded_once(function: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Compute in f64: NumPy's functions of f32 have other bits on other processors."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


_UNARY: dict[str, Any] = {
    "rcp": _reciprocal, "sqrt": np.sqrt, "rsqrt": _reciprocal_root, "ex2": _rounded_once(np.exp2),
    "lg2": _rounded_once(np.log2), "sin": _rounded_once(np.sin), "cos": _rounded_once(np.cos),
    "tanh": _rounded_once(np.tanh),
}  # fmt: skip


def unary(instruction: Instruction, scope: Scope) -> Handler:
    """Execute functions of one operand, approximate or rounded to nearest."""
    kind, name = type_of(instruction), instruction.parts[0]
    if _mode(instruction):
        raise instruction.refuse("this rounding is not emulated")
    if kind == "f64" and instruction.has("ftz"):
        return _coarse(instruction, scope, _UNARY[name])
    return elementwise(instruction, scope, kind, _UNARY[name], 1)


def _coarse(instruction: Instruction, scope: Scope, function: Any) -> Handler:
    """Execute rcp and rsqrt .approx.ftz.f64, whose result has zeros in the low 32 bits."""

    def run(x: np.ndarray) -> np.ndarray:
        small = np.abs(x) < 2.0**-1022
        exact = function(np.where(small, np.copysign(0.0, x), x))
        out: np.ndarray = (exact.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
        return out

    return computed(run, scope.slot(instruction, 0, "f64"), [scope.slot(instruction, 1, "f64")])


def copy_sign(instruction: Instruction, scope: Scope) -> Handler:
    """Execute copysign: put the sign of the first operand on the second."""
    kind = type_of(instruction)
    return elementwise(instruction, scope, kind, lambda x, y: np.copysign(y, x), 2)


def test_property(instruction: Instruction, scope: Scope) -> Handler:
    """Execute testp: classify a number."""
    kind = type_of(instruction)
    tiny = np.finfo(np.float32 if kind == "f32" else np.float64).tiny
    tests: dict[str, Any] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0),
    }
    test = tests[instruction.parts[1]]
    return computed(test, scope.slot(instruction, 0, "pred"), [scope.slot(instruction, 1, kind)])


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("add", "sub", "mul"), arithmetic),
    **dict.fromkeys(("fma", "mad"), fused),
    "div": division,
    "rem": integer.divide,
    **dict.fromkeys(("min", "max"), extreme),
    **dict.fromkeys(("abs", "neg"), sign),
    **dict.fromkeys(_UNARY, unary),
    "copysign": copy_sign,
    "testp": test_property,
}
