"""Write the copies of an exchange of two layouts on gpus: kernels copy what is kept, pack and unpack; NCCL sends.

Every rank does the same with other numbers: its section (device.ExchangeWords), which it makes when the program is
loaded. Its copies are a table in device memory (device.CopyWords), of which one launch does a list.
"""

from __future__ import annotations

from functools import partial

from meshweave.device import CopyWords
from meshweave.exchange.device import UNITS
from meshweave.hints.fast_paths import BIT_EXACT
from meshweave.lowering.gpu.host.calls import HostFunction
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import GLOBAL, DeviceWriter, Parameter
from meshweave.lowering.writer import Value

_TYPES = {16: "vector<4xi32>", 8: "i64", 4: "i32", 2: "i16", 1: "i8"}
_THREADS = 256
_MOST_BLOCKS = 1024  # of a copy; each thread then moves several units
_MOST_ROWS = 65535  # of a grid
_PTR = "!llvm.ptr"


def copies_kernel() -> DeviceKernel:
    """Return the kernel that does the copies of a table.

    p0 is the target, p1 the source, p2 the table; s0 how many copies there are, s1 their levels, s2 threads of a row of
    the grid, s3 rows, s4 the bytes that a thread moves at once.
    """
    pointers = [Parameter("p0", GLOBAL), Parameter("p1", GLOBAL, readonly=True)]
    pointers.append(Parameter("p2", GLOBAL, 8, readonly=True))
    scalars = [Parameter(f"s{k}", "i64") for k in range(5)]
    b = DeviceWriter("copies", [*pointers, *scalars], _THREADS)
    row_bytes = b["s1"] * 24 + 8 * CopyWords.LEVELS
    first = b.wide(b.block()) * _THREADS + b.wide(b.thread())

    def copy(number: Value, _: list[Value]) -> None:
        row = b.offset(b["p2"], number * row_bytes)
        for unit in UNITS:
            chosen = b.compare("ne", b["s4"] & unit, 0)  # a bit each: no table of jumps is made
            b.if_(chosen, partial(_copy, b, row, first, unit))

    b.for_(b.wide(b.block("y")), b["s0"], b["s3"], [], copy, "i64")
    return DeviceKernel.of(b, 1, "copies", BIT_EXACT)


def _copy(b: DeviceWriter, row: Value, first: Value, unit: int) -> None:
    """Write the loop that does a thread's part of a copy, `unit` bytes at a time."""

    def word(index: Value | int) -> Value:
        return b.load(b.offset(row, index * 8), "i64")

    source, target, run = (word(k) for k in (CopyWords.SOURCE, CopyWords.TARGET, CopyWords.RUN))
    run_units = run // unit

    def move(index: Value, _: list[Value]) -> None:
        def level(which: Value, carried: list[Value]) -> list[Value]:
            rest, s, t = carried
            at = which * 3 + CopyWords.LEVELS
            count, step, stride = word(at), word(at + 1), word(at + 2)
            digit = rest % count
            return [rest // count, s + digit * step, t + digit * stride]

        inside = index % run_units * unit
        begin = [index // run_units, source + inside, target + inside]
        _rest, s, t = b.for_(0, b["s1"], 1, begin, level, "i64")
        value = b.load(b.offset(b["p1"], s), _TYPES[unit], unit)
        b.store(value, b.offset(b["p0"], t), unit)

    b.for_(first, word(CopyWords.NBYTES) // unit, b["s2"], [], move, "i64")


# Host code.

COPIES = "mw_copies"
_COPIES = [("%to", _PTR), ("%from", _PTR), ("%table", _PTR), ("%count", "i64"), ("%levels", "i64")]
_COPIES += [("%largest", "i64"), ("%unit", "i64"), ("%function", "i64")]


def copies_function() -> HostFunction:
    """Return `mw_copies`: it launches the kernel at slot %function on a table of copies, if there are any.

    A thread moves at once as many bytes as the addresses of both buffers are multiples of, %unit at most.
    """
    f = HostFunction(COPIES, _COPIES)
    with f.when(f.let(f'llvm.icmp "ne" %count, {f.number(0)} : i64')):
        common = "%unit"
        for pointer in ("%to", "%from"):
            address = f.let(f"llvm.ptrtoint {pointer} : {_PTR} to i64")
            common = f.let(f"llvm.or {common}, {address} : i64")
        less = f.let(f"llvm.sub {f.number(0)}, {common} : i64")
        unit = f.let(f"llvm.and {common}, {less} : i64")  # the lowest bit
        units = f.let(f"llvm.udiv %largest, {unit} : i64")
        per_block, most = f.number(_THREADS), f.number(_MOST_BLOCKS)
        up = f.plus(units, _THREADS - 1)
        blocks = _least(f, f.let(f"llvm.udiv {up}, {per_block} : i64"), most)
        rows = _least(f, "%count", f.number(_MOST_ROWS))
        span = f.let(f"llvm.mul {blocks}, {per_block} : i64")
        given = ["%to", "%from", "%table", "%count", "%levels", span, rows, unit]
        cells = f.cells([(value, _PTR if k < 3 else "i64") for k, value in enumerate(given)])
        grid = [f.let(f"llvm.trunc {n} : i64 to i32") for n in (blocks, rows)]
        shape = [*grid, *(f.number(n, "i32") for n in (1, _THREADS, 1, 1, 0))]
        f.launch("%function", shape, cells)
    return f


def _least(f: HostFunction, a: str, b: str) -> str:
    less = f.let(f'llvm.icmp "ult" {a}, {b} : i64')
    return f.let(f"llvm.select {less}, {a}, {b} : i1, i64")
