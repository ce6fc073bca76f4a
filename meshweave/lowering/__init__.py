"""Lower a program in the local view to a bundle, for each target. `pipeline` and the faces import it."""

from functools import cache, partial

from meshweave.bundle import Bundle
from meshweave.certificate import Certificate
from meshweave.errors import CompileError
from meshweave.hints.fast_paths import ALL, Choice
from meshweave.ir.bindings import ir
from meshweave.lowering.budget import HintBudget
from meshweave.lowering.buffers.order_launches import OrderLaunches
from meshweave.lowering.buffers.plan_memory import PlanMemory
from meshweave.lowering.buffers.verify_buffers import VerifyBuffers
from meshweave.lowering.communication.lower_collectives import LowerCollectives
from meshweave.lowering.cpu.target import bundle_of as cpu_bundle_of
from meshweave.lowering.cpu.target import bundle_of_module, check_module, compile_local
from meshweave.lowering.cpu.to_llvm import ToLlvm
from meshweave.lowering.gpu.to_gpu import ToGpu
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.nests.fuse_kernels import FuseKernels
from meshweave.lowering.nests.limit_kernels import LimitKernels
from meshweave.lowering.recompute import HintRecompute
from meshweave.lowering.stages import lower
from meshweave.targets import Goal
from meshweave.verification.answer import Answer

_ALL = (
    HintBudget,
    HintRecompute,
    LowerCollectives,
    FuseKernels,
    LimitKernels,
    OrderLaunches,
    PlanMemory,
    VerifyBuffers,
    ToLlvm,
    ToGpu,
)
PASSES = {p.name: p for p in _ALL}
"""The passes of the lowering, in pipeline order, after the one that needs it to decide."""


def compile_program(module: ir.Module, engine: str) -> Bundle:
    """Compile `@main` of a module in the local view for the target that an engine runs."""
    with module.context, ir.Location.unknown():
        return bundle_of(lower(module, engine), Goal.of(engine=engine))


def bundle_of(program: LoweredProgram, goal: Goal, kernels: Choice = ALL) -> Bundle:
    """Return the bundle of a program for a goal, within the program's context.

    kernels: those that may be taken where the target has some of its own. What is still to be checked of the program is
    checked first for a gpu, and for a cpu while LLVM compiles. What that refuses is what is raised.
    """
    if goal.chip:  # imported here, so that it costs nothing elsewhere
        from meshweave.lowering.gpu import target as gpu_target
        from meshweave.lowering.gpu.kernel import Target

        program.certificate, program.verified = _checked(program)
        disabled = frozenset(kernels.disabled)
        return gpu_target.bundle_of(program, Target(goal.chip, disabled=disabled))
    if program.certify is None and program.unchecked is None:
        return cpu_bundle_of(program)
    check = cache(partial(_checked, program))
    try:
        bundle = cpu_bundle_of(program, check)
    except CompileError:
        check()  # a wrong program may be why it has no code
        raise
    program.certificate, program.verified = check()
    return bundle.certified(program.certificate)


def _checked(program: LoweredProgram) -> tuple[Certificate, Answer | None]:
    """Make the checks of a program that are still to be made."""
    certificate = program.certificate if program.certify is None else program.certify()
    return certificate, program.verified if program.unchecked is None else program.unchecked()


def finished_bundle(module: ir.Module, goal: Goal) -> Bundle:
    """Return the bundle of a module that to-llvm or to-gpu has run on, within its context; it is used up."""
    if goal.chip:
        from meshweave.lowering.gpu import target as gpu_target  # as above

        gpu_target.check_chip(module, goal.chip)
        return gpu_target.bundle_of_module(module)
    check_module(module)
    return bundle_of_module(module)


__all__ = ["PASSES", "bundle_of", "compile_local", "compile_program", "finished_bundle"]
