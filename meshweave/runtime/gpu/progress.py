"""Watch a rank's device while the rank waits for it: how far it is, and what NCCL says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from meshweave.errors import MeshweaveError
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.watchdog import Watchdog

_TICK = 0.1  # seconds between looks


class Progress:
    """Watch, in a thread that lasts as long as the `with`, the events of a program and its communicators.

    The events seen go to the rank's row of the board: any change is progress. `failed(line)` is called once, from that
    thread, when NCCL has an error, or when `watchdog` (if any) finds no progress.
    """

    def __init__(
        self, rank: GpuRank, board: StatusBoard, failed: Callable[[str], None],
        watchdog: Watchdog | None = None,
    ) -> None:  # fmt: skip
        self._rank, self._board, self._failed, self._watchdog = rank, board, failed, watchdog
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meshweave-progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._watchdog is not None:
            self._watchdog.start(time.monotonic())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        rank = self._rank
        while not self._end.wait(_TICK):
            try:
                rank.attach()
                self._board.progress(rank.rank, rank.reached())
                line = rank.comms.error()
                if not line and self._watchdog is not None:
                    line = self._watchdog.report(time.monotonic()) or ""
            except MeshweaveError as error:
                line = error.message
            if line and not self._end.is_set():
                self._failed(line)
                return
