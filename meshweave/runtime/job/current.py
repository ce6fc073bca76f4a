"""Say whether this process is a rank of a job, and which: what `mw.init` has found out, for all that ask."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from warnings import warn

import numpy as np

from meshweave.errors import MeshweaveError, UsageError
from meshweave.layout import Mesh
from meshweave.runtime.processes.variables import launcher_variables
from meshweave.targets import ENGINES

ENGINE = "mpi"  # the engine of a job's programs


class Member(Protocol):
    """Be one rank of a job of several."""

    rank: int
    size: int
    hosts: tuple[str, ...]  # of each rank

    def agree(self, what: bytes, say: Callable[[], str]) -> None:
        """Meet the other ranks, and see that all are here for the same: every rank makes this call.

        what: what this rank is about to do, as a hash; say: returns it in words. Raises RankError on all ranks where
        they differ.
        """

    def same(self, values: Mapping[str, bytes], who: str) -> None:
        """See that all ranks give the same values, by name. Raises RankError on all where they differ."""

    def from_first(self, make: Callable[[], bytes], found: Callable[[], bytes | None]) -> bytes:
        """Return what rank 0 makes, on all ranks. An error that it raises is raised on all.

        found: returns it where this rank has it already, once rank 0 is done.
        """

    def to_first(self, value: object) -> list[Any]:
        """Return the value of each rank, on rank 0; on the others nothing."""

    def all_gather(self, value: object) -> list[Any]:
        """Return a small value of each rank, on all of them."""


@dataclass
class _Here:
    """Hold the job that this process belongs to, if it has been told."""

    job: Member | None = None
    begun: bool = False


_HERE = _Here()


def enter(job: Member | None) -> None:
    """Note that this process is a rank of a job; None: that it is alone."""
    _HERE.job, _HERE.begun = job, True


def has_begun() -> bool:
    """Tell whether `mw.init` was called."""
    return _HERE.begun


def current() -> Member | None:
    """Return the job of several ranks that this process belongs to."""
    return _HERE.job


def rank() -> int:
    """Return the number of this process among those of its job; 0 without `mw.init`.

    It raises no Error.

    >>> import meshweave as mw
    >>> mw.rank(), mw.size()
    (0, 1)
    """
    return 0 if _HERE.job is None else _HERE.job.rank


def size() -> int:
    """Return the number of processes of the job; 1 without `mw.init`.

    It raises no Error.

    >>> import meshweave as mw
    >>> mw.size()
    1
    """
    return 1 if _HERE.job is None else _HERE.job.size


def own_rank(mesh: Mesh) -> int | None:
    """Return which rank of a mesh this process is; None where all ranks of the mesh are in this process.

    Raises MeshweaveError for a mesh of several ranks, but not as many as the job has.
    """
    job = _HERE.job
    if job is None or mesh.nranks == 1:
        return None
    if mesh.nranks != job.size:
        raise MeshweaveError(
            f"the mesh ({mesh}) has {mesh.nranks} ranks, this job has {job.size} processes: "
            "as many, or one, are right"
        )
    return job.rank


def ranks_here(mesh: Mesh) -> range:
    """Return the ranks of a mesh that are in this process: all, or its own one. Raises as `own_rank` does."""
    rank = own_rank(mesh)
    return range(mesh.nranks) if rank is None else range(rank, rank + 1)


def engine_of(name: str, mesh: Mesh) -> str:
    """Return the engine that runs programs of a mesh where `name` is asked for: in a job its ranks are processes.

    Raises as `own_rank` does.
    """
    if name != next(iter(ENGINES)) or own_rank(mesh) is None:
        return name
    assert _HERE.job is not None
    check_placement(mesh, _HERE.job.hosts)
    return ENGINE


def check_same(mesh: Mesh, values: Mapping[str, np.ndarray[Any, Any]], who: str) -> None:
    """See that all ranks of a job give the same values, by name; of a mesh within one process nothing is asked.

    Every rank makes this call. Raises RankError on all of them where values differ.
    """
    if own_rank(mesh) is not None and _HERE.job is not None:
        _HERE.job.same({name: checksum(value) for name, value in values.items()}, who)


def checksum(value: np.ndarray[Any, Any]) -> bytes:
    """Return a checksum of an array: shape, dtype and elements."""
    data = np.ascontiguousarray(value).view(np.uint8).data
    return f"{value.shape} {value.dtype} {zlib.crc32(data)}".encode()


def check_alone(mesh: Mesh, what: str) -> None:
    """Raise UsageError where `what` is asked for on the processes of a job: it is for the ranks of one process."""
    if own_rank(mesh) is not None:
        raise UsageError(
            f"{what} on ({mesh}), the processes of this job: that is for a mesh within one process, as one of one rank"
        )


@cache
def check_placement(mesh: Mesh, hosts: tuple[str, ...]) -> None:
    """Warn, once for each mesh, where an inner axis goes between hosts while an outer one stays on one."""
    if len(set(hosts)) == 1 or _HERE.job is None or _HERE.job.rank:
        return
    numbers = np.array([list(dict.fromkeys(hosts)).index(host) for host in hosts])
    grid = numbers.reshape([mesh.size(name) for name in mesh.names])
    crossing = [bool((grid != grid.take([0], axis)).any()) for axis in range(grid.ndim)]
    for axis, name in enumerate(mesh.names):
        outer = [mesh.names[k] for k in range(axis) if mesh.size(mesh.names[k]) > 1]
        inside = [other for k, other in enumerate(outer) if not crossing[mesh.names.index(other)]]
        if crossing[axis] and inside:
            warn(
                f"mesh ({mesh}): the ranks along {name} are on several hosts, those along {inside[0]} on one: "
                f"number the ranks host by host, or put {name} before {inside[0]}",
                stacklevel=2,
            )
            return


def warn_of_launcher(environ: Mapping[str, str] = os.environ) -> None:
    """Warn, once, where a launcher has started several processes and each is about to run all ranks by itself."""
    if not _HERE.begun:
        _warn_once(launcher_variables(environ))


@cache
def _warn_once(found: tuple[str, int, int] | None) -> None:
    if found is not None and found[2] > 1 and found[1] == 0:
        name, _, nranks = found
        warn(
            f"{name}={nranks}: a launcher has started {nranks} processes, and each of them runs all ranks by itself: "
            "after mw.init() each process is one rank",
            stacklevel=2,
        )
