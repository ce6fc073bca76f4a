"""safetensors: a header of JSON that says where each tensor lies, then the bytes of all. Nothing in it is code.

8 bytes   N, the bytes of the header, little-endian
N bytes   {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, .., "__metadata__": {..}}
the rest  the elements of each tensor, row-major, one tensor after the other, no gaps
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

from meshweave.bundle import numpy_dtype
from meshweave.errors import MeshweaveError
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.stored import Stored

DTYPES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "C64": "complex<f32>", "BOOL": "i1",
    "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8",
    "U64": "ui64", "U32": "ui32", "U16": "ui16", "U8": "ui8",
    "F8_E4M3": "f8E4M3FN", "F8_E5M2": "f8E5M2",
}  # fmt: skip
"""Our name of each dtype of the format that arrays have."""
NAMES = {ours: name for name, ours in DTYPES.items()}
MAX_HEADER = 100_000_000  # bytes, as in the format's own library
METADATA = "__metadata__"
_WORD = 8


def read_header(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """Return the tensors of a file, and its metadata. Raises MeshweaveError where the header is not right."""
    with OpenFile(path) as file:
        size = int.from_bytes(file.read(0, min(_WORD, file.nbytes)), "little")
        if file.nbytes < _WORD or not 2 <= size <= min(MAX_HEADER, file.nbytes - _WORD):
            raise MeshweaveError(
                f"{path}: no safetensors file: a header of {size} bytes in a file of {file.nbytes}"
            )
        data, end = file.read(_WORD, size), file.nbytes
    header = json_object(path, data, "the header")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise MeshweaveError(f"{path}: {METADATA} is no object of texts")
    found = {name: _stored(path, name, entry, _WORD + size) for name, entry in header.items()}
    _check_places(path, found, _WORD + size, end)
    return found, metadata


def json_object(path: Path, data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object in bytes, no key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        value = json.loads(data, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise MeshweaveError(f"{path}: {what} is not right JSON: {error!s:.120}") from None
    if not isinstance(value, dict):
        raise MeshweaveError(f"{path}: {what} is no JSON object")
    return value


def _stored(path: Path, name: str, entry: object, start: int) -> Stored:
    """Return the tensor that an entry of a header describes."""
    try:
        assert isinstance(entry, dict)
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        assert isinstance(dtype, str) and isinstance(shape, list)
        assert all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (AssertionError, KeyError, TypeError, ValueError):
        raise MeshweaveError(
            f"{path}: tensor {name}: {entry!r:.80}, a dtype, a shape and two data_offsets are right"
        ) from None
    if dtype not in DTYPES:
        known = ", ".join(DTYPES)
        raise MeshweaveError(f"{path}: tensor {name}: no arrays of dtype {dtype:.20}: {known}")
    stored = Stored(path, DTYPES[dtype], tuple(shape), start + begin)
    if end - begin != stored.nbytes:
        raise MeshweaveError(
            f"{path}: tensor {name}: bytes {begin} to {end}, {dtype} {shape} takes {stored.nbytes}"
        )
    return stored


def _check_places(path: Path, found: Mapping[str, Stored], start: int, end: int) -> None:
    """Raise MeshweaveError unless the tensors lie one after the other, and fill the file."""
    place = start
    for name, stored in sorted(found.items(), key=lambda e: (e[1].offset, e[1].nbytes)):
        if stored.offset != place:
            word = "overlaps another" if stored.offset < place else "has a gap before it"
            raise MeshweaveError(f"{path}: tensor {name} {word}, at byte {stored.offset - start}")
        place += stored.nbytes
    if place != end:
        raise MeshweaveError(
            f"{path}: {end - start} bytes of data, the header says {place - start}: cut short, or too long"
        )


def write(
    file: IO[bytes],
    entries: Sequence[tuple[str, str, Sequence[int]]],
    data: Callable[[str], Iterable[bytes | memoryview]],
    metadata: Mapping[str, str],
) -> Iterator[str]:
    """Write a file; give the name of each tensor before it is written.

    entries: name, dtype (ours) and shape of each tensor. data: the elements of one, in parts, row-major.
    """
    ordered = sorted(entries, key=lambda e: (-numpy_dtype(e[1]).itemsize, e[0]))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    place = 0
    for name, dtype, shape in ordered:
        end = place + prod(shape) * numpy_dtype(dtype).itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": [*shape], "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _WORD)  # so that elements are aligned
    file.write(len(text).to_bytes(_WORD, "little") + text)
    for name, _, _ in ordered:
        yield name
        for part in data(name):
            file.write(part)
