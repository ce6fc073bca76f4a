"""Take the large constants of a program out of its text, so that no parser and no pass ever sees their elements.

    %w = stablehlo.constant dense<"0x3F80..."> : tensor<4096x4096xf32>
    %w = stablehlo.constant dense_resource<weight_5feceb66...> : tensor<4096x4096xf32>

The second line is what becomes of the first: the name has the SHA-256 of the bytes, which lie in a file. Constants in
MLIR's resources (`dense_resource<name>`, and `{-# dialect_resources: .. #-}` at the end) become such lines too, small
ones elements. A text is read a piece at a time: what is hexadecimal goes to the file at once.
"""

from __future__ import annotations

import re
from binascii import Error, unhexlify
from collections.abc import Iterable, Iterator

from meshweave.errors import CompileError
from meshweave.files.sections import Section, SectionWriter

LARGE = 1 << 16
"""Bytes of a constant; larger ones are no part of a program's text."""
NAME = "weight_"
REFERENCE = re.compile(rf"dense_resource<{NAME}([0-9a-f]{{64}})(?:_\d+)*> : (tensor<[\w.]+>)")
"""How a text that is left names a constant and its type. MLIR numbers names that it has seen before."""
WIDTHS = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2,
    **{f"{sign}{8 * n}": n for sign in ("i", "si", "ui") for n in (1, 2, 4, 8)},
}  # fmt: skip
"""Bytes of an element, of the types whose elements lie in a text as they lie in memory."""

_PIECE = 1 << 20
_QUOTED = b'"0x'
_BEFORE = re.compile(rb'constant\b(?:"?\(\)\s*<?\{\s*value\s*=)?\s*(?:\{[^{}]*\}\s*)?dense<$')
_TYPE = re.compile(rb">\s*:\s*tensor<((?:\d+x)*)(\w+)>")
_BLOB = re.compile(rb'(?:([\w.$-]+)|"((?:[^"\\]|\\.)*)")\s*:\s*$')
_RESOURCES = re.compile(r"\{-#.*#-\}", re.DOTALL)
_USE = re.compile(
    r'dense_resource<(?:([\w.$-]+)|"((?:[^"\\]|\\.)*)")>(\s*:\s*tensor<((?:\d+x)*)(\w+)>)'
)
_LOOK = 256  # bytes around a constant in which its op and its type are


def pieces_of(text: str) -> Iterator[bytes]:
    """Yield a text as bytes, piece by piece."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE].encode("utf-8", "surrogatepass")


def has_constants(text: str) -> bool:
    """Tell whether a text may have constants to take out."""
    return (len(text) > 2 * LARGE and '"0x' in text) or "dense_resource<" in text


def without_constants(pieces: Iterable[bytes], name: str) -> tuple[bytes, dict[str, Section]]:
    """Return a text without its large constants, and these by their SHA-256. pieces: the text. name: of it, in errors.

    Raises CompileError for what is no hexadecimal number, MeshweaveError where the disk is full.
    """
    reader = _Reader(pieces, name)
    while reader.next_quote():
        reader.take()
    return reader.finished()


class _Reader:
    """Read a text up to each quoted number, and take the large ones and those of resources out."""

    def __init__(self, pieces: Iterable[bytes], name: str) -> None:
        self._pieces, self._name = iter(pieces), name
        # What is read, and what is to be looked at.
        self._out, self._rest = bytearray(), bytearray()
        self._writer = SectionWriter()
        self._found: dict[str, Section] = {}
        self._blobs: dict[str, Section] = {}
        self._in_resources = False

    def next_quote(self) -> bool:
        """Read up to the next quoted number; False at the end."""
        while True:
            at = self._rest.find(_QUOTED)
            if at >= 0:
                self._pass(at)
                return True
            self._pass(max(0, len(self._rest) - len(_QUOTED) + 1))
            if not self._more():
                self._pass(len(self._rest))
                return False

    def take(self) -> None:
        """Take the quoted number at the start of the rest, or leave it in the text."""
        before = bytes(self._out[-_LOOK:])
        blob = _BLOB.search(before) if self._is_in_resources() else None
        if blob is not None:
            named = blob[1] if blob[1] is not None else blob[2]
            self._blobs[named.decode()] = self._section(skip=4)  # their alignment comes first
        elif self._is_large() and _BEFORE.search(before):
            self._constant()
        else:
            self._pass(len(_QUOTED))

    def _constant(self) -> None:
        section = self._section()
        while len(self._rest) < _LOOK and self._more():
            pass
        said = _TYPE.match(self._rest)
        if said is not None and _nbytes(said[1].decode(), said[2].decode()) == section.nbytes:
            del self._out[-len(b"dense<") :]
            self._out += f"dense_resource<{NAME}{section.digest}".encode()
            self._found.setdefault(section.digest, section)
        else:  # complex numbers, bits, one element for all: MLIR reads them
            self._out += _QUOTED
            for piece in section.pieces():
                self._out += piece.hex().upper().encode()
            self._out += b'"'

    def _section(self, skip: int = 0) -> Section:
        """Write a quoted number to the file, without its first bytes, and go behind it."""
        del self._rest[: len(_QUOTED)]
        while True:
            end = self._rest.find(b'"')
            count = (len(self._rest) if end < 0 else end) // 2 * 2
            self._writer.write(self._bytes(self._rest[:count])[skip:])
            skip = max(0, skip - count // 2)
            del self._rest[:count]
            if end >= 0:
                if self._rest[:1] != b'"':
                    raise self._error("a constant ends in half a byte")
                del self._rest[:1]
                return self._writer.end()
            if not self._more():
                raise self._error("a constant has no end")

    def _bytes(self, digits: bytearray) -> bytes:
        try:
            return unhexlify(digits)
        except Error:
            raise self._error('a constant "0x.." is no hexadecimal number') from None

    def _is_large(self) -> bool:
        most = len(_QUOTED) + 2 * LARGE
        while len(self._rest) <= most:
            if self._rest.find(b'"', len(_QUOTED)) >= 0 or not self._more():
                break
        return self._rest.find(b'"', len(_QUOTED), most + 1) < 0

    def _is_in_resources(self) -> bool:
        self._in_resources = self._in_resources or b"dialect_resources" in self._out
        return self._in_resources

    def _pass(self, count: int) -> None:
        """Leave so many bytes in the text."""
        self._out += self._rest[:count]
        del self._rest[:count]

    def _more(self) -> bool:
        piece = next(self._pieces, None)
        self._rest += piece or b""
        return piece is not None

    def _error(self, message: str) -> CompileError:
        line = self._out.count(b"\n") + 1
        return CompileError(message, f"{self._name}:{line}")

    def finished(self) -> tuple[bytes, dict[str, Section]]:
        """Return the text and what was taken."""
        if not self._is_in_resources():
            return bytes(self._out), self._found
        text = _RESOURCES.sub("", self._out.decode("utf-8", "surrogateescape"))
        text = _USE.sub(self._used, text)
        return text.encode("utf-8", "surrogateescape"), self._found

    def _used(self, use: re.Match[str]) -> str:
        """Return what becomes of the use of a resource: a reference to a section, or elements."""
        blob = self._blobs.get(use[1] if use[1] is not None else use[2])
        if blob is None:
            return use[0]  # refused by who reads the text
        nbytes = _nbytes(use[4], use[5])
        if nbytes is not None and nbytes != blob.nbytes:
            raise CompileError(f"{use[0]:.80}: {blob.nbytes} bytes, {nbytes} are right", self._name)
        if nbytes is None or blob.nbytes <= LARGE:
            digits = b"".join(blob.pieces()).hex().upper()
            return f'dense<"0x{digits}">{use[3]}'
        self._found.setdefault(blob.digest, blob)
        return f"dense_resource<{NAME}{blob.digest}>{use[3]}"


def _nbytes(sizes: str, element: str) -> int | None:
    """Return the bytes of a tensor ("4x8x", "f32"), None for elements that do not lie in a text as in memory."""
    if element not in WIDTHS:
        return None
    count = WIDTHS[element]
    for size in sizes.split("x")[:-1]:
        count *= int(size)
    return count
