"""FRONTENDS: programs in, modules in the global view out."""

import os
from pathlib import Path
from typing import Any

from meshweave.errors import CompileError
from meshweave.frontends.mlir import Mlir
from meshweave.frontends.stablehlo import StableHlo

FRONTENDS = {frontend.name: frontend for frontend in (StableHlo, Mlir)}
"""Frontends by name, in the order in which they are asked whether they accept a text."""

__all__ = ["FRONTENDS", "decoded", "load_module"]


def load_module(
    path_or_text: "str | os.PathLike[str]", ctx: Any, source_name: str | None = None
) -> Any:
    """The `ir.Module` of a program: a `func.func public @main` on linalg, tensor, arith, math and
    scf, and `dist.mesh` first where it has a mesh. Our own and upstream's MLIR text is taken as it
    is.

    path_or_text: a path, or the text itself: a `str` that names no file and has a line break, a
    bracket or a source_name.
    ctx:          a context of `bindings.context()`, in which nothing of other dialects is alive.
    source_name:  what errors and locations call the program; the path, or "-" for a text.

    Raises CompileError, `file:line:col: what is wrong`, for programs that cannot be read, parsed,
    verified or lowered.
    """
    text, name = _read(path_or_text, source_name is not None)
    name = source_name or name
    if not text.strip():
        raise CompileError("the program is empty", name)
    frontend = next(f for f in FRONTENDS.values() if f.accepts(text))
    return frontend.load(text, ctx, name)


def _read(source: "str | os.PathLike[str]", named: bool) -> tuple[str, str]:
    """Text and name of the source. named: the caller has a name for it, so that it may well be
    text.
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
    """The text of a file called `name`. Raises CompileError for what is no text."""
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
