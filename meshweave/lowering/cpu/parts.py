"""Cut the kernels of a module in the LLVM dialect into parts that threads compile side by side.

Where it is cut depends on the program alone, not on the machine: the same program gives the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.ops import ADVANCE

PART_OPS = 4000  # of a part: what an object costs by itself is some percent of its time


@dataclass
class _CodePart:
    """Hold the functions of a part: how many ops they have, and what they name."""

    ops: list[ir.Operation] = field(default_factory=list)
    size: int = 0
    named: set[str] = field(default_factory=set)


def take_parts(module: ir.Module, named: Mapping[str | None, Names]) -> list[str]:
    """Take the functions that are optimised out of a module, and return the text of modules of them.

    named: what each function names, by its own name.

    Each has what it names of others: declarations of functions, copies of constants. The step function, its constants
    and declarations of what has gone stay. Nothing is taken from a module that is too small to be cut.
    """
    ops = [view.operation for view in module.body.operations]
    known = {symbol_of(op): op for op in ops}
    parts = _cut((op for op in ops if is_optimised(op)), named)
    if len(parts) < 2:
        return []
    texts = [_text(part, known) for part in parts]
    for part in parts:
        for op in part.ops:
            module.body.append(_declaration(op))
            op.erase()
    return texts


def is_optimised(op: ir.Operation) -> bool:
    """Tell whether an op is a function that LLVM is to optimise: a kernel, and not a step."""
    is_function = op.name == "llvm.func" and len(op.regions[0].blocks)
    return bool(is_function) and "optimize_none" not in op.attributes


def _cut(ops: Iterable[ir.Operation], named: Mapping[str | None, Names]) -> list[_CodePart]:
    parts = [_CodePart()]
    for op in ops:
        if parts[-1].size >= PART_OPS:
            parts.append(_CodePart())
        _add(parts[-1], op, named[symbol_of(op)])
    return parts


def _add(part: _CodePart, op: ir.Operation, names: Names) -> None:
    part.ops.append(op)
    part.size += names.ops
    part.named |= names.all


class Names(NamedTuple):
    """Hold the functions that a function calls, those and globals whose address it takes, and how many ops it has."""

    called: set[str]
    addressed: set[str]
    ops: int

    @property
    def all(self) -> set[str]:
        """Return all names."""
        return self.called | self.addressed


def names_in(function: ir.Operation) -> Names:
    """Return what a function names."""
    called, addressed, ops = set[str](), set[str](), 0

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal ops
        ops += 1
        name = op.name
        if name == "llvm.call" and "callee" in op.attributes:
            called.add(str(op.attributes["callee"].value))
        elif name == "llvm.mlir.addressof":
            addressed.add(str(op.attributes["global_name"].value))
        return ADVANCE

    function.walk(visit)
    return Names(called, addressed, ops)


def _text(part: _CodePart, known: Mapping[str | None, ir.Operation]) -> str:
    own = [symbol_of(op) for op in part.ops]
    others = [known[name] for name in sorted(part.named.difference(own))]
    named = [_declaration(op) if op.name == "llvm.func" else op for op in others]
    form = {"print_generic_op_form": True, "assume_verified": True, "use_local_scope": True}
    return "\n".join(str(op.get_asm(**form)) for op in (*named, *part.ops))


def _declaration(function: ir.Operation) -> ir.Operation:
    """Return a function without its body."""
    attributes = {name: function.attributes[name] for name in function.attributes}
    return ir.Operation.create("llvm.func", attributes=attributes, regions=1, ip=False)


def symbol_of(op: ir.Operation) -> str | None:
    """Return the name of a function or a global; None of what has none."""
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else None
