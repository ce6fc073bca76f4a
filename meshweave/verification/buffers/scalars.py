"""Number the scalars of a program: equal computations of equal numbers have one number."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple

from meshweave.verification.buffers.regions import Form, reached


class ComputedScalar(NamedTuple):
    """Key of a scalar that an op computes. details: its attributes and type."""

    name: str
    details: Hashable


class ScalarDefinition(NamedTuple):
    """Describe how a scalar is made: op and operands, or a key of its own."""

    key: Hashable
    operands: tuple[Form, ...] = ()


_COMMUTES = {"arith.addi", "arith.muli", "arith.addf", "arith.mulf", "arith.andi", "arith.ori",
             "arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui"}  # fmt: skip
_EXTREMES: dict[str, Callable[[Iterable[float]], float]] = {
    "arith.minsi": min, "arith.minui": min, "arith.maxsi": max, "arith.maxui": max
}  # fmt: skip
_DIVISIONS = ("arith.divui", "arith.remui")


@dataclass
class Scalars:
    """Hold the scalars that are no sums of others, by number. bounds: the least and the largest that some may be."""

    made: list[ScalarDefinition] = field(default_factory=list)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    _numbers: dict[ScalarDefinition, int] = field(default_factory=dict)

    def atom(self, key: Hashable, operands: Sequence[Form] = ()) -> Form:
        """Return a scalar that is made in this way."""
        scalar = ScalarDefinition(key, tuple(operands))
        number = self._numbers.get(scalar)
        if number is None:
            number = self._numbers[scalar] = len(self.made)
            self.made.append(scalar)
        return Form(0, ((number, 1),))

    def op(self, op: ComputedScalar, operands: Sequence[Form]) -> Form:
        """Return what a scalar op gives."""
        if op.name == "arith.addi":
            return operands[0].plus(operands[1])
        if op.name == "arith.subi":
            return operands[0].plus(operands[1], -1)
        if op.name == "arith.muli":
            for one, other in (operands, operands[::-1]):
                if not one.terms:
                    return other.times(one.const)
        found = self.atom(op, sorted(operands) if op.name in _COMMUTES else operands)
        if op.name in _EXTREMES or op.name in _DIVISIONS:
            self._bound(found, op.name, [reached(operand, self.bounds) for operand in operands])
        return found

    def _bound(self, form: Form, name: str, ranges: Sequence[tuple[float, float]]) -> None:
        """Note the least and the largest that a smaller or larger number, a quotient or a remainder may be."""
        number = form.terms[0][0]
        if name in _DIVISIONS:
            (low, high), (by, same) = ranges
            if low >= 0 and 0 < by == same and isfinite(high):
                most = high // by if name == "arith.divui" else by - 1
                self.bounds[number] = 0, int(most)
            return
        if name.endswith("ui"):  # all bits of a number below 0 are those of a large one
            ranges = [r if r[0] >= 0 else (0.0, inf) for r in ranges]
        low, high = (_EXTREMES[name](end) for end in zip(*ranges))
        if isfinite(low) and isfinite(high):
            self.bounds[number] = int(low), int(high)
