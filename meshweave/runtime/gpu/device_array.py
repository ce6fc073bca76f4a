"""Exchange arrays on a GPU with other packages without a copy: DLPack, and the CUDA array interface."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from meshweave.bundle import Port, numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.runtime.arrays.dlpack import (
    BOOL,
    CODES,
    COMPLEX,
    FLOAT,
    FRESH,
    INT,
    UINT,
    USED,
    Destructor,
    DLManagedTensor,
    is_named,
    new_capsule,
    pointer_in,
    set_name,
)

CUDA_DEVICE = 2  # kDLCUDA
_CODES = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}  # by NumPy's kind
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_exported: dict[int, Any] = {}  # by address of its struct, what must live as long as it


def _forget(managed: int) -> None:
    _exported.pop(managed, None)


def _forget_capsule(capsule: int) -> None:
    """Free a DLPack capsule that was never consumed."""
    if is_named(capsule, FRESH):
        _exported.pop(pointer_in(capsule, FRESH), None)


_release, _drop_capsule = _Deleter(_forget), Destructor(_forget_capsule)


def _dl_type(dtype: str) -> tuple[int, int]:
    """Return DLPack's code and bits of a dtype."""
    found = numpy_dtype(dtype)
    return CODES.get(dtype) or _CODES[found.kind], found.itemsize * 8


class DeviceArray:
    """Describe dense row-major memory of a GPU.

    It is valid as long as the program that made it says, and is already filled.
    """

    def __init__(
        self, address: int, dtype: str, shape: tuple[int, ...], device: int, owner: object
    ):
        """Describe memory at `address`. dtype: as in a manifest ("f32", "bf16"); owner: what keeps the memory."""
        self.address, self.dtype, self.shape, self.device = address, dtype, shape, device
        self._owner = owner

    @property
    def nbytes(self) -> int:
        """Return the bytes of the elements."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return version 3 of the interface, which has no bf16."""
        if self.dtype == "bf16":
            raise AttributeError("bf16 is not in the CUDA array interface: use DLPack")
        return {
            "shape": self.shape, "typestr": numpy_dtype(self.dtype).str,
            "data": (self.address, False), "version": 3, "strides": None, "stream": None,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind of memory and the number of the GPU."""
        return CUDA_DEVICE, self.device

    def __dlpack__(self, *, stream: object = None, **_: object) -> Any:
        """Return a capsule that other packages' `from_dlpack` takes. stream: ignored, there is nothing to wait for."""
        managed = DLManagedTensor()
        ndim = len(self.shape)
        shape = (ctypes.c_int64 * max(ndim, 1))(*self.shape)
        tensor = managed.tensor
        tensor.data, tensor.device_type, tensor.device = self.address, CUDA_DEVICE, self.device
        tensor.ndim, tensor.lanes = ndim, 1
        tensor.code, tensor.bits = _dl_type(self.dtype)
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = ctypes.cast(_release, ctypes.c_void_p).value
        place = ctypes.addressof(managed)
        _exported[place] = managed, shape, self
        return new_capsule(place, FRESH, _drop_capsule)


class Foreign(NamedTuple):
    """Describe memory of a GPU that another package owns. kind: (code, bits) as in DLPack."""

    address: int
    kind: tuple[int, int]
    shape: tuple[int, ...]
    dense: bool
    device: int | None
    owner: object


def is_foreign(value: object) -> bool:
    """Tell whether a value is an array on a GPU."""
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == CUDA_DEVICE


def foreign(value: Any) -> Foreign:
    """Describe an array on a GPU. Raises MeshweaveError when it cannot be read."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(interface, value)
    return _of_capsule(value.__dlpack__(), value)


def _of_interface(interface: Mapping[str, Any], owner: object) -> Foreign:
    text = interface["typestr"]
    if text[1] not in _CODES or text[0] == ">":
        raise MeshweaveError(f'an array of typestr "{text}" cannot be read')
    width = int(text[2:])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if strides is not None:
        strides = tuple(step // width for step in strides)
    return Foreign(
        int(interface["data"][0]), (_CODES[text[1]], 8 * width), shape, _dense(shape, strides),
        None, owner,
    )  # fmt: skip


def _of_capsule(capsule: object, owner: object) -> Foreign:
    """Consume a capsule; `owner` keeps its memory as well."""
    at = id(capsule)
    if not is_named(at, FRESH):
        raise MeshweaveError("this is no DLPack capsule, or one that was taken already")
    place = pointer_in(at, FRESH)
    managed = DLManagedTensor.from_address(place)
    tensor = managed.tensor
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    strides = tuple(tensor.strides[k] for k in range(tensor.ndim)) if tensor.strides else None
    found = Foreign(
        (tensor.data or 0) + tensor.offset, (tensor.code, tensor.bits * tensor.lanes), shape,
        _dense(shape, strides), tensor.device, owner,
    )  # fmt: skip
    set_name(at, USED)
    if managed.deleter:
        _Deleter(managed.deleter)(place)
    return found


def _dense(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Tell whether strides (in elements; None: row-major) are row-major without gaps."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def check_foreign(port: Port, index: int, rank: int, device: int, value: object) -> Foreign:
    """Return an array on a GPU for an input. Raises MeshweaveError, which names input, rank and what differs."""
    name = f'input {index} "{port.name}", rank {rank}'
    found = foreign(value)
    if found.device is not None and found.device != device:
        raise MeshweaveError(f"{name}: lies on GPU {found.device}, {device} is right")
    if found.kind != _dl_type(port.dtype):
        raise MeshweaveError(f"{name}: the elements are not {port.dtype}")
    if found.shape != port.local_shape:
        shapes = ["x".join(map(str, shape)) for shape in (found.shape, port.local_shape)]
        raise MeshweaveError(f"{name}: shape {shapes[0]}, {shapes[1]} is right")
    if not found.dense:
        raise MeshweaveError(f"{name}: it is not contiguous: make a contiguous copy")
    return found
