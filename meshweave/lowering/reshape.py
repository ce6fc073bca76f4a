"""Tensor ops that move data around collectives: padding, cutting, and the member dim to and from
the front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshweave.bindings import ir

_DYNAMIC = -(1 << 63)


class Reshaper:
    """Makes tensor ops right before `op`."""

    def __init__(self, op: Any) -> None:
        self._location = op.location
        self._ip = ir.InsertionPoint(op)

    def _create(self, name: str, type_: Any, operands: Sequence[Any], **attributes: Any) -> Any:
        return ir.Operation.create(
            name, results=[type_], operands=list(operands), attributes=attributes,
            loc=self._location, ip=self._ip,
        ).result  # fmt: skip

    def padded(self, x: Any, dim: int, extent: int, value: Any) -> Any:
        """x made `extent` long along `dim`, at its end: with `value`, or with whatever is there
        when that is None.
        """
        shape = list(x.type.shape)
        if shape[dim] == extent:
            return x
        wanted = [*shape[:dim], extent, *shape[dim + 1 :]]
        type_ = ir.RankedTensorType.get(wanted, x.type.element_type)
        if value is None:
            into = self._create("tensor.empty", type_, [])
        else:
            splat = ir.DenseElementsAttr.get_splat(type_, value)
            into = self._create("arith.constant", type_, [], value=splat)
        return self._create(
            "tensor.insert_slice", type_, [x, into], **_slice([0] * len(shape), shape),
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 1, 0, 0, 0]),
        )  # fmt: skip

    def cut(self, x: Any, dim: int, extent: int) -> Any:
        """The first `extent` of x along `dim`."""
        shape = list(x.type.shape)
        if shape[dim] == extent:
            return x
        wanted = [*shape[:dim], extent, *shape[dim + 1 :]]
        type_ = ir.RankedTensorType.get(wanted, x.type.element_type)
        return self._create(
            "tensor.extract_slice", type_, [x], **_slice([0] * len(shape), wanted),
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
        )  # fmt: skip

    def slice_at(self, x: Any, dim: int, number: Any, piece: int) -> Any:
        """Piece `number`, an index known at run time, of pieces of `piece` along `dim`."""
        index = ir.IndexType.get()
        size = self._create("arith.constant", index, [], value=ir.IntegerAttr.get(index, piece))
        start = self._create("arith.muli", index, [number, size])
        shape = list(x.type.shape)
        wanted = [*shape[:dim], piece, *shape[dim + 1 :]]
        type_ = ir.RankedTensorType.get(wanted, x.type.element_type)
        offsets = [_DYNAMIC if d == dim else 0 for d in range(len(shape))]
        return self._create(
            "tensor.extract_slice", type_, [x, start], **_slice(offsets, wanted),
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 1, 0, 0]),
        )  # fmt: skip

    def to_front(self, x: Any, dim: int, members: int) -> Any:
        """x with `dim` split in `members` pieces, their number as a new dim 0."""
        shape = list(x.type.shape)
        split = [*shape[:dim], members, shape[dim] // members, *shape[dim + 1 :]]
        if math.prod(shape[:dim]) == 1:
            wanted = [members, *split[:dim], *split[dim + 1 :]]
            return self._reshaped(x, wanted, dim)
        groups = [[d] for d in range(dim)] + [[dim, dim + 1]]
        groups += [[d + 1] for d in range(dim + 1, len(shape))]
        x = self._expand(x, split, groups)
        return self._transposed(x, [dim, *(d for d in range(len(split)) if d != dim)])

    def from_front(self, x: Any, dim: int) -> Any:
        """x without its dim 0, the number of a piece: pieces one after the other along what then is
        `dim`.
        """
        members, *shape = x.type.shape
        joined = [*shape[:dim], members * shape[dim], *shape[dim + 1 :]]
        if math.prod(shape[:dim]) == 1:
            return self._reshaped(x, joined, dim)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
        x = self._transposed(x, order)
        groups = [[d] for d in range(dim)] + [[dim, dim + 1]]
        groups += [[d + 1] for d in range(dim + 1, len(shape))]
        return self._collapse(x, joined, groups)

    def _reshaped(self, x: Any, wanted: list[int], dim: int) -> Any:
        """x as another shape with the same elements in the same order; dims behind `dim` do not
        change.
        """
        tail = min(len(x.type.shape), len(wanted)) - dim - 1
        flat = [math.prod(wanted[: len(wanted) - tail]), *wanted[len(wanted) - tail :]]
        head = len(x.type.shape) - tail
        if head > 1:
            groups = [list(range(head))] + [[head + k] for k in range(tail)]
            x = self._collapse(x, flat, groups)
        head = len(wanted) - tail
        if head > 1:
            x = self._expand(x, wanted, [list(range(head))] + [[head + k] for k in range(tail)])
        return x

    def _transposed(self, x: Any, order: list[int]) -> Any:
        shape = [x.type.shape[d] for d in order]
        type_ = ir.RankedTensorType.get(shape, x.type.element_type)
        out = self._create("tensor.empty", type_, [])
        ndim = len(order)
        reads = [ir.AffineDimExpr.get(order.index(d)) for d in range(ndim)]
        maps = [ir.AffineMap.get(ndim, 0, reads), ir.AffineMap.get_identity(ndim)]
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        op = ir.Operation.create(
            "linalg.generic",
            results=[type_],
            operands=[x, out],
            attributes={
                "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
                "iterator_types": ir.ArrayAttr.get([parallel] * ndim),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
            },
            regions=1,
            loc=self._location,
            ip=self._ip,
        )
        element = type_.element_type
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block), self._location:
            ir.Operation.create("linalg.yield", operands=[block.arguments[0]])
        return op.results[0]

    def _expand(self, x: Any, shape: list[int], groups: list[list[int]]) -> Any:
        type_ = ir.RankedTensorType.get(shape, x.type.element_type)
        return self._create(
            "tensor.expand_shape", type_, [x], reassociation=_groups(groups),
            static_output_shape=ir.DenseI64ArrayAttr.get(shape),
        )  # fmt: skip

    def _collapse(self, x: Any, shape: list[int], groups: list[list[int]]) -> Any:
        type_ = ir.RankedTensorType.get(shape, x.type.element_type)
        return self._create("tensor.collapse_shape", type_, [x], reassociation=_groups(groups))

    def divided(self, x: Any, by: int) -> Any:
        """x / by, elementwise."""
        element = x.type.element_type
        whole = isinstance(element, ir.IntegerType)
        number = ir.IntegerAttr.get(element, by) if whole else ir.FloatAttr.get(element, float(by))
        splat = ir.DenseElementsAttr.get_splat(x.type, number)
        divisor = self._create("arith.constant", x.type, [], value=splat)
        return self._create("arith.divsi" if whole else "arith.divf", x.type, [x, divisor])


def _groups(groups: list[list[int]]) -> Any:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.IntegerAttr.get(i64, d) for d in group]) for group in groups]
    )


def _slice(offsets: list[int], sizes: list[int]) -> dict[str, Any]:
    return {
        "static_offsets": ir.DenseI64ArrayAttr.get(offsets),
        "static_sizes": ir.DenseI64ArrayAttr.get(sizes),
        "static_strides": ir.DenseI64ArrayAttr.get([1] * len(sizes)),
    }
