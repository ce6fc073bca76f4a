"""Keep a few back-end processes, started when there is work, each asked one thing at a time.

A process that dies of a request (LLVM aborts on what it cannot select) or does not answer in time
makes that request fail; the next one gets a new process. They end when this process does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import IO, Any, BinaryIO, cast

from meshweave.errors import CompileError
from meshweave.lowering.gpu.toolchain import backend

SECONDS = 120.0  # the time that one kernel may take
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


class Worker:
    """Run one back-end process."""

    def __init__(self) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as the process does)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(Path(backend.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )

    def ask(self, request: dict[str, Any], seconds: float = SECONDS) -> dict[str, str]:
        """Return the reply to a request.

        Raises CompileError where the process dies or the time is up; the worker is then of no more
        use.
        """
        deadline = time.monotonic() + seconds
        end = Timer(seconds, self.process.kill)
        end.daemon = True
        end.start()
        try:
            backend.send(cast("BinaryIO", self.process.stdin), request)
            reply = backend.receive(cast("BinaryIO", self.process.stdout))
        except (OSError, ValueError):  # it ended in the middle of a frame
            reply = None
        finally:
            end.cancel()
        if reply is None and time.monotonic() >= deadline:
            self.close()
            raise CompileError(f"the back end did not answer in {seconds:g} s")
        if reply is None:
            raise CompileError(f"the back end died: {self._last_words()}")
        return cast("dict[str, str]", reply)

    def _last_words(self) -> str:
        """Return what LLVM said before it ended the process, or the signal that did."""
        self.close()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").splitlines()
        said = [line for line in lines if "LLVM ERROR" in line or "Assertion" in line]
        return said[-1].strip() if said else f"exit status {self.process.returncode}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    @property
    def alive(self) -> bool:
        """Tell whether it can be asked."""
        return self.process.poll() is None


class Pool:
    """Keep workers that wait for work."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = Lock()
        self._owner = os.getpid()

    def ask(self, request: dict[str, Any], seconds: float = SECONDS) -> dict[str, str]:
        """Return the reply of some worker; see `Worker.ask`."""
        worker = self._take()
        reply = worker.ask(request, seconds)
        with self._lock:
            self._idle.append(worker)
        return reply

    def _take(self) -> Worker:
        with self._lock:
            if self._owner != os.getpid():  # a fork: those workers are the parent's
                self._idle, self._owner = [], os.getpid()
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
        return Worker()


POOL = Pool()
