"""Make the communicators of a rank, after all ranks have agreed on what they run."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

from meshweave.errors import MeshweaveError, RankError
from meshweave.layout import Mesh
from meshweave.runtime.gpu.driver import Driver
from meshweave.runtime.gpu.interface import UniqueId
from meshweave.runtime.processes.bootstrap import JobStore

OLDEST_NCCL = 21800  # 2.18: ncclCommSplit


def nccl_version(driver: Driver) -> int:
    """Return NCCL's version, 22809 for 2.28.9. Raises MeshweaveError when it is too old."""
    version = driver.number("ncclGetVersion")
    if version < OLDEST_NCCL:
        raise MeshweaveError(
            f"NCCL is of version {nccl_text(version)}, {nccl_text(OLDEST_NCCL)} or newer is needed: "
            "pip install -U nvidia-nccl-cu13"
        )
    return version


def nccl_text(version: int) -> str:
    """Write 22809 as 2.28.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def agree(store: JobStore, rank: int, nranks: int, facts: dict[str, Any]) -> None:
    """Compare `facts` (JSON values) with those of all other ranks; every rank makes this call.

    A fact "error" is the line of a rank that could not get so far; "GPU" is what no other rank may have. Raises
    RankError that names a rank and what differs, or what does not, on every rank.
    """
    store.put(f"facts{rank}", json.dumps(facts).encode())
    if rank == 0:
        said = [json.loads(store.get(f"facts{other}")) for other in range(nranks)]
        store.put("verdict", _verdict(said).encode())
    if verdict := store.get("verdict").decode():
        raise RankError(verdict)


def _verdict(said: Sequence[dict[str, Any]]) -> str:
    """Say what is wrong with the facts of all ranks; "" when nothing is."""
    for rank, facts in enumerate(said):
        if "error" in facts:
            line = facts["error"]
            return line if line.startswith(f"rank {rank}:") else f"rank {rank}: {line}"
    users: dict[str, int] = {}  # of each GPU, the first rank
    for rank, facts in enumerate(said):
        gpu = facts.pop("GPU", None)
        if gpu is not None and users.setdefault(gpu, rank) != rank:
            return (
                f"ranks {users[gpu]} and {rank} have the same GPU: use more GPUs or a smaller mesh; "
                "share=True lets ranks share one"
            )
        for name, value in facts.items():
            if value != said[0].get(name):
                return f"ranks 0 and {rank} differ in {name}: {said[0].get(name)} and {value}"
    return ""


class Communicators:
    """Hold this rank's communicators: one for each group of the program."""

    def __init__(
        self, driver: Driver, mesh: Mesh, groups: tuple[tuple[str, ...], ...], store: JobStore
    ) -> None:
        """Make them; every rank makes this call. Raises RankError when NCCL fails."""
        self._driver, self._mesh = driver, mesh
        self.handles: list[int] = []
        self._all: list[int] = []
        if not groups:
            return
        try:
            self._make(groups, store)
        except BaseException:
            self.close(abort=True)
            raise

    def _make(self, groups: tuple[tuple[str, ...], ...], store: JobStore) -> None:
        rank, mesh = self._driver.rank, self._mesh
        unique = UniqueId()
        if rank == 0:
            self._driver("ncclGetUniqueId", ctypes.addressof(unique))
            store.put("nccl", bytes(memoryview(unique)))
        else:
            unique = UniqueId.of(store.get("nccl"))
        world = self._new("ncclCommInitRank", mesh.nranks, unique, rank)
        for axes in groups:
            members = mesh.group(axes, rank)
            index = mesh.group_index(axes, rank)
            self.handles.append(self._split(world, min(members), index))

    def _new(self, name: str, *arguments: Any) -> int:
        handle = self._driver.handle(name, *arguments)
        self._all.append(handle)
        return handle

    def _split(self, world: int, color: int, key: int) -> int:
        out = ctypes.c_void_p()
        self._driver("ncclCommSplit", world, color, key, ctypes.addressof(out), None)
        self._all.append(int(out.value or 0))
        return self._all[-1]

    def members(self, groups: tuple[tuple[str, ...], ...]) -> list[tuple[int, int]]:
        """Return (handle, member index) for each group."""
        indices = [self._mesh.group_index(axes, self._driver.rank) for axes in groups]
        return list(zip(self.handles, indices, strict=True))

    def error(self) -> str:
        """Return the error that NCCL has met in the background; "" when there is none."""
        for handle in self._all:
            code = ctypes.c_int32(0)
            self._driver("ncclCommGetAsyncError", handle, ctypes.addressof(code))
            if code.value not in (0, 7):
                return self._driver.error("ncclCommGetAsyncError", code.value).message
        return ""

    def close(self, abort: bool = False) -> None:
        """Free them. abort: even while operations are running that will never end."""
        while self._all:
            self._driver.code("ncclCommAbort" if abort else "ncclCommDestroy", self._all.pop())
        self.handles = []
