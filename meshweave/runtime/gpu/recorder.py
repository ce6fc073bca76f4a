"""Stands in for the CUDA driver, NCCL and cuBLASLt, for all ranks of a job in one process.

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
from meshweave.runtime.gpu.kernels import Kernels
from meshweave.runtime.gpu.memory import DeviceMemory
from meshweave.runtime.gpu.recorded_cuda import RecordedCuda
from meshweave.runtime.gpu.recorded_lt import RecordedLt
from meshweave.runtime.gpu.recorded_nccl import RecordedNccl
from meshweave.runtime.gpu.recorded_streams import RecordedStreams
from meshweave.runtime.gpu.replay import Entry, Scheduler, text
from meshweave.runtime.gpu.turns import Aborted

_DEFECT = {"cuda": 999, "nccl": 3, "cublaslt": 14}  # what a call returns when we have failed
_REMOTE = {"cuda": 999, "nccl": 6, "cublaslt": 14}  # and when another rank has


@dataclass(frozen=True)
class Failure:
    """The `call`-th call (from 1) of a rank returns `code`, and nothing else happens. function:
    of this name; "": of any, host code's and the runtime's.
    """

    rank: int
    call: int
    code: int
    function: str = ""


class Recorder:
    """A job's devices, `devices` of them, and the libraries that drive them.

    functions: the callable of each name; addresses: for host code. calls: of each rank the names
    of the functions called; log: of each rank what it enqueued in the last call. error: what went wrong within a
    call, which can only return a code.
    """

    def __init__(
        self,
        devices: int,
        kernels: Kernels,
        scheduler: Scheduler,
        *,
        failures: Iterable[Failure] = (),
        driver_version: int = 13000,
        nccl_version: int = 22809,
        capability: tuple[int, int] = (9, 0),
    ) -> None:
        self.devices, self.scheduler, self.kernels = devices, scheduler, kernels
        self.driver_version, self.nccl_version = driver_version, nccl_version
        self.capability = capability
        self.memory = DeviceMemory()
        self.failures = list(failures)
        self.calls: dict[int, list[str]] = collections.defaultdict(list)
        self.log: dict[int, list[Entry]] = collections.defaultdict(list)
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
        """Where host code finds a function."""
        function: Any = self.functions[name]
        found = ctypes.cast(function, ctypes.c_void_p).value
        assert found is not None
        return found

    @property
    def rank(self) -> int:
        """Of the thread that calls: the number of its device; 0 before it has chosen one."""
        return self._current.get(threading.get_ident(), 0)

    def set_current(self, device: int | None) -> None:
        """This thread works for a device."""
        if device is None:
            self._current.pop(threading.get_ident(), None)
        else:
            self._current[threading.get_ident()] = device

    def new(self, value: Any) -> int:
        """A handle for an object."""
        handle = next(self._handles)
        self.objects[handle] = value
        return handle

    def find(self, handle: int | None, kind: type) -> Any:
        """The object of a handle, None when it is of no such object."""
        found = self.objects.get(handle or 0)
        return found if isinstance(found, kind) else None

    def drop(self, handle: int | None, kind: type) -> int | None:
        """Give an object back. A code when the handle is of no such object."""
        if self.find(handle, kind) is None:
            return INVALID_HANDLE
        del self.objects[handle or 0]
        return None

    def live(self) -> list[str]:
        """What was made and not given back."""
        kinds = [type(value).__name__ for value in self.objects.values()]
        return sorted([*kinds, *("Memory" for _ in self.memory)])

    def text(self, rank: int) -> str:
        """What a rank enqueued, one operation a line."""
        return text(self.log[rank])

    def begin(self) -> None:
        """A call begins: what was enqueued before it is forgotten."""
        self.log.clear()
        self.scheduler.executed.clear()

    def count(self) -> int:
        """Calls so far, of all ranks."""
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

    def _failure(self, name: str) -> Failure | None:
        """Count a call; the failure that it has to show."""
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
        """Wait without threads: the devices get on until it is so."""
        while not ready():
            if not self.scheduler.run():
                why = self.scheduler.stuck() or "nothing is under way"
                raise RankError(f"rank {self.rank} waits for {what}: {why}")
