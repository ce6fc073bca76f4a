"""plan-memory: put buffers in the place of tensors, each with its place in the arena and its lifetime.

before:  %1 = "mw.launch"(%0, %e) {kernel = @k0, outs = 1} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
after:   %b = "mw.place"() {offset = 128, buffer = 1, lifetime = array<i64: 2, 5>} : () -> memref<4x8xf32>
         "mw.launch"(%a, %b) {kernel = @k0, outs = 1} : (memref<4x8xf32>, memref<4x8xf32>) -> ()

Arguments of a function are its inputs, then the buffers of its results. Upstream's one-shot bufferisation decides
what is updated in place; launches that share the rows of what they touch become one kernel, in an `mw.fuse`; a
result may take the buffer of an operand that dies with it. Collectives get operands without gaps, scratch memory,
and areas for what is sent early; calls get the frame of the function they call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from meshweave.abi import AsyncArea, rounded
from meshweave.hints.fast_paths import KERNELS
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64, i64_array, segments
from meshweave.ir.calls import CALLS, called
from meshweave.lowering.buffers.arena import ArenaBlock
from meshweave.lowering.buffers.bufferize import boundary, bufferize
from meshweave.lowering.buffers.function_plan import ARENA
from meshweave.lowering.buffers.proxies import replace_ops, restore_ops
from meshweave.lowering.buffers.schedule import Schedule
from meshweave.lowering.buffers.steps import Buffers, Root, contiguous
from meshweave.lowering.host.functions import kept_functions, name_of
from meshweave.lowering.host.program_op import engine_of
from meshweave.lowering.nests.kernel_ops import read_kernels
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.lowering.nests.rows import Entry, KernelUnit
from meshweave.targets import Goal
from meshweave.transforms.base import Pass, functions, ops_of
from meshweave.transforms.kernels.generalize import take_over

SCRATCH, AREA, SENT = "scratch", "area", "sent"  # attributes of mw.collective and mw.start


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Give every tensor a buffer, and every buffer its place.

    disable: kernels that nothing will take; the gpu's plan depends on them.
    """

    name: ClassVar[str] = "plan-memory"
    disable: tuple[str, ...] = ()

    def run(self, module: ir.Module) -> None:
        with module.operation.context:
            plan_memory(module, read_kernels(module), self.disable)


def plan_memory(
    module: ir.Module, kernels: Mapping[str, FusedKernel], disable: Collection[str]
) -> None:
    """Put buffers in the place of tensors. kernels: those of the module, by name; disable: see `PlanMemory`."""
    context = module.operation.context
    with context, ir.Location.unknown(context):
        schedule = schedule_of(Goal.of(engine=engine_of(module)).target, disable)
        kept, _ = kept_functions(module)
        replaced = replace_ops(kept, kernels)
        for function in kept:
            boundary(function)
        names = [name_of(function) for function in kept]
        with kernels_apart(module):
            made = bufferize(module, kept)
            if made is not module:
                take_over(module, made)
        by_name = {name_of(function): function for function in functions(module)}
        frames: dict[str, int] = {}
        for name in names:
            function = by_name[name]
            for op in restore_ops(function, replaced):
                _complete(op, frames)
            plan = schedule(Buffers(function, kernels))
            write_plan(function, plan)
            frames[name] = plan.arena_bytes
        write_areas([by_name[name] for name in names], frames[names[-1]])


@contextmanager
def kernels_apart(module: ir.Module) -> Iterator[None]:
    """Take the kernels out of a module for a while.

    Upstream folds constants wherever it finds them, by another mathematics than that of the kernels.
    """
    block = module.operation.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    apart = [op.detach_from_parent() for op in ops if op.name == "mw.kernel"]
    yield
    first = next(view.operation for view in block.operations if view.operation.name == "func.func")
    for kernel in apart:
        ir.InsertionPoint(first).insert(kernel)


def schedule_of(target: str, disabled: Collection[str]) -> Callable[[Buffers], Schedule]:
    """Return what plans a function for a target."""
    if target != "gpu":
        return Schedule
    from meshweave.lowering.gpu.families.epilogues import schedule_for  # for gpus alone
    from meshweave.lowering.gpu.kernel import Target

    return schedule_for(Target(disabled=frozenset(disabled) & frozenset(KERNELS)))


# What collectives and calls need besides.


def _complete(op: ir.Operation, frames: Mapping[str, int]) -> None:
    """Give a collective or routine contiguous operands and its scratch memory, a call the frame of its callee."""
    if op.name in ("mw.collective", "mw.start", "mw.call", *CALLS):
        inputs = len(op.operands) - (op.attributes["outs"].value if "outs" in op.attributes else 1)
        for number, value in enumerate(op.operands):
            if not _is_packed(value):
                _pack(op, number, is_input=number < inputs)
    if op.name == "mw.call":
        _append_memory(op, frames[op.attributes["callee"].value])
    elif op.name in CALLS and (nbytes := called(op).scratch_bytes):
        _append_memory(op, nbytes)
    elif op.name in ("mw.collective", "mw.start") and SCRATCH in op.attributes:
        _append_memory(op, op.attributes[SCRATCH].value)


def _is_packed(value: ir.Value) -> bool:
    type_ = value.type
    if not isinstance(type_, ir.MemRefType) or 0 in type_.shape:
        return True
    return contiguous(type_.shape, type_.get_strides_and_offset()[0])


def _pack(op: ir.Operation, number: int, is_input: bool) -> None:
    """Let operand `number` of an op be a buffer of its own, copied before it or after it."""
    value = op.operands[number]
    buffer = _memory(op, value.type.shape, value.type.element_type)
    op.operands[number] = buffer
    end = op if op.name != "mw.start" else _wait_of(op)
    if is_input:
        _copy(value, buffer, op)
    else:
        _copy(buffer, value, end).move_after(end)


def _wait_of(start: ir.Operation) -> ir.Operation:
    """Return the wait for a collective; from now on it is on the same operands."""
    ticket = start.attributes["ticket"]
    for view in start.block.operations:
        op = view.operation
        if op.name == "mw.wait" and op.attributes["ticket"] == ticket:
            for number in range(2):
                op.operands[number] = start.operands[number]
            return op
    raise AssertionError("every start has its wait")


def _memory(before: ir.Operation, shape: Sequence[int], element: ir.Type) -> ir.Value:
    type_ = ir.MemRefType.get(list(shape), element)
    b = OpBuilder.before(before)
    return b.one("memref.alloc", type_, operandSegmentSizes=segments(0, 0))


def _copy(source: ir.Value, target: ir.Value, before: ir.Operation) -> ir.Operation:
    return OpBuilder.before(before).op("memref.copy", [], [source, target])


def _append_memory(op: ir.Operation, nbytes: int) -> None:
    """Make an op again with one more operand: memory of its own."""
    memory = _memory(op, [nbytes], ir.IntegerType.get_signless(8))
    attributes = {key: op.attributes[key] for key in op.attributes}
    OpBuilder.before(op).op(op.name, [], [*op.operands, memory], **attributes)
    op.erase()


# The plan in the IR.


def write_plan(function: ir.OpView, plan: Schedule) -> None:
    """Write what a schedule has decided into its function."""
    for op in plan.idle:
        op.erase()
    _write_entries(plan.entries, None)
    numbers: dict[Root, int] = {}
    blocks = plan.blocks
    for view in ops_of(function, "memref.alloc", "memref.dealloc"):
        if view.operation.name == "memref.alloc":
            _write_place(view.operation, plan, blocks, numbers)
        else:
            view.operation.erase()
    function.operation.attributes[ARENA] = i64(plan.arena_bytes)


def _write_entries(entries: Sequence[Entry], following: ir.Operation | None) -> None:
    """Put each unit right before what runs after it, several launches in an `mw.fuse`."""
    for entry in reversed(entries):
        if isinstance(entry, KernelUnit):
            assert following is not None, "a block ends in an op that stays"
            following = _write_unit(entry, following)
        else:
            following = entry.op
            for body in entry.bodies:
                _write_entries(body, None)


def _write_unit(unit: KernelUnit, following: ir.Operation) -> ir.Operation:
    ops = [step.op for step in unit.steps]
    if len(ops) == 1:
        ops[0].move_before(following)
        return ops[0]
    b = OpBuilder(ir.InsertionPoint(following), ops[0].location)
    fused = b.op("mw.fuse", regions=1, rows=i64(unit.rows))
    inner, _ = b.block(fused.regions[0])
    end = inner.op("mw.yield")
    for op in ops:
        op.move_before(end)
    return fused


def _write_place(
    alloc: ir.Operation, plan: Schedule, blocks: Mapping[Root, ArenaBlock], numbers: dict[Root, int]
) -> None:
    """Put an `mw.place` or `mw.share` in the place of an allocation."""
    value, b = alloc.results[0], OpBuilder.before(alloc)
    found = plan.buffers.places.get(value)
    root = plan.final(found.root) if found is not None else None
    if root is None or (root.kind == "arena" and root not in blocks):
        alloc.erase()  # nothing touches it
        return
    if root.kind == "output":
        made = b.one("mw.share", value.type, root.value)
    else:
        block = blocks[root]
        made = b.one(
            "mw.place",
            value.type,
            offset=i64(block.at),
            buffer=i64(numbers.setdefault(root, len(numbers))),
            lifetime=i64_array([block.first, block.last]),
        )
    value.replace_all_uses_with(made)
    alloc.erase()


def write_areas(kept: Sequence[ir.OpView], arena_bytes: int) -> None:
    """Give each collective that is started early an area behind the arena, which outlives all frames."""
    end = arena_bytes
    for op in (view.operation for function in kept for view in ops_of(function, "mw.start")):
        op.attributes[AREA] = i64(rounded(end))
        end = rounded(end) + AsyncArea.nbytes(op.attributes[SENT].value)
