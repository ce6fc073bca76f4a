"""Ops of loops over slices, made one by one at an insertion point."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir, linalg
from meshweave.transforms.neutral import neutral_attr

_DYNAMIC = -(1 << 63)


@dataclass
class Make:
    """Makes ops at an insertion point, at one location."""

    ip: Any
    loc: Any

    def op(
        self,
        name: str,
        types: Sequence[Any],
        operands: Sequence[Any],
        regions: int = 0,
        **attrs: Any,
    ) -> Any:
        """A new op."""
        return ir.Operation.create(
            name,
            results=list(types),
            operands=list(operands),
            attributes=attrs,
            regions=regions,
            loc=self.loc,
            ip=self.ip,
        )

    def index(self, number: int) -> Any:
        """An index constant."""
        return self.constant(ir.IntegerAttr.get(ir.IndexType.get(), number))

    def constant(self, attr: Any) -> Any:
        """A constant."""
        return self.op("arith.constant", [attr.type], [], value=attr).results[0]

    def arith(self, name: str, a: Any, b: Any) -> Any:
        """`name` of two indices."""
        return self.op(f"arith.{name}", [a.type], [a, b]).results[0]

    def times(self, a: Any, factor: int) -> Any:
        """An index times a number."""
        return a if factor == 1 else self.arith("muli", a, self.index(factor))

    def empty(self, shape: Sequence[int], element: Any) -> Any:
        """A tensor.empty."""
        return self.op("tensor.empty", [tensor_of(shape, element)], []).results[0]

    def filled(self, shape: Sequence[int], attr: Any) -> Any:
        """A tensor full of one constant."""
        into = self.empty(shape, attr.type)
        fill = self.op(
            "linalg.fill",
            [into.type],
            [self.constant(attr), into],
            1,
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 1]),
        )
        linalg.fill_builtin_region(fill)
        return fill.results[0]

    def extract(self, value: Any, type_: Any, offsets: Sequence[Any]) -> Any:
        """The part of `value` at `offsets` (numbers or index values) that has the type `type_`.

        Leading dims of extent 1 are dropped where `type_` has fewer.
        """
        sizes = [1] * (len(offsets) - len(type_.shape)) + list(type_.shape)
        if list(value.type.shape) == sizes and all(isinstance(o, int) and o == 0 for o in offsets):
            return value
        if 0 in sizes:  # no offset is within a dim of no elements
            return self.empty(type_.shape, type_.element_type)
        static, dynamic = _mixed(offsets)
        return self.op(
            "tensor.extract_slice",
            [type_],
            [value, *dynamic],
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, len(dynamic), 0, 0]),
            static_offsets=ir.DenseI64ArrayAttr.get(static),
            static_sizes=ir.DenseI64ArrayAttr.get(sizes),
            static_strides=ir.DenseI64ArrayAttr.get([1] * len(sizes)),
        ).results[0]

    def insert(self, piece: Any, into: Any, offsets: Sequence[Any]) -> Any:
        """`into` with `piece` at `offsets`."""
        sizes = [1] * (len(offsets) - len(piece.type.shape)) + list(piece.type.shape)
        if 0 in sizes:
            return into
        static, dynamic = _mixed(offsets)
        return self.op(
            "tensor.insert_slice",
            [into.type],
            [piece, into, *dynamic],
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 1, len(dynamic), 0, 0]),
            static_offsets=ir.DenseI64ArrayAttr.get(static),
            static_sizes=ir.DenseI64ArrayAttr.get(sizes),
            static_strides=ir.DenseI64ArrayAttr.get([1] * len(sizes)),
        ).results[0]

    def padded(self, value: Any, shape: Sequence[int]) -> Any:
        """`value` with zeros behind its end in each dim, up to `shape`."""
        type_ = value.type
        high = [n - m for n, m in zip(shape, type_.shape)]
        pad = self.op(
            "tensor.pad",
            [tensor_of(shape, type_.element_type)],
            [value],
            1,
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 0, 0]),
            static_low=ir.DenseI64ArrayAttr.get([0] * len(high)),
            static_high=ir.DenseI64ArrayAttr.get(high),
        )
        index = ir.IndexType.get()
        block = pad.regions[0].blocks.append(*[index] * len(high), arg_locs=[self.loc] * len(high))
        inner = Make(ir.InsertionPoint(block), self.loc)
        inner.op("tensor.yield", [], [inner.constant(neutral_attr("sum", type_.element_type))])
        return pad.results[0]

    def loop(self, trips: int, carried: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
        """An scf.for of `trips` steps: the op, its induction variable, and what it carries inside."""
        return self.for_(0, trips, 1, carried)

    def for_(
        self, low: int, high: int, step: int, carried: Sequence[Any]
    ) -> tuple[Any, Any, list[Any]]:
        """The same from `low` to below `high`."""
        bounds = [self.index(n) for n in (low, high, step)]
        types = [v.type for v in carried]
        loop = self.op("scf.for", types, [*bounds, *carried], 1)
        arguments = [ir.IndexType.get(), *types]
        block = loop.regions[0].blocks.append(*arguments, arg_locs=[self.loc] * len(arguments))
        return loop, block.arguments[0], list(block.arguments)[1:]

    def laid(self, name: str, value: Any, layout: Any) -> Any:
        """`value` behind an op that says how it lies: `dist.constrain` or `hint.place`. layout: the attribute."""
        return self.op(name, [value.type], [value], layout=layout).results[0]

    def inside(self, loop: Any) -> "Make":
        """Makes ops at the end of a loop's body."""
        return Make(ir.InsertionPoint(loop.regions[0].blocks[0]), self.loc)


def tensor_of(shape: Sequence[int], element: Any) -> Any:
    """The tensor type."""
    return ir.RankedTensorType.get(list(shape), element)


def _mixed(offsets: Sequence[Any]) -> tuple[list[int], list[Any]]:
    static = [o if isinstance(o, int) else _DYNAMIC for o in offsets]
    return static, [o for o in offsets if not isinstance(o, int)]
