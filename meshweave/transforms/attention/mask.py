"""Find which keys a mask leaves to a query, where its condition is linear in the two: causal masks and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from meshweave.ir.bindings import arith, ir
from meshweave.ir.expressions import Apply, Constant, Index, Scalar, inputs, is_number
from meshweave.transforms.attention.backward import Backward
from meshweave.transforms.attention.expressions import (
    ElementNode,
    Expressions,
    Fixed,
    LoopIndex,
    compared_by,
)
from meshweave.transforms.attention.match import Attention

CmpIPredicate = arith.CmpIPredicate


@dataclass(frozen=True)
class MaskBound:
    """State that key <= slope * query + offset where `upper`, else key >= slope * query + offset.

    size: what is added to `offset`: the keys that there are in a call.
    """

    upper: bool
    slope: int
    offset: int
    size: ir.Value | None = None


@dataclass(frozen=True)
class _Linear:
    """Stand for query * i + key * j + constant, or for a size that a call chooses."""

    query: int = 0
    key: int = 0
    constant: int = 0
    size: ir.Value | None = None

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
    mask = _Mask(found.expressions.nodes, found.query, found.key, found.score, found.ends)
    bounds = mask.of(found.score)
    return bounds, mask.inside


def neutral_bounds(found: Backward, node: int, low: bool) -> tuple[list[MaskBound], int]:
    """Return what holds for query and key wherever a node is not 0, or not -inf where `low`.

    Beside it the node where all of that holds.
    """
    zeros = _Zeros(found.expressions, found.query, found.key)
    bounds = list(dict.fromkeys(zeros.mask(node).of(node) if low else zeros.of(node)))
    return bounds, zeros.within(node, bounds)


class _Zeros:
    """Find where nodes are 0 because scores are -inf there."""

    def __init__(self, expressions: Expressions, query: int, key: int) -> None:
        self.ex, self.query, self.key = expressions, query, key
        self.known: dict[int, list[MaskBound]] = {}

    def mask(self, node: int) -> _Mask:
        """Return a reader of the conditions of scores."""
        return _Mask(self.ex.nodes, self.query, self.key, node)

    def of(self, node: int) -> list[MaskBound]:
        """Return the bounds outside of which a node is 0."""
        for n in sorted(self.ex.below(node)):  # a node reads nodes of smaller numbers
            made = self.ex.nodes[n]
            self.known[n] = self._one(made) if isinstance(made, Apply) else []
        return self.known[node]

    def _one(self, made: Apply) -> list[MaskBound]:
        sides = [self.known[k] for k in made.operands]
        if made.name == "arith.mulf":
            return sides[0] + sides[1]
        if made.name in ("arith.divf", "arith.negf", "arith.extf", "arith.truncf"):
            return sides[0]
        if made.name in ("arith.addf", "arith.subf"):
            return [bound for bound in sides[0] if bound in sides[1]]
        if made.name == "math.exp":
            below = self.ex.nodes[made.operands[0]]
            is_difference = isinstance(below, Apply) and below.name == "arith.subf"
            score = inputs(below)[0] if is_difference else made.operands[0]
            return self.mask(score).of(score)
        if made.name == "arith.select":
            condition, yes, no = made.operands
            if is_number(self.ex.nodes[no], 0.0):
                return self.mask(yes).where(condition, True)[0] + sides[1]
            if is_number(self.ex.nodes[yes], 0.0):
                return self.mask(no).where(condition, False)[0] + sides[2]
            return [bound for bound in sides[1] if bound in sides[2]]
        return []

    def within(self, node: int, bounds: Sequence[MaskBound]) -> int:
        """Return what a node is where all bounds hold: without the selects that they decide."""
        made: dict[int, int] = {}
        for n in sorted(self.ex.below(node)):
            old = self.ex.nodes[n]
            made[n] = n
            if not isinstance(old, Apply):
                continue
            if old.name == "arith.select":
                decided = [self.mask(n).where(old.operands[0], side) for side in (True, False)]
                found = [whole and set(some) <= set(bounds) for some, whole in decided]
                if any(found):
                    made[n] = made[old.operands[1 if found[0] else 2]]
                    continue
            if any(made[k] != k for k in old.operands):
                made[n] = self.ex.put(replace(old, operands=tuple([made[k] for k in old.operands])))
        return made[node]


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
    def __init__(
        self, nodes: Sequence[ElementNode], query: int, key: int, score: int, ends: bool = False
    ) -> None:
        self.ends = ends  # whether the keys may end at a size that a call chooses
        self.nodes, self.query, self.key = nodes, query, key
        self.inside = score
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

    def where(self, condition: int, holds: bool) -> tuple[list[MaskBound], bool]:
        """Return the bounds where a condition holds, or where it does not, and whether they say all of it."""
        found = self._bounds(condition, holds)
        return found, self._whole and bool(found)

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
        if a == _Linear(key=1) and b is not None and b.size is not None:
            below = predicate is CmpIPredicate.ult  # both are 0 at least
            return [MaskBound(True, 0, -1, b.size)] if below else self._unknown()
        if any(one is not None and one.size is not None for one in (a, b)):
            return self._unknown()
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
        if self.ends and isinstance(made, Scalar) and isinstance(made.type, ir.IndexType):
            return _Linear(size=made.source)
        if not isinstance(made, Apply):
            return None
        if made.name in _CASTS:
            return self._linear(made.operands[0])
        if made.name in ("arith.addi", "arith.subi"):
            a, b = (self._linear(n) for n in made.operands)
            sign = 1 if made.name == "arith.addi" else -1
            known = a is not None and b is not None and a.size is None and b.size is None
            return a.plus(b, sign) if known and a is not None and b is not None else None
        return None
