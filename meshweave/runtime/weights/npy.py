"""NumPy's files: .npy, an array behind a header, and .npz, a zip archive of them. Never a pickle."""

from __future__ import annotations

import io
from math import prod
from pathlib import Path

import numpy as np

from meshweave.bundle import NUMPY_DTYPES, element_name, numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.runtime.weights.archive import ArchiveMember, members
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.stored import Stored

_MOST = 1 << 16  # bytes of a header


def npy(path: Path) -> dict[str, Stored]:
    """Return the array of a .npy file, under the name "". Raises MeshweaveError for what is no such file."""
    with OpenFile(path) as file:
        return {"": _array(file, "", 0, file.nbytes)}


def npz(path: Path) -> dict[str, Stored]:
    """Return the arrays of a .npz file by name. Raises MeshweaveError for what is none, or is compressed."""
    with OpenFile(path) as file:
        return {
            member.name.removesuffix(".npy"): _array(file, member.name, *_place(path, member))
            for member in members(file)
        }


def _place(path: Path, member: ArchiveMember) -> tuple[int, int]:
    if member.compressed:
        raise MeshweaveError(
            f"{path}: {member.name} is compressed, and ranks read parts: np.savez is right, not "
            "np.savez_compressed"
        )
    return member.offset, member.nbytes


def _array(file: OpenFile, name: str, offset: int, nbytes: int) -> Stored:
    """Return the array whose header begins at `offset` of a file, and which has so many bytes."""
    start = io.BytesIO(file.read(offset, min(nbytes, _MOST)))
    where = f"{file.path}: {name}" if name else str(file.path)
    try:
        version = np.lib.format.read_magic(start)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, turned, dtype = read[version](start, max_header_size=_MOST)
    except Exception as error:  # tokenize, ast and others raise their own kinds
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise MeshweaveError(f"{where}: not a .npy array: {said}") from None
    ours = element_name(dtype)
    if ours is None:
        raise MeshweaveError(f"{where}: no arrays of dtype {dtype}: {', '.join(NUMPY_DTYPES)}")
    right = prod(shape) * numpy_dtype(ours).itemsize
    if any(n < 0 for n in shape) or nbytes - start.tell() != right:
        raise MeshweaveError(
            f"{where}: {nbytes - start.tell()} bytes of elements, {ours} {list(shape)} takes {right}"
        )
    dims = tuple(reversed(range(len(shape)))) if turned else None
    return Stored(file.path, ours, tuple(shape), offset + start.tell(), dims)
