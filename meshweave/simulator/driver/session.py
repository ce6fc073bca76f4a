"""Declare what the parts of the recorder (driver, streams, NCCL, cuBLASLt) know of it and of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from meshweave.simulator.driver.kernels import KernelRunner
from meshweave.simulator.driver.memory import DeviceMemory
from meshweave.simulator.driver.replay import NcclOp, QueueEntry, Scheduler, Work

Object = TypeVar("Object")


class Streams(Protocol):
    """Take operations of the other parts."""

    def capturing(self, rank: int) -> bool:
        """Tell whether some stream of a rank is being captured."""

    def submit(
        self,
        stream: int | None,
        what: str,
        work: Work | None,
        *,
        items: tuple[NcclOp, ...] = (),
        where: str = "",
    ) -> int | None:
        """Enqueue an operation, or add it to the graph that is being captured."""

    def submit_to_null(self, what: str, work: Work, waits: bool = False) -> None:
        """Enqueue an operation on the null stream of the calling rank. waits: the host waits for it."""


class GroupCheck(Protocol):
    """Know which groups of NCCL calls are open."""

    def check_closed(self, rank: int) -> None:
        """Raise RankError when a rank waits for its device within a group that it has not ended."""


class Session(Protocol):
    """Describe the recorder: devices, memory, handles, and what ranks enqueue."""

    devices: int
    driver_version: int
    nccl_version: int
    capability: tuple[int, int]
    shared_bytes: int
    own_alone: bool
    memory: DeviceMemory
    kernels: KernelRunner
    scheduler: Scheduler
    log: dict[int, list[QueueEntry]]
    where: Callable[[int], str]
    sources: dict[str, str]
    block: Callable[[Callable[[], bool], str], None]
    error: BaseException | None
    objects: dict[int, Any]  # handles are of any class of the parts

    @property
    def rank(self) -> int:
        """Return the device of the calling thread; 0 before it has chosen one."""

    @property
    def streams(self) -> Streams:
        """Return the part that has the streams."""

    @property
    def nccl(self) -> GroupCheck:
        """Return the part that has NCCL's groups."""

    def set_current(self, device: int | None) -> None:
        """Make this thread work for a device."""

    def new(self, value: object) -> int:
        """Return a handle for an object."""

    def find(self, handle: int | None, kind: type[Object]) -> Object | None:
        """Return the object of a handle; None when the handle is of no object of this kind."""

    def drop(self, handle: int | None, kind: type[object]) -> int | None:
        """Free an object. Returns an error code when the handle is of no object of this kind."""
