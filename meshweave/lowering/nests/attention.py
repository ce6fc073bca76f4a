"""Read an `mw.attention` as the body of a kernel: scores, what is made of them, and rows weighted by their softmax."""

from __future__ import annotations

from meshweave.ir.attention import SCORES, WEIGHTED, AttentionForm
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
from meshweave.lowering.nests.bodies import constant_of

_SHORT = ("f16", "bf16")
_ROUNDING = ("arith.extf", "arith.truncf")


def attention_body(op: ir.Operation, form: AttentionForm) -> Body:
    """Return what an `mw.attention` computes, on one element of each operand.

    Scores are f32: what is never stored is not rounded.
    """
    return _AttentionBody(op, form).build()


class _AttentionBody:
    def __init__(self, op: ir.Operation, form: AttentionForm) -> None:
        self.op, self.form, self.wide = op, form, ir.F32Type.get()
        self.table: NodeTable[ir.Value, int, ir.Value] = NodeTable()
        self.types = [value.type.element_type for value in op.operands]

    def build(self) -> Body:
        """Return the body."""
        q, k, v, *more = [self.table.put(Argument(n)) for n in range(len(self.types))]
        raw = self.table.put(Apply(SCORES, (), (q, k), self.wide))
        given = [raw, *[self._widened(n, self.types[n]) for n in more]]
        numbers: list[int] = []
        body = read_body(body_of(self.op))
        for node in body.nodes:
            numbers.append(
                given[node.number] if isinstance(node, Argument) else self._put(node, numbers)
            )
        score, inside = (numbers[n] for n in body.results)
        query = self.table.put(Index(self.form.query))
        keys = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.form.sizes[-2])
        said: tuple[tuple[str, ir.Attribute], ...]
        said = (("bounds", self.op.attributes["bounds"]), ("keys", keys))
        said += (("zeros", ir.UnitAttr.get()),) if self.form.zeros else ()
        type_ = self.op.results[0].type.element_type
        made = self.table.put(Apply(WEIGHTED, said, (score, inside, v, query), type_))
        return Expression(tuple(self.table.nodes), (made,))

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
        type_ = self.wide if str(node.type) in _SHORT else node.type
        if node.name in _ROUNDING and type_ == self._type(node.operands[0]):
            return node.operands[0]
        return self.table.put(Apply(node.name, node.attributes, node.operands, type_))

    def _type(self, number: int) -> ir.Type:
        node = self.table.nodes[number]
        assert isinstance(node, Apply | Constant | Argument | Scalar), "what is rounded is a float"
        return self.types[node.number] if isinstance(node, Argument) else node.type

    def _widened(self, number: int, type_: ir.Type) -> int:
        if str(type_) not in _SHORT:
            return number
        return self.table.put(Apply("arith.extf", (), (number,), self.wide))
