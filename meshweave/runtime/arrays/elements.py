"""Convert elements from the form in which buffers hold them to one that NumPy computes with, and back."""

import numpy as np

from meshweave.bundle import numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.runtime.memory import Values

_BF16 = "bf16"


def wide(array: Values, dtype: str) -> Values:
    """Return an array in a form that NumPy computes in: bf16 as f32, all others unchanged.

    Raises MeshweaveError when the array is not of `dtype` (for bf16: nor f32, nor 16-bit patterns).
    """
    if dtype != _BF16:
        if array.dtype != numpy_dtype(dtype):
            raise MeshweaveError(f"dtype {array.dtype}, {numpy_dtype(dtype)} is right")
        return array
    if array.dtype == np.float32:
        return array
    if _has_bits(array):
        return (_bits(array).astype(np.uint32) << 16).view(np.float32)
    raise MeshweaveError(f"dtype {array.dtype}, bf16 is right: as float32 or its bits as uint16")


def stored(array: Values, dtype: str) -> Values:
    """Return an array as buffers hold it, of bf16 its bits.

    Raises MeshweaveError where `wide` does.
    """
    if dtype == _BF16 and _has_bits(array):
        return _bits(array)
    return narrow(wide(array, dtype), dtype)


def _has_bits(array: Values) -> bool:
    """Tell whether an array has bf16 numbers, not as f32."""
    return array.dtype == np.uint16 or array.dtype.name == "bfloat16"


def _bits(array: Values) -> Values:
    return np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)


def narrow(array: Values, dtype: str) -> Values:
    """Undo `wide`: return an array as buffers hold it, bf16 as its bits, rounded to nearest even."""
    if dtype != _BF16:
        return array
    bits = np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = (bits >> 16).astype(np.uint16) | 0x40  # of NaN, which rounding must not make infinite
    found: Values = np.where(np.isnan(array), quiet, rounded)
    return found
