"""Find which keys a mask leaves to a query, where its condition is linear in the two: causal masks and windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from meshweave.ir.bindings import arith, ir
from meshweave.ir.expressions import Apply, Constant, Index, is_number
from meshweave.transforms.attention.expressions import Fixed, LoopIndex, compared_by
from meshweave.transforms.attention.match import Attention

CmpIPredicate = arith.CmpIPredicate


@dataclass(frozen=True)
class MaskBound:
    """State that key <= slope * query + offset where `upper`, else key >= slope * query + offset."""

    upper: bool
    slope: int
    offset: int


@dataclass(frozen=True)
class _Linear:
    """Stand for query * i + key * j + constant."""

    query: int = 0
    key: int = 0
    constant: int = 0

    def plus(self, other: _Linear, sign: int = 1) -> _Linear:
        return _Linear(
            self.query + sign * other.query,
            self.key + sign * other.key,
            self.constant + sign * other.constant,
        )


def bounds_of(found: Attention) -> tuple[list[MaskBound], int]:
    """Return what holds for query and key wherever the scores are not -inf.

    Beside it the node of the scores where all of that holds.
    """
    mask = _Mask(found)
    bounds = mask.of(found.score)
    return bounds, mask.inside


_SIGNED = {
    CmpIPredicate.slt: (False, 1),
    CmpIPredicate.sle: (False, 0),
    CmpIPredicate.sgt: (True, 1),
    CmpIPredicate.sge: (True, 0),
}
"""Signed comparisons: whether the larger side comes first, and 1 where equal ones do not hold."""

_OPPOSITE = {
    CmpIPredicate.slt: CmpIPredicate.sge,
    CmpIPredicate.sle: CmpIPredicate.sgt,
    CmpIPredicate.sgt: CmpIPredicate.sle,
    CmpIPredicate.sge: CmpIPredicate.slt,
}
_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")


class _Mask:
    def __init__(self, found: Attention) -> None:
        self.nodes, self.query, self.key = found.expressions.nodes, found.query, found.key
        self.inside = found.score
        self._whole = True  # whether the bounds found say all that the conditions do

    def of(self, node: int) -> list[MaskBound]:
        """Return the bounds of scores."""
        made = self.nodes[node]
        if not isinstance(made, Apply) or made.name != "arith.select":
            return []
        condition, yes, no = made.operands
        if self._is_low(no):
            found, rest = self._bounds(condition, True), yes
        elif self._is_low(yes):
            found, rest = self._bounds(condition, False), no
        else:
            return []
        if self._whole and self.inside == node:
            self.inside = rest
        return found + self.of(rest)

    def _is_low(self, node: int) -> bool:
        return is_number(self.nodes[node], -inf)

    def _bool(self, node: int) -> bool | None:
        known = self.nodes[node]
        return bool(known.value.value) if isinstance(known, Constant) else None

    def _bounds(self, node: int, holds: bool) -> list[MaskBound]:
        """Return what is known where a condition holds, or where it does not."""
        made = self.nodes[node]
        if not isinstance(made, Apply):
            return self._unknown()
        name, operands = made.name, made.operands
        if name == ("arith.andi" if holds else "arith.ori"):
            return self._bounds(operands[0], holds) + self._bounds(operands[1], holds)
        if name == "arith.select":
            values = self._bool(operands[1]), self._bool(operands[2])
            if values not in ((True, False), (False, True)):
                return self._unknown()
            return self._bounds(operands[0], holds == values[0])
        if name == "arith.xori" and self._bool(operands[1]):
            return self._bounds(operands[0], not holds)
        if name == "arith.cmpi":
            by = compared_by(made)
            return self._compared(by if holds else _OPPOSITE.get(by), operands[0], operands[1])
        return self._unknown()

    def _unknown(self) -> list[MaskBound]:
        """Note that a condition says more than bounds can."""
        self._whole = False
        return []

    def _compared(
        self, predicate: arith.CmpIPredicate | arith.CmpFPredicate | None, left: int, right: int
    ) -> list[MaskBound]:
        a, b = self._linear(left), self._linear(right)
        if a is None or b is None or predicate not in _SIGNED:
            return self._unknown()
        swapped, strict = _SIGNED[predicate]
        large, small = (a, b) if swapped else (b, a)
        f = large.plus(small, -1)  # f >= strict
        constant = f.constant - strict
        if f.key == -1:
            return [MaskBound(True, f.query, constant)]
        return [MaskBound(False, -f.query, -constant)] if f.key == 1 else self._unknown()

    def _linear(self, node: int) -> _Linear | None:
        made = self.nodes[node]
        if isinstance(made, Constant):
            number = made.value
            return _Linear(constant=number.value) if isinstance(number, ir.IntegerAttr) else None
        if isinstance(made, Index):
            if isinstance(made.form, Fixed):
                return _Linear(constant=made.form.number)
            loops = {LoopIndex(self.query): _Linear(query=1), LoopIndex(self.key): _Linear(key=1)}
            return loops.get(made.form) if isinstance(made.form, LoopIndex) else None
        if not isinstance(made, Apply):
            return None
        if made.name in _CASTS:
            return self._linear(made.operands[0])
        if made.name in ("arith.addi", "arith.subi"):
            a, b = (self._linear(n) for n in made.operands)
            sign = 1 if made.name == "arith.addi" else -1
            return None if a is None or b is None else a.plus(b, sign)
        return None
