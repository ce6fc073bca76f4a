"""Check the program of one rank against the whole program: `mw.verify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from meshweave.verification.answer import Answer

if TYPE_CHECKING:
    from meshweave.ir.bindings import ir


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
