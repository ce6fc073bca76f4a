"""Write the collectives of target gpu: host code that calls NCCL.

A collective runs on the communication stream, between two events: it waits for what the compute
stream has been given so far, and the compute stream waits for it. All collectives of a program are
in that one stream, in the order of the program, which is the same on every rank. NCCL's handles are
in the table of the step: a group's is its communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshweave.abi import MAIL_WORDS, Slots
from meshweave.device import ExchangeWords, GpuTable
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.lowering.communication.collectives import Collectives
from meshweave.lowering.cpu.collectives.objects import Collective
from meshweave.lowering.gpu.host.calls import HostFunction, declarations, recording
from meshweave.lowering.gpu.host.exchange import COPIES, copies_function
from meshweave.plan.collectives import BY_OP, ROWS

# ncclDataType_t. A byte of i1 is 0 or 1, so its max and min are those of bytes.
DATATYPES = {"i8": 0, "i1": 1, "i32": 2, "i64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
KINDS = {"sum": 0, "prod": 1, "max": 2, "min": 3}  # ncclRedOp_t
_BYTE = 1  # ncclUint8: what moves without arithmetic
_PTR = "!llvm.ptr"
_ARGUMENTS = [("%number", "i64"), ("%src", _PTR), ("%dst", _PTR)]
READY, DONE = 0, 1  # events: the operands are there; the result is
EVENTS = 2  # and one more for each collective that is started early
_ADDRESSES = ("%section", "%staging")
_TABLED = ("%nbytes", *_ADDRESSES, "%function")
_POSTED, WAIT = "mw_posted", "mw_wait"


class DeviceCollectives(Collectives):
    """Lower collectives as NCCL wants them: what goes out lies back to back, and so does what comes in.

    Kernels pack and unpack around them, fused with what is next to them where they can be; members read
    nothing out of each other's memory.
    """

    target = "gpu"

    def _direct(self, run: int, members: int = 1) -> bool:
        return False

    def _merges(self, op: ir.Operation) -> bool:
        return False

    def _call(self, op: ir.Operation, collective: Collective, *details: Any, **more: Any) -> Any:
        if collective.kind and collective.dtype not in DATATYPES:
            raise CompileError(f"{op.name}: NCCL cannot reduce {collective.dtype} on target gpu")
        return super()._call(op, collective, *details, **more)


def collectives_text(
    collectives: Sequence[Collective], sizes: Sequence[int], table: GpuTable
) -> str:
    """Return the functions asked for, as a module of host code.

    sizes: members of each group, by its number. table: where the device's handles are.
    """
    functions = [_begin(table), recording(_POSTED, table, table.COMM), _waited(table)]
    if any(collective.op in ("exchange", "relayout") for collective in collectives):
        functions.append(copies_function())
    functions += [_MAKERS[collective.op](collective) for collective in collectives]
    called = {symbol for function in functions for symbol in function.called}
    return declarations(called) + _sizes(sizes) + "".join(f.text() for f in functions)


def _sizes(sizes: Sequence[int]) -> str:
    """Write the table of group sizes."""
    numbers = ", ".join(map(str, sizes)) or "0"
    count = max(1, len(sizes))
    return (
        f"llvm.mlir.global internal constant @mw_sizes(dense<[{numbers}]> : tensor<{count}xi64>)"
        f" : !llvm.array<{count} x i64>\n"
    )


def _begin(table: GpuTable) -> HostFunction:
    """Return the function that lets the communication stream wait for what has been computed."""
    f = HostFunction("mw_begin", [])
    ready = f.table(table.event(READY))
    f.call("cuEventRecord", ready, f.table(table.COMPUTE))
    f.call("cuStreamWaitEvent", f.table(table.COMM), ready, f.number(0, "i32"))
    return f


def _waited(table: GpuTable) -> HostFunction:
    """Return the function that lets the compute stream wait for event %event."""
    f = HostFunction(WAIT, [("%event", "i64")])
    slot = f.plus("%event", table.event(0))
    f.call("cuStreamWaitEvent", f.table(table.COMPUTE), f.table(slot), f.number(0, "i32"))
    return f


class _CollectiveFunction(HostFunction):
    """Write the function of a collective, with its communicator and its stream.

    One that is started early is given the number of an event, which is waited for later.
    """

    def __init__(self, collective: Collective, *numbers: str) -> None:
        self.is_async = collective.is_async
        given = [(number, _PTR if number in _ADDRESSES else "i64") for number in numbers]
        given += [("%event", "i64")] if self.is_async else []
        name = f"{collective.symbol}_start" if self.is_async else collective.symbol
        super().__init__(name, [*_ARGUMENTS, *given])

    def begin(self) -> None:
        """Wait for what is computed so far; read the group's communicator and size."""
        self.call_own("mw_begin", [_PTR], "%ctx")
        slots = Slots(0, 0, 0, 0)
        step = slots.handle(1) - slots.handle(0)
        of_group = self.let(f"llvm.mul %number, {self.number(step)} : i64")
        self.comm = self.word("%ctx", self.plus(of_group, slots.handle(0)), _PTR)
        self.stream = self.table(GpuTable.COMM)

    def size(self) -> str:
        """Return the number of members of the group."""
        return self.word(self.let(f"llvm.mlir.addressof @mw_sizes : {_PTR}"), "%number")

    def end(self) -> HostFunction:
        """Order what is computed after the wait behind this; without a wait, all that is computed later."""
        event = "%event" if self.is_async else self.number(DONE)
        self.call_own(_POSTED, [_PTR, "i64"], "%ctx", event)
        if not self.is_async:
            self.call_own(WAIT, [_PTR, "i64"], "%ctx", event)
        return self

    def move(self, call: str, address: str, nbytes: str, member: str) -> None:
        """Send to a member, or receive from it."""
        peer = self.let(f"llvm.trunc {member} : i64 to i32")
        self.call(call, address, nbytes, self.number(_BYTE, "i32"), peer, self.comm, self.stream)


def _direct(collective: Collective) -> HostFunction:
    """Let one function of NCCL do it all: a reduction of elements, or an all_gather of bytes."""
    row = BY_OP[collective.op]
    count = "%count" if row.reduces else "%nbytes"
    f = _CollectiveFunction(collective, count)
    f.begin()
    kinds = (DATATYPES[collective.dtype], KINDS[collective.kind]) if row.reduces else (_BYTE,)
    f.call(row.nccl, "%src", "%dst", count, *(f.number(n, "i32") for n in kinds), f.comm, f.stream)
    return f.end()


def _all_to_all(collective: Collective) -> HostFunction:
    """Send a block to each member."""
    f = _CollectiveFunction(collective, "%nbytes")
    f.begin()
    size = f.size()
    with f.group(), f.each(size) as member:
        offset = f.let(f"llvm.mul {member}, %nbytes : i64")
        f.move("ncclSend", f.at("%src", offset, "i8"), "%nbytes", member)
        f.move("ncclRecv", f.at("%dst", offset, "i8"), "%nbytes", member)
    return f.end()


def _permute(collective: Collective) -> HostFunction:
    f = _CollectiveFunction(collective, "%nbytes", "%source", "%target")
    f.begin()
    with f.group():
        f.move("ncclSend", "%src", "%nbytes", "%target")
        f.move("ncclRecv", "%dst", "%nbytes", "%source")
    return f.end()


def _exchange(collective: Collective) -> HostFunction:
    """Pack, keep, send and receive, unpack."""
    f = _CollectiveFunction(collective, *_TABLED)
    f.is_async = False  # what is computed later may need the memory of its messages
    outgoing = _box(f, f.word("%section", ExchangeWords.OUTBOX), "%src")
    incoming = _box(f, f.word("%section", ExchangeWords.INBOX), "%dst")
    _copies(f, ExchangeWords.PACKED, outgoing, "%src")
    _copies(f, ExchangeWords.KEPT, "%dst", "%src")
    f.begin()
    size = f.size()
    with f.group(), f.each(size) as member:
        four = f.let(f"llvm.mul {member}, {f.number(MAIL_WORDS)} : i64")
        row = f.at("%section", f.plus(four, ExchangeWords.MEMBERS))
        for call, box, k in (("ncclSend", outgoing, 0), ("ncclRecv", incoming, 2)):
            nbytes, start = f.word(row, k), f.word(row, k + 1)
            with f.when(f.let(f'llvm.icmp "ne" {nbytes}, {f.number(0)} : i64')):
                f.move(call, f.at(box, start, "i8"), nbytes, member)
    f.end()
    _copies(f, ExchangeWords.UNPACKED, "%dst", incoming)
    return f


def _relayout(collective: Collective) -> HostFunction:
    """Rearrange what a rank holds itself."""
    f = _CollectiveFunction(collective, *_TABLED)
    _copies(f, ExchangeWords.KEPT, "%dst", "%src")
    return f


def _box(f: HostFunction, start: str, otherwise: str) -> str:
    """Return where messages begin: `start` bytes into the staging buffer, or at a buffer when it is -1."""
    staged = f.let(f'llvm.icmp "sge" {start}, {f.number(0)} : i64')
    box = f.at("%staging", start, "i8")
    return f.let(f"llvm.select {staged}, {box}, {otherwise} : i1, {_PTR}")


def _copies(f: HostFunction, which: int, to: str, source: str) -> None:
    """Launch one of the lists of copies."""
    table = f.word("%section", which, _PTR)
    count, largest = (f.word("%section", which + k) for k in (1, 2))
    levels, unit = (f.word("%section", k) for k in (ExchangeWords.LEVELS, ExchangeWords.UNIT))
    types = [_PTR] * 4 + ["i64"] * 5
    given = ("%ctx", to, source, table, count, levels, largest, unit, "%function")
    f.call_own(COPIES, types, *given)


_MAKERS: dict[str, Callable[[Collective], HostFunction]] = {
    **{row.op: _direct for row in ROWS if row.nccl},
    "all_to_all": _all_to_all,
    "permute": _permute,
    "exchange": _exchange,
    "relayout": _relayout,
}
