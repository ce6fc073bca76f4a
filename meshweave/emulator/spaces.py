"""Reads and writes of each memory space, with the checks: bounds, alignment, reads of what nothing
wrote, races. Addresses come for the active lanes alone; rows of values go out in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.emulator.memory import (
    EMPTY,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    WRITTEN,
    Segment,
)
from meshweave.emulator.program import Instruction
from meshweave.emulator.races import Race, Touch

if TYPE_CHECKING:
    from meshweave.emulator.machine import Machine


class Access:
    """One static access: instruction, bytes of it, bytes of an element, constant offset.

    Remembers the segment that it met last in the launch.
    """

    def __init__(self, instruction: Instruction, nbytes: int, width: int, offset: int) -> None:
        self.instruction, self.offset = instruction, offset
        self.nbytes, self.width = nbytes, width
        self.log2 = nbytes.bit_length() - 1
        self.segment: Segment | None = None

    @property
    def line(self) -> int:
        """The line of the instruction."""
        return self.instruction.line

    def fault(self, machine: Machine, what: str, place: int) -> Exception:
        """An error of the active lane number `place`."""
        lanes = machine.lanes
        lane = int(lanes[min(place, len(lanes) - 1)])
        return machine.fault(self.line, f"{self.instruction.opcode}: {what}", lane)


class GlobalSpace:
    """Global memory, and constants, which lie there too."""

    name = "global"

    def read(self, machine: Machine, access: Access, addresses: np.ndarray) -> np.ndarray:
        """The rows at some addresses (before the offset is added)."""
        found = self._rows(machine, access, addresses)
        if found is None:
            return self._pieces(machine, access, addresses, None)
        segment, rows, view = found
        if machine.checks.races:
            self._note(machine, access, segment, rows, None, view)
        self._count(machine, access, addresses)
        out: np.ndarray = view.take(rows, axis=0, mode="clip")
        return out

    def write(
        self,
        machine: Machine,
        access: Access,
        addresses: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Store rows at some addresses."""
        found = self._rows(machine, access, addresses)
        if found is None:
            self._pieces(machine, access, addresses, values)
            return
        segment, rows, view = found
        if machine.checks.races:
            self._note(machine, access, segment, rows, values, view)
        view[rows] = values
        if machine.checks.races:
            same_bytes(machine, access, view, rows, values)
        self._count(machine, access, addresses)

    def _count(self, machine: Machine, access: Access, addresses: np.ndarray) -> None:
        if machine.traffic is not None:
            by = np.uint64(access.offset & 0xFFFFFFFFFFFFFFFF)
            machine.traffic.note_global(access, addresses + by, machine.lanes)

    def rows(self, machine: Machine, access: Access, addresses: np.ndarray) -> Any:
        """Segment, rows and view of an atomic access, whose lanes must be in one segment."""
        found = self._rows(machine, access, addresses)
        if found is None:
            raise access.fault(machine, "atomics on several buffers at once are not emulated", 0)
        return found

    def _rows(self, machine: Machine, access: Access, addresses: np.ndarray) -> Any:
        """Segment, rows and view; None where the addresses are of several segments."""
        memory = machine.launch.memory
        segment = access.segment
        for attempt in range(2):
            if segment is not None:
                window = segment.window(access.nbytes, access.width)
                start = np.uint64((window.origin - access.offset) & 0xFFFFFFFFFFFFFFFF)
                offsets = np.subtract(addresses, start)
                if int(offsets.max()) <= window.limit:
                    if access.log2:
                        if int(np.bitwise_or.reduce(offsets)) & (access.nbytes - 1):
                            self._misaligned(machine, access, addresses)
                        offsets >>= np.uint64(access.log2)
                    if segment is not access.segment:
                        access.segment = segment
                        machine.launch.met.add(access)
                    return segment, offsets.view(np.int64), window.rows
            if attempt == 0:
                segment = memory.find(int(addresses[0]) + access.offset)
                if segment is None:
                    self._outside(machine, access, addresses)
        return None

    def _pieces(
        self,
        machine: Machine,
        access: Access,
        addresses: np.ndarray,
        values: np.ndarray | None,
    ) -> np.ndarray:
        """Do an access segment by segment. Raises EmulationError for addresses in none."""
        real = addresses + np.uint64(access.offset & 0xFFFFFFFFFFFFFFFF)
        memory = machine.launch.memory
        bases = np.array(memory.bases, np.uint64)
        ends = np.array([segment.end for segment in memory.segments], np.uint64)
        at = np.searchsorted(bases, real, "right") - 1
        wrong = (at < 0) | (real + np.uint64(access.nbytes) > ends[np.maximum(at, 0)])
        if wrong.any():
            self._outside(machine, access, addresses[wrong], int(np.argmax(wrong)))
        shape = (len(real), access.nbytes // access.width)
        out = np.empty(shape if shape[1] > 1 else shape[:1], f"u{access.width}")
        every = machine.lanes
        for number in np.unique(at):
            part = at == number
            machine.lanes = every[part]
            if values is None:
                out[part] = self.read(machine, access, addresses[part])
            else:
                self.write(machine, access, addresses[part], values[part])
        machine.lanes = every
        return out

    def _outside(
        self, machine: Machine, access: Access, addresses: np.ndarray, place: int = 0
    ) -> None:
        address = int(addresses[0]) + access.offset
        if address >= SHARED_WINDOW:
            raise access.fault(machine, f"address {address:#x} is not of global memory", place)
        where = machine.launch.memory.near(address + access.nbytes - 1)
        segment = machine.launch.memory.find(address)
        if segment is not None:
            where = f"past the end of {segment.name}"
        what = f"{access.nbytes} bytes at {address:#x} are out of bounds: {where}"
        raise access.fault(machine, what, place)

    def _misaligned(self, machine: Machine, access: Access, addresses: np.ndarray) -> None:
        real = addresses + np.uint64(access.offset & 0xFFFFFFFFFFFFFFFF)
        odd = (real & np.uint64(access.nbytes - 1)) != 0
        place = int(np.argmax(odd))
        what = f"address {int(real[place]):#x} is not a multiple of {access.nbytes}"
        raise access.fault(machine, what, place)

    def _note(
        self,
        machine: Machine,
        access: Access,
        segment: Segment,
        rows: np.ndarray,
        values: np.ndarray | None,
        view: np.ndarray,
    ) -> None:
        shift, order = machine.kernel.global_shift, machine.order
        tracker = segment.tracker(shift)
        tracker.begin(machine.launch.number)
        floor = segment.base >> shift << shift
        first = (-(-segment.base // access.nbytes) * access.nbytes - floor) >> shift
        touch = Touch.of(rows, machine.lanes, access.log2 - shift, first, order)
        if values is None:
            race = tracker.read(touch, order, order.first)
        else:
            same = unchanged(view, rows, values, 1 << touch.log2)
            race = tracker.write(touch, order, order.first, same)
        if race is not None:
            address = floor + (race.granule << shift)
            report(
                machine,
                access,
                race,
                f"{segment.name} at {address:#x}",
                values is not None,
            )


class SharedSpace:
    """Shared memory of the batch."""

    name = "shared"

    def read(self, machine: Machine, access: Access, addresses: np.ndarray) -> np.ndarray:
        """The rows at some addresses (before the offset is added)."""
        rows = self.rows(machine, access, addresses, write=False)
        return machine.shared.rows(access.nbytes, access.width).take(rows, axis=0, mode="clip")

    def write(
        self,
        machine: Machine,
        access: Access,
        addresses: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Store rows at some addresses."""
        rows = self.rows(machine, access, addresses, write=True, values=values)
        view = machine.shared.rows(access.nbytes, access.width)
        view[rows] = values
        if machine.checks.races:
            same_bytes(machine, access, view, rows, values)

    def rows(
        self,
        machine: Machine,
        access: Access,
        addresses: np.ndarray,
        write: bool,
        values: np.ndarray | None = None,
        state: int = WRITTEN,
    ) -> np.ndarray:
        """Rows of the accesses, checked and noted. state: what a write leaves."""
        shared = machine.shared
        places = offsets(machine, access, addresses, shared.size, self.name)
        rows = (places + shared.base[machine.lanes]) >> access.log2
        log2, within = access.log2 - shared.shift, places >> access.log2
        touch = Touch.of(rows, machine.lanes, log2, 0, machine.order, within)
        if write or machine.checks.uninitialised:
            granules, lanes = touch.granules()
            if write:
                shared.state[granules] = state
            else:
                self._written(machine, access, granules, lanes)
        if machine.checks.races:
            self._note(machine, access, touch, values, write)
        if machine.traffic is not None and state == WRITTEN:  # a copy counts when it lands
            machine.traffic.note_shared(access, places, machine.lanes)
        return rows

    def _written(
        self, machine: Machine, access: Access, granules: np.ndarray, lanes: np.ndarray
    ) -> None:
        shared = machine.shared
        states = shared.state[granules]
        if (states != WRITTEN).any():
            at = int(np.argmax(states != WRITTEN))
            why = "which nothing wrote" if states[at] == EMPTY else "where a cp.async is in flight"
            byte = (int(granules[at]) << shared.shift) % shared.stride
            what = f"{access.instruction.opcode}: reads shared byte {byte}, {why}"
            raise machine.fault(access.line, what, int(lanes[at]))

    def _note(
        self,
        machine: Machine,
        access: Access,
        touch: Touch,
        values: np.ndarray | None,
        write: bool,
    ) -> None:
        shared, order = machine.shared, machine.order
        if write:
            view = shared.rows(access.nbytes, access.width)
            same = unchanged(view, touch.rows, values, 1 << touch.log2)
            race = shared.tracker.write(touch, order, order.floor, same)
        else:
            race = shared.tracker.read(touch, order, order.floor)
        if race is not None:
            byte = (race.granule << shared.shift) % shared.stride
            report(machine, access, race, f"shared byte {byte}", write)


class LocalSpace:
    """Local memory: each thread has its own."""

    name = "local"

    def read(self, machine: Machine, access: Access, addresses: np.ndarray) -> np.ndarray:
        """The rows at some addresses (before the offset is added)."""
        local = machine.local
        places = offsets(machine, access, addresses, local.size, self.name)
        rows = (places + local.base[machine.lanes]) >> access.log2
        return local.rows(access.nbytes, access.width).take(rows, axis=0, mode="clip")

    def write(
        self,
        machine: Machine,
        access: Access,
        addresses: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Store rows at some addresses."""
        local = machine.local
        places = offsets(machine, access, addresses, local.size, self.name)
        rows = (places + local.base[machine.lanes]) >> access.log2
        local.rows(access.nbytes, access.width)[rows] = values


class GenericSpace:
    """Generic addresses: shared and local memory are windows of them, the rest is global."""

    name = "generic"

    def read(self, machine: Machine, access: Access, addresses: np.ndarray) -> np.ndarray:
        """The rows at some addresses (before the offset is added)."""
        space, addresses = self._space(machine, access, addresses)
        out: np.ndarray = space.read(machine, access, addresses)
        return out

    def write(
        self,
        machine: Machine,
        access: Access,
        addresses: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Store rows at some addresses."""
        space, addresses = self._space(machine, access, addresses)
        space.write(machine, access, addresses, values)

    def _space(self, machine: Machine, access: Access, addresses: np.ndarray) -> Any:
        low, high = int(addresses.min()), int(addresses.max())
        if high < SHARED_WINDOW:
            return SPACES["global"], addresses
        if low >= SHARED_WINDOW and high < LOCAL_WINDOW:
            return SPACES["shared"], addresses - np.uint64(SHARED_WINDOW)
        if low >= LOCAL_WINDOW:
            return SPACES["local"], addresses - np.uint64(LOCAL_WINDOW)
        raise access.fault(machine, "one access to several memory spaces is not emulated", 0)


SPACES: dict[str, Any] = {
    space.name: space for space in (GlobalSpace(), SharedSpace(), LocalSpace(), GenericSpace())
}


def offsets(
    machine: Machine, access: Access, addresses: np.ndarray, size: int, name: str
) -> np.ndarray:
    """Byte offsets of accesses to a memory of `size` bytes, checked, as i64, one for each lane."""
    places = addresses.astype(np.int64) + access.offset
    if int(places.min()) < 0 or int(places.max()) + access.nbytes > size:
        wrong = (places < 0) | (places + access.nbytes > size)
        place = int(np.argmax(wrong))
        at = int(places[place])
        what = f"{access.nbytes} bytes at {name} byte {at} are out of bounds: it has {size}"
        raise access.fault(machine, what, place)
    if access.log2 and int(np.bitwise_or.reduce(places)) & (access.nbytes - 1):
        place = int(np.argmax((places & (access.nbytes - 1)) != 0))
        what = f"{name} byte {int(places[place])} is not a multiple of {access.nbytes}"
        raise access.fault(machine, what, place)
    return places


def unchanged(
    view: np.ndarray, rows: np.ndarray, values: np.ndarray | None, count: int
) -> Callable[[], np.ndarray]:
    """Tells, for each granule, whether the row that it is part of stays as it is."""

    def same() -> np.ndarray:
        if values is None:
            return np.zeros(len(rows) * count, bool)
        equal = view[rows] == values
        return np.repeat(equal.all(1) if equal.ndim > 1 else equal, count)

    return same


def same_bytes(
    machine: Machine,
    access: Access,
    view: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
) -> None:
    """Check that no two lanes of one instruction wrote different values to one place."""
    differs = view[rows] != values
    if differs.any():
        place = int(np.argmax(differs.any(1) if differs.ndim > 1 else differs))
        what = "race: another thread writes another value to the same place"
        raise access.fault(machine, what, place)


def report(machine: Machine, access: Access, race: Race, where: str, write: bool) -> None:
    """Raise the error of a race."""
    block, warp = divmod(race.warp, machine.order.per_block)
    did = "wrote" if race.wrote else "read"
    what = (
        f"race: {'writes' if write else 'reads'} {where}, which warp {warp} of block {block} {did} "
        "in this launch, and no barrier orders the two"
    )
    raise machine.fault(access.line, f"{access.instruction.opcode}: {what}", race.lane)
