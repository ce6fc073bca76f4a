"""Write the host code of a gpu program: its step function, with launches, device memory and streams.

It is written from what to-gpu leaves, by the emitter of every target (lowering/host/emit.py):
constants lie in device memory, and single elements are fetched. `HostCode` gathers what the step
needs of the device: its kernels, library products and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from meshweave.abi import ALIGNMENT, Slots, StatusRow, TraceBuffer
from meshweave.bundle import OpInfo
from meshweave.device import GemmInfo, GemmRecord, GpuTable
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.lowering.buffers.constants import constant_buffers
from meshweave.lowering.buffers.steps import MemrefPlace, Root, Step
from meshweave.lowering.communication.calls import Call
from meshweave.lowering.gpu import device_ops
from meshweave.lowering.gpu.device_ops import LaunchShape, kernel_number, launch_shape, read_product
from meshweave.lowering.gpu.families.spare import SPARE_THREADS, spare_blocks, spare_numbers
from meshweave.lowering.gpu.host.calls import PRIVATE, HostFunction, declarations, recording
from meshweave.lowering.gpu.host.nccl import EVENTS, WAIT
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import GLOBAL
from meshweave.lowering.host.branches import type_text
from meshweave.lowering.host.emit import Code, Emitter
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.nests.rows import KernelUnit

MOST_OPS = (1 << 15) - 1  # that a code can tell
_PTR = "!llvm.ptr"
_FETCH, _PUT, _NOTE = "mw_fetch", "mw_put", "mw_note"


class Constants:
    """Hold the constants of a program as one block: each begins at a multiple of ALIGNMENT."""

    def __init__(self, buffers: Mapping[str, bytes]) -> None:
        self._buffers = buffers
        self._places: dict[bytes, int] = {}
        self._block = bytearray()

    def place(self, name: str) -> int:
        """Return where the constant begins, in bytes; equal ones are there once."""
        return self.put(self._buffers[name])

    def put(self, data: bytes) -> int:
        """Add these bytes, if they are new; return where they begin."""
        if data not in self._places:
            self._block += bytes(-len(self._block) % ALIGNMENT)
            self._places[data] = len(self._block)
            self._block += data
        return self._places[data]

    @property
    def block(self) -> bytes:
        """Return all of them."""
        return bytes(self._block)


class HostCode(Code):
    """Hold the step's module, and what it needs of the device.

    kernels: with the place in the source that each was made for first. gemms: products by the
    library. device: the constants. ops: what the codes that it returns mean. waits: whether the
    host waits for the device somewhere in a step. streams: how many compute; crossings: events
    between them. scratch_bytes: of each stream, for parts of results.
    """

    def __init__(self, program: LoweredProgram, texts: Mapping[int, str]) -> None:
        """Begin the module. texts: see `device_ops.read_kernels`."""
        super().__init__(program.slots, program.collectives.calls, _unnamed, {}, HostEmitter)
        self.program = program
        self.device = Constants(constant_buffers(program.module))
        self.ops = list(program.collectives.ops)
        self.kernels = device_ops.read_kernels(program.module, texts)
        self.gemms: list[GemmInfo] = []
        self.waits = False
        early = [number for number, call in enumerate(self.calls) if call.early]
        self.events = {number: event for event, number in enumerate(early, EVENTS)}
        self.streams, self.crossings = 1, 0
        self.scratch_bytes = 0
        self._launches: dict[tuple[int, LaunchShape] | GemmInfo, Launch] = {}
        self._op_ids: dict[tuple[str, str], int] = {}

    def launch(self, op: ir.Operation) -> Launch:
        """Return the function that does what a gpu.launch_func says."""
        number, shape = kernel_number(op.attributes["kernel"]), launch_shape(op)
        kernel, symbol = self.kernels[number].kernel, f"mw_launch_{number}"
        if (number, shape) not in self._launches:
            if symbol in [launch.symbol for launch in self._launches.values()]:
                symbol = f"{symbol}_{len(self._launches)}"
            self._launches[number, shape] = Launch(
                symbol, kernel.entry, lambda t: launcher(symbol, kernel, shape, t, number)
            )
        return self._launches[number, shape]

    def product(self, op: ir.Operation) -> Launch:
        """Return the function that has the library do an mw.product."""
        info, spare = read_product(op), kernel_number(op.attributes[device_ops.SPARE])
        if info not in self._launches:
            number = len(self.gemms)
            self.gemms.append(info)
            sizes = "x".join(str(n) for n in (info.batch, info.m, info.n, info.k) if n != 1)
            symbol, name = f"mw_product_{len(self._launches)}", f"cublaslt {sizes} {info.dtype}"
            self._launches[info] = Launch(
                symbol, name, lambda t: multiplier(symbol, info, t, number, spare)
            )
        return self._launches[info]

    def op_id(self, name: str, where: str) -> int:
        """Return the number of an op that is not a collective.

        Beyond the last that a code can tell, all are that one.
        """
        key = (name, where)
        if key not in self._op_ids:
            number = len(self.ops) + 1
            if number > MOST_OPS:
                return MOST_OPS
            self.ops.append(OpInfo(number, name, where))
            self._op_ids[key] = number
        return self._op_ids[key]

    def text_with(self, table: GpuTable) -> str:
        """Return the module, when all functions are written. table: where the handles of the device are."""
        functions = [launch.write(table) for launch in self._launches.values()]
        functions += element_functions() if self.waits else []
        functions += [note_function()] if _NOTE in self.called else []
        functions += fork_functions(table) if self.streams > 1 else []
        called = {symbol for function in functions for symbol in function.called}
        return declarations(called) + self.text() + "".join(f.text() for f in functions)


def _unnamed(unit: KernelUnit) -> str:
    raise CompileError(f"a loop nest at {unit.where}: to-gpu makes kernels of them, and runs first")


class Launch(NamedTuple):
    """Name a function of host code that launches something.

    symbol: its own; name: of what it launches; write: gives the function, once it is known where the
    handles are.
    """

    symbol: str
    name: str
    write: Callable[[GpuTable], HostFunction]


class HostEmitter(Emitter):
    """Write the blocks of one function; `code` is a `HostCode`."""

    code: HostCode

    def _scalar(self, step: Step) -> None:
        if step.what == "gpu.launch_func":
            self._launch(step, self.code.launch(step.op))
        elif step.what == "mw.product":
            self._launch(step, self.code.product(step.op))
        elif step.what in _ORDERS:
            self._order(step)
        elif step.what == "mw.scratch":
            self._find_scratch(step.op)
        elif step.what != "arith.constant" or not _is_size(step.op):
            super()._scalar(step)

    def _launch(self, step: Step, launch: Launch) -> None:
        given, types = ["%ctx"], [_PTR]
        for value in step.operands:
            if isinstance(value, MemrefPlace):
                given.append(self._place(value))
                types.append(_PTR)
            else:
                given.append(self._value(value))
                types.append(_PTR if str(value.type) == GLOBAL else type_text(value.type))
        where = location_text(step.op.location)
        what = TraceBuffer.KERNEL + self.code.mark(launch.name, where)
        self._mark(what)
        self._own(launch.symbol, given, types, self.code.op_id(launch.name, where))
        self._mark(what)

    def _find_scratch(self, op: ir.Operation) -> None:
        """Read where the stream's scratch memory is."""
        first, nbytes = op.attributes["first"].value, op.attributes["nbytes"].value
        self.code.scratch_bytes = max(self.code.scratch_bytes, first + nbytes)
        self._values[op.results[0]] = self._behind(self._handle(GpuTable.WORKSPACE), first)

    def _order(self, step: Step) -> None:
        """Choose a stream, or an event between streams."""
        function, key = _ORDERS[step.what]
        number = step.op.attributes[key].value
        if function == ON:
            self.code.streams = max(self.code.streams, number + 1)
        else:
            self.code.crossings = max(self.code.crossings, number + 1)
            number += EVENTS + len(self.code.events)
        op_id = self.code.op_id("order of streams", "the program")
        self._own(function, ["%ctx", self.i64(number)], [_PTR, "i64"], op_id)

    def _mark(self, what: int) -> None:
        if what != TraceBuffer.NOTHING:
            self._note(what, GpuTable.COMPUTE)

    def _marked(self, call: Call, half: int) -> None:
        ahead = half == StatusRow.START and call.exchange < 0
        self._note(call.op_id + half, GpuTable.COMM if ahead else GpuTable.COMPUTE)

    def _note(self, what: int, stream: int) -> None:
        """Mark where a stream is: before an op and behind it."""
        given = ["%ctx", self.i64(what), self.i64(stream)]
        op_id = self.code.op_id("a trace", "the program")
        self._own(_NOTE, given, [_PTR, "i64", "i64"], op_id)

    # Collectives.

    def start(self, step: Step) -> None:
        call, event = self.code.calls[step.number], self.code.events[step.number]
        given = [*self._arguments(step, call), (self.i64(event), "i64")]
        self._collective(call, f"{call.symbol}_start", given, StatusRow.START)

    def wait(self, step: Step) -> None:
        call, event = self.code.calls[step.number], self.code.events[step.number]
        if call.exchange < 0:  # an exchange has ended where it was started
            given = [("%ctx", _PTR), (self.i64(event), "i64")]
            self._collective(call, WAIT, given, StatusRow.WAIT)

    def _arguments(self, step: Step, call: Call) -> list[tuple[str, str]]:
        given = super()._arguments(step, call)
        if call.exchange < 0:
            return given
        if device_ops.COPIES not in step.op.attributes:
            raise CompileError(
                f"{call.symbol}: to-gpu names the kernel that copies, and runs first"
            )
        number = kernel_number(step.op.attributes[device_ops.COPIES])
        return [*given, (self.i64(GpuTable(0, 0, 0).function(number)), "i64")]

    def _constant(self, root: Root) -> str:
        place = self.code.device.place(root.value.owner.attributes["name"].value)
        return self._behind(self._handle(GpuTable.CONSTANTS), place)

    def _handle(self, slot: int) -> str:
        """Read a pointer from the table of the device."""
        at = self._behind(self._slot(self.slots.private), 8 * slot)
        return self.let(f"llvm.load {at} : {_PTR} -> {_PTR}")

    # Single elements go through a few bytes of memory that host and device both reach.

    def load(self, step: Step) -> None:
        self._through(step, step.operands[0], step.operands[1:])

    def store(self, step: Step) -> None:
        self._through(step, step.operands[1], step.operands[2:])

    def _through(self, step: Step, place: MemrefPlace, indices: list[Any]) -> None:
        fetched = step.what == "memref.load"
        kind = type_text(place.element)
        memory = "i8" if kind == "i1" else kind
        address, nbytes = self._element(place, indices), self.i64(place.width)
        cell = self._handle(GpuTable.HOST)
        if not fetched:
            value = self._value(step.operands[0])
            value = self.let(f"llvm.zext {value} : i1 to i8") if kind == "i1" else value
            self.lines.append(f"llvm.store {value}, {cell} : {memory}, {_PTR}")
        self.code.waits, where = True, location_text(step.op.location)
        name = _FETCH if fetched else _PUT
        what = TraceBuffer.KERNEL + self.code.mark("copy", where)
        self._mark(what)
        self._own(
            name, ["%ctx", address, nbytes], [_PTR, _PTR, "i64"], self.code.op_id(step.what, where)
        )
        self._mark(what)
        if fetched:
            value = self.let(f"llvm.load {cell} : {_PTR} -> {memory}")
            value = self.let(f"llvm.trunc {value} : i8 to i1") if kind == "i1" else value
            self._values[step.op.results[0]] = value


def element_functions() -> list[HostFunction]:
    """Return `mw_fetch` and `mw_put`, which copy an element between device memory and the host's cell.

    The host waits until it is there.
    """
    functions = []
    for name, call in ((_FETCH, "cuMemcpyDtoHAsync_v2"), (_PUT, "cuMemcpyHtoDAsync_v2")):
        f = HostFunction(name, [("%address", _PTR), ("%nbytes", "i64")])
        cell, stream = f.table(GpuTable.HOST), f.table(GpuTable.COMPUTE)
        ends = (cell, "%address") if name == _FETCH else ("%address", cell)
        f.call(call, *ends, "%nbytes", stream)
        f.call("cuStreamSynchronize", stream)
        functions.append(f)
    return functions


def note_function() -> HostFunction:
    """Return `mw_note`, which records the next event of a trace behind what a stream has been given.

    It looks at one word of the status row where nobody traces. See `abi.TraceBuffer`.
    """
    f = HostFunction(_NOTE, [("%what", "i64"), ("%stream", "i64")])
    buffer = f.word(f.word("%ctx", Slots(0, 0, 0, 0).status, _PTR), StatusRow.TRACE, _PTR)
    address = f.let(f"llvm.ptrtoint {buffer} : {_PTR} to i64")
    with f.when(f.let(f'llvm.icmp "ne" {address}, {f.number(0)} : i64')):
        count = f.word(buffer, TraceBuffer.COUNT)
        f.store(f.plus(count, 1), "i64", f.at(buffer, TraceBuffer.COUNT))
        room = f.word(buffer, TraceBuffer.ROOM)
        with f.when(f.let(f'llvm.icmp "slt" {count}, {room} : i64')):
            place = f.plus(f.let(f"llvm.add {count}, {count} : i64"), TraceBuffer.HEAD)
            f.store("%what", "i64", f.at(buffer, f.plus(place, 1)))
            f.call("cuEventRecord", f.word(buffer, place, _PTR), f.table("%stream"))
    return f


ON, RECORD, AWAIT = "mw_on", "mw_record", "mw_await"


def fork_functions(table: GpuTable) -> list[HostFunction]:
    """Return the functions that choose compute streams, and the events between them. table: where the handles are.

    The table's compute stream and workspace are those that everything else launches with: `mw_on` puts
    another stream's there. A program that uses one stream has none of this.
    """
    on, record = HostFunction(ON, [("%stream", "i64")]), recording(RECORD, table, table.COMPUTE)
    for slot, first in ((table.COMPUTE, table.stream(0)), (table.WORKSPACE, table.workspace(0))):
        value = on.table(on.plus("%stream", first))
        on.store(value, _PTR, on.at(on.word("%ctx", PRIVATE, _PTR), slot))
    wait = HostFunction(AWAIT, [("%event", "i64")])
    event = wait.table(wait.plus("%event", table.event(0)))
    wait.call("cuStreamWaitEvent", wait.table(table.COMPUTE), event, wait.number(0, "i32"))
    return [on, record, wait]


_ORDERS = {
    "mw.stream": (ON, "number"), "mw.record": (RECORD, "event"), "mw.await": (AWAIT, "event"),
}  # fmt: skip


def _is_size(op: ir.Operation) -> bool:
    """Tell whether a constant is the size of launches, and nothing else."""
    uses = list(op.results[0].uses)
    return bool(uses) and all(use.owner.operation.name == "gpu.launch_func" for use in uses)


def launcher(
    symbol: str, kernel: DeviceKernel, shape: LaunchShape, table: GpuTable, number: int
) -> HostFunction:
    """Return the function that launches kernel `number` on the pointers and numbers it is given.

    A launch of no threads is none.
    """
    types = [_PTR if parameter == "ptr" else parameter for parameter in kernel.parameters]
    pointers = kernel.parameters.count("ptr")
    names = [f"%p{k}" if k < pointers else f"%s{k - pointers}" for k in range(len(types))]
    f = HostFunction(symbol, list(zip(names, types)))
    if 0 in shape.grid:
        return f
    cells = f.cells(list(zip(names, types)))
    sizes = [f.number(n, "i32") for n in (*shape.grid, *shape.block, shape.shared_bytes)]
    f.launch(table.function(number), sizes, cells)
    return f


def multiplier(
    symbol: str, info: GemmInfo, table: GpuTable, number: int, spare: int
) -> HostFunction:
    """Return the function that has the library do product `number` on the pointers to A, B and D.

    To the library each matrix is its transpose, by columns: it makes D' = B' A'. Where it has no algorithm, kernel
    `spare` is launched.
    """
    a, b, d = "%p0", "%p1", "%p2"
    f = HostFunction(symbol, [(a, _PTR), (b, _PTR), (d, _PTR)])
    scale = "f64" if info.dtype == "f64" else "f32"
    factors = []
    for factor in (1.0, 1.0 if info.accumulate else 0.0):
        factors.append(f.stack(scale))
        f.store(f.let(f"llvm.mlir.constant({factor} : {scale}) : {scale}"), scale, factors[-1])
    record = f.table(table.gemm(number))
    desc, layout_a, layout_b, layout_d, algorithm = (
        f.word(record, k, _PTR)
        for k in (GemmRecord.DESC, GemmRecord.A, GemmRecord.B, GemmRecord.D, GemmRecord.ALGORITHM)
    )
    none = f.let(f"llvm.mlir.zero : {_PTR}")
    with f.when(f.let(f'llvm.icmp "ne" {algorithm}, {none} : {_PTR}')):
        given = [f.table(table.LT), desc, factors[0], b, layout_b, a, layout_a]
        given += [factors[1], d, layout_d, d, layout_d, algorithm]
        nbytes = f.word(f.word("%ctx", PRIVATE, _PTR), table.WORKSPACE_BYTES)
        f.call("cublasLtMatmul", *given, f.table(table.WORKSPACE), nbytes, f.table(table.COMPUTE))
    with f.when(f.let(f'llvm.icmp "eq" {algorithm}, {none} : {_PTR}')):
        numbers = [(f.number(n), "i64") for n in spare_numbers(info)]
        cells = f.cells([(a, _PTR), (b, _PTR), (d, _PTR), *numbers])
        sizes = [f.number(n, "i32") for n in (spare_blocks(info), 1, 1, SPARE_THREADS, 1, 1, 0)]
        f.launch(table.function(spare), sizes, cells)
    return f
