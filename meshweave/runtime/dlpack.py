"""DLPack of bf16, which NumPy has not: its capsules of 16-bit integers, told to be bf16, and the other way round."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

_INT, _UINT, _BFLOAT = 0, 1, 4  # DLDataTypeCode
_DTYPE = 8 + 8 + 4  # of a DLTensor: behind data, device and ndim
_OFFSETS = {b"dltensor": _DTYPE, b"dltensor_versioned": 8 + 8 + 8 + 8 + _DTYPE}

# Prototypes of our own: `ctypes.pythonapi.X` is one object for all that set its types.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


def bf16_capsule(bits: npt.NDArray[np.uint16]) -> Any:
    """A capsule of bf16 numbers in the memory of their 16-bit patterns. BufferError where that is read-only."""
    capsule = bits.view(np.int16).__dlpack__()
    _code(capsule).value = _BFLOAT
    return capsule


def bf16_bits(value: Any) -> npt.NDArray[np.uint16] | None:
    """The 16-bit patterns of an array of another library, in its memory; None where its elements are not bf16."""
    if value.__dlpack_device__()[0] != 1:
        return None
    try:
        capsule = value.__dlpack__(max_version=(1, 0))  # tells that it may be written
    except TypeError:
        capsule = value.__dlpack__()  # of a library from before versions
    except (BufferError, RuntimeError, AttributeError):
        return None
    code = _code(capsule)
    if code.value != _BFLOAT:
        return None
    code.value = _UINT
    return np.asarray(np.from_dlpack(_Given(capsule)), np.uint16)


def _code(capsule: Any) -> ctypes.c_uint8:
    """The kind of a capsule's elements, in place."""
    name = next(name for name in _OFFSETS if _is_named(capsule, name))
    return ctypes.c_uint8.from_address(_pointer(capsule, name) + _OFFSETS[name])


class _Given:
    """A capsule as NumPy asks for it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
