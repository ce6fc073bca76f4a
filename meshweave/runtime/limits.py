"""Refuse programs that ask for more than this machine holds, before anything is allocated or started."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable
from pathlib import Path

from meshweave.bundle import Manifest, port_bytes
from meshweave.errors import MeshweaveError
from meshweave.layout import Mesh
from meshweave.runtime.job import current
from meshweave.targets import engine_traits

MAX_THREADS = 1024  # ranks of engine local: more than a machine has cores for, few enough to start
RANKS_PER_CORE = 16  # of engine mpi: each is a process that takes about a second of a core to start
FILES_PER_RANK = 8  # of engine mpi, open in the launcher: links, handles, shared memory


def max_ranks(engine: str) -> int:
    """Return the most ranks that an engine starts on this machine."""
    if engine_traits(engine).processes:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        by_files = (
            max(0, files - 64) // FILES_PER_RANK if files != resource.RLIM_INFINITY else MAX_THREADS
        )
        return min(RANKS_PER_CORE * max(4, len(os.sched_getaffinity(0))), by_files)
    return MAX_THREADS


def check_ranks(engine: str, mesh: Mesh) -> None:
    """Raise MeshweaveError when a mesh has more ranks than an engine starts on this machine."""
    if engine == current.ENGINE and current.own_rank(mesh) is not None:
        return  # its ranks are running already
    if mesh.nranks > max_ranks(engine):
        raise MeshweaveError(
            f"mesh ({mesh}) has {mesh.nranks} ranks, engine {engine} runs at most "
            f"{max_ranks(engine)} on this machine"
        )


def check_job(manifest: Manifest, nranks: int) -> Mesh:
    """Return a program's mesh. Raises MeshweaveError unless it has as many ranks as this job."""
    mesh = Mesh.parse(manifest.mesh)
    if mesh.nranks != nranks:
        raise MeshweaveError(f"the mesh ({mesh}) has {mesh.nranks} ranks, this job has {nranks}")
    return mesh


def check_memory(manifest: Manifest) -> None:
    """Raise MeshweaveError when all ranks together, and the global values, do not fit in the free memory."""
    ports = (*manifest.inputs, *manifest.outputs)
    nranks = Mesh.parse(manifest.mesh).nranks
    rank = manifest.arena_bytes + port_bytes(ports)
    whole = sum(port.global_nbytes for port in ports)
    needed = nranks * (rank + engine_traits(manifest.engine).rank_bytes) + whole
    free = available_bytes()
    if free is not None and needed > free:
        ranks = f"{nranks} ranks" if nranks > 1 else "one rank"
        raise MeshweaveError(
            f"the program needs {_size(needed)} on this machine ({ranks} of {_size(rank)}, global "
            f"values of {_size(whole)}), {_size(free)} are free"
        )


def check_machine(manifest: Manifest, engine: str) -> Mesh:
    """Return the mesh of a program that this machine can hold. Raises MeshweaveError when it cannot."""
    mesh = Mesh.parse(manifest.mesh)
    check_ranks(engine, mesh)
    check_memory(manifest)
    return mesh


def _size(nbytes: int) -> str:
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes} bytes"


def available_bytes() -> int | None:
    """Return the bytes that new buffers may take, of the machine and of this process's control group."""
    found = [_machine(), _read(_group), _read(_old_group)]
    return min((n for n in found if n is not None), default=None)


def _machine() -> int | None:
    def read() -> int | None:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None

    return _read(read)


def _group() -> int | None:
    """Return the bytes that the control group leaves (version 2)."""
    path = Path("/proc/self/cgroup").read_text().split("::", 1)[1].split("\n", 1)[0]
    folder = Path("/sys/fs/cgroup" + path)
    most = (folder / "memory.max").read_text().strip()
    return None if most == "max" else _left(folder, int(most), "memory.current", "file")


def _old_group() -> int | None:
    """Return the bytes that the control group leaves (version 1)."""
    path = Path("/proc/self/cgroup").read_text().split(":memory:", 1)[1].split("\n", 1)[0]
    folder = Path("/sys/fs/cgroup/memory" + path)
    if not folder.is_dir():  # in a container, its own group is mounted as the root
        folder = Path("/sys/fs/cgroup/memory")
    most = int((folder / "memory.limit_in_bytes").read_text())
    return _left(folder, most, "memory.usage_in_bytes", "total_cache")


def _left(folder: Path, most: int, used: str, cache: str) -> int:
    """Return the bytes that remain of `most`; cached files count as used, but their memory can be reclaimed."""
    words = (folder / "memory.stat").read_text().split()
    cached = int(words[words.index(cache) + 1])
    return max(0, most - int((folder / used).read_text()) + cached)


def _read(reader: Callable[[], int | None]) -> int | None:
    """Return a number of the kernel, or None where it does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return reader()
    return None
