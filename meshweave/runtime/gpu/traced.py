"""The emulator's memory, which also tells the bytes that a kernel has read and written."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from meshweave.emulator.memory import Memory, Segment
from meshweave.emulator.races import Touch, Tracker
from meshweave.runtime.gpu.races import Ranges, merged, no_ranges


class _Marks:
    """Which granules of a buffer were touched: of each kind of access (its width in granules, as a
    power of 2, and the first granule) the rows.
    """

    def __init__(self, granules: int) -> None:
        self._granules = granules
        self._rows: dict[tuple[int, int], Any] = {}

    def add(self, touch: Touch) -> None:
        """Mark what an access touches."""
        key = touch.log2, touch.first
        if key not in self._rows:
            self._rows[key] = np.zeros((self._granules >> touch.log2) + 1, bool)
        self._rows[key][touch.rows] = True

    def ranges(self, origin: int, shift: int) -> Ranges:
        """As bytes; granules are of 2^shift bytes, the first one begins at `origin`."""
        found = [no_ranges()]
        for (log2, first), marked in self._rows.items():
            places = np.flatnonzero(marked)
            edges = np.flatnonzero(np.diff(places) != 1)
            low = places[np.concatenate(([0], edges + 1))]
            high = places[np.concatenate((edges, [len(places) - 1]))] + 1
            rows = np.stack((low, high), axis=1).astype(np.int64)
            found.append(origin + ((first + (rows << log2)) << shift))
        return np.concatenate(found)


class _Traced(Tracker):
    """A tracker that marks all it is told."""

    def __init__(self, granules: int) -> None:
        super().__init__(granules)
        self.reads_marked, self.writes_marked = _Marks(granules), _Marks(granules)

    def read(self, touch: Touch, *rest: Any) -> Any:
        self.reads_marked.add(touch)
        return super().read(touch, *rest)

    def write(self, touch: Touch, *rest: Any) -> Any:
        self.writes_marked.add(touch)
        return super().write(touch, *rest)


class _TracedSegment(Segment):
    """A buffer whose accesses are marked."""

    def tracker(self, shift: int) -> Tracker:
        if shift not in self.trackers:
            self.trackers[shift] = _Traced((len(self.data) >> shift) + 2)
        return self.trackers[shift]

    def touched(self) -> tuple[Ranges, Ranges]:
        """Bytes read and written."""
        reads, writes = [no_ranges()], [no_ranges()]
        for shift, tracker in self.trackers.items():
            assert isinstance(tracker, _Traced)
            origin = self.base >> shift << shift
            reads.append(tracker.reads_marked.ranges(origin, shift))
            writes.append(tracker.writes_marked.ranges(origin, shift))
        return self._inside(reads), self._inside(writes)

    def _inside(self, parts: list[Ranges]) -> Ranges:
        """Granules at the edges may reach beyond."""
        return merged(np.clip(np.concatenate(parts), self.base, self.end))


class TracedMemory(Memory):
    """For one launch, with the emulator's check of races on, which sees every access."""

    def add(self, address: int, data: Any, name: str) -> None:
        """See Memory."""
        super().add(address, data, name)
        at = bisect.bisect_left(self.bases, address)
        self.segments[at] = _TracedSegment(address, self.segments[at].data, name)

    def touched(self) -> tuple[Ranges, Ranges]:
        """The bytes that were read and written, at their addresses."""
        found = [s.touched() for s in self.segments if isinstance(s, _TracedSegment)]
        reads = [no_ranges(), *(read for read, _ in found)]
        writes = [no_ranges(), *(written for _, written in found)]
        return merged(np.concatenate(reads)), merged(np.concatenate(writes))
