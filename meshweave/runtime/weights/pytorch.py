"""PyTorch's checkpoints (`torch.save`'s zip archives): the tensors are found without running what a pickle says.

The pickle of the archive is read by an unpickler that knows five names and makes descriptions of tensors. What asks for
any other name is refused.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from meshweave.bundle import numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.runtime.weights.archive import ArchiveMember, members
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.stored import Stored

_PICKLE = "data.pkl"
_MOST = 64 << 20  # bytes of the pickle, which holds names and shapes
_MOST_VALUES, _MOST_DEPTH = 1 << 20, 100  # in its dicts and lists
_STORAGES = {
    "DoubleStorage": "f64", "FloatStorage": "f32", "HalfStorage": "f16", "BFloat16Storage": "bf16", "BoolStorage": "i1",
    "LongStorage": "i64", "IntStorage": "i32", "ShortStorage": "i16", "CharStorage": "i8", "ByteStorage": "ui8",
    "ComplexFloatStorage": "complex<f32>", "ComplexDoubleStorage": "complex<f64>",
}  # fmt: skip


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str


@dataclass(frozen=True)
class _Tensor:
    """Describe a tensor as the pickle does: elements from `start` of a storage on, at these strides."""

    storage: _Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Unpickler(pickle._Unpickler):  # Python's own, whose memo takes no more memory than it holds
    """Read the pickle of a checkpoint; names that are not of tensors are refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name."""
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        found = _KNOWN.get((module, name))
        if found is None:
            raise MeshweaveError(f"it asks for {module}.{name}".replace("\n", " ")[:100])
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the description of a storage."""
        kind, dtype, key = (*pid, None, None)[:3] if isinstance(pid, tuple) else (pid, None, None)
        if kind != "storage" or dtype not in _STORAGES.values() or not isinstance(key, str):
            raise MeshweaveError(f"a storage {pid!r:.60}")
        return _Storage(key, dtype)


def _tensor(
    storage: Any, start: Any, shape: Any, strides: Any, requires_grad: Any = False,
    hooks: Any = None, metadata: Any = None,
) -> _Tensor:  # fmt: skip
    if not isinstance(storage, _Storage) or not all(
        type(n) is int and n >= 0 for n in (start, *shape, *strides)
    ):
        raise MeshweaveError(f"a tensor of shape {shape!r:.40} and strides {strides!r:.40}")
    return _Tensor(storage, start, tuple(shape), tuple(strides))


def _parameter(data: _Tensor, *_: object) -> _Tensor:
    return data


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
}


def pytorch(path: Path) -> dict[str, Stored]:
    """Return the tensors of a checkpoint by name; those in nested dicts and lists have names joined by dots.

    Raises MeshweaveError for what is no such archive, or holds anything but tensors, numbers and texts.
    """
    with OpenFile(path) as file:
        found = members(file)
        pickled = [m for m in found if m.name.rpartition("/")[2] == _PICKLE]
        if len(pickled) != 1 or pickled[0].compressed or pickled[0].nbytes > _MOST:
            raise MeshweaveError(f"{path}: no checkpoint of torch.save: it has no {_PICKLE}")
        value = _unpickled(path, file.read(pickled[0].offset, pickled[0].nbytes))
    folder = pickled[0].name.removesuffix(_PICKLE)
    storages = {m.name.removeprefix(f"{folder}data/"): m for m in found}
    order = next((m for m in found if m.name == f"{folder}byteorder"), None)
    if order is not None and order.nbytes != len("little"):
        raise MeshweaveError(f"{path}: bytes in another machine's order")
    return {name: _stored(path, name, tensor, storages) for name, tensor in _tensors(path, value)}


def _unpickled(path: Path, data: bytes) -> object:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except MeshweaveError as error:
        raise MeshweaveError(
            f"{path}: not read, for {error.message}: a state dict of plain tensors is right"
        ) from None
    except Exception as error:  # whatever wrong opcodes lead to
        raise MeshweaveError(f"{path}: its {_PICKLE} is damaged: {error!r:.100}") from None


def _tensors(path: Path, value: object) -> list[tuple[str, _Tensor]]:
    """Return the tensors in dicts and lists, with their names. Raises MeshweaveError for a name that two have."""
    found: dict[str, _Tensor] = {}
    waiting: list[tuple[str, int, Any]] = [("", 0, value)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return list(found.items())
        name, depth, value = waiting.pop()
        if depth > _MOST_DEPTH:
            break
        if isinstance(value, _Tensor):
            if name in found:
                raise MeshweaveError(f"{path}: two tensors have the name {name:.60}")
            found[name] = value
        inside: Any = value.items() if isinstance(value, dict) else ()
        inside = enumerate(value) if isinstance(value, list | tuple) else inside
        named = [(f"{name}.{key}" if name else str(key), depth + 1, v) for key, v in inside]
        waiting += reversed(named)
    raise MeshweaveError(
        f"{path}: more than {_MOST_VALUES} values, or nested deeper than {_MOST_DEPTH}"
    )


def _stored(path: Path, name: str, tensor: _Tensor, storages: dict[str, ArchiveMember]) -> Stored:
    """Return where a tensor lies in the file."""
    member = storages.get(tensor.storage.key)
    dims = _dims(tensor)
    if dims is None or member is None or member.compressed:
        raise MeshweaveError(
            f"{path}: tensor {name}: shape {tensor.shape} at strides {tensor.strides} of storage "
            f"{tensor.storage.key:.20}: save it contiguous, and whole"
        )
    width = numpy_dtype(tensor.storage.dtype).itemsize
    if (tensor.start + prod(tensor.shape)) * width > member.nbytes:
        raise MeshweaveError(
            f"{path}: tensor {name}: shape {tensor.shape} from element {tensor.start} on, its "
            f"storage has {member.nbytes} bytes"
        )
    offset = member.offset + tensor.start * width
    return Stored(path, tensor.storage.dtype, tensor.shape, offset, dims)


def _dims(tensor: _Tensor) -> tuple[int, ...] | None:
    """Return the dims as they lie in memory, major first; None where the elements are not one after the other."""
    shape, strides = tensor.shape, tensor.strides
    if len(shape) != len(strides):
        return None
    dims = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d], d))
    dims = [d for d in dims if shape[d] == 1] + [d for d in dims if shape[d] != 1]
    step = 1
    for dim in reversed(dims):
        if shape[dim] != 1 and strides[dim] != step and 0 not in shape:
            return None
        step *= shape[dim]
    return tuple(dims)
