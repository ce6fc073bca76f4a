"""Read a bufferised function into steps: which kernel reads and writes which place of which buffer, and control flow.

A `MemrefPlace` is a view of a root buffer: an offset in elements (a linear form over run-time symbols)
and one stride per dim. Roots are inputs, outputs, allocations, constants, and pointers that control
flow hands on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC
from meshweave.ir.calls import CALLS, HOST, called
from meshweave.ir.locations import location_text
from meshweave.ir.ops import terminator
from meshweave.lowering.buffers.arena import ArenaBlock
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.items import Symbols
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.lowering.nests.linear import Linear

OUTPUTS = "mw.outputs"  # attribute of a function: how many of its arguments, the last, it writes
TAKEN = (
    "mw.taken"  # the same: for each of these the input that is written in its place, -1 for none
)
_VIEWS = {
    "memref.subview", "memref.cast", "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast",
}  # fmt: skip


@dataclass(eq=False)
class Root:
    """Describe a buffer.

    kind: "input", "output", "arena", "constant" or "pointer". index: which of its kind. nbytes: its size (0: unknown).
    """

    kind: str
    index: int
    nbytes: int
    value: ir.Value  # the SSA value that it is
    offset: int = 0  # bytes from the arena's start, once planned


@dataclass(frozen=True)
class MemrefPlace:
    """Tell where a memref lies.

    offset: in elements from the root. strides: elements per dim. element: its type. width: bytes of one.
    """

    root: Root
    offset: Linear
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    element: ir.Type
    width: int


@dataclass
class Step:
    """Describe one thing that the program does.

    what: "kernel", "collective", "wait", "routine", "host", "call", "copy", "unit", or the name of the op that stays.
    The last output of a call is its frame.

    A collective with a ticket is only started here; a wait with that ticket, later in the same block, ends it, on the
    same places.
    """

    what: str
    op: ir.Operation
    number: int = -1  # of the collective or function
    # Places of memrefs, or scalars.
    operands: list[MemrefPlace | ir.Value] = field(default_factory=list)
    outputs: list[MemrefPlace] = field(default_factory=list)
    bodies: list[list[Any]] = field(default_factory=list)  # of control flow: one per region
    position: int = 0  # in program order
    scratch: MemrefPlace | None = None  # memory that only this step uses
    ticket: int = -1  # of a collective that is started early, or of its wait
    kernel: FusedKernel | None = None  # of a launch


class BufferForm(NamedTuple):
    """Describe how the elements of a memref lie, as `MemrefPlace` does, from its first byte on."""

    offset: Linear
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    element: ir.Type
    width: int


class Buffers:
    """Read the blocks of a function into steps."""

    def __init__(self, function: ir.OpView, kernels: Mapping[str, FusedKernel]) -> None:
        """kernels: those of the module, by name."""
        self.symbols = Symbols()
        self.kernels = kernels
        self.roots: list[Root] = []
        self.aliases: list[tuple[Root, Root]] = []
        self.places: dict[ir.Value, MemrefPlace] = {}
        self._forms: dict[tuple[ir.Type, str], BufferForm] = {}
        self.depths: dict[Root, int] = {}  # regions of control flow around an allocation
        self.blocks: dict[Root, ArenaBlock] = {}  # of buffers that have their place already
        self._depth = 0
        self._arena: dict[int, Root] = {}  # by the number of the buffer
        block = function.operation.regions[0].blocks[0]
        arguments = list(block.arguments)
        self.outputs = function.operation.attributes[OUTPUTS].value
        self.inputs = len(arguments) - self.outputs
        for k, value in enumerate(arguments):
            kind = ("input", k) if k < self.inputs else ("output", k - self.inputs)
            self._root(value, *kind)
        self.steps = self._block(block)

    def place(self, value: ir.Value) -> MemrefPlace:
        """Return where the memref `value` lies."""
        found = self.places.get(value)
        if found is None:
            owner = value.owner
            if isinstance(owner, ir.Block):
                found = self._root(value, "pointer", len(self.roots))
            else:
                found = self._made(value, owner.operation)
            self.places[value] = found
        return found

    def _root(self, value: ir.Value, kind: str, index: int) -> MemrefPlace:
        form = self._form(value, kind)
        root = Root(kind, index, form.width * math.prod(form.shape), value)
        self.roots.append(root)
        self.places[value] = place = MemrefPlace(root, *form)
        return place

    def _form(self, value: ir.Value, kind: str) -> BufferForm:
        """Return how the elements of a buffer lie; it is found once for each type."""
        type_ = value.type
        known = self._forms.get((type_, kind))
        if known is not None:
            return known
        if not type_.has_static_shape:
            raise CompileError(f"a buffer of dynamic shape: {type_}", location_text(value.location))
        strides, offset = _strides_and_offset(type_)
        if kind == "pointer" and offset == DYNAMIC:
            offset = 0  # whoever hands the buffer on hands the address of its first element
        if offset == DYNAMIC or DYNAMIC in strides:
            raise CompileError(
                f"a buffer whose layout is not known: {type_}", location_text(value.location)
            )
        element = type_.element_type
        form = BufferForm(
            Linear(offset), strides, tuple(type_.shape), element, element_bytes(element)
        )
        self._forms[type_, kind] = form
        return form

    def _made(self, value: ir.Value, op: ir.Operation) -> MemrefPlace:
        if op.name == "memref.alloc":
            return self._root(value, "arena", len(self.roots))
        if op.name == "mw.place":
            return self._placed(value, op)
        if op.name == "mw.share":
            return self._shared(value, op)
        if op.name == "mw.address":
            return self._addressed(op)
        if op.name == "memref.get_global":
            return self._root(value, "constant", len(self.roots))
        if op.name in _VIEWS:
            return self._view(value, op)
        return self._root(value, "pointer", len(self.roots))

    def _placed(self, value: ir.Value, op: ir.Operation) -> MemrefPlace:
        """Return the place of an `mw.place`: ops with the same number are one buffer."""
        number, offset = op.attributes["buffer"].value, op.attributes["offset"].value
        if number not in self._arena:
            self._arena[number] = self._root(value, "arena", len(self.roots)).root
            self._arena[number].offset = offset
        root = self._arena[number]
        if root.offset != offset:
            raise CompileError(
                f"mw.place: buffer {number} lies at byte {root.offset}, here at {offset}",
                location_text(op.location),
            )
        first, last = op.attributes["lifetime"]
        self.blocks[root] = ArenaBlock(root.nbytes, first, last, root.offset)
        return MemrefPlace(root, *self._form(value, "arena"))

    def _shared(self, value: ir.Value, op: ir.Operation) -> MemrefPlace:
        """Return the place of an `mw.share`: that of its operand, in another shape."""
        return MemrefPlace(self.place(op.operands[0]).root, *self._form(value, "pointer"))

    def _addressed(self, op: ir.Operation) -> MemrefPlace:
        """Return the place of an `mw.address`: a single element."""
        source, symbols = self.place(op.operands[0]), list(op.operands)[1:]
        forms = linear.from_map(op.attributes["map"])
        if forms is None:
            raise CompileError("mw.address: the map is not linear", location_text(op.location))
        offset = source.offset.plus(Linear(forms[0].const))
        for dim, factor in forms[0].terms:
            offset = offset.plus(self.symbols.form(symbols[-1 - dim]).scaled(factor))
        return replace(source, offset=offset, strides=(), shape=())

    def _view(self, value: ir.Value, op: ir.Operation) -> MemrefPlace:
        source = self.place(op.operands[0])
        type_ = value.type
        strides, offset = _strides_and_offset(type_)
        if DYNAMIC in strides or not type_.has_static_shape:
            raise CompileError(f"{op.name}: a view of dynamic shape", location_text(op.location))
        form = Linear(offset)
        if offset == DYNAMIC:
            form = source.offset
            if op.name in ("memref.subview", "memref.reinterpret_cast"):
                form = self._offset(op, source)
        shape = tuple(type_.shape)
        return MemrefPlace(source.root, form, strides, shape, source.element, source.width)

    def _offset(self, op: ir.Operation, source: MemrefPlace) -> Linear:
        offsets = self.symbols.offsets(op)
        if op.name == "memref.reinterpret_cast":
            return offsets[0]
        form = source.offset
        for part, stride in zip(offsets, source.strides):
            form = form.plus(part.scaled(stride))
        return form

    def _operand(self, value: ir.Value) -> MemrefPlace | ir.Value:
        return self.place(value) if isinstance(value.type, ir.MemRefType) else value

    def _block(self, block: ir.Block) -> list[Step]:
        steps: list[Step] = []
        for view in block.operations:
            op = view.operation
            name = op.name
            if name == "memref.alloc":
                self.depths[self.place(op.results[0]).root] = self._depth
            if name == "mw.fuse":
                inner = self._block(op.regions[0].blocks[0])
                steps.append(Step("unit", op, bodies=[inner]))
            elif name not in _SILENT:
                steps.append(self._step(op, name))
        return steps

    def _step(self, op: ir.Operation, name: str) -> Step:
        if name in _CALLS:
            return self._call(op, name)
        if name in ("gpu.launch_func", "mw.product"):
            return Step(name, op, operands=[self._given(value) for value in _arguments(op)])
        if name == "memref.copy":
            source, target = (self.place(v) for v in op.operands)
            return Step("copy", op, -1, [source], [target])
        step = Step(name, op, operands=[self._operand(v) for v in op.operands])
        if name.startswith("scf.") and len(op.regions):
            self._tie(op)
            self._depth += 1
            for region in op.regions:
                step.bodies.append(self._block(region.blocks[0]) if len(region.blocks) else [])
            self._depth -= 1
        elif name == "arith.select" and isinstance(op.results[0].type, ir.MemRefType):
            self._join([[op.results[0]], [op.operands[1]], [op.operands[2]]])
        elif name not in ("memref.load", "memref.store") and (
            len(op.regions) or name.startswith(_TENSOR_DIALECTS)
        ):
            raise CompileError(f"{name}: no lowering for this op", location_text(op.location))
        return step

    def _given(self, value: ir.Value) -> MemrefPlace | ir.Value:
        """Return what a device kernel is given: an address or a number."""
        owner = value.owner
        is_address = not isinstance(owner, ir.Block) and owner.operation.name == "mw.address"
        return self.place(value) if is_address else value

    def _call(self, op: ir.Operation, name: str) -> Step:
        """Return the step of an op that writes its last operands."""
        values = [self._operand(value) for value in op.operands]
        if name in ("mw.launch", "mw.call"):
            count = len(values) - op.attributes["outs"].value - (name == "mw.call")
            step = Step(_CALLS[name], op, -1, values[:count], values[count:])
            if name == "mw.launch":
                step.kernel = self.kernels[op.attributes["kernel"].value]
            return step
        count, outs = 1, 1
        if name in CALLS:
            count, outs = called(op).inputs, op.attributes["outs"].value
        step = Step(_CALLS[name], op, -1, values[:count], values[count : count + outs])
        step.scratch = values[count + outs] if len(values) > count + outs else None
        if name in ("mw.start", "mw.wait"):
            step.ticket = op.attributes["ticket"].value
        return step

    def _tie(self, op: ir.Operation) -> None:
        """Let buffers that control flow hands on share their lifetime with those they may be."""
        groups: list[Sequence[ir.Value]] = []
        blocks = [r.blocks[0] for r in op.regions if len(r.blocks)]
        ends = [list(terminator(b).operands) for b in blocks]
        if op.name == "scf.for":
            inits = list(op.operands)[3:]
            groups = [inits, list(blocks[0].arguments)[1:], ends[0], list(op.results)]
        elif op.name == "scf.if":
            groups = [list(op.results), *ends]
        elif op.name == "scf.while":
            groups = [list(op.operands), list(blocks[0].arguments), ends[1]]
            self._join([ends[0][1:], list(blocks[1].arguments), list(op.results)])
        else:
            raise CompileError(f"{op.name}: no lowering for this op", location_text(op.location))
        self._join(groups)

    def _join(self, groups: Sequence[Sequence[ir.Value]]) -> None:
        for values in zip(*groups):
            if isinstance(values[0].type, ir.MemRefType):
                first, *others = [self.place(v).root for v in values]
                self.aliases += [(first, other) for other in others if other is not first]


def _arguments(op: ir.Operation) -> list[ir.Value]:
    """Return what an op gives to the device: the last operands of a launch but for the sizes, all of a product's."""
    if op.name == "mw.product":
        return list(op.operands)
    *sizes, count, _ = op.attributes["operandSegmentSizes"]
    return list(op.operands)[sum(sizes) : sum(sizes) + count]


_CALLS = {
    "mw.launch": "kernel", "mw.call": "call", "mw.collective": "collective",
    "mw.start": "collective", "mw.wait": "wait", **dict.fromkeys(CALLS, "routine"), HOST: "host",
}  # fmt: skip
_SILENT = _VIEWS | {
    "memref.alloc", "memref.get_global", "memref.dealloc", "mw.place", "mw.share", "mw.yield",
    "mw.address",
}  # fmt: skip
_TENSOR_DIALECTS = ("linalg.", "memref.", "tensor.", "bufferization.")


def _strides_and_offset(type_: ir.Type) -> tuple[tuple[int, ...], int]:
    """Return how the elements of a memref lie; where it has none, any strides will do."""
    strides, offset = type_.get_strides_and_offset()
    return ((0,) * len(strides), 0) if 0 in type_.shape else (tuple(strides), offset)


def contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether elements of these strides lie back to back, in order."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


_BYTES = {
    "f64": 8, "i64": 8, "index": 8, "f32": 4, "i32": 4,
    "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "i1": 1,
}  # fmt: skip


def element_bytes(element: ir.Type | str) -> int:
    """Return the bytes of one element in a buffer. Raises CompileError for types that buffers do not hold."""
    found = _BYTES.get(str(element))
    if found is None:
        raise CompileError(f"no buffers of element type {element} on this target")
    return found
