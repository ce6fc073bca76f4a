"""Tell by vector clocks which operations of a rank are ordered, and which race.

A clock has a component for each stream of the rank: how many of that stream's operations are
ordered before (happen before) an operation. Two operations on different streams race when neither
is in the other's past, they touch a byte in common, and one of them writes it. This says of a
missing wait that it is missing, whatever order was run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ranges = npt.NDArray[np.int64]  # n x 2: first byte and last byte + 1, ascending, apart


def no_ranges() -> Ranges:
    """Return an empty list of ranges."""
    return np.zeros((0, 2), np.int64)


def one_range(address: int, nbytes: int) -> Ranges:
    """Return the range of `nbytes` from an address."""
    return np.array([[address, address + nbytes]], np.int64) if nbytes > 0 else no_ranges()


def merged(ranges: Ranges) -> Ranges:
    """Merge ranges in any order, overlapping or not, into ascending ones that do not touch."""
    if len(ranges) < 2:
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.concatenate(([True], ranges[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((ranges[first, 0], reach[last]), axis=1)


def overlap(a: Ranges, b: Ranges) -> int | None:
    """Return the first byte that two merged range lists share; None when they are disjoint."""
    if not len(a) or not len(b):
        return None
    if a[-1, 1] <= b[0, 0] or b[-1, 1] <= a[0, 0]:
        return None
    after = np.searchsorted(b[:, 1], a[:, 0], side="right")  # first of b that ends beyond the start
    inside = after < len(b)
    starts = b[np.minimum(after, len(b) - 1), 0]
    hits = inside & (starts < a[:, 1])
    if not hits.any():
        return None
    index = int(np.argmax(hits))
    return int(max(a[index, 0], starts[index]))


@dataclass(frozen=True, eq=False)
class OperationAccess:
    """Hold what an operation touched. position: its place in its stream, from 1. clock: its vector clock."""

    owner: Any
    stream: int
    position: int
    clock: tuple[int, ...]
    reads: Ranges
    writes: Ranges


class History:
    """Keep the accesses of one rank since its host last waited for everything."""

    def __init__(self) -> None:
        self._streams: dict[int, list[OperationAccess]] = {}

    def add(self, access: OperationAccess) -> tuple[Any, int, str] | None:
        """Add an access.

        If it races with an earlier one, return that one's owner, the first byte in common, and how the two touch it
        ("write and read").
        """
        for stream, others in self._streams.items():
            if stream == access.stream:
                continue
            for other in reversed(others):
                if before(other, access):
                    break  # and with it all that this stream ran earlier
                if not before(access, other) and (found := conflict(other, access)):
                    return (other.owner, *found)
        self._streams.setdefault(access.stream, []).append(access)
        return None


def before(a: OperationAccess, b: OperationAccess) -> bool:
    """Tell whether `a` happens before `b`."""
    return len(b.clock) > a.stream and b.clock[a.stream] >= a.position


def conflict(a: OperationAccess, b: OperationAccess) -> tuple[int, str] | None:
    """Return the first byte that both touch and at least one writes, and how."""
    for mine, theirs, how in (
        (a.writes, b.writes, "both write"),
        (a.writes, b.reads, "write and read"),
        (a.reads, b.writes, "read and write"),
    ):
        start = overlap(mine, theirs)
        if start is not None:
            return start, how
    return None
