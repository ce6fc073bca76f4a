"""Watch where each rank is, and whether the ranks still make progress.

Compiled code writes the op it starts and the op it has finished into its row of a status board; the
engine writes whether the rank runs. Whoever watches needs only the board: a stalled or dead rank
need not answer. A job is stalled when no row has changed for the stated time and some rank waits,
in a collective or because it has returned, for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from meshweave.abi import IDLE, RETURNED, RUNNING, STATE
from meshweave.bundle import Manifest
from meshweave.runtime.program import Memory, aligned

# ELSEWHERE: on a host that this board does not reach; DEVICE: waits for what it gave its device.
ELSEWHERE, DEVICE = 3, 4
_STARTED, _STATE, _PROGRESS = 0, STATE, 3
_ROW = 8  # i64 per rank: one cache line


class StatusBoard:
    """Hold a row for each rank in memory that all share.

    Compiled code writes the op started and the op finished, the engine writes the state, and whoever watches a device
    writes how far it is.
    """

    def __init__(self, memory: Memory, nranks: int) -> None:
        """Use a writable buffer of `nbytes(nranks)` bytes."""
        self.nranks = nranks
        self.rows: npt.NDArray[np.int64] = np.frombuffer(memory, np.int64, nranks * _ROW)
        self.rows = self.rows.reshape(nranks, _ROW)

    @staticmethod
    def private(nranks: int) -> StatusBoard:
        """Make a board in memory of this process; no rank runs."""
        board = StatusBoard(aligned(StatusBoard.nbytes(nranks)), nranks)
        board.clear()
        return board

    @staticmethod
    def nbytes(nranks: int) -> int:
        """Return the bytes of a board."""
        return nranks * _ROW * 8

    def address(self, rank: int) -> int:
        """Return the address of a rank's row, which goes in its `status` slot."""
        return int(self.rows[rank].ctypes.data)

    def begin(self, rank: int) -> None:
        """Note that a rank is about to call `step`."""
        self.rows[rank, :_STATE] = 0
        self.rows[rank, _STATE] = RUNNING

    def end(self, rank: int) -> None:
        """Note that a rank's `step` has returned."""
        self.rows[rank, _STATE] = RETURNED

    def mark(self, rank: int, state: int) -> None:
        """Set a rank's state."""
        self.rows[rank, _STATE] = state

    def progress(self, rank: int, count: int) -> None:
        """Note how far a rank's device is; the number means nothing except that it changes."""
        self.rows[rank, _PROGRESS] = count

    def clear(self) -> None:
        """Note that no rank runs."""
        self.rows[:] = 0

    def look(self) -> bytes:
        """Return the board as a value: two looks are equal when nothing has moved."""
        return self.rows[:, : _PROGRESS + 1].tobytes()

    def in_collective(self, rank: int) -> bool:
        """Tell whether a rank has started an op that it has not finished."""
        started, finished, state = self.rows[rank, :3]
        return bool(state == RUNNING and started != finished)

    def state(self, rank: int) -> int:
        """Return a rank's state: IDLE, RUNNING, RETURNED, ELSEWHERE or DEVICE."""
        return int(self.rows[rank, _STATE])

    def waits(self, rank: int) -> bool:
        """Tell whether a rank can only wait: it is in a collective, has returned, or waits for its device."""
        return self.in_collective(rank) or self.state(rank) in (RETURNED, DEVICE)

    def where(self, manifest: Manifest, rank: int) -> str:
        """Say what a rank does, in words: `is in all_reduce[tp] f32 64x96 at mlp.mlir:7:8`."""
        started, finished, state = (int(word) for word in self.rows[rank, :3])
        if state == RETURNED:
            return "has returned"
        if state == IDLE:
            return "has not begun"
        if state == ELSEWHERE:
            return "is on another host"
        if state == DEVICE:
            last = f", which was given all up to {manifest.op(started)}" if started else ""
            return f"waits for its device{last}"
        if started != finished:
            return f"is in {manifest.op(started)}"
        if started == 0:
            return "computes, before the first collective"
        return f"computes, after {manifest.op(finished)}"


def together(board: StatusBoard, manifest: Manifest, ranks: Iterable[int]) -> str:
    """Say where ranks are, those at the same place together: `ranks 0, 1 and 3 are in all_reduce...`."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(board.where(manifest, rank), []).append(rank)
    parts = []
    for place, members in places.items():
        if len(members) > 1:
            for one, many in _PLURALS:
                if place.startswith(one):
                    place = many + place[len(one) :]
        parts.append(f"{named(members)} {place}")
    return "; ".join(parts)


_PLURALS = (
    ("is ", "are "), ("has ", "have "), ("computes", "compute"),
    ("waits for its device", "wait for their devices"),
)  # fmt: skip


def named(ranks: Sequence[int]) -> str:
    """Name ranks: `rank 2`, `ranks 0, 1 and 3`; many ranks are counted."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:6]))} and {len(ranks) - 6} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def stalled_ranks(board: StatusBoard) -> list[int]:
    """Return the ranks that the others wait for.

    These are the ranks that wait for none, else those whose collective is furthest behind.
    """
    here = [rank for rank in range(board.nranks) if board.state(rank) != ELSEWHERE]
    running = [rank for rank in here if not board.waits(rank)]
    if running:
        return running
    inside = [rank for rank in here if board.in_collective(rank)]
    if not inside:
        return [rank for rank in here if board.state(rank) == DEVICE]
    first = min(int(board.rows[rank, _STARTED]) for rank in inside)
    return [rank for rank in inside if board.rows[rank, _STARTED] == first]


class Watchdog:
    """Compare looks at a board. One watcher may use it at a time."""

    def __init__(self, board: StatusBoard, manifest: Manifest, seconds: float) -> None:
        self.board = board
        self.manifest = manifest
        self.seconds = seconds
        self._last = b""
        self._since = 0.0

    def start(self, now: float) -> None:
        """Begin to watch a run at time `now` (seconds, any clock)."""
        self._last, self._since = self.board.look(), now

    def report(self, now: float) -> str | None:
        """Describe in one line a job that is stalled at time `now`; return None while it makes progress.

        It names the ranks that hold the others up and where they are, then the others.
        """
        seen = self.board.look()
        if seen != self._last:
            self._last, self._since = seen, now
            return None
        ranks = range(self.board.nranks)
        if now - self._since < self.seconds:
            return None
        if not any(self.board.waits(rank) or self.board.state(rank) == IDLE for rank in ranks):
            return None  # all compute
        guilty = stalled_ranks(self.board)
        if not guilty:
            return None
        others = [rank for rank in ranks if rank not in guilty]
        line = f"no progress for {self.seconds:g} s: {together(self.board, self.manifest, guilty)}"
        return f"{line}; {together(self.board, self.manifest, others)}" if others else line
