"""Host code of target gpu: the step function of every target (emit.py), where kernels are launches,
constants lie in device memory, and single elements are fetched.

`HostCode` gathers what the step needs of the device: its kernels, library products, constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, NamedTuple

from meshweave.abi import ALIGNMENT
from meshweave.bundle import OpInfo
from meshweave.device import GemmInfo, GemmRecord, GpuTable
from meshweave.layout.mesh import Mesh
from meshweave.locations import location_text
from meshweave.lowering.branches import type_text
from meshweave.lowering.constants import constant_buffers
from meshweave.lowering.emit import Call, Code, Emitter
from meshweave.lowering.gpu import families
from meshweave.lowering.gpu.calls import PRIVATE, HostFunction, declarations
from meshweave.lowering.gpu.cublaslt import LibraryProduct, library_product
from meshweave.lowering.gpu.exchange import (
    Part,
    copies_kernel,
    depth_of,
    parts_of,
    table_of,
    unit_of,
)
from meshweave.lowering.gpu.facts import Facts, facts_of, start_alignment
from meshweave.lowering.gpu.forks import AWAIT, ON, RECORD, fork_functions
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nccl import EVENTS, WAIT
from meshweave.lowering.gpu.streams import Point, planned
from meshweave.lowering.gpu.touched import JOIN, OPERATION, Touched, forks, role_of
from meshweave.lowering.program import Program
from meshweave.lowering.rows import Unit
from meshweave.lowering.steps import Place, Root, Step

MOST_OPS = (1 << 15) - 1  # that a code can tell
_PTR = "!llvm.ptr"
_EXCHANGE = "mw_exchange"
_FETCH, _PUT = "mw_fetch", "mw_put"


class Constants:
    """The constants of a program as one block: each begins at a multiple of ALIGNMENT."""

    def __init__(self, buffers: Mapping[str, bytes]) -> None:
        self._buffers = buffers
        self._places: dict[bytes, int] = {}
        self._block = bytearray()

    def place(self, name: str) -> int:
        """Where the constant begins, in bytes; equal ones are there once."""
        return self.put(self._buffers[name])

    def put(self, data: bytes) -> int:
        """The same, of these bytes."""
        if data not in self._places:
            self._block += bytes(-len(self._block) % ALIGNMENT)
            self._places[data] = len(self._block)
            self._block += data
        return self._places[data]

    @property
    def block(self) -> bytes:
        """All of them."""
        return bytes(self._block)


class HostCode(Code):
    """The step's module, and what it needs of the device.

    kernels: with the place in the source that each was made for first. gemms: products by the
    library. device: the constants. ops: what the codes that it returns mean. waits: whether the
    host waits for the device somewhere in a step. streams: of each number of a compute stream its
    place in the table; forking: functions that use several; crossings: events between them.
    """

    def __init__(self, program: Program, target: Target) -> None:
        super().__init__(program.slots, program.collectives.calls, _unnamed, {}, HostEmitter)
        self.program, self.target = program, target
        self.device = Constants(constant_buffers(program.module))
        self.ops = list(program.collectives.ops)
        self.kernels: list[tuple[DeviceKernel, str]] = []
        self.gemms: list[GemmInfo] = []
        self.waits = False
        self.events = {k: n for n, k in enumerate(_early(self.calls), EVENTS)}
        self.streams, self.forking, self.crossings = {0: 0}, set[int](), 0
        self._copies: dict[int, int] = {}
        self._launches: dict[Any, Launch] = {}
        self._op_ids: dict[tuple[str, str], int] = {}

    def launch(self, unit: Unit, facts: Facts) -> Launch:
        """The function that does what `unit` does, and the kernel for it, made when it is new."""
        key = families.key_of(unit, facts)
        if key not in self._launches:
            self._launches[key] = self._launch(unit, facts)
        return self._launches[key]

    def _launch(self, unit: Unit, facts: Facts) -> Launch:
        product = library_product(unit, self.target, facts)
        if product is not None:
            return self._product(product, len(unit.pointers.places))
        scalars = tuple(type_text(s.type) for s in unit.pointers.scalars)
        kernel = families.build(unit, self.target, facts)
        self.kernels.append((kernel, unit.where))
        number = len(self.kernels) - 1
        symbol = f"mw_launch_{number}"
        return Launch(symbol, kernel.entry, lambda t: launcher(symbol, kernel, scalars, t, number))

    def _product(self, product: LibraryProduct, pointers: int) -> Launch:
        info = product.info
        if info not in self.gemms:
            self.gemms.append(info)
        number, symbol = self.gemms.index(info), f"mw_product_{len(self._launches)}"
        sizes = "x".join(str(n) for n in (info.batch, info.m, info.n, info.k) if n != 1)
        name = f"cublaslt {sizes} {info.dtype}"
        return Launch(symbol, name, lambda t: multiplier(symbol, product, pointers, t, number))

    def copies(self, unit: int) -> int:
        """The slot of the kernel that copies in units of so many bytes."""
        if unit not in self._copies:
            self._copies[unit] = len(self.kernels)
            self.kernels.append((copies_kernel(unit), "an exchange"))
        return GpuTable(0, 0, 0).function(self._copies[unit])

    def parts(self, call: Call) -> list[Part]:
        """What each rank does in an exchange."""
        axes = self.program.collectives.groups[call.group] if call.symbol == _EXCHANGE else ()
        mesh = Mesh.parse(self.program.mesh)
        own = [mesh.group(axes, r).index(r) if axes else 0 for r in range(mesh.nranks)]
        return parts_of(call.data, own)

    def op_id(self, name: str, where: str) -> int:
        """The number of an op that is not a collective. Beyond the last that a code can tell, all
        are that one.
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
        """The module, when all functions are written; table: where the handles of the device are."""
        functions = [launch.write(table) for launch in self._launches.values()]
        functions += element_functions() if self.waits else []
        functions += fork_functions(table) if len(self.streams) > 1 else []
        called = {symbol for function in functions for symbol in function.called}
        return declarations(called) + self.text() + "".join(f.text() for f in functions)


def _early(calls: Sequence[Call]) -> list[int]:
    """The numbers of the calls that are started before they are waited for."""
    return [number for number, call in enumerate(calls) if call.early]


def _unnamed(unit: Unit) -> str:
    raise AssertionError("kernels of this target are launched")


class Launch(NamedTuple):
    """A function of host code that does a unit. symbol: its own; name: of what it launches; write:
    gives the function, once it is known where the handles are.
    """

    symbol: str
    name: str
    write: Callable[[GpuTable], HostFunction]


class HostEmitter(Emitter):
    """Writes the blocks of one function; `code` is a `HostCode`."""

    _points: Iterator[Point] | None = None  # what is done around each operation, where streams fork
    _stream = 0  # that is launched on

    def text(self, indices: list[tuple[Any, int]], number: int | None) -> str:
        """The function; see Code.add."""
        if forks(self.schedule, self.code.forking):
            points = planned(Touched(self.schedule, self.code.forking).ops())
            self._points = iter(points)
            self.code.forking |= {number} if number is not None else set()
            self.code.crossings = max([self.code.crossings, *(p.record + 1 for p in points)])
        return super().text(indices, number)

    def _entries(self, entries: list[Any]) -> None:
        if self._points is None:
            return super()._entries(entries)
        self._around([])
        for entry in entries:
            role = role_of(entry, self.code.forking)
            if role == OPERATION:
                self._around([entry])
                continue
            if role == JOIN:
                self._around([])
            super()._entries([entry])
            if role == JOIN:
                self._around([])
        self._around([])

    def _around(self, entries: list[Any]) -> None:
        """Entries that are one operation, on its stream, between the events that it needs."""
        point = next(self._points)
        if point.stream != self._stream:
            self._order(ON, self.code.streams.setdefault(point.stream, len(self.code.streams)))
            self._stream = point.stream
        first = EVENTS + len(self.code.events)
        for event in point.waits:
            self._order(AWAIT, first + event)
        super()._entries(entries)
        if point.record >= 0:
            self._order(RECORD, first + point.record)

    def _order(self, function: str, number: int) -> None:
        op_id = self.code.op_id("order of streams", "the program")
        self._own(function, ["%ctx", self.i64(number)], [_PTR, "i64"], op_id)

    def unit(self, unit: Unit) -> None:
        facts = facts_of(unit, self.schedule, self._start)
        for part, known in families.launches_of(unit, self.code.target, facts):
            self._launch(part, known)

    def _launch(self, unit: Unit, facts: Facts) -> None:
        launch = self.code.launch(unit, facts)
        pointers = ["%ctx", *(self._address(*place) for place in unit.pointers.places)]
        scalars = [self._value(s) for s in unit.pointers.scalars]
        types = [_PTR] * len(pointers) + [type_text(s.type) for s in unit.pointers.scalars]
        op_id = self.code.op_id(launch.name, unit.where)
        self._own(launch.symbol, [*pointers, *scalars], types, op_id)

    # Collectives.

    def start(self, step: Step) -> None:
        call, event = self.code.calls[step.number], self.code.events[step.number]
        given = [*self._arguments(step, call), (self.i64(event), "i64")]
        self._collective(call, f"{call.symbol}_start", given)

    def wait(self, step: Step) -> None:
        call, event = self.code.calls[step.number], self.code.events[step.number]
        if not call.data:  # an exchange has ended where it was started
            self._collective(call, WAIT, [("%ctx", _PTR), (self.i64(event), "i64")], again=True)

    def _arguments(self, step: Step, call: Call) -> list[tuple[str, str]]:
        if not call.data:
            return super()._arguments(step, call)
        source, target = step.operands[0], step.outputs[0]
        parts = self.code.parts(call)
        unit = unit_of(parts, gcd(self._alignment(source), self._alignment(target)))
        depth = depth_of(parts)
        table = self._table(table_of(parts, unit, depth, self.code.device.put))
        given = super()._arguments(step, replace(call, data=b""))
        given += [(table, _PTR), (self._scratch(step), _PTR)]
        return [*given, (self.i64(depth), "i64"), (self.i64(self.code.copies(unit)), "i64")]

    def _alignment(self, place: Place) -> int:
        """Of a place, in bytes, as far as it is known: at least that of an element."""
        numbers = [place.offset.const, *(factor for _, factor in place.offset.terms)]
        known = gcd(self._start(place.root), *(n * place.width for n in numbers))
        return max(known, place.width)

    def _start(self, root: Root) -> int:
        """Alignment of a buffer: what others call may be given any."""
        given = self.called and root.kind in ("input", "output")
        return 1 if given else start_alignment(root)

    def _own(self, name: str, arguments: Sequence[str], types: Sequence[str], op_id: int) -> None:
        """Call a function of host code; what it returns is a failure of this op."""
        self.code.called.add(name)
        code = self.let(f"llvm.call @{name}({', '.join(arguments)}) : ({', '.join(types)}) -> i32")
        self._check(code, op_id)

    def _constant(self, root: Root) -> str:
        table = self._slot(self.slots.private)
        at = self.let(f"llvm.getelementptr {table}[{GpuTable.CONSTANTS}] : ({_PTR}) -> {_PTR}, i64")
        block = self.let(f"llvm.load {at} : {_PTR} -> {_PTR}")
        place = self.code.device.place(root.value.owner.attributes["name"].value)
        return self.let(f"llvm.getelementptr {block}[{place}] : ({_PTR}) -> {_PTR}, i8")

    # Single elements go through a few bytes of memory that host and device both reach.

    def load(self, step: Step) -> None:
        self._through(step, step.operands[0], step.operands[1:])

    def store(self, step: Step) -> None:
        self._through(step, step.operands[1], step.operands[2:])

    def _through(self, step: Step, place: Place, indices: list[Any]) -> None:
        fetched = step.what == "memref.load"
        kind = type_text(place.element)
        memory = "i8" if kind == "i1" else kind
        address, nbytes = self._element(place, indices), self.i64(place.width)
        table = self._slot(self.slots.private)
        at = self.let(f"llvm.getelementptr {table}[{GpuTable.HOST}] : ({_PTR}) -> {_PTR}, i64")
        cell = self.let(f"llvm.load {at} : {_PTR} -> {_PTR}")
        if not fetched:
            value = self._value(step.operands[0])
            value = self.let(f"llvm.zext {value} : i1 to i8") if kind == "i1" else value
            self.lines.append(f"llvm.store {value}, {cell} : {memory}, {_PTR}")
        self.code.waits, where = True, location_text(step.op.location)
        name = _FETCH if fetched else _PUT
        self._own(
            name, ["%ctx", address, nbytes], [_PTR, _PTR, "i64"], self.code.op_id(step.what, where)
        )
        if fetched:
            value = self.let(f"llvm.load {cell} : {_PTR} -> {memory}")
            value = self.let(f"llvm.trunc {value} : i8 to i1") if kind == "i1" else value
            self._values[step.op.results[0]] = value


def element_functions() -> list[HostFunction]:
    """`mw_fetch` and `mw_put`: an element between device memory and the cell of the host, which
    waits until it is there.
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


_CELLS = {"ptr": _PTR, "i1": "i8", "index": "i64"}  # parameters whose cell has another type


def launcher(
    symbol: str, kernel: DeviceKernel, scalars: Sequence[str], table: GpuTable, number: int
) -> HostFunction:
    """The function that launches kernel `number` on the pointers and scalars (of these types) it is
    given. A launch of no threads is none.
    """
    given = [(f"%p{k}", _PTR) for k in range(kernel.parameters.count("ptr"))]
    given += [(f"%s{k}", type_) for k, type_ in enumerate(scalars)]
    f = HostFunction(symbol, given)
    if 0 in kernel.grid:
        return f
    cells = f.stack(f"!llvm.array<{max(1, len(given))} x ptr>")
    for k, ((value, type_), parameter) in enumerate(zip(given, kernel.parameters, strict=True)):
        wanted = _CELLS.get(parameter, parameter)
        if (type_, wanted) == ("i1", "i8"):
            value = f.let(f"llvm.zext {value} : i1 to i8")
        cell = f.stack(wanted)
        f.store(value, wanted, cell)
        f.store(cell, _PTR, f.at(cells, k))
    shape = [f.number(n, "i32") for n in (*kernel.grid, *kernel.block, kernel.shared_bytes)]
    function, stream = f.table(table.function(number)), f.table(table.COMPUTE)
    f.call("cuLaunchKernel", function, *shape, stream, cells, f.let(f"llvm.mlir.zero : {_PTR}"))
    return f


def multiplier(
    symbol: str, product: LibraryProduct, pointers: int, table: GpuTable, number: int
) -> HostFunction:
    """The function that has the library do product `number` on the pointers it is given."""
    f = HostFunction(symbol, [(f"%p{k}", _PTR) for k in range(pointers)])
    scale = "f64" if product.info.dtype == "f64" else "f32"
    factors = []
    for factor in (1.0, 1.0 if product.info.accumulate else 0.0):
        factors.append(f.stack(scale))
        f.store(f.let(f"llvm.mlir.constant({factor} : {scale}) : {scale}"), scale, factors[-1])
    record = f.table(table.gemm(number))
    desc, a, b, d, algorithm = (
        f.word(record, k, _PTR)
        for k in (GemmRecord.DESC, GemmRecord.A, GemmRecord.B, GemmRecord.D, GemmRecord.ALGORITHM)
    )
    given = [f.table(table.LT), desc, factors[0], f"%p{product.a}", a, f"%p{product.b}", b]
    given += [factors[1], f"%p{product.d}", d, f"%p{product.d}", d, algorithm]
    nbytes = f.word(f.word("%ctx", PRIVATE, _PTR), table.WORKSPACE_BYTES)
    f.call("cublasLtMatmul", *given, f.table(table.WORKSPACE), nbytes, f.table(table.COMPUTE))
    return f
