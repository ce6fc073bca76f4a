"""Build ops on tiles, for flash.py: coordinates as index values, parts of tensors, linalg ops with bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from meshweave.ir.bindings import ir
from meshweave.ir.build import Index, IteratorType, OpBuilder, dims_map, tensor_type
from meshweave.ir.expressions import Apply, Constant, Scalar
from meshweave.ir.expressions import Index as IndexNode
from meshweave.transforms.attention.expressions import (
    Coordinate,
    ElementNode,
    Expressions,
    Fixed,
    LoopIndex,
    Operand,
    Quotient,
    Weighted,
    dims_of,
)
from meshweave.transforms.slicing.ledger import set_apart

TileBody = Callable[[OpBuilder, list[ir.Value]], ir.Value]


@dataclass(frozen=True)
class LoopPiece:
    """Cut a piece out of a loop: where it begins and how long it is."""

    start: Index
    size: int


@dataclass(frozen=True)
class TensorTile:
    """Hold a part of a tensor, and which loop each of its dims runs with."""

    value: ir.Value
    dims: tuple[int, ...]


@dataclass
class Tiles:
    """Make ops at one place.

    points: coordinates of loops that have one there; spans: of those that run in a tile; marks: attributes of all ops
    that compute.
    """

    b: OpBuilder
    points: Mapping[int, Index]
    spans: dict[int, LoopPiece] = field(default_factory=dict)
    marks: Mapping[str, ir.Attribute] = field(default_factory=dict)

    def at(
        self, b: OpBuilder, points: Mapping[int, Index] = {}, spans: Mapping[int, LoopPiece] = {}
    ) -> Tiles:
        """Make ops with the same attributes at another place, with more coordinates."""
        return Tiles(b, {**self.points, **points}, {**self.spans, **spans}, self.marks)

    def apart(self) -> Tiles:
        """Make ops at the same place that want kernels of their own."""
        return self.at(OpBuilder(self.b.ip, set_apart(self.b.loc)))

    def add(self, x: Index, y: Index) -> Index:
        """Return x + y."""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if x == 0 or y == 0:
            return y if x == 0 else x
        return self.b.binary("addi", self.index(x), self.index(y))

    def times(self, a: Index, factor: int) -> Index:
        """Return a * factor."""
        return a * factor if isinstance(a, int) else self.b.times(a, factor)

    def index(self, a: Index) -> ir.Value:
        """Return a number as an index value."""
        return self.b.index(a)

    def start(self, entry: Coordinate) -> Index:
        """Return where a coordinate begins."""
        if isinstance(entry, Fixed):
            return entry.number
        if isinstance(entry, LoopIndex):
            span = self.spans.get(entry.loop)
            return self.points[entry.loop] if span is None else span.start
        if isinstance(entry, Weighted):
            total: Index = 0
            for part, factor in entry.parts:
                total = self.add(total, self.times(self.start(part), factor))
            return total
        value, divides = self.start(entry.of), isinstance(entry, Quotient)
        if isinstance(value, int):
            return value // entry.divisor if divides else value % entry.divisor
        return self.b.binary("divui" if divides else "remui", value, self.index(entry.divisor))

    def part(self, operand: Operand) -> TensorTile:
        """Return what the loops in a tile read of a tensor."""
        sizes, dims = [], []
        for entry in operand.entries:
            inner = [d for d in dims_of(entry) if d in self.spans]
            sizes.append(self.spans[inner[0]].size if inner else 1)
            dims += inner
        offsets = [self.start(entry) for entry in operand.entries]
        type_ = self._type(dims, operand.value.type.element_type)
        if type_ == operand.value.type:
            return TensorTile(operand.value, tuple(dims))
        return TensorTile(self.b.extract_slice(operand.value, type_, offsets, sizes), tuple(dims))

    def put(self, tile: TensorTile, into: ir.Value, entries: Sequence[Coordinate]) -> ir.Value:
        """Return `into` with `tile` at `entries`."""
        offsets = [self.start(entry) for entry in entries]
        sizes = [
            next((self.spans[d].size for d in dims_of(e) if d in self.spans), 1) for e in entries
        ]
        return self.b.insert_slice(tile.value, into, offsets, sizes)

    def compute(
        self,
        loops: Sequence[int],
        reads: Sequence[TensorTile],
        out: TensorTile,
        body: TileBody,
        marks: Mapping[str, ir.Attribute] | None = None,
    ) -> TensorTile:
        """Make a linalg.generic over `loops`; those that `out` has not are reduced.

        body: makes ops from the elements of `reads` and of `out`, and returns the new element.
        """
        op = self.b.generic(
            [tile.value for tile in reads],
            [out.value],
            [dims_map(len(loops), [loops.index(d) for d in t.dims]) for t in (*reads, out)],
            [IteratorType.PARALLEL if d in out.dims else IteratorType.REDUCTION for d in loops],
            lambda inner, elements: [body(inner, elements)],
            **(self.marks if marks is None else marks),
        )
        return TensorTile(op.result, out.dims)

    def empty(self, dims: Sequence[int], element: ir.Type) -> TensorTile:
        """Make a new tile over the spans of these loops."""
        return TensorTile(self.b.empty(self._type(dims, element)), tuple(dims))

    def _type(self, dims: Sequence[int], element: ir.Type) -> ir.Type:
        return tensor_type([self.spans[d].size for d in dims], element)

    def filled(self, dims: Sequence[int], attr: ir.Attribute) -> TensorTile:
        """Make a new tile full of one number."""
        value = self.b.fill(self.b.constant(attr), self._type(dims, attr.type))
        for name, mark in self.marks.items():
            value.owner.operation.attributes[name] = mark
        return TensorTile(value, tuple(dims))


class BodyWriter:
    """Write an expression into the body of a linalg op."""

    def __init__(
        self, expressions: Expressions, loops: Sequence[int], starts: Mapping[int, ir.Value]
    ) -> None:
        """loops: of the op; starts: index values of where each coordinate begins, for those that are read."""
        self.expressions, self.loops, self.starts = expressions, loops, starts

    def write(self, b: OpBuilder, node: int, given: Mapping[int, ir.Value]) -> ir.Value:
        """Return the value of `node`. given: the values of some nodes, those of all loads that are read among them."""
        known = dict(given)
        # A node reads nodes of smaller numbers.
        for n in sorted(self.expressions.below(node, known)):
            if n not in known:
                known[n] = self._one(b, self.expressions.nodes[n], known)
        return known[node]

    def _one(self, b: OpBuilder, node: ElementNode, known: Mapping[int, ir.Value]) -> ir.Value:
        if isinstance(node, Constant):
            return b.constant(node.value)
        if isinstance(node, Scalar):
            return node.source
        if isinstance(node, IndexNode):
            return self._index(b, node.form)
        assert isinstance(node, Apply)
        return b.one(
            node.name, node.type, *[known[n] for n in node.operands], **dict(node.attributes)
        )

    def _index(self, b: OpBuilder, entry: Coordinate) -> ir.Value:
        if isinstance(entry, Fixed):
            return b.index(entry.number)
        if isinstance(entry, LoopIndex):
            if entry.loop not in self.loops:
                return self.starts[entry.loop]
            here = b.loop_index(self.loops.index(entry.loop))
            return b.binary("addi", here, self.starts[entry.loop])
        if isinstance(entry, Weighted):
            total = b.index(0)
            for part, factor in entry.parts:
                total = b.binary("addi", total, b.times(self._index(b, part), factor))
            return total
        name = "divui" if isinstance(entry, Quotient) else "remui"
        return b.binary(name, self._index(b, entry.of), b.index(entry.divisor))
