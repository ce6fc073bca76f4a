"""Write the blocks and branches of a step function: what becomes of scf.for, scf.if and scf.while.

Values that a block gets are its arguments: numbers, and pointers of buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.ops import terminator
from meshweave.lowering.buffers.steps import Step
from meshweave.lowering.nests.rows import Entry


class Branches(ABC):
    """Hold the lines of a function so far, and write its control flow."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._values: dict[ir.Value, str] = {}
        self._count = 0
        self._blocks = 0

    @abstractmethod
    def _value(self, value: ir.Value) -> str:
        """Return the name of a number."""

    @abstractmethod
    def _based(self, value: ir.Value, target: ir.Value) -> str:
        """Return the address of a buffer such that the offset of another, `target`, finds the element."""

    @abstractmethod
    def _entries(self, entries: Sequence[Entry]) -> None:
        """Write the steps of a block."""

    @abstractmethod
    def _leave_if_told(self) -> None:
        """Leave the function where the rank has been told to: a loop that data keeps going may never end."""

    def let(self, text: str) -> str:
        """Write an op with a result, and return its name."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def _fresh_block(self) -> str:
        self._blocks += 1
        return f"^b{self._blocks}"

    def _handed(self, values: Sequence[ir.Value], targets: Sequence[ir.Value]) -> str:
        """Return block arguments for `targets`."""
        return _arguments(self._named(values, targets), targets)

    def _named(self, values: Sequence[ir.Value], targets: Sequence[ir.Value]) -> list[str]:
        """Return names: of numbers, and of pointers such that the target's own offset finds the element."""
        return [
            self._based(v, target) if isinstance(v.type, ir.MemRefType) else self._value(v)
            for v, target in zip(values, targets)
        ]

    def _label(self, block: str, values: Sequence[ir.Value]) -> None:
        """Begin a block whose arguments are `values`."""
        arguments = []
        for value in values:
            self._count += 1
            self._values[value] = f"%v{self._count}"
            arguments.append(f"%v{self._count}: {type_text(value.type)}")
        self.lines.append(f"{block}({', '.join(arguments)}):" if arguments else f"{block}:")

    def for_loop(self, step: Step) -> None:
        """Write an scf.for."""
        op, block = step.op, step.op.regions[0].blocks[0]
        lower, upper, stride, *inits = op.operands
        counter, *carried = block.arguments
        head, body, after = (self._fresh_block() for _ in range(3))
        end = terminator(block)
        self.lines.append(f"llvm.br {head}{self._handed([lower, *inits], [counter, *carried])}")
        self._label(head, [counter, *carried])
        kind = type_text(counter.type)
        test = self.let(f'llvm.icmp "slt" {self._value(counter)}, {self._value(upper)} : {kind}')
        results = list(op.results)
        self.lines.append(f"llvm.cond_br {test}, {body}, {after}{self._handed(carried, results)}")
        self.lines.append(f"{body}:")
        self._entries(step.bodies[0])
        again = self._named(list(end.operands), carried)
        following = self.let(f"llvm.add {self._value(counter)}, {self._value(stride)} : {kind}")
        given = _arguments([following, *again], [counter, *carried])
        self.lines.append(f"llvm.br {head}{given}")
        self._label(after, results)

    def if_else(self, step: Step) -> None:
        """Write an scf.if."""
        op = step.op
        then, other, after = (self._fresh_block() for _ in range(3))
        self.lines.append(f"llvm.cond_br {self._value(op.operands[0])}, {then}, {other}")
        for label, region, entries in zip((then, other), op.regions, step.bodies):
            self.lines.append(f"{label}:")
            self._entries(entries)
            given = list(terminator(region.blocks[0]).operands) if len(region.blocks) else []
            self.lines.append(f"llvm.br {after}{self._handed(given, list(op.results))}")
        self._label(after, list(op.results))

    def while_loop(self, step: Step) -> None:
        """Write an scf.while."""
        op = step.op
        before, body = (region.blocks[0] for region in op.regions)
        test, again, after = (self._fresh_block() for _ in range(3))
        self.lines.append(
            f"llvm.br {test}{self._handed(list(op.operands), list(before.arguments))}"
        )
        self._label(test, list(before.arguments))
        self._leave_if_told()
        self._entries(step.bodies[0])
        condition, *handed = terminator(before).operands
        into = self._handed(handed, list(body.arguments))
        out = self._handed(handed, list(op.results))
        self.lines.append(f"llvm.cond_br {self._value(condition)}, {again}{into}, {after}{out}")
        self._label(again, list(body.arguments))
        self._entries(step.bodies[1])
        given = list(terminator(body).operands)
        self.lines.append(f"llvm.br {test}{self._handed(given, list(before.arguments))}")
        self._label(after, list(op.results))


def _arguments(names: Sequence[str], targets: Sequence[ir.Value]) -> str:
    types = ", ".join(type_text(target.type) for target in targets)
    return f"({', '.join(names)} : {types})" if names else ""


def type_text(type_: ir.Type) -> str:
    """Return the type of a number or buffer in the step function."""
    if isinstance(type_, ir.MemRefType):
        return "!llvm.ptr"
    return "i64" if isinstance(type_, ir.IndexType) else str(type_)
