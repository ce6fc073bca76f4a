"""Provide global, shared and local memory, and describe what accesses it.

Global memory is buffers at their real addresses; shared and local memory belong to a batch of blocks.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.program import Instruction
from meshweave.simulator.ptx.races import Tracker

SHARED_WINDOW = 1 << 60  # where shared and local memory lie among generic addresses
LOCAL_WINDOW = 1 << 61
POISON = 0xFF  # a NaN in every floating type
EMPTY, WRITTEN, IN_FLIGHT = 0, 1, 2  # state of a granule of shared memory


class RowWindow(NamedTuple):
    """View a memory as rows of one access each.

    origin: the address of the first row. limit: the highest offset of an access from there.
    """

    origin: int
    limit: int
    rows: np.ndarray


class Segment:
    """Hold a buffer of global memory: bytes at an address."""

    def __init__(self, base: int, data: np.ndarray, name: str) -> None:
        self.base, self.data, self.name = base, data, name
        self.windows: dict[tuple[int, int], RowWindow] = {}
        self.trackers: dict[int, Tracker] = {}

    @property
    def end(self) -> int:
        """Return the address after the last byte."""
        return self.base + len(self.data)

    def window(self, nbytes: int, width: int) -> RowWindow:
        """View the segment as rows of aligned accesses of `nbytes`, in elements of `width` bytes."""
        key = (nbytes, width)
        if key not in self.windows:
            start = -self.base % nbytes
            body = self.data[start : start + max(0, len(self.data) - start) // nbytes * nbytes]
            rows = body.view(f"u{width}")
            rows = rows.reshape(-1, nbytes // width) if nbytes > width else rows
            self.windows[key] = RowWindow(self.base + start, len(self.data) - start - nbytes, rows)
        return self.windows[key]

    def tracker(self, shift: int) -> Tracker:
        """Return the tracker of who touched the granules of 2^shift bytes."""
        if shift not in self.trackers:
            self.trackers[shift] = Tracker((len(self.data) >> shift) + 2)
        return self.trackers[shift]


class MemoryAccess:
    """Describe one static access: instruction, bytes of it, bytes of an element, constant offset.

    Remembers the segment that it met last in the launch.
    """

    def __init__(self, instruction: Instruction, nbytes: int, width: int, offset: int) -> None:
        self.instruction, self.offset = instruction, offset
        self.nbytes, self.width = nbytes, width
        self.log2 = nbytes.bit_length() - 1
        self.segment: Segment | None = None

    @property
    def line(self) -> int:
        """Return the line of the instruction."""
        return self.instruction.line

    def real(self, addresses: np.ndarray) -> np.ndarray:
        """Return the addresses with the offset."""
        out: np.ndarray = addresses + np.uint64(self.offset & 0xFFFFFFFFFFFFFFFF)
        return out


class GlobalMemory:
    """Keep the buffers of global memory by address. clock: the next stamp of the race check."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        self.clock = 1

    def add(self, address: int, data: np.ndarray, name: str) -> None:
        """Make bytes known at an address; `data` is a view of them as uint8.

        Raises EmulationError where another buffer is.
        """
        data = data.reshape(-1)
        if data.dtype != np.uint8:
            raise EmulationError(f"memory {name}: bytes (uint8) are needed, got {data.dtype}")
        at = bisect.bisect_right(self.bases, address)
        for other in self.segments[max(0, at - 1) : at + 1]:
            if address < other.end and other.base < address + len(data):
                raise EmulationError(
                    f"memory {name} at {address:#x} ({len(data)} bytes) overlaps {other.name} "
                    f"at {other.base:#x} ({len(other.data)} bytes)"
                )
        self.bases.insert(at, address)
        self.segments.insert(at, Segment(address, data, name))

    def remove(self, address: int) -> None:
        """Forget the buffer that starts at an address. Raises EmulationError where there is none."""
        at = bisect.bisect_left(self.bases, address)
        if at == len(self.bases) or self.bases[at] != address:
            raise EmulationError(f"memory: no buffer starts at {address:#x}")
        del self.bases[at], self.segments[at]

    def find(self, address: int) -> Segment | None:
        """Return the segment that holds an address."""
        at = bisect.bisect_right(self.bases, address) - 1
        if at >= 0 and address < self.segments[at].end:
            return self.segments[at]
        return None

    def near(self, address: int) -> str:
        """Name the buffer before an address that is outside every buffer."""
        at = bisect.bisect_right(self.bases, address) - 1
        if at < 0:
            return "before every buffer"
        segment = self.segments[at]
        return f"{address - segment.end} bytes after the end of {segment.name}"


class AsyncProxy:
    """Keep what the tensor cores may not read yet of shared memory, and what they still read.

    hidden: for each granule, the lane (counted from 1) that wrote it and has not shown it; reading: how many
    products read it.
    """

    def __init__(self, granules: int, threads: int) -> None:
        self.hidden = np.zeros(granules, np.int32)
        self.reading = np.zeros(granules, np.int32)
        self.threads = threads

    def show(self, lanes: np.ndarray) -> None:
        """Show what some lanes have written."""
        shown = np.zeros(self.threads + 1, bool)
        shown[lanes + 1] = True
        self.hidden[shown[self.hidden]] = 0

    def begin(self, granules: np.ndarray) -> tuple[int, int] | None:
        """Begin to read; return the first granule that is hidden, and who wrote it, if any is."""
        writers = self.hidden[granules]
        if writers.any():
            at = int(np.argmax(writers != 0))
            return int(granules[at]), int(writers[at]) - 1
        self.reading[granules] += 1
        return None

    def end(self, granules: np.ndarray) -> None:
        """End to read."""
        self.reading[granules] -= 1

    def write(self, granules: np.ndarray, lanes: np.ndarray) -> tuple[int, int] | None:
        """Note what lanes write; return the first granule that is still read, and its lane, if any is."""
        read = self.reading[granules] > 0
        if read.any():
            at = int(np.argmax(read))
            return int(granules[at]), int(lanes[at])
        self.hidden[granules] = lanes + 1
        return None


class SharedMemory:
    """Hold the shared memory of the blocks of a batch, one after the other.

    size: bytes of a block; shift: log2 of the granule, the narrowest access of the kernel; proxy: whether
    tensor cores read it by themselves.
    """

    def __init__(self, blocks: np.ndarray, size: int, shift: int, proxy: bool = False) -> None:
        self.size, self.shift = size, shift
        self.stride = -(-size // 128) * 128
        count = (int(blocks.max()) + 1) * self.stride
        self.data = np.full(count, POISON, np.uint8)
        self.state = np.zeros(((count >> shift) + 15) // 16 * 16, np.uint8)
        self.base = blocks.astype(np.int64) * self.stride  # of each lane
        self.tracker = Tracker(len(self.state))
        self.proxy = AsyncProxy(len(self.state), len(blocks)) if proxy else None
        self.windows: dict[tuple[int, int], np.ndarray] = {}

    def states(self, log2: int, state: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the state of each row of 2^log2 granules as one number (of 16 granules as two).

        The second result is that number for a row whose granules are all in `state`.
        """
        width = min(1 << log2, 8)
        rows = self.state.view(f"u{width}")
        whole = np.full(width, state, np.uint8).view(f"u{width}")
        return (rows.reshape(-1, 2) if log2 == 4 else rows), whole

    def rows(self, nbytes: int, width: int) -> np.ndarray:
        """View the memory as rows of `nbytes` in elements of `width` bytes."""
        key = (nbytes, width)
        if key not in self.windows:
            rows = self.data.view(f"u{width}")
            self.windows[key] = rows.reshape(-1, nbytes // width) if nbytes > width else rows
        return self.windows[key]


class LocalMemory:
    """Hold local memory: `size` bytes for each thread."""

    def __init__(self, threads: int, size: int) -> None:
        self.size = size
        self.stride = -(-size // 16) * 16
        self.data = np.full(threads * self.stride, POISON, np.uint8)
        self.base = np.arange(threads) * self.stride

    def rows(self, nbytes: int, width: int) -> np.ndarray:
        """View the memory as rows of `nbytes` in elements of `width` bytes."""
        rows = self.data.view(f"u{width}")
        return rows.reshape(-1, nbytes // width) if nbytes > width else rows
