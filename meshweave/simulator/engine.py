"""Provide the `emulate` engine: it runs a gpu program on this machine's processor, all ranks in this process.

The host code, and all that the runtime calls, is what a GPU would get; the recorder stands in for
the libraries, the emulator runs the device code, NumPy the library's products and collectives.
It is for finding what is wrong with a program, not for speed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.engine import check_engine
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.dump import flight_folder
from meshweave.runtime.flight.recorder import FlightRecorder
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.limits import check_machine
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.bootstrap import JobRank, MemoryStore
from meshweave.runtime.program import bind_rows
from meshweave.runtime.watchdog import WAITING
from meshweave.runtime.watched import told_begins, told_ended
from meshweave.simulator.driver.emulated import EmulatedKernels
from meshweave.simulator.driver.interleaving import Interleaving, StuckRankError
from meshweave.simulator.driver.kernels import KernelRunner
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler

T = TypeVar("T")


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
        self.busy = threading.RLock()
        self._closed = False
        self._ranks: list[GpuRank] = []
        self.calls: set[EmulateCall] = set()
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

    def bind(self, inputs: Sequence[Sequence[Values]]) -> EmulateCall:
        """Bind fixed buffers for a call that is made many times."""
        return EmulateCall(self, *bind_rows(self.manifest, self.mesh.nranks, inputs))

    def close(self) -> None:
        """Free everything. The executable cannot run any more."""
        with self.busy:
            if not self._closed:
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
            for rank in self._ranks:
                rank.broken = True
            recorder.scheduler.clear()
            if isinstance(error, StuckRankError):
                _LOST.append((self, self._ranks))
                self._ranks = []
                raise
            raise (recorder.error or error) from None

    def _open(self) -> None:
        engine, nranks = self.engine, self.mesh.nranks
        scheduler = Scheduler(move, engine.seed, engine.checks)
        recorder = self._recorder = Recorder(
            nranks, engine.kernels, scheduler, failures=engine.failures,
            capability=_capability(self.manifest.chip),
        )  # fmt: skip
        self._turns = Interleaving(scheduler.run, scheduler.stuck, recorder.count, engine.timeout)
        recorder.block = self._turns.block
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
        for rank in self._ranks:
            self._recorder.set_current(rank.rank)
            rank.close()
        self._recorder.set_current(None)
        self._ranks = []


def _capability(chip: str) -> tuple[int, int]:
    """Parse a chip's name: (9, 0) for sm_90a."""
    digits = "".join(c for c in chip if c.isdigit())
    return int(digits[:-1]), int(digits[-1])


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
        executable = self._executable
        with executable.busy:
            ranks = executable.ranks()
            if self._ranks is not ranks:
                self._bind(ranks)
            executable.board.clear()
            executable.recorder.begin()
            told_begins(executable)
            try:
                executable.each(self._run)
            except RankError as error:
                line = executable.flight.written("failure", error.message)
                raise RankError(line, error.location) from None
            except KeyboardInterrupt as error:
                executable.flight.interrupted(error)
                raise
            told_ended(executable)

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
        memory = executable.recorder.memory
        for bound in self._bound.values():
            for index, address in enumerate(bound.inputs):
                memory.rename(address, f"in{index}")
            for index, address in enumerate(bound.outputs):
                memory.rename(address, f"out{index}")

    def _make(self, number: int) -> None:
        executable = self._executable
        rank = executable.ranks()[number]
        rank.attach()
        self._bound[number] = RankCall(rank, executable.board, executable.engine.graph)

    def _run(self, number: int) -> None:
        """Run one rank."""
        self._ranks[number].attach()
        self._bound[number].run(self.inputs[number], self.outputs[number])
