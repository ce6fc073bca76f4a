"""Serve short calls of the `local` engine: the ranks wait in compiled code, and the calling thread is rank 0.

lowering/cpu/collectives/serve.py makes the code.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshweave.abi import ServeBlock
from meshweave.errors import MeshweaveError
from meshweave.runtime.forks import new_lock
from meshweave.runtime.loader import LoadedCode
from meshweave.runtime.memory import aligned
from meshweave.runtime.watchdog import Watchdog

SHORT = 2e-3  # seconds up to which the caller may be rank 0: it does not listen to Ctrl-C meanwhile
LONG = 20e-3  # seconds after which the next call is none of these
_TICK = 0.1  # seconds between looks at the board
_IDLE_TICKS = 20  # ticks without a call after which nobody looks any more
_SPINS, _SPINS_CROWDED = 200, 1  # looks before a wait yields: with a core per rank, and without
_YIELDS = 200  # before it sleeps


_libc: Any = ctypes.CDLL(None)


class Serving:
    """Hold the block where the ranks meet their caller. Calls of `call` run one after the other."""

    def __init__(self, code: LoadedCode, step: int, world: int, nranks: int, crowded: bool) -> None:
        """Set up the block.

        step, world: addresses of the program's entry and of the block with the abort flag; crowded: there are more
        ranks than cores.
        """
        self._code = code
        self.entered = False  # whether the ranks are in `serve`
        self._ranks, self._caller = nranks, -1
        self._block = aligned(ServeBlock.nbytes(nranks)).view(np.int64)
        self._block[:] = 0
        for place, value in (
            (ServeBlock.NRANKS, nranks),
            (ServeBlock.SPINS, _SPINS_CROWDED if crowded else _SPINS),
            (ServeBlock.YIELDS, _YIELDS),
            (ServeBlock.STEP, step),
            (ServeBlock.WORLD, world),
        ):
            self._block[place // 8] = value
        first = (ServeBlock.RANKS + ServeBlock.RESULT) // 8
        self.results = self._block[first :: ServeBlock.RANK_BYTES // 8]
        address = ctypes.c_void_p(self._block.ctypes.data)
        self._call = _function(code, "mw_call", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._finish = _function(code, "mw_finish", ctypes.c_int, ctypes.c_void_p)
        self._stop = _function(code, "mw_stop", None, ctypes.c_void_p)
        self._serve = _function(code, "mw_serve", None, ctypes.c_void_p, ctypes.c_int64)
        self._at = address

    @staticmethod
    def offered(code: LoadedCode) -> bool:
        """Tell whether a program's code has the functions that this takes."""
        return "mw_serve" in code

    def serve(self, rank: int) -> None:
        """Run the calls of a rank other than 0, in its thread, until `stop`."""
        with kept_on(rank - 1, self._ranks - 1, self._caller):
            self._serve(self._at, rank)

    def enter(self) -> None:
        """Note that the ranks are about to `serve` the calls of this thread."""
        self.entered, self._caller = True, current_core()

    def call(self, contexts: int) -> bool:
        """Run every rank once with the tables at the addresses at `contexts`; return False while some are not done."""
        return bool(self._call(self._at, contexts) == 0)

    def finish(self) -> bool:
        """Wait a moment longer for the ranks; tell whether all are done."""
        return bool(self._finish(self._at) == 0)

    def stop(self) -> None:
        """Let the ranks leave `serve`."""
        self._stop(self._at)


def _function(
    code: LoadedCode,
    name: str,
    result: type[ctypes.c_int] | None,
    *arguments: type[ctypes.c_void_p | ctypes.c_int64],
) -> Callable[..., Any]:
    return ctypes.CFUNCTYPE(result, *arguments)(code.address(name))


class Lookout:
    """Watch the board while calls run that their caller cannot watch, from a thread that ends after some idle time."""

    def __init__(self, watchdog: Watchdog, stalled: Callable[[str], str]) -> None:
        """Set up without a thread. stalled: called with the watchdog's line; ends the call and returns the report."""
        self._watchdog, self._stalled = watchdog, stalled
        self._lock = new_lock()
        self._awake = False
        self.number = 0  # of the calls so far
        self.running = False
        self.report: str | None = None  # of the call that was aborted

    def begin(self) -> None:
        """Note that a call is about to be made."""
        self.number += 1
        with self._lock:  # either the thread sees this call before it ends, or another is started
            self.running = True
            asleep, self._awake = not self._awake, True
        if asleep:
            try:
                threading.Thread(target=self._look, name="meshweave-watchdog", daemon=True).start()
            except RuntimeError:
                self.running = self._awake = False
                raise MeshweaveError(
                    "the watchdog: the system starts no more threads for this process"
                ) from None

    def end(self) -> str | None:
        """Note that the call has ended; return a line when it was stalled."""
        with self._lock:
            self.running = False
            report, self.report = self.report, None
        return report

    def _look(self) -> None:
        seen, idle = -1, 0
        while True:
            time.sleep(_TICK)
            now = time.monotonic()
            if not self.running or self.number != seen:
                idle = 0 if self.number != seen else idle + 1
                seen = self.number
                self._watchdog.start(now)
                with self._lock:
                    if idle > _IDLE_TICKS and not self.running:
                        self._awake = False
                        return
            elif (line := self._watchdog.report(now)) is not None:
                with self._lock:
                    if self.running and self.number == seen:
                        self.report = self._stalled(line)


# Ranks that wait for each other belong on different cores: the system seldom moves a thread that looks for work without
# sleeping, so that two of them that begin on one core share it for long, though another is idle.


def current_core() -> int:
    """Return the core that this thread runs on."""
    return int(_libc.sched_getcpu())


def own_cores(cores: set[int], index: int, count: int, taken: int) -> set[int]:
    """Return the cores for thread `index` of `count`: no two threads share one, and none has the core `taken`.

    Return all where there are too few.
    """
    free = sorted(cores - {taken})
    return set(free[index::count]) if count <= len(free) else cores


@contextmanager
def kept_on(index: int, count: int, taken: int) -> Iterator[None]:
    """Keep this thread on its own cores inside the `with`."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, own_cores(before, index, count, taken))
    except OSError:  # a system that does not allow it places threads itself
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
