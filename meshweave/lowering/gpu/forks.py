"""Host code of programs that use several compute streams: which one is launched on, and the events
between them (`streams.py` says which).

The table's compute stream and workspace are those that everything else launches with: `mw_on` puts
another stream's there. A program that uses one stream has none of this.
"""

from __future__ import annotations

from meshweave.device import GpuTable
from meshweave.lowering.gpu.calls import PRIVATE, HostFunction

_PTR = "!llvm.ptr"
ON, RECORD, AWAIT = "mw_on", "mw_record", "mw_await"


def fork_functions(table: GpuTable) -> list[HostFunction]:
    """The functions of this file; table: where the handles are."""
    return [_on(table), _record(table), _await(table)]


def _on(table: GpuTable) -> HostFunction:
    """From here on compute stream %stream is launched on."""
    f = HostFunction(ON, [("%stream", "i64")])
    for slot, first in ((table.COMPUTE, table.stream(0)), (table.WORKSPACE, table.workspace(0))):
        value = f.table(_slot(f, "%stream", first))
        f.store(value, _PTR, f.at(f.word("%ctx", PRIVATE, _PTR), slot))
    return f


def _record(table: GpuTable) -> HostFunction:
    """Event %event is when all that the stream has been given is done."""
    f = HostFunction(RECORD, [("%event", "i64")])
    f.call("cuEventRecord", f.table(_slot(f, "%event", table.event(0))), f.table(table.COMPUTE))
    return f


def _await(table: GpuTable) -> HostFunction:
    """The stream waits for event %event."""
    f = HostFunction(AWAIT, [("%event", "i64")])
    event = f.table(_slot(f, "%event", table.event(0)))
    f.call("cuStreamWaitEvent", f.table(table.COMPUTE), event, f.number(0, "i32"))
    return f


def _slot(f: HostFunction, number: str, first: int) -> str:
    """The slot of a stream or event."""
    return f.let(f"llvm.add {number}, {f.number(first)} : i64")
