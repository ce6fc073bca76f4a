"""Kernels as plain values, and the fusion that builds them: an op pulls into itself whatever its
operands need not store.

A kernel's `code` is a list of nodes, each a tuple that names earlier nodes by number. Equal nodes
are one node, so sharing costs nothing:

    ("load", operand, access)          element of an operand tensor; access: linear forms over the kernel's loops
    ("gather", operand, (nodes..))     element of an operand tensor at computed places
    ("index", form)                    a linear form over the loops, as an index
    ("constant", attribute, type)      ("scalar", operand, type)      a number known now, or when the program runs
    ("acc", k)                         what output k holds so far
    ("op", name, attributes, (nodes..), type)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshweave.bindings import ir
from meshweave.lowering import linear
from meshweave.lowering.items import Access, Item, Reader
from meshweave.lowering.linear import Linear
from meshweave.lowering.payload import Ref, Step, constant_of

Node = tuple[Any, ...]


@dataclass
class Output:
    """A result of a kernel: where it is written (over the loops), its element type, and what it
    starts from.

    initial: node of the start value of a reduction; None: it starts from what the buffer holds
    (`reads`) or is only written.
    """

    access: Access
    type: Any
    initial: int | None = None
    reads: bool = False


@dataclass
class Kernel:
    """Loops over `sizes`; all but `reductions` are parallel. `operands` are SSA values: tensors
    read, then scalars.
    """

    number: int
    where: str
    sizes: tuple[int, ...]
    reductions: frozenset[int]
    code: list[Node] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    yields: tuple[int, ...] = ()
    symbols: dict[int, int] = field(default_factory=dict)  # symbol -> operand
    contraction: bool = False
    library: bool = True  # whether a library may do it
    switches: frozenset[str] = frozenset()  # of all items that it computes

    @property
    def ndim(self) -> int:
        """How many loops."""
        return len(self.sizes)


class Builder:
    """Builds the kernel of one item."""

    def __init__(self, reader: Reader, item: Item, number: int) -> None:
        self.reader = reader
        self.item = item
        self.kernel = Kernel(number, item.where, item.sizes, item.reductions)
        self._nodes: dict[Node, int] = {}
        self._tensors: dict[tuple[Any, Access], int] = {}
        self._operands: dict[Any, int] = {}

    def build(self) -> Kernel:
        """The kernel: loads, fused steps, outputs."""
        item, kernel = self.item, self.kernel
        here = linear.identity(len(item.sizes))
        args = self._arguments(item, here)
        payload = item.payload
        for k, out in enumerate(item.outs or item.op.results):
            reads = payload.reads(len(item.sources) + k) if item.kind == "reduce" else False
            reads = reads or item.kind == "contract"
            output = Output(item.out_accesses[k], out.type.element_type, reads=reads)
            if reads and (start := self.scalar_of(out)) is not None:
                output.initial, output.reads = start, False
            kernel.outputs.append(output)
            args.append(self._node(("acc", k)) if reads else -1)
        if item.op.name == "tensor.generate":
            args = [self._node(("index", form)) for form in here]
        kernel.yields = self._inline(item, args, here)
        kernel.contraction, kernel.library = item.kind == "contract", item.library
        return kernel

    def scalar_of(self, value: Any) -> int | None:
        """The node of the scalar that fills the tensor `value`; None when it is not a splat."""
        made = self.reader.made.get(value)
        while made is not None and made.kind in ("view", "copy"):
            made = self.reader.made.get(made.sources[0])
        if made is None or made.kind != "splat":
            return None
        return self._splat(made)

    def operand(self, value: Any, access: Access) -> int:
        """The node of what the op reads from `value` (a tensor or a scalar)."""
        if not isinstance(value.type, ir.RankedTensorType):
            return self._scalar(value)
        return self.tensor(value, access)

    def tensor(self, value: Any, index: Access) -> int:
        """The node of element `index` of `value`: a load if the tensor exists, else what computes
        it.
        """
        key = (value, index)
        if key not in self._tensors:
            self._tensors[key] = self._tensor(value, index)
        return self._tensors[key]

    def _tensor(self, value: Any, index: Access) -> int:
        made = self.reader.made.get(value)
        if made is not None and made.kind == "splat":
            return self._splat(made)
        if made is None or made.exists:
            return self._load(value, index)
        if made.kind == "view":
            access = view_access(made, index, self.reader)
            assert access is not None, "only views that can be folded do not exist"
            return self.tensor(made.sources[0], access)
        args = self._arguments(made, index)
        if made.op.name == "tensor.generate":
            args = [self._node(("index", form)) for form in index]
        return self._inline(made, args, index)[0]

    def _arguments(self, made: Item, index: Access) -> list[int]:
        """Nodes of the operands of `made` in iteration `index` of its loops; -1 for those that do
        not matter.
        """
        return [
            self.operand(v, tuple(f.over(index) for f in a)) if made.payload.reads(k) else -1
            for k, (v, a) in enumerate(zip(made.sources, made.accesses))
        ]

    def _splat(self, made: Item) -> int:
        what, value = made.payload.yields[0]
        if what == "constant":
            return self._node(("constant", value, value.type))
        return self._scalar(value) if what == "value" else self._inline(made, [], ())[0]

    def _scalar(self, value: Any) -> int:
        known = constant_of(value)
        if known is not None:
            return self._node(("constant", known, value.type))
        return self._node(("scalar", self._number(value), value.type))

    def _load(self, value: Any, index: Access) -> int:
        for form in index:
            self._note_symbols(form)
        return self._node(("load", self._number(value), index))

    def _note_symbols(self, form: Linear) -> None:
        for dim, _ in form.terms:
            if dim < 0:
                value = self.reader.symbols.values[-1 - dim]
                self.kernel.symbols[-1 - dim] = self._number(value)

    def _number(self, value: Any) -> int:
        if value not in self._operands:
            self._operands[value] = len(self.kernel.operands)
            self.kernel.operands.append(value)
        return self._operands[value]

    def _node(self, node: Node) -> int:
        if node not in self._nodes:
            self._nodes[node] = len(self.kernel.code)
            self.kernel.code.append(node)
        return self._nodes[node]

    def _inline(self, made: Item, args: list[int], index: Access) -> tuple[int, ...]:
        """Compute the payload of `made` on `args` in the iteration `index` of its loops."""
        results: list[int] = []
        self.kernel.switches |= made.switches

        def node_of(ref: Ref) -> int:
            what, which = ref
            if what == "arg":
                return args[which]
            if what == "constant":
                return self._node(("constant", which, which.type))
            return results[which] if what == "op" else self._scalar(which)

        captured = iter(made.payload.captured)
        for step in made.payload.steps:
            if step.name == "tensor.extract":
                nodes = [node_of(ref) for ref in step.operands[1:]]
                results.append(self._node(("gather", self._number(next(captured)), tuple(nodes))))
            else:
                results.append(self._step(step, [node_of(ref) for ref in step.operands], index))
        return tuple(node_of(ref) for ref in made.payload.yields)

    def _step(self, step: Step, nodes: list[int], index: Access) -> int:
        if step.name == "linalg.index":
            form = index[dict(step.attributes)["dim"].value]
            self._note_symbols(form)
            return self._node(("index", form))
        if step.name == "arith.constant":
            return self._node(("constant", dict(step.attributes)["value"], step.type))
        return self._node(("op", step.name, step.attributes, tuple(nodes), step.type))


def view_access(item: Item, index: Access, reader: Reader) -> Access | None:
    """What an access to the result of a view op reads of its source; None when that is not linear."""
    op = item.op
    if op.name == "tensor.extract_slice":
        return linear.slice_access(*slice_parts(op, reader), index)
    groups = [[i.value for i in group] for group in op.attributes["reassociation"]]
    if op.name == "tensor.expand_shape":
        return linear.expand_access(groups, list(op.results[0].type.shape), index)
    return linear.collapse_access(groups, list(op.operands[0].type.shape), index)


def slice_parts(op: Any, reader: Reader) -> tuple[list[Linear], list[int], list[bool]]:
    """Offsets, strides and kept dims of an extract_slice of static sizes."""
    dynamic = iter(list(op.operands)[1:])
    offsets = [
        reader.symbols.form(next(dynamic)) if o == _DYNAMIC else Linear(o)
        for o in op.attributes["static_offsets"]
    ]
    sizes, strides = list(op.attributes["static_sizes"]), list(op.attributes["static_strides"])
    return offsets, strides, _kept(sizes, list(op.results[0].type.shape))


_DYNAMIC = -(1 << 63)


def _kept(sizes: list[int], shape: list[int]) -> list[bool]:
    """Which dims of a slice its result keeps. Which of several ones are dropped does not matter:
    their index is 0.
    """
    kept, position = [], 0
    for size in sizes:
        keep = position < len(shape) and shape[position] == size
        kept.append(keep)
        position += keep
    return kept
