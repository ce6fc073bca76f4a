"""Tell how far lowering has come with a module, and take it on from there.

A module printed behind any pass of the lowering is a program like any other: `meshweave run` and `meshweave compile` go
on where its text stands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from meshweave.errors import CompileError, UsageError
from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.function_plan import ARENA
from meshweave.lowering.buffers.order_launches import order_launches
from meshweave.lowering.buffers.plan_memory import plan_memory
from meshweave.lowering.buffers.verify_buffers import checked
from meshweave.lowering.communication.lower_collectives import LowerCollectives
from meshweave.lowering.host.prepare import ports
from meshweave.lowering.host.program import LoweredProgram, read_program
from meshweave.lowering.host.program_op import CHIP, engine_of, program_op, read_interface
from meshweave.lowering.nests.fuse_kernels import fuse
from meshweave.lowering.nests.kernel_ops import read_kernels
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.lowering.nests.limit_kernels import limit
from meshweave.transforms.base import copied, functions
from meshweave.verification.answer import Answer
from meshweave.verification.buffers.check import Reference

GLOBAL, LOCAL, TENSORS, KERNELS, BUFFERS, LLVM, DEVICE = STAGES = (
    "global", "local", "tensors", "kernels", "buffers", "llvm", "device",
)  # fmt: skip
"""What a module may be: whole tensors; one rank's (dist-partition); with collectives of an engine (lower-collectives);
with fused kernels (fuse-kernels); on buffers (plan-memory); for cpus in the LLVM dialect (to-llvm), for gpus with
device kernels (to-gpu)."""


def stage_of(module: ir.Module) -> str:
    """Return which of STAGES a module is at."""
    ops = [view.operation for view in module.operation.regions[0].blocks[0].operations]
    names, program = {op.name for op in ops}, program_op(module)
    if program is None:
        return LOCAL if any(_is_local(f.operation) for f in functions(module)) else GLOBAL
    if CHIP in program.attributes:
        return DEVICE
    if "func.func" not in names:
        return LLVM
    if any(ARENA in op.attributes for op in ops if op.name == "func.func"):
        return BUFFERS
    return KERNELS if "mw.kernel" in names else TENSORS


def _is_local(function: ir.Operation) -> bool:
    """Tell whether dist-partition has made a function: its arguments say what they are parts of."""
    entries = function.attributes.get("arg_attrs", ())
    return any("dist.global" in entry for entry in entries)


def mesh_text(module: ir.Module) -> str:
    """Return the text of the mesh that one rank's program is for; "" for one rank."""
    if program_op(module) is not None:
        return read_interface(module).mesh
    return ports(module)[2]


def check_engine(module: ir.Module, engine: str) -> None:
    """Raise UsageError unless a lowered module was lowered for this engine."""
    own = engine_of(module)
    if own != engine:
        raise UsageError(f"the program was lowered for engine {own}: it does not run on {engine}")


def lowered_to(
    stage: str, source: ir.Module, engine: str = "local", verify: bool = True
) -> ir.Module:
    """Take one rank's program from the stage it is at to a later one, at most BUFFERS. `source` is left as it is.

    engine: whose collectives the program calls; it has its target. verify: whether to check the buffers.
    Raises CompileError, with op and place, for what cannot be lowered.
    """
    lowered = _lowered(stage, source, engine, (), verify)
    if lowered.check is not None:
        checked(lowered.check())
    return lowered.module


class _Lowered(NamedTuple):
    """Hold a module, its kernels where they are known without reading it again, and what checks it."""

    module: ir.Module
    kernels: dict[str, FusedKernel] | None
    check: Callable[[], Answer] | None


def _lowered(
    stage: str, source: ir.Module, engine: str, disabled: Collection[str], verify: bool = True
) -> _Lowered:
    first, module = stage_of(source), copied(source)
    begun, wanted = STAGES.index(first), STAGES.index(stage)
    if begun > wanted:
        raise CompileError(f"the program is at stage {first} already, behind {stage}")
    if first not in (GLOBAL, LOCAL):
        check_engine(source, engine)
    kernels: dict[str, FusedKernel] | None = None
    check: Callable[[], Answer] | None = None
    if begun < STAGES.index(TENSORS) <= wanted:
        LowerCollectives(engine).run(module)
    if begun < STAGES.index(KERNELS) <= wanted:
        kernels = limit(module, fuse(module))
        order_launches(module, kernels)
    if begun < STAGES.index(BUFFERS) <= wanted:
        kernels = read_kernels(module) if kernels is None else kernels
        reference = Reference.of(module) if verify else None
        plan_memory(module, kernels, disabled)
        check = reference.later(module) if reference is not None else None
    return _Lowered(module, kernels, check)


def lower(
    source: ir.Module,
    engine: str = "local",
    disabled: Collection[str] = (),
    verify: bool = True,
    later: bool = False,
) -> LoweredProgram:
    """Take one rank's program to buffers, and read it there; see `lowered_to`.

    verify: whether to check the buffers. later: leave that to `bundle_of`, which does it beside code generation.
    """
    lowered = _lowered(BUFFERS, source, engine, disabled, verify)
    check = partial(_checked, lowered.check) if lowered.check is not None else None
    answer = check() if check is not None and not later else None
    program = read_program(lowered.module, lowered.kernels)
    return replace(program, verified=answer, unchecked=check if later else None)


def _checked(check: Callable[[], Answer]) -> Answer:
    return checked(check())
