"""Read and write each memory space, with its checks.

These find accesses out of bounds, bad alignment, reads of what nothing wrote, and races. Addresses come for the
active lanes alone; rows of values go out in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.memory import (
    EMPTY,
    IN_FLIGHT,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    WRITTEN,
    MemoryAccess,
    Segment,
)
from meshweave.simulator.ptx.races import BarrierOrder, LaneAccess, Race, Tracker


@dataclass(frozen=True, slots=True)
class AccessUse:
    """Say what an access does to its rows.

    values: those it writes; None where they are not known. state: what shared memory is after a write. counted:
    whether traffic counts it.
    """

    reads: bool = False
    writes: bool = False
    values: np.ndarray | None = None
    state: int = WRITTEN
    counted: bool = True


READ = AccessUse(reads=True)
READ_PIECE = AccessUse(reads=True, counted=False)  # of a wider load, which is counted as a whole
ATOMIC = AccessUse(reads=True, writes=True, counted=False)
FLIGHT = AccessUse(writes=True, state=IN_FLIGHT, counted=False)  # a copy counts when it lands

Placed = tuple[np.ndarray, np.ndarray]  # memory as rows of an access each, and which of them


class Space:
    """Access a memory space. Addresses come before the constant offset of their access is added."""

    name = ""
    shared = True  # among threads

    def read(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray, use: AccessUse = READ
    ) -> np.ndarray:
        """Return the rows at some addresses."""
        space, addresses = self.of(batch, access, addresses)
        placed = space.rows(batch, access, addresses, use)
        if placed is None:
            return _in_pieces(batch, access, addresses, use)
        view, rows = placed
        out: np.ndarray = view.take(rows, axis=0, mode="clip")
        return out

    def write(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray, values: np.ndarray
    ) -> None:
        """Store rows at some addresses."""
        space, addresses = self.of(batch, access, addresses)
        use = AccessUse(writes=True, values=values)
        placed = space.rows(batch, access, addresses, use)
        if placed is None:
            _in_pieces(batch, access, addresses, use)
            return
        view, rows = placed
        view[rows] = values
        if batch.checks.races and space.shared:
            _same_bytes(batch, access, view, rows, values)

    def atomic(self, batch: Batch, access: MemoryAccess, addresses: np.ndarray) -> Placed:
        """Return the rows that an atomic combines in place."""
        space, addresses = self.of(batch, access, addresses)
        if not space.shared:
            raise batch.fault_at(access, "atomics on local memory are not emulated", 0)
        placed = space.rows(batch, access, addresses, ATOMIC)
        if placed is None:
            raise batch.fault_at(access, "atomics on several buffers at once are not emulated", 0)
        return placed

    def of(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray
    ) -> tuple[Space, np.ndarray]:
        """Return the space that addresses belong to, and the addresses there."""
        return self, addresses

    def rows(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray, use: AccessUse
    ) -> Placed | None:
        """Return the rows of an access, checked and noted; None where they are in several buffers."""
        raise NotImplementedError

    def count(self, batch: Batch, access: MemoryAccess, addresses: np.ndarray) -> None:
        """Count the traffic."""


class GlobalSpace(Space):
    """Access global memory, and constants, which lie there too."""

    name = "global"

    def rows(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray, use: AccessUse
    ) -> Placed | None:
        """See Space."""
        found = self._find(batch, access, addresses)
        if found is None:
            return None
        segment, rows, view = found
        if batch.checks.races or batch.launch.access_sets is not None:
            self._note(batch, access, segment, rows, view, use)
        if use.counted:
            self.count(batch, access, addresses)
        return view, rows

    def count(self, batch: Batch, access: MemoryAccess, addresses: np.ndarray) -> None:
        """See Space."""
        if batch.traffic is not None:
            batch.traffic.note_global(access, access.real(addresses), batch.lanes)

    def _find(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray
    ) -> tuple[Segment, np.ndarray, np.ndarray] | None:
        """Return segment, rows and view; None where the addresses are in several segments."""
        memory = batch.launch.memory
        segment = access.segment
        for attempt in range(2):
            if segment is not None:
                window = segment.window(access.nbytes, access.width)
                start = np.uint64((window.origin - access.offset) & 0xFFFFFFFFFFFFFFFF)
                offsets = np.subtract(addresses, start)
                if int(offsets.max()) <= window.limit:
                    if access.log2:
                        if int(np.bitwise_or.reduce(offsets)) & (access.nbytes - 1):
                            batch.check_aligned(access, addresses)
                        offsets >>= np.uint64(access.log2)
                    if segment is not access.segment:
                        access.segment = segment
                        batch.launch.met.add(access)
                    return segment, offsets.view(np.int64), window.rows
            if attempt == 0:
                segment = memory.find(int(addresses[0]) + access.offset)
                if segment is None:
                    raise _outside(batch, access, addresses)
        return None

    def _note(
        self,
        batch: Batch,
        access: MemoryAccess,
        segment: Segment,
        rows: np.ndarray,
        view: np.ndarray,
        use: AccessUse,
    ) -> None:
        shift, order, launch = batch.kernel.global_shift, batch.order, batch.launch
        floor = segment.base >> shift << shift
        first = (-(-segment.base // access.nbytes) * access.nbytes - floor) >> shift
        touch = LaneAccess.of(rows, batch.lanes, access.log2 - shift, first, order)
        if launch.access_sets is not None:
            launch.access_sets.add(segment, shift, touch, use.reads, use.writes)
        if not batch.checks.races:
            return
        tracker = segment.tracker(shift)
        tracker.begin(launch.number)
        race = _race(tracker, touch, order, order.first, view, use)
        if race is not None:
            address = floor + (race.granule << shift)
            raise _race_fault(batch, access, race, f"{segment.name} at {address:#x}", use)


class SharedSpace(Space):
    """Access the shared memory of the batch."""

    name = "shared"

    def rows(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray, use: AccessUse
    ) -> Placed | None:
        """See Space."""
        shared = batch.shared
        places = offsets(batch, access, addresses, shared.size, self.name)
        rows = (places + shared.base[batch.lanes]) >> access.log2
        log2, within = access.log2 - shared.shift, places >> access.log2
        touch = LaneAccess.of(rows, batch.lanes, log2, 0, batch.order, within)
        if use.reads and batch.checks.uninitialised:
            states, written = shared.states(log2, WRITTEN)
            if (states[rows] != written).any():
                raise self._unwritten(batch, access, touch)
        if use.writes:
            states, whole = shared.states(log2, use.state)
            states[rows] = whole
            if shared.proxy is not None:
                self._hide(batch, access, touch)
        view = shared.rows(access.nbytes, access.width)
        if batch.checks.races:
            order = batch.order
            race = _race(shared.tracker, touch, order, order.floor, view, use)
            if race is not None:
                byte = (race.granule << shared.shift) % shared.stride
                raise _race_fault(batch, access, race, f"shared byte {byte}", use)
        if use.counted:
            self.count(batch, access, addresses)
        return view, rows

    def count(self, batch: Batch, access: MemoryAccess, addresses: np.ndarray) -> None:
        """See Space."""
        if batch.traffic is not None:
            places = addresses.astype(np.int64) + access.offset
            batch.traffic.note_shared(access, places, batch.lanes)

    def _hide(self, batch: Batch, access: MemoryAccess, touch: LaneAccess) -> None:
        """Note a write that tensor cores do not see yet. Raises EmulationError where they still read."""
        shared = batch.shared
        assert shared.proxy is not None
        found = shared.proxy.write(*touch.granules())
        if found is not None:
            byte = (found[0] << shared.shift) % shared.stride
            what = f"writes shared byte {byte}, which a wgmma that nothing has waited for reads"
            raise batch.fault(access.line, f"{access.instruction.opcode}: {what}", found[1])

    def _unwritten(self, batch: Batch, access: MemoryAccess, touch: LaneAccess) -> Exception:
        """Return the error of the first byte that may not be read yet."""
        shared = batch.shared
        granules, lanes = touch.granules()
        states = shared.state[granules]
        at = int(np.argmax(states != WRITTEN))
        why = "which nothing wrote" if states[at] == EMPTY else "where a cp.async is in flight"
        byte = (int(granules[at]) << shared.shift) % shared.stride
        what = f"{access.instruction.opcode}: reads shared byte {byte}, {why}"
        return batch.fault(access.line, what, int(lanes[at]))


class LocalSpace(Space):
    """Access local memory: each thread has its own."""

    name = "local"
    shared = False

    def rows(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray, use: AccessUse
    ) -> Placed | None:
        """See Space."""
        local = batch.local
        places = offsets(batch, access, addresses, local.size, self.name)
        rows = (places + local.base[batch.lanes]) >> access.log2
        return local.rows(access.nbytes, access.width), rows


class GenericSpace(Space):
    """Access generic addresses: shared and local memory are windows of them, the rest is global."""

    name = "generic"

    def of(
        self, batch: Batch, access: MemoryAccess, addresses: np.ndarray
    ) -> tuple[Space, np.ndarray]:
        """See Space."""
        low, high = int(addresses.min()), int(addresses.max())
        if high < SHARED_WINDOW:
            return SPACES["global"], addresses
        if low >= SHARED_WINDOW and high < LOCAL_WINDOW:
            return SPACES["shared"], addresses - np.uint64(SHARED_WINDOW)
        if low >= LOCAL_WINDOW:
            return SPACES["local"], addresses - np.uint64(LOCAL_WINDOW)
        raise batch.fault_at(access, "one access to several memory spaces is not emulated", 0)

    def count(self, batch: Batch, access: MemoryAccess, addresses: np.ndarray) -> None:
        """See Space."""
        space, addresses = self.of(batch, access, addresses)
        space.count(batch, access, addresses)


SPACES: dict[str, Space] = {
    space.name: space for space in (GlobalSpace(), SharedSpace(), LocalSpace(), GenericSpace())
}


def _in_pieces(
    batch: Batch, access: MemoryAccess, addresses: np.ndarray, use: AccessUse
) -> np.ndarray:
    """Access global memory segment by segment, and return what was read.

    Raises EmulationError for addresses in no segment.
    """
    real, memory = access.real(addresses), batch.launch.memory
    bases = np.array(memory.bases, np.uint64)
    ends = np.array([segment.end for segment in memory.segments], np.uint64)
    at = np.searchsorted(bases, real, "right") - 1
    wrong = (at < 0) | (real + np.uint64(access.nbytes) > ends[np.maximum(at, 0)])
    if wrong.any():
        raise _outside(batch, access, addresses[wrong], int(np.argmax(wrong)))
    shape = (len(real), access.nbytes // access.width)
    out = np.empty(shape if shape[1] > 1 else shape[:1], f"u{access.width}")
    space, every = SPACES["global"], batch.lanes
    for number in np.unique(at):
        part = at == number
        batch.lanes = every[part]
        if use.values is None:
            out[part] = space.read(batch, access, addresses[part], use)
        else:
            space.write(batch, access, addresses[part], use.values[part])
    batch.lanes = every
    return out


def _outside(
    batch: Batch, access: MemoryAccess, addresses: np.ndarray, place: int = 0
) -> Exception:
    """Return the error of the first of some addresses, that of the active lane number `place`."""
    address = int(addresses[0]) + access.offset
    if address >= SHARED_WINDOW:
        return batch.fault_at(access, f"address {address:#x} is not of global memory", place)
    where = batch.launch.memory.near(address + access.nbytes - 1)
    segment = batch.launch.memory.find(address)
    if segment is not None:
        where = f"past the end of {segment.name}"
    what = f"{access.nbytes} bytes at {address:#x} are out of bounds: {where}"
    return batch.fault_at(access, what, place)


def offsets(
    batch: Batch, access: MemoryAccess, addresses: np.ndarray, size: int, name: str
) -> np.ndarray:
    """Return the byte offsets of accesses to a memory of `size` bytes, checked, as i64, one for each lane."""
    # Of 32 bits they wrap around: a loop may count up from below 0, and the constant offset make up for it.
    signed = addresses.view(np.int32) if addresses.dtype.itemsize == 4 else addresses
    places = signed.astype(np.int64) + access.offset
    if int(places.min()) < 0 or int(places.max()) + access.nbytes > size:
        wrong = (places < 0) | (places + access.nbytes > size)
        place = int(np.argmax(wrong))
        at = int(places[place])
        what = f"{access.nbytes} bytes at {name} byte {at} are out of bounds: it has {size}"
        raise batch.fault_at(access, what, place)
    if access.log2 and int(np.bitwise_or.reduce(places)) & (access.nbytes - 1):
        place = int(np.argmax((places & (access.nbytes - 1)) != 0))
        what = f"{name} byte {int(places[place])} is not a multiple of {access.nbytes}"
        raise batch.fault_at(access, what, place)
    return places


def _unchanged(
    view: np.ndarray, rows: np.ndarray, values: np.ndarray | None, count: int
) -> Callable[[], np.ndarray]:
    """Return a function that tells for each granule whether the row that it is part of stays unchanged."""

    def same() -> np.ndarray:
        if values is None:
            return np.zeros(len(rows) * count, bool)
        equal = view[rows] == values
        return np.repeat(equal.all(1) if equal.ndim > 1 else equal, count)

    return same


def _same_bytes(
    batch: Batch,
    access: MemoryAccess,
    view: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
) -> None:
    """Check that no two lanes of one instruction wrote different values to one place."""
    differs = view[rows] != values
    if differs.any():
        place = int(np.argmax(differs.any(1) if differs.ndim > 1 else differs))
        what = "race: another thread writes another value to the same place"
        raise batch.fault_at(access, what, place)


def _race(
    tracker: Tracker,
    touch: LaneAccess,
    order: BarrierOrder,
    least: int,
    view: np.ndarray,
    use: AccessUse,
) -> Race | None:
    """Note an access, and return the race with an earlier one, if any."""
    if use is ATOMIC:
        return tracker.atomic(touch, order, least)
    if use.reads:
        return tracker.read(touch, order, least)
    same = _unchanged(view, touch.rows, use.values, 1 << touch.log2)
    return tracker.write(touch, order, least, same)


def _race_fault(
    batch: Batch, access: MemoryAccess, race: Race, where: str, use: AccessUse
) -> Exception:
    """Return the error of a race."""
    block, warp = divmod(race.warp, batch.order.per_block)
    does = "changes" if use is ATOMIC else "writes" if use.writes else "reads"
    what = (
        f"race: {does} {where}, which warp {warp} of block {block} {race.did} "
        "in this launch, and no barrier orders the two"
    )
    return batch.fault(access.line, f"{access.instruction.opcode}: {what}", race.lane)
