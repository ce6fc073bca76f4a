"""Compile programs in files or text: `from_stablehlo`, `from_mlir`."""

from __future__ import annotations

import os

from meshweave.api.program import Program, compile
from meshweave.errors import UsageError
from meshweave.files.sources import program_source
from meshweave.layout import Mesh


def from_stablehlo(
    source: str | os.PathLike[str],
    *,
    mesh: Mesh | str | None = None,
    engine: str = "local",
    timeout: float | None = None,
    verify: bool = True,
) -> Program:
    """Compile a StableHLO program, with Shardy shardings or without, to a Program to call with its arguments in order.

    source: a file, or its text. mesh, engine, timeout (in seconds), verify: as in `meshweave.compile`. Raises
    UsageError for a text that is no StableHLO, and one CompileError that lists all that is wrong or not supported in
    it.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> text = "module @m { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> { "
    >>> text += "%y = stablehlo.add %x, %x : tensor<3xf32> return %y : tensor<3xf32> } }"
    >>> program = mw.from_stablehlo(text)
    >>> program(np.ones(3, np.float32))[0].tolist()
    [2.0, 2.0, 2.0]
    """
    if isinstance(source, str | os.PathLike):
        read = program_source(source, named=False)
        if not any(f"{dialect}." in read.text for dialect in ("stablehlo", "chlo", "sdy")):
            raise UsageError(
                f"from_stablehlo: {read.name} has no op of stablehlo, chlo or sdy: "
                "from_mlir takes programs on linalg"
            )
        return compile(read, mesh=mesh, engine=engine, timeout=timeout, verify=verify)
    return compile(source, mesh=mesh, engine=engine, timeout=timeout, verify=verify)


def from_mlir(
    source: str | os.PathLike[str],
    *,
    mesh: Mesh | str | None = None,
    engine: str = "local",
    timeout: float | None = None,
    verify: bool = True,
) -> Program:
    """Compile an MLIR program: `@main` on linalg, tensor, arith, math and scf, with `dist` and `hint` ops.

    source: a file, or its text. mesh, engine, timeout (in seconds), verify: as in `meshweave.compile`, which returns a
    Program too. Raises UsageError for wrong arguments, CompileError, at its line, for what is wrong in the program.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    >>> program = mw.from_mlir(text)
    >>> program(np.ones(3, np.float32))[0].tolist()
    [1.0, 1.0, 1.0]
    """
    return compile(source, mesh=mesh, engine=engine, timeout=timeout, verify=verify)
