"""Read ops on scores as bodies of kernels.

An `mw.attention` is scores, what is made of them, and rows weighted by their softmax; an `mw.reduced_scores` has sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import (
    Apply,
    Argument,
    Body,
    BodyNode,
    Constant,
    Expression,
    Index,
    NodeTable,
    Scalar,
    read_body,
    renumber,
)
from meshweave.ir.ops import body_of
from meshweave.ir.scores.attention import SCORES, WEIGHTED, AttentionForm
from meshweave.ir.scores.reduced import REDUCED, ReducedForm
from meshweave.lowering.nests.bodies import constant_of

_SHORT = ("f16", "bf16")
_ROUNDING = ("arith.extf", "arith.truncf")


def attention_body(op: ir.Operation, form: AttentionForm) -> Body:
    """Return what an `mw.attention` computes, on one element of each operand.

    Scores are f32: what is never stored is not rounded.
    """
    return _AttentionBody(op, form).build()


def reduced_body(op: ir.Operation, form: ReducedForm) -> Body:
    """Return what an `mw.reduced_scores` computes, on one element of each operand.

    Its last node has, behind what is reduced, that where all bounds hold, the products, and the matrix that it is
    multiplied with, the loops of row, column, turn, of each product's sum and of the heads that are added up.
    """
    return _ReducedBody(op, form).build()


class _ScoreBody:
    """Put what the body of an op on scores computes, in f32 where it is shorter."""

    def __init__(self, op: ir.Operation) -> None:
        self.op, self.wide = op, ir.F32Type.get()
        self.table: NodeTable[ir.Value, int, ir.Value] = NodeTable()
        self.types = [value.type.element_type for value in op.operands]

    def _results(self, given: Sequence[int]) -> list[int]:
        """Return the nodes that the op's body yields; given: of its arguments, perhaps short ones."""
        numbers: list[int] = []
        body = read_body(body_of(self.op))
        for node in body.nodes:
            numbers.append(
                given[node.number] if isinstance(node, Argument) else self._put(node, numbers)
            )
        return [numbers[n] for n in body.results]

    def _number(self, value: int) -> ir.Attribute:
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)

    def _put(self, node: BodyNode, numbers: list[int]) -> int:
        """Put a node of the op's body, in f32 where it is shorter."""
        node = renumber(node, numbers)
        if isinstance(node, Scalar) and (known := constant_of(node.source)) is not None:
            node = Constant(known, node.type)
        if isinstance(node, Constant) and str(node.type) in _SHORT:
            return self.table.put(
                Constant(ir.FloatAttr.get(self.wide, node.value.value), self.wide)
            )
        if isinstance(node, Scalar):
            return self._widened(self.table.put(node), node.type)
        if not isinstance(node, Apply):
            return self.table.put(node)
        if node.name == "arith.bitcast":
            return self._of_bits(node)
        type_ = self.wide if str(node.type) in _SHORT else node.type
        if node.name in _ROUNDING and type_ == self._type(node.operands[0]):
            return node.operands[0]
        return self.table.put(Apply(node.name, node.attributes, node.operands, type_))

    def _of_bits(self, node: Apply) -> int:
        """Put a float that is given as bits; a float that is taken for bits has the length of these."""
        (source,) = node.operands
        if str(node.type) == "i16" and str(self._type(source)) == "f32":
            short = next(t for t in self.types if str(t) in _SHORT)
            source = self.table.put(Apply("arith.truncf", (), (source,), short))
        made = self.table.put(Apply(node.name, node.attributes, (source,), node.type))
        return self._widened(made, node.type)

    def _type(self, number: int) -> ir.Type:
        node = self.table.nodes[number]
        assert isinstance(node, Apply | Constant | Argument | Scalar), "what is rounded is a float"
        return self.types[node.number] if isinstance(node, Argument) else node.type

    def _widened(self, number: int, type_: ir.Type) -> int:
        if str(type_) not in _SHORT:
            return number
        return self.table.put(Apply("arith.extf", (), (number,), self.wide))


class _AttentionBody(_ScoreBody):
    def __init__(self, op: ir.Operation, form: AttentionForm) -> None:
        super().__init__(op)
        self.form = form

    def build(self) -> Body:
        """Return the body."""
        q, k, v, *more = [self.table.put(Argument(n)) for n in range(len(self.types))]
        raw = self.table.put(Apply(SCORES, (), (q, k), self.wide))
        given = [raw, *[self._widened(n, self.types[n]) for n in more]]
        score, inside = self._results(given)
        query = self.table.put(Index(self.form.query))
        keys = self._number(self.form.sizes[-2])
        said: tuple[tuple[str, ir.Attribute], ...]
        said = (("bounds", self.op.attributes["bounds"]), ("keys", keys))
        said += (("zeros", ir.UnitAttr.get()),) if self.form.zeros else ()
        type_ = self.op.results[0].type.element_type
        made = self.table.put(Apply(WEIGHTED, said, (score, inside, v, query), type_))
        return Expression(tuple(self.table.nodes), (made,))


class _ReducedBody(_ScoreBody):
    def __init__(self, op: ir.Operation, form: ReducedForm) -> None:
        super().__init__(op)
        self.form = form

    def build(self) -> Body:
        """Return the body."""
        form, count = self.form, self.form.products
        numbers = [self.table.put(Argument(n)) for n in range(len(self.types))]
        raws = [
            self.table.put(Apply(SCORES, (), (numbers[2 * n], numbers[2 * n + 1]), self.wide))
            for n in range(count)
        ]
        more = range(form.further, len(numbers))
        value, inside = self._results(
            [*raws, *[self._widened(numbers[n], self.types[n]) for n in more]]
        )
        loops = [
            form.row,
            form.row + 1,
            form.turn,
            *range(form.turn + 1, len(form.sizes)),
            *form.heads,
        ]
        indices = [self.table.put(Index(loop)) for loop in loops]
        other = [numbers[2 * count]] if form.weighted else []
        names = ("bounds", "kind")
        said = tuple([(name, self.op.attributes[name]) for name in names])
        said += (("products", self._number(count)), ("weighted", self._number(len(other))))
        operands = (value, inside, *raws, *other, *indices)
        type_ = self.op.results[0].type.element_type
        made = self.table.put(Apply(REDUCED, said, operands, type_))
        return Expression(tuple(self.table.nodes), (made,))
