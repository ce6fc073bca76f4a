"""Back-end processes: a few, started when there is work, each asked one thing at a time.

A process that dies of a request (LLVM aborts on what it cannot select) or does not answer in time
makes that request fail; the next one gets a new process. They end when this process does.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any, cast

from meshweave.errors import CompileError
from meshweave.lowering.gpu import backend

SECONDS = 120.0  # the time that one kernel may take
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


class Worker:
    """One back-end process."""

    def __init__(self) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as the process does)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(Path(backend.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )

    def ask(self, request: dict[str, Any], seconds: float = SECONDS) -> dict[str, str]:
        """The reply to a request. CompileError where the process dies or the time is up; it is then
        of no more use.
        """
        deadline = time.monotonic() + seconds
        try:
            backend.send(cast(Any, _Pipe(self.process, deadline)), request)
            reply = backend.receive(cast(Any, _Pipe(self.process, deadline)))
        except (BrokenPipeError, ConnectionResetError):
            reply = None
        except TimeoutError:
            self.close()
            raise CompileError(f"the back end did not answer in {seconds:g} s") from None
        if reply is None:
            raise CompileError(f"the back end died: {self._last_words()}")
        return cast("dict[str, str]", reply)

    def _last_words(self) -> str:
        """What LLVM said before it ended the process, or the signal that did."""
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
        """Whether it can be asked."""
        return self.process.poll() is None


class _Pipe:
    """The pipes to a process as a stream that gives up at a time."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._deadline = deadline

    def write(self, data: bytes) -> None:
        """Write all of it, in pieces that a pipe surely takes."""
        for start in range(0, len(data), select.PIPE_BUF):
            self._wait(self._to, select.POLLOUT)
            os.write(self._to, data[start : start + select.PIPE_BUF])

    def flush(self) -> None:
        """Nothing waits here."""

    def read(self, count: int) -> bytes:
        """As many bytes; fewer when the stream ends."""
        parts: list[bytes] = []
        while count:
            self._wait(self._from, select.POLLIN)
            part = os.read(self._from, min(count, 1 << 16))
            if not part:
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(self, file: int, event: int) -> None:
        """Until a pipe can be used, or has been closed: poll, for select takes no file above 1023."""
        ready = select.poll()
        ready.register(file, event)
        left = self._deadline - time.monotonic()
        if left <= 0 or not ready.poll(1000 * left):
            raise TimeoutError


class Pool:
    """Workers that wait for work."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = Lock()
        self._owner = os.getpid()

    def ask(self, request: dict[str, Any], seconds: float = SECONDS) -> dict[str, str]:
        """The reply of some worker; see `Worker.ask`."""
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
