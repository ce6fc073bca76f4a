"""Run bundles on ranks that are processes: start them, keep them for the next bundle, and ask them to run.

An engine of this kind says what starts its ranks, and what they must know to load a program; the rest is here. The
other side of each conversation is `server.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from meshweave import errors
from meshweave.abi import PYTHON, TraceBuffer
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.arrays.array import Array, collect, laid_out
from meshweave.runtime.engine import check_engine
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import account
from meshweave.runtime.flight.dump import flight_folder
from meshweave.runtime.flight.faults import as_died
from meshweave.runtime.flight.recorder import FlightRecorder
from meshweave.runtime.forks import new_reentrant_lock
from meshweave.runtime.limits import check_machine
from meshweave.runtime.memory import Values
from meshweave.runtime.processes.launch import (
    Death,
    Failure,
    Launcher,
    Message,
    RankProcesses,
    Silence,
)
from meshweave.runtime.processes.residents import Residents
from meshweave.runtime.program import buffer_bytes, check_all, place_buffers
from meshweave.runtime.tracing import ClockReading, Marks
from meshweave.runtime.watchdog import Watchdog
from meshweave.runtime.watched import WATCHERS, CallWatcher, told_begins

START_SECONDS = 60.0
_numbers = itertools.count(1)
_ENDED = "the ranks of this call have ended: bind the program again"


class ProcessEngine:
    """Start the ranks at the first load, and keep them until `close` or the program's end.

    timeout, flight: as for LocalEngine. To start and to load a program the ranks get START_SECONDS.
    """

    name: str
    traces = False  # whether the ranks can write marks

    def __init__(self, timeout: float | None = None, flight: str | None = None) -> None:
        self.timeout, self.flight = timeout, flight_folder(flight)
        self.busy = new_reentrant_lock()
        self._jobs: dict[int, RankProcesses] = {}

    def launcher(self) -> Launcher:
        """Return what starts the ranks."""
        raise NotImplementedError

    def loading(self) -> AbstractContextManager[dict[str, object]]:
        """Hold, while the ranks load a program, the engine's own part of the message that asks them to."""
        raise NotImplementedError

    def load(self, bundle: Bundle) -> ProcessExecutable:
        """Load a bundle compiled for this engine on as many ranks as its mesh has.

        Raises MeshweaveError when it is for another engine or cannot be loaded, RankError when the ranks cannot be
        started.
        """
        check_engine(bundle.manifest, self.name)
        if PYTHON in bundle.manifest.libraries:
            raise MeshweaveError(
                f"engine {self.name}: the program calls functions of Python, which the processes of its ranks do not "
                "have: engine local is right"
            )
        return ProcessExecutable(self, bundle)

    def job(self, nranks: int) -> RankProcesses:
        """Return the running ranks for meshes of this size, started if there are none."""
        with self.busy:
            if nranks not in self._jobs or not self._jobs[nranks].alive:
                self._jobs[nranks] = RankProcesses(nranks, START_SECONDS, self.launcher())
            return self._jobs[nranks]

    def close(self) -> None:
        """End all ranks."""
        with self.busy:
            for job in self._jobs.values():
                job.close()
            self._jobs = {}


def new_number() -> int:
    """Return a number that no call, program or array of this process has yet."""
    return next(_numbers)


class SharedMemory:
    """Allocate memory that can be handed to other processes.

    It has no name in the file system, so nothing is left behind.
    """

    def __init__(self, nbytes: int) -> None:
        self.file = os.memfd_create("meshweave")
        weakref.finalize(self, os.close, self.file)
        try:
            os.ftruncate(self.file, nbytes)
            self.map = mmap.mmap(self.file, nbytes)
        except (OSError, OverflowError, ValueError):
            raise MeshweaveError(f"no memory for buffers of {nbytes} bytes") from None


class ProcessExecutable:
    """Run a program on the ranks of its mesh. After a failed run the next one starts new ranks."""

    def __init__(self, engine: ProcessEngine, bundle: Bundle) -> None:
        self.engine, self.bundle, self.manifest = engine, bundle, bundle.manifest
        self.mesh = check_machine(self.manifest, engine.name)
        self.timeout = engine.timeout
        self._job: RankProcesses | None = None
        self._number = 0
        self.heard_by: CallWatcher | None = None
        self._marks: Marks | None = None
        self._traced: RankProcesses | None = None  # the ranks that write them
        self._scratch: ProcessCall | None = None
        self.through_window = False  # whether all groups of ranks meet in shared memory
        self.cores = 1
        self.attach()

    @property
    def pids(self) -> list[int]:
        """Return the ranks' processes."""
        return [] if self._job is None else self._job.pids

    def run(self, inputs: Sequence[Sequence[Values]], fixed: int = 0) -> list[list[Values]]:
        """Run once on local arrays, `inputs[rank][index]`; return new arrays in the same order.

        fixed: how many inputs, the last ones, are copied to the ranks only where other arrays were there before.
        Raises MeshweaveError for arrays that do not fit, RankError when a rank raises, dies or
        stalls.
        """
        rows = check_all(self.manifest.inputs, "input", self.mesh.nranks, inputs)
        with self.engine.busy:
            if self._scratch is None or not self._scratch.alive:
                self._scratch = ProcessCall(self)
            if self._scratch.residents.any():
                self._scratch = ProcessCall(self)
            self._scratch.fill(rows, fixed)
            self._scratch()
            return [[value.copy() for value in row] for row in self._scratch.outputs]

    def run_arrays(self, values: Sequence[object], fixed: int = 0) -> list[Array]:
        """Run once on arrays; return the results as Arrays. Arrays that come again stay where the ranks read them.

        values: global NumPy arrays, or Arrays that lie right. fixed: as for `run`. Raises as `run` does.
        """
        arrays, donated = laid_out(self, values), self.manifest.donated
        with self.engine.busy:
            call = self._scratch
            if call is None or not call.alive or call.residents.blocked(arrays):
                self._scratch = call = ProcessCall(self)
            for index, array in enumerate(arrays):
                if index not in donated:
                    call.residents.take(index, array, index >= len(arrays) - fixed)
            for index in donated:
                given = arrays[index]
                call.residents.take(index, given.holding(given.given_up()), False)
            call()
            rows = [
                [v if p.takes is not None else v.copy() for v, p in zip(row, self.manifest.outputs)]
                for row in call.outputs
            ]
            results = collect(self, rows)
            for index, number in donated.items():
                call.residents.settle(index, results[number])
            return results

    def bind(self, inputs: Sequence[Sequence[Values]]) -> ProcessCall:
        """Bind the program to fixed buffers for many calls.

        `call.inputs` hold copies of `inputs`, in memory shared with the ranks; the ranks write `call.outputs`.
        """
        rows = check_all(self.manifest.inputs, "input", self.mesh.nranks, inputs)
        call = ProcessCall(self)
        call.fill(rows)
        return call

    def close(self) -> None:
        """Unload the program from the ranks."""
        with self.engine.busy:
            if self._job is not None and self._job.alive:
                self.ask(self._job, {"do": "unload", "program": self._number})
            self._job = self._scratch = None

    def trace(self, room: int) -> ClockReading | None:
        """Have the ranks write marks, with room for so many. Return what the clocks say, where they can."""
        if not self.engine.traces:
            return None
        with self.engine.busy:
            job, number = self.attach()
            nranks, nbytes = self.mesh.nranks, 8 * TraceBuffer.words(room)
            memory = SharedMemory(-(-nbytes * nranks // mmap.PAGESIZE) * mmap.PAGESIZE)
            message = {"do": "trace", "program": number, "room": room}
            answers = self.ask(job, message, files=[memory.file])
            words = np.frombuffer(memory.map, np.int64)
            self._marks = Marks(range(nranks), room, words) if room else None
            self._traced = job
            clock = answers[0].get("clock")
            return None if clock is None else ClockReading(*clock)

    def untrace(self) -> ClockReading | None:
        """Have the ranks write no marks any more; return what the clocks say. Ranks that have ended write none."""
        with self.engine.busy:
            traced = self._traced
            return (
                self.trace(0)
                if traced is self._job and traced is not None and traced.alive
                else None
            )

    def marks(self) -> Marks | None:
        """Return what the ranks write their marks to, while they do: not where they had to be started again."""
        return self._marks if self._traced is self._job else None

    def attach(self) -> tuple[RankProcesses, int]:
        """Return the ranks, with this program loaded, and its number there."""
        with self.engine.busy:
            job = self.engine.job(self.mesh.nranks)
            if job is not self._job:
                self._memory = SharedMemory(StatusBoard.nbytes(self.mesh.nranks))
                self.board = StatusBoard(self._memory.map, self.mesh.nranks)
                self._flight = FlightRecorder(self.board, self.manifest, self.engine.flight)
                self._number = next(_numbers)
                with self.engine.loading() as more:
                    message = {"do": "load", "program": self._number, **more}
                    code, files = self.bundle.code.to_bytes(), [self._memory.file]
                    answers = self.ask(job, message, code, files)
                self._job, self.heard_by = job, None
                self.through_window = all(answer["window"] for answer in answers)
                self.cores = min(answer.get("cores", 1) for answer in answers)
            return job, self._number

    def ask(
        self,
        job: RankProcesses,
        message: Message,
        payload: bytes = b"",
        files: Sequence[int] = (),
        watch: Callable[[float], str | None] | None = None,
    ) -> list[Message]:
        """Send each rank the message and wait for all answers; any failure ends the job.

        watch: ends the wait by returning a line; by default after START_SECONDS.
        """
        with self.guard(job):
            job.post(message, payload, files)
            return job.answers(watch or self._deadline(message["do"]))

    @contextlib.contextmanager
    def guard(self, job: RankProcesses) -> Iterator[None]:
        """End the job when anything fails inside; raise what a rank did wrong as one line."""
        try:
            yield
        except Death as death:
            raise self._dead(job, death) from None
        except Failure as failure:
            kind, who = getattr(errors, failure.kind, RankError), f"rank {failure.rank}"
            line = failure.line if failure.line.startswith(f"{who} ") else f"{who}: {failure.line}"
            line = self._flight.written("failure", line)
            job.kill()
            raise kind(line) from None
        except Silence as silence:
            line = self._flight.written("timeout", str(silence))
            job.kill()
            raise RankError(line) from None
        except BaseException as error:  # Ctrl-C among them
            self._flight.interrupted(error)
            job.kill()
            raise

    def _dead(self, job: RankProcesses, death: Death) -> RankError:
        """End the job of which a rank has died; return an error that says where all ranks were."""
        ranks = [as_died(r, death.rank, death.how, death.when) for r in self.board.records()]
        line = self._flight.written("death", account(ranks, self.manifest.op), ranks)
        job.kill()
        return RankError(line)

    def _deadline(self, what: str) -> Callable[[float], str | None]:
        end = time.monotonic() + START_SECONDS
        line = f"the ranks gave no answer to {what} within {START_SECONDS:g} s"
        return lambda now: line if now > end else None


class ProcessCall:
    """Run a program on memory that the ranks share with this process. A call runs all ranks once."""

    def __init__(self, executable: ProcessExecutable) -> None:
        self._executable = executable
        manifest, nranks = executable.manifest, executable.mesh.nranks
        nbytes = -(-buffer_bytes(manifest) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = SharedMemory(nbytes * nranks)  # one for all: the ranks read each other's
        whole = memoryview(self._memory.map)
        parts = [whole[rank * nbytes : (rank + 1) * nbytes] for rank in range(nranks)]
        placed = [place_buffers(manifest, part) for part in parts]
        self.inputs = [inputs for inputs, _ in placed]
        self.outputs = [outputs for _, outputs in placed]
        self.residents = Residents(self.inputs)
        self.seconds = [0.0] * nranks  # what `step` took on each rank the last time
        self._held: list[dict[int, Values | None]] = [{} for _ in range(nranks)]  # fixed inputs
        self._number = next(_numbers)
        with executable.engine.busy:
            self._job, program = executable.attach()
            message = {"do": "bind", "call": self._number, "program": program, "nbytes": nbytes}
            with executable.guard(self._job):
                self._job.post(message, files=[self._memory.file])
        weakref.finalize(self, self._job.forget.append, self._number)

    @property
    def alive(self) -> bool:
        """Tell whether the ranks that the call is bound to still run."""
        return self._job.alive

    def fill(self, rows: Sequence[Sequence[Values]], fixed: int = 0) -> None:
        """Copy input values to the ranks; of the last `fixed` those that are not there since the last time."""
        for row, given, held in zip(self.inputs, rows, self._held, strict=True):
            for index, (place, value) in enumerate(zip(row, given, strict=True)):
                stays = index >= len(row) - fixed
                if not stays or held.get(index) is not value:
                    place[...] = value
                held[index] = value if stays else None

    def put(self, columns: Mapping[int, Sequence[Values]]) -> None:
        """Copy the values of some inputs, `[rank]` of each index, to memory that the ranks read."""
        for index, column in columns.items():
            for row, value in zip(self.inputs, column, strict=True):
                row[index][...] = value

    def post(self, **more: object) -> None:
        """Have the ranks run, and do not wait for them: what goes wrong is told by the next answer.

        more: as for a call. Nobody may write the inputs before that. Raises RankError when the ranks have ended.
        """
        executable = self._executable
        with executable.engine.busy:
            if not self.alive:
                raise RankError(_ENDED)
            if executable.heard_by is not WATCHERS.newest:
                told_begins(executable)
            with executable.guard(self._job):
                self._job.post({"do": "enqueue", "call": self._number, **more})

    def __call__(self, **more: object) -> None:
        """Run. Raises RankError when a rank raises, dies or stalls, or when an earlier failure has ended the ranks.

        more: of the message that asks the ranks to run, for engines that have more to say.
        """
        executable = self._executable
        with executable.engine.busy:
            if not self.alive:
                raise RankError(_ENDED)
            executable.board.clear()
            watchdog = Watchdog(executable.board, executable.manifest, executable.timeout)
            watchdog.start(time.monotonic())
            message = {"do": "run", "call": self._number, **more}
            if executable.heard_by is not WATCHERS.newest:
                told_begins(executable)
            answers = executable.ask(self._job, message, watch=watchdog.report)
            self.seconds = [float(answer["seconds"]) for answer in answers]
