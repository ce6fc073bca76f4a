"""Write functions of host code, `i32 name(ptr ctx, ..)`, as text in the LLVM dialect.

Every call of the driver or of a library is checked, and the code that it returned becomes the code
that the function returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from meshweave.device import GpuTable

_PTR = "!llvm.ptr"
# The functions that host code calls: the types of their arguments. All return i32.
SIGNATURES = {
    "cuLaunchKernel": (_PTR, *["i32"] * 7, _PTR, _PTR, _PTR),
    "cuEventRecord": (_PTR, _PTR),
    "cuStreamWaitEvent": (_PTR, _PTR, "i32"),
    "cuStreamSynchronize": (_PTR,),
    "cuMemcpyDtoHAsync_v2": (_PTR, _PTR, "i64", _PTR),
    "cuMemcpyHtoDAsync_v2": (_PTR, _PTR, "i64", _PTR),
    "cublasLtMatmul": (*[_PTR] * 14, "i64", _PTR),
    "ncclAllReduce": (_PTR, _PTR, "i64", "i32", "i32", _PTR, _PTR),
    "ncclReduceScatter": (_PTR, _PTR, "i64", "i32", "i32", _PTR, _PTR),
    "ncclAllGather": (_PTR, _PTR, "i64", "i32", _PTR, _PTR),
    "ncclSend": (_PTR, "i64", "i32", "i32", _PTR, _PTR),
    "ncclRecv": (_PTR, "i64", "i32", "i32", _PTR, _PTR),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
# What a code says besides what was returned: whose it is.
CODES = {"cublasLt": 0x1000, "cu": 0x4000, "nccl": 0x2000}
_RETURNED = 0xFFF
PRIVATE = 3  # slot of the engine's own pointer


class HostFunction:
    """Write one function. Its blocks are written one after the other; an error leaves it at once."""

    def __init__(self, name: str, parameters: Sequence[tuple[str, str]]) -> None:
        """Begin a function. parameters: names and types, after `%ctx`."""
        self.name, self.parameters = name, [("%ctx", _PTR), *parameters]
        self.called: set[str] = set()
        self._head: list[str] = []
        self._lines: list[str] = []
        self._count = self._blocks = 0
        self._failed = "^failed"

    def let(self, text: str) -> str:
        """Add a line that defines a value; return its name."""
        self._count += 1
        self._lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def number(self, value: int, type_: str = "i64") -> str:
        """Write a constant."""
        return self.let(f"llvm.mlir.constant({value} : {type_}) : {type_}")

    def plus(self, value: str, number: int) -> str:
        """Write a sum."""
        return self.let(f"llvm.add {value}, {self.number(number)} : i64")

    def stack(self, type_: str) -> str:
        """Return the address of a cell of the function's stack."""
        self._count += 1
        one, cell = f"%n{self._count}", f"%c{self._count}"
        self._head.append(f"{one} = llvm.mlir.constant(1 : i32) : i32")
        self._head.append(f"{cell} = llvm.alloca {one} x {type_} : (i32) -> {_PTR}")
        return cell

    def cells(self, arguments: Sequence[tuple[str, str]]) -> str:
        """Return the address of a table that points to each of these values, for a launch; with their types."""
        table = self.stack(f"!llvm.array<{max(1, len(arguments))} x ptr>")
        for k, (value, type_) in enumerate(arguments):
            cell = self.stack(type_)
            self.store(value, type_, cell)
            self.store(cell, _PTR, self.at(table, k))
        return table

    def launch(self, slot: int | str, sizes: Sequence[str], cells: str) -> None:
        """Launch the kernel whose function is at a slot. sizes: grid, block, bytes of shared memory."""
        function, stream = self.table(slot), self.table(GpuTable.COMPUTE)
        nothing = self.let(f"llvm.mlir.zero : {_PTR}")
        self.call("cuLaunchKernel", function, *sizes, stream, cells, nothing)

    def store(self, value: str, type_: str, address: str) -> None:
        """Write a value to memory."""
        self._lines.append(f"llvm.store {value}, {address} : {type_}, {_PTR}")

    def at(self, base: str, offset: int | str, unit: str = "i64") -> str:
        """Return the address that is `offset` units behind `base`."""
        if isinstance(offset, int) and offset >> 31:  # a literal has 32 bits
            offset = self.number(offset)
        if isinstance(offset, int):
            return self.let(f"llvm.getelementptr {base}[{offset}] : ({_PTR}) -> {_PTR}, {unit}")
        return self.let(f"llvm.getelementptr {base}[{offset}] : ({_PTR}, i64) -> {_PTR}, {unit}")

    def word(self, base: str, index: int | str, type_: str = "i64") -> str:
        """Read a slot of a table of 8-byte slots."""
        return self.let(f"llvm.load {self.at(base, index)} : {_PTR} -> {type_}")

    def table(self, slot: int | str) -> str:
        """Read a pointer from the table of the device (`device.GpuTable`)."""
        return self.word(self.word("%ctx", PRIVATE, _PTR), slot, _PTR)

    def call(self, symbol: str, *arguments: str) -> None:
        """Call a function of the driver or of a library."""
        self.called.add(symbol)
        given = self.let(
            f"llvm.call @{symbol}({', '.join(arguments)}) : ({', '.join(SIGNATURES[symbol])}) -> i32"
        )
        whose = next(code for prefix, code in CODES.items() if symbol.startswith(prefix))
        low = self.let(f"llvm.and {given}, {self.number(_RETURNED, 'i32')} : i32")
        self._leave_unless_zero(
            given, self.let(f"llvm.or {low}, {self.number(whose, 'i32')} : i32")
        )

    def call_own(self, symbol: str, types: Sequence[str], *arguments: str) -> None:
        """Call another function of host code, whose code is passed on."""
        given = self.let(
            f"llvm.call @{symbol}({', '.join(arguments)}) : ({', '.join(types)}) -> i32"
        )
        self._leave_unless_zero(given, given)

    def _leave_unless_zero(self, given: str, code: str) -> None:
        bad = self.let(f'llvm.icmp "ne" {given}, {self.number(0, "i32")} : i32')
        after = self._fresh()
        self._lines += [f"llvm.cond_br {bad}, {self._failed}({code} : i32), {after}", f"{after}:"]

    def _fresh(self) -> str:
        self._blocks += 1
        return f"^b{self._blocks}"

    @contextmanager
    def each(self, count: str) -> Iterator[str]:
        """Write a loop around what is written inside; give its counter, from 0 to below `count`."""
        head, body, after = (self._fresh() for _ in range(3))
        one = self.number(1)
        self._count += 1
        counter = f"%v{self._count}"
        self._lines += [f"llvm.br {head}({self.number(0)} : i64)", f"{head}({counter}: i64):"]
        more = self.let(f'llvm.icmp "slt" {counter}, {count} : i64')
        self._lines += [f"llvm.cond_br {more}, {body}, {after}", f"{body}:"]
        yield counter
        following = self.let(f"llvm.add {counter}, {one} : i64")
        self._lines += [f"llvm.br {head}({following} : i64)", f"{after}:"]

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Write a branch around what is written inside: it runs only where the i1 `condition` holds."""
        then, after = self._fresh(), self._fresh()
        self._lines += [f"llvm.cond_br {condition}, {then}, {after}", f"{then}:"]
        yield
        self._lines += [f"llvm.br {after}", f"{after}:"]

    @contextmanager
    def group(self) -> Iterator[None]:
        """Let NCCL do the calls written inside together; the group is closed on the way out of an error, too."""
        self.call("ncclGroupStart")
        self._failed = "^ungroup"
        yield
        self._failed = "^failed"
        self.call("ncclGroupEnd")

    def text(self) -> str:
        """Return the function."""
        parameters = ", ".join(f"{name}: {type_}" for name, type_ in self.parameters)
        lines = [f"llvm.func @{self.name}({parameters}) -> i32 {{", *self._head, *self._lines]
        lines += ["%done = llvm.mlir.constant(0 : i32) : i32", "llvm.return %done : i32"]
        if "ncclGroupStart" in self.called:
            lines += ["^ungroup(%first: i32):", "%end = llvm.call @ncclGroupEnd() : () -> i32"]
            lines += ["llvm.br ^failed(%first : i32)"]
        return "\n".join([*lines, "^failed(%code: i32):", "llvm.return %code : i32", "}", ""])


def declarations(symbols: set[str]) -> str:
    """Declare functions of the driver and of libraries."""
    return "".join(f"llvm.func @{s}({', '.join(SIGNATURES[s])}) -> i32\n" for s in sorted(symbols))


def recording(name: str, table: GpuTable, stream: int) -> HostFunction:
    """Return the function that records event %event behind all that the stream of a slot has been given."""
    f = HostFunction(name, [("%event", "i64")])
    slot = f.plus("%event", table.event(0))
    f.call("cuEventRecord", f.table(slot), f.table(stream))
    return f
