"""The bufferised function as plain steps: which kernel reads and writes which place of which
buffer, and the control flow.

A `Place` is a view of a root buffer: an offset in elements (a linear form over run-time symbols)
and one stride per dim. Roots are inputs, outputs, allocations, constants, and pointers that control
flow hands on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.locations import location_text
from meshweave.lowering.items import CARRIER, FUNCTION, Symbols
from meshweave.lowering.linear import Linear

EARLY, WAIT = "mw.early", "mw.wait"  # on a carrier: it starts a collective, or ends it
SCRATCH = "mw.scratch"  # on a carrier: bytes of memory that the call needs for itself
_DYNAMIC = -(1 << 63)
_VIEWS = {
    "memref.subview", "memref.cast", "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast",
}  # fmt: skip


@dataclass(eq=False)
class Root:
    """A buffer. kind: "input", "output", "arena", "constant" or "pointer"; index: which; nbytes:
    its size (0: unknown).
    """

    kind: str
    index: int
    nbytes: int = 0
    offset: int = 0  # bytes from the arena's start, once planned
    value: Any = None  # the SSA value that it is


@dataclass(frozen=True)
class Place:
    """Where a memref lies. offset: in elements from the root; strides: elements per dim; element:
    its type; width: bytes of one.
    """

    root: Root
    offset: Linear
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    element: Any
    width: int


@dataclass
class Step:
    """One thing the program does. what: "kernel", "collective", "wait", "call", "copy", or the name
    of the op that stays. The last output of a call is its frame.

    A collective with a ticket is only started where it stands; a wait with that number, later in the
    same block, ends it, on the same places.
    """

    what: str
    op: Any
    number: int = -1  # of the kernel, collective or function
    operands: list[Any] = field(default_factory=list)  # Place of a memref, SSA value of a scalar
    outputs: list[Place] = field(default_factory=list)
    bodies: list[list[Step]] = field(default_factory=list)  # of control flow: one per region
    position: int = 0  # in program order
    scratch: Place | None = None  # memory that only this step uses
    ticket: int = -1  # of a collective that is started early


class Buffers:
    """Reads the function's blocks into steps."""

    def __init__(
        self, function: Any, inputs: int, outputs: int, frames: Sequence[int] = ()
    ) -> None:
        """frames: bytes of the arena of each function that this one may call, by number."""
        self.symbols = Symbols()
        self.inputs, self.outputs, self.frames = inputs, outputs, frames
        self.roots: list[Root] = []
        self.aliases: list[tuple[Root, Root]] = []
        self.places: dict[Any, Place] = {}
        self.depths: dict[Root, int] = {}  # regions of control flow around an allocation
        self._depth = 0
        self._started: dict[int, Step] = {}  # what is to be waited for, by ticket
        block = function.operation.regions[0].blocks[0]
        arguments = list(block.arguments)
        for k, value in enumerate(arguments[: inputs + outputs]):
            kind = ("input", k) if k < inputs else ("output", k - inputs)
            self._root(value, *kind)
        self.indices = arguments[inputs + outputs :]
        self.steps = self._block(block)

    def place(self, value: Any) -> Place:
        """Where the memref `value` lies."""
        found = self.places.get(value)
        if found is None:
            owner = value.owner
            if isinstance(owner, ir.Block):
                found = self._root(value, "pointer", len(self.roots))
            else:
                found = self._made(value, owner.operation)
            self.places[value] = found
        return found

    def _root(self, value: Any, kind: str, index: int) -> Place:
        type_ = value.type
        if not type_.has_static_shape:
            raise CompileError(f"a buffer of dynamic shape: {type_}", location_text(value.location))
        strides, offset = type_.get_strides_and_offset()
        if 0 in type_.shape:  # strides of nothing: any will do
            strides, offset = [0] * len(strides), 0
        if kind == "pointer" and offset == _DYNAMIC:
            offset = 0  # whoever hands the buffer on hands the address of its first element
        if offset == _DYNAMIC or _DYNAMIC in strides:
            raise CompileError(
                f"a buffer whose layout is not known: {type_}", location_text(value.location)
            )
        width = element_bytes(type_.element_type)
        nbytes = width
        for extent in type_.shape:
            nbytes *= extent
        root = Root(kind, index, nbytes, value=value)
        self.roots.append(root)
        place = Place(
            root, Linear(offset), tuple(strides), tuple(type_.shape), type_.element_type, width
        )
        self.places[value] = place
        return place

    def _made(self, value: Any, op: Any) -> Place:
        if op.name == "memref.alloc":
            return self._root(value, "arena", len(self.roots))
        if op.name == "memref.get_global":
            return self._root(value, "constant", len(self.roots))
        if op.name in _VIEWS:
            return self._view(value, op)
        return self._root(value, "pointer", len(self.roots))

    def _view(self, value: Any, op: Any) -> Place:
        source = self.place(op.operands[0])
        type_ = value.type
        strides, offset = type_.get_strides_and_offset()
        if 0 in type_.shape:
            strides, offset = [0] * len(strides), 0
        if _DYNAMIC in strides or not type_.has_static_shape:
            raise CompileError(f"{op.name}: a view of dynamic shape", location_text(op.location))
        form = Linear(offset)
        if offset == _DYNAMIC:
            form = source.offset
            if op.name in ("memref.subview", "memref.reinterpret_cast"):
                form = self._offset(op, source)
        shape = tuple(type_.shape)
        return Place(source.root, form, tuple(strides), shape, source.element, source.width)

    def _offset(self, op: Any, source: Place) -> Linear:
        dynamic = iter(list(op.operands)[1:])
        offsets = [
            self.symbols.form(next(dynamic)) if o == _DYNAMIC else Linear(o)
            for o in op.attributes["static_offsets"]
        ]
        if op.name == "memref.reinterpret_cast":
            return offsets[0]
        form = source.offset
        for part, stride in zip(offsets, source.strides):
            form = form.plus(part.scaled(stride))
        return form

    def _operand(self, value: Any) -> Any:
        return self.place(value) if isinstance(value.type, ir.MemRefType) else value

    def _block(self, block: Any) -> list[Step]:
        steps = []
        for view in block.operations:
            op = view.operation
            name = op.name
            if name == "memref.alloc":
                self.depths[self.place(op.results[0]).root] = self._depth
            if name in _VIEWS or name in ("memref.alloc", "memref.get_global", "memref.dealloc"):
                continue
            step = self._step(op, name)
            if step.what == "wait":
                steps += self._ended(step)
            else:
                steps += self._packed(step) if step.what in ("collective", "call") else [step]
        return steps

    def _packed(self, step: Step) -> list[Step]:
        """A collective or call between buffers without gaps: bufferisation may have put its tensors
        inside others.
        """
        before, after = [], []
        for k, place in enumerate(step.operands):
            if not contiguous(place):
                step.operands[k] = self._temporary(place)
                before.append(Step("copy", step.op, -1, [place], [step.operands[k]]))
        for k, place in enumerate(step.outputs):
            if not contiguous(place):
                step.outputs[k] = self._temporary(place)
                after.append(Step("copy", step.op, -1, [step.outputs[k]], [place]))
        if step.ticket >= 0:
            self._started[step.ticket] = step
            return [*before, step]
        return [*before, step, *after]

    def _ended(self, wait: Step) -> list[Step]:
        """A wait, on the places that its collective was started with; then what that made goes where
        it belongs.
        """
        started, target = self._started[wait.number], wait.outputs[0]
        wait.operands, wait.outputs = list(started.operands), list(started.outputs)
        if contiguous(target):
            return [wait]
        return [wait, Step("copy", wait.op, -1, [wait.outputs[0]], [target])]

    def _temporary(self, like: Place) -> Place:
        """A buffer of its own, of the shape of `like`."""
        strides: list[int] = []
        nbytes = like.width
        for extent in reversed(like.shape):
            strides.insert(0, nbytes // like.width)
            nbytes *= extent
        root = self._allocated(nbytes)
        return Place(root, Linear(0), tuple(strides), like.shape, like.element, like.width)

    def _allocated(self, nbytes: int) -> Root:
        root = Root("arena", len(self.roots), nbytes)
        self.roots.append(root)
        self.depths[root] = self._depth
        return root

    def _scratch(self, nbytes: int) -> Place:
        """Memory for one step."""
        return Place(self._allocated(nbytes), Linear(0), (1,), (nbytes,), None, 1)

    def _step(self, op: Any, name: str) -> Step:
        if name == "linalg.generic" and CARRIER in op.attributes:
            count = op.attributes["operandSegmentSizes"][0]
            values = [self._operand(v) for v in op.operands]
            number = op.attributes[CARRIER].value
            if FUNCTION in op.attributes:
                values.append(self._scratch(self.frames[number]))
                return Step("call", op, number, values[:count], values[count:])
            what = "wait" if WAIT in op.attributes else "kernel"
            what = "collective" if "mw.collective" in op.attributes else what
            step = Step(what, op, number, values[:count], values[count:])
            step.ticket = number if EARLY in op.attributes else -1
            if SCRATCH in op.attributes:
                step.scratch = self._scratch(op.attributes[SCRATCH].value)
            return step
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

    def _tie(self, op: Any) -> None:
        """Buffers that control flow hands on share their lifetime with those they may be."""
        groups: list[Sequence[Any]] = []
        blocks = [r.blocks[0] for r in op.regions if len(r.blocks)]
        ends = [list(b.operations[len(b.operations) - 1].operation.operands) for b in blocks]
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

    def _join(self, groups: list[Sequence[Any]]) -> None:
        for values in zip(*groups):
            if isinstance(values[0].type, ir.MemRefType):
                first, *others = [self.place(v).root for v in values]
                self.aliases += [(first, other) for other in others if other is not first]


_TENSOR_DIALECTS = ("linalg.", "memref.", "tensor.", "bufferization.")


def contiguous(place: Place) -> bool:
    """Whether the elements lie back to back, in order."""
    step = 1
    for extent, stride in zip(reversed(place.shape), reversed(place.strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


_BYTES = {
    "f64": 8,
    "i64": 8,
    "index": 8,
    "f32": 4,
    "i32": 4,
    "f16": 2,
    "bf16": 2,
    "i16": 2,
    "i8": 1,
    "i1": 1,
}


def element_bytes(element: Any) -> int:
    """Bytes of one element in a buffer. CompileError for types that buffers do not hold."""
    found = _BYTES.get(str(element))
    if found is None:
        raise CompileError(f"no buffers of element type {element} on this target")
    return found
