"""Read and make DLPack capsules: their structs, and floats that NumPy does not know.

NumPy takes bf16 numbers as 16-bit integers once the capsule says that they are integers, and gives them away as bf16
once the capsule of its integers says so; floats of 8 bits likewise.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from meshweave.bundle import public_dtype
from meshweave.runtime.memory import Values

INT, UINT, FLOAT, COMPLEX, BOOL = 0, 1, 2, 5, 6  # DLDataTypeCode
CODES = {"bf16": 4, "f8E4M3FN": 10, "f8E4M3FNUZ": 11, "f8E5M2": 12, "f8E5M2FNUZ": 13}
"""The codes of floats that NumPy does not know."""
FRESH, USED = b"dltensor", b"used_dltensor"  # names of a capsule before and after it is consumed
_VERSIONED = b"dltensor_versioned"
_VERSIONED_HEAD = 8 + 8 + 8 + 8  # bytes before its DLTensor: version, context, deleter, flags


class DLTensor(ctypes.Structure):
    """Mirror the C struct of this name."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class DLManagedTensor(ctypes.Structure):
    """Mirror the C struct of this name."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# Prototypes of our own: `ctypes.pythonapi.X` is one object for all that set its types. A capsule goes by its address:
# to give one that is being freed as an object would bring it back to life.
_api = ctypes.pythonapi
Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, Destructor)(
    ("PyCapsule_New", _api)
)
is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)


class HasDLPack(Protocol):
    """Give its elements by DLPack, as arrays of most libraries do."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> object:
        """Return a capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind of memory and the number of the device."""


def capsule_of(held: Values, dtype: str) -> object:
    """Return a capsule of elements in the memory of what buffers hold of them. BufferError if it is read-only."""
    if dtype not in CODES:
        return held.__dlpack__()
    capsule = held.view(f"i{held.dtype.itemsize}").__dlpack__()
    _tensor_in(capsule).code = CODES[dtype]
    return capsule


def unknown_to_numpy(value: HasDLPack) -> Values | None:
    """Return another library's array, in its memory, with a dtype of ml_dtypes; None if it has another."""
    if value.__dlpack_device__()[0] != 1:
        return None
    try:
        capsule = value.__dlpack__(max_version=(1, 0))  # tells that it may be written
    except TypeError:
        capsule = value.__dlpack__()  # of a library from before versions
    except (BufferError, RuntimeError, AttributeError):
        return None
    tensor = _tensor_in(capsule)
    dtype = next((name for name, code in CODES.items() if code == tensor.code), None)
    if dtype is None:
        return None
    tensor.code = UINT
    found: Values = np.from_dlpack(_Given(capsule)).view(public_dtype(dtype))
    return found


def _tensor_in(capsule: object) -> DLTensor:
    """Return the tensor of a capsule, in place."""
    at = id(capsule)
    if is_named(at, FRESH):
        return DLTensor.from_address(pointer_in(at, FRESH))
    return DLTensor.from_address(pointer_in(at, _VERSIONED) + _VERSIONED_HEAD)


class _Given:
    """Hand out a capsule in the way that NumPy asks for it."""

    def __init__(self, capsule: Any) -> None:  # a capsule: no type says so in Python 3.10
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
