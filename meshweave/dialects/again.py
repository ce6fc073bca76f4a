"""Say what an op is, but for the values that it reads; tell ops that compute again what an earlier op has computed.

Such an op has the attribute `hint.again`, a number: no pass then takes it for the op that it is a copy of.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from meshweave.ir.bindings import ir

AGAIN = "hint.again"
"""On an op: the number of the copy that it is. On a function: what `hint-apply` enters in the ledger."""

RUNS_AGAIN = "hint.runs_again"
"""On an op: whether `dist-place` has chosen that it runs again, for `hint-recompute`."""

ROUNDS_AGAIN = "hint.rounds_again"
"""On a module: predicted seconds of what loops compute again in their rounds."""


Key = tuple[str, Hashable, tuple[tuple[str, ir.Attribute], ...], Hashable]
"""Name, types of operands and results, attributes, regions."""


def op_key(op: ir.Operation, operands: Sequence[ir.Value], read: list[ir.Value]) -> Key:
    """Return what an op is, except for the values that it reads: `operands`, which are its own.

    Those that its regions read are added to `read`. Regions of hints have numbers of their own from `hint-apply`,
    so that no two are equal: hints are accounted for one by one.
    """
    types = tuple([v.type for v in operands]), tuple([r.type for r in op.results])
    name, found = op.name, list[Hashable]()
    if name not in _IMPLIED and len(op.regions):
        _add_regions(op, {}, read, found)
    return name, types, op_attributes(op), tuple(found)


_IMPLIED = frozenset(f"linalg.{name}" for name in ("broadcast", "copy", "fill", "transpose"))
"""Ops whose regions MLIR makes of their types."""


def op_attributes(op: ir.Operation) -> tuple[tuple[str, ir.Attribute], ...]:
    """Return the attributes of an op, as a value that is equal for equal ones."""
    try:
        return tuple(op.attributes.items())
    except TypeError:  # the bindings read no constants of complex numbers
        return (("text", ir.StringAttr.get(op.get_asm(assume_verified=True))),)


def _add_regions(
    op: ir.Operation,
    numbers: dict[ir.Value, int],
    read: list[ir.Value],
    found: list[Hashable],
) -> None:
    """Add what the regions of an op hold. numbers: of the values made inside so far."""
    for region in op.regions:
        for block in region.blocks:
            found.append("block")
            for argument in block.arguments:
                numbers[argument] = len(numbers)
                found.append(argument.type)
            for view in block.operations:
                inner = view.operation
                found.append(inner.name)
                for value in inner.operands:
                    number = numbers.get(value)
                    if number is None:
                        read.append(value)
                    found.append(value.type if number is None else number)
                if len(inner.attributes):
                    found.append(op_attributes(inner))
                if len(inner.regions):
                    _add_regions(inner, numbers, read, found)
                found.append("->")
                for result in inner.results:
                    numbers[result] = len(numbers)
                    found.append(result.type)


@dataclass
class Repeats:
    """Find the ops that compute what an earlier op of their block, or of one around it, has computed.

    through: the name of ops whose results are their operands. copies: the ops that were found, in order, with which
    copy each is. same: the first value that is equal, of each value that a copy or an op of `through` makes.
    """

    through: str = ""
    copies: list[tuple[ir.Operation, int]] = field(default_factory=list)
    same: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def read(self, block: ir.Block, around: dict[Hashable, tuple[ir.Operation, int]]) -> None:
        """Read a block. around: the ops before it in blocks around, with how many copies each has."""
        seen = dict(around)
        for view in block.operations:
            op = view.operation
            if op.name == self.through:
                for result, value in zip(op.results, op.operands, strict=True):
                    self.same[result] = self.same.get(value, value)
                continue
            if op.name.startswith("scf."):
                for region in op.regions:
                    for inner in region.blocks:
                        self.read(inner, seen)
            if len(op.results):
                self._enter(op, seen)

    def _enter(self, op: ir.Operation, seen: dict[Hashable, tuple[ir.Operation, int]]) -> None:
        inside: list[ir.Value] = []
        name, types, own, regions = op_key(op, list(op.operands), inside)
        own = tuple(pair for pair in own if pair[0] != AGAIN)
        read = tuple(self.same.get(value, value) for value in (*op.operands, *inside))
        what = (name, types, own, regions, read)
        first, times = seen.get(what, (op, 0))
        seen[what] = (first, times + 1)
        if times:
            self.copies.append((op, times))
            for result, value in zip(op.results, first.results, strict=True):
                self.same[result] = value
