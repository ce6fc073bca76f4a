"""Say which numbers of rows and of turns what is made of scores needs, so that each is computed once for its row.

A division by one becomes a product with its inverse, and an exponential of a difference from one a power of 2:

    exp(s - m) / l  =  2^(s log2(e) + m') l',  m' = -m log2(e),  l' = 1 / l
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshweave.ir.expressions import Apply, Constant, Load, inputs, needed
from meshweave.lowering.gpu.nodes import DeviceFrame, DeviceIteration
from meshweave.lowering.gpu.writer import Guard
from meshweave.lowering.nests.bind import LoopNest, NestNode, loops_of
from meshweave.lowering.nests.evaluate import Place
from meshweave.lowering.writer import Value

LOG2E = math.log2(math.e)
VALUE, INVERSE, EXPONENT = "value", "inverse", "exponent"


class Hoist(NamedTuple):
    """Name what is computed once of a node: its value, 1 / value, or -value log2(e)."""

    node: int
    what: str


@dataclass
class Hoists:
    """Hold the numbers of rows, and those of turns, that are computed once."""

    rows: list[Hoist] = field(default_factory=list)
    turns: list[Hoist] = field(default_factory=list)


def hoists_of(
    nest: LoopNest, roots: Collection[int], scores: Collection[int], rows: Collection[int],
    turns: Collection[int],
) -> Hoists:  # fmt: skip
    """Return what to compute once of the nodes that `roots` are made of. rows, turns: loops that each may run with."""
    loops, found = loops_of(nest), Hoists()

    def note(node: int, what: str) -> bool:
        """Note a number that runs with rows or turns alone and is read from memory; tell whether it is one."""
        if str(getattr(nest.code[node], "type", "")) != "f32" or not _reads(nest, node, scores):
            return False
        for side, mine in ((found.rows, rows), (found.turns, turns)):
            if loops[node] <= set(mine):
                if Hoist(node, what) not in side:
                    side.append(Hoist(node, what))
                return True
        return False

    seen, left = set(scores), list(roots)
    while left:
        node = left.pop()
        if node in seen or note(node, VALUE):
            continue
        seen.add(node)
        made = nest.code[node]
        difference = difference_of(nest, made)
        if divides(made) and note(inputs(made)[1], INVERSE):
            left.append(inputs(made)[0])
        elif difference is not None and note(difference[1], EXPONENT):
            scaled = scaled_of(nest, difference[0])
            left.append(difference[0] if scaled is None else scaled[0])
        else:
            left += inputs(made)
    return found


def _reads(nest: LoopNest, node: int, scores: Collection[int]) -> bool:
    """Tell whether a node is made of what is read, and of no score."""
    parts = needed(nest.code, [node])
    return parts.isdisjoint(scores) and any(isinstance(nest.code[part], Load) for part in parts)


def divides(node: NestNode) -> bool:
    """Tell whether a node is a quotient of f32."""
    return isinstance(node, Apply) and node.name == "arith.divf" and str(node.type) == "f32"


def difference_of(nest: LoopNest, node: NestNode) -> tuple[int, int] | None:
    """Return (a, b) of a node that is exp(a - b) in f32, None for any other."""
    if not isinstance(node, Apply) or node.name != "math.exp" or str(node.type) != "f32":
        return None
    below = nest.code[node.operands[0]]
    if not isinstance(below, Apply) or below.name != "arith.subf":
        return None
    left, right = below.operands
    return left, right


def scaled_of(nest: LoopNest, number: int) -> tuple[int, float] | None:
    """Return (x, c) of a node that is x times a constant c, None for any other."""
    node = nest.code[number]
    if not isinstance(node, Apply) or node.name != "arith.mulf":
        return None
    for one, other in (node.operands, node.operands[::-1]):
        known = nest.code[other]
        if isinstance(known, Constant):
            return one, float(known.value.value)
    return None


def computed(
    frame: DeviceFrame, nest: LoopNest, place: Place, hoists: Sequence[Hoist], guard: Guard
) -> list[Value]:
    """Write what is computed once, at one place of the loops that it runs with; where the guard does not hold, of 0."""
    writer, here = frame.writer, DeviceIteration(frame, nest, place, {}, guard)
    found = []
    for hoist in hoists:
        (value,) = here.compute([hoist.node])
        if hoist.what == INVERSE:
            value = writer.constant(1.0, "f32") / value
        elif hoist.what == EXPONENT:
            value = value * -LOG2E
        found.append(value)
    return found


class ScoreIteration(DeviceIteration):
    """Compute what is made of scores at one row and turn, of numbers that were computed once."""

    def __init__(
        self, frame: DeviceFrame, nest: LoopNest, place: Place, scores: Mapping[int, Value],
        known: Mapping[Hoist, Value], guard: Guard,
    ) -> None:  # fmt: skip
        values = {h.node: v for h, v in known.items() if h.what == VALUE}
        super().__init__(frame, nest, place, {**scores, **values}, guard)
        self.known = known

    def value(self, number: int) -> Value:
        """Return the value of a node."""
        if number not in self.values:
            self.values[number] = self._made(number)
        return self.values[number]

    def _made(self, number: int) -> Value:
        node, nest, writer = self.nest.code[number], self.nest, self.frame.writer
        if divides(node):
            left, right = inputs(node)
            inverse = self.known.get(Hoist(right, INVERSE))
            if inverse is not None:
                return self.value(left) * inverse
        difference = difference_of(nest, node)
        if difference is not None:
            left, right = difference
            taken = self.known.get(Hoist(right, EXPONENT))
            if taken is not None:
                scaled = None if left in self.values else scaled_of(nest, left)
                of, by = (left, 1.0) if scaled is None else scaled
                return writer.exp2(
                    writer.fma(self.value(of), writer.constant(by * LOG2E, "f32"), taken)
                )
        for operand in inputs(node):
            self.value(operand)
        return self.node(node)
