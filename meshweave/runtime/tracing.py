"""Record what ranks do and when: the buffers that compiled code writes its marks to (`abi.TraceBuffer`), and its clock.

Marks carry the processor's time stamp, which all cores of a host share; two readings of it beside the system's clock
say what it means.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshweave.abi import StatusRow, TraceBuffer
from meshweave.errors import MeshweaveError
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.loader import LoadedCode
from meshweave.runtime.memory import Values, aligned

_TOUCHED = 1 << 17
"""Words of a buffer that have memory from the start: to get a page takes as long as a hundred marks."""
_PAGE = 512  # words
_READINGS = 9  # of the clock, of which the quickest counts


class ClockReading(NamedTuple):
    """Hold the processor's time stamp, and nanoseconds of the system's monotonic clock at the same time."""

    stamp: int
    nanoseconds: int


class DeviceRecord(NamedTuple):
    """Hold what a device did in each call, a row (begin, end, what) for each op, and how many there was no room for.

    Times are nanoseconds of the monotonic clock; `what` is as for `TraceBuffer`.
    """

    calls: list[Values]
    dropped: int


@dataclass(frozen=True)
class Slice:
    """Say what a rank did for a while. kind: one of `timeline.KINDS`.

    start, duration: in nanoseconds, from when the trace began. call: the number of the call, of all programs. where:
    its place in the source. nbytes: of a collective, what the busiest rank receives. waits_for: of a wait, the
    last rank. aside: whether a GPU did it beside other work, as collectives that were started early.
    """

    rank: int
    kind: str
    name: str
    start: float
    duration: float
    call: int
    where: str = ""
    nbytes: int = 0
    waits_for: int | None = None
    aside: bool = False

    @property
    def end(self) -> float:
        """Return when it ended."""
        return self.start + self.duration


class Marks:
    """Hold the buffers of some ranks, each with room for so many marks."""

    def __init__(self, ranks: Sequence[int], room: int, memory: Values | None = None) -> None:
        """Begin with no marks. memory: for the buffers, one after the other; None: new memory.

        Raises MeshweaveError if there is not as much.
        """
        words = TraceBuffer.words(room)
        if memory is None:
            try:
                memory = aligned(8 * words * len(ranks)).view(np.int64)
            except MeshweaveError as error:
                many = f"{room:,} marks of each of {len(ranks)} ranks"
                raise error.told(
                    f"trace: {error.message}, {many}: a smaller room= takes less"
                ) from None
        rows = memory[: words * len(ranks)].reshape(len(ranks), words)
        self.rows = dict(zip(ranks, rows))
        for row in rows:
            row[:_TOUCHED:_PAGE] = 0
            row[TraceBuffer.COUNT], row[TraceBuffer.ROOM] = 0, room

    def show(self, board: StatusBoard) -> None:
        """Have the ranks of this process write to the buffers."""
        for rank in self.rows:
            board.trace(rank, self.address(rank))

    def address(self, rank: int) -> int:
        """Return the address of a rank's buffer."""
        return int(self.rows[rank].ctypes.data)

    def read(self) -> tuple[dict[int, Values], int]:
        """Return the marks of each rank, a row (time stamp, what) for each, and how many there was no room for."""
        found, dropped = {}, 0
        for rank, row in self.rows.items():
            count, room = int(row[TraceBuffer.COUNT]), int(row[TraceBuffer.ROOM])
            kept = min(count, room)
            dropped += count - kept
            found[rank] = row[TraceBuffer.HEAD :][: 2 * kept].reshape(kept, 2).copy()
        return found, dropped


def hide(board: StatusBoard, ranks: Sequence[int]) -> None:
    """Have ranks write no marks any more."""
    for rank in ranks:
        board.trace(rank, 0)


def read_clock(code: LoadedCode) -> ClockReading | None:
    """Read both clocks by loaded code; None where it writes no marks, since it has nothing to run."""
    if TraceBuffer.MARK not in code:
        return None
    mark: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
        code.address(TraceBuffer.MARK)
    )
    status, buffer = np.zeros(StatusRow.RING, np.int64), np.zeros(TraceBuffer.words(1), np.int64)
    status[StatusRow.TRACE], buffer[TraceBuffer.ROOM] = buffer.ctypes.data, 1
    readings = []
    for _ in range(_READINGS):
        buffer[TraceBuffer.COUNT] = 0
        before = time.monotonic_ns()
        mark(status.ctypes.data, 0)
        after = time.monotonic_ns()
        stamp = int(buffer[TraceBuffer.HEAD])
        readings.append((after - before, ClockReading(stamp, (before + after) // 2)))
    return min(readings)[1]
