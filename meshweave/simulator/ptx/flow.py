"""Find the control flow of a function.

It has basic blocks, where divergent threads meet again, and which registers hold one value for all threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.program import (
    Address,
    Instruction,
    Negated,
    Operand,
    PredicatePair,
    PtxFunction,
    Register,
    Symbol,
    Vector,
)

EXIT = -1  # stands for the end of the kernel among the numbers of blocks

_UNIFORM_SPECIALS = ("%ntid", "%nctaid", "%SP", "%SPL", "%dynamic_smem", "%total_smem")
# Results of these depend on operands alone; all others may differ from thread to thread.
_PURE = frozenset(
    (
        "add", "sub", "mul", "mad", "fma", "div", "rem", "and", "or", "xor", "not", "neg",
        "abs", "min", "max", "shl", "shr", "shf", "bfe", "bfi", "prmt", "popc", "clz",
        "brev", "lop3", "setp", "selp", "cvt", "cvta", "mov", "rcp",
        "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign", "testp", "sad",
        "dp4a",
    )
)  # fmt: skip
_NO_RESULT = frozenset(
    (
        "st", "red", "bar", "barrier", "bra", "ret", "exit", "membar", "fence", "cp",
        "prefetch", "prefetchu", "trap", "brkpt", "griddepcontrol", "nanosleep", "stmatrix",
        "discard", "applypriority", "setmaxnreg",
    )
)  # fmt: skip


@dataclass
class BasicBlock:
    """Hold instructions [start, end) and how they end.

    kind: "go" (to `target`), "branch" (to `target` where the guard of the last instruction holds,
    else to `next`), "barrier" (wait, then `next`). join: block where the sides of a branch meet.
    """

    start: int
    end: int
    kind: str = "go"
    target: int = EXIT
    next: int = EXIT
    join: int = EXIT

    @property
    def successors(self) -> tuple[int, ...]:
        """Return the blocks that may come next."""
        if self.kind == "branch":
            return (self.target, self.next)
        return (self.next,) if self.kind == "barrier" else (self.target,)


@dataclass(frozen=True)
class FlowGraph:
    """Hold the blocks of a function (the first is where it starts) and its uniform registers."""

    blocks: tuple[BasicBlock, ...]
    uniform: frozenset[str]


def flow_of(function: PtxFunction) -> FlowGraph:
    """Find the control flow of a function. Raises EmulationError for jumps that cannot be followed."""
    blocks = _blocks(function)
    for number, join in enumerate(_post_dominators(blocks)):
        blocks[number].join = join
    return FlowGraph(tuple(blocks), frozenset(_uniform(function, blocks)))


def is_barrier(instruction: Instruction) -> bool:
    """Tell whether the threads of a block wait for each other at an instruction."""
    name = instruction.parts[0]
    return name in ("bar", "barrier") and not instruction.has("warp", "cluster")


def _ends(instruction: Instruction) -> bool:
    return instruction.parts[0] in ("bra", "ret", "exit", "brx") or is_barrier(instruction)


def _blocks(function: PtxFunction) -> list[BasicBlock]:
    code = function.code
    starts = {0, *function.labels.values()}
    starts |= {at + 1 for at, instruction in enumerate(code) if _ends(instruction)}
    order = sorted(start for start in starts if start < len(code))
    number = {start: at for at, start in enumerate(order)}
    blocks = []
    for start, end in zip(order, [*order[1:], len(code)]):
        block = BasicBlock(start, end, "go", number.get(end, EXIT), number.get(end, EXIT))
        _finish(block, code[end - 1], function, number)
        blocks.append(block)
    alone = {
        at
        for at, block in enumerate(blocks)
        if block.end - block.start == 1 and code[block.start].parts[0] in ("ret", "exit")
        if code[block.start].guard is None
    }
    for block in blocks:  # a jump to `ret` is a `ret`
        block.target = EXIT if block.target in alone else block.target
        block.next = EXIT if block.next in alone else block.next
    return blocks


def _finish(
    block: BasicBlock, last: Instruction, function: PtxFunction, number: dict[int, int]
) -> None:
    name = last.parts[0]
    if is_barrier(last):
        if last.guard is not None:
            raise last.refuse("a guarded barrier is not emulated")
        block.kind = "barrier"
    elif name in ("ret", "exit"):
        block.target = EXIT
        block.kind = "go" if last.guard is None else "branch"
    elif name == "bra":
        label = label_of(last, function)
        block.target = number.get(function.labels[label], EXIT)
        block.kind = "go" if last.guard is None else "branch"
    elif name == "brx":
        raise last.refuse()


def label_of(jump: Instruction, function: PtxFunction) -> str:
    """Return the label that a jump goes to. Raises EmulationError where there is none."""
    target = jump.operands[0] if jump.operands else None
    if isinstance(target, Symbol):
        for scope in reversed(jump.scope):
            name = target.name if scope == 0 else f"{target.name}@{scope}"
            if name in function.labels:
                return name
    raise EmulationError(
        f"ptx line {jump.line}: {jump.opcode}: no label {getattr(target, 'name', target)}"
    )


def _post_dominators(blocks: list[BasicBlock]) -> list[int]:
    """Return for each block the next block that every way to the end goes through."""
    last = len(blocks)
    after = [[last if s == EXIT else s for s in block.successors] for block in blocks]
    everything = frozenset(range(last + 1))
    sets = [everything] * last + [frozenset([last])]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(last)):
            common = frozenset.intersection(*(sets[s] for s in after[number])) | {number}
            if common != sets[number]:
                sets[number], changed = common, True
    # The nearest one is the one that all the others post-dominate.
    joins = []
    for number in range(last):
        strict = sets[number] - {number}
        nearest = max(strict, key=lambda other: len(sets[other]), default=last)
        joins.append(EXIT if nearest == last or sets[nearest] == everything else nearest)
    return joins


def registers_of(operand: Operand) -> Iterator[str]:
    """Return the names of the registers in an operand."""
    if isinstance(operand, Register):
        yield operand.name
    elif isinstance(operand, Negated):
        yield operand.register.name
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
    elif isinstance(operand, PredicatePair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
    elif isinstance(operand, Vector):
        for part in operand.parts:
            yield from registers_of(part)


def _results(instruction: Instruction) -> tuple[str, ...]:
    target = target_of(instruction)
    return () if target is None else tuple(registers_of(target))


def target_of(instruction: Instruction) -> Any:
    """Return the operand that an instruction writes; None where it writes no register."""
    if instruction.parts[0] in _NO_RESULT or not instruction.operands:
        return None
    if instruction.has("wait_group"):
        return None
    return instruction.operands[0]


def _sources(instruction: Instruction) -> tuple[str, ...] | None:
    """Return the registers that alone decide an instruction's results; None where other things may."""
    name = instruction.parts[0]
    if name not in _PURE and not (name == "ld" and instruction.has("param", "global", "const")):
        return None
    sources = [n for operand in instruction.operands[1:] for n in registers_of(operand)]
    if instruction.guard is not None:  # else a part of the register is kept
        sources.append(instruction.guard)
    return tuple(sources)


def _differs(register: str, divergent: set[str]) -> bool:
    if register in divergent:
        return True
    special = register.startswith("%") and "." in register
    named = ("%laneid", "%warpid", "%lanemask", "%clock", "%smid", "%globaltimer")
    return (special or register.startswith(named)) and not register.startswith(_UNIFORM_SPECIALS)


def _uniform(function: PtxFunction, blocks: list[BasicBlock]) -> set[str]:
    divergent: set[str] = set()
    split: set[int] = set()  # blocks that part of the threads may execute alone
    facts = [(_sources(instruction), _results(instruction)) for instruction in function.code]
    while True:
        before = len(divergent), len(split)
        for number, block in enumerate(blocks):
            for sources, results in facts[block.start : block.end]:
                same = number not in split and sources is not None
                if not same or any(_differs(source, divergent) for source in sources or ()):
                    divergent.update(results)
            guard = function.code[block.end - 1].guard
            if block.kind == "branch" and guard is not None and _differs(guard, divergent):
                split.update(_between(blocks, block))
        if (len(divergent), len(split)) == before:
            return set(function.registers) - divergent


def _between(blocks: list[BasicBlock], branch: BasicBlock) -> Iterable[int]:
    """Return the blocks that a part of the threads of a branch may execute alone.

    Threads that end at once leave the others together.
    """
    if EXIT in branch.successors:
        return set()
    found: set[int] = set()
    todo = [number for number in branch.successors if number != branch.join]
    while todo:
        number = todo.pop()
        if number not in found and number != EXIT:
            found.add(number)
            todo += [s for s in blocks[number].successors if s != branch.join]
    return found
