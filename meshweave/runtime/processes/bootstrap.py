"""Let the processes of a job find each other without MPI: which rank each is, and a store that all can read."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.processes.store import STORE_SECONDS, TcpStore, account_token, late
from meshweave.runtime.processes.variables import LAUNCHERS, launcher_variables, number_in

_FIRST_PORT, _PORTS = 20000, 20000  # for jobs of Slurm, by the job's number
_POLL = 0.01


@dataclass(frozen=True)
class JobRank:
    """Identify a process of a job.

    store: where values are exchanged (`tcp://host:port`, `file:///folder`), "" in a job of one process.
    token: the job's secret, "" for the account's own.
    """

    rank: int
    nranks: int
    local_rank: int
    store: str = ""
    token: str = field(default="", repr=False)


def discover(environ: Mapping[str, str]) -> JobRank:
    """Return the rank that a launcher gave this process: ours, torchrun, mpiexec or srun.

    Without one it is a job of its own. Raises MeshweaveError when the variables contradict each other.
    """
    found = launcher_variables(environ)
    if found is None:
        return JobRank(0, 1, 0)
    name, rank, nranks = found
    local = next(local for _, size, local in LAUNCHERS if size == name)
    number = number_in(environ, local) if local in environ else rank
    store = _store_of(environ) if nranks > 1 else ""
    return JobRank(rank, nranks, number, store, environ.get("MESHWEAVE_TOKEN", ""))


def _store_of(environ: Mapping[str, str]) -> str:
    """Return where the ranks of a job meet."""
    if "MESHWEAVE_STORE" in environ:
        return environ["MESHWEAVE_STORE"]
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:  # at that port torchrun's own listens
        return f"tcp://{environ['MASTER_ADDR']}:{number_in(environ, 'MASTER_PORT') + 1}"
    if "SLURM_JOB_NODELIST" in environ and "SLURM_JOB_ID" in environ:
        port = _FIRST_PORT + number_in(environ, "SLURM_JOB_ID") % _PORTS
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
    """Exchange values in a folder that all ranks see, a file for each. Whoever may write there is believed."""

    def __init__(self, folder: str, seconds: float = STORE_SECONDS) -> None:
        self._folder, self._seconds = Path(folder), seconds
        self._folder.mkdir(0o700, parents=True, exist_ok=True)

    def put(self, key: str, value: bytes) -> None:
        """Do as JobStore says."""
        part = self._folder / f".{key}.{os.getpid()}"
        part.write_bytes(value)
        try:
            os.link(part, self._folder / key)
        except FileExistsError:
            raise RankError(
                f"{self._folder}: {key} is there already: each job needs a new folder"
            ) from None
        finally:
            part.unlink()

    def get(self, key: str) -> bytes:
        """Do as JobStore says."""
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                return (self._folder / key).read_bytes()
            time.sleep(_POLL)
        raise late(key, self._seconds)

    def close(self) -> None:
        """Do as JobStore says. The folder stays: others may still read."""


def open_store(place: JobRank, seconds: float = STORE_SECONDS) -> JobStore:
    """Open the store of a job. Raises MeshweaveError for an address that is none."""
    if place.nranks == 1:
        return MemoryStore(lambda ready, what: None)
    try:
        parts = urlsplit(place.store)
        if parts.scheme == "file" and parts.path:
            return FileStore(parts.path, seconds)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            token = place.token.encode() or account_token()
            return TcpStore(parts.hostname, parts.port, token, place.rank == 0, seconds)
    except ValueError:
        pass
    raise MeshweaveError(
        f"MESHWEAVE_STORE={place.store!r:.80}: tcp://HOST:PORT or file:///FOLDER is right"
    )
