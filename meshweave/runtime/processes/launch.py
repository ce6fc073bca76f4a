"""Start ranks that are processes, under a launcher, talk to them, and leave nothing behind.

The process that starts them is never an MPI process. Each rank connects twice to a Unix socket in a private folder,
which is removed as soon as all are connected. One link carries messages (wire.py). The other is a lifeline: when the
starting process ends, in whatever way, the ranks end. Any failure ends the whole job: its processes, and the shared
memory that its MPI library made.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from meshweave.errors import RankError
from meshweave.runtime.flight.diagnosis import named
from meshweave.runtime.flight.processes import stat_words
from meshweave.runtime.forks import tell_of_forks
from meshweave.runtime.processes import launcher
from meshweave.runtime.processes.shared_files import mpi_memory, ownerless, remove
from meshweave.runtime.processes.wire import frame, receive, send_frame

Message = dict[str, Any]
_TICK = 0.1  # seconds between looks at whatever the caller watches
FOREIGN = ("PMI_", "PMIX_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "OMPI_COMM_WORLD", "MPIEXEC_")


class Death(Exception):
    """Report that a rank's link has closed, when (in milliseconds since 1970), and how its process ended, if known."""

    def __init__(self, rank: int, when: int, how: str) -> None:
        super().__init__(how)
        self.rank, self.when, self.how = rank, when, how


class Failure(Exception):
    """Report the error that a rank has answered with: its kind (a class name) and one line."""

    def __init__(self, rank: int, kind: str, line: str) -> None:
        super().__init__(line)
        self.rank, self.kind, self.line = rank, kind, line


class Silence(Exception):
    """Report that some ranks have not answered, in the watcher's words."""


@dataclass(frozen=True)
class Launcher:
    """Say what starts the processes of a job.

    name: in messages. command: for a number of ranks, which connect to a socket's path. environment: of the processes.
    When a rank fails, the launcher writes `rank N: EXIT STRING: how` and ends all others.
    """

    name: str
    command: Callable[[int, str], list[str]]
    environment: Callable[[int], dict[str, str]]


class RankProcesses:
    """Hold running ranks that wait for messages."""

    def __init__(self, nranks: int, seconds: float, launcher: Launcher) -> None:
        """Start `nranks` ranks. Raises RankError when they are not all connected within `seconds`."""
        self.nranks = nranks
        self.forget = collections.deque[int]()  # calls that cannot be made any more
        self._job = _Job(nranks, launcher)
        self._finalizer = weakref.finalize(self, self._job.kill)
        try:
            self._job.start(seconds)
        except BaseException:
            self.kill()
            raise
        tell_of_forks(self)

    def forked(self) -> None:
        """Let go of the ranks, which belong to the process that this one is a copy of."""
        if self._finalizer.detach() is not None:
            self._job.leave()

    @property
    def alive(self) -> bool:
        """Tell whether the ranks can be asked."""
        return bool(self._finalizer.alive)

    @property
    def pids(self) -> list[int]:
        """Return the process of each rank."""
        return [self._job.pids[rank] for rank in range(self.nranks)]

    def post(self, message: Message, payload: bytes = b"", files: Sequence[int] = ()) -> None:
        """Send every rank the message. Raises Death when one is gone, Silence when one takes none."""
        while self.forget:
            self.post({"do": "drop", "call": self.forget.popleft()})
        self._job.making = message["do"] == "load"
        data = frame(message, len(payload), len(files))
        for rank, link in enumerate(self._job.links):
            try:
                send_frame(link, data, payload, files)
            except TimeoutError:
                raise Silence(f"rank {rank} takes no message") from None
            except OSError:
                raise self._job.death(rank) from None

    def answers(self, watch: Callable[[float], str | None]) -> list[Message]:
        """Return one answer of each rank. `watch(now)` is asked now and then, and ends the wait by returning a line.

        Raises Failure for the first error a rank answers with, Death when one is gone, Silence with
        watch's line.
        """
        found: dict[int, Message] = {}
        look = time.monotonic() + _TICK
        while len(found) < self.nranks:
            for number, _ in self._job.readable.poll(_TICK):
                rank = self._job.numbers[number]
                found[rank] = self._answer(rank)
            now = time.monotonic()
            if len(found) < self.nranks and now >= look:
                look = now + _TICK
                if (line := watch(now)) is not None:
                    raise Silence(line)
        self._job.making = False
        return [found[rank] for rank in range(self.nranks)]

    def _answer(self, rank: int) -> Message:
        """Receive what a rank has sent."""
        try:
            reply, _, _ = receive(self._job.links[rank])
        except (EOFError, OSError):
            raise self._job.death(rank) from None
        if "error" in reply:
            raise Failure(rank, str(reply.get("kind")), str(reply["error"]))
        if "shared" in reply:
            self._job.shared |= set(reply["shared"])
        return reply

    def close(self) -> None:
        """Let the ranks end by themselves; end those that do not."""
        if self.alive:
            with contextlib.suppress(Death):
                self.post({"do": "exit"})
                self._job.wait(3.0)
            self.kill()

    def kill(self) -> None:
        """End all ranks now and remove what they left."""
        self._finalizer()


class _Job:
    """Hold the processes and links of a job: all that has to be ended, whatever happens."""

    def __init__(self, nranks: int, launcher: Launcher) -> None:
        self.nranks, self._launcher = nranks, launcher
        self.links: list[socket.socket] = []
        self.shared: set[str] = set()  # files in /dev/shm that the ranks' MPI library has made
        self.making = False  # whether they may be making more, whose names nobody has told
        self._began = time.time()
        self.numbers: dict[int, int] = {}  # file number of a link -> rank
        self.readable = select.epoll()  # of the links, in the order in which they became so
        self._lifelines: list[socket.socket] = []
        self.pids: dict[int, int] = {}  # rank -> process
        self._handles: list[int] = []  # of the ranks: no other process that got the same number
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def start(self, seconds: float) -> None:
        folder = tempfile.mkdtemp(prefix="meshweave-")
        try:
            if len(folder) > 90:  # a socket's path has room for 107 bytes
                os.rmdir(folder)
                folder = tempfile.mkdtemp(prefix="meshweave-", dir="/tmp")
            path = os.path.join(folder, "ranks")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(2 * self.nranks)
                listener.settimeout(0.05)
                self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
                self._process = subprocess.Popen(
                    self._launcher.command(self.nranks, path),
                    stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
                    env=self._launcher.environment(self.nranks), start_new_session=True,
                )  # fmt: skip
                self._accept(listener, seconds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _accept(self, listener: socket.socket, seconds: float) -> None:
        """Accept both links of every rank."""
        end = time.monotonic() + seconds
        links: dict[int, socket.socket] = {}
        assert self._process is not None
        while len(links) < self.nranks or len(self._lifelines) < self.nranks:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                self._check_starting(end, links)
                continue
            # For one transfer: a rank that has stopped must not stop the launcher.
            link.settimeout(seconds)
            hello, _, _ = receive(link)
            self.shared |= set(hello["shared"])
            if hello["link"] == "life":
                self._lifelines.append(link)
                continue
            links[hello["rank"]] = link
            self.pids[hello["rank"]] = hello["pid"]
            if (handle := _handle(hello["pid"])) is not None:
                self._handles.append(handle)
        self.links = [links[rank] for rank in range(self.nranks)]
        self.numbers = {link.fileno(): rank for rank, link in enumerate(self.links)}
        for number in self.numbers:
            self.readable.register(number, select.EPOLLIN)

    def _check_starting(self, end: float, links: Mapping[int, object]) -> None:
        """Raise RankError when the launcher has ended, or it is later than `end`, before all ranks have connected."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RankError(f"the ranks did not start: {self.output()}") from None
        if time.monotonic() > end:
            missing = [rank for rank in range(self.nranks) if rank not in links]
            raise RankError(f"{named(missing)} did not start in time: {self.output()}") from None

    def output(self) -> str:
        """Return what the launcher and the ranks have written, as one line."""
        if self._output is None:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        said = [line.strip(" =") for line in lines if line.strip(" =")]
        return " / ".join(said[-3:])[:400] or "they wrote nothing"

    def death(self, rank: int) -> Death:
        """Describe the death of a rank whose link has closed, or of the rank for which the launcher has ended it."""
        assert self._process is not None and self._output is not None
        when = int(time.time() * 1000)
        self.wait(2.0)
        self._output.seek(0)
        said = self._output.read().decode(errors="replace")
        status = self._process.returncode
        if (
            told := re.search(r"^(?:rank (\d+): )?EXIT STRING: (.*)", said, re.MULTILINE)
        ) is not None:
            first = rank if told[1] is None else int(told[1])
            return Death(first, when, f"{self._launcher.name}: {told[2].strip()}")
        return Death(
            rank, when, "" if status is None else f"{self._launcher.name}: status {status}"
        )

    def wait(self, seconds: float) -> None:
        """Let the job end by itself."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def leave(self) -> None:
        """Close this process's ends of all links; another process has them too."""
        self._process = None
        self._unlink()

    def _unlink(self) -> None:
        self.readable.close()
        for link in (*self.links, *self._lifelines):
            link.close()
        self.links, self._lifelines = [], []

    def kill(self) -> None:
        """End every process, close every link, remove the ranks' shared memory. May be called again."""
        process, self._process = self._process, None
        if process is not None:
            family = descendants(process.pid)
            self.shared |= set().union(*(mpi_memory(pid) for pid in (*family, *self.pids.values())))
            handles = self._handles + [
                handle for pid in family if (handle := _handle(pid)) is not None
            ]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            process.wait()
            for handle in handles:
                _gone(handle, 2.0)
                os.close(handle)
            self._handles = []
        self._unlink()
        if self.making:
            self.shared |= ownerless(self._began)
        remove(self.shared)
        self.shared = set()
        if self._output is not None:
            self._output.close()
            self._output = None


def own_launcher(
    command: Callable[[str], list[str]], more: Callable[[int, int], dict[str, str]], *, pmi: bool
) -> Launcher:
    """Return our own launcher (launcher.py), for ranks that are a command.

    command: of a rank, which connects to a socket's path. more: what the environment of a rank, of so many, has
    besides. pmi: ranks speak PMI.
    """

    def started(nranks: int, path: str) -> list[str]:
        job = {"command": [sys.executable, *command(path)], **_ranks(more, nranks, pmi)}
        return [sys.executable, "-I", "-S", launcher.__file__, json.dumps(job)]

    return Launcher("launcher", started, environment)


def forking_launcher(
    module: str, more: Callable[[int, int], dict[str, str]], *, pmi: bool
) -> Launcher:
    """Return our own launcher for ranks that are copies of it: each calls the `main` of a module with a socket's path.

    The module must start no thread when it is imported, and must not load MPI. more, pmi: as for `own_launcher`.
    """

    def started(nranks: int, path: str) -> list[str]:
        job = {"module": module, "arguments": [path], **_ranks(more, nranks, pmi)}
        return [sys.executable, "-m", launcher.__name__, json.dumps(job)]

    return Launcher("launcher", started, environment)


def _ranks(more: Callable[[int, int], dict[str, str]], nranks: int, pmi: bool) -> dict[str, object]:
    return {"ranks": [more(rank, nranks) for rank in range(nranks)], "pmi": pmi}


def environment(nranks: int) -> dict[str, str]:
    """Return the ranks' environment: this package importable, one thread each, yielding waits where cores are few."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    root = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    kept |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if nranks > len(os.sched_getaffinity(0)):
        kept["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
    return kept


def descendants(pid: int) -> list[int]:
    """List the living processes started by `pid`, and by those in turn."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (words := stat_words(int(name))):
            children.setdefault(int(words[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def _handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _gone(handle: int, seconds: float) -> None:
    """Wait until a process has ended: its handle becomes readable."""
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        selector.select(seconds)
