"""A few builders for the loops that StableHLO ops are lowered to: index arithmetic, elements,
scf.for.
"""

from collections.abc import Callable, Sequence
from typing import Any

from meshweave.bindings import ir


class Builder:
    """Makes ops at one place after the other, all with one location.

    ip: an insertion point; `inside(block)` gives the builder for the end of a block.
    """

    def __init__(self, ip: Any, loc: Any) -> None:
        self.ip, self.loc = ip, loc
        self.index = ir.IndexType.get()

    def inside(self, block: Any) -> "Builder":
        """The builder at the end of `block`, which has no terminator yet."""
        return Builder(ir.InsertionPoint(block), self.loc)

    def op(
        self,
        name: str,
        types: Sequence[Any],
        operands: Sequence[Any],
        regions: int = 0,
        **attributes: Any,
    ) -> Any:
        """An op in generic form; the Operation."""
        return ir.Operation.create(
            name, list(types), list(operands), attributes, regions=regions, loc=self.loc, ip=self.ip
        )

    def one(self, name: str, kind: Any, *operands: Any, **attributes: Any) -> Any:
        """An op with one result of type `kind`; the result."""
        return self.op(name, [kind], operands, **attributes).result

    def number(self, value: int, kind: Any = None) -> Any:
        """An integer constant, of type index unless `kind` says another."""
        kind = kind or self.index
        return self.one("arith.constant", kind, value=ir.IntegerAttr.get(kind, value))

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """`arith.name` of two values of one type."""
        return self.one(f"arith.{name}", a.type, a, b)

    def compare(self, predicate: str, a: Any, b: Any) -> Any:
        """`a < b` and so on for integers; predicate as MLIR prints it: eq, slt, sge, ..."""
        number = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge").index(
            predicate
        )
        attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        return self.one("arith.cmpi", ir.IntegerType.get_signless(1), a, b, predicate=attr)

    def compare_floats(self, predicate: str, a: Any, b: Any) -> Any:
        """The same for floats: predicate as MLIR prints it: oge, ole, ogt, une, uno (either is NaN)."""
        attr = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(64),
            {"ogt": 2, "oge": 3, "ole": 5, "une": 13, "uno": 14}[predicate],
        )
        return self.one("arith.cmpf", ir.IntegerType.get_signless(1), a, b, predicate=attr)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` where the condition holds, else `b`."""
        return self.one("arith.select", a.type, condition, a, b)

    def element(self, tensor: Any, indices: Sequence[Any] = ()) -> Any:
        """One element of a tensor."""
        return self.one("tensor.extract", tensor.type.element_type, tensor, *indices)

    def boxed(self, scalar: Any) -> Any:
        """A scalar as a tensor without dims."""
        return self.one("tensor.from_elements", ir.RankedTensorType.get([], scalar.type), scalar)

    def put(self, scalar: Any, tensor: Any, indices: Sequence[Any]) -> Any:
        """The tensor with one element replaced."""
        return self.one("tensor.insert", tensor.type, scalar, tensor, *indices)

    def loop(
        self,
        start: Any,
        stop: Any,
        carried: Sequence[Any],
        body: Callable[["Builder", Any, Sequence[Any]], Sequence[Any]],
        step: Any = None,
    ) -> list[Any]:
        """`for i in range(start, stop, step)`: body(builder, i, values) gives the values of the
        next round.
        """
        step = step or self.number(1)
        types = [v.type for v in carried]
        op = self.op("scf.for", types, [start, stop, step, *carried], regions=1)
        block = ir.Block.create_at_start(
            op.regions[0], [self.index, *types], [self.loc] * (1 + len(types))
        )
        inner = self.inside(block)
        first, *rest = block.arguments
        inner.op("scf.yield", [], body(inner, first, rest))
        return list(op.results)

    def loops(
        self,
        shape: Sequence[int],
        carried: Sequence[Any],
        body: Callable[["Builder", Sequence[Any], Sequence[Any]], Sequence[Any]],
    ) -> list[Any]:
        """One loop a dim of `shape`, nested: body(builder, indices, values)."""

        def level(b: "Builder", outer: tuple[Any, ...], values: Sequence[Any]) -> Sequence[Any]:
            if len(outer) == len(shape):
                return body(b, outer, values)
            return b.loop(
                b.number(0),
                b.number(shape[len(outer)]),
                values,
                lambda inner, i, v: level(inner, (*outer, i), v),
            )

        return list(level(self, (), carried))

    def choose(
        self,
        condition: Any,
        types: Sequence[Any],
        yes: Callable[["Builder"], Sequence[Any]],
        no: Callable[["Builder"], Sequence[Any]],
    ) -> list[Any]:
        """`scf.if` with both branches given."""
        op = self.op("scf.if", types, [condition], regions=2)
        for region, branch in zip(op.regions, (yes, no), strict=True):
            inner = self.inside(ir.Block.create_at_start(region, [], []))
            inner.op("scf.yield", [], branch(inner))
        return list(op.results)

    def apply(self, block: Any, scalars: Sequence[Any]) -> list[Any]:
        """The ops of a reducer or comparator moved here, its arguments being `scalars`; what it
        returns, as scalars.

        A block can be applied once: its ops are gone afterwards.
        """
        *ops, end = list(block.operations)
        anchor = self.op(
            "arith.constant", [self.index], [], value=ir.IntegerAttr.get(self.index, 0)
        )
        before = Builder(ir.InsertionPoint(anchor), self.loc)
        for argument, scalar in zip(block.arguments, scalars, strict=True):
            argument.replace_all_uses_with(before.boxed(scalar))
        for op in ops:
            op.operation.move_before(anchor)
        return [self.element(value) for value in end.operands]
