"""Run bundles of the `nccl` engine: a process per GPU, whose host code calls the CUDA driver, NCCL and cuBLASLt.

Our own launcher starts the processes, on this host, for all programs of as many ranks. For ranks that another launcher
has started, on any number of hosts, there is `run_inside` (inside.py).
"""

from __future__ import annotations

import mmap
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from meshweave.abi import rounded
from meshweave.bundle import Bundle, Port, numpy_dtype
from meshweave.errors import RankError, UsageError
from meshweave.runtime.arrays.array import Array, laid_out
from meshweave.runtime.engine import check_engine
from meshweave.runtime.forks import new_reentrant_lock
from meshweave.runtime.gpu.launcher import launcher
from meshweave.runtime.gpu.resident import DeviceShards, PlacedCall
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.engine import (
    START_SECONDS,
    ProcessCall,
    ProcessEngine,
    ProcessExecutable,
    SharedMemory,
    new_number,
)
from meshweave.runtime.processes.launch import Launcher, RankProcesses
from meshweave.runtime.tracing import DeviceRecord
from meshweave.runtime.watchdog import Watchdog


class NcclEngine(ProcessEngine):
    """Run bundles of target gpu in processes of this host, one for each GPU.

    timeout: as for LocalEngine; a single kernel or collective must not take longer.
    share:   ranks may share a GPU (correctness only: they take turns, and NCCL talks over the loopback device).
    graph:   run steps as CUDA graphs from the second time on.
    flight:  as for LocalEngine.
    awaited: the ranks wait for their device behind each launch, so that what fails there is named by its op. Slow.
    nvtx:    the ranks tell NVTX what they enqueue, for Nsight Systems: each kernel, product, collective and copy.
    """

    name = "nccl"

    def __init__(
        self, timeout: float | None = None, share: bool = False, graph: bool = False,
        flight: str | None = None, awaited: bool = False, nvtx: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(timeout, flight)
        if graph and awaited:
            raise UsageError(
                "engine nccl: a step that is one graph cannot be awaited launch by launch"
            )
        self.share, self.graph, self.awaited, self.nvtx = share, graph, awaited, nvtx
        self.busy = _BUSY
        self._devices: dict[int, JobDevices] = {}  # by the number of ranks

    def load(self, bundle: Bundle) -> NcclExecutable:
        """Do as ProcessEngine does. Arrays stay on the GPUs, for the programs of all such engines."""
        check_engine(bundle.manifest, self.name)
        return NcclExecutable(self, bundle)

    def job(self, nranks: int) -> RankProcesses:
        """Return the running ranks for meshes of this size: those of another such engine, where there are some."""
        with self.busy:
            found = self._devices.get(nranks)
            if found is None or not found.job.alive:
                found = _RUNNING.get((nranks, self.share))
            if found is None or not found.job.alive:
                found = JobDevices(RankProcesses(nranks, START_SECONDS, self.launcher()))
                _RUNNING[nranks, self.share] = found
            found.users.add(self)
            self._devices[nranks] = found
            return found.job

    def devices(self, executable: ProcessExecutable) -> JobDevices:
        """Return what reaches the GPUs that a program is loaded on."""
        executable.attach()
        found = self._devices[executable.mesh.nranks]
        found.executable = executable
        return found

    def close(self) -> None:
        """End all ranks that no other engine uses. What Arrays have on their GPUs is copied here first."""
        with self.busy:
            for devices in self._devices.values():
                devices.leave(self)
            self._devices = {}

    def launcher(self) -> Launcher:
        """Return our own launcher, which gives each rank a GPU."""
        return launcher(self.share)

    @contextmanager
    def loading(self) -> Iterator[dict[str, object]]:
        """Tell the ranks to meet in a folder, which is removed when all have loaded."""
        with tempfile.TemporaryDirectory(prefix="meshweave-", ignore_cleanup_errors=True) as folder:
            store = f"file://{folder}"
            how = {"graph": self.graph, "awaited": self.awaited, "nvtx": self.nvtx}
            yield {**how, "store": store}


class JobDevices:
    """Reach the GPUs of the ranks of a job, in processes of their own."""

    def __init__(self, job: RankProcesses) -> None:
        self.job = job
        self.users = weakref.WeakSet[NcclEngine]()
        self.executable: ProcessExecutable | None = None  # used last; it knows how to ask the ranks
        self._shards = weakref.WeakSet[DeviceShards]()

    def new_number(self, shards: DeviceShards) -> int:
        """Do as RankDevices says."""
        self._shards.add(shards)
        return new_number()

    def fetch(self, number: int, port: Port) -> tuple[Values, ...]:
        """Do as RankDevices says."""
        executable = self.executable
        if not self.job.alive or executable is None:
            raise RankError(
                "this Array lay on the GPUs of ranks that have ended: its value is lost with them"
            )
        with executable.engine.busy:
            room = rounded(max(1, port.nbytes))
            memory = SharedMemory(-(-room * self.job.nranks // mmap.PAGESIZE) * mmap.PAGESIZE)
            message = {"do": "fetch", "number": number, "room": room, "nbytes": port.nbytes}
            watchdog = Watchdog(executable.board, executable.manifest, executable.timeout)
            watchdog.start(time.monotonic())
            executable.ask(self.job, message, files=[memory.file], watch=watchdog.report)
        whole = memoryview(memory.map)
        parts = [whole[room * rank :][: port.nbytes] for rank in range(self.job.nranks)]
        return tuple(
            [np.frombuffer(p, numpy_dtype(port.dtype)).reshape(port.local_shape) for p in parts]
        )

    def drop(self, number: int) -> None:
        """Do as RankDevices says."""
        self.job.forget.append(number)

    def leave(self, engine: NcclEngine) -> None:
        """Let an engine go. The last one ends the ranks; what Arrays have on the GPUs alone is copied here before."""
        self.users.discard(engine)
        if self.users:
            return
        if self.job.alive:
            for shards in list(self._shards):
                if not shards.is_copy:
                    shards.come_home()
        self.job.close()


_MOST_UNANSWERED = 16  # calls that the ranks are asked for ahead of what they have enqueued
_BUSY = new_reentrant_lock()  # the ranks of one job answer one engine at a time
_RUNNING = weakref.WeakValueDictionary[tuple[int, bool], JobDevices]()
"""The jobs that engines share, by the number of ranks and whether these share GPUs: a GPU is in one process, then."""


class NcclExecutable(ProcessExecutable):
    """Run a program on the GPUs of its mesh's ranks. Arrays that calls give and take stay there."""

    engine: NcclEngine
    _unanswered = 0  # calls since the ranks have answered one
    _watched: RankProcesses | None = None  # the ranks whose devices mark what they do

    def watch_devices(self, room: int) -> None:
        """Have the GPUs mark what they do, from the next call on, with room for so many marks of each."""
        with self.engine.busy:
            self._watched, number = self.attach()
            self.ask(self._watched, {"do": "watch", "program": number, "room": room})

    def unwatch_devices(self) -> list[DeviceRecord]:
        """End that, wait, and return what each GPU has done; nothing where the ranks had to be started again."""
        with self.engine.busy:
            job, self._watched = self._watched, None
            if job is None or job is not self._job or not job.alive:
                return [DeviceRecord([], 0)] * self.mesh.nranks
            watchdog = Watchdog(self.board, self.manifest, self.timeout)
            watchdog.start(time.monotonic())
            message = {"do": "unwatch", "program": self._number}
            answers = self.ask(job, message, watch=watchdog.report)
            self._unanswered = 0
        return [
            DeviceRecord(
                [np.array(rows, np.int64).reshape(-1, 3) for rows in a["calls"]], a["dropped"]
            )
            for a in answers
        ]

    def run_arrays(self, values: Sequence[object], fixed: int = 0) -> list[Array]:
        """Enqueue a call on arrays; return the results as Arrays, which lie on the GPUs.

        values, fixed: as for ProcessExecutable. An Array whose memory nobody else may write is copied to the GPUs once.
        Whoever reads the results waits for the GPUs. Raises as `run` does; what fails on the GPUs raises when somebody
        waits, at the latest in `close`.
        """
        arrays = laid_out(self, values)
        with self.engine.busy:
            placed = PlacedCall(self.engine.devices(self), self.manifest, values, arrays)
            if self._scratch is None or not self._scratch.alive:
                self._scratch = ProcessCall(self)
            self._scratch.put(placed.fresh)
            if placed.fresh or self._unanswered == _MOST_UNANSWERED:
                self._scratch(places=placed.places)
                self._unanswered = 0
            else:
                self._scratch.post(places=placed.places)
                self._unanswered += 1
            return placed.results()
