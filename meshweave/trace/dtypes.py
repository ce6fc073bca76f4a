"""Element types of traced programs, and which type an operation on several of them has.

Promotion is that of the array API standard, with these choices where it leaves some: float16 with bfloat16 gives
float32; an integer array beside a floating one takes the floating type (as in JAX and PyTorch); bool beside a number
takes the number's type. Python scalars (and `np.float64` values, which are Python floats) are weak: they take the
arrays' type, unless their kind is higher: then an int gives int64, a float float32. These two are the default types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshweave.bundle import NUMPY_DTYPES
from meshweave.errors import UsageError


@dataclass(frozen=True)
class DType:
    """An element type. name: as in IR ("f32"); kind: "b", "i" or "f"; bits: of one element."""

    name: str
    kind: str
    bits: int

    def __repr__(self) -> str:
        return f"meshweave.{_LONG[self.name]}"

    def __str__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type whose arrays hold such elements; of bfloat16 that of its bits."""
        return np.dtype(NUMPY_DTYPES[self.name])


bool_ = DType("i1", "b", 1)
int8 = DType("i8", "i", 8)
int16 = DType("i16", "i", 16)
int32 = DType("i32", "i", 32)
int64 = DType("i64", "i", 64)
float16 = DType("f16", "f", 16)
bfloat16 = DType("bf16", "f", 16)
float32 = DType("f32", "f", 32)
float64 = DType("f64", "f", 64)
e, inf, nan, pi = math.e, math.inf, math.nan, math.pi

_LONG = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip
DTYPES = {
    d.name: d for d in (bool_, int8, int16, int32, int64, float16, bfloat16, float32, float64)
}
DEFAULT_INT, DEFAULT_FLOAT = int64, float32
_BY_NAME = {**DTYPES, **{_LONG[n]: d for n, d in DTYPES.items()}}
_BY_NUMPY = {d.numpy: d for d in DTYPES.values() if d is not bfloat16}
_KINDS = "bif"
_WEAK = {"b": bool_, "i": DEFAULT_INT, "f": DEFAULT_FLOAT}


def as_dtype(value: Any) -> DType:
    """The element type that a DType, a name ("f32", "float32"), a NumPy dtype or bool, int, float mean.

    Raises UsageError when it is none that programs can hold.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    python = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT}
    if isinstance(value, type) and value in python:
        return python[value]
    try:
        known = np.dtype(value)
    except TypeError:
        known = None
    if known is not None and known.name == "bfloat16":
        return bfloat16
    if known is not None and known.newbyteorder("=") in _BY_NUMPY and not known.isnative:
        raise UsageError(
            f"dtype {known}: bytes in another machine's order; astype({str(known.newbyteorder('='))!r}) is right"
        )
    if known is None or known not in _BY_NUMPY:
        raise UsageError(f"dtype {value}: known are {', '.join(_LONG.values())}")
    return _BY_NUMPY[known]


class _Info(NamedTuple):
    """Limits of a type."""

    bits: int
    min: float
    max: float
    dtype: DType
    eps: float = 0.0
    smallest_normal: float = 0.0


_MANTISSA = {"f64": (52, -1022), "f32": (23, -126), "f16": (10, -14), "bf16": (7, -126)}


def finfo(dtype: Any, /) -> _Info:
    """Of a floating dtype: bits, min, max, eps (from 1 to the next), smallest_normal. UsageError of another."""
    found = as_dtype(getattr(dtype, "dtype", dtype) if not isinstance(dtype, type) else dtype)
    if found.kind != "f":
        raise UsageError(f"finfo: {found!r} is no floating dtype")
    digits, least = _MANTISSA[found.name]
    largest = (2 - 2.0**-digits) * 2.0 ** (1 - least)
    return _Info(found.bits, -largest, largest, found, 2.0**-digits, 2.0**least)


def iinfo(dtype: Any, /) -> _Info:
    """Of an integer dtype: bits, min, max. UsageError of another."""
    found = as_dtype(getattr(dtype, "dtype", dtype) if not isinstance(dtype, type) else dtype)
    if found.kind != "i":
        raise UsageError(f"iinfo: {found!r} is no integer dtype")
    low, high = limits(found)
    return _Info(found.bits, low, high, found)


_CLASSES = {
    "bool": "b", "signed integer": "i", "unsigned integer": "", "integral": "i",
    "real floating": "f", "complex floating": "", "numeric": "if",
}  # fmt: skip


def isdtype(dtype: Any, kind: Any) -> bool:
    """Is a dtype of a kind: "bool", "integral", "real floating", "numeric", .., a dtype, or a tuple of these?"""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in _CLASSES:
        return as_dtype(dtype).kind in _CLASSES[kind] and _CLASSES[kind] != ""
    if isinstance(kind, str) and kind not in _BY_NAME:
        raise UsageError(f'isdtype: kind "{kind}": known are {", ".join(_CLASSES)}')
    return as_dtype(dtype) == as_dtype(kind)


def can_cast(source: Any, target: Any, /) -> bool:
    """Does promotion ever take a dtype (or an array's) to another?"""
    given = as_dtype(source if isinstance(source, type | str) else getattr(source, "dtype", source))
    wanted = as_dtype(target)
    return promoted([given, wanted], []) == wanted


def weak_kind(value: Any) -> str | None:
    """The kind ("b", "i", "f") of a Python scalar, None for anything else."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int):
        return "i"
    return "f" if isinstance(value, float) else None


def promoted(strong: list[DType], weak: list[str]) -> DType:
    """The type of an operation on arrays of types `strong` and Python scalars of kinds `weak`."""
    if not strong:
        return _WEAK[max(weak, key=_KINDS.index)]
    result = strong[0]
    for other in strong[1:]:
        result = _pair(result, other)
    for kind in weak:
        if _KINDS.index(kind) > _KINDS.index(result.kind):
            result = _WEAK[kind]
    return result


def _pair(a: DType, b: DType) -> DType:
    if a == b:
        return a
    if a.kind != b.kind:
        return max(a, b, key=lambda d: _KINDS.index(d.kind))
    if a.bits == b.bits:  # float16 and bfloat16: neither holds the other
        return float32
    return max(a, b, key=lambda d: d.bits)


def floating(dtype: DType) -> DType:
    """The type itself when it is floating, else the default floating type."""
    return dtype if dtype.kind == "f" else DEFAULT_FLOAT


def limits(dtype: DType) -> tuple[float | int, float | int]:
    """The least and the largest value: -inf and inf of floats."""
    if dtype.kind == "f":
        return float("-inf"), float("inf")
    if dtype.kind == "b":
        return 0, 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def literal(value: Any, dtype: DType) -> str:
    """A Python scalar as MLIR writes a constant of this type. Raises UsageError when an integer does not fit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind == "i":
        low, high = limits(dtype)
        if value in (math.inf, -math.inf) or value != value:
            raise UsageError(f"{value} is no {_LONG[dtype.name]}")
        number = int(value)
        if not low <= number <= high:
            raise UsageError(f"{number} is no {_LONG[dtype.name]}")
        return str(number)
    return _float_literal(float(value), dtype)


_SPECIAL = {  # infinity, minus infinity, NaN
    "f64": ("0x7FF0000000000000", "0xFFF0000000000000", "0x7FF8000000000000"),
    "f32": ("0x7F800000", "0xFF800000", "0x7FC00000"),
    "f16": ("0x7C00", "0xFC00", "0x7E00"),
    "bf16": ("0x7F80", "0xFF80", "0x7FC0"),
}
_LARGEST = {"f64": 1.7976931348623157e308, "f32": 3.4028235677973366e38, "f16": 65520.0}


def _float_literal(value: float, dtype: DType) -> str:
    infinite, negative, nan = _SPECIAL[dtype.name]
    largest = _LARGEST.get(dtype.name, 3.3953138981538e38)  # what rounds to infinity from here on
    if value != value:
        return nan
    if abs(value) >= largest and (dtype.name != "f64" or abs(value) == float("inf")):
        return infinite if value > 0 else negative
    mantissa, e, exponent = repr(value).partition("e")
    return mantissa + ("" if "." in mantissa else ".0") + e + exponent
