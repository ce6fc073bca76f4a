"""Small gpu programs for the recorder: host code written with the product's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.gpu.numpy_kernels import PTX, NumpyKernels

from meshweave.abi import StatusRow
from meshweave.bundle import Bundle, Manifest, OpInfo, Port, slots
from meshweave.device import DeviceModule, GemmInfo, GpuTable, KernelInfo
from meshweave.layout import Layout, Mesh
from meshweave.lowering.cpu.collectives.objects import Collective, compile_text
from meshweave.lowering.gpu.host.calls import SIGNATURES, HostFunction, declarations
from meshweave.lowering.gpu.host.nccl import EVENTS, collectives_text
from meshweave.simulator.engine import EmulateEngine

# ("input", index), ("output", index), ("arena" or "constants", byte offset)
Place = tuple[str, int]


@dataclass(frozen=True)
class Launch:
    """A kernel on `count` numbers."""

    kernel: str
    source: Place
    target: Place
    count: int


@dataclass(frozen=True)
class Collect:
    """A collective, as the step calls it. A number that is a tuple: by the rank's member index."""

    symbol: str
    group: int
    source: Place
    target: Place
    numbers: tuple[int | tuple[int, ...], ...]


@dataclass(frozen=True)
class Multiply:
    """A library product: its number, factors and result."""

    gemm: int
    a: Place
    b: Place
    d: Place


@dataclass(frozen=True)
class Fetch:
    """The host reads one number, and so waits for its device."""

    source: Place


@dataclass(frozen=True)
class OnRank:
    """Steps that one rank does, and those that all others do."""

    rank: int
    ops: tuple[Launch | Collect, ...]
    others: tuple[Launch | Collect, ...]


@dataclass(frozen=True)
class Texts:
    """Host code before it is compiled."""

    step: str
    collectives: str

    def changed(self, change: Callable[[Texts], Texts]) -> Texts:
        """After a mutation, which must change something."""
        after = change(self)
        assert after != self
        return after


def program(
    mesh: str,
    groups: Sequence[tuple[str, ...]],
    inputs: Sequence[tuple[str, tuple[int, ...]]],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    ops: Sequence[Launch | Collect | Multiply | Fetch | OnRank],
    arena_bytes: int = 0,
    gemms: Sequence[GemmInfo] = (),
    change: Callable[[Texts], Texts] | None = None,
    graph: bool = True,
    constants: bytes = b"",
    shared: int = 0,
) -> Bundle:
    """A bundle whose step does `ops` in order. change: a mutation of its host code; shared: bytes
    of dynamic shared memory of its kernels.
    """
    flat = list(_flat(ops))
    names = sorted({op.kernel for op in flat if isinstance(op, Launch)})
    symbols = sorted({op.symbol for op in flat if isinstance(op, Collect)})
    manifest = Manifest(
        mesh=mesh, engine="emulate", inputs=_ports("in", inputs), outputs=_ports("out", outputs),
        arena_bytes=arena_bytes, groups=tuple(groups), ops=tuple(_infos(flat)), target="gpu",
        libraries=("cuda", *(["cublaslt"] if gemms else []), *(["nccl"] if symbols else [])),
        chip="sm_80", gemms=tuple(gemms), events=EVENTS if symbols else 0, graph=graph,
        kernels=tuple(
            KernelInfo(0, n, (4, 1, 1), (64, 1, 1), shared, ("ptr", "ptr", "i32"), "test",
                       f"test.mlir:{n}")
            for n in names
        ),
    )  # fmt: skip
    texts = _texts(manifest, names, symbols, ops)
    texts = texts if change is None else texts.changed(change)
    objects = [
        compile_text(f"module {{\n{texts.step}{manifest.constant}}}", [*SIGNATURES, *symbols])
    ]
    if symbols:
        objects.append(compile_text(f"module {{\n{texts.collectives}}}", SIGNATURES))
    devices = (DeviceModule("sm_80", PTX, b"\x7fELF: no machine code for the recorder"),)
    return Bundle(manifest, tuple(objects), devices if names else (), constants)


def _texts(manifest, names, symbols, ops) -> Texts:
    table = GpuTable(len(names), len(manifest.gemms), manifest.events)
    mesh = Mesh.parse(manifest.mesh)
    sizes = [mesh.axis_count(axes) for axes in manifest.groups]
    wanted = [Collective.parse(symbol) for symbol in symbols]
    collectives = collectives_text(wanted, sizes, table) if symbols else ""
    step = _Step(manifest, table, names)
    numbers = {op: number for number, op in reversed(list(enumerate(_flat(ops), 1)))}
    for op in ops:
        step.add(numbers, op)
    declared = declarations(step.function.called) + "".join(
        f"llvm.func @{symbol}({types}) -> i32\n" for symbol, types in step.declared.items()
    )
    return Texts(declared + step.function.text(), collectives)


class _Step:
    def __init__(self, manifest, table, names):
        self.manifest, self.table, self.names = manifest, table, names
        self.slots = slots(manifest)
        self.function = HostFunction("step", [])
        self.declared = {}

    def address(self, place: Place) -> str:
        f, (where, index) = self.function, place
        if where == "arena":
            return f.at(f.word("%ctx", self.slots.arena, "!llvm.ptr"), index, "i8")
        if where == "constants":
            return f.at(f.table(GpuTable.CONSTANTS), index, "i8")
        slot = self.slots.input(index) if where == "input" else self.slots.output(index)
        return f.word("%ctx", slot, "!llvm.ptr")

    def add(self, numbers, op):
        if isinstance(op, OnRank):
            self.on_rank(numbers, op)
            return
        number = numbers[op]
        if isinstance(op, Launch):
            self.launch(number, op)
        elif isinstance(op, Fetch):
            f, stream = self.function, self.function.table(GpuTable.COMPUTE)
            cell, four = f.table(GpuTable.HOST), f.number(4)
            copied = (cell, self.address(op.source), four, stream)
            self.call(number, 0x4000, "cuMemcpyDtoHAsync_v2", *copied)
            self.call(number, 0x4000, "cuStreamSynchronize", stream)
        elif isinstance(op, Multiply):
            self.multiply(number, op)
        else:
            self.collect(number, op)

    def on_rank(self, numbers, op):
        f = self.function
        rank = f.word("%ctx", self.slots.rank)
        for test, ops in (("eq", op.ops), ("ne", op.others)):
            same = f.let(f'llvm.icmp "{test}" {rank}, {f.number(op.rank)} : i64')
            with f.when(same):
                for each in ops:
                    self.add(numbers, each)

    def call(self, number, mark, symbol, *arguments):
        """A call whose code tells the op, as the step of a real program does."""
        f = self.function
        f.called.add(symbol)
        types = ", ".join(SIGNATURES[symbol])
        code = f.let(f"llvm.call @{symbol}({', '.join(arguments)}) : ({types}) -> i32")
        told = f.let(f"llvm.or {code}, {f.number(number << 16 | mark, 'i32')} : i32")
        f._leave_unless_zero(code, told)

    def launch(self, number, op):
        f = self.function
        arguments = [
            (self.address(op.source), "!llvm.ptr"), (self.address(op.target), "!llvm.ptr"),
            (f.number(op.count, "i32"), "i32"),
        ]  # fmt: skip
        array = f.stack("!llvm.array<3 x ptr>")
        for index, (value, kind) in enumerate(arguments):
            cell = f.stack(kind)
            f.store(value, kind, cell)
            f.store(cell, "!llvm.ptr", f.at(array, index))
        shared = self.manifest.kernels[0].shared_bytes
        sizes = [f.number(n, "i32") for n in (4, 1, 1, 64, 1, 1, shared)]
        function = f.table(self.table.function(self.names.index(op.kernel)))
        null = f.let("llvm.mlir.zero : !llvm.ptr")
        self.call(
            number,
            0x4000,
            "cuLaunchKernel",
            function,
            *sizes,
            f.table(GpuTable.COMPUTE),
            array,
            null,
        )

    def multiply(self, number, op):
        f, table = self.function, self.table
        one, zero = f.stack("f32"), f.stack("f32")
        f.store(f.let("llvm.mlir.constant(1.0 : f32) : f32"), "f32", one)
        f.store(f.let("llvm.mlir.constant(0.0 : f32) : f32"), "f32", zero)
        record = f.table(table.gemm(op.gemm))
        desc, a, b, d, algorithm = (f.word(record, k, "!llvm.ptr") for k in range(5))
        place = self.address(op.d)
        self.call(
            number, 0x1000, "cublasLtMatmul", f.table(table.LT), desc, one, self.address(op.b), b,
            self.address(op.a), a, zero, place, d, place, d, algorithm, f.table(table.WORKSPACE),
            f.word(f.word("%ctx", 3, "!llvm.ptr"), table.WORKSPACE_BYTES), f.table(table.COMPUTE),
        )  # fmt: skip

    def collect(self, number, op):
        f = self.function
        status = f.word("%ctx", self.slots.status, "!llvm.ptr")
        count = f.word(status, StatusRow.STARTED)
        place = f.let(f"llvm.and {count}, {f.number(StatusRow.ENTRIES - 1)} : i64")
        f.store(f.number(number), "i64", f.at(f.at(status, StatusRow.RING), place))
        following = f.plus(count, 1)
        f.store(following, "i64", f.at(status, StatusRow.STARTED))
        numbers = [self.number_of(op, value) for value in op.numbers]
        types = ["!llvm.ptr", "i64", "!llvm.ptr", "!llvm.ptr", *["i64"] * len(numbers)]
        self.declared[op.symbol] = ", ".join(types)
        code = f.let(
            f"llvm.call @{op.symbol}(%ctx, {f.number(op.group)}, {self.address(op.source)}, "
            f"{self.address(op.target)}, {', '.join(numbers)}) : ({', '.join(types)}) -> i32"
        )
        told = f.let(f"llvm.or {code}, {f.number(number << 16, 'i32')} : i32")
        f._leave_unless_zero(code, told)
        f.store(following, "i64", f.at(status, StatusRow.ENDED))

    def number_of(self, op, value):
        f = self.function
        if isinstance(value, int):
            return f.number(value)
        member = f.word("%ctx", self.slots.member(op.group))
        found = f.number(value[0])
        for index, entry in enumerate(value[1:], 1):
            same = f.let(f'llvm.icmp "eq" {member}, {f.number(index)} : i64')
            found = f.let(f"llvm.select {same}, {f.number(entry)}, {found} : i1, i64")
        return found


def _flat(ops):
    """All steps, those of one rank too; equal ones are one op of the program."""
    for op in ops:
        if isinstance(op, OnRank):
            yield from _flat((*op.ops, *op.others))
        else:
            yield op


def _ports(prefix, ports):
    return tuple(
        Port(f"{prefix}{index}", dtype, shape, shape, str(Layout.replicated(len(shape))))
        for index, (dtype, shape) in enumerate(ports)
    )


def _infos(ops):
    for number, op in enumerate(ops, 1):
        name = getattr(op, "symbol", "") or getattr(op, "kernel", type(op).__name__.lower())
        yield OpInfo(number, name.removeprefix("mw_"), f"test.mlir:{number}:1")


def engine(**options) -> EmulateEngine:
    """Engine emulate with kernels in NumPy."""
    return EmulateEngine(**{"timeout": 60.0, "kernels": NumpyKernels(), **options})
