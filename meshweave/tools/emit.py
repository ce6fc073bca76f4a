"""The code of a gpu program as text: what `meshweave compile` prints with --emit and writes with --ptx."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshweave.bundle import Bundle
from meshweave.errors import UsageError
from meshweave.targets import Goal
from meshweave.tools.report import write_text

KINDS = ("host", "kernels", "llvm", "ptx")
"""Host code in MLIR's LLVM dialect; kernels in MLIR, in LLVM IR, in PTX."""


def text_of(program: Any, goal: Goal, kind: str) -> str:
    """The code of a lowered program, within its context. kind: one of KINDS."""
    from meshweave.lowering.gpu.kernel import Target
    from meshweave.lowering.gpu.ptx import compile_kernels, device_llvm
    from meshweave.lowering.gpu.target import texts_of

    texts = texts_of(program, Target(goal.chip))
    kernels = [kernel for kernel, _ in texts.code.kernels]
    if kind == "host":
        return f"{texts.step}{texts.collectives}"
    if kind == "ptx":
        modules = compile_kernels(kernels, goal.chip)
        return "".join(module.ptx for module in dict.fromkeys(modules))
    made: Callable[[str], str] = str if kind == "kernels" else device_llvm
    return "".join(made(text) for text in dict.fromkeys(kernel.text for kernel in kernels))


def write_ptx(folder: str, bundle: Bundle, host: str) -> None:
    """The PTX of each device module, named after its first kernel, and the host code. UsageError where the folder
    cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror or error}") from None
    write_text(str(Path(folder) / "host.mlir"), host)
    for number, module in enumerate(bundle.devices):
        entry = next(k.entry for k in bundle.manifest.kernels if k.module == number)
        write_text(str(Path(folder) / f"{number}_{entry}.ptx"), module.ptx)
