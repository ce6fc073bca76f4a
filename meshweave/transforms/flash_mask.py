"""Which keys a mask leaves to a query, where its condition is linear in the two: causal masks and windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from meshweave.bindings import ir
from meshweave.transforms.flash_match import Attention


@dataclass(frozen=True)
class Bound:
    """key <= slope * query + offset where `upper`, else key >= slope * query + offset."""

    upper: bool
    slope: int
    offset: int


@dataclass(frozen=True)
class _Linear:
    """query * i + key * j + constant."""

    query: int = 0
    key: int = 0
    constant: int = 0

    def plus(self, other: _Linear, sign: int = 1) -> _Linear:
        return _Linear(
            self.query + sign * other.query,
            self.key + sign * other.key,
            self.constant + sign * other.constant,
        )


def bounds_of(found: Attention) -> tuple[list[Bound], int]:
    """What holds for query and key wherever the scores are not -inf, and the node of the scores where all of that
    holds.
    """
    mask = _Mask(found)
    bounds = mask.of(found.score)
    return bounds, mask.inside


# Predicates of arith.cmpi that are signed, by number: (smaller side first, whether equal ones are apart).
_SIGNED = {2: (False, 1), 3: (False, 0), 4: (True, 1), 5: (True, 0)}
_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")


class _Mask:
    def __init__(self, found: Attention) -> None:
        self.nodes, self.query, self.key = found.expressions.nodes, found.query, found.key
        self.inside = found.score
        self._whole = True  # whether the bounds found say all that the conditions do

    def of(self, node: int) -> list[Bound]:
        """Bounds of scores."""
        kind = self.nodes[node]
        if kind[0] != "op" or kind[1] != "arith.select":
            return []
        condition, yes, no = kind[3]
        if self._is_low(no):
            found, rest = self._true(condition), yes
        elif self._is_low(yes):
            found, rest = self._false(condition), no
        else:
            return []
        if self._whole and self.inside == node:
            self.inside = rest
        return found + self.of(rest)

    def _is_low(self, node: int) -> bool:
        kind = self.nodes[node]
        return kind[0] == "const" and isinstance(kind[1], ir.FloatAttr) and kind[1].value == -inf

    def _bool(self, node: int) -> bool | None:
        kind = self.nodes[node]
        return bool(kind[1].value) if kind[0] == "const" else None

    def _true(self, node: int) -> list[Bound]:
        """What holds where a condition does."""
        kind = self.nodes[node]
        if kind[0] != "op":
            return self._unknown()
        name, operands = kind[1], kind[3]
        if name == "arith.andi":
            return self._true(operands[0]) + self._true(operands[1])
        if name == "arith.select":
            values = self._bool(operands[1]), self._bool(operands[2])
            if values == (True, False):
                return self._true(operands[0])
            return self._false(operands[0]) if values == (False, True) else self._unknown()
        if name == "arith.xori" and self._bool(operands[1]):
            return self._false(operands[0])
        if name == "arith.cmpi":
            return self._compared(dict(kind[2])["predicate"].value, operands[0], operands[1])
        return self._unknown()

    def _false(self, node: int) -> list[Bound]:
        """What holds where a condition does not."""
        kind = self.nodes[node]
        if kind[0] != "op":
            return self._unknown()
        name, operands = kind[1], kind[3]
        if name == "arith.ori":
            return self._false(operands[0]) + self._false(operands[1])
        if name == "arith.select":
            values = self._bool(operands[1]), self._bool(operands[2])
            if values == (True, False):
                return self._false(operands[0])
            return self._true(operands[0]) if values == (False, True) else self._unknown()
        if name == "arith.xori" and self._bool(operands[1]):
            return self._true(operands[0])
        if name == "arith.cmpi":
            opposite = {2: 5, 3: 4, 4: 3, 5: 2}.get(dict(kind[2])["predicate"].value, -1)
            return self._compared(opposite, operands[0], operands[1])
        return self._unknown()

    def _unknown(self) -> list[Bound]:
        """A condition that says more than bounds can."""
        self._whole = False
        return []

    def _compared(self, predicate: int, left: int, right: int) -> list[Bound]:
        a, b = self._linear(left), self._linear(right)
        if a is None or b is None or predicate not in _SIGNED:
            return self._unknown()
        swapped, strict = _SIGNED[predicate]
        large, small = (a, b) if swapped else (b, a)
        f = large.plus(small, -1)  # f >= strict
        constant = f.constant - strict
        if f.key == -1:
            return [Bound(True, f.query, constant)]
        return [Bound(False, -f.query, -constant)] if f.key == 1 else self._unknown()

    def _linear(self, node: int) -> _Linear | None:
        kind = self.nodes[node]
        if kind[0] == "const":
            return _Linear(constant=kind[1].value) if isinstance(kind[1], ir.IntegerAttr) else None
        if kind[0] == "index":
            if kind[1][0] == "number":
                return _Linear(constant=kind[1][1])
            dims = {("dim", self.query): _Linear(query=1), ("dim", self.key): _Linear(key=1)}
            return dims.get(kind[1])
        if kind[0] != "op":
            return None
        if kind[1] in _CASTS:
            return self._linear(kind[3][0])
        if kind[1] in ("arith.addi", "arith.subi"):
            a, b = (self._linear(n) for n in kind[3])
            return (
                None if a is None or b is None else a.plus(b, 1 if kind[1] == "arith.addi" else -1)
            )
        return None
