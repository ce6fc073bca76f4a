"""to-llvm: the LLVM dialect in the place of kernels, launches and buffers.

before:  mw.kernel @k0 {..};  func.func @main(%a: memref<4x4xf32>, ..) { "mw.launch"(%a, ..) {kernel = @k0, ..} .. }
after:   llvm.func @mw_kernel_0(..) {..};  llvm.func @step(%ctx: !llvm.ptr) -> i32 { llvm.call @mw_kernel_0(..) .. }

Each launch, or `mw.fuse` of several, becomes a call of a kernel: a loop nest on pointers, or a call of the
library's GEMM. `@step` is what an engine runs: it reads the table of buffers that it is given, and calls kernels
and collectives. The code of collectives is compiled apart (lowering/cpu/collectives/library). `mw.program` gets
what else the bundle says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshweave.errors import UsageError
from meshweave.ir.bindings import ir
from meshweave.lowering.cpu.target import llvm_module
from meshweave.lowering.host.program import read_program
from meshweave.transforms.base import Pass
from meshweave.transforms.kernels.generalize import take_over


@dataclass(frozen=True)
class ToLlvm(Pass):
    """Lower a planned program of target cpu to the LLVM dialect."""

    name: ClassVar[str] = "to-llvm"

    def run(self, module: ir.Module) -> None:
        context = module.operation.context
        with context, ir.Location.unknown(context):
            program = read_program(module)
            if program.target != "cpu":
                raise UsageError(f"to-llvm makes code for target cpu, not for {program.target}")
            take_over(module, llvm_module(program))
