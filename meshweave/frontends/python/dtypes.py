"""Define the element types of traced programs, and how they promote.

Promotion is that of the array API standard, with these choices where it leaves some: float16 with bfloat16 gives
float32, and so do two kinds of floats of 8 bits; an integer array beside a floating one takes the floating type (as in
JAX and PyTorch); bool beside a number takes the number's type. Python scalars (and `np.float64` values, which are
Python floats) are weak: they take the arrays' type, unless their kind is higher: then an int gives int64, a float
float32. These two are the default types; `mw.default_float` chooses another floating one.
An integer with sign beside one without gives the narrowest with sign that holds both, and float64 beside uint64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshweave.bundle import OF_A_BYTE, OF_ML_DTYPES, numpy_dtype, public_dtype
from meshweave.errors import UsageError
from meshweave.frontends.python.scopes import ThreadScope
from meshweave.layout import Mesh


@dataclass(frozen=True, eq=False)
class DType:
    """Describe an element type. name: "f32"; kind: "b", "i", "u", "f" or "c"; bits: of one element.

    It is equal to its names and to the NumPy dtype that Arrays of it have, and NumPy takes it for that.
    """

    name: str
    kind: str
    bits: int

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return other in (self.name, _LONG[self.name])
        return isinstance(other, np.dtype) and other.name == _LONG[self.name] and other.isnative

    @cached_property
    def _hash(self) -> int:
        return hash(self.dtype)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return as_dtype, (self.name,)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Return the NumPy dtype of Arrays of such elements; of bfloat16 and others that of the package ml_dtypes."""
        return public_dtype(self.name)

    @property
    def element(self) -> str:
        """Return the type of elements in IR, where integers have no sign."""
        return self.name.removeprefix("u")

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return -(-self.bits // 8)

    def __repr__(self) -> str:
        return f"meshweave.{_LONG[self.name]}"

    def __str__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """Return the NumPy dtype that holds such elements; for bfloat16 that of its bits."""
        return numpy_dtype(self.name)


RealScalar: TypeAlias = bool | int | float
Scalar: TypeAlias = RealScalar | complex
"""A Python scalar: it takes the dtype of the arrays that it meets."""
DTypeLike: TypeAlias = DType | str | type | np.dtype[Any]
"""What `as_dtype` reads."""
Kind: TypeAlias = DTypeLike | tuple["Kind", ...]
"""What `isdtype` compares with."""

bool_ = DType("i1", "b", 1)
int8 = DType("i8", "i", 8)
int16 = DType("i16", "i", 16)
int32 = DType("i32", "i", 32)
int64 = DType("i64", "i", 64)
uint8 = DType("ui8", "u", 8)
uint16 = DType("ui16", "u", 16)
uint32 = DType("ui32", "u", 32)
uint64 = DType("ui64", "u", 64)
float16 = DType("f16", "f", 16)
bfloat16 = DType("bf16", "f", 16)
float8_e4m3fn = DType("f8E4M3FN", "f", 8)
float8_e5m2 = DType("f8E5M2", "f", 8)
float8_e4m3fnuz = DType("f8E4M3FNUZ", "f", 8)
float8_e5m2fnuz = DType("f8E5M2FNUZ", "f", 8)
int4 = DType("i4", "i", 4)
uint4 = DType("ui4", "u", 4)
float32 = DType("f32", "f", 32)
float64 = DType("f64", "f", 64)
complex64 = DType("complex<f32>", "c", 64)
complex128 = DType("complex<f64>", "c", 128)
e, inf, nan, pi = math.e, math.inf, math.nan, math.pi

_LONG = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "complex<f32>": "complex64", "complex<f64>": "complex128", **OF_A_BYTE,
}  # fmt: skip
_FLOATS, _COMPLEX = (float16, bfloat16, float32, float64), (complex64, complex128)
_UNSIGNED = (uint8, uint16, uint32, uint64)
_OF_A_BYTE = (float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, int4, uint4)
_NUMPYS = (bool_, int8, int16, int32, int64, *_UNSIGNED, *_FLOATS, *_COMPLEX)
DTYPES = {d.name: d for d in (*_NUMPYS, *_OF_A_BYTE)}
DEFAULT_INT = int64
_BY_NAME = {**DTYPES, **{_LONG[n]: d for n, d in DTYPES.items()}}
_BY_NUMPY = {d.numpy: d for d in _NUMPYS if d is not bfloat16}
INTEGERS = "iu"
"""The kinds of integers."""
_LEVELS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # of kinds: the higher one wins
_WEAK = {"b": bool_, "i": DEFAULT_INT, "u": uint64}


class _Chosen(ThreadScope):
    """Hold the default floating dtype of this thread."""

    floating: DType = float32


CHOSEN = _Chosen()


def default_floating() -> DType:
    """Return the dtype of floats where nothing else says one: float32, but within `mw.default_float`."""
    return CHOSEN.floating


def _weak(kind: str) -> DType:
    """Return the dtype of a Python scalar of a kind that meets no array."""
    if kind == "f":
        return CHOSEN.floating
    return complex_of(CHOSEN.floating) if kind == "c" else _WEAK[kind]


def as_dtype(value: DTypeLike) -> DType:
    """Return the element type that a DType, a name ("f32", "float32"), a NumPy dtype or bool, int, float mean.

    Raises UsageError if programs cannot hold it.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, type) and value in (bool, int, float, complex):
        return _weak(value.__name__[0])
    try:
        known = np.dtype(value)
    except TypeError:
        known = None
    if known is not None and known.name in OF_ML_DTYPES:
        return _BY_NAME[known.name]
    if known is not None and known.newbyteorder("=") in _BY_NUMPY and not known.isnative:
        raise UsageError(
            f"dtype {known}: bytes in another machine's order; astype({str(known.newbyteorder('='))!r}) is right"
        )
    if known is None or known not in _BY_NUMPY:
        raise UsageError(f"dtype {value}: known are {', '.join(_LONG.values())}")
    return _BY_NUMPY[known]


class TypeLimits(NamedTuple):
    """Hold the limits of a dtype; eps is the distance from 1 to the next number."""

    bits: int
    min: float
    max: float
    dtype: DType
    eps: float = 0.0
    smallest_normal: float = 0.0


_MANTISSA = {"f64": (52, -1022), "f32": (23, -126), "f16": (10, -14), "bf16": (7, -126)}


def finfo(dtype: object, /) -> TypeLimits:
    """Return bits, min, max, eps and smallest_normal of a floating dtype, of a complex one those of its parts.

    Raises UsageError for another.
    """
    found = part(own_dtype(dtype))
    if found.kind != "f":
        raise UsageError(f"finfo: {found!r} is no floating dtype")
    if found.bits == 8:
        import ml_dtypes  # here, for most programs have no such floats

        of: Any = ml_dtypes.finfo(found.numpy)  # type: ignore[no-untyped-call]
        least, most, eps, normal = map(float, (of.min, of.max, of.eps, of.smallest_normal))
        return TypeLimits(8, least, most, found, eps, normal)
    digits, least = _MANTISSA[found.name]
    largest = (2 - 2.0**-digits) * 2.0 ** (1 - least)
    return TypeLimits(found.bits, -largest, largest, found, 2.0**-digits, 2.0**least)


def iinfo(dtype: object, /) -> TypeLimits:
    """Return bits, min and max of an integer dtype. Raises UsageError for another."""
    found = own_dtype(dtype)
    if found.kind not in INTEGERS:
        raise UsageError(f"iinfo: {found!r} is no integer dtype")
    low, high = limits(found)
    return TypeLimits(found.bits, low, high, found)


_CLASSES = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu",
    "real floating": "f", "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


def isdtype(dtype: DTypeLike, kind: Kind) -> bool:
    """Tell whether a dtype is of a kind: "bool", "integral", "numeric", ..., a dtype, or any of a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in _CLASSES:
        return as_dtype(dtype).kind in _CLASSES[kind]
    if isinstance(kind, str) and kind not in _BY_NAME:
        raise UsageError(f'isdtype: kind "{kind}": known are {", ".join(_CLASSES)}')
    return as_dtype(dtype) == as_dtype(kind)


@dataclass(frozen=True)
class Info:
    """Describe the capabilities, devices and dtypes of meshweave as an array library (`__array_namespace_info__`).

    traced: whether a function is traced: the shapes in its program do not depend on elements.
    """

    traced: bool = False

    def capabilities(self) -> dict[str, bool | int]:
        """Return whether masks may be indices and shapes may depend on elements; and the most dims, 64."""
        any_shape = not self.traced
        names = ("boolean indexing", "data-dependent shapes")
        return dict.fromkeys(names, any_shape) | {"max dimensions": 64}

    def default_device(self) -> None:
        """Return None, which means the mesh of the program."""
        return None

    def devices(self) -> list[None]:
        """Return None alone, which means the mesh of the program."""
        return [None]

    def default_dtypes(self, *, device: Mesh | None = None) -> dict[str, DType]:
        """Return the dtypes of results where none is given."""
        floats = {"real floating": _weak("f"), "complex floating": _weak("c")}
        return floats | {"integral": DEFAULT_INT, "indexing": DEFAULT_INT}

    def dtypes(self, *, device: Mesh | None = None, kind: Kind | None = None) -> dict[str, DType]:
        """Return the standard's dtypes by name; kind: only those of a kind, as `isdtype` takes it.

        float16, bfloat16 and those of a byte or less are no names of the standard's.
        """
        every = {_LONG[d.name]: d for d in _NUMPYS if d not in (float16, bfloat16)}
        return {name: d for name, d in every.items() if kind is None or isdtype(d, kind)}


def own_dtype(value: Any) -> DType:  # a dtype, or anything with one
    """Return the dtype that a value is, or has."""
    return as_dtype(value if isinstance(value, type | str) else getattr(value, "dtype", value))


def can_cast(source: object, target: DTypeLike, /) -> bool:
    """Tell whether promotion can take a dtype (or that of an array) to another."""
    given = own_dtype(source)
    wanted = as_dtype(target)
    return promoted([given, wanted], []) == wanted


def weak_kind(value: object) -> str | None:
    """Return the kind ("b", "i", "f", "c") of a Python scalar, None for anything else."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int):
        return "i"
    if isinstance(value, complex):
        return "c"
    return "f" if isinstance(value, float) else None


def promoted(strong: list[DType], weak: list[str]) -> DType:
    """Return the dtype of an operation on arrays of dtypes `strong` and Python scalars of kinds `weak`."""
    if not strong:
        return _weak(max(weak, key=lambda kind: _LEVELS[kind]))
    result = strong[0]
    for other in strong[1:]:
        result = _joined(result, other)
    for kind in weak:
        if _LEVELS[kind] > _LEVELS[result.kind]:
            result = _weak(kind) if kind != "c" else complex_of(result)
    wide = any(other in (float64, complex128) for other in strong)
    return complex128 if wide and result.kind == "c" else result


def _joined(one: DType, other: DType) -> DType:
    """Return the dtype of an operation on arrays of two dtypes."""
    if {one.kind, other.kind} == set(INTEGERS):
        signed, unsigned = (one, other) if one.kind == "i" else (other, one)
        bits = max(signed.bits, 2 * unsigned.bits)
        return DTYPES[f"i{bits}"] if bits <= DEFAULT_INT.bits else float64
    if (one.kind, one.bits) == (other.kind, other.bits) and one != other:
        return float32  # of float16 and bfloat16 neither holds the other
    return max(one, other, key=lambda d: (_LEVELS[d.kind], d.bits))


def result_type(*values: object) -> DType:
    """Return the dtype that an operation on these arrays, dtypes and Python scalars has."""
    strong, weak = [], []
    for value in values:
        kind = weak_kind(value)
        if kind is not None:
            weak.append(kind)
        elif getattr(value, "weak", False):
            weak.append(own_dtype(value).kind)
        else:
            strong.append(own_dtype(value))
    if not strong and not weak:
        raise UsageError("result_type: at least one array or dtype is needed")
    return promoted(strong, weak)


def floating(dtype: DType) -> DType:
    """Return a floating or complex dtype itself, the default floating dtype for others."""
    return dtype if dtype.kind in "fc" else CHOSEN.floating


def part(dtype: DType) -> DType:
    """Return the dtype of the real and the imaginary part of a complex dtype; any other is its own."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """Return the complex dtype that holds numbers of a dtype, as precise as floats of it are."""
    like = dtype if dtype.kind in "fc" else CHOSEN.floating
    return complex128 if like in (float64, complex128) else complex64


def op_of(word: str, dtype: DType) -> str:
    """Return the op that adds, subtracts or multiplies (`add`, `sub`, `mul`) numbers of a dtype."""
    if dtype.kind == "c":
        return f"complex.{word}"
    return f"arith.{word}{'i' if dtype.kind in INTEGERS else dtype.kind}"


def accumulator(dtype: DType) -> DType:
    """Return the dtype that sums of `dtype` are computed in: float32 for floats of fewer bits."""
    return float32 if dtype.kind == "f" and dtype.bits < 32 else dtype


def limits(dtype: DType) -> tuple[float | int, float | int]:
    """Return the smallest and the largest value: -inf and inf for floats that have them."""
    if dtype.kind == "f" and dtype.bits == 8 and dtype is not float8_e5m2:
        found = finfo(dtype)
        return found.min, found.max
    if dtype.kind == "f":
        return float("-inf"), float("inf")
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "u":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def literal(value: Scalar, dtype: DType) -> str:
    """Write a Python scalar as an MLIR constant of this type. Raises UsageError if an integer does not fit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind == "c":
        number = complex(value)
        return f"({_float_literal(number.real, part(dtype))}, {_float_literal(number.imag, part(dtype))})"
    if isinstance(value, complex):
        raise UsageError(f"{value} is no {_LONG[dtype.name]}")
    if dtype.kind in INTEGERS:
        low, high = limits(dtype)
        if value in (math.inf, -math.inf) or value != value:
            raise UsageError(f"{value} is no {_LONG[dtype.name]}")
        number = int(value)
        if not low <= number <= high:
            raise UsageError(f"{number} is no {_LONG[dtype.name]}")
        signed = number >> (dtype.bits - 1) & 1 and dtype.kind == "u"
        return str(number - (1 << dtype.bits) if signed else number)
    return _float_literal(float(value), dtype)


def _float_literal(value: float, dtype: DType) -> str:
    """Write a float: MLIR rounds numbers to the type, and takes infinities and NaN as their bits."""
    if math.isfinite(value):
        mantissa, e, exponent = repr(value).partition("e")
        return mantissa + ("" if "." in mantissa else ".0") + e + exponent
    if dtype.bits == 8:
        return f"0x{np.array(value, dtype.numpy).view(np.uint8):02X}"
    kind = ">f4" if dtype is bfloat16 else f">f{dtype.bits // 8}"  # bf16: the first half of f32
    bits = np.array(value if value == value else math.nan, kind).tobytes().hex().upper()
    return f"0x{bits[: dtype.bits // 4]}"
