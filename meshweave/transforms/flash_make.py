"""Ops on tiles, for flash.py: coordinates of loops as index values, parts of tensors, linalg ops with bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshweave.bindings import ir
from meshweave.transforms.expressions import Entry, Expressions, dims_of
from meshweave.transforms.flash_product import Operand
from meshweave.transforms.hint_ledger import set_apart
from meshweave.transforms.hint_make import Make, tensor_of

_DYNAMIC = -(1 << 63)
Index = Any  # an int, or an index value
Body = Callable[[Make, Sequence[Any]], Any]


@dataclass(frozen=True)
class Span:
    """A piece of a loop: where it begins and how long it is."""

    start: Index
    size: int


@dataclass(frozen=True)
class Tile:
    """A part of a tensor, and which loop each of its dims runs with."""

    value: Any
    dims: tuple[int, ...]


@dataclass
class Tiles:
    """Makes ops at one place.

    points: coordinates of loops that have one there; spans: of those that run in a tile; marks: attributes of all ops
    that compute.
    """

    make: Make
    points: Mapping[int, Index]
    spans: dict[int, Span] = field(default_factory=dict)
    marks: Mapping[str, Any] = field(default_factory=dict)

    def at(
        self, make: Make, points: Mapping[int, Index] = {}, spans: Mapping[int, Span] = {}
    ) -> Tiles:
        """Ops with the same attributes at another place, with more coordinates."""
        return Tiles(make, {**self.points, **points}, {**self.spans, **spans}, self.marks)

    def apart(self) -> Tiles:
        """At the same place, ops that want kernels of their own."""
        return self.at(Make(self.make.ip, set_apart(self.make.loc)))

    def inside(self, loop: Any, points: Mapping[int, Index] = {}) -> Tiles:
        """At the end of a loop's body."""
        return self.at(self.make.inside(loop), points)

    def add(self, a: Index, b: Index) -> Index:
        """a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.make.arith("addi", self.index(a), self.index(b))

    def times(self, a: Index, factor: int) -> Index:
        """a * factor."""
        return a * factor if isinstance(a, int) else self.make.times(a, factor)

    def index(self, a: Index) -> Any:
        """As an index value."""
        return self.make.index(a) if isinstance(a, int) else a

    def start(self, entry: Entry) -> Index:
        """Where an entry begins."""
        if entry[0] == "number":
            return entry[1]
        if entry[0] == "dim":
            return self.spans[entry[1]].start if entry[1] in self.spans else self.points[entry[1]]
        if entry[0] == "sum":
            total: Index = 0
            for part, factor in entry[1]:
                total = self.add(total, self.times(self.start(part), factor))
            return total
        value, name = self.start(entry[1]), {"div": "divui", "mod": "remui"}[entry[0]]
        if isinstance(value, int):
            return value // entry[2] if name == "divui" else value % entry[2]
        return self.make.arith(name, value, self.index(entry[2]))

    def part(self, operand: Operand) -> Tile:
        """What the loops in a tile read of a tensor."""
        sizes, dims = [], []
        for entry in operand.entries:
            inner = [d for d in dims_of(entry) if d in self.spans]
            sizes.append(self.spans[inner[0]].size if inner else 1)
            dims += inner
        offsets = [self.start(entry) for entry in operand.entries]
        type_ = tensor_of([self.spans[d].size for d in dims], operand.value.type.element_type)
        if type_ == operand.value.type:
            return Tile(operand.value, tuple(dims))
        moving = [o for o in offsets if not isinstance(o, int)]
        made = self.make.op(
            "tensor.extract_slice",
            [type_],
            [operand.value, *moving],
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, len(moving), 0, 0]),
            static_offsets=_static(offsets),
            static_sizes=ir.DenseI64ArrayAttr.get(sizes),
            static_strides=ir.DenseI64ArrayAttr.get([1] * len(sizes)),
        )
        return Tile(made.results[0], tuple(dims))

    def put(self, tile: Tile, into: Any, entries: Sequence[Entry]) -> Any:
        """`into` with `tile` at `entries`."""
        offsets = [self.start(entry) for entry in entries]
        sizes = [
            next((self.spans[d].size for d in dims_of(e) if d in self.spans), 1) for e in entries
        ]
        moving = [o for o in offsets if not isinstance(o, int)]
        return self.make.op(
            "tensor.insert_slice",
            [into.type],
            [tile.value, into, *moving],
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([1, 1, len(moving), 0, 0]),
            static_offsets=_static(offsets),
            static_sizes=ir.DenseI64ArrayAttr.get(sizes),
            static_strides=ir.DenseI64ArrayAttr.get([1] * len(sizes)),
        ).results[0]

    def compute(
        self,
        loops: Sequence[int],
        reads: Sequence[Tile],
        out: Tile,
        body: Body,
        marks: Mapping[str, Any] | None = None,
    ) -> Tile:
        """A linalg.generic over `loops`; those that `out` has not are reduced.

        body: makes ops from the elements of `reads` and of `out`, and returns the new element.
        """
        maps = [_map(loops, tile.dims) for tile in (*reads, out)]
        kinds = ["parallel" if d in out.dims else "reduction" for d in loops]
        op = self.make.op(
            "linalg.generic",
            [out.value.type],
            [*(tile.value for tile in reads), out.value],
            1,
            indexing_maps=ir.ArrayAttr.get(maps),
            iterator_types=ir.ArrayAttr.get(
                [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
            ),
            operandSegmentSizes=ir.DenseI32ArrayAttr.get([len(reads), 1]),
            **(self.marks if marks is None else marks),
        )
        types = [tile.value.type.element_type for tile in (*reads, out)]
        block = op.regions[0].blocks.append(*types, arg_locs=[self.make.loc] * len(types))
        inner = Make(ir.InsertionPoint(block), self.make.loc)
        inner.op("linalg.yield", [], [body(inner, list(block.arguments))])
        return Tile(op.results[0], out.dims)

    def empty(self, dims: Sequence[int], element: Any) -> Tile:
        """A new tile over the spans of these loops."""
        return Tile(self.make.empty([self.spans[d].size for d in dims], element), tuple(dims))

    def filled(self, dims: Sequence[int], attr: Any) -> Tile:
        """A new tile full of one number."""
        value = self.make.filled([self.spans[d].size for d in dims], attr)
        for name, mark in self.marks.items():
            value.owner.operation.attributes[name] = mark
        return Tile(value, tuple(dims))


def _static(offsets: Sequence[Index]) -> Any:
    return ir.DenseI64ArrayAttr.get([o if isinstance(o, int) else _DYNAMIC for o in offsets])


def _map(loops: Sequence[int], dims: Sequence[int]) -> Any:
    exprs = [ir.AffineDimExpr.get(loops.index(d)) for d in dims]
    return ir.AffineMapAttr.get(ir.AffineMap.get(len(loops), 0, exprs))


class Element:
    """Writes an expression into the body of a linalg op."""

    def __init__(
        self, expressions: Expressions, loops: Sequence[int], starts: Mapping[int, Any]
    ) -> None:
        """loops: of the op; starts: index values of where each coordinate begins, for those that are read."""
        self.expressions, self.loops, self.starts = expressions, loops, starts

    def write(self, make: Make, node: int, given: Mapping[int, Any]) -> Any:
        """The value of `node`, that of some nodes being given."""
        known = dict(given)
        for n in sorted(
            self.expressions.below(node)
        ):  # what a node is made of has a smaller number
            if n not in known:
                known[n] = self._one(make, self.expressions.nodes[n], known)
        return known[node]

    def _one(self, make: Make, kind: tuple[Any, ...], known: Mapping[int, Any]) -> Any:
        if kind[0] == "const":
            return make.constant(kind[1])
        if kind[0] == "value":
            return kind[1]
        if kind[0] == "index":
            return self._index(make, kind[1])
        if kind[0] == "leaf":
            return None  # read by what is given
        _, name, attrs, operands, type_ = kind
        return make.op(name, [type_], [known[n] for n in operands], **dict(attrs)).results[0]

    def _index(self, make: Make, entry: Entry) -> Any:
        if entry[0] == "number":
            return make.index(entry[1])
        if entry[0] == "dim":
            if entry[1] not in self.loops:
                return self.starts[entry[1]]
            dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.loops.index(entry[1]))
            here = make.op("linalg.index", [ir.IndexType.get()], [], dim=dim).results[0]
            return make.arith("addi", here, self.starts[entry[1]])
        if entry[0] == "sum":
            total = make.index(0)
            for part, factor in entry[1]:
                total = make.arith("addi", total, make.times(self._index(make, part), factor))
            return total
        name = {"div": "divui", "mod": "remui"}[entry[0]]
        return make.arith(name, self._index(make, entry[1]), make.index(entry[2]))
