"""Queue work for a device: know what of it may still be under way, and copy arrays through pinned memory.

A copy from pinned memory is read when its stream comes to it. So the memory is used again only once an event behind the
copy has passed.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from meshweave.abi import rounded
from meshweave.errors import RankError
from meshweave.runtime.gpu.driver import Driver
from meshweave.runtime.gpu.interface import EVENT_NO_TIMING
from meshweave.runtime.memory import Values

MOST_STEPS = 32  # that a rank's device is given ahead of what it has done
_MOST_PIECES = 64  # copies under way
_PIECE = 4 << 20  # bytes that are copied at once
_ROOM = 32 << 20  # bytes of pinned memory, at most
_THREADS = 4  # that fill it from large arrays: one alone is slower than the bus


# Gives the error of work that was enqueued before, by the driver's code.
Late = Callable[[int], RankError]


class Piece(NamedTuple):
    """Name work on a stream: the event behind it, and the bytes of pinned memory that it reads, from and to."""

    event: int
    start: int = 0
    end: int = 0


class InFlight:
    """Keep an event behind each piece of work that may be under way, the oldest first.

    landed: how many pieces are known to be done.
    """

    def __init__(self, driver: Driver, held: ExitStack, most: int, late: Late) -> None:
        """Know of nothing. most: pieces at a time; events live until `held` is closed; late: describes an error."""
        self._driver, self._held, self._most, self._late = driver, held, most, late
        self._pieces: deque[Piece] = deque()
        self._events: list[int] = []  # that nothing needs
        self.landed = 0

    def add(self, stream: int, start: int = 0, end: int = 0) -> None:
        """Put an event behind what a stream has been given. Waits for the oldest piece where there are too many."""
        if self.is_full:
            self.wait()
        create = ("cuEventCreate", "cuEventDestroy_v2")
        event = self._events.pop() if self._events else 0
        event = event or self._driver.made(self._held, *create, EVENT_NO_TIMING)
        self._driver("cuEventRecord", event, stream)
        self._pieces.append(Piece(event, start, end))

    def wait(self) -> None:
        """Wait for the oldest piece. Raises RankError when something has failed on the device."""
        if code := self._driver.code("cuEventSynchronize", self._pieces[0].event):
            raise self._late(code)
        self._end()

    def wait_for(self, start: int, end: int) -> None:
        """Wait for all pieces that read any of these bytes."""
        while any(piece.start < end and start < piece.end for piece in self._pieces):
            self.wait()

    def look(self) -> None:
        """Find out which of the oldest are done."""
        while self._pieces and self._driver.code("cuEventQuery", self._pieces[0].event) == 0:
            self._end()

    def settled(self) -> None:
        """Note that all of it is done."""
        while self._pieces:
            self._end()

    @property
    def is_full(self) -> bool:
        """Tell whether as many pieces as there may be are under way."""
        return len(self._pieces) == self._most

    @property
    def last(self) -> int:
        """Return the event behind the last piece; 0 where all are done."""
        return self._pieces[-1].event if self._pieces else 0

    def passed(self) -> int:
        """Count the pieces that are done, from any thread."""
        query = self._driver.code
        return self.landed + sum(query("cuEventQuery", p.event) == 0 for p in tuple(self._pieces))

    def _end(self) -> None:
        self._events.append(self._pieces.popleft().event)
        self.landed += 1


class Staging:
    """Copy arrays to a device through a ring of pinned memory, which is made for the first of them."""

    def __init__(self, driver: Driver, held: ExitStack, nbytes: int, late: Late) -> None:
        """Hold nothing yet. nbytes: of all arrays of a call; the ring has room for several calls of small ones."""
        self._driver, self._held = driver, held
        self._nbytes = min(_ROOM, rounded(8 * max(1, nbytes)))
        self._pieces = InFlight(driver, held, _MOST_PIECES, late)
        self._memory = np.zeros(0, np.uint8)
        self._next = 0

    def copy(self, address: int, value: Values, stream: int) -> None:
        """Enqueue a copy of a contiguous array, which may be written as soon as this returns."""
        data = value.reshape(-1).view(np.uint8)
        if not len(self._memory):
            self._memory = self._pinned()
        most = min(_PIECE, self._nbytes)
        parts = [(first, data[first : first + most]) for first in range(0, len(data), most)]
        if len(parts) > 2 * _THREADS and len(self._memory) > (_THREADS + 1) * most:
            self._copy_many(address, parts, stream)
            return
        for first, part in parts:
            start, end = self._room(len(part))
            self._memory[start:end] = part
            self._send(address + first, start, end, stream)

    def _copy_many(self, address: int, parts: Sequence[tuple[int, Values]], stream: int) -> None:
        """Copy the parts of a large array, several of which threads bring to pinned memory while others are sent."""
        coming: deque[tuple[Future[None], int, int, int]] = deque()

        def send() -> None:
            done, first, start, end = coming.popleft()
            done.result()
            self._send(address + first, start, end, stream)

        with ThreadPoolExecutor(_THREADS) as threads:
            for first, part in parts:
                if len(coming) == _THREADS:
                    send()
                start, end = self._room(len(part))
                coming.append(
                    (threads.submit(np.copyto, self._memory[start:end], part), first, start, end)
                )
            while coming:
                send()

    def _send(self, address: int, start: int, end: int, stream: int) -> None:
        """Enqueue the copy of a piece of pinned memory."""
        source = self._memory.ctypes.data + start
        self._driver("cuMemcpyHtoDAsync_v2", address, source, end - start, stream)
        self._pieces.add(stream, start, end)

    def settled(self) -> None:
        """Note that all copies are done."""
        self._pieces.settled()

    def _room(self, nbytes: int) -> tuple[int, int]:
        """Return where a piece goes, once nothing reads what was there."""
        start = self._next if self._next + nbytes <= self._nbytes else 0
        self._pieces.look()
        self._pieces.wait_for(start, start + nbytes)
        self._next = rounded(start + nbytes)
        return start, start + nbytes

    def _pinned(self) -> Values:
        address = self._driver.handle("cuMemHostAlloc", self._nbytes, 0)
        self._held.callback(self._driver.code, "cuMemFreeHost", address)
        memory = (ctypes.c_uint8 * self._nbytes).from_address(address)
        return np.frombuffer(memoryview(memory), np.uint8)
