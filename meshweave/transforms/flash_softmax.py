"""The softmax of an attention, recognised: exp(s - m) / l in the expression of a product's left operand, with m the
maximum and l the sum over the keys of the same s, and what guards them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.base import users
from meshweave.transforms.expressions import (
    Entry,
    Expressions,
    Opaque,
    dims_of,
    maps_of,
    reductions_of,
)
from meshweave.transforms.flash_product import filled_with

_ORDERED_EQUAL = 1  # the predicate of arith.cmpf


class NotAttention(Exception):
    """What stands in the way of taking a product for the end of an attention."""


class Softmax:
    """Reads nodes of `ex` as a softmax over loop `key`, of `extent` trips.

    reductions: the linalg ops of maxima and sums that it has looked through.
    """

    def __init__(self, ex: Expressions, key: int, extent: int) -> None:
        self.ex, self.key, self.extent = ex, key, extent
        self.reductions: list[Any] = []

    def op(self, node: int, *names: str) -> tuple[int, ...] | None:
        """The operands of a node that is one of these ops."""
        kind = self.ex.nodes[node]
        return kind[3] if kind[0] == "op" and kind[1] in names else None

    def matched(self, above: int, divisor: int) -> tuple[int, bool]:
        """The node s of e = exp(s - m), and whether the divisor, the sum of e, is another number where that is 0."""
        total = self._filled_sum(divisor)
        if self._reduction(total, ("arith.addf",), 0.0) != above:
            raise NotAttention("no softmax before it: the divisor is not the sum over the keys")
        argument = self.op(above, "math.exp")
        parts = None if argument is None else self.op(argument[0], "arith.subf")
        if parts is None:
            raise NotAttention("no softmax before it: no exp of a difference")
        score, most = parts
        maxima = ("arith.maximumf", "arith.maxnumf")
        if self._reduction(self._unguarded(most), maxima, None) != score:
            raise NotAttention("no softmax before it: what is subtracted is not the maximum")
        if total != divisor and self.op(most, "arith.select") is None:
            raise NotAttention("no softmax before it: a sum of NaN is guarded as if it were 0")
        return score, total != divisor

    def _filled_sum(self, divisor: int) -> int:
        """The l of a divisor l, or of one that is a constant where l is 0."""
        parts = self.op(divisor, "arith.select")
        if parts is None or not isfinite(self._number(parts[1]) or nan):  # 0 is none too
            return divisor
        compared = self._compared(parts[0], "arith.cmpf", _ORDERED_EQUAL)
        is_zero = (
            compared is not None and parts[2] in compared and 0.0 in map(self._number, compared)
        )
        return parts[2] if is_zero else divisor

    def emptied(self, root: int) -> tuple[int, int | None]:
        """(x, s) of x, or of an x that is 0 in rows where all s are -inf; s is None where it is always x."""
        parts = self.op(root, "arith.select")
        if parts is None or self._number(parts[1]) != 0.0 or (seen := self._not(parts[0])) is None:
            return root, None
        inside = self._reduction(seen, ("arith.ori",), 0.0)
        masked = None if inside is None else self._not(inside)
        pair = None if masked is None else self._compared(masked, "arith.cmpf", _ORDERED_EQUAL)
        if pair is None or self._number(pair[1]) != float("-inf"):
            return root, None
        return parts[2], (self.op(pair[0], "arith.extf") or pair)[0]

    def _compared(self, node: int, name: str, predicate: int) -> tuple[int, ...] | None:
        """The operands of a comparison with this predicate."""
        pair = self.op(node, name)
        if pair is None or dict(self.ex.nodes[node][2])["predicate"].value != predicate:
            return None
        return pair

    def _not(self, node: int) -> int | None:
        """The x of "not x", as x == false or x ^ true."""
        pair, number = self._compared(node, "arith.cmpi", 0), 0
        if pair is None:
            pair, number = self.op(node, "arith.xori"), 1
        if pair is None or self.ex.nodes[pair[1]][0] != "const":
            return None
        return pair[0] if abs(self.ex.nodes[pair[1]][1].value) == number else None

    def share(self, root: int) -> tuple[int, int]:
        """(e, l) of e / l, or of e * (1 / l)."""
        parts = self.op(root, "arith.divf")
        if parts is not None:
            return parts[0], parts[1]
        product = self.op(root, "arith.mulf")
        for one, other in () if product is None else (product, product[::-1]):
            inverse = self.op(other, "arith.divf")
            if inverse is not None and self._number(inverse[0]) == 1.0:
                return one, inverse[1]
        raise NotAttention("no softmax before it")

    def element(self, node: int) -> Any:
        """The element type of a node that is computed or read."""
        kind = self.ex.nodes[node]
        return kind[1].type.element_type if kind[0] == "leaf" else kind[-1]

    def _number(self, node: int) -> float | None:
        kind = self.ex.nodes[node]
        is_number = kind[0] == "const" and isinstance(kind[1], ir.FloatAttr)
        return float(kind[1].value) if is_number else None

    def _unguarded(self, node: int) -> int:
        """The maximum without what guards it: max with a constant, another value where it is not finite."""
        for _ in range(4):
            if (pair := self.op(node, "arith.maximumf", "arith.maxnumf")) is not None:
                low = [n for n in pair if self._number(n) == float("-inf")]
            elif (pair := self.op(node, "arith.select")) is not None:
                pair = pair[1:]
                low = [n for n in pair if self._number(n) is not None]
            else:
                break
            rest = [n for n in pair if n not in low]
            if len(rest) != 1:
                break
            node = rest[0]
        return node

    def _reduction(self, node: int, names: Sequence[str], start: float | None) -> int | None:
        """The node that is reduced over the keys, where `node` is a result of such a reduction."""
        kind = self.ex.nodes[node]
        if kind[0] != "leaf" or isinstance(kind[1].owner, ir.Block):
            return None
        op = kind[1].owner.operation
        if op.name.startswith("dist.all_reduce"):
            raise NotAttention(
                "the scores lie on several ranks, cut along their keys: the maximum and the sum cross ranks"
            )
        if (
            op.name != "linalg.generic"
            or len(op.results) != 1
            or any(self.key in dims_of(e) for e in kind[2])
        ):
            return None
        reduced, maps = reductions_of(op), maps_of(op)
        if maps is None or not reduced or not filled_with(op.operands[len(op.operands) - 1], start):
            return None
        loops: list[Entry] = [("number", 0)] * len(list(op.attributes["iterator_types"]))
        for entry, there in zip(maps[-1], kind[2]):
            if entry[0] == "dim":
                loops[entry[1]] = there
        extents = _extents(op, maps)
        real = [d for d in reduced if extents[d] != 1]
        if len(real) > 1 or (real and extents[real[0]] != self.extent):
            return None
        loops[(real or list(reduced))[0]] = ("dim", self.key)
        return self._reduced(op, names, loops)

    def _reduced(self, op: Any, names: Sequence[str], loops: Sequence[Entry]) -> int | None:
        block = op.regions[0].blocks[0]
        out = block.arguments[len(op.operands) - 1]
        made = block.operations[len(block.operations) - 1].operation.operands[0].owner
        if isinstance(made, ir.Block) or made.operation.name not in names:
            return None
        operands = list(made.operation.operands)
        if operands.count(out) != 1 or len(users(out)) != 1:
            return None
        self.reductions.append(op)
        try:
            return self.ex.body(op, loops, 1 - operands.index(out))
        except Opaque:
            return None


def _extents(op: Any, maps: Sequence[tuple[Entry, ...]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for value, entries in zip(op.operands, maps):
        if isinstance(value.type, ir.RankedTensorType):
            found |= {e[1]: n for e, n in zip(entries, value.type.shape) if e[0] == "dim"}
    return found
