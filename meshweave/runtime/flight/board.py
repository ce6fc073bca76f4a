"""Keep the status board: a row for each rank, which its compiled code writes (`abi.StatusRow`).

The engine writes whether the rank runs, and the rank its process. Whoever watches needs only the board: a stalled or
dead rank need not answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshweave import abi
from meshweave.abi import StatusRow
from meshweave.runtime.flight.processes import began, process_state
from meshweave.runtime.flight.records import (
    ELSEWHERE,
    LEFT,
    RUNNING,
    STATES,
    TOLD,
    CollectiveRecord,
    RankRecord,
)
from meshweave.runtime.memory import aligned
from meshweave.runtime.program import Memory

_CODES = {name: code for code, name in enumerate(STATES)}
_AWAY = [_CODES[ELSEWHERE], _CODES[LEFT], _CODES[TOLD]]
_HALVES = {0: "", StatusRow.START: "start", StatusRow.WAIT: "wait"}
assert [_CODES[n] for n in STATES[:3]] == [abi.IDLE, abi.RUNNING, abi.RETURNED]


class StatusBoard:
    """Hold a row for each rank in memory that all share."""

    def __init__(self, memory: Memory, nranks: int) -> None:
        """Use a writable buffer of `nbytes(nranks)` bytes."""
        self.nranks = nranks
        self.rows: npt.NDArray[np.int64] = np.frombuffer(
            memory, np.int64, nranks * StatusRow.WORDS
        ).reshape(nranks, StatusRow.WORDS)
        self._words = [row.data for row in self.rows]  # faster to write than an array

    @staticmethod
    def private(nranks: int) -> StatusBoard:
        """Make a board in memory of this process; no rank runs."""
        board = StatusBoard(aligned(StatusBoard.nbytes(nranks)), nranks)
        board.reset()
        return board

    @staticmethod
    def nbytes(nranks: int) -> int:
        """Return the bytes of a board."""
        return nranks * StatusRow.WORDS * 8

    def address(self, rank: int) -> int:
        """Return the address of a rank's row, which goes in its `status` slot."""
        return int(self.rows[rank].ctypes.data)

    def begin(self, rank: int) -> None:
        """Note that a rank is about to call `step`."""
        row = self._words[rank]
        row[StatusRow.BEFORE] = row[StatusRow.ENDED] = row[StatusRow.STARTED]
        row[StatusRow.CALLS] += 1
        row[StatusRow.STATE] = abi.RUNNING

    def end(self, rank: int) -> None:
        """Note that a rank's `step` has returned."""
        self._words[rank][StatusRow.STATE] = abi.RETURNED

    def trace(self, rank: int, buffer: int) -> None:
        """Have a rank write marks to the buffer at this address (`abi.TraceBuffer`), or none: 0."""
        self._words[rank][StatusRow.TRACE] = buffer

    def announce(self, rank: int) -> None:
        """Note that a rank is this process."""
        self.rows[rank, StatusRow.BORN] = began(os.getpid())
        self.rows[rank, StatusRow.PID] = os.getpid()

    def mark(self, rank: int, state: str) -> None:
        """Set a rank's state, one of `records.STATES`."""
        self._words[rank][StatusRow.STATE] = _CODES[state]

    def leave(self, rank: int) -> None:
        """Note that a rank leaves the job in order, if that rank is this process."""
        if self.rows[rank, StatusRow.PID] == os.getpid():
            self.mark(rank, LEFT)

    def state(self, rank: int) -> str:
        """Return a rank's state."""
        return STATES[self._words[rank][StatusRow.STATE]]

    def born(self, rank: int) -> int:
        """Return when a rank's process began, as it has told."""
        return int(self.rows[rank, StatusRow.BORN])

    def progress(self, rank: int, count: int) -> None:
        """Note how far a rank's device is; the number means nothing except that it changes."""
        self._words[rank][StatusRow.PROGRESS] = count

    def leave_loops(self) -> None:
        """Make every rank leave the loops that its data may keep going, and its call."""
        self.rows[:, StatusRow.LEAVE] = 1

    def clear(self) -> None:
        """Note that no rank has begun the next call."""
        self.rows[:, StatusRow.STATE : StatusRow.PROGRESS + 1] = 0

    def reset(self) -> None:
        """Forget everything: the ranks start together again."""
        self.rows[:] = 0

    def look(self) -> bytes:
        """Return the board as a value: two looks are equal when nothing has moved."""
        return self.rows[:, : StatusRow.CALLS + 1].tobytes()

    def all_compute(self) -> bool:
        """Tell whether no rank waits for another, or for anything else."""
        states = self.rows[:, StatusRow.STATE]
        inside = self.rows[:, StatusRow.STARTED] != self.rows[:, StatusRow.ENDED]
        computes = (states == _CODES[RUNNING]) & ~inside
        return bool((computes | np.isin(states, _AWAY)).all())

    def op_begun(self, rank: int) -> int:
        """Return the op that a rank has started and that has not ended; 0 for none."""
        row = self._words[rank]
        count: int = row[StatusRow.STARTED]
        return _op(row, count) if count != row[StatusRow.ENDED] else 0

    def records(self) -> list[RankRecord]:
        """Return what is known of each rank now."""
        return [self.record(rank) for rank in range(self.nranks)]

    def record(self, rank: int) -> RankRecord:
        """Return what is known of a rank now."""
        row = self.rows[rank].tolist()
        pid, count = row[StatusRow.PID], row[StatusRow.STARTED]
        process, ending = process_state(pid, row[StatusRow.BORN])
        op = _op(row, count) if count > row[StatusRow.BEFORE] else 0
        within = count != row[StatusRow.ENDED]
        return RankRecord(
            rank, STATES[row[StatusRow.STATE]], op, within, count, row[StatusRow.CALLS],
            pid, process, ending, 0, _entries(row),
        )  # fmt: skip


def _word(row: Sequence[int], sequence: int) -> int:
    """Return what a row says of a collective, by its number from 1: one of the last ENTRIES."""
    return row[StatusRow.RING + (sequence - 1) % StatusRow.ENTRIES]


def _op(row: Sequence[int], sequence: int) -> int:
    return _word(row, sequence) % StatusRow.START


def _entries(row: Sequence[int]) -> tuple[CollectiveRecord, ...]:
    """Return the last collectives of a row, the oldest first."""
    count, ended = row[StatusRow.STARTED], row[StatusRow.ENDED]
    entries = []
    for sequence in range(max(0, count - StatusRow.ENTRIES) + 1, count + 1):
        op = _op(row, sequence)
        half = _HALVES.get(_word(row, sequence) - op, "")
        entries.append(CollectiveRecord(sequence, op, half, sequence <= ended))
    return tuple(entries)
