"""Kernels to device modules: MLIR's conversions to LLVM IR, LLVM's back end to PTX, ptxas to cubins.

The MLIR bindings' LLVM has no back end for GPUs; llvmlite's has. LLVM IR goes there as text
(literals.py), in processes of its own (workers.py), for that LLVM dies of what it cannot do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from meshweave.bindings import PassManager, ir, llvm
from meshweave.device import DeviceModule
from meshweave.errors import CompileError
from meshweave.lowering.gpu import literals, ptxas, store, toolchain
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.workers import POOL

FEATURES = {"sm_80": "+ptx80", "sm_90": "+ptx83", "sm_90a": "+ptx86"}  # the PTX of each chip
PROCESSES = 4  # at most

# math.trunc and what else the device library lacks is left to convert-math-to-llvm; everything else
# of `math` must become a call of the device library before it (LLVM has no such functions here).
_KERNEL = (
    "convert-nvgpu-to-nvvm,convert-vector-to-scf{full-unroll=true target-rank=1},"
    "expand-strided-metadata,lower-affine,convert-scf-to-cf,convert-vector-to-llvm,"
    "convert-gpu-to-nvvm{index-bitwidth=0 use-bare-ptr-memref-call-conv=true},"
    "convert-math-to-llvm,convert-nvvm-to-llvm,reconcile-unrealized-casts,canonicalize,cse"
)
PIPELINE = f"builtin.module(strip-debuginfo,canonicalize,cse,gpu.module({_KERNEL}))"


def compile_kernels(kernels: Sequence[DeviceKernel], chip: str) -> list[DeviceModule]:
    """The device module of each kernel; kernels of equal text share one.

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
    return DeviceModule(chip, ptx, ptxas.assemble(ptx, chip))


def device_llvm(text: str) -> str:
    """LLVM IR of the body of a gpu.module. CompileError for what has no lowering."""
    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(
                f"module attributes {{gpu.container_module}} {{gpu.module @kernels {{\n{text}\n}}}}"
            )
            PassManager.parse(PIPELINE).run(module.operation)
        except ir.MLIRError as error:
            raise CompileError(_first_line(error)) from None
        device = ir.Module.create()
        kernels = module.body.operations[0].operation
        for op in kernels.regions[0].blocks[0].operations:
            device.body.append(op.operation.clone())
        _check_translatable(device.operation)
        translated: str = llvm().translate_module_to_llvmir(device.operation)
        return translated


def _first_line(error: ir.MLIRError) -> str:
    found = error.error_diagnostics
    return str(found[0].message).split("\n")[0] if found else str(error).split("\n")[0]


def _check_translatable(module: ir.Operation) -> None:
    """Refuse what the translation would end the process on."""
    left: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.split(".")[0] not in ("llvm", "nvvm") and op.name != "builtin.module":
            left.append(op.name)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    if left:
        raise CompileError(f"{left[0]}: no lowering for this op on target gpu")


def to_ptx(text: str, chip: str) -> str:
    """The PTX of LLVM IR as the MLIR bindings print it. CompileError for what cannot be selected."""
    library = toolchain.libdevice() if "@__nv_" in text else ""
    reply = POOL.ask(
        {
            "text": literals.readable(text),
            "chip": chip,
            "features": FEATURES[chip],
            "libdevice": library,
        }
    )
    if "error" in reply:
        raise CompileError(": ".join(reply["error"].splitlines()[:2]))
    return reply["ptx"]
