"""Run kernels on the emulator, and remember what each launch did.

What a kernel did is kept by its launch and by all bytes that it read, so that ranks with equal
data, and further interleavings of a program, cost a copy instead of an emulation.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.errors import MeshweaveError
from meshweave.simulator import ptx as emulator
from meshweave.simulator.driver.kernels import KernelParameter, Size, entries
from meshweave.simulator.driver.memory import Allocation, DeviceMemory
from meshweave.simulator.driver.races import Ranges, merged, no_ranges

_MOST_EFFECTS = 16  # kept of one launch
_MOST_BYTES = 64 << 20  # written by an effect that is kept


class ReachableMemory:
    """Find the memory that a launch can reach: the allocations that its pointers point into.

    An offset is counted from the first pointer into its allocation, so that it means the same on every rank.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        rank: int,
        kinds: Sequence[KernelParameter],
        values: Sequence[bytes],
    ) -> None:
        self.reachable: list[Allocation] = []
        self._anchors: list[int] = []
        self._parts: list[bytes] = []
        for kind, value in zip(kinds, values, strict=True):
            address = int.from_bytes(value, "little")
            found = memory.find(address) if kind.is_pointer else None
            if found is None or found.rank != rank:
                self._parts.append(value)
                continue
            if found not in self.reachable:
                self.reachable.append(found)
                self._anchors.append(address)
            place = self.reachable.index(found)
            offset = address - self._anchors[place]
            self._parts.append(repr((place, offset, address % 256)).encode())

    def key(self, launch: bytes) -> bytes:
        """Return a digest that launches with the same effect share."""
        return _digest([launch, *self._parts])

    def relative(self, ranges: Ranges) -> list[Ranges]:
        """Split ranges by allocation, each counted from the allocation's anchor."""
        return [
            ranges[(ranges[:, 0] >= each.address) & (ranges[:, 0] < each.end)] - anchor
            for each, anchor in zip(self.reachable, self._anchors, strict=True)
        ]

    def absolute(self, relative: Sequence[Ranges]) -> Ranges:
        """Undo `relative`, in this frame's memory.

        The ranges come allocation after allocation, which need not be the order of their addresses.
        """
        parts = [part + anchor for part, anchor in zip(relative, self._anchors, strict=True)]
        return np.concatenate([no_ranges(), *parts])

    def holds(self, ranges: Ranges) -> bool:
        """Tell whether ranges lie within the memory."""
        inside = sum(
            int(((ranges[:, 0] >= each.address) & (ranges[:, 1] <= each.end)).sum())
            for each in self.reachable
        )
        return inside == len(ranges)


@dataclass(frozen=True)
class Effect:
    """Hold what a launch read, with a digest of it, and what it wrote."""

    reads: list[Ranges]
    read: bytes
    writes: list[Ranges]
    written: bytes

    def apply(self, frame: ReachableMemory) -> tuple[Ranges, Ranges] | None:
        """Repeat the effect in a frame and return the ranges read and written.

        None where the memory that was read is not the same in this frame.
        """
        reads, writes = frame.absolute(self.reads), frame.absolute(self.writes)
        if not frame.holds(reads) or not frame.holds(writes):
            return None
        if _digest([contents(reads)]) != self.read:
            return None
        start = 0
        for low, high in writes:
            nbytes = int(high - low)
            ctypes.memmove(int(low), self.written[start : start + nbytes], nbytes)
            start += nbytes
        return merged(reads), merged(writes)


class EmulatedKernels:
    """Run kernels with `meshweave.simulator.ptx`.

    checks: look for races and for accesses out of bounds. The checks also tell which bytes a kernel touches; without
    them no effect is remembered.
    """

    def __init__(self, checks: bool = True) -> None:
        self._checks = checks
        self._modules: dict[str, tuple[Any, dict[str, tuple[KernelParameter, ...]]]] = {}
        self._done: dict[bytes, list[Effect]] = {}
        self.emulated = 0  # launches that were not known

    def module(self, ptx: str) -> Any:
        """Parse a PTX text, once. See KernelRunner."""
        if ptx not in self._modules:
            found = entries(ptx)
            if not found:
                raise MeshweaveError("the device code has no kernel: no .entry in its PTX")
            self._modules[ptx] = emulator.parse(ptx), found
        return self._modules[ptx]

    def entries(self, module: Any) -> dict[str, tuple[KernelParameter, ...]]:
        """Return the kernels of a module. See KernelRunner."""
        found: dict[str, tuple[KernelParameter, ...]] = module[1]
        return found

    def launch(
        self, module: Any, entry: str, grid: Size, block: Size, shared: int,
        parameters: Sequence[bytes], rank: int, memory: DeviceMemory,
    ) -> tuple[Ranges, Ranges]:  # fmt: skip
        """Run a kernel, or repeat the effect of an equal launch. See KernelRunner."""
        frame = ReachableMemory(memory, rank, self.entries(module)[entry], parameters)
        launch = module[0], entry, grid, block, shared, parameters
        if not self._checks:
            self._emulate(frame, *launch)
            return no_ranges(), no_ranges()
        key = frame.key(repr((id(module[0]), entry, grid, block, shared)).encode())
        known = self._done.setdefault(key, [])
        for effect in known:
            if (touched := effect.apply(frame)) is not None:
                return touched
        before = {each.address: each.data.copy() for each in frame.reachable}
        reads, writes = self._emulate(frame, *launch)
        small = int((writes[:, 1] - writes[:, 0]).sum()) <= _MOST_BYTES
        if small:
            read, written = frame.relative(reads), frame.relative(writes)
            data = contents(frame.absolute(written))
            digest = _digest([_earlier(before, frame, frame.absolute(read))])
            known.insert(0, Effect(read, digest, written, data))
            del known[_MOST_EFFECTS:]
        return reads, writes

    def _emulate(
        self, frame: ReachableMemory, module: Any, entry: str, grid: Size, block: Size, shared: int,
        parameters: Sequence[bytes],
    ) -> tuple[Ranges, Ranges]:  # fmt: skip
        self.emulated += 1
        memory, sets = emulator.GlobalMemory(), emulator.AccessSets()
        for each in frame.reachable:
            memory.add(each.address, each.data, each.name)
        on = self._checks
        checks = emulator.Checks(races=on, uninitialised=on, collectives=on)
        emulator.launch(module, entry, grid, block, shared, parameters, memory, checks, sets)
        return merged(sets.reads()), merged(sets.writes())


def _digest(parts: Sequence[bytes]) -> bytes:
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def contents(ranges: Ranges) -> bytes:
    """Return the bytes at some addresses, joined."""
    return b"".join(ctypes.string_at(int(low), int(high - low)) for low, high in ranges)


def _earlier(before: dict[int, Any], frame: ReachableMemory, ranges: Ranges) -> bytes:
    """Return the bytes that were there before the launch, joined. before: copies of the allocations by address."""
    parts = []
    for low, high in ranges:
        each = next(a for a in frame.reachable if a.address <= low < a.end)
        parts.append(before[each.address][low - each.address : high - each.address].tobytes())
    return b"".join(parts)
