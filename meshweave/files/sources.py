"""Read the text of a program from a file, or take it as given. Needs no compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshweave.errors import CompileError
from meshweave.files.constants import has_constants, pieces_of, without_constants
from meshweave.files.sections import PIECE, Section

_LONGEST = 4096  # bytes of a path that Linux takes
_BYTECODE = b"ML\xefR"  # how MLIR's bytecode begins


@dataclass(frozen=True)
class Source:
    """Hold the text of a program without its large constants, and those by their SHA-256. name: in errors."""

    text: str
    name: str
    weights: Mapping[str, Section] = field(default_factory=dict)


def read_source(source: str | os.PathLike[str], named: bool) -> tuple[str, str]:
    """Return the text and the name of a program.

    source: a path, or the text itself: a `str` that names no file and contains a line break or a bracket. named: the
    caller has a name for the program, so that any `str` may be text. Raises CompileError for what cannot be read.
    """
    if isinstance(source, str) and _is_text(source, named):
        return source, "-"
    path = Path(source)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise _unreadable(error, str(path)) from None
    return decoded(data, str(path)), str(path)


def program_source(source: str | os.PathLike[str] | Source, named: bool) -> Source:
    """Return the program that `read_source` returns, without its large constants, which stay on the disk.

    A program that was read already is returned as it is.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str) and _is_text(source, named):
        return separated(source, "-")
    name = str(Path(source))
    try:
        with open(source, "rb") as file:
            pieces = iter(lambda: file.read(PIECE), b"")
            first = next(pieces, b"")
            if first.startswith(_BYTECODE):
                return Source(decoded(first, name), name)
            text, weights = without_constants(_chained(first, pieces), name)
    except (OSError, ValueError) as error:
        raise _unreadable(error, name) from None
    return Source(decoded(text, name), name, weights)


def separated(text: str, name: str) -> Source:
    """Return a text without its large constants."""
    if not has_constants(text):
        return Source(text, name)
    left, weights = without_constants(pieces_of(text), name)
    return Source(left.decode("utf-8", "surrogatepass"), name, weights)


def _chained(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _is_text(source: str, named: bool) -> bool:
    looks_like_text = named or not source or any(c in source for c in "\n{(")
    return looks_like_text and not _is_file(source)


def _unreadable(error: Exception, name: str) -> CompileError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CompileError(f"cannot be read: {reason}", name)


def _is_file(source: str) -> bool:
    try:
        return len(source) <= _LONGEST and Path(source).is_file()
    except (OSError, ValueError):
        return False


def decoded(data: bytes, name: str) -> str:
    """Decode the text of a file called `name`. Raises CompileError for what is not text."""
    if data.startswith(_BYTECODE):
        raise CompileError(
            "is MLIR bytecode: export the program as text (jax: lower(..).as_text())", name
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CompileError(
            f"is not text: byte 0x{data[error.start]:02x} at offset {error.start}", name
        ) from None
    if "\0" in text:
        raise CompileError(f"is not text: byte 0x00 at offset {text.index(chr(0))}", name)
    return text
