"""Let processes on GPUs find each other without MPI: which rank each is, and a store of values that all can read."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.processes.wire import receive, send

STORE_SECONDS = 60.0  # how long a rank waits for a value of another
_FIRST_PORT, _PORTS = 20000, 20000  # for jobs of Slurm, by the job's number
_POLL = 0.01


@dataclass(frozen=True)
class JobRank:
    """Identify a process of a job.

    store: where values are exchanged (`tcp://host:port`, `file:///folder`), "" in a job of one process.
    """

    rank: int
    nranks: int
    local_rank: int
    store: str = ""


# Of each launcher: the variables for rank, number of ranks, and number on the host.
_LAUNCHERS = (
    ("MESHWEAVE_RANK", "MESHWEAVE_SIZE", "MESHWEAVE_LOCAL_RANK"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def discover(environ: Mapping[str, str]) -> JobRank:
    """Return the rank that a launcher gave this process: ours, torchrun, mpiexec or srun.

    Without one it is a job of its own. Raises MeshweaveError when the variables contradict each other.
    """
    for names in _LAUNCHERS:
        if names[0] in environ and names[1] in environ:
            rank, nranks = (_number(environ, name) for name in names[:2])
            local = _number(environ, names[2]) if names[2] in environ else rank
            if not 0 <= rank < nranks:
                raise MeshweaveError(f"{names[0]}={rank} is no rank of {names[1]}={nranks}")
            return JobRank(rank, nranks, local, _store_of(environ) if nranks > 1 else "")
    return JobRank(0, 1, 0)


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise MeshweaveError(f"{name}={environ[name]!r:.40} is no number") from None


def _store_of(environ: Mapping[str, str]) -> str:
    """Return where the ranks of a job meet."""
    if "MESHWEAVE_STORE" in environ:
        return environ["MESHWEAVE_STORE"]
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:  # at that port torchrun's own listens
        return f"tcp://{environ['MASTER_ADDR']}:{_number(environ, 'MASTER_PORT') + 1}"
    if "SLURM_JOB_NODELIST" in environ and "SLURM_JOB_ID" in environ:
        port = _FIRST_PORT + _number(environ, "SLURM_JOB_ID") % _PORTS
        return f"tcp://{first_host(environ['SLURM_JOB_NODELIST'])}:{port}"
    raise MeshweaveError(
        "the ranks of this job do not know where to meet: set MESHWEAVE_STORE to tcp://HOST:PORT, "
        "a free port of rank 0's host, or to file:///FOLDER, a new folder that all ranks see"
    )


def first_host(hosts: str) -> str:
    """Return the first host of a Slurm list: `gpu03` of `gpu[03-05,09],login1`."""
    found = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", hosts)
    if found is None:
        raise MeshweaveError(f"SLURM_JOB_NODELIST={hosts!r:.60} names no host")
    return found[1] + (found[2] or "") + (found[3] if found[2] else "")


class JobStore(Protocol):
    """Exchange values that all ranks see. A value is put once."""

    def put(self, key: str, value: bytes) -> None:
        """Give a value to all."""

    def get(self, key: str) -> bytes:
        """Wait for a value. Raises RankError when no rank puts it in time."""

    def close(self) -> None:
        """Release the store."""


def _late(key: str, seconds: float) -> RankError:
    found = re.fullmatch(r"facts(\d+)", key)
    if found:
        return RankError(f"rank {found[1]} has not come within {seconds:g} s")
    return RankError(f"rank 0 has not said {key} within {seconds:g} s")


class MemoryStore:
    """Exchange values between ranks that are threads of one process. `block(ready, what)` waits."""

    def __init__(self, block: Callable[[Callable[[], bool], str], None]) -> None:
        self._block = block
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Do as JobStore says."""
        self._values[key] = value

    def get(self, key: str) -> bytes:
        """Do as JobStore says."""
        self._block(lambda: key in self._values, f"{key} of another rank")
        return self._values[key]

    def close(self) -> None:
        """Do as JobStore says."""


class FileStore:
    """Exchange values in a folder that all ranks see, a file for each."""

    def __init__(self, folder: str, seconds: float = STORE_SECONDS) -> None:
        self._folder, self._seconds = Path(folder), seconds
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, value: bytes) -> None:
        """Do as JobStore says."""
        part = self._folder / f".{key}.{os.getpid()}"
        part.write_bytes(value)
        part.rename(self._folder / key)

    def get(self, key: str) -> bytes:
        """Do as JobStore says."""
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                return (self._folder / key).read_bytes()
            time.sleep(_POLL)
        raise _late(key, self._seconds)

    def close(self) -> None:
        """Do as JobStore says. The folder stays: others may still read."""


class TcpStore:
    """Exchange values through a server in rank 0's process.

    It trusts who connects, as NCCL's own bootstrap does: use it within a cluster.
    """

    def __init__(self, host: str, port: int, serve: bool, seconds: float = STORE_SECONDS) -> None:
        """Connect. serve: be the server too. Raises RankError when the port is taken or no server listens in time."""
        self._seconds = seconds
        self._server = _StoreServer(port) if serve else None
        try:
            self._link = self._connect("127.0.0.1" if serve else host, port)
        except BaseException:
            self.close()
            raise

    def _connect(self, host: str, port: int) -> socket.socket:
        end = time.monotonic() + self._seconds
        while True:
            try:
                return socket.create_connection((host, port), timeout=self._seconds)
            except OSError as error:
                if time.monotonic() > end:
                    raise RankError(
                        f"rank 0 does not listen at {host}:{port} ({error.strerror or error})"
                    ) from None
                time.sleep(_POLL)

    def put(self, key: str, value: bytes) -> None:
        """Do as JobStore says."""
        send(self._link, {"put": key}, value)

    def get(self, key: str) -> bytes:
        """Do as JobStore says."""
        try:
            self._link.settimeout(self._seconds)
            send(self._link, {"get": key})
            _, value, _ = receive(self._link)
            return value
        except TimeoutError:
            raise _late(key, self._seconds) from None
        except (OSError, EOFError):
            raise RankError("rank 0 has ended before all ranks had met") from None

    def close(self) -> None:
        """Do as JobStore says. Rank 0 closes last: the others must have got what they asked for."""
        if hasattr(self, "_link"):
            self._link.close()
        if self._server is not None:
            self._server.close()


class _StoreServer:
    """Hold the values, and answer each link from a thread of its own."""

    def __init__(self, port: int) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        try:
            self._listener = socket.create_server(("", port), reuse_port=False)
        except OSError as error:
            raise RankError(
                f"rank 0 cannot listen at port {port} ({error.strerror}): set MESHWEAVE_STORE to "
                "another"
            ) from None
        threading.Thread(target=self._accept, name="meshweave-store", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError, EOFError):
            while True:
                message, value, _ = receive(link)
                with self._changed:
                    if "put" in message:
                        self._values[message["put"]] = value
                        self._changed.notify_all()
                        continue
                    self._await(message["get"])
                    if self._closed:
                        return
                    value = self._values[message["get"]]
                send(link, {}, value)

    def _await(self, key: str) -> None:
        self._changed.wait_for(lambda: self._closed or key in self._values)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def open_store(place: JobRank, seconds: float = STORE_SECONDS) -> JobStore:
    """Open the store of a job. Raises MeshweaveError for an address that is none."""
    if place.nranks == 1:
        return MemoryStore(lambda ready, what: None)
    try:
        parts = urlsplit(place.store)
        if parts.scheme == "file" and parts.path:
            return FileStore(parts.path, seconds)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return TcpStore(parts.hostname, parts.port, place.rank == 0, seconds)
    except ValueError:
        pass
    raise MeshweaveError(
        f"MESHWEAVE_STORE={place.store!r:.80}: tcp://HOST:PORT or file:///FOLDER is right"
    )
