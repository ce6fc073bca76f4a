"""Execute cp.async: copies from global to shared memory that arrive at the wait for them, not before.

Until then the bytes in shared memory are "in flight": reading them is an error.
"""

from __future__ import annotations

import numpy as np

from meshweave.simulator.ptx.batch import Batch, Flight
from meshweave.simulator.ptx.handlers import Builder, Handler, Scope, rows_of
from meshweave.simulator.ptx.instructions.access import address
from meshweave.simulator.ptx.memory import MemoryAccess
from meshweave.simulator.ptx.program import Immediate, Instruction
from meshweave.simulator.ptx.spaces import FLIGHT, SPACES


def build(instruction: Instruction, scope: Scope) -> Handler:
    """Execute cp.async and its groups; refuse bulk and tensor copies."""
    if not instruction.has("async") or instruction.has("bulk", "mbarrier"):
        raise instruction.refuse()
    if instruction.has("commit_group"):
        return _commit
    if instruction.has("wait_all"):
        return lambda batch: _wait(batch, None)
    if instruction.has("wait_group"):
        count = instruction.operands[0]
        if not isinstance(count, Immediate):
            raise instruction.refuse("the number of groups must be a literal")
        pending = count.value
        return lambda batch: _wait(batch, pending)
    return _copy(instruction, scope)


def _copy(instruction: Instruction, scope: Scope) -> Handler:
    size = instruction.operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise instruction.refuse("4, 8 or 16 bytes are copied")
    nbytes = size.value
    width = min(nbytes, 8)
    to_slot, to_offset = address(instruction, 0, scope)
    from_slot, from_offset = address(instruction, 1, scope)
    source = MemoryAccess(instruction, nbytes, width, from_offset)
    target = MemoryAccess(instruction, nbytes, width, to_offset)
    limit = -1  # bytes that are read; the rest is zero
    if len(instruction.operands) > 3 and not instruction.has("cache_hint"):
        limit = scope.slot(instruction, 3, "u32")

    def run(batch: Batch) -> None:
        places = rows_of(batch, to_slot)
        shape = (len(places), nbytes // width)
        values = np.zeros(shape if shape[1] > 1 else shape[:1], f"u{width}")
        _fetch(
            batch,
            source,
            from_slot,
            None if limit < 0 else rows_of(batch, limit),
            values,
        )
        SPACES["shared"].rows(batch, target, places, FLIGHT)
        groups = batch.committed[batch.lanes]
        batch.flights.append(Flight(target, batch.lanes, places.copy(), values, groups))

    return run


def _fetch(
    batch: Batch,
    access: MemoryAccess,
    slot: int,
    limit: np.ndarray | None,
    values: np.ndarray,
) -> None:
    """Read what is copied; lanes that copy fewer bytes get zeros after them."""
    addresses = rows_of(batch, slot)
    if limit is None or (limit >= access.nbytes).all():
        values[...] = SPACES["global"].read(batch, access, addresses)
        return
    octets = values.view(np.uint8).reshape(len(values), -1)
    for size in np.unique(np.minimum(limit, access.nbytes)):
        _fetch_some(
            batch,
            access,
            addresses,
            np.minimum(limit, access.nbytes) == size,
            octets,
            int(size),
        )


def _fetch_some(
    batch: Batch,
    access: MemoryAccess,
    addresses: np.ndarray,
    which: np.ndarray,
    octets: np.ndarray,
    size: int,
) -> None:
    """Read `size` bytes for some lanes, in pieces as wide as their number allows."""
    saved, batch.lanes = batch.lanes, batch.lanes[which]
    piece = access.nbytes if size == access.nbytes else size & -size
    try:
        for at in range(0, size, piece or 1):
            part = MemoryAccess(
                access.instruction,
                piece,
                piece if piece < 16 else 8,
                access.offset + at,
            )
            rows = SPACES["global"].read(batch, part, addresses[which])
            octets[which, at : at + piece] = rows.reshape(len(rows), -1).view(np.uint8)
    finally:
        batch.lanes = saved


def _commit(batch: Batch) -> None:
    batch.committed[batch.lanes] += 1


def _wait(batch: Batch, pending: int | None) -> None:
    """Complete the copies of the active lanes except their last `pending` groups (None: all)."""
    left = []
    here = np.zeros(batch.threads, bool)
    here[batch.lanes] = True
    for flight in batch.flights:
        done = here[flight.lanes]
        if pending is not None:
            done &= flight.groups < batch.committed[flight.lanes] - pending
        if done.all():
            _land(batch, flight)
        elif done.any():
            _land(batch, _part(flight, done))
            left.append(_part(flight, ~done))
        else:
            left.append(flight)
    batch.flights = left


def _part(flight: Flight, which: np.ndarray) -> Flight:
    return Flight(
        flight.access,
        flight.lanes[which],
        flight.addresses[which],
        flight.values[which],
        flight.groups[which],
    )


def _land(batch: Batch, flight: Flight) -> None:
    saved, batch.lanes = batch.lanes, flight.lanes
    SPACES["shared"].write(batch, flight.access, flight.addresses, flight.values)
    batch.lanes = saved


BUILDERS: dict[str, Builder] = {"cp": build}
