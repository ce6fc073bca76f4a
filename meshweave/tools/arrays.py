"""Read and write the arrays of `meshweave run` as .npy files, and compare results with what they should be."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.bundle import OF_A_BYTE, Port, as_in_files, element_name, numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.files.whole import replacing
from meshweave.runtime.arrays.array import check_global
from meshweave.runtime.arrays.saved import read_npy

TOLERANCE = 2e-4
"""Largest error that --check and --expect accept, relative to the largest element."""
NARROW_TOLERANCES = {"bf16": 2e-2, "f16": 2e-2, **dict.fromkeys(OF_A_BYTE, 0.25)}
"""The same for floats of 16 and 8 bits, of which two neighbours are as far apart. Integers and i1 must be equal."""


def load(file: str) -> np.ndarray[Any, Any]:
    """Read a .npy file; 2-byte records, the form in which bf16 is saved, become their bits.

    Raises MeshweaveError naming the file.
    """
    try:
        array = read_npy(file)
    except OSError as error:
        raise MeshweaveError(f"{file}: {_reason(error)}") from None
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and not array.dtype.names:
        return array.view(np.uint16)
    return array


def _of_port(array: np.ndarray[Any, Any], port: Port) -> np.ndarray[Any, Any]:
    """Return an array from a file, bytes as the numbers of the port that they hold."""
    is_bytes = array.dtype == np.uint8 or (array.dtype.kind == "V" and array.dtype.itemsize == 1)
    return array.view(numpy_dtype(port.dtype)) if port.dtype in OF_A_BYTE and is_bytes else array


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def arguments(ports: Sequence[Port], files: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Read the arguments of a program from files, in order. Raises MeshweaveError naming a file that does not fit."""
    if len(files) != len(ports):
        names = ", ".join(f"{p.name} {p.dtype} {_by(p.global_shape)}" for p in ports)[:300]
        plural = "s" if len(files) != 1 else ""
        raise MeshweaveError(
            f"--input: {len(files)} file{plural}, the program takes {len(ports)}: {names}"
        )
    arrays = []
    for index, (port, file) in enumerate(zip(ports, files)):
        array = _of_port(load(file), port)
        try:
            check_global(port.at(array.shape), index, array)
        except MeshweaveError as error:
            raise MeshweaveError(f"{file}: {error}") from None
        arrays.append(array)
    return arrays


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"


def expected(ports: Sequence[Port], files: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Read the results that a program should give. Raises MeshweaveError naming a file that cannot be one."""
    if len(files) != len(ports):
        plural = "s" if len(files) != 1 else ""
        raise MeshweaveError(
            f"--expect: {len(files)} file{plural}, the program has {len(ports)} results"
        )
    arrays = []
    for index, (port, file) in enumerate(zip(ports, files)):
        array = _of_port(load(file), port)
        if array.dtype.kind not in "fiubc" and element_name(array.dtype) is None:
            raise MeshweaveError(f"{file}: dtype {array.dtype}: numbers are needed")
        if array.shape != port.at(array.shape).global_shape and not port.merged:
            raise MeshweaveError(
                f"{file}: shape {array.shape}, result {index} has {port.global_shape}"
            )
        if port.dtype == "bf16" and array.dtype == np.uint16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays.append(array)
    return arrays


@dataclass(frozen=True)
class Difference:
    """Describe how far a result is from its reference: the largest absolute error, and where it is.

    reference: the option that asked, "--check" or "--expect". mine, other: the two numbers there.
    """

    index: int
    reference: str
    error: float
    largest: float
    limit: float
    at: tuple[int, ...]
    mine: complex
    other: complex

    @property
    def wrong(self) -> bool:
        """Tell whether the error is above the limit."""
        return self.error > self.limit

    def __str__(self) -> str:
        where = f" at [{', '.join(map(str, self.at))}]" if self.at else ""
        return (
            f"{self.reference}: result {self.index} is off by {self.error:.3g}{where} "
            f"({self.mine:.6g}, {self.other:.6g} is right), more than {self.limit:.3g}"
        )


def difference(
    index: int, reference: str, port: Port, mine: np.ndarray[Any, Any], other: np.ndarray[Any, Any]
) -> Difference:
    """Compare a result with its reference, both global. Equal infinities, and NaN in both, are no error."""
    whole = {"i4": "i", "ui4": "u", "bf16": "f"}
    kind = whole.get(port.dtype) or numpy_dtype(port.dtype).kind
    exact = kind in "iub" and (other.dtype.kind in "iub" or other.dtype == numpy_dtype(port.dtype))
    # The 64-bit mantissa of long double holds every integer exactly.
    wide = (
        np.longdouble if exact else np.complex128 if "c" in (kind, other.dtype.kind) else np.float64
    )
    a, b = mine.astype(wide), other.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        distance = np.where(same, 0, np.abs(a - b))
    distance = np.where(np.isnan(distance), np.inf, distance)
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0))
    relative = 0.0 if exact else NARROW_TOLERANCES.get(port.dtype, TOLERANCE)
    limit = 0.0 if exact else relative * max(largest, float(np.finfo(np.float32).tiny))
    if not distance.size:
        return Difference(index, reference, 0.0, largest, limit, (), 0.0, 0.0)
    flat = int(distance.argmax())
    at = tuple(int(i) for i in np.unravel_index(flat, distance.shape))
    error = float(distance.reshape(-1)[flat])
    values = a.reshape(-1)[flat], b.reshape(-1)[flat]
    return Difference(index, reference, error, largest, limit, at, *values)


def dump(results: Sequence[np.ndarray[Any, Any]], directory: str) -> list[str]:
    """Write each result, whole or not at all, as result{i}.npy; return the files' names. Raises MeshweaveError."""
    try:
        os.makedirs(directory, exist_ok=True)
        return [save(result, directory, f"result{i}.npy") for i, result in enumerate(results)]
    except OSError as error:
        raise MeshweaveError(f"--dump {directory}: {_reason(error)}") from None


def save(result: np.ndarray[Any, Any], directory: str, name: str) -> str:
    """Write an array, whole or not at all, to `name` in a folder; return its path. Raises OSError."""
    path = os.path.join(directory, name)
    with replacing(path) as out:
        np.save(out, as_in_files(result), allow_pickle=False)
    return path
