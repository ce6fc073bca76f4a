"""Collectives of target gpu: host code that calls NCCL.

A collective runs on the communication stream, between two events: it waits for what the compute
stream has been given so far, and the compute stream waits for it. All collectives of a program are
in that one stream, in the order of the program, which is the same on every rank. NCCL's handles are
in the table of the step: a group's is its communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshweave.abi import Slots
from meshweave.device import GpuTable
from meshweave.lowering.collectives import Collective
from meshweave.lowering.gpu.calls import HostFunction, declarations
from meshweave.lowering.gpu.exchange import (
    COPIES,
    INBOX,
    KEPT,
    MEMBERS,
    OUTBOX,
    PACKED,
    UNPACKED,
    copies_function,
)

# ncclDataType_t. A byte of i1 is 0 or 1, so its max and min are those of bytes.
DATATYPES = {"i8": 0, "i1": 1, "i32": 2, "i64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
KINDS = {"sum": 0, "prod": 1, "max": 2, "min": 3}  # ncclRedOp_t
_BYTE = 1  # ncclUint8: what moves without arithmetic
_PTR = "!llvm.ptr"
_ARGUMENTS = [("%number", "i64"), ("%src", _PTR), ("%dst", _PTR)]
READY, DONE = 0, 1  # events: the operands are there; the result is
EVENTS = 2  # and one more for each collective that is started early
_ADDRESSES = ("%data", "%staging")
_TABLED = ("%nbytes", *_ADDRESSES, "%levels", "%function")
_POSTED, WAIT = "mw_posted", "mw_wait"


def collectives_text(
    collectives: Sequence[Collective], sizes: Sequence[int], table: GpuTable
) -> str:
    """The functions asked for, as a module of host code.

    sizes: members of each group, by its number. table: where the device's handles are.
    """
    functions = [_begin(table), _posted(table), _waited(table)]
    if any(collective.op in ("exchange", "relayout") for collective in collectives):
        functions.append(copies_function())
    functions += [_MAKERS[collective.op](collective) for collective in collectives]
    called = {symbol for function in functions for symbol in function.called}
    return declarations(called) + _sizes(sizes) + "".join(f.text() for f in functions)


def _sizes(sizes: Sequence[int]) -> str:
    """The table of group sizes."""
    numbers = ", ".join(map(str, sizes)) or "0"
    count = max(1, len(sizes))
    return (
        f"llvm.mlir.global internal constant @mw_sizes(dense<[{numbers}]> : tensor<{count}xi64>)"
        f" : !llvm.array<{count} x i64>\n"
    )


def _begin(table: GpuTable) -> HostFunction:
    """The communication stream waits for what has been computed."""
    f = HostFunction("mw_begin", [])
    ready = f.table(table.event(READY))
    f.call("cuEventRecord", ready, f.table(table.COMPUTE))
    f.call("cuStreamWaitEvent", f.table(table.COMM), ready, f.number(0, "i32"))
    return f


def _posted(table: GpuTable) -> HostFunction:
    """Event %event is when all that has been posted so far is communicated."""
    f = HostFunction(_POSTED, [("%event", "i64")])
    slot = f.let(f"llvm.add %event, {f.number(table.event(0))} : i64")
    f.call("cuEventRecord", f.table(slot), f.table(table.COMM))
    return f


def _waited(table: GpuTable) -> HostFunction:
    """The compute stream waits for event %event."""
    f = HostFunction(WAIT, [("%event", "i64")])
    slot = f.let(f"llvm.add %event, {f.number(table.event(0))} : i64")
    f.call("cuStreamWaitEvent", f.table(table.COMPUTE), f.table(slot), f.number(0, "i32"))
    return f


class _Function(HostFunction):
    """A collective: its function, its communicator and its stream. One that is started early is
    given the number of an event, which somebody waits for later.
    """

    def __init__(self, collective: Collective, *numbers: str) -> None:
        self.early = collective.early
        given = [(number, _PTR if number in _ADDRESSES else "i64") for number in numbers]
        given += [("%event", "i64")] if self.early else []
        name = f"{collective.symbol}_start" if self.early else collective.symbol
        super().__init__(name, [*_ARGUMENTS, *given])

    def begin(self) -> None:
        """What is computed so far comes first. The group's communicator and size."""
        self.call_own("mw_begin", [_PTR], "%ctx")
        slots = Slots(0, 0, 0)
        step = slots.handle(1) - slots.handle(0)
        of_group = self.let(f"llvm.mul %number, {self.number(step)} : i64")
        self.comm = self.word("%ctx", self.plus(of_group, slots.handle(0)), _PTR)
        self.stream = self.table(GpuTable.COMM)

    def size(self) -> str:
        """Members of the group."""
        return self.word(self.let(f"llvm.mlir.addressof @mw_sizes : {_PTR}"), "%number")

    def plus(self, value: str, number: int) -> str:
        """A sum."""
        return self.let(f"llvm.add {value}, {self.number(number)} : i64")

    def bytes_at(self, base: str, offset: str) -> str:
        """The address some bytes on."""
        return self.at(base, offset, "i8")

    def end(self) -> HostFunction:
        """What is computed after the wait comes after it; without one, all that is computed later."""
        event = "%event" if self.early else self.number(DONE)
        self.call_own(_POSTED, [_PTR, "i64"], "%ctx", event)
        if not self.early:
            self.call_own(WAIT, [_PTR, "i64"], "%ctx", event)
        return self

    def move(self, call: str, address: str, nbytes: str, member: str) -> None:
        """Send to a member, or receive from it."""
        peer = self.let(f"llvm.trunc {member} : i64 to i32")
        self.call(call, address, nbytes, self.number(_BYTE, "i32"), peer, self.comm, self.stream)


def _reduction(call: str) -> Callable[[Collective], HostFunction]:
    def make(collective: Collective) -> HostFunction:
        f = _Function(collective, "%count")
        f.begin()
        kinds = (DATATYPES[collective.dtype], KINDS[collective.kind])
        f.call(
            call, "%src", "%dst", "%count", *(f.number(n, "i32") for n in kinds), f.comm, f.stream
        )
        return f.end()

    return make


def _all_gather(collective: Collective) -> HostFunction:
    f = _Function(collective, "%nbytes")
    f.begin()
    f.call("ncclAllGather", "%src", "%dst", "%nbytes", f.number(_BYTE, "i32"), f.comm, f.stream)
    return f.end()


def _all_to_all(collective: Collective) -> HostFunction:
    """A block for each member."""
    f = _Function(collective, "%nbytes")
    f.begin()
    size = f.size()
    with f.group(), f.each(size) as member:
        offset = f.let(f"llvm.mul {member}, %nbytes : i64")
        f.move("ncclSend", f.bytes_at("%src", offset), "%nbytes", member)
        f.move("ncclRecv", f.bytes_at("%dst", offset), "%nbytes", member)
    return f.end()


def _permute(collective: Collective) -> HostFunction:
    f = _Function(collective, "%nbytes", "%source", "%target")
    f.begin()
    with f.group():
        f.move("ncclSend", "%src", "%nbytes", "%target")
        f.move("ncclRecv", "%dst", "%nbytes", "%source")
    return f.end()


def _exchange(collective: Collective) -> HostFunction:
    """Pack, keep, send and receive, unpack."""
    f = _Function(collective, *_TABLED)
    f.early = False  # what is computed later may need the memory of its messages
    section = _section(f)
    outbox, inbox = f.word(section, OUTBOX), f.word(section, INBOX)
    outgoing = _box(f, outbox, "%src")
    incoming = _box(f, inbox, "%dst")
    _copies(f, section, PACKED, outgoing, "%src")
    _copies(f, section, KEPT, "%dst", "%src")
    f.begin()
    size = f.size()
    with f.group(), f.each(size) as member:
        four = f.let(f"llvm.mul {member}, {f.number(4)} : i64")
        row = f.at(section, f.plus(four, MEMBERS))
        for call, box, k in (("ncclSend", outgoing, 0), ("ncclRecv", incoming, 2)):
            nbytes, start = f.word(row, k), f.word(row, k + 1)
            with f.when(f.let(f'llvm.icmp "ne" {nbytes}, {f.number(0)} : i64')):
                f.move(call, f.bytes_at(box, start), nbytes, member)
    f.end()
    _copies(f, section, UNPACKED, "%dst", incoming)
    return f


def _relayout(collective: Collective) -> HostFunction:
    """A rank rearranges what it holds itself."""
    f = _Function(collective, *_TABLED)
    _copies(f, _section(f), KEPT, "%dst", "%src")
    return f


def _section(f: HostFunction) -> str:
    """The address of this rank's part of the host's table."""
    return f.at("%data", f.word("%data", f.word("%ctx", Slots(0, 0, 0).rank)))


def _box(f: HostFunction, start: str, otherwise: str) -> str:
    """Where messages begin: `start` bytes into the staging buffer, or at a buffer when it is -1."""
    staged = f.let(f'llvm.icmp "sge" {start}, {f.number(0)} : i64')
    box = f.at("%staging", start, "i8")
    return f.let(f"llvm.select {staged}, {box}, {otherwise} : i1, {_PTR}")


def _copies(f: HostFunction, section: str, which: int, to: str, source: str) -> None:
    """Launch one of the lists of copies."""
    place, count, largest = (f.word(section, which + k) for k in range(3))
    table = f.at(f.table(GpuTable.CONSTANTS), place, "i8")
    types = [_PTR] * 4 + ["i64"] * 4
    given = ("%ctx", to, source, table, count, "%levels", largest, "%function")
    f.call_own(COPIES, types, *given)


_MAKERS: dict[str, Callable[[Collective], HostFunction]] = {
    "all_reduce": _reduction("ncclAllReduce"),
    "reduce_scatter": _reduction("ncclReduceScatter"),
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "exchange": _exchange,
    "relayout": _relayout,
}
