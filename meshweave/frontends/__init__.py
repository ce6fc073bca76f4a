"""Programs in, modules in the global view out."""

import os
from typing import Any

from meshweave.errors import CompileError
from meshweave.sources import decoded, read_source

__all__ = ["decoded", "frontends", "load_module"]


def frontends() -> dict[str, Any]:
    """Frontends by name, in the order in which they are asked whether they accept a text. They load MLIR: what needs
    none of it may import this package all the same.
    """
    from meshweave.frontends.mlir import Mlir
    from meshweave.frontends.stablehlo import StableHlo

    return {frontend.name: frontend for frontend in (StableHlo, Mlir)}


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
    text, name = read_source(path_or_text, source_name is not None)
    name = source_name or name
    if not text.strip():
        raise CompileError("the program is empty", name)
    frontend = next(f for f in frontends().values() if f.accepts(text))
    return frontend.load(text, ctx, name)
