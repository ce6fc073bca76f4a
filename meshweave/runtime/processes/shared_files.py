"""Find and remove the files in /dev/shm that an MPI library makes for a process, and would leave behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def mpi_memory(pid: int | str) -> set[str]:
    """List the files in /dev/shm that an MPI library has made for a process and not removed yet."""
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
    """List the files of shared windows made since a time (seconds, of the epoch) that no process uses.

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
