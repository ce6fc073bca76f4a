"""Return the code of a program as text, for `meshweave compile` to print (--emit) or write (--ptx)."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from meshweave.bundle import Bundle
from meshweave.errors import UsageError
from meshweave.files.whole import write_text
from meshweave.targets import Goal

if TYPE_CHECKING:  # here, for writing text needs no compiler
    from meshweave.ir.bindings import ir

KINDS = {
    "cpu": ("kernels", "buffers", "llvm", "asm"),
    "gpu": ("buffers", "kernels", "host", "llvm", "ptx"),
}
"""What there is to see of each target: fused kernels (for gpus: device kernels and their launches); buffers with their
places; the LLVM dialect (for gpus: host code in it, and kernels in LLVM IR); machine code, or PTX."""


def check_kind(goal: Goal, kind: str) -> None:
    """Raise UsageError for a kind of code that a target does not have."""
    kinds = KINDS[goal.target]
    if kind not in kinds:
        raise UsageError(f"--emit {kind}: target {goal.target} has {', '.join(kinds)}")


def text_of(module: "ir.Module", goal: Goal, kind: str, verify: bool = True) -> str:
    """Return the code of one rank's program, within its context.

    kind: one of KINDS for the goal's target. verify: whether to check the buffers.
    """
    from meshweave.dialects.alias import module_text
    from meshweave.lowering import stages

    if kind == "buffers" or (kind == "kernels" and not goal.chip):
        stage = stages.BUFFERS if kind == "buffers" else stages.KERNELS
        return module_text(stages.lowered_to(stage, module, goal.engine, verify))
    if goal.chip:
        return _gpu_text(module, goal, kind, verify)
    from meshweave.lowering.cpu.target import bundle_of_module, llvm_module

    made = llvm_module(stages.lower(module, goal.engine, verify=verify))
    return module_text(made) if kind == "llvm" else disassembled(bundle_of_module(made).objects[0])


def disassembled(code: bytes) -> str:
    """Return the assembly of an ELF object. Raises UsageError where binutils, which knows it, is not installed."""
    objdump = shutil.which("objdump")
    if objdump is None:
        raise UsageError("--emit asm needs objdump, which is not installed (package binutils)")
    file = os.memfd_create("meshweave")
    with os.fdopen(file, "wb") as out:
        out.write(code)
        out.flush()
        done = subprocess.run(
            [objdump, "-d", "--no-show-raw-insn", f"/proc/self/fd/{file}"],
            capture_output=True, text=True, pass_fds=(file,), check=True,
        )  # fmt: skip
    return "\n".join(line for line in done.stdout.split("\n") if "file format" not in line).lstrip()


def _gpu_text(module: "ir.Module", goal: Goal, kind: str, verify: bool) -> str:
    from meshweave.dialects.alias import module_text
    from meshweave.lowering.gpu.kernel import Target
    from meshweave.lowering.gpu.launches import device_program
    from meshweave.lowering.gpu.target import check_chip, host_texts
    from meshweave.lowering.gpu.toolchain.ptx import compile_kernels, device_llvm
    from meshweave.lowering.host.program import read_program
    from meshweave.lowering.stages import DEVICE, lower, stage_of

    if stage_of(module) == DEVICE:
        check_chip(module, goal.chip)
    else:
        module = device_program(lower(module, goal.engine, verify=verify), Target(goal.chip)).module
    if kind == "kernels":
        return module_text(module)
    texts = host_texts(read_program(module), {})
    kernels = [kernel for kernel, _ in texts.code.kernels]
    if kind == "host":
        return f"{texts.step}{texts.collectives}"
    if kind == "ptx":
        modules = compile_kernels(kernels, goal.chip)
        return "".join(module.ptx for module in dict.fromkeys(modules))
    return "".join(device_llvm(text) for text in dict.fromkeys(kernel.text for kernel in kernels))


def write_ptx(folder: str, bundle: Bundle, host: str) -> None:
    """Write the PTX of each device module, named after its first kernel, and the host code.

    Raises UsageError if the folder cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror or error}") from None
    write_text(str(Path(folder) / "host.mlir"), host)
    for number, module in enumerate(bundle.devices):
        entry = next(k.entry for k in bundle.manifest.kernels if k.module == number)
        write_text(str(Path(folder) / f"{number}_{entry}.ptx"), module.ptx)
