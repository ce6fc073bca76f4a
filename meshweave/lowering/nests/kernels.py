"""Build fused kernels: an op pulls into itself whatever its operands need not store.

A kernel is a plain value without SSA values. Its code is an expression (`ir.expressions`) over its
loops; equal nodes are one node, so sharing costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from meshweave.ir.bindings import ir
from meshweave.ir.build import reassociation, static_sizes, static_strides
from meshweave.ir.expressions import (
    Accumulator,
    Argument,
    BodyNode,
    Constant,
    Gather,
    Index,
    Load,
    Node,
    NodeTable,
    Scalar,
    renumber,
)
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.bodies import constant_of, folded
from meshweave.lowering.nests.items import PRODUCTS, Item, Reader
from meshweave.lowering.nests.linear import IndexMap, Linear

A = TypeVar("A")


class ElementRef(NamedTuple):
    """Name an element of tensor `operand`, at `indices` over the loops; those of a gather are computed."""

    operand: int
    indices: IndexMap = ()


KernelNode = Node[ElementRef, Linear, int]


@dataclass(frozen=True, slots=True)
class Output(Generic[A]):
    """Describe a result of a kernel: where it is written, its element type and node, and what it starts from.

    initial: node of the start value of a reduction; None: it starts from what the buffer holds
    (`reads`) or is only written.
    """

    access: A
    type: ir.Type
    value: int
    initial: int | None = None
    reads: bool = False


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Describe loops over `sizes`, of which all but `reductions` are parallel.

    operands: types of what the kernel is called with: tensors it reads, and scalars. In linear
    forms symbol s is scalar operand s. library: whether a library may do it. switches: kernels off
    and on for all that it computes, such as "-rows". limits: (loop, scalar operand) of loops that may end
    there, which is at most their size: a parallel one may run on, one that reduces must not.
    """

    sizes: tuple[int, ...]
    reductions: frozenset[int]
    operands: tuple[ir.Type, ...]
    code: tuple[KernelNode, ...]
    outputs: tuple[Output[IndexMap], ...]
    contraction: bool = False
    library: bool = True
    switches: frozenset[str] = frozenset()
    limits: tuple[tuple[int, int], ...] = ()

    @property
    def ndim(self) -> int:
        """Count the loops."""
        return len(self.sizes)


class KernelBuilder:
    """Build the kernel of one item. operands: the SSA values that it is to be called with."""

    def __init__(self, reader: Reader, item: Item) -> None:
        self.reader, self.item = reader, item
        self.operands: list[ir.Value] = []
        self._switches: frozenset[str] = frozenset()
        self._table: NodeTable[ElementRef, Linear, int] = NodeTable()
        self._tensors: dict[tuple[ir.Value, IndexMap], int] = {}
        self._operands: dict[ir.Value, int] = {}

    def build(self) -> FusedKernel:
        """Return the kernel: loads, fused ops, outputs."""
        item = self.item
        here = linear.identity(len(item.sizes))
        arguments = self._arguments(item, here)
        outputs = []
        for k, out in enumerate(item.outs or item.op.results):
            reads = item.reads(k)
            element = out.type.element_type
            start = self._filling(out) if reads else None
            outputs.append(
                Output(item.out_accesses[k], element, -1, start, reads and start is None)
            )
            arguments.append(self._table.put(Accumulator(k, element)) if reads else -1)
        values = self._inline(item, arguments, here)
        return FusedKernel(
            item.sizes,
            item.reductions,
            tuple([value.type for value in self.operands]),
            tuple(self._table.nodes),
            tuple([replace(output, value=v) for output, v in zip(outputs, values)]),
            item.kind in PRODUCTS,
            item.library,
            self._switches,
        )

    def _filling(self, value: ir.Value) -> int | None:
        """Return the node of the scalar that fills tensor `value`; None when it is not a splat."""
        made = self.reader.made.get(value)
        while made is not None and made.kind in ("view", "copy"):
            made = self.reader.made.get(made.sources[0])
        return self._splat(made) if made is not None and made.kind == "splat" else None

    def _splat(self, made: Item) -> int:
        return self._inlined(made.body.nodes[0], (), ())

    def _operand(self, value: ir.Value, index: IndexMap) -> int:
        """Return the node of what an op reads from `value` (a tensor or a scalar)."""
        if not isinstance(value.type, ir.RankedTensorType):
            return self._scalar(value)
        return self._tensor(value, index)

    def _tensor(self, value: ir.Value, index: IndexMap) -> int:
        """Return the node of element `index` of `value`: a load if the tensor exists, else what computes it.

        What it is computed from comes first, by a list of what is to be done: chains may be longer than Python calls
        may be deep.
        """
        waiting = [(value, index)]
        while waiting:
            key = waiting[-1]
            if key not in self._tensors:
                missing = [k for k in self._needed(*key) if k not in self._tensors]
                if missing:
                    waiting += reversed(missing)
                    continue
                self._tensors[key] = self._new_tensor(*key)
            waiting.pop()
        return self._tensors[value, index]

    def _needed(self, value: ir.Value, index: IndexMap) -> list[tuple[ir.Value, IndexMap]]:
        """Return the elements of other tensors that this one is computed from."""
        made = self.reader.made.get(value)
        if made is None or made.exists or made.kind == "splat":
            return []
        if made.kind == "view":
            access = view_access(made, index, self.reader)
            assert access is not None, "only views that can be folded do not exist"
            return [(made.sources[0], access)]
        return [
            (v, tuple([f.over(index) for f in a]))
            for k, (v, a) in enumerate(zip(made.sources, made.accesses))
            if k in made.body.used and isinstance(v.type, ir.RankedTensorType)
        ]

    def _new_tensor(self, value: ir.Value, index: IndexMap) -> int:
        made = self.reader.made.get(value)
        if made is not None and made.kind == "splat":
            return self._splat(made)
        if made is None or made.exists:
            index = tuple([self._own(form) for form in index])
            element = ElementRef(self._number(value), index)
            return self._table.put(Load(element, value.type.element_type))
        if made.kind == "view":
            (source,) = self._needed(value, index)
            return self._tensors[source]
        return self._inline(made, self._arguments(made, index), index)[0]

    def _arguments(self, made: Item, index: IndexMap) -> list[int]:
        """Return the nodes of the operands of `made` in an iteration; -1 for those that do not matter."""
        if made.op.name == "tensor.generate":
            return [self._table.put(Index(self._own(form))) for form in index]
        return [
            self._operand(v, tuple([f.over(index) for f in a])) if k in made.body.used else -1
            for k, (v, a) in enumerate(zip(made.sources, made.accesses))
        ]

    def _scalar(self, value: ir.Value) -> int:
        known = constant_of(value)
        if known is not None:
            return self._table.put(Constant(known, value.type))
        return self._table.put(Scalar(self._number(value), value.type))

    def _own(self, form: Linear) -> Linear:
        """Return a form over the function's symbols as one over this kernel's operands."""
        if not form.terms or form.terms[0][0] >= 0:  # symbols come first
            return form
        values = self.reader.symbols.values
        terms = [
            (d if d >= 0 else -1 - self._number(values[-1 - d]), factor) for d, factor in form.terms
        ]
        return Linear(form.const, tuple(sorted(terms)))

    def _number(self, value: ir.Value) -> int:
        """Return the number of an operand, which is added when new."""
        if value not in self._operands:
            self._operands[value] = len(self.operands)
            self.operands.append(value)
        return self._operands[value]

    def _inline(self, made: Item, arguments: Sequence[int], index: IndexMap) -> list[int]:
        """Compute the body of `made` on `arguments` in the iteration `index` of its loops; return its results."""
        self._switches |= made.switches
        numbers: list[int] = []
        for node in made.body.nodes:
            numbers.append(self._inlined(renumber(node, numbers), arguments, index))
        return [numbers[k] for k in made.body.results]

    def _inlined(self, node: BodyNode, arguments: Sequence[int], index: IndexMap) -> int:
        """Put a node of a body, whose operands have been put; -1 for an output that is not read."""
        if isinstance(node, Argument):
            return arguments[node.number] if node.number < len(arguments) else -1
        if isinstance(node, Index):
            return self._table.put(Index(self._own(index[node.form])))
        if isinstance(node, Scalar):
            return self._scalar(node.source)
        if isinstance(node, Gather):
            element = ElementRef(self._number(node.access))
            return self._table.put(Gather(element, node.operands, node.type))
        assert not isinstance(node, Load), "the body of a linalg op loads nothing"
        known = folded(node, self._table.nodes)
        return known if isinstance(known, int) else self._table.put(known)


def view_access(item: Item, index: IndexMap, reader: Reader) -> IndexMap | None:
    """Return where a view op reads its source for its result at `index`; None when that is not linear."""
    op = item.op
    if op.name == "tensor.extract_slice":
        return linear.slice_access(*slice_parts(op, reader), index)
    groups = reassociation(op)
    if op.name == "tensor.expand_shape":
        return linear.expand_access(groups, list(op.results[0].type.shape), index)
    return linear.collapse_access(groups, list(op.operands[0].type.shape), index)


def slice_parts(op: ir.Operation, reader: Reader) -> tuple[list[Linear], list[int], list[bool]]:
    """Return the offsets, strides and kept dims of an extract_slice of static sizes."""
    kept: list[
        bool
    ] = []  # which of several dims of extent 1 are dropped does not matter: their index is 0
    shape, position = op.results[0].type.shape, 0
    for size in static_sizes(op):
        kept.append(position < len(shape) and shape[position] == size)
        position += kept[-1]
    return reader.symbols.offsets(op), static_strides(op), kept
