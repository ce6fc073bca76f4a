"""Check the program of one rank against the whole program: `mw.verify`."""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING

from meshweave import __version__
from meshweave.certificate import Certificate
from meshweave.errors import CompileError
from meshweave.verification.answer import WAY_OUT, Answer

if TYPE_CHECKING:
    from meshweave.ir.bindings import ir

BYTECODE = 1
"""The version of MLIR's bytecode that is hashed. Later ones also tell in which order ops came to read a value."""
MOST_TERMS = 20_000
"""Terms that a compile makes for this, before the rest is left unproven."""


def verify(
    global_module: str | os.PathLike[str] | ir.Module,
    local_module: str | os.PathLike[str] | ir.Module,
) -> Answer:
    """Check that the program of one rank computes its part of the whole program, on every rank.

    global_module, local_module: modules, files or texts, as `meshweave run` reads them. `docs/verify.md` says what is
    proven. The answer has `proven`, names of results, and `refuted` and `unproven`, each with the value, its place and
    the reason.

    Raises CompileError for programs that cannot be read, or do not belong together.

    >>> import meshweave as mw
    >>> mesh = '"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()'
    >>> a = '%a: tensor<4xf32> {dist.layout = #dist.layout<"[x]">}'
    >>> whole = mesh + f"func.func @main({a}) -> (tensor<4xf32>) {{ return %a : tensor<4xf32> }}"
    >>> mw.verify(whole, whole).proven
    ('@main result 0',)
    """
    from meshweave.dialects import context
    from meshweave.frontends.load import load_module
    from meshweave.ir.bindings import ir
    from meshweave.verification.check import verify as check

    with context() as ctx, ir.Location.unknown():
        sides = (global_module, local_module)
        whole, local = [
            load_module(s, ctx)
            if isinstance(s, (str, os.PathLike))
            else load_module(str(s), ctx, "-")
            for s in sides
        ]
        return check(whole, local)


def certificate(whole: ir.Module, local: ir.Module) -> Certificate:
    """Return what is proven of the program of one rank that the passes have made of a whole program.

    Raises CompileError where it is wrong.
    """
    from meshweave.verification.check import verify as check

    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    try:
        with whole.context:  # it may be another thread than that of the compile
            answer = check(whole, local, MOST_TERMS, again=False)
    except CompileError as error:  # the check cannot compare them: nothing is shown
        proven, unproven = (), (str(error),)
    except Exception as error:  # a fault of the check is none of the program's
        said = " ".join(str(error).split())
        proven, unproven = (), (f"the check ended with {type(error).__name__}: {said}",)
    else:
        for found in answer.refuted:
            wrong = f"{found.value} is not what the program says, a fault of the passes"
            raise CompileError(f"{wrong}: {found.reason} ({WAY_OUT})", found.place)
        proven, unproven = answer.proven, tuple(map(str, answer.unproven))
    return Certificate(f"meshweave {__version__}", digest(whole), digest(local), proven, unproven)


def digest(module: ir.Module) -> str:
    """Return the SHA-256 of the bytecode of a module, which takes a quarter of the time that its text takes."""
    code = io.BytesIO()
    module.operation.write_bytecode(code, BYTECODE)
    return hashlib.sha256(code.getbuffer()).hexdigest()
