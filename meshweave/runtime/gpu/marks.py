"""Record what a rank's device does, and when: events that compiled code puts before and behind what it enqueues.

Host code looks at the rank's status row (`abi.StatusRow.TRACE`) before each launch, collective, wait and copy. Where a
buffer is shown there, it records the next event of the buffer before it and another one behind it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from meshweave.abi import StatusRow, TraceBuffer
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.gpu.driver import Driver
from meshweave.runtime.memory import Values, aligned
from meshweave.runtime.tracing import DeviceRecord

# Events of a rank, at first and at most: each takes memory of the driver.
_FIRST, _MOST = 1 << 11, 1 << 16


class DeviceMarks:
    """Hold the events of a rank, and what they have told: `calls` and `dropped` as of a `DeviceRecord`."""

    def __init__(self, driver: Driver, stream: int, room: int) -> None:
        """Make the first events. stream: that says when the marks begin; room: for so many events, in the end."""
        self._driver, self._stream, self._held = driver, stream, ExitStack()
        self._most, self._room = max(2, min(room, _MOST)) // 2 * 2, 0
        self._base, self._buffer = self._event(), np.zeros(TraceBuffer.HEAD, np.int64)
        self._shown: tuple[StatusBoard, int] | None = None
        self._firsts: list[int] = []  # of each call since the last reading, its first mark
        self.calls: list[Values] = []
        self.dropped = 0
        self._grow(min(_FIRST, self._most))
        self._restart()

    def show(self, board: StatusBoard, rank: int) -> None:
        """Have the rank's host code find the events."""
        self._shown = board, rank
        board.rows[rank, StatusRow.TRACE] = self._buffer.ctypes.data

    def begin(self) -> None:
        """Note that a call begins, and see that it has room: make more events, or wait for what there are."""
        if self._count > self._room // 2:
            if self._room < self._most:
                self._grow(min(2 * self._room, self._most))
            else:
                self.read()
        self._firsts.append(self._count)

    def _grow(self, room: int) -> None:
        """Make more events, no call being enqueued meanwhile."""
        made = aligned(8 * TraceBuffer.words(room)).view(np.int64)
        made[: len(self._buffer)] = self._buffer
        new = [self._event() for _ in range(room - self._room)]
        made[TraceBuffer.words(self._room) :: 2] = new
        made[TraceBuffer.COUNT] = min(self._count, self._room)
        self.dropped += max(0, self._count - self._room) // 2
        self._buffer, self._room = made, room
        made[TraceBuffer.ROOM] = room
        if self._shown is not None:
            self.show(*self._shown)

    def _event(self) -> int:
        return self._driver.made(self._held, "cuEventCreate", "cuEventDestroy_v2", 0)

    @contextmanager
    def around(self, what: int, stream: int) -> Iterator[None]:
        """Mark what is enqueued inside the `with`."""
        self._record(what, stream)
        yield
        self._record(what, stream)

    def read(self) -> None:
        """Wait for the device, and read what the events tell."""
        self._driver("cuCtxSynchronize")
        count = min(self._count, self._room)
        self.dropped += (self._count - count) // 2
        words = self._buffer[TraceBuffer.HEAD :][: 2 * count].reshape(count, 2)
        before, start = self._base, float(self._began)
        for first, end in zip(self._firsts, [*self._firsts[1:], count]):
            marks = words[min(first, count) : end]
            if not len(marks):
                self.calls.append(np.empty((0, 3), np.int64))
                continue
            # The difference of two events is a number of f32: between near ones it is exact to half a microsecond.
            start += self._elapsed(before, int(marks[0, 0]))
            before = int(marks[0, 0])
            times = [start + self._elapsed(before, event) for event in marks[:, 0].tolist()]
            rows = [times[0::2], times[1::2], marks[0::2, 1]]
            self.calls.append(np.array(rows, np.float64).astype(np.int64).T)
        self._firsts = []
        self._restart()

    def close(self) -> None:
        """Free the events. No host code may find them any more."""
        self._held.close()

    @property
    def _count(self) -> int:
        return int(self._buffer[TraceBuffer.COUNT])

    def _restart(self) -> None:
        """Begin with no marks, at a time that both clocks tell."""
        self._buffer[TraceBuffer.COUNT] = 0
        self._driver("cuEventRecord", self._base, self._stream)
        self._driver("cuEventSynchronize", self._base)
        self._began = time.monotonic_ns()

    def _elapsed(self, first: int, second: int) -> float:
        """Return the nanoseconds between two events."""
        found = ctypes.c_float()
        self._driver("cuEventElapsedTime", ctypes.addressof(found), first, second)
        return 1e6 * found.value

    def _record(self, what: int, stream: int) -> None:
        count = self._count
        self._buffer[TraceBuffer.COUNT] = count + 1
        if count < self._room:
            place = TraceBuffer.HEAD + 2 * count
            self._buffer[place + 1] = what
            self._driver("cuEventRecord", int(self._buffer[place]), stream)


def record_of(marks: DeviceMarks | None) -> DeviceRecord:
    """Return what marks have told; of a device that was started again, nothing."""
    return DeviceRecord([], 0) if marks is None else DeviceRecord(marks.calls, marks.dropped)
