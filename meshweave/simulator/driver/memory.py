"""Give the recorder's devices memory on the host; each allocation is known by its rank and its name."""

from __future__ import annotations

import bisect
import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.errors import RankError

Bytes = npt.NDArray[np.uint8]
_ALIGNMENT = 256  # of cuMemAlloc
_POISON = 0xFF  # what new memory holds: NaN in every float type
_MOST_FILLED = 4 << 30  # bytes; larger memory is there as far as it is touched
_NO_RESERVE = 0x4000  # MAP_NORESERVE


@dataclass(frozen=True, eq=False)
class Allocation:
    """Hold the bytes of one allocation of a rank. host: pinned memory of the host, which device code may use too."""

    rank: int
    name: str
    address: int
    data: Bytes
    host: bool = False

    @property
    def end(self) -> int:
        """Return the address after the last byte."""
        return self.address + len(self.data)


class DeviceMemory:
    """Keep the allocations of all ranks, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: list[Allocation] = []
        self._counts: dict[int, int] = {}

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._found)

    def add(self, rank: int, nbytes: int, host: bool = False) -> Allocation:
        """Allocate `nbytes`, filled with poison (NaN patterns); very many are zeros that are there once touched."""
        size = nbytes + _ALIGNMENT
        if nbytes > _MOST_FILLED:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            whole = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
        else:
            whole = np.full(size, _POISON, np.uint8)
        start = -whole.ctypes.data % _ALIGNMENT
        data = whole[start : start + nbytes]
        number = self._counts[rank] = self._counts.get(rank, -1) + 1
        made = Allocation(rank, f"m{number}", int(data.ctypes.data), data, host)
        self._put(made)
        return made

    def _put(self, made: Allocation) -> None:
        place = bisect.bisect(self._starts, made.address)
        self._starts.insert(place, made.address)
        self._found.insert(place, made)

    def remove(self, address: int) -> bool:
        """Free an allocation. Returns False when none begins at the address."""
        place = bisect.bisect_left(self._starts, address)
        if place == len(self._starts) or self._starts[place] != address:
            return False
        del self._starts[place], self._found[place]
        return True

    def rename(self, address: int, name: str) -> None:
        """Give the allocation at an address a name that says what it is for."""
        found = self.find(address)
        assert found is not None
        self.remove(found.address)
        self._put(Allocation(found.rank, name, found.address, found.data, found.host))

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that holds the byte at an address."""
        place = bisect.bisect(self._starts, address) - 1
        if place < 0 or address >= max(self._found[place].end, self._found[place].address + 1):
            return None
        return self._found[place]

    def describe(self, address: int) -> str:
        """Return `arena+64`, or the number itself where it is no device memory."""
        found = self.find(address)
        if found is None:
            return f"{address:#x}"
        offset = address - found.address
        return f"{found.name}+{offset}" if offset else found.name

    def view(self, rank: int, address: int, nbytes: int, what: str) -> Bytes:
        """View `nbytes` at `address` of a rank.

        Raises RankError, prefixed with `what`, if the rank does not own them.
        """
        found = self.find(address)
        if found is None and nbytes == 0:
            return np.zeros(0, np.uint8)
        if found is None:
            raise RankError(f"rank {rank}: {what}: {address:#x} is no memory of a device")
        if found.rank != rank:
            raise RankError(
                f"rank {rank}: {what}: {self.describe(address)} is memory of rank {found.rank}"
            )
        start = address - found.address
        if start + nbytes > len(found.data):
            raise RankError(
                f"rank {rank}: {what}: {nbytes} bytes at {self.describe(address)} reach "
                f"{start + nbytes - len(found.data)} beyond its {len(found.data)} bytes"
            )
        return found.data[start : start + nbytes]


def put(pointer: int, value: int, kind: Any = ctypes.c_int64) -> None:
    """Write a result to where the caller wants it."""
    kind.from_address(pointer).value = value
