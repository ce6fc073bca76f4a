"""Say with which loops of one op, that has a kernel, the dims of tensors run: heads may be read digit by digit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.expressions import Apply, Constant, Load, type_text
from meshweave.ir.scores.attention import Form
from meshweave.transforms.attention.expressions import (
    Coordinate,
    ElementNode,
    Expressions,
    Fixed,
    LoopIndex,
    Operand,
    Quotient,
    Remainder,
    Weighted,
)
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.attention.tiles import BodyWriter

SHORT = ("f16", "bf16")


class _ShortLoads(Expressions):
    """Build nodes that read short floats as they lie in memory, whatever made them, but for what only moved them."""

    def _node(self, read: Operand) -> int:
        found = super()._node(read)
        is_short = str(read.value.type.element_type) in SHORT
        return self._load(read) if is_short and not isinstance(self.nodes[found], Load) else found


def narrow(operand: Operand) -> Operand:
    """Return the shorter floats that an operand is made of: widening loses nothing."""
    found, factors = scaled(operand)
    return operand if factors else found


def scaled(operand: Operand) -> tuple[Operand, list[ir.Attribute]]:
    """Return the shorter floats that an operand is made of, and the numbers that it has been multiplied with since.

    Any other is what it is.
    """
    known, factors = _ShortLoads(), list[ir.Attribute]()
    node = known.nodes[known.node(operand.value, operand.entries)]
    while (pair := _times_constant(known, node)) is not None:
        factors.append(pair[1])
        node = pair[0]
    if isinstance(node, Apply) and node.name == "arith.extf":
        made = known.nodes[node.operands[0]]
        if isinstance(made, Load) and type_text(made) in SHORT:
            return made.access, factors
    return operand, []


def _times_constant(
    known: Expressions, node: ElementNode
) -> tuple[ElementNode, ir.Attribute] | None:
    """Return what a node is times a constant, and that; None for any other."""
    if not isinstance(node, Apply) or node.name != "arith.mulf":
        return None
    for one, other in (node.operands, node.operands[::-1]):
        constant = known.nodes[other]
        if isinstance(constant, Constant):
            return known.nodes[one], constant.value
    return None


def map_of(loops: LoopDigits, operand: Operand) -> tuple[Form, ...]:
    """Return the loops that each dim of an operand runs with."""
    forms = tuple([loops.form(entry) for entry in operand.entries])
    for form, extent in zip(forms, operand.value.type.shape):
        if 1 + sum(by * (loops.sizes[loop] - 1) for loop, by in form) != extent:
            raise NotAttention("the scores are read of parts of a tensor")
    return forms


class LoopDigits:
    """Number loops anew: those of `heads` are cut in digits where `entries` read digits of them.

    sizes: of the new loops; digits: for each old loop its new ones and their weights.
    """

    def __init__(
        self, sizes: Mapping[int, int], loops: Sequence[int], heads: Sequence[int],
        entries: Iterable[Coordinate],
    ) -> None:  # fmt: skip
        """sizes: of the old loops; loops: all of them, in order."""
        cuts: dict[int, set[int]] = {loop: {1} for loop in heads}
        for entry in entries:
            self._collect(entry, cuts)
        self.sizes: list[int] = []
        self.digits: dict[int, list[tuple[int, int]]] = {}
        for loop in loops:
            extent = sizes[loop]
            ends = [*sorted(cuts.get(loop, {1})), extent] if extent > 1 else [1, 1]
            pairs = list(pairwise(dict.fromkeys(ends))) or [(1, 1)]
            if any(end % weight for weight, end in pairs):
                raise NotAttention("the scores are read by reshapes that do not fit together")
            own = []
            for weight, end in reversed(pairs):
                own.append((len(self.sizes), weight))
                self.sizes.append(end // weight)
            self.digits[loop] = own

    def _collect(self, entry: Coordinate, cuts: dict[int, set[int]]) -> None:
        """Note where digits of a loop begin."""
        if isinstance(entry, Weighted):
            for part, _ in entry.parts:
                self._collect(part, cuts)
        elif isinstance(entry, Quotient | Remainder):
            loop, weight, end = _digit(entry)
            if loop not in cuts:
                raise NotAttention("the scores are read by a reshape that cuts through rows")
            cuts[loop] |= {weight, *([end] if end else [])}

    def form(self, entry: Coordinate) -> Form:
        """Return a coordinate as a sum of the op's loops."""
        if isinstance(entry, Fixed):
            if entry.number:
                raise NotAttention("the scores are read of parts of a tensor")
            return ()
        if isinstance(entry, LoopIndex):
            return tuple(self.digits[entry.loop])
        if isinstance(entry, Weighted):
            return tuple((d, by * f) for part, f in entry.parts for d, by in self.form(part))
        loop, weight, end = _digit(entry)
        own = [(d, w) for d, w in self.digits[loop] if w >= weight and not (end and w >= end)]
        return tuple((d, w // weight) for d, w in own)


def _digit(entry: Quotient | Remainder) -> tuple[int, int, int]:
    """Return loop, weight and end of a digit: (loop % end) // weight; an end of 0 is that of the loop."""
    end, weight, of = 0, 1, entry
    if isinstance(of, Remainder):
        end, inner = of.divisor, of.of
        if isinstance(inner, LoopIndex):
            return inner.loop, 1, end
        if not isinstance(inner, Quotient):
            raise NotAttention("the scores are read by a reshape of a reshape")
        of = inner
    weight, source = of.divisor, of.of
    if not isinstance(source, LoopIndex):
        raise NotAttention("the scores are read by a reshape of a reshape")
    return source.loop, weight, end * weight


class ScoreWriter(BodyWriter):
    """Write scores into the body of the op."""

    def __init__(self, expressions: Expressions, loops: LoopDigits) -> None:
        super().__init__(expressions, [], {})
        self._own = loops

    def _index(self, b: OpBuilder, entry: Coordinate) -> ir.Value:
        count, form = len(self._own.sizes), self._own.form(entry)
        total = b.index(0) if not form else None
        for loop, factor in form:
            map_ = ir.AffineMap.get(count, 0, [ir.AffineDimExpr.get(loop)])
            at = b.one("mw.index", ir.IndexType.get(), map=ir.AffineMapAttr.get(map_))
            part = b.times(at, factor)
            total = part if total is None else b.binary("addi", total, part)
        return total
