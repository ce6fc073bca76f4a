"""Watch whether the ranks still make progress.

A job is stalled when no row of its status board has changed for some time. Who states a time means ranks that compute
as well. Else the time is WAITING, and counts while some rank waits, in a collective or because it has returned, for
another: a long kernel is no fault.
"""

from __future__ import annotations

from meshweave.bundle import Manifest
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import account, stragglers

WAITING = 60.0  # seconds without progress while a rank waits, where none are stated


class Watchdog:
    """Compare looks at a board. One watcher may use it at a time."""

    def __init__(self, board: StatusBoard, manifest: Manifest, seconds: float | None) -> None:
        """Watch a program's board. seconds: without progress that are a stall; None: WAITING, in waits alone."""
        self.board = board
        self.manifest = manifest
        self.seconds = seconds or WAITING
        self._waits_only = seconds is None
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
        if now - self._since < self.seconds or (self._waits_only and self.board.all_compute()):
            return None
        ranks = self.board.records()
        if not stragglers(ranks):
            return None
        return f"no progress for {self.seconds:g} s: {account(ranks, self.manifest.op)}"
