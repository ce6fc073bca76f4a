"""Make the tensor ops that move data around collectives: padding, cutting, and the member dim to and from the front."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, dims_map, tensor_type


class Reshaper:
    """Make tensor ops right before `op`."""

    def __init__(self, op: ir.Operation) -> None:
        self._b = OpBuilder.before(op)

    def padded(self, x: ir.Value, dim: int, extent: int, value: ir.Attribute | None) -> ir.Value:
        """Pad x at its end to `extent` along `dim`, with `value`, or with whatever is there when that is None."""
        if x.type.shape[dim] == extent:
            return x
        type_ = _resized(x, dim, extent)
        if value is None:
            into = self._b.empty(type_)
        else:
            into = self._b.constant(ir.DenseElementsAttr.get_splat(type_, value))
        return self._b.insert_slice(x, into, [0] * type_.rank)

    def cut(self, x: ir.Value, dim: int, extent: int) -> ir.Value:
        """Return the first `extent` of x along `dim`."""
        type_ = _resized(x, dim, extent)
        return self._b.extract_slice(x, type_, [0] * type_.rank)

    def slice_at(self, x: ir.Value, dim: int, number: ir.Value, piece: int) -> ir.Value:
        """Slice chunk `number`, a run-time index, of chunks of extent `piece` along `dim`."""
        start = self._b.times(number, piece)
        type_ = _resized(x, dim, piece)
        return self._b.extract_slice(
            x, type_, [start if d == dim else 0 for d in range(type_.rank)]
        )

    def to_front(self, x: ir.Value, dim: int, members: int) -> ir.Value:
        """Split `dim` of x in `members` pieces, and make their number a new dim 0."""
        shape = list(x.type.shape)
        split = [*shape[:dim], members, shape[dim] // members, *shape[dim + 1 :]]
        if math.prod(shape[:dim]) == 1:
            wanted = [members, *split[:dim], *split[dim + 1 :]]
            return self._reshaped(x, wanted, dim)
        x = self._b.expand_shape(x, _of(x, split), _pair_at(dim, len(shape)))
        return self._transposed(x, [dim, *(d for d in range(len(split)) if d != dim)])

    def from_front(self, x: ir.Value, dim: int) -> ir.Value:
        """Join the pieces that dim 0 of x numbers, one after the other along what then is `dim`."""
        members, *shape = x.type.shape
        joined = [*shape[:dim], members * shape[dim], *shape[dim + 1 :]]
        if math.prod(shape[:dim]) == 1:
            return self._reshaped(x, joined, dim)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
        x = self._transposed(x, order)
        return self._b.collapse_shape(x, _of(x, joined), _pair_at(dim, len(shape)))

    def _reshaped(self, x: ir.Value, wanted: list[int], dim: int) -> ir.Value:
        """Give x another shape with the same elements in the same order; dims behind `dim` do not change."""
        tail = min(len(x.type.shape), len(wanted)) - dim - 1
        flat = [math.prod(wanted[: len(wanted) - tail]), *wanted[len(wanted) - tail :]]
        head = len(x.type.shape) - tail
        if head > 1:
            x = self._b.collapse_shape(x, _of(x, flat), _first_merged(head, tail))
        head = len(wanted) - tail
        if head > 1:
            x = self._b.expand_shape(x, _of(x, wanted), _first_merged(head, tail))
        return x

    def _transposed(self, x: ir.Value, order: list[int]) -> ir.Value:
        ndim = len(order)
        into = self._b.empty(_of(x, [x.type.shape[d] for d in order]))
        maps = [
            dims_map(ndim, [order.index(d) for d in range(ndim)]),
            ir.AffineMap.get_identity(ndim),
        ]
        parallel = [IteratorType.PARALLEL] * ndim
        return self._b.generic([x], [into], maps, parallel, lambda _, values: values[:1]).result

    def divided(self, x: ir.Value, by: int) -> ir.Value:
        """Divide x by a number, elementwise."""
        element = x.type.element_type
        whole = isinstance(element, ir.IntegerType)
        number = ir.IntegerAttr.get(element, by) if whole else ir.FloatAttr.get(element, float(by))
        divisor = self._b.constant(ir.DenseElementsAttr.get_splat(x.type, number))
        return self._b.binary("divsi" if whole else "divf", x, divisor)


def _of(x: ir.Value, shape: Sequence[int]) -> ir.Type:
    """Return the type of a tensor of `shape` with the elements of x."""
    return tensor_type(shape, x.type.element_type)


def _resized(x: ir.Value, dim: int, extent: int) -> ir.Type:
    """Return the type of x with another extent of `dim`."""
    return _of(x, [*x.type.shape[:dim], extent, *x.type.shape[dim + 1 :]])


def _pair_at(dim: int, ndim: int) -> list[list[int]]:
    """Return the groups of dims of a reshape that splits `dim` of `ndim` dims in two."""
    return [[d] for d in range(dim)] + [[dim, dim + 1]] + [[d + 1] for d in range(dim + 1, ndim)]


def _first_merged(head: int, tail: int) -> list[list[int]]:
    """Return the groups of dims of a reshape that merges the first `head` dims, and keeps `tail` dims behind them."""
    return [list(range(head))] + [[head + k] for k in range(tail)]
