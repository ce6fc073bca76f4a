"""Blocks and branches of a step function: what becomes of scf.for, scf.if and scf.while.

Values that a block gets are its arguments: numbers, and pointers of buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from meshweave.bindings import ir
from meshweave.lowering.steps import Step


class Branches(ABC):
    """The lines of a function so far, and how control flow is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._values: dict[Any, str] = {}
        self._count = 0
        self._blocks = 0

    @abstractmethod
    def _value(self, value: Any) -> str:
        """The name of a number."""

    @abstractmethod
    def _based(self, value: Any, target: Any) -> str:
        """The address of a buffer such that the offset of another, `target`, finds the element."""

    @abstractmethod
    def _entries(self, entries: list[Any]) -> None:
        """Write the steps of a block."""

    def let(self, text: str) -> str:
        """One more op with a result; its name."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def _fresh_block(self) -> str:
        self._blocks += 1
        return f"^b{self._blocks}"

    def _handed(self, values: list[Any], targets: list[Any]) -> str:
        """Block arguments: numbers, and pointers such that the target's own offset finds the
        element.
        """
        names = []
        for value, target in zip(values, targets):
            if isinstance(value.type, ir.MemRefType):
                names.append(self._based(value, target))
            else:
                names.append(self._value(value))
        if not names:
            return ""
        return f"({', '.join(names)} : {', '.join(type_text(t.type) for t in targets)})"

    def _label(self, block: str, values: list[Any]) -> None:
        """Begin a block whose arguments are `values`."""
        arguments = []
        for value in values:
            self._count += 1
            self._values[value] = f"%v{self._count}"
            arguments.append(f"%v{self._count}: {type_text(value.type)}")
        self.lines.append(f"{block}({', '.join(arguments)}):" if arguments else f"{block}:")

    def for_loop(self, step: Step) -> None:
        """scf.for"""
        op, block = step.op, step.op.regions[0].blocks[0]
        lower, upper, stride, *inits = op.operands
        counter, *carried = block.arguments
        head, body, after = (self._fresh_block() for _ in range(3))
        end = _terminator(block)
        self.lines.append(f"llvm.br {head}{self._handed([lower, *inits], [counter, *carried])}")
        self._label(head, [counter, *carried])
        kind = type_text(counter.type)
        test = self.let(f'llvm.icmp "slt" {self._value(counter)}, {self._value(upper)} : {kind}')
        results = list(op.results)
        self.lines.append(f"llvm.cond_br {test}, {body}, {after}{self._handed(carried, results)}")
        self.lines.append(f"{body}:")
        self._entries(step.bodies[0])
        again = self._handed(list(end.operands), carried)
        following = self.let(f"llvm.add {self._value(counter)}, {self._value(stride)} : {kind}")
        names, types = again[1:-1].split(" : ") if again else ("", "")
        names = ", ".join(n for n in (following, names) if n)
        types = ", ".join(t for t in (kind, types) if t)
        self.lines.append(f"llvm.br {head}({names} : {types})")
        self._label(after, results)

    def if_else(self, step: Step) -> None:
        """scf.if"""
        op = step.op
        then, other, after = (self._fresh_block() for _ in range(3))
        self.lines.append(f"llvm.cond_br {self._value(op.operands[0])}, {then}, {other}")
        for label, region, entries in zip((then, other), op.regions, step.bodies):
            self.lines.append(f"{label}:")
            self._entries(entries)
            given = list(_terminator(region.blocks[0]).operands) if len(region.blocks) else []
            self.lines.append(f"llvm.br {after}{self._handed(given, list(op.results))}")
        self._label(after, list(op.results))

    def while_loop(self, step: Step) -> None:
        """scf.while"""
        op = step.op
        before, body = (region.blocks[0] for region in op.regions)
        test, again, after = (self._fresh_block() for _ in range(3))
        self.lines.append(
            f"llvm.br {test}{self._handed(list(op.operands), list(before.arguments))}"
        )
        self._label(test, list(before.arguments))
        self._entries(step.bodies[0])
        condition, *handed = _terminator(before).operands
        into = self._handed(handed, list(body.arguments))
        out = self._handed(handed, list(op.results))
        self.lines.append(f"llvm.cond_br {self._value(condition)}, {again}{into}, {after}{out}")
        self._label(again, list(body.arguments))
        self._entries(step.bodies[1])
        given = list(_terminator(body).operands)
        self.lines.append(f"llvm.br {test}{self._handed(given, list(before.arguments))}")
        self._label(after, list(op.results))


def _terminator(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation


def type_text(type_: Any) -> str:
    """The type of a number or buffer in the step function."""
    if isinstance(type_, ir.MemRefType):
        return "!llvm.ptr"
    return "i64" if isinstance(type_, ir.IndexType) else str(type_)
