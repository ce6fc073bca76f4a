"""Record which bytes of global memory a launch touches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshweave.simulator.ptx.memory import Segment
from meshweave.simulator.ptx.races import LaneAccess

Ranges = npt.NDArray[np.int64]  # n x 2: first byte and last byte + 1


class _Marks:
    """Mark granules of a segment.

    For each kind of access (its width in granules, as a power of 2, and the first granule) it knows which rows.
    """

    def __init__(self, segment: Segment, shift: int) -> None:
        self.segment, self.shift = segment, shift
        self.granules = (len(segment.data) >> shift) + 2
        self.rows: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}

    def add(self, touch: LaneAccess) -> None:
        """Mark what an access touches."""
        key = touch.log2, touch.first
        if key not in self.rows:
            self.rows[key] = np.zeros((self.granules >> touch.log2) + 1, bool)
        self.rows[key][touch.rows] = True

    def ranges(self) -> Ranges:
        """Return the marked bytes as ascending, disjoint ranges."""
        marked = np.zeros(self.granules + 2, bool)  # with one more on either side
        for (log2, first), rows in self.rows.items():
            granules = np.repeat(rows, 1 << log2)[: self.granules - first]
            marked[1 + first :][: len(granules)] |= granules
        edges = np.flatnonzero(marked[1:] != marked[:-1]).reshape(-1, 2)
        start = self.segment.base >> self.shift << self.shift
        # Granules at the ends may reach beyond.
        out: Ranges = np.clip(start + (edges << self.shift), self.segment.base, self.segment.end)
        return out


class AccessSets:
    """Collect the bytes of global memory that launches read and wrote, variables of the module included.

    Atomics do both. Exact to the narrowest access of the kernel.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[int, int, bool], _Marks] = {}

    def add(
        self, segment: Segment, shift: int, touch: LaneAccess, reads: bool, writes: bool
    ) -> None:
        """Mark an access whose granules are of 2^shift bytes."""
        for does, write in ((reads, False), (writes, True)):
            if does:
                key = segment.base, shift, write
                if key not in self._marks:
                    self._marks[key] = _Marks(segment, shift)
                self._marks[key].add(touch)

    def reads(self) -> Ranges:
        """Return the addresses of the bytes that were read: first, and last + 1.

        Of one launch the ranges are ascending and do not overlap.
        """
        return self._ranges(False)

    def writes(self) -> Ranges:
        """Return the same of the bytes that were written."""
        return self._ranges(True)

    def _ranges(self, write: bool) -> Ranges:
        found = [self._marks[key].ranges() for key in sorted(self._marks) if key[2] == write]
        return np.concatenate([np.zeros((0, 2), np.int64), *found])
