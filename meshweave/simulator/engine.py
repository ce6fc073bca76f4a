"""Provide the `emulate` engine: it runs a gpu program on this machine's processor, all ranks in this process.

The host code, and all that the runtime calls, is what a GPU would get; the recorder stands in for
the libraries, the emulator runs the device code, NumPy the library's products and collectives.
It is for finding what is wrong with a program, not for speed.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from meshweave.bundle import Bundle, Port
from meshweave.device import CHIPS
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.arrays.array import Array, laid_out
from meshweave.runtime.engine import check_engine
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.dump import flight_folder
from meshweave.runtime.flight.recorder import FlightRecorder
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.marks import record_of
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.gpu.resident import (
    DeviceBuffers,
    DeviceShards,
    PlacedCall,
    Places,
    run_placed,
)
from meshweave.runtime.limits import check_machine
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.bootstrap import JobRank, MemoryStore
from meshweave.runtime.program import bind_rows, buffer
from meshweave.runtime.tracing import DeviceRecord, hide
from meshweave.runtime.watchdog import WAITING
from meshweave.runtime.watched import WATCHERS, CallWatcher, told_begins
from meshweave.simulator.driver.emulated import EmulatedKernels
from meshweave.simulator.driver.interleaving import Interleaving, StuckRankError
from meshweave.simulator.driver.kernels import KernelRunner
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler

T = TypeVar("T")
_NOTHING = np.empty(0)  # in the place of an input that is not copied


class EmulateEngine:
    """Run bundles of target gpu without a GPU.

    timeout: seconds that a rank's host code may run without a call, 60 by default, after which a run ends with
    RankError. seed: of the interleaving of the streams; None: a fixed one. checks: look for races
    between operations and within kernels. graph: run steps as graphs from the second time on.
    kernels: what runs kernels; by default the emulator. failures: calls that are to fail. flight: as
    for LocalEngine.
    """

    name = "emulate"

    def __init__(
        self,
        timeout: float | None = None,
        seed: int | None = None,
        checks: bool = True,
        graph: bool = False,
        kernels: KernelRunner | None = None,
        failures: Iterable[InjectedFailure] = (),
        flight: str | None = None,
    ) -> None:
        self.flight = flight_folder(flight)
        self.timeout, self.seed, self.checks, self.graph = timeout or WAITING, seed, checks, graph
        self.kernels = kernels if kernels is not None else EmulatedKernels(checks)
        self.failures = tuple(failures)

    def load(self, bundle: Bundle) -> EmulateExecutable:
        """Load a bundle of target gpu. Raises MeshweaveError for another target, and RankError when a call fails."""
        return EmulateExecutable(self, bundle)

    def close(self) -> None:
        """Do nothing: the engine holds nothing."""


class EmulateExecutable:
    """Hold a program loaded for the ranks of its mesh.

    After a failed run the next run loads it again. Calls from several threads run one after the other.
    """

    cores = 1

    def __init__(self, engine: EmulateEngine, bundle: Bundle) -> None:
        manifest = bundle.manifest
        check_engine(manifest, engine.name)
        self.engine, self.bundle, self.manifest = engine, bundle, manifest
        self.mesh = check_machine(manifest, engine.name)
        self.heard_by: CallWatcher | None = None
        self.busy = threading.RLock()
        self._closed = False
        self._ranks: list[GpuRank] = []
        self.calls: set[EmulateCall] = set()
        self.placed: EmulateCall | None = None  # what runs on Arrays
        self._queued = False  # whether steps of it may be under way
        self._open()

    @property
    def recorder(self) -> Recorder:
        """Return what the ranks have called since the program was loaded, and enqueued in the last call."""
        return self._recorder

    def run(self, inputs: Sequence[Sequence[Values]], fixed: int = 0) -> list[list[Values]]:
        """Run once. inputs[rank][i] are local arrays; returns the outputs in the same way, as new arrays.

        Raises MeshweaveError for arrays that do not fit, RankError when a rank fails, the ranks
        wait for each other for ever, or a check finds something.
        """
        call = self.bind(inputs)
        try:
            call()
        finally:
            call.close()
        return call.outputs

    def run_arrays(self, values: Sequence[object], fixed: int = 0) -> list[Array]:
        """Enqueue a call on arrays; return the results as Arrays, which lie on the devices, as those of engine nccl do.

        Whoever reads them waits, and hears then of what has failed.
        values, fixed: as for `run`. An Array whose memory nobody else may write is copied to the devices once.
        """
        arrays = laid_out(self, values)
        with self.busy:
            self.ranks()
            placed = PlacedCall(self.devices, self.manifest, values, arrays)
            if self.placed is None:
                self.placed = EmulateCall(self, [], [])
            columns = [placed.fresh.get(k, ()) for k in range(len(arrays))]
            rows = [
                [column[rank] if column else _NOTHING for column in columns]
                for rank in range(self.mesh.nranks)
            ]
            self.placed.run_placed(placed.places, rows)
            self._queued = True
            return placed.results()

    def wait(self) -> None:
        """Wait for the calls that are queued. Raises RankError, which names what failed."""
        with self.busy:
            call = self.placed
            if self._queued and call is not None:
                self.told(call.wait)
            self._queued = False

    def bind(self, inputs: Sequence[Sequence[Values]]) -> EmulateCall:
        """Bind fixed buffers for a call that is made many times."""
        return EmulateCall(self, *bind_rows(self.manifest, self.mesh.nranks, inputs))

    def close(self) -> None:
        """Free everything. The executable cannot run any more."""
        with self.busy:
            if self._closed:
                return
            try:
                self.wait()
            finally:
                self._shut()
                self._closed = True

    def ranks(self) -> list[GpuRank]:
        """Return the loaded ranks; load them again when a run has failed."""
        if self._closed:
            raise MeshweaveError("the program is closed: load it again")
        if any(rank.broken for rank in self._ranks) or not self._ranks:
            self._shut()
            self._open()
        return self._ranks

    def told(self, body: Callable[[int], None]) -> None:
        """Run `body(rank)` for each rank. What fails is written down, where the engine keeps such records."""
        try:
            self.each(body)
        except RankError as error:
            line = self.flight.written("failure", error.message)
            raise RankError(line, error.location) from None
        except KeyboardInterrupt as error:
            self.flight.interrupted(error)
            raise

    def each(self, body: Callable[[int], T]) -> list[T]:
        """Run `body(rank)` for each rank, in threads of which one runs at a time."""
        recorder = self._recorder
        recorder.error = None

        def of(rank: int) -> T:
            recorder.set_current(rank)  # before the thread's first call, so that it is told apart
            return body(rank)

        try:
            return self._turns.run([partial(of, rank) for rank in range(self.mesh.nranks)])
        except BaseException as error:
            self.devices.is_lost, self._queued = True, False
            for rank in self._ranks:
                rank.broken = True
            recorder.scheduler.clear()
            if isinstance(error, StuckRankError):
                _LOST.append((self, self._ranks))
                self._ranks = []
                raise
            raise (recorder.error or error) from None

    def watch_devices(self, room: int) -> None:
        """Have the devices mark what they do, from the next call on, with room for so many marks of each."""
        with self.busy:
            self.wait()
            for number, rank in enumerate(self.ranks()):
                self._recorder.set_current(number)
                rank.attach()
                rank.trace(room).show(self.board, number)
            self._recorder.set_current(None)

    def unwatch_devices(self) -> list[DeviceRecord]:
        """End that, and return what each device has done. Times are those of this emulator, not of a GPU."""
        with self.busy:
            self.wait()
            hide(self.board, range(self.mesh.nranks))
            found = []
            for number, rank in enumerate(self._ranks):
                self._recorder.set_current(number)
                rank.attach()
                found.append(record_of(rank.untrace()))
            self._recorder.set_current(None)
            return found

    def _open(self) -> None:
        engine, nranks = self.engine, self.mesh.nranks
        scheduler = Scheduler(move, engine.seed, engine.checks)
        recorder = self._recorder = Recorder(
            nranks, engine.kernels, scheduler, failures=engine.failures,
            capability=CHIPS[self.manifest.chip].capability,
            shared_bytes=CHIPS[self.manifest.chip].shared_bytes,
        )  # fmt: skip
        self._turns = Interleaving(scheduler.run, scheduler.stuck, recorder.count, engine.timeout)
        recorder.block = self._turns.block
        self.devices = EmulatedDevices(self, recorder)
        self.board = StatusBoard.private(nranks)
        self.flight = FlightRecorder(self.board, self.manifest, engine.flight)
        recorder.where = self._where
        recorder.sources = {info.entry: info.location for info in self.manifest.kernels}
        store = MemoryStore(self._turns.block)

        def opening(rank: int) -> GpuRank:
            return GpuRank(
                self.bundle, JobRank(rank, nranks, rank), recorder, store, self.board.address(rank)
            )

        self._ranks = []
        self._ranks = self.each(opening)
        self.devices.buffers = [DeviceBuffers(rank) for rank in self._ranks]
        for rank in self._ranks:
            recorder.memory.rename(rank.arena, "arena")
            if rank.constants:
                recorder.memory.rename(rank.constants, "constants")

    def _where(self, rank: int) -> str:
        """Return the op that a rank's host code has begun."""
        started = self.board.op_begun(rank)
        return str(self.manifest.op(started)) if started else ""

    def _shut(self) -> None:
        for call in self.calls:
            call.free()
        self.devices.close()
        for rank in self._ranks:
            self._recorder.set_current(rank.rank)
            rank.close()
        self._recorder.set_current(None)
        self._ranks = []


class EmulatedDevices:
    """Reach the devices of a program's ranks, which are played in this process.

    buffers: of each rank, what Arrays lie in there; set when the ranks are loaded.
    """

    def __init__(self, executable: EmulateExecutable, recorder: Recorder) -> None:
        self._executable, self._recorder = executable, recorder
        self.buffers: list[DeviceBuffers] = []
        self.is_lost = False
        self._shards = weakref.WeakSet[DeviceShards]()
        self._numbers = itertools.count(1)

    def new_number(self, shards: DeviceShards) -> int:
        """Do as RankDevices says."""
        self._shards.add(shards)
        return next(self._numbers)

    def fetch(self, number: int, port: Port) -> tuple[Values, ...]:
        """Do as RankDevices says."""
        with self._executable.busy:
            self._executable.wait()
            if self.is_lost:
                raise RankError(
                    "this Array lay on devices of ranks that have ended: its value is lost with them"
                )
            parts = [buffer(port) for _ in self.buffers]
            self._each(lambda rank: self.buffers[rank].fetch(number, parts[rank]))
        return tuple(parts)

    def drop(self, number: int) -> None:
        """Do as RankDevices says."""
        for each in self.buffers:
            each.drop(number)

    def close(self) -> None:
        """Free everything. What Arrays have there alone is copied here first, unless it is lost."""
        for shards in list(self._shards):
            if not (self.is_lost or shards.is_copy):
                shards.come_home()
        self._each(lambda rank: self.buffers[rank].close())
        self.is_lost = True

    def _each(self, body: Callable[[int], None]) -> None:
        for rank in range(len(self.buffers)):
            self._recorder.set_current(rank)
            body(rank)
        self._recorder.set_current(None)


_LOST: list[Any] = []  # programs whose code may still run: their memory must stay


class EmulateCall:
    """Hold a program bound to arrays.

    Calling it copies the inputs to the devices, runs all ranks once, and copies the outputs back.
    """

    def __init__(
        self, executable: EmulateExecutable, inputs: list[list[Values]], outputs: list[list[Values]]
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._executable = executable
        self._ranks: list[GpuRank] = []
        self._bound: dict[int, RankCall] = {}

    def __call__(self) -> None:
        """Run. Raises RankError when a rank fails or a check finds something."""
        self._run_on(self._run)

    def run_placed(self, places: Places, rows: Sequence[Sequence[Values]]) -> None:
        """Enqueue a step on what lies on the devices. rows: of each rank the inputs, of which the fresh are copied."""
        buffers = self._executable.devices.buffers

        def run(number: int) -> None:
            self._ranks[number].attach()
            self._named_places(number, places)
            run_placed(self._bound[number], buffers[number], places, rows[number])

        self._run_on(run)

    def wait(self, number: int) -> None:
        """Wait for what one rank has been given."""
        self._ranks[number].attach()
        self._bound[number].wait()

    def _run_on(self, body: Callable[[int], None]) -> None:
        executable = self._executable
        with executable.busy:
            ranks = executable.ranks()
            if self._ranks is not ranks:
                self._bind(ranks)
            executable.board.clear()
            executable.recorder.begin()
            if executable.heard_by is not WATCHERS.newest:
                told_begins(executable)
            executable.told(body)

    def free(self) -> None:
        """Free the device memory."""
        recorder = self._executable.recorder
        for number, bound in self._bound.items():
            recorder.set_current(number)
            bound.close()
        recorder.set_current(None)
        self._bound, self._ranks = {}, []

    def close(self) -> None:
        """Free the device memory for good."""
        with self._executable.busy:
            self.free()
            self._executable.calls.discard(self)

    def _bind(self, ranks: list[GpuRank]) -> None:
        """Allocate device memory, and fill the tables, for these ranks."""
        self.free()
        executable = self._executable
        executable.calls.add(self)
        executable.each(self._make)
        self._ranks = ranks
        # What runs on Arrays makes its buffers when it needs them.
        if self is not executable.placed:
            executable.each(self._named)

    def _make(self, number: int) -> None:
        executable = self._executable
        rank = executable.ranks()[number]
        rank.attach()
        self._bound[number] = RankCall(rank, executable.board, executable.engine.graph)

    def _named_places(self, number: int, places: Places) -> None:
        """Give what lies on the devices names to read in the record."""
        bound, memory = self._bound[number], self._executable.recorder.memory
        buffers, manifest = self._executable.devices.buffers[number], bound.rank.manifest
        for index, (place, port) in enumerate(zip(places.inputs, manifest.inputs)):
            if place:
                memory.rename(buffers.address(place, port.nbytes), f"array{place}")
            else:
                memory.rename(bound.input(index), f"in{index}")
        for place, port in zip(places.outputs, manifest.outputs):
            memory.rename(buffers.address(place, port.nbytes), f"array{place}")

    def _named(self, number: int) -> None:
        """Make the buffers of one rank, and give them names to read in the record."""
        bound, memory = self._bound[number], self._executable.recorder.memory
        bound.rank.attach()
        for index, address in enumerate(bound.inputs):
            memory.rename(address, f"in{index}")
        for index, address in enumerate(bound.outputs):
            if bound.rank.manifest.outputs[index].takes is None:
                memory.rename(address, f"out{index}")

    def _run(self, number: int) -> None:
        """Run one rank."""
        self._ranks[number].attach()
        self._bound[number].run(self.inputs[number], self.outputs[number])
