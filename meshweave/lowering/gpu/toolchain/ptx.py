"""Compile kernels to device modules: MLIR's conversions to LLVM IR, LLVM's back end to PTX, NVIDIA's ptxas to cubins.

The MLIR bindings' LLVM has no back end for GPUs; llvmlite's has. LLVM IR goes there as text
(literals.py), in separate processes (workers.py), because LLVM ends the process on what it cannot
do.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from meshweave.device import CHIPS, DeviceModule
from meshweave.errors import CompileError
from meshweave.ir.bindings import PassManager, ir, llvm
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.toolchain import literals, store
from meshweave.lowering.gpu.toolchain import versions as toolchain
from meshweave.lowering.gpu.toolchain.workers import POOL
from meshweave.transforms.base import walk

PROCESSES = 4  # at most
SECONDS = 300.0  # the time that ptxas may take for a module

# math.trunc and what else the device library lacks is left to convert-math-to-llvm; everything else
# of `math` must become a call of the device library before it (LLVM has no such functions here).
# The device library takes exponents of i32: with one of i64 the call would be of another function's type.
_KERNEL = (
    "math-expand-ops{ops=fpowi},convert-nvgpu-to-nvvm,convert-vector-to-scf{full-unroll=true target-rank=1},"
    "expand-strided-metadata,lower-affine,convert-scf-to-cf,convert-vector-to-llvm,"
    "convert-gpu-to-nvvm{index-bitwidth=0 use-bare-ptr-memref-call-conv=true},"
    "convert-math-to-llvm,convert-nvvm-to-llvm,reconcile-unrealized-casts,canonicalize,cse"
)
PIPELINE = f"builtin.module(strip-debuginfo,canonicalize,cse,gpu.module({_KERNEL}))"


def compile_kernels(kernels: Sequence[DeviceKernel], chip: str) -> list[DeviceModule]:
    """Return the device module of each kernel; kernels of equal text share one.

    A module without a cubin is one for which no ptxas is installed: the driver will compile its PTX.
    Raises CompileError that names the kernel, or what to install.
    """
    toolchain.need_llvm()
    named = {kernel.text: kernel.entry for kernel in kernels}

    def make(text: str) -> DeviceModule:
        try:
            return store.kept(text, chip, lambda: _made(text, chip))
        except CompileError as error:
            message = f"kernel {named[text]} for {chip}: {error.message}"
            raise CompileError(message, error.location) from None

    with ThreadPoolExecutor(min(PROCESSES, os.cpu_count() or 1)) as threads:
        modules = dict(zip(named, threads.map(make, named)))
    return [modules[kernel.text] for kernel in kernels]


def _made(text: str, chip: str) -> DeviceModule:
    ptx = to_ptx(device_llvm(text), chip)
    return DeviceModule(chip, ptx, assemble(ptx, chip))


def device_llvm(text: str) -> str:
    """Translate the body of a gpu.module to LLVM IR. Raises CompileError for what has no lowering."""
    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(
                f"module attributes {{gpu.container_module}} {{gpu.module @kernels {{\n{text}\n}}}}"
            )
            PassManager.parse(PIPELINE).run(module.operation)
        except ir.MLIRError as error:
            found = error.error_diagnostics
            said = str(found[0].message if found else error)
            raise CompileError(said.split("\n")[0]) from None
        device = ir.Module.create()
        kernels = module.body.operations[0].operation
        for op in kernels.regions[0].blocks[0].operations:
            device.body.append(op.operation.clone())
        for op in device.body.operations:
            if "gpu.kernel" in op.attributes:  # which the translation does not know
                del op.attributes["gpu.kernel"]
        for op in walk(device)[1:]:  # the translation would end the process on any of these
            if not op.name.startswith(("llvm.", "nvvm.")):
                raise CompileError(f"{op.name}: no lowering for this op on target gpu")
        translated: str = llvm().translate_module_to_llvmir(device.operation)
        return translated


def to_ptx(text: str, chip: str) -> str:
    """Compile LLVM IR as the MLIR bindings print it to PTX. Raises CompileError for what cannot be selected."""
    library = toolchain.libdevice() if "@__nv_" in text else ""
    request = {"text": literals.readable(text), "chip": chip, "features": _features(chip)}
    reply = POOL.ask({**request, "libdevice": library})
    if "error" in reply:
        raise CompileError(": ".join(reply["error"].splitlines()[:2]))
    ptx = reply["ptx"]
    if ".callprototype" in ptx:  # LLVM takes it for a call through a pointer
        raise CompileError("a function is called with arguments of other types than it has")
    return ptx


def _features(chip: str) -> str:
    """Return the version of PTX as LLVM has it: `+ptx83`."""
    return "+ptx" + CHIPS[chip].ptx.replace(".", "")


def assemble(ptx: str, chip: str) -> bytes | None:
    """Return the cubin; None where ptxas is not installed. Raises CompileError with what ptxas says."""
    tool = toolchain.program("ptxas")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [tool, f"-arch={chip}", str(source), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise CompileError(f"ptxas did not end in {SECONDS:g} s") from None
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            said = next((line for line in lines if "error" in line or "fatal" in line), lines[:1])
            raise CompileError(f"ptxas: {said or f'exit status {done.returncode}'}")
        return target.read_bytes()
