"""Put device kernels and their launches in the place of loop nests, and say which stream runs what.

`device_program` is what to-gpu does; host code is written from what it leaves (gpu/host/emit.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.ops import terminator
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.steps import Root, Step
from meshweave.lowering.gpu import device_ops
from meshweave.lowering.gpu.facts import facts_of, start_alignment
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.families.cublaslt import LibraryProduct
from meshweave.lowering.gpu.families.pieces import SCRATCH
from meshweave.lowering.gpu.families.serial import serial
from meshweave.lowering.gpu.host.access_sets import JOIN, OPERATION, StreamAccesses, forks, role_of
from meshweave.lowering.gpu.host.exchange import copies_kernel
from meshweave.lowering.gpu.host.streams import Point, planned
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.gpu.writer import GLOBAL
from meshweave.lowering.host.functions import name_of
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.host.program_op import CHIP, program_op
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import Entry, KernelUnit
from meshweave.transforms.base import copied, functions, walk


@dataclass(frozen=True)
class DeviceProgram:
    """Hold a program with its kernels. texts: by number, the code of those that `module` has the signature of alone."""

    module: ir.Module
    texts: dict[int, str]


def device_program(
    program: LoweredProgram, target: Target, *, bodies: bool = True
) -> DeviceProgram:
    """Return a program for a gpu, with launches of kernels; `program` is left as it is.

    bodies: whether the module is whole. Without, what code generation needs the text of is not parsed for it.
    """
    module = copied(program.module)
    writer = _ProgramWriter(program, target, _Twins(program.module, module))
    entries = {name_of(f): f.operation.regions[0].blocks[0] for f in functions(module)}
    for number, body in enumerate(program.bodies):
        _FunctionWriter(writer, body.plan, number, entries[body.name]).write()
    for view in list(module.body.operations):
        if view.operation.name == "mw.kernel":
            view.operation.erase()
    device_ops.write_kernels(module, writer.kernels, bodies)
    described = program_op(module)
    assert described is not None, "a planned module has its mw.program"
    described.attributes[CHIP] = ir.StringAttr.get(target.chip)
    texts = {} if bodies else {k: kernel.text for k, kernel in enumerate(writer.kernels)}
    return DeviceProgram(module, texts)


class _Twins:
    """Find the ops and values of a module in a copy of it."""

    def __init__(self, module: ir.Module, copy: ir.Module) -> None:
        self.ops: dict[ir.Operation, ir.Operation] = {}
        self.values: dict[ir.Value, ir.Value] = {}
        for op, twin in zip(_host_ops(module), _host_ops(copy), strict=True):
            self.ops[op] = twin
            self.values.update(zip(op.results, twin.results, strict=True))
            for region, other in zip(op.regions, twin.regions, strict=True):
                for block, same in zip(region.blocks, other.blocks, strict=True):
                    self.values.update(zip(block.arguments, same.arguments, strict=True))


def _host_ops(module: ir.Module) -> Iterator[ir.Operation]:
    for view in module.body.operations:
        if view.operation.name == "func.func":
            yield from walk(view.operation)


class _ProgramWriter:
    """Hold what functions of a program share: kernels, each made once; streams, in the order of their first use."""

    def __init__(self, program: LoweredProgram, target: Target, twins: _Twins) -> None:
        self.program, self.twins = program, twins
        self.chosen = families.Chosen(target)
        self.kernels = self.chosen.kernels
        self.forking = set[int]()  # the functions that use several streams
        self.streams = {0: 0}
        self._copies = -1

    def copies(self) -> int:
        """Return the number of the kernel that copies for exchanges."""
        if self._copies < 0:
            self._copies = len(self.kernels)
            self.kernels.append(copies_kernel())
        return self._copies


class _FunctionWriter:
    """Rewrite the copy of one function."""

    def __init__(
        self, writer: _ProgramWriter, plan: FunctionPlan, number: int, entry: ir.Block
    ) -> None:
        """Plan its streams. number: of the function in the program; entry: the first block of the copy."""
        self._entry = entry
        self.program, self.plan, self.twins = writer, plan, writer.twins
        self._called = plan is not writer.program.plan
        self._points: Iterator[Point] | None = None  # where streams fork
        if forks(plan, writer.forking):
            self._points = iter(planned(StreamAccesses(plan, writer.forking).ops()))
            writer.forking |= {number} if self._called else set()
        self._stream = 0  # that is launched on
        self._constants: dict[tuple[int, str], ir.Value] = {}

    def write(self) -> None:
        """Write the launches, and the orders to streams between them."""
        self._block(self.plan.entries, self._entry)

    def _block(self, entries: Sequence[Entry], block: ir.Block | None) -> None:
        """Rewrite a block; None: an else that is not there."""
        self._meet(None if block is None else OpBuilder.before(block.operations[0].operation))
        for entry in entries:
            self._write(entry)
        self._meet(None if block is None else OpBuilder.before(terminator(block)))

    def _write(self, entry: Entry) -> None:
        role = role_of(entry, self.program.forking)
        op = self._op(entry)
        if role == OPERATION:
            before, after = self._orders()
            _say(before, OpBuilder.before(op))
            _say(after, OpBuilder.after(op))
            if isinstance(entry, KernelUnit):
                self._unit(entry, op)
                op.erase()
            elif entry.what == "collective":
                self._collective(entry, op)
        elif isinstance(entry, Step) and self._serial(entry, op):
            op.erase()
        elif role == JOIN and isinstance(entry, Step):
            self._meet(OpBuilder.before(op))
            for region, body in zip(op.regions, entry.bodies):
                self._block(body, region.blocks[0] if len(region.blocks) else None)
            self._meet(OpBuilder.after(op))

    def _op(self, entry: Entry) -> ir.Operation:
        """Return the op of an entry, in the copy."""
        if not isinstance(entry, KernelUnit):
            return self.twins.ops[entry.op]
        op = self.twins.ops[entry.steps[0].op]
        parent = op.parent.operation
        return parent if parent.name == "mw.fuse" else op

    # Streams.

    def _orders(self) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Return what is said to streams before the next operation, and after it."""
        if self._points is None:
            return [], []
        point = next(self._points)
        before = []
        if point.stream != self._stream:
            streams = self.program.streams
            before.append(("mw.stream", streams.setdefault(point.stream, len(streams))))
            self._stream = point.stream
        before += [("mw.await", event) for event in point.waits]
        return before, [("mw.record", point.record)] if point.record >= 0 else []

    def _meet(self, b: OpBuilder | None) -> None:
        """Write the orders where all streams meet. None: in an else that is not there."""
        before, after = self._orders()
        if b is not None:
            _say([*before, *after], b)

    # Launches.

    def _unit(self, unit: KernelUnit, op: ir.Operation) -> None:
        """Write the launches of a unit before `op`. Parts of it share its pointers."""
        operands = [value for step in unit.steps for value in step.op.operands]
        facts = facts_of(unit, self.plan, self._start)
        for part, known in families.launches_of(unit, self.program.chosen.target, facts):
            made, b = self.program.chosen.of(part, known), OpBuilder.before(op)
            launch = OpBuilder(b.ip, part.steps[0].op.location)
            places, scalars = part.pointers.places, part.pointers.scalars
            if isinstance(made, LibraryProduct):
                used = (made.a, made.b, made.d)
                addresses = [self._pointer(*places[k], operands, b) for k in used]
                spare = self.program.chosen.spare(made)
                symbol = device_ops.kernel_symbol(spare, self.program.kernels[spare])
                device_ops.product(launch, made.info, addresses, symbol)
                continue
            kernel = self.program.kernels[made]
            given = [self._pointer(*place, operands, b) for place in places]
            types = kernel.parameters[len(given) :]
            given += [self._number(*pair, b) for pair in zip(scalars, types, strict=True)]
            self._launch(made, given, launch)

    def _serial(self, step: Step, op: ir.Operation) -> bool:
        """Launch loops over single elements as a kernel before `op`, if they are that; where streams fork they stay."""
        loops = None
        if op.name == "scf.for" and self._points is None:
            loops = serial(step.op, self.plan.buffers)
        if loops is None:
            return False
        kernel, b = loops.kernel, OpBuilder.before(op)
        number = self.program.chosen.number(kernel)
        given = []
        for value in loops.memrefs:
            place = self.plan.buffers.place(value)
            given.append(self._pointer(place.root, place.offset, place.width, [value], b))
        types = kernel.parameters[len(given) :]
        given += [self._number(*pair, b) for pair in zip(loops.numbers, types, strict=True)]
        self._launch(number, given, b)
        return True

    def _launch(self, number: int, given: Sequence[ir.Value], b: OpBuilder) -> None:
        """Launch a kernel by its number."""
        kernel = self.program.kernels[number]
        sizes = [self._constant(size) for size in (*kernel.grid, *kernel.block)]
        shared = [self._constant(kernel.shared_bytes, "i32")] if kernel.shared_bytes else []
        device_ops.launch(b, device_ops.kernel_symbol(number, kernel), sizes, shared, given)

    def _pointer(
        self,
        root: Root,
        offset: Linear,
        nbytes: int,
        operands: Sequence[ir.Value],
        b: OpBuilder,
    ) -> ir.Value:
        """Return the address of an element: of scratch memory, or relative to one of `operands` in the same buffer."""
        if root.kind == SCRATCH:
            type_ = ir.Type.parse(GLOBAL)
            return b.one("mw.scratch", type_, first=i64(root.offset), nbytes=i64(root.nbytes))
        source = next(v for v in operands if self._lies_in(v, root, nbytes))
        form = offset.plus(self.plan.buffers.place(source).offset.scaled(-1))
        values = [self.plan.buffers.symbols.values[-1 - dim] for dim, _ in form.terms]
        local = Linear(form.const, tuple((-1 - k, by) for k, (_, by) in enumerate(form.terms)))
        map_ = ir.AffineMap.get(0, len(values), [linear.to_expr(local)])
        twins = [self.twins.values[value] for value in (source, *values)]
        return b.one("mw.address", ir.Type.parse(GLOBAL), *twins, map=ir.AffineMapAttr.get(map_))

    def _lies_in(self, value: ir.Value, root: Root, nbytes: int) -> bool:
        """Tell whether a value is a buffer in the memory of `root` with elements of `nbytes`."""
        place = self.plan.buffers.places.get(value)
        return place is not None and place.root is root and place.width == nbytes

    def _number(self, value: ir.Value, type_: str, b: OpBuilder) -> ir.Value:
        """Return a number in the type that a kernel takes."""
        twin = self.twins.values[value]
        if str(value.type) == type_:
            return twin
        cast = "arith.index_cast" if isinstance(value.type, ir.IndexType) else "arith.extui"
        return b.one(cast, ir.Type.parse(type_), twin)

    def _constant(self, value: int, type_: str = "index") -> ir.Value:
        """Return a size of launches, written once in each function, at its beginning."""
        if (value, type_) not in self._constants:
            b = OpBuilder(ir.InsertionPoint.at_block_begin(self._entry), ir.Location.unknown())
            self._constants[value, type_] = b.integer(value, ir.Type.parse(type_))
        return self._constants[value, type_]

    # Exchanges.

    def _collective(self, step: Step, op: ir.Operation) -> None:
        """Name the kernel that an exchange copies with."""
        if self.program.program.collectives.calls[step.number].exchange < 0:
            return
        number = self.program.copies()
        kernel = self.program.kernels[number]
        op.attributes[device_ops.COPIES] = device_ops.kernel_symbol(number, kernel)

    def _start(self, root: Root) -> int:
        """Return the alignment of a buffer: a function that is called may be given any."""
        given = self._called and root.kind in ("input", "output")
        return 1 if given else start_alignment(root)


def _say(orders: Sequence[tuple[str, int]], b: OpBuilder) -> None:
    """Write orders to streams."""
    for name, number in orders:
        b.op(name, **{"number" if name == "mw.stream" else "event": i64(number)})
