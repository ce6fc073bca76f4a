"""Run loops over single elements on the device, in one kernel: scatters, whose places are known only there.

The host would fetch and put each element, and wait each time. Here threads share the loops whose index is a place of
all that is written. Where a place is computed, the rows of that dim are dealt out to threads in turn, and each thread
passes over the updates of the others. Every element sees its updates in the order of the loops, so the bits are theirs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from meshweave.hints.fast_paths import BIT_EXACT
from meshweave.ir.bindings import ir
from meshweave.ir.ops import terminator
from meshweave.lowering.buffers.steps import TAKEN, Buffers, MemrefPlace, Root
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import GLOBAL, DeviceWriter, Parameter
from meshweave.lowering.nests.bodies import constant_of
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.writer import Value

FAMILY = "serial"
THREADS = 128  # of a block
SHARED_AMONG = 1 << 16  # threads, about, when a computed place shares the work among more
MOST_OWNERS = 1 << 10  # of them for one place: each of them looks at all updates
_ELEMENTS = ("memref.load", "memref.store")
_BRANCHES = ("scf.for", "scf.if")
_CASTS = {"arith.index_cast": "arith.extsi", "arith.index_castui": "arith.extui"}


@dataclass(frozen=True)
class SerialLoops:
    """Hold loops that are one kernel, and what it is given: memrefs by their first element, then numbers."""

    kernel: DeviceKernel
    memrefs: tuple[ir.Value, ...]
    numbers: tuple[ir.Value, ...]


def serial(loop: ir.Operation, buffers: Buffers) -> SerialLoops | None:
    """Return the kernel of an `scf.for`; None where its body does more than read, compute and write elements."""
    found = _Reading(loop, buffers)
    if not found.complete or not found.writes:
        return None
    return _Writing(found).kernel()


@dataclass(frozen=True)
class _Touch:
    """Hold a read or write of an element: the place of its memref, and the indices."""

    op: ir.Operation
    memref: ir.Value
    place: MemrefPlace
    indices: tuple[ir.Value, ...]


@dataclass
class _Reading:
    """Read what loops touch. complete: whether all of them can be a kernel; writes: the touches of what they write."""

    loop: ir.Operation
    buffers: Buffers
    complete: bool = True
    touches: list[_Touch] = field(default_factory=list)
    numbers: list[ir.Value] = field(default_factory=list)
    _inside: set[ir.Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.complete = not len(self.loop.results)
        self._op(self.loop)
        written = {self.memory(t.place.root) for t in self.touches if t.op.name == "memref.store"}
        self.writes = [t for t in self.touches if self.memory(t.place.root) in written]
        forms = {
            (self.memory(t.place.root), t.place.offset, t.place.strides, t.place.width)
            for t in self.writes
        }
        self.alone = len(forms) == len(written)  # each is seen in one way

    def memory(self, root: Root) -> tuple[str, int]:
        """Return what tells the memory of a buffer from others; a result that takes an input's is that input."""
        if root.kind == "arena":
            return "arena", root.offset
        if root.kind == "output":
            owner = root.value.owner
            assert isinstance(owner, ir.Block)
            attributes = owner.owner.attributes
            taken = list(attributes[TAKEN]) if TAKEN in attributes else []
            if root.index < len(taken) and taken[root.index] >= 0:
                return "input", taken[root.index]
        return root.kind, root.index

    def _op(self, op: ir.Operation) -> None:
        for value in op.operands:
            self._operand(value)
        if op.name in _BRANCHES:
            for region in op.regions:
                for block in region.blocks:
                    self._inside.update(block.arguments)
                    for view in block.operations:
                        self._op(view.operation)
        elif op.name in _ELEMENTS:
            first = 1 if op.name == "memref.store" else 0
            memref, *indices = list(op.operands)[first:]
            place = self.buffers.place(memref)
            touch = _Touch(op, memref, place, tuple(indices))
            if memref in self._inside or place.root.kind == "pointer":
                self.complete = False
            self.touches.append(touch)
        elif op.name != "scf.yield" and not (op.name.startswith("arith.") and len(op.results) == 1):
            self.complete = False
        for result in op.results:
            self._inside.add(result)
            if isinstance(result.type, ir.ShapedType):
                self.complete = False

    def _operand(self, value: ir.Value) -> None:
        """Note a number from outside."""
        outside = value not in self._inside and not isinstance(value.type, ir.ShapedType)
        if outside and constant_of(value) is None and value not in self.numbers:
            self.numbers.append(value)

    def around(self, op: ir.Operation) -> list[ir.Operation]:
        """Return the loops and branches around an op, the outermost first."""
        found = list[ir.Operation]()
        while op != self.loop:
            op = op.parent.operation
            found.insert(0, op)
        return found


@dataclass(frozen=True)
class _Owners:
    """Share a computed place among `count` threads: ops from `first` to `last`, of one block, are of whoever has it."""

    place: ir.Value
    count: int
    first: ir.Operation
    last: ir.Operation


class _Writing:
    """Write the kernel."""

    def __init__(self, found: _Reading) -> None:
        self.found = found
        self.shared = self._shared_loops() if found.alone else []
        self.sizes = [_size(loop) for loop in self.shared]
        self.owners = self._owners() if found.alone else None
        memrefs: dict[object, ir.Value] = {}
        written = {found.memory(t.place.root) for t in found.writes}
        offsets = defaultdict[object, set[object]](set)  # of each memory
        for touch in found.touches:
            offsets[found.memory(touch.place.root)].add(touch.place.offset)
        self._numbers: dict[ir.Value, int] = {}  # of the parameter of a memref
        self._parameters: list[Parameter] = []
        for touch in found.touches:
            root = found.memory(touch.place.root)
            key = (root, touch.place.offset, touch.place.strides, touch.place.width)
            if key not in memrefs:
                memrefs[key] = touch.memref
                name, apart = f"p{len(memrefs) - 1}", len(offsets[root]) == 1
                self._parameters.append(
                    Parameter(name, GLOBAL, touch.place.width, apart, root not in written)
                )
            self._numbers[touch.memref] = list(memrefs).index(key)
        self._memrefs = tuple(memrefs.values())
        for k, value in enumerate(found.numbers):
            self._parameters.append(Parameter(f"s{k}", stored(_kind(value))))

    def kernel(self) -> SerialLoops:
        """Return what it is."""
        threads = math.prod(self.sizes) * (self.owners.count if self.owners else 1)
        writer = self.writer = DeviceWriter(self._name(), self._parameters, THREADS)
        self.frame = DeviceFrame(writer, (), (), "i64", ())
        self.values: dict[ir.Value, Value] = {}
        for k, value in enumerate(self.found.numbers):
            given = writer[f"s{k}"]
            narrow = _kind(value) == "i1"
            self.values[value] = writer.convert("arith.trunci", given, "i1") if narrow else given
        thread = writer.wide(writer.block()) * THREADS + writer.wide(writer.thread())
        writer.if_(writer.compare("ult", thread, threads), lambda: self._thread(thread))
        blocks = -(-threads // THREADS)
        made = DeviceKernel.of(writer, blocks, FAMILY, BIT_EXACT)
        return SerialLoops(made, self._memrefs, tuple(self.found.numbers))

    def _name(self) -> str:
        store = self.found.writes[-1].place
        counts = [str(_size(loop)) for loop in _loops(self.found.loop) if _bounds(loop)]
        return "_".join([FAMILY, "x".join(counts) or "1", str(store.element)])

    # What is shared among threads.

    def _shared_loops(self) -> list[ir.Operation]:
        """Return the loops whose iterations touch different elements of all that is written."""
        found = []
        for loop in _loops(self.found.loop):
            index = loop.regions[0].blocks[0].arguments[0]
            if not _bounds(loop) or len(loop.results) or _size(loop) < 2:
                continue
            if any(loop not in self.found.around(touch.op) for touch in self.found.writes):
                continue
            if self._dims(index):
                found.append(loop)
        return found

    def _dims(self, value: ir.Value) -> set[int]:
        """Return the dims at which all that is written is touched at the index `value`."""
        common = [{d for d, i in enumerate(t.indices) if i == value} for t in self.found.writes]
        return set.intersection(*common)

    def _owners(self) -> _Owners | None:
        """Return how a computed place is shared; None where there is none, or threads enough."""
        first = self.found.writes[0]
        for dim, place in enumerate(first.indices):
            if dim not in self._dims(place) or not self._computed(place):
                continue
            size = first.place.shape[dim]
            count = min(size, MOST_OWNERS, max(1, SHARED_AMONG // math.prod(self.sizes)))
            span = self._span(place)
            if count > 1 and span is not None:
                return _Owners(place, count, *span)
        return None

    def _computed(self, value: ir.Value) -> bool:
        return not isinstance(value.owner, ir.Block) and constant_of(value) is None

    def _span(self, place: ir.Value) -> tuple[ir.Operation, ir.Operation] | None:
        """Return the first and last op, of the block where a place is computed, that touch what is written.

        None where others of the block need what these compute.
        """
        block = place.owner.operation.block
        within = [self._ancestor(touch.op, block) for touch in self.found.writes]
        ops = [view.operation for view in block.operations]
        if any(op is None for op in within):
            return None
        numbers = [ops.index(op) for op in within if op is not None]
        first, last = min(numbers), max(numbers)
        inner = set(ops[first : last + 1])
        for op in inner:
            for result in op.results:
                for use in result.uses:
                    if self._ancestor(use.owner.operation, block) not in inner:
                        return None
        return ops[first], ops[last]

    def _ancestor(self, op: ir.Operation, block: ir.Block) -> ir.Operation | None:
        """Return the op of a block that is an op or has it inside."""
        while op.block != block:
            if op == self.found.loop:
                return None
            op = op.parent.operation
        return op

    # Code.

    def _thread(self, thread: Value) -> None:
        """Write what a thread does; threads side by side have iterations of the innermost shared loop."""
        count = math.prod(self.sizes)
        mine, self._owner = thread, thread
        if self.owners is not None:
            mine, self._owner = thread % count, thread // count
        for loop, digit in zip(self.shared, self.frame.digits(mine, self.sizes)):
            start, step, _ = _bounds(loop) or (0, 1, 0)
            index = digit * step if start == 0 else digit * step + start
            self.values[loop.regions[0].blocks[0].arguments[0]] = index
        self._op(self.found.loop)

    def _block(self, block: ir.Block) -> None:
        """Write the ops of a block but its end."""
        ops = [view.operation for view in block.operations]
        if ops and ops[-1].name == "scf.yield":
            ops.pop()
        owners, k = self.owners, 0
        while k < len(ops):
            if owners is not None and ops[k] == owners.first:
                part = ops[k : ops.index(owners.last) + 1]
                k += len(part)
                whose = self._value(owners.place) % owners.count
                is_mine = self.writer.compare("eq", whose, self._owner)
                self.writer.if_(is_mine, partial(self._ops, part))
                continue
            self._op(ops[k])
            k += 1

    def _ops(self, ops: Sequence[ir.Operation]) -> None:
        for op in ops:
            self._op(op)

    def _op(self, op: ir.Operation) -> None:
        if op.name == "scf.for":
            self._for(op)
        elif op.name == "scf.if":
            self._if(op)
        elif op.name == "memref.load":
            address, kind = self._address(op.operands[0], list(op.operands)[1:])
            value = self.writer.load(address, stored(kind))
            narrow = kind == "i1"
            value = self.writer.convert("arith.trunci", value, "i1") if narrow else value
            self.values[op.results[0]] = value
        elif op.name == "memref.store":
            address, kind = self._address(op.operands[1], list(op.operands)[2:])
            value = self._value(op.operands[0])
            value = self.writer.convert("arith.extui", value, "i8") if kind == "i1" else value
            self.writer.store(value, address)
        elif constant_of(op.results[0]) is None:
            self.values[op.results[0]] = self._number(op)

    def _for(self, op: ir.Operation) -> None:
        body = op.regions[0].blocks[0]
        index, *carried = body.arguments
        if op in self.shared:
            self._block(body)
            return

        def once(counter: Value, values: list[Value]) -> list[Value]:
            self.values[index] = counter
            self.values.update(zip(carried, values))
            self._block(body)
            return [self._value(v) for v in terminator(body).operands]

        start, end, step, *given = [self._value(v) for v in op.operands]
        results = self.writer.for_(start, end, step, given, once, start.type)
        self.values.update(zip(op.results, results))

    def _if(self, op: ir.Operation) -> None:
        def side(region: ir.Region) -> list[Value]:
            block = region.blocks[0]
            self._block(block)
            return [self._value(v) for v in terminator(block).operands]

        then, *others = [region for region in op.regions if len(region.blocks)]
        types = [_kind(result) for result in op.results]
        otherwise = (lambda: side(others[0])) if others else None
        found = self.writer.if_(self._value(op.operands[0]), lambda: side(then), otherwise, types)
        self.values.update(zip(op.results, found))

    def _number(self, op: ir.Operation) -> Value:
        """Write an op of arith; indices are i64."""
        operands, kind = [self._value(v) for v in op.operands], _kind(op.results[0])
        name = op.name
        if name in _CASTS:
            before = operands[0]
            if before.type == kind:
                return before
            grows = _width(before.type) < _width(kind)
            return self.writer.convert(_CASTS[name] if grows else "arith.trunci", before, kind)
        said = [(key, op.attributes[key]) for key in op.attributes if key != "fastmath"]
        settings = ", ".join([f"{key} = {attribute}" for key, attribute in said])
        return self.frame.op(name, settings, operands, kind)

    def _value(self, value: ir.Value) -> Value:
        known = constant_of(value)
        if known is None:
            return self.values[value]
        literal = str(known).rpartition(" : ")[0] or str(known)
        return self.writer.literal(literal, _kind(value))

    def _address(self, memref: ir.Value, indices: Sequence[ir.Value]) -> tuple[Value, str]:
        """Return the address of an element, and its type."""
        writer, place = self.writer, self.found.buffers.place(memref)
        offset: Value | None = None
        for index, stride in zip(indices, place.strides):
            part = writer.times(self._value(index), stride)
            offset = part if offset is None else writer.plus(offset, part)
        kind, pointer = str(place.element), writer[f"p{self._numbers[memref]}"]
        return (pointer if offset is None else writer.offset(pointer, offset, stored(kind))), kind


def _kind(value: ir.Value) -> str:
    """Return the type that a number has in the kernel."""
    return "i64" if isinstance(value.type, ir.IndexType) else str(value.type)


def _width(kind: str) -> int:
    return int(kind[1:])


def _loops(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the loops of an op, itself first."""
    if op.name == "scf.for":
        yield op
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield from _loops(view.operation)


def _bounds(loop: ir.Operation) -> tuple[int, int, int] | None:
    """Return start, step and end of a loop; None where the program finds them."""
    start, end, step = [constant_of(v) for v in list(loop.operands)[:3]]
    if start is None or end is None or step is None:
        return None
    return start.value, step.value, end.value


def _size(loop: ir.Operation) -> int:
    start, step, end = _bounds(loop) or (0, 1, 1)
    return max(0, -(-(end - start) // step))
