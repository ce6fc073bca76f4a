"""GGUF, the files of llama.cpp: read-only. Numbers in blocks of 32 (Q8_0, Q4_0) come as f32.

"GGUF", version (2 or 3), count of tensors, count of keys; keys with values; for each tensor its name, dims (minor
first), type and offset; then the elements, each tensor at a multiple of the alignment.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.errors import MeshweaveError
from meshweave.runtime.memory import Values
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.stored import Packing, Stored

_MAGIC = b"GGUF"
_ALIGNMENT = "general.alignment"
_FORMS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
"""How `struct` reads a value of each type."""
_TEXT, _LIST = 8, 9
_MOST_TEXT = 1 << 24  # bytes
_MOST_DIMS = 8


def _scales(blocks: Values) -> Values:
    """Return the scale of each block, its first two bytes."""
    return np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)


def _q8_0(blocks: Values) -> Values:
    """Turn blocks of a scale (f16) and 32 numbers of 8 bits into f32."""
    found: Values = _scales(blocks) * np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return found


def _q4_0(blocks: Values) -> Values:
    """Turn blocks of a scale (f16) and 32 numbers of 4 bits, the first half in the low bits, into f32."""
    packed = blocks[..., 2:]
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8) - 8
    found: Values = _scales(blocks) * nibbles
    return found


_TYPES: dict[int, tuple[str, Packing | None]] = {
    0: ("f32", None), 1: ("f16", None), 30: ("bf16", None), 28: ("f64", None),
    24: ("i8", None), 25: ("i16", None), 26: ("i32", None), 27: ("i64", None),
    8: ("f32", Packing(32, 34, _q8_0)), 2: ("f32", Packing(32, 18, _q4_0)),
}  # fmt: skip


class _HeaderReader:
    """Read the head of a file, one value after the other."""

    def __init__(self, file: OpenFile) -> None:
        self.file, self.place = file, 0
        self._held, self._start = b"", 0

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes. Raises MeshweaveError where the file has not as many."""
        begin = self.place - self._start
        if begin + nbytes > len(self._held):
            left = self.file.nbytes - self.place
            self._held = self.file.read(self.place, max(nbytes, min(left, 1 << 20)))
            self._start, begin = self.place, 0
        self.place += nbytes
        return self._held[begin : begin + nbytes]

    def number(self, form: str) -> Any:
        """Return the next number, of a form of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        """Return the next text."""
        length = self.number("<Q")
        if length > _MOST_TEXT:
            raise MeshweaveError(f"{self.file.path}: a text of {length} bytes")
        return self.take(length).decode(errors="replace")

    def value(self) -> Any:
        """Return the next value, which its type stands before; None for a list, which is passed over."""
        kind = self.number("<I")
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            self._pass_list()
            return None
        return self.number(self._form(kind))

    def _pass_list(self) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if kind == _TEXT:
            for _ in range(count):
                self.text()
            return
        nbytes = count * struct.calcsize(self._form(kind))
        if self.place + nbytes > self.file.nbytes:
            raise MeshweaveError(f"{self.file.path}: a list of {nbytes} bytes: it is cut short")
        self.place += nbytes
        self._held, self._start = b"", self.place

    def _form(self, kind: int) -> str:
        if kind not in _FORMS:
            raise MeshweaveError(f"{self.file.path}: a value of type {kind}")
        return _FORMS[kind]


def gguf(path: Path) -> dict[str, Stored]:
    """Return the tensors of a file by name. Raises MeshweaveError for what is no such file, or damaged."""
    with OpenFile(path) as file:
        reader = _HeaderReader(file)
        if reader.take(4) != _MAGIC or reader.number("<I") not in (2, 3):
            raise MeshweaveError(f"{path}: no GGUF file of version 2 or 3")
        count, keys = reader.number("<Q"), reader.number("<Q")
        alignment: Any = 32
        for _ in range(keys):
            name, value = reader.text(), reader.value()
            alignment = value if name == _ALIGNMENT else alignment
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise MeshweaveError(f"{path}: {_ALIGNMENT} is {alignment!r:.20}")
        entries = [_entry(reader) for _ in range(count)]
        start = -(-reader.place // alignment) * alignment
        found = {name: _stored(path, name, start, s, k, at) for name, s, k, at in entries}
        _check_places(file, found, len(entries))
        return found


def _entry(reader: _HeaderReader) -> tuple[str, tuple[int, ...], int, int]:
    """Return the name, shape, type and offset of the next tensor."""
    name, ndim = reader.text(), reader.number("<I")
    if ndim > _MOST_DIMS:
        raise MeshweaveError(f"{reader.file.path}: tensor {name:.60}: {ndim} dims")
    shape = tuple(reversed([int(reader.number("<Q")) for _ in range(ndim)]))
    return name, shape, reader.number("<I"), reader.number("<Q")


def _stored(
    path: Path, name: str, start: int, shape: tuple[int, ...], kind: int, offset: int
) -> Stored:
    if kind not in _TYPES:
        raise MeshweaveError(
            f"{path}: tensor {name}: type {kind}; F32, F16, BF16, F64, I8 to I64, Q8_0 and Q4_0 are read"
        )
    dtype, packing = _TYPES[kind]
    if packing is not None and (not shape or shape[-1] % packing.extent):
        raise MeshweaveError(
            f"{path}: tensor {name}: shape {list(shape)} is not in blocks of {packing.extent}"
        )
    return Stored(path, dtype, shape, start + offset, None, packing)


def _check_places(file: OpenFile, found: dict[str, Stored], count: int) -> None:
    """Raise MeshweaveError unless the tensors lie in the file, and apart."""
    if len(found) != count:
        raise MeshweaveError(f"{file.path}: two tensors have the same name")
    end = 0
    for name, stored in sorted(found.items(), key=lambda entry: entry[1].offset):
        if prod(stored.shape) and stored.offset < end:
            raise MeshweaveError(f"{file.path}: tensor {name} overlaps another")
        end = max(end, stored.offset + stored.nbytes)
    if end > file.nbytes:
        raise MeshweaveError(f"{file.path}: {file.nbytes} bytes, its tensors end at {end}")
