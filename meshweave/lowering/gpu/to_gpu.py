"""to-gpu: device kernels and their launches in the place of loop nests.

before:  mw.kernel @k0 {..};  func.func @main(%a: memref<64xf32>, ..) { "mw.launch"(%a, %b) {kernel = @k0, ..} .. }
after:   gpu.module @kernel_0 { gpu.func @elementwise_..(%p0: !llvm.ptr<1>, ..) kernel {..} }
         %p = "mw.address"(%a) {map = affine_map<() -> (0)>} : (memref<64xf32>) -> !llvm.ptr<1>
         gpu.launch_func @kernel_0::@elementwise_.. blocks in (%c1, ..) threads in (%c256, ..) args(%p, ..)

Each launch, or `mw.fuse` of several, becomes launches of kernels, which a family makes, or an `mw.product`, which
cuBLASLt does. An exchange names the kernel that copies for it. Where hints ask for several streams, `mw.stream`,
`mw.record` and `mw.await` say which runs what, and what waits for what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshweave.errors import UsageError
from meshweave.ir.bindings import ir
from meshweave.lowering.host.program import read_program
from meshweave.targets import CHIP
from meshweave.transforms.base import Pass
from meshweave.transforms.kernels.generalize import take_over


@dataclass(frozen=True)
class ToGpu(Pass):
    """Make kernels for a gpu, and launch them.

    chip: what they are for. disable: families and libraries that make none of them.
    """

    name: ClassVar[str] = "to-gpu"
    chip: str = CHIP
    disable: tuple[str, ...] = ()

    def run(self, module: ir.Module) -> None:
        from meshweave.lowering.gpu.device_ops import CONTAINER  # for gpus alone
        from meshweave.lowering.gpu.kernel import Target
        from meshweave.lowering.gpu.launches import device_program

        context = module.operation.context
        with context, ir.Location.unknown(context):
            program = read_program(module)
            if program.target != "gpu":
                raise UsageError(f"to-gpu makes code for target gpu, not for {program.target}")
            target = Target(self.chip, disabled=frozenset(self.disable))
            take_over(module, device_program(program, target).module)
            module.operation.attributes[CONTAINER] = ir.UnitAttr.get()
