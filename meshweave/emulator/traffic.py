"""Counts of memory traffic: sectors of global memory and wavefronts of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from meshweave.emulator.launch import Counts
    from meshweave.emulator.spaces import Access

_SECTOR = 32  # bytes
_BANKS = 32  # of 4 bytes


class Traffic:
    """Traffic of a launch by line of the PTX: what was moved, and the least that could be."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], list[int]] = {}

    def note_global(self, access: Access, addresses: np.ndarray, lanes: np.ndarray) -> None:
        """Sectors that each warp's access touches; the least is its distinct bytes, packed."""
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

    def note_shared(self, access: Access, places: np.ndarray, lanes: np.ndarray) -> None:
        """Wavefronts: of each group of lanes that is served together (32 lanes of 4 bytes or less,
        16 of 8, 8 of 16) the most words that lie in one bank.
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
        """Enter the sums."""
        for (space, line), (used, least) in sorted(self.lines.items()):
            counts.by_line[space, line] = used, least
            if space == "global":
                counts.sectors += used
                counts.least_sectors += least
            else:
                counts.wavefronts += used
                counts.least_wavefronts += least


def _distinct(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The distinct pairs of a group and a value, as two rows."""
    return np.unique(np.stack([groups, values]), axis=1)
