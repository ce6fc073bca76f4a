"""Decode a kernel: its blocks of code become lists of handlers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.flow import (
    BasicBlock,
    flow_of,
    is_barrier,
    registers_of,
    target_of,
)
from meshweave.simulator.ptx.grid import KernelResources
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, guarded
from meshweave.simulator.ptx.inline import inlined
from meshweave.simulator.ptx.instructions import (
    access,
    collectives,
    convert,
    copies,
    floating,
    integer,
    matrix,
    warpgroup,
)
from meshweave.simulator.ptx.program import (
    Immediate,
    Instruction,
    Operand,
    PredicatePair,
    PtxFunction,
    PtxModule,
    Register,
    Symbol,
    Variable,
    Vector,
)
from meshweave.simulator.ptx.slots import OperandSlots, bits_of


def _nothing(instruction: Instruction, scope: Scope) -> Handler:
    return lambda machine: None


# Hints and fences: memory is always up to date here, and what is not ordered is a race all the same.
_NO_EFFECT = ("membar", "prefetch", "prefetchu", "griddepcontrol", "nanosleep", "discard",
              "applypriority", "brkpt", "setmaxnreg")  # fmt: skip
BUILDERS: dict[str, Builder] = {
    **integer.BUILDERS,
    **floating.BUILDERS,
    **convert.BUILDERS,
    **access.BUILDERS,
    **copies.BUILDERS,
    **collectives.BUILDERS,
    **matrix.BUILDERS,
    **warpgroup.BUILDERS,
    **dict.fromkeys(_NO_EFFECT, _nothing),
}
_CONTROL = ("bra", "ret", "exit")


@dataclass
class CodeBlock:
    """Hold a block of code: handlers to call in order, then how it goes on (see `flow.Block`).

    guard, barrier, need: slots; length: instructions; line: of the last one.
    """

    handlers: list[Handler]
    length: int
    kind: str
    target: int
    next: int
    join: int
    line: int
    guard: int = -1
    negated: bool = False
    barrier: int = -1
    need: int | None = None
    arrive: bool = False


@dataclass
class DecodedKernel(KernelResources):
    """Hold a decoded entry."""

    function: PtxFunction
    codes: list[CodeBlock]


def decode(module: PtxModule, entry: str) -> DecodedKernel:
    """Decode the kernel of an entry. Raises EmulationError for instructions that are not emulated."""
    function = module.functions.get(entry)
    if function is None or not function.entry:
        there = ", ".join(module.entries) or "none"
        raise EmulationError(f'no kernel "{entry}" in the module; there are: {there}')
    if not function.code:
        raise EmulationError(f"{entry}: a kernel without instructions")
    function = inlined(module, function)
    flow = flow_of(function)
    slots = OperandSlots({**function.registers, integer.CARRY: 1}, flow.uniform)
    accumulators = warpgroup.accumulators_of(function.code)
    scope = Scope(module, function, slots, accumulators)
    codes = [_code(block, function, scope) for block in flow.blocks]
    variables = {**module.variables, **function.variables}
    shared, shared_bytes = _layout(variables, "shared")
    local, local_bytes = _layout(variables, "local")
    return DecodedKernel(
        entry,
        slots,
        shared,
        shared_bytes,
        local,
        local_bytes,
        _narrowest(function, "global"),
        _narrowest(function, "shared"),
        accumulators,
        function,
        codes,
    )


def _code(block: BasicBlock, function: PtxFunction, scope: Scope) -> CodeBlock:
    handlers = []
    instructions = function.code[block.start : block.end]
    for instruction in instructions:
        if instruction.parts[0] not in _CONTROL and not is_barrier(instruction):
            handlers.append(_handler(instruction, scope))
    last = instructions[-1]
    code = CodeBlock(
        handlers,
        len(instructions),
        block.kind,
        block.target,
        block.next,
        block.join,
        last.line,
    )
    if block.kind == "branch":
        assert last.guard is not None
        code.guard, code.negated = (
            scope.slot_of(last, Register(last.guard), "pred"),
            last.negated,
        )
    if block.kind == "barrier":
        _barrier(code, last, scope)
    return code


def _handler(instruction: Instruction, scope: Scope) -> Handler:
    builder = BUILDERS.get(instruction.parts[0])
    if builder is None:
        raise instruction.refuse()
    if not _writable(target_of(instruction)):
        raise instruction.refuse("the first operand cannot be written")
    try:
        handler = builder(instruction, scope)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise instruction.refuse(f"cannot be read ({error})") from error
    if scope.accumulators and instruction.parts[0] != "wgmma":
        used = [name for operand in instruction.operands for name in registers_of(operand)]
        known = [scope.accumulators[name] for name in used if name in scope.accumulators]
        if known:
            handler = warpgroup.untouched(handler, instruction, list(dict.fromkeys(known)))
    if instruction.guard is None:
        return handler
    guard = scope.slot_of(instruction, Register(instruction.guard), "pred")
    return guarded(handler, guard, instruction.negated)


def _writable(operand: Operand) -> bool:
    """Tell whether an operand consists of registers and `_` (None: nothing is written)."""
    if isinstance(operand, Vector):
        return all(_writable(part) for part in operand.parts)
    if isinstance(operand, PredicatePair):
        return _writable(operand.first) and _writable(operand.second)
    return operand is None or isinstance(operand, Register) or operand == Symbol("_")


def _barrier(code: CodeBlock, instruction: Instruction, scope: Scope) -> None:
    if instruction.has("red"):
        raise instruction.refuse()
    code.arrive = instruction.has("arrive")
    operands = instruction.operands or (Immediate(0),)
    code.barrier = scope.slot_of(instruction, operands[0], "u32")
    if len(operands) > 1:
        code.need = scope.slot_of(instruction, operands[1], "u32")


def _layout(variables: dict[str, Variable], space: str) -> tuple[dict[str, int], int]:
    """Return the offsets of the variables of a space: those with a size first, then the dynamic ones."""
    places, end = {}, 0
    for name, variable in sorted(variables.items(), key=lambda item: item[1].nbytes == 0):
        if variable.space == space:
            end = -(-end // variable.align) * variable.align
            places[name] = end
            end += variable.nbytes
    return places, end


def _narrowest(function: PtxFunction, space: str) -> int:
    """Return log2 of the narrowest access of the function to a memory (generic ones count for all)."""
    widths = [size for instruction in function.code for size in _widths(instruction, space)]
    return min(widths, default=4).bit_length() - 1


def _widths(instruction: Instruction, space: str) -> Iterator[int]:
    name = instruction.parts[0]
    if name in ("ld", "st", "atom", "red", "ldu"):
        if access.space_of(instruction) in (space, "generic") and instruction.types:
            operand = instruction.operands[0 if name in ("ld", "ldu") else 1]
            count = len(operand.parts) if isinstance(operand, Vector) else 1
            nbytes = bits_of(instruction.types[-1]) // 8
            nbytes *= 1 if name in ("atom", "red") else count
            if name in ("ld", "ldu") and access.is_partial(instruction, nbytes):
                yield from (size for _, size in access.used_pieces(instruction, nbytes))
            else:
                yield nbytes
    elif name == "cp":  # with a fourth operand it may read less
        yield 1 if space == "global" and len(instruction.operands) > 3 else 4
    elif name in ("ldmatrix", "stmatrix", "wgmma") and space == "shared":
        yield 16
