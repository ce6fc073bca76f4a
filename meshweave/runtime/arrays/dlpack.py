"""Read and make DLPack capsules: their structs, and bf16, which NumPy does not know.

NumPy takes bf16 numbers as 16-bit integers once the capsule says that they are integers, and gives them away as bf16
once the capsule of its integers says so.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6  # DLDataTypeCode
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


def bf16_capsule(bits: npt.NDArray[np.uint16]) -> object:
    """Return a capsule of bf16 numbers in the memory of their 16-bit patterns. BufferError if it is read-only."""
    capsule = bits.view(np.int16).__dlpack__()
    _tensor_in(capsule).code = BFLOAT
    return capsule


def bf16_bits(value: HasDLPack) -> npt.NDArray[np.uint16] | None:
    """Return the 16-bit patterns of another library's array, in its memory; None if its elements are not bf16."""
    if value.__dlpack_device__()[0] != 1:
        return None
    try:
        capsule = value.__dlpack__(max_version=(1, 0))  # tells that it may be written
    except TypeError:
        capsule = value.__dlpack__()  # of a library from before versions
    except (BufferError, RuntimeError, AttributeError):
        return None
    tensor = _tensor_in(capsule)
    if tensor.code != BFLOAT:
        return None
    tensor.code = UINT
    return np.asarray(np.from_dlpack(_Given(capsule)), np.uint16)


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
