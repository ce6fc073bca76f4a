"""Load a program: MLIR of our own dialects and upstream's as it is, StableHLO through its frontend."""

import os

from meshweave.errors import CompileError
from meshweave.files.sources import read_source
from meshweave.frontends.complex.split import split_complex
from meshweave.frontends.narrow.module import holds_narrow, write_as_bytes
from meshweave.frontends.stablehlo.frontend import is_stablehlo, load_stablehlo
from meshweave.frontends.weights import add_weights
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module


def load_module(
    path_or_text: "str | os.PathLike[str]",
    ctx: ir.Context,
    source_name: str | None = None,
    weights: bool = True,
) -> ir.Module:
    """Return the module of a program: a `func.func public @main` on linalg, tensor, arith, math and scf.

    A `dist.mesh` comes first where the program has a mesh. MLIR text of our dialects and upstream's is taken as it is.

    path_or_text: a path, or the text: a `str` that names no file and has a line break, a bracket or a source_name.
    ctx:          a context of `dialects.context()` in which no op of an unregistered dialect is alive.
    source_name:  the name of the program in errors and locations; default: the path, or "-" for a text.
    weights:      large constants become arguments; else they stay.

    Raises CompileError, `file:line:col: what is wrong`, for programs that cannot be read, parsed, verified or lowered.
    """
    text, name = read_source(path_or_text, source_name is not None)
    name = source_name or name
    if not text.strip():
        raise CompileError("the program is empty", name)
    return read_text(text, ctx, name, weights)


def read_text(text: str, ctx: ir.Context, name: str, weights: bool = True) -> ir.Module:
    """Return the module of a text, as `load_module` does; errors and locations call it `name`."""
    if is_stablehlo(text):
        module = load_stablehlo(text, ctx, name, weights=weights)
    else:
        module = parse_module(text, ctx, name)
    if weights:
        with ctx, ir.Location.unknown(ctx):
            add_weights(module, text)
    if holds_narrow(text):
        with ctx, ir.Location.unknown(ctx):
            write_as_bytes(module)
    if "complex<" in text:
        with ctx, ir.Location.unknown(ctx):
            split_complex(module)
    return module
