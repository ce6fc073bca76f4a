"""Recognise the softmax of an attention: exp(s - m) / l in the expression of a product's left operand.

There m is the maximum and l the sum over the keys of the same s, perhaps guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import iterator_types
from meshweave.ir.expressions import Apply, Constant, Index, Load, Scalar, type_text
from meshweave.transforms.attention.expressions import (
    ZERO,
    Coordinate,
    Expressions,
    LoopIndex,
    Maps,
    Opaque,
    added_by,
    compared_by,
    loop_extents,
    maps_of,
    reductions_of,
    written_at,
)
from meshweave.transforms.attention.product import filled_with


class NotAttention(Exception):
    """Say what stands in the way of taking a product for the end of an attention."""


class Softmax:
    """Read nodes of `ex` as a softmax over loop `key`, of `extent` trips.

    reductions: the linalg ops of maxima and sums that it has looked through.
    """

    def __init__(self, ex: Expressions, key: int, extent: int) -> None:
        self.ex, self.key, self.extent = ex, key, extent
        self.reductions: list[ir.Operation] = []
        # The condition that a key is before the size that a call chooses.
        self.end: int | None = None

    def op(self, node: int, *names: str) -> tuple[int, ...] | None:
        """Return the operands of a node that is one of these ops."""
        made = self.ex.nodes[node]
        return made.operands if isinstance(made, Apply) and made.name in names else None

    def matched(self, above: int, divisor: int) -> tuple[int, bool]:
        """Return the node s of e = exp(s - m), and whether the divisor guards the sum of e against 0."""
        total = self._filled_sum(divisor)
        if self._before_end(self._reduction(total, ("arith.addf",), 0.0), 0.0) != above:
            raise NotAttention("no softmax before it: the divisor is not the sum over the keys")
        argument = self.op(above, "math.exp")
        parts = None if argument is None else self.op(argument[0], "arith.subf")
        if parts is None:
            raise NotAttention("no softmax before it: no exp of a difference")
        score, most = parts
        maxima = ("arith.maximumf", "arith.maxnumf")
        largest = self._reduction(self._unguarded(most), maxima, None)
        if self._before_end(largest, float("-inf")) != score:
            raise NotAttention("no softmax before it: what is subtracted is not the maximum")
        if total != divisor and self.op(most, "arith.select") is None:
            raise NotAttention("no softmax before it: a sum of NaN is guarded as if it were 0")
        return score, total != divisor

    def take_end(self, root: int) -> int:
        """Return the x of an x that is 0 behind the size that a call chooses for the keys, and keep the condition."""
        parts = self.op(root, "arith.select")
        if parts is None or self._number(parts[2]) != 0.0:
            return root
        compared = self._compared(parts[0], arith.CmpIPredicate.ult)
        place, size = [None, None] if compared is None else [self.ex.nodes[k] for k in compared]
        if (
            not isinstance(place, Index)
            or place.form != LoopIndex(self.key)
            or not isinstance(size, Scalar)
        ):
            return root
        self.end = parts[0]
        return parts[1]

    def _before_end(self, node: int | None, neutral: float) -> int | None:
        """Return what a reduction reads before the end of the keys; None where it does not read `neutral` behind it."""
        if self.end is None or node is None:
            return node
        parts = self.op(node, "arith.select")
        if parts is None or parts[0] != self.end or self._number(parts[2]) != neutral:
            return None
        return parts[1]

    def _filled_sum(self, divisor: int) -> int:
        """Return the l of a divisor l, or of one that is a constant where l is 0."""
        parts = self.op(divisor, "arith.select")
        if parts is None or not isfinite(self._number(parts[1]) or nan):  # 0 is none too
            return divisor
        compared = self._compared(parts[0], arith.CmpFPredicate.OEQ) or ()
        shorter = [(self.op(value, "arith.extf") or (value,))[0] for value in compared]
        is_zero = parts[2] in shorter and 0.0 in map(self._number, compared)
        return parts[2] if is_zero else divisor

    def emptied(self, root: int) -> tuple[int, int | None]:
        """Return (x, s) of x, or of an x that is 0 in rows where all s are -inf; s is None where it is always x."""
        parts = self.op(root, "arith.select")
        if parts is None or self._number(parts[1]) != 0.0:
            return root, None
        if (seen := self._not(parts[0])) is None:
            masked = self._reduction(parts[0], ("arith.andi",), 1.0)
        else:
            inside = self._reduction(seen, ("arith.ori",), 0.0)
            masked = None if inside is None else self._not(inside)
        pair = None if masked is None else self._compared(masked, arith.CmpFPredicate.OEQ)
        if pair is None or self._number(pair[1]) != float("-inf"):
            return root, None
        return parts[2], (self.op(pair[0], "arith.extf") or pair)[0]

    def _compared(
        self, node: int, predicate: arith.CmpIPredicate | arith.CmpFPredicate
    ) -> tuple[int, ...] | None:
        """Return the operands of a comparison with this predicate."""
        made = self.ex.nodes[node]
        compares = isinstance(made, Apply) and compared_by(made) is predicate
        return made.operands if compares and isinstance(made, Apply) else None

    def _not(self, node: int) -> int | None:
        """Return the x of "not x", as x == false or x ^ true."""
        pair, number = self._compared(node, arith.CmpIPredicate.eq), 0
        if pair is None:
            pair, number = self.op(node, "arith.xori"), 1
        known = None if pair is None else self.ex.nodes[pair[1]]
        if pair is None or not isinstance(known, Constant):
            return None
        return pair[0] if abs(known.value.value) == number else None

    def share(self, root: int) -> tuple[int, int]:
        """Return (e, l) of e / l, or of e * (1 / l)."""
        parts = self.op(root, "arith.divf")
        if parts is not None:
            return parts[0], parts[1]
        product = self.op(root, "arith.mulf")
        for one, other in () if product is None else (product, product[::-1]):
            inverse = self.op(other, "arith.divf")
            if inverse is not None and self._number(inverse[0]) == 1.0:
                return one, inverse[1]
        raise NotAttention("no softmax before it")

    def element(self, node: int) -> str:
        """Return the type of a node."""
        return type_text(self.ex.nodes[node])

    def _number(self, node: int) -> float | None:
        known = self.ex.nodes[node]
        attr = known.value if isinstance(known, Constant) else None
        return float(attr.value) if isinstance(attr, ir.FloatAttr) else None

    def _unguarded(self, node: int) -> int:
        """Return the maximum without what guards it: max with a constant, another value where it is not finite."""
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
        """Return the node that is reduced over the keys, where `node` is a result of such a reduction."""
        load = self.ex.nodes[node]
        if not isinstance(load, Load) or isinstance(load.access.value.owner, ir.Block):
            return None
        read, op = load.access, load.access.value.owner.operation
        if op.name.startswith("dist.all_reduce"):
            raise NotAttention(
                "the scores lie on several ranks, cut along their keys: the maximum and the sum cross ranks"
            )
        if op.name != "linalg.generic" or len(op.results) != 1 or self.key in read.loops:
            return None
        reduced, maps = reductions_of(op), maps_of(op)
        if maps is None or not reduced or not filled_with(op.operands[len(op.operands) - 1], start):
            return None
        written = written_at(maps[-1], read.entries)
        loops = [written.get(k, ZERO) for k in range(len(iterator_types(op)))]
        extents = loop_extents(op, maps)
        real = [d for d in reduced if extents[d] != 1]
        if len(real) > 1 or (real and extents[real[0]] != self.extent):
            return None
        loops[(real or list(reduced))[0]] = LoopIndex(self.key)
        return self._reduced(op, names, maps, loops)

    def _reduced(
        self, op: ir.Operation, names: Sequence[str], maps: Maps, loops: Sequence[Coordinate]
    ) -> int | None:
        """Return the node that one of the ops `names` adds to the result of `op` in each iteration."""
        added = added_by(op, names)
        if added is None:
            return None
        self.reductions.append(op)
        try:
            return self.ex.body(op, maps, loops, added)
        except Opaque:
            return None
