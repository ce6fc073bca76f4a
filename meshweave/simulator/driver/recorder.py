"""Stand in for the CUDA driver, NCCL and cuBLASLt, for all ranks of a job in one process.

Every function of interface.py becomes a C callback, for the runtime's own calls and for the host
code of programs alike. What they enqueue is recorded, with its arguments decoded, and executed by
the scheduler of replay.py in an order that hardware might choose. Any call can be made to fail.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meshweave.errors import RankError
from meshweave.runtime.gpu.interface import INVALID_HANDLE, SIGNATURES
from meshweave.simulator.driver.cuda import RecordedCuda
from meshweave.simulator.driver.interleaving import Aborted
from meshweave.simulator.driver.kernels import KernelRunner
from meshweave.simulator.driver.lt import RecordedLt
from meshweave.simulator.driver.memory import DeviceMemory
from meshweave.simulator.driver.nccl import RecordedNccl
from meshweave.simulator.driver.replay import QueueEntry, Scheduler, text
from meshweave.simulator.driver.session import Object
from meshweave.simulator.driver.streams import RecordedStreams

_DEFECT = {"cuda": 999, "nccl": 3, "cublaslt": 14}  # what a call returns when we have failed
_REMOTE = {"cuda": 999, "nccl": 6, "cublaslt": 14}  # and when another rank has


@dataclass(frozen=True)
class InjectedFailure:
    """Make the `call`-th call (from 1) of a rank return `code` and do nothing else.

    function: count only calls of this name; "": count every call of the host code and the runtime.
    """

    rank: int
    call: int
    code: int
    function: str = ""


class Recorder:
    """Record what a job does with its `devices` devices, and with the libraries that drive them.

    functions: the callable of each name; addresses: for host code. calls: of each rank the names
    of the functions called; log: of each rank what it enqueued in the last call. error: what went wrong within a
    call, which can only return a code.

    shared_bytes: of shared memory that a block may ask for. own_alone: each rank sees its own device and no other, as
    under Slurm's --gpus-per-task=1.
    """

    def __init__(
        self,
        devices: int,
        kernels: KernelRunner,
        scheduler: Scheduler,
        *,
        failures: Iterable[InjectedFailure] = (),
        driver_version: int = 13000,
        nccl_version: int = 22809,
        capability: tuple[int, int] = (9, 0),
        shared_bytes: int = 232_448,
        own_alone: bool = False,
    ) -> None:
        self.devices, self.scheduler, self.kernels = devices, scheduler, kernels
        self.driver_version, self.nccl_version = driver_version, nccl_version
        self.capability, self.shared_bytes, self.own_alone = capability, shared_bytes, own_alone
        self.memory = DeviceMemory()
        self.failures = list(failures)
        self.calls: dict[int, list[str]] = collections.defaultdict(list)
        self.log: dict[int, list[QueueEntry]] = collections.defaultdict(list)
        self.where: Callable[[int], str] = lambda rank: ""  # op and place that a rank has begun
        self.sources: dict[str, str] = {}  # of each kernel its place in the source
        self.block: Callable[[Callable[[], bool], str], None] = self._run
        self.error: BaseException | None = None
        self.objects: dict[int, Any] = {}  # by handle
        self._handles = itertools.count(0x10000, 0x10)
        self._current: dict[int, int] = {}  # thread -> device
        self.streams, self.nccl = RecordedStreams(self), RecordedNccl(self)
        parts = (RecordedCuda(self), self.streams, self.nccl, RecordedLt(self))
        self.functions: Mapping[str, Callable[..., int]] = {
            name: self._callback(name, next(getattr(p, name) for p in parts if hasattr(p, name)))
            for name in SIGNATURES
        }

    def address(self, name: str) -> int:
        """Return the address where host code finds a function."""
        function: Any = self.functions[name]
        found = ctypes.cast(function, ctypes.c_void_p).value
        assert found is not None
        return found

    @property
    def rank(self) -> int:
        """Return the device of the calling thread; 0 before it has chosen one."""
        return self._current.get(threading.get_ident(), 0)

    def set_current(self, device: int | None) -> None:
        """Make this thread work for a device."""
        if device is None:
            self._current.pop(threading.get_ident(), None)
        else:
            self._current[threading.get_ident()] = device

    def new(self, value: object) -> int:
        """Return a handle for an object."""
        handle = next(self._handles)
        self.objects[handle] = value
        return handle

    def find(self, handle: int | None, kind: type[Object]) -> Object | None:
        """Return the object of a handle; None when the handle is of no object of this kind."""
        found = self.objects.get(handle or 0)
        return found if isinstance(found, kind) else None

    def drop(self, handle: int | None, kind: type[object]) -> int | None:
        """Free an object. Returns an error code when the handle is of no object of this kind."""
        if self.find(handle, kind) is None:
            return INVALID_HANDLE
        del self.objects[handle or 0]
        return None

    def live(self) -> list[str]:
        """List what was made and not freed."""
        kinds = [type(value).__name__ for value in self.objects.values()]
        return sorted([*kinds, *("Memory" for _ in self.memory)])

    def text(self, rank: int) -> str:
        """Return what a rank enqueued, one operation a line."""
        return text(self.log[rank])

    def begin(self) -> None:
        """Begin a call: forget what was enqueued before it."""
        self.log.clear()
        self.scheduler.executed.clear()

    def count(self) -> int:
        """Count the calls so far, of all ranks."""
        return sum(map(len, tuple(self.calls.values())))  # ranks add to it meanwhile

    def _callback(self, name: str, method: Callable[..., int | None]) -> Any:
        signature = SIGNATURES[name]

        def call(*arguments: Any) -> int:
            try:
                failure = self._failure(name)
                if failure is not None:
                    return failure.code
                return method(*arguments) or 0
            except Aborted:
                return _REMOTE[signature.library]
            except BaseException as error:
                self.error = self.error or error
                return _DEFECT[signature.library]

        return signature.prototype()(call)

    def _failure(self, name: str) -> InjectedFailure | None:
        """Count a call, and return the failure that it has to show."""
        rank = self.rank
        names = self.calls[rank]
        names.append(name)
        for failure in self.failures:
            if failure.rank == rank and failure.function in ("", name):
                done = names.count(name) if failure.function else len(names)
                if done == failure.call:
                    return failure
        return None

    def _run(self, ready: Callable[[], bool], what: str) -> None:
        """Wait without threads: run the devices until `ready()`."""
        while not ready():
            if not self.scheduler.run():
                why = self.scheduler.stuck() or "nothing is under way"
                raise RankError(f"rank {self.rank} waits for {what}: {why}")
