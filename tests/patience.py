"""Tell what hangs from what only gets little of a busy machine."""

import os
import select
import signal
import socket
import time
from pathlib import Path

LOAD = Path("/proc/loadavg")


class IdleClock:
    """Count seconds as an idle machine has them: while more tasks are ready than there are cores, they pass slower."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before = time.monotonic()

    def read(self) -> float:
        """Return the seconds since the clock was made. Between two calls the load is taken to be as it is now."""
        now = time.monotonic()
        ready = int(LOAD.read_text().split()[3].partition("/")[0])
        cores = len(os.sched_getaffinity(0))
        self.seconds += (now - self._before) * min(1.0, cores / max(1, ready))
        self._before = now
        return self.seconds


def ends_within(answers: socket.socket, seconds: float) -> bool:
    """Wait until a socket can be read; tell whether that took no more seconds of an idle machine."""
    clock = IdleClock()
    while not select.select([answers], [], [], 0.1)[0]:
        if clock.read() > seconds:
            return False
    return True


def wait_for(child: int, seconds: float, ends: signal.Signals) -> tuple[int, bool]:
    """Wait until a child process ends; return its exit status, and whether it was ended by the signal `ends`.

    That is done when it has taken so many seconds of an idle machine.
    """
    clock, pause, is_late = IdleClock(), 0.001, False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), is_late
        if is_late:
            pause = 0.1
        elif clock.read() > seconds:
            is_late = True
            os.kill(child, ends)
        time.sleep(pause)
        pause = min(0.1, 1.2 * pause)
