"""Run ranks as threads of one process, one at a time, so that what they record has one order.

A rank runs until it ends or waits for something. When nobody can run, the devices get on (`idle`);
when these cannot either, the ranks are dead-locked, and that is an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshweave.errors import RankError

_TICK = 0.05  # seconds between looks at a rank that runs


class Aborted(Exception):
    """Signal a rank that another one has failed, and that it has to leave."""


class StuckRankError(RankError):
    """Signal that a rank's code does not come back: its thread is given up."""


@dataclass(eq=False)
class _Rank:
    number: int
    body: Callable[[], Any]
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] | None = None  # what it waits for
    what: str = ""
    finished: bool = False
    result: Any = None
    error: BaseException | None = None


class Interleaving:
    """Run a body for each rank, one at a time."""

    def __init__(
        self,
        idle: Callable[[], int],
        stuck: Callable[[], str],
        clock: Callable[[], int],
        timeout: float,
    ) -> None:
        """Make ranks wait for each other and for the devices.

        idle: lets the devices make progress and returns how much they made. stuck: says why they cannot. clock: grows
        whenever a rank does something; a rank that runs for `timeout` seconds without that gets a StuckRankError.
        """
        self._idle, self._stuck, self._clock, self._timeout = idle, stuck, clock, timeout
        self._ranks: list[_Rank] = []
        self._threads: dict[int, _Rank] = {}
        self._back = threading.Semaphore(0)
        self._aborting = False

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the bodies' results.

        Raises the first error of a body (by rank), or RankError when all ranks wait.
        """
        self._ranks = [_Rank(number, body) for number, body in enumerate(bodies)]
        self._threads, self._aborting = {}, False
        for rank in self._ranks:
            threading.Thread(
                target=self._serve, args=(rank,), name=f"meshweave-rank-{rank.number}", daemon=True
            ).start()
        try:
            self._rounds()
        except BaseException as error:
            if not isinstance(error, StuckRankError):
                self._abort()
            raise
        return [rank.result for rank in self._ranks]

    def block(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until `ready()`: in a rank's thread for other ranks too, elsewhere for the devices alone.

        Raises Aborted when another rank has failed, and RankError when `ready()` will never hold.
        """
        rank = self._threads.get(threading.get_ident())
        if rank is None:
            while not ready():
                if not self._idle():
                    raise RankError(f"{what}, but {self._stuck() or 'nothing is under way'}")
            return
        if self._aborting:
            raise Aborted
        if ready():
            return
        rank.ready, rank.what = ready, what
        self._back.release()
        rank.go.acquire()
        rank.ready = None
        if self._aborting:
            raise Aborted

    def _serve(self, rank: _Rank) -> None:
        rank.go.acquire()
        self._threads[threading.get_ident()] = rank
        try:
            if not self._aborting:
                rank.result = rank.body()
        except BaseException as error:
            rank.error = error
        del self._threads[threading.get_ident()]
        rank.finished = True
        self._back.release()

    def _rounds(self) -> None:
        while alive := [rank for rank in self._ranks if not rank.finished]:
            runnable = [rank for rank in alive if rank.ready is None or rank.ready()]
            for rank in runnable:
                self._resume(rank)
                if rank.error is not None:
                    raise rank.error
            if not runnable and not self._idle():
                waits = "; ".join(f"rank {rank.number} waits for {rank.what}" for rank in alive)
                ended = [str(rank.number) for rank in self._ranks if rank.finished]
                others = f"; rank {', '.join(ended)} has returned" if ended else ""
                why = self._stuck()
                raise RankError(f"deadlock: {waits}{others}" + (f"; {why}" if why else ""))

    def _resume(self, rank: _Rank) -> None:
        """Let a rank run until it ends or waits."""
        rank.go.release()
        seen, since = self._clock(), time.monotonic()
        while not self._back.acquire(timeout=min(_TICK, self._timeout)):
            now = time.monotonic()
            if self._clock() != seen:
                seen, since = self._clock(), now
            elif now - since > self._timeout:
                raise StuckRankError(
                    f"no progress for {self._timeout:g} s: rank {rank.number} computes"
                )

    def _abort(self) -> None:
        """Make the waiting ranks leave."""
        self._aborting = True
        for rank in self._ranks:
            if not rank.finished:
                self._resume(rank)
