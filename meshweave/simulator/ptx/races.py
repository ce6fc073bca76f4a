"""Find races: two threads of different warps touch the same bytes, one of them writes, and no barrier orders the two.

Every access has a *stamp*: a number that tells the launch, the epoch of its warp (how many barriers
it has passed) and the warp. `BarrierOrder` knows of each warp how far it has seen the others. A `Tracker`
keeps for each granule of a memory the stamp of the last write and of the last reads. Most reads are
never near a write: they are only listed, and looked up when a write comes that might touch them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_LISTED = 1 << 24  # rows of reads that are listed before they are entered one by one


class BarrierOrder:
    """Tell which accesses of a batch come before which, by the barriers that its warps have passed.

    first: the least stamp of this launch; warps: of the whole grid. seen[b, i, j]: how many
    epochs of warp j of block b warp i knows to be over.
    """

    def __init__(
        self, first: int, grid: tuple[int, int, int], blocks: np.ndarray, lanes_per_block: int
    ) -> None:
        """Begin a batch of the blocks with these numbers in the grid."""
        self.first = first
        self.per_block = lanes_per_block // 32
        self.warps = self.per_block * int(np.prod(grid))
        self.batch_block, lane = np.divmod(
            np.arange(lanes_per_block * len(blocks)), lanes_per_block
        )
        self.inside = lane // 32  # the warp of each lane, in its block
        self.block = blocks[self.batch_block].astype(np.int64)
        self.warp = self.block * self.per_block + self.inside  # of each lane, in the grid
        self.seen = np.zeros((len(blocks), self.per_block, self.per_block), np.int64)
        self.stamps = self.warp + first
        self.floor = first  # shared memory: what is older is ordered for everybody
        self.uneven = False
        # Of a barrier, block and warp that has arrived there: what it knew then.
        self.arrived: dict[tuple[int, int, int], np.ndarray] = {}
        self.shared: Tracker | None = None

    def meet_all(self) -> None:
        """Let all threads of the batch meet at a barrier."""
        if self.uneven:
            self.seen[:] = 1 + np.diagonal(self.seen, axis1=1, axis2=2)[:, None, :]
        else:
            self.seen += 1
            self.floor += self.warps
        self.stamps = self.stamps + self.warps  # a new array: listed reads keep theirs
        if not self.uneven and self.shared is not None:
            self.shared.forget()

    def meet(self, waiting: np.ndarray, arrived: np.ndarray, barrier: int) -> None:
        """Let some threads meet at a barrier.

        Those of each block meet each other, and those that had arrived there and gone on.
        """
        self.uneven = True
        for block in np.unique(self.batch_block[waiting]):
            here = self.batch_block == block
            warps = np.unique(self.inside[waiting & here])
            seen = self.seen[block]
            known = seen[warps].max(0)
            known[warps] = np.diag(seen)[warps] + 1
            for warp in np.unique(self.inside[arrived & here]):
                known = np.maximum(known, self.arrived.pop((barrier, int(block), int(warp))))
            seen[warps] = known
        self._stamp()

    def arrive(self, lanes: np.ndarray, barrier: int) -> None:
        """Let some threads arrive at a barrier and go on at once.

        Who meets there knows what they did before; they learn nothing.
        """
        self.uneven = True
        warps = np.unique(np.stack([self.batch_block[lanes], self.inside[lanes]]), axis=1)
        for block, warp in warps.T.tolist():
            self.seen[block, warp, warp] += 1
            self.arrived[barrier, block, warp] = self.seen[block, warp].copy()
        self._stamp()

    def _stamp(self) -> None:
        own = self.seen[self.batch_block, self.inside, self.inside]
        self.stamps = self.warp + self.first + own * self.warps

    def unordered(self, old: np.ndarray, lanes: np.ndarray, least: int) -> np.ndarray | None:
        """Return which of the accesses stamped `old` no barrier orders before those of `lanes` now.

        None where all are ordered. Accesses with stamps under `least` do not count.
        """
        recent = old >= least
        if not recent.any():
            return None
        warp = (old - self.first) % self.warps
        bad = recent & (warp != self.warp[lanes])
        if not bad.any():
            return None
        same = warp // self.per_block == self.block[lanes]
        seen = self.seen[self.batch_block[lanes], self.inside[lanes], warp % self.per_block]
        bad &= ~(same & (seen > (old - self.first) // self.warps))
        return bad if bad.any() else None


@dataclass
class LaneAccess:
    """Describe an access of some lanes to a memory: `rows` of 2^log2 granules each, counted from `first`.

    One row for many lanes: all read the same.
    """

    rows: np.ndarray
    lanes: np.ndarray
    log2: int
    first: int
    low: int  # lowest and highest granule (in the block, where each has its own part)
    high: int
    stamps: np.ndarray

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        lanes: np.ndarray,
        log2: int,
        first: int,
        order: BarrierOrder,
        within: np.ndarray | None = None,
    ) -> LaneAccess:
        """Make the access of `lanes` to `rows` at the present time of `order`.

        within: the rows counted in the lane's own block, for memories of which every block has a part.
        """
        span = rows if within is None else within
        low = (int(span.min()) << log2) + first
        high = ((int(span.max()) + 1) << log2) + first - 1
        return cls(rows, lanes, log2, first, low, high, order.stamps)

    def granules(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each granule, and its lane."""
        return spread(self.rows, self.lanes, self.log2, self.first)


def spread(
    rows: np.ndarray, lanes: np.ndarray, log2: int, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the granules of each row, 2^log2 of them from `first` on, and the lane of each."""
    if len(rows) == 1 < len(lanes):  # one address for all: two lanes stand for the rest
        lanes = lanes[[0, -1]]
        rows = np.repeat(rows, 2)
    if log2 == 0:
        return (rows + first if first else rows), lanes
    count = 1 << log2
    granules = ((rows << log2) + first)[:, None] + np.arange(count)
    return granules.reshape(-1), np.repeat(lanes, count)


@dataclass(frozen=True)
class Race:
    """Describe a hazard.

    It has the granule, the lane that comes second, the warp that came first, and what that one did.
    """

    granule: int
    lane: int
    warp: int
    did: str


_NOWHERE = 1 << 62, -1  # lowest and highest granule of nothing


class _Past:
    """Keep the accesses of one kind.

    For each granule it has the stamp of the last one, and of the last one by another warp. did: the kind in words.
    """

    def __init__(self, granules: int, did: str) -> None:
        self.last = np.zeros(granules, np.int64)
        self.other = np.zeros(granules, np.int64)
        self.did, self.span = did, _NOWHERE

    def enter(self, touch: LaneAccess, order: BarrierOrder) -> None:
        """Note an access."""
        granules, lanes = touch.granules()
        stamps = touch.stamps[lanes]
        if _meets(self.span, touch):
            last = self.last[granules]
            changed = (last >= order.first) & ((last - stamps) % order.warps != 0)
            self.other[granules[changed]] = last[changed]
        self.last[granules] = stamps
        lost = self.last[granules] != stamps  # several warps come to one place at once
        self.other[granules[lost]] = stamps[lost]
        self.span = min(self.span[0], touch.low), max(self.span[1], touch.high)

    def against(
        self,
        touch: LaneAccess,
        order: BarrierOrder,
        least: int,
        same: Callable[[], np.ndarray] | None,
    ) -> Race | None:
        """Return the race of an access that conflicts with these. same(): see `Tracker.write`."""
        if not _meets(self.span, touch):
            return None
        granules, lanes = touch.granules()
        for stamps in (self.last, self.other):
            old = stamps[granules]
            bad = order.unordered(old, lanes, least)
            if bad is not None and same is not None:
                bad &= ~same()
            if bad is not None and bad.any():
                place = int(np.argmax(bad))
                warp = int((old[place] - order.first) % order.warps)
                return Race(int(granules[place]), int(lanes[place]), warp, self.did)
        return None


class Tracker:
    """Track who wrote, read and combined (by atomics) each granule of a memory in this launch."""

    def __init__(self, granules: int) -> None:
        self.granules = granules
        self.pasts = {"write": _Past(granules, "wrote"), "read": _Past(granules, "read")}
        self.launch = -1
        self.forget()

    def forget(self) -> None:
        """Forget all accesses up to now."""
        self.reads: list[LaneAccess] = []
        self.listed = 0
        for past in self.pasts.values():
            past.span = _NOWHERE

    def begin(self, launch: int) -> None:
        """Clear the tracker when this is the first access of a launch."""
        if launch != self.launch:
            self.launch = launch
            self.forget()

    def read(self, touch: LaneAccess, order: BarrierOrder, least: int) -> Race | None:
        """Note a read, and return the race with an earlier write or atomic, if any."""
        race = self._against(("write", "atomic"), touch, order, least)
        self.reads.append(touch)
        self.listed += touch.rows.size
        if self.listed > _LISTED:
            self._enter_reads(order, None)
        return race

    def write(
        self, touch: LaneAccess, order: BarrierOrder, least: int, same: Callable[[], np.ndarray]
    ) -> Race | None:
        """Note a write, and return the race with an earlier access, if any.

        same(): for each granule, whether the write leaves it unchanged, which is harmless.
        """
        self._enter_reads(order, touch)
        race = self._against(("write", "read", "atomic"), touch, order, least, same)
        self.pasts["write"].enter(touch, order)
        return race

    def atomic(self, touch: LaneAccess, order: BarrierOrder, least: int) -> Race | None:
        """Note an atomic, and return the race with an earlier access that is not one, if any."""
        self._enter_reads(order, touch)
        race = self._against(("write", "read"), touch, order, least)
        if "atomic" not in self.pasts:  # most memories see none
            self.pasts["atomic"] = _Past(self.granules, "changed by an atomic")
        self.pasts["atomic"].enter(touch, order)
        return race

    def _against(
        self,
        kinds: tuple[str, ...],
        touch: LaneAccess,
        order: BarrierOrder,
        least: int,
        same: Callable[[], np.ndarray] | None = None,
    ) -> Race | None:
        for kind in kinds:
            past = self.pasts.get(kind)
            race = past.against(touch, order, least, same) if past is not None else None
            if race is not None:
                return race
        return None

    def _enter_reads(self, order: BarrierOrder, near: LaneAccess | None) -> None:
        """Enter those listed reads that come near an access (None: all)."""
        entered = [r for r in self.reads if near is None or _meets((r.low, r.high), near)]
        if not entered:
            return
        self.reads = [
            r for r in self.reads if near is not None and not _meets((r.low, r.high), near)
        ]
        self.listed = sum(read.rows.size for read in self.reads)
        for read in entered:
            self.pasts["read"].enter(read, order)


def _meets(span: tuple[int, int], touch: LaneAccess) -> bool:
    return span[0] <= touch.high and touch.low <= span[1]
