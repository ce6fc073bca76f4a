"""Read the text of a program from a file, or take it as given. Needs no compiler."""

import os
from pathlib import Path

from meshweave.errors import CompileError


def read_source(source: "str | os.PathLike[str]", named: bool) -> tuple[str, str]:
    """Return the text and the name of a program.

    source: a path, or the text itself: a `str` that names no file and contains a line break or a bracket. named: the
    caller has a name for the program, so that any `str` may be text. Raises CompileError for what cannot be read.
    """
    if isinstance(source, str):
        looks_like_text = named or not source or any(c in source for c in "\n{(")
        if looks_like_text and not _is_file(source):
            return source, "-"
    path = Path(source)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CompileError(f"cannot be read: {reason}", str(path)) from None
    return decoded(data, str(path)), str(path)


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except (OSError, ValueError):
        return False


def decoded(data: bytes, name: str) -> str:
    """Decode the text of a file called `name`. Raises CompileError for what is not text."""
    if data.startswith(b"ML\xefR"):
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
