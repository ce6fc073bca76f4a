"""Evaluate the nodes of a loop nest: write the loads, stores and scalar ops of an iteration as text.

A target derives from `Iteration` how it computes an op and how it reads an element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshweave.ir.expressions import Apply, Constant, Gather, Index, Load, Scalar, needed
from meshweave.lowering.nests.bind import Access, BoundIndex, LoopNest, NestNode, Store
from meshweave.lowering.writer import Value, Writer

Place = Sequence[Value | None]
"""The index of each loop; None for a loop that is not open."""
_STORED = {"i1": "i8", "index": "i64"}


def stored(type_: str) -> str:
    """Return the type that an element has in memory."""
    return _STORED.get(type_, type_)


@dataclass(frozen=True)
class Frame:
    """Hold what all iterations of a kernel share. index: type of loop indices and offsets, "i32" or "i64"."""

    writer: Writer
    pointers: tuple[Value, ...]
    scalars: tuple[Value, ...]
    index: str

    def linear(self, const: int, strides: Sequence[int], place: Place) -> Value:
        """Write const + sum of stride * index; indices whose stride is 0 may be missing."""
        total: Value | None = None
        for stride, part in zip(strides, place):
            if not stride:
                continue
            assert part is not None, "a loop that is not open"
            part = self.writer.times(part, stride)
            total = part if total is None else self.writer.plus(total, part)
        if total is None:
            return self.writer.constant(const, self.index)
        return self.writer.plus(total, const)

    def address(self, access: Access, type_: str, place: Place) -> Value:
        """Return the address of the element, of type `type_`, that `access` names there."""
        pointer = self.pointers[access.pointer]
        if not any(access.strides):
            return pointer
        offset = self.linear(0, access.strides, place)
        return self.writer.offset(pointer, offset, stored(type_))

    def loaded(self, value: Value, type_: str) -> Value:
        """Return an element of `type_` from what memory holds."""
        if type_ == "i1":
            return self.writer.convert("arith.trunci", value, "i1")
        if type_ == "index":
            return self.writer.convert("arith.index_cast", value, "index")
        return value

    def in_memory(self, value: Value) -> Value:
        """Return a value as memory holds it."""
        if value.type == "i1":
            return self.writer.convert("arith.extui", value, "i8")
        if value.type == "index":
            return self.writer.convert("arith.index_cast", value, "i64")
        return value


class Iteration:
    """Compute one iteration of a nest: `place` of its loops, and `values` of nodes by number."""

    def __init__(
        self,
        frame: Frame,
        nest: LoopNest,
        place: Place,
        values: Mapping[int, Value] | None = None,
    ) -> None:
        """values: nodes that are known already, accumulators among them."""
        self.frame, self.nest, self.place = frame, nest, list(place)
        self.values = dict(values or {})

    def compute(self, numbers: Iterable[int]) -> list[Value]:
        """Return the values of nodes, computing all that they need."""
        wanted = list(numbers)
        for number in sorted(needed(self.nest.code, wanted, self.values)):
            self.values[number] = self.node(self.nest.code[number])
        return [self.values[number] for number in wanted]

    def node(self, node: NestNode) -> Value:
        """Compute a node whose operands are known."""
        frame = self.frame
        if isinstance(node, Load):
            return self.load(node)
        if isinstance(node, Apply):
            return self.apply(node, [self.values[k] for k in node.operands])
        if isinstance(node, Constant):
            # The attribute knows how to write itself; its type is added by the writer.
            return frame.writer.literal(str(node.value).rsplit(" : ", 1)[0], str(node.type))
        if isinstance(node, Scalar):
            return frame.scalars[node.source]
        if isinstance(node, Index):
            return self._index(node.form)
        assert isinstance(node, Gather), f"{node}: no loop has set it"
        return self._gather(node)

    def apply(self, node: Apply, operands: Sequence[Value]) -> Value:
        """Write a scalar op."""
        raise NotImplementedError

    def read(self, address: Value, type_: str) -> Value:
        """Load what lies at an address; type_: as memory has it."""
        return self.frame.writer.load(address, type_)

    def load(self, touch: Load[Access] | Store) -> Value:
        """Return the element that a node loads, or that the place of a result holds."""
        kind = str(touch.type)
        address = self.frame.address(touch.access, kind, self.place)
        return self.frame.loaded(self.read(address, stored(kind)), kind)

    def store(self, store: Store, value: Value) -> None:
        """Store a result."""
        address = self.frame.address(store.access, str(store.type), self.place)
        self.frame.writer.store(self.frame.in_memory(value), address)

    def _index(self, form: BoundIndex) -> Value:
        writer = self.frame.writer
        number = self.frame.linear(form.const, form.strides, self.place)
        value = writer.convert("arith.index_cast", number, "index")
        for scalar, factor in form.scalars:
            value = value + self.frame.scalars[scalar] * factor
        return value

    def _gather(self, node: Gather[Access]) -> Value:
        writer, kind = self.frame.writer, str(node.type)
        offset: Value | None = None
        for stride, number in zip(node.access.strides, node.operands):
            part = writer.convert("arith.index_cast", self.values[number], "i64") * stride
            offset = part if offset is None else offset + part
        address = self.frame.pointers[node.access.pointer]
        if offset is not None:
            address = writer.offset(address, offset, stored(kind))
        return self.frame.loaded(self.read(address, stored(kind)), kind)
