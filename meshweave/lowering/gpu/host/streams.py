"""Plan which operations on several streams wait for which: from the bytes that they touch.

An operation is at the end of its stream, so it comes after all that this stream was given before. It
waits for an operation on another stream when both touch a byte, one of them writes it, and nothing
else says already that the one comes after the other. Plain values: nothing here knows of programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Range(NamedTuple):
    """Name bytes `first` to below `last` of a memory.

    Two memories of different names share no byte; that of the empty name is all memory there is.
    """

    memory: str
    first: int
    last: int

    def meets(self, other: Range) -> bool:
        """Tell whether the two have a byte in common."""
        if not self.memory or not other.memory:
            return True
        return self.memory == other.memory and self.first < other.last and other.first < self.last


EVERYTHING = Range("", 0, 0)


@dataclass(frozen=True)
class StreamWork:
    """Describe an operation: the number of its stream, the bytes that it reads and writes."""

    stream: int
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()

    def conflicts(self, other: StreamWork) -> bool:
        """Tell whether the order of the two matters. With what writes everything it always does."""
        return (
            EVERYTHING in (*self.writes, *other.writes)
            or _meet(self.writes, other.writes)
            or _meet(self.writes, other.reads)
            or _meet(self.reads, other.writes)
        )


BARRIER = StreamWork(0, (), (EVERYTHING,))  # stream 0 waits for all streams, and all wait for it


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a.meets(b) for a in some for b in others)


@dataclass(frozen=True)
class Point:
    """Say what is done around an operation.

    stream: its own; waits: numbers of the events that the stream waits for before it; record: the event
    that is recorded in the stream after it, -1 for none.
    """

    stream: int
    waits: tuple[int, ...] = ()
    record: int = -1


def awaited(ops: Sequence[StreamWork]) -> list[tuple[int, ...]]:
    """Return for each operation those before it, on other streams, that its stream has to wait for.

    No wait among them follows from another, or from what the stream has waited for before.
    """
    last: dict[int, int] = {}  # of each stream its latest operation
    seen: list[dict[int, int]] = []  # of each operation: by stream the latest that is before it
    earlier: dict[int, list[int]] = {}  # of each stream all of its operations
    found = []
    for number, op in enumerate(ops):
        known = dict(seen[last[op.stream]]) if op.stream in last else {}
        waits = []
        for other in sorted(_candidates(ops, op, earlier, known), reverse=True):
            if known.get(ops[other].stream, -1) >= other:
                continue  # follows from one that is waited for
            waits.append(other)
            for stream, latest in seen[other].items():
                known[stream] = max(known.get(stream, -1), latest)
        known[op.stream] = last[op.stream] = number
        seen.append(known)
        earlier.setdefault(op.stream, []).append(number)
        found.append(tuple(sorted(waits)))
    return found


def _candidates(
    ops: Sequence[StreamWork], op: StreamWork, earlier: dict[int, list[int]], known: dict[int, int]
) -> list[int]:
    """Return the latest operation of each other stream that conflicts with `op` and may not be done before it."""
    found = []
    for stream, numbers in earlier.items():
        if stream == op.stream:
            continue
        for number in reversed(numbers):
            if number <= known.get(stream, -1):
                break
            if op.conflicts(ops[number]):
                found.append(number)
                break
    return found


def planned(ops: Sequence[StreamWork]) -> list[Point]:
    """Return what is done around each operation. An event is used again when nothing waits for it any more."""
    waits = awaited(ops)
    ends = {other: number for number, found in enumerate(waits) for other in found}
    events: dict[int, int] = {}
    free: list[int] = []
    count = 0
    points = []
    for number, op in enumerate(ops):
        given = tuple(events[other] for other in waits[number])
        free += [events[other] for other in waits[number] if ends[other] == number]
        if number in ends:
            if not free:
                free.append(count)
                count += 1
            free.sort(reverse=True)
            events[number] = free.pop()
        points.append(Point(op.stream, given, events.get(number, -1)))
    return points
