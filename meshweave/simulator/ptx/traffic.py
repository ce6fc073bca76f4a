"""Count memory traffic: sectors of global memory and wavefronts of shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshweave.simulator.ptx.memory import MemoryAccess

_SECTOR = 32  # bytes
_BANKS = 32  # of 4 bytes


@dataclass
class Counts:
    """Count what a launch did.

    instructions: executed, summed over threads. steps: executed, summed over batches. sectors: of 32 bytes of global
    memory touched by a warp's accesses, and the least possible. wavefronts: of 128 bytes of shared memory, and the
    least possible (both only with `Checks.traffic`). by_line: for ("global" or "shared", line of PTX) what was used,
    and the least.
    """

    instructions: int = 0
    steps: int = 0
    sectors: int = 0
    least_sectors: int = 0
    wavefronts: int = 0
    least_wavefronts: int = 0
    by_line: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


class Traffic:
    """Count the traffic of a launch by line of the PTX: what was moved, and the least possible."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], list[int]] = {}

    def note_global(self, access: MemoryAccess, addresses: np.ndarray, lanes: np.ndarray) -> None:
        """Count the sectors that each warp's access touches; the least is its distinct bytes, packed."""
        addresses = np.broadcast_to(addresses, lanes.shape).astype(np.int64)
        distinct = _distinct(lanes // 32, addresses)
        sectors = _distinct(distinct[0], distinct[1] // _SECTOR)
        per_warp = np.bincount(distinct[0]) * access.nbytes
        self._add(
            "global",
            access.line,
            sectors.shape[1],
            int((-(-per_warp // _SECTOR)).sum()),
        )

    def note_shared(self, access: MemoryAccess, places: np.ndarray, lanes: np.ndarray) -> None:
        """Count wavefronts.

        Of each group of lanes that is served together (32 lanes of 4 bytes or less, 16 of 8, 8 of 16) it is the most
        words that lie in one bank.
        """
        words = max(1, access.nbytes // 4)
        places = np.broadcast_to(places, lanes.shape)
        touched = (places[:, None] // 4 + np.arange(words)).reshape(-1)
        distinct = _distinct(np.repeat(lanes // (32 // words), words), touched)
        banks, counts = np.unique(
            np.stack([distinct[0], distinct[1] % _BANKS]), axis=1, return_counts=True
        )
        worst = np.zeros(int(banks[0].max()) + 1, np.int64)
        np.maximum.at(worst, banks[0], counts)
        least = int((-(-np.bincount(distinct[0]) // _BANKS)).sum())
        self._add("shared", access.line, int(worst.sum()), least)

    def _add(self, space: str, line: int, used: int, least: int) -> None:
        entry = self.lines.setdefault((space, line), [0, 0])
        entry[0] += used
        entry[1] += least

    def into(self, counts: Counts) -> None:
        """Add these totals to `counts`."""
        for (space, line), (used, least) in sorted(self.lines.items()):
            counts.by_line[space, line] = used, least
            if space == "global":
                counts.sectors += used
                counts.least_sectors += least
            else:
                counts.wavefronts += used
                counts.least_wavefronts += least


def _distinct(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the distinct pairs of a group and a value, as two rows."""
    return np.unique(np.stack([groups, values]), axis=1)
