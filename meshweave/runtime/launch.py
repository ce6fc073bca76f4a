"""Start the ranks of an engine that has a process for each, under `mpiexec` or our own launcher,
talk to them, and leave nothing behind.

The process that starts them is never an MPI process. Each rank connects twice to a Unix socket in a private folder,
which is removed as soon as all are there: one link carries messages (wire.py), the other is a
lifeline: when that process ends, in whatever way, the ranks end. Whatever goes wrong ends the whole
job: processes, and the shared memory that its MPI library made.
"""

from __future__ import annotations

import collections
import contextlib
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.forks import tell_of_forks
from meshweave.runtime.watchdog import named
from meshweave.runtime.wire import frame, receive, send_frame

Reply = dict[str, Any]
_TICK = 0.1  # seconds between looks at whatever the caller watches
_FORGET = ("PMI_", "PMIX_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "OMPI_COMM_WORLD", "MPIEXEC_")


class Death(Exception):
    """A rank's link has closed. The message says how its process ended, as far as it is known."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(how)
        self.rank, self.how = rank, how


class Failure(Exception):
    """A rank has answered with an error: its kind (a class name) and one line."""

    def __init__(self, rank: int, kind: str, line: str) -> None:
        super().__init__(line)
        self.rank, self.kind, self.line = rank, kind, line


class Silence(Exception):
    """Some ranks have not answered; the message is whatever the watcher said."""


@dataclass(frozen=True)
class Launcher:
    """What starts the processes of a job: its name in messages, its command (for so many ranks that
    connect to a socket's path), and their environment. When a rank ends in a bad way it writes
    `EXIT STRING: how` and ends all others.
    """

    name: str
    command: Callable[[int, str], list[str]]
    environment: Callable[[int], dict[str, str]]


class Ranks:
    """Running ranks, waiting for messages."""

    def __init__(self, nranks: int, seconds: float, launcher: Launcher | None = None) -> None:
        """Start `nranks` ranks, by default of engine mpi. RankError when they are not all there
        within `seconds`; MeshweaveError without MPI.
        """
        self.nranks = nranks
        self.forget: collections.deque[int] = (
            collections.deque()
        )  # calls that nobody can make any more
        self._held = _Held(nranks, launcher or MPIEXEC)
        self._finalizer = weakref.finalize(self, self._held.kill)
        try:
            self._held.start(seconds)
        except BaseException:
            self.kill()
            raise
        tell_of_forks(self)

    def forked(self) -> None:
        """In a copy of the process: the ranks are those of the other one, and stay."""
        if self._finalizer.detach() is not None:
            self._held.leave()

    @property
    def alive(self) -> bool:
        """Whether the ranks can be asked."""
        return bool(self._finalizer.alive)

    @property
    def pids(self) -> list[int]:
        """Process of each rank."""
        return [self._held.pids[rank] for rank in range(self.nranks)]

    def post(
        self,
        messages: Sequence[dict[str, Any]],
        payload: bytes = b"",
        files: Sequence[Sequence[int]] = (),
    ) -> None:
        """Send every rank its message. Death when one is gone, Silence when one takes none."""
        while self.forget:
            number = self.forget.popleft()
            self.post([{"do": "drop", "call": number}] * self.nranks)
        self._held.making = messages[0]["do"] == "load"
        last: dict[str, Any] | None = None
        for rank, (link, message) in enumerate(zip(self._held.links, messages, strict=True)):
            given = files[rank] if files else ()
            if message is not last:  # most messages go to all ranks as they are
                data, last = frame(message, len(payload), len(given)), message
            try:
                send_frame(link, data, payload, given)
            except TimeoutError:
                raise Silence(f"rank {rank} takes no message") from None
            except OSError:
                raise self._held.death(rank) from None

    def answers(self, watch: Callable[[float], str | None]) -> list[Reply]:
        """One answer of each rank. `watch(now)` is asked now and then, and ends the wait by
        returning a line.

        Raises Failure for the first error a rank answers with, Death when one is gone, Silence with
        watch's line.
        """
        found: dict[int, Reply] = {}
        look = time.monotonic() + _TICK
        while len(found) < self.nranks:
            for number, _ in self._held.readable.poll(_TICK):
                rank = self._held.numbers[number]
                found[rank] = self._answer(rank)
            now = time.monotonic()
            if len(found) < self.nranks and now >= look:
                look = now + _TICK
                if (line := watch(now)) is not None:
                    raise Silence(line)
        self._held.making = False
        return [found[rank] for rank in range(self.nranks)]

    def _answer(self, rank: int) -> Reply:
        """What a rank has sent."""
        try:
            reply, _, _ = receive(self._held.links[rank])
        except (EOFError, OSError):
            raise self._held.death(rank) from None
        if "error" in reply:
            raise Failure(rank, str(reply.get("kind")), str(reply["error"]))
        if "shared" in reply:
            self._held.shared |= set(reply["shared"])
        return reply

    def close(self) -> None:
        """Let the ranks end by themselves; end those that do not."""
        if self.alive:
            with contextlib.suppress(Death):
                self.post([{"do": "exit"}] * self.nranks)
                self._held.wait(3.0)
            self.kill()

    def kill(self) -> None:
        """End all ranks now and remove what they left."""
        self._finalizer()


class _Held:
    """The processes and links of a job: all that has to be ended, whatever happens."""

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
        self._handles: list[
            int
        ] = []  # of the ranks' processes: never another process that got the same number
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
        """Take both links of every rank."""
        end = time.monotonic() + seconds
        links: dict[int, socket.socket] = {}
        assert self._process is not None
        while len(links) < self.nranks or len(self._lifelines) < self.nranks:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise RankError(f"the ranks did not start: {self.output()}") from None
                if time.monotonic() > end:
                    missing = [rank for rank in range(self.nranks) if rank not in links]
                    raise RankError(
                        f"{named(missing)} did not start in time: {self.output()}"
                    ) from None
                continue
            link.settimeout(
                seconds
            )  # of one transfer: a rank that has stopped must not stop the launcher
            hello, _, _ = receive(link)
            self.shared |= set(hello["shared"])
            if hello["link"] == "life":
                self._lifelines.append(link)
                continue
            links[hello["rank"]] = link
            self.pids[hello["rank"]] = hello["pid"]
            with contextlib.suppress(OSError):
                self._handles.append(os.pidfd_open(hello["pid"]))
        self.links = [links[rank] for rank in range(self.nranks)]
        self.numbers = {link.fileno(): rank for rank, link in enumerate(self.links)}
        for number in self.numbers:
            self.readable.register(number, select.EPOLLIN)

    def output(self) -> str:
        """What the launcher and the ranks have written, as one line."""
        if self._output is None:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        said = [line.strip(" =") for line in lines if line.strip(" =")]
        return " / ".join(said[-3:])[:400] or "they wrote nothing"

    def death(self, rank: int) -> Death:
        """What to say about a rank whose link has closed.

        The launcher tells how processes of the job ended, mixed; which one was the first it does not
        tell reliably, but links become readable in the order of deaths.
        """
        assert self._process is not None and self._output is not None
        self.wait(2.0)
        self._output.seek(0)
        said = self._output.read().decode(errors="replace")
        status = self._process.returncode
        if (told := re.search(r"EXIT STRING: (.*)", said)) is not None:
            return Death(rank, f"died ({self._launcher.name}: {told[1].strip()})")
        how = "died" if status is None else f"died ({self._launcher.name}: status {status})"
        return Death(rank, how)

    def wait(self, seconds: float) -> None:
        """Let the job end by itself."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def leave(self) -> None:
        """Close this process's ends of all links: another one has them too."""
        self._process = None
        self._unlink()

    def _unlink(self) -> None:
        self.readable.close()
        for link in (*self.links, *self._lifelines):
            link.close()
        self.links, self._lifelines = [], []

    def kill(self) -> None:
        """End every process, close every link, remove the ranks' shared memory. May be called
        again.
        """
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


def mpiexec() -> str:
    """The launcher of the MPI that mpi4py uses: the one beside this Python, else on PATH.
    MeshweaveError without one.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise MeshweaveError("the mpi engine needs mpiexec: pip install mpi4py mpich")
    return found


def _mpi_command(nranks: int, path: str) -> list[str]:
    ranks = [mpiexec(), "-n", str(nranks), sys.executable, "-m", "mpi4py"]
    return [*ranks, "-m", "meshweave.runtime.worker", path]


def environment(nranks: int) -> dict[str, str]:
    """The ranks' environment: this package importable, one thread each, and polite waiting where
    cores are few.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FORGET)}
    root = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    kept |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if nranks > len(os.sched_getaffinity(0)):
        kept["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
    return kept


MPIEXEC = Launcher("mpiexec", _mpi_command, environment)


def descendants(pid: int) -> list[int]:
    """Processes started by `pid`, and by those, as far as they live."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                words = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(words[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def mpi_memory(pid: int | str) -> set[str]:
    """Files in /dev/shm that an MPI library has made for a process and not removed yet."""
    try:
        lines = Path("/proc", str(pid), "maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
    return {
        path
        for path in paths
        if path.startswith("/dev/shm/mpich_") and not path.endswith("(deleted)")
    }


def ownerless(since: float) -> set[str]:
    """Files of shared windows made since that time (seconds, of the epoch) that no process uses.

    A window's file has a name only while it is made; a process that is killed just then leaves it.
    Whoever makes one has it open until it is mapped, so a look at both misses none in use.
    """
    found = set()
    for path in Path("/dev/shm").glob("mpich_shar_tmp*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_uid == os.geteuid() and status.st_ctime >= since:
                found.add(str(path))
    for process in Path("/proc").iterdir() if found else ():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for file in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        found.discard(os.readlink(file))
            found -= mpi_memory(process.name)
    return found


def remove(paths: Iterable[str]) -> None:
    """Remove files that may be gone already."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


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
