"""Run bundles of the `local` engine: every rank is a thread of this process; nothing to start, nothing to install.

The ranks' compiled code meets in a shared world block (`abi.WorldLayout`) and never calls Python. The calling thread
only waits and watches the status board. It sets the world's abort flag when a rank fails or the job stalls; every wait
in compiled code looks at that flag, so the other ranks leave.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshweave.abi import ABORTED, WorldLayout
from meshweave.bundle import Bundle, slots
from meshweave.errors import MeshweaveError, RankError
from meshweave.layout import Mesh
from meshweave.runtime.cores import Helpers, checked_cores, cores_of, usable_cores
from meshweave.runtime.engine import check_engine
from meshweave.runtime.exchanges import sections
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import named
from meshweave.runtime.flight.dump import flight_folder
from meshweave.runtime.flight.recorder import FlightRecorder
from meshweave.runtime.forks import new_lock, tell_of_forks
from meshweave.runtime.limits import check_machine
from meshweave.runtime.local.serving import LONG, SHORT, Lookout, Serving
from meshweave.runtime.memory import Values, aligned
from meshweave.runtime.program import SlotTable, StepFunction, bind_rows, fault, load_code
from meshweave.runtime.tracing import ClockReading, Marks, hide, read_clock
from meshweave.runtime.watchdog import Watchdog
from meshweave.runtime.watched import WATCHERS, CallWatcher, told_begins

GRACE = 2.0  # seconds that ranks get to leave after an abort
_TICK = 0.1  # seconds between looks at the board
_SPINS, _SPINS_CROWDED = 200, 100  # looks before a wait yields: with a core per rank, and without


class LocalEngine:
    """Run bundles in threads of this process.

    timeout: seconds without progress of any rank after which a run ends with RankError; None: 60 while a rank
    waits for another, and no limit while all compute. Ranks leave their waits and the loops that data keeps going.
    flight: a folder for dumps of what the ranks did last, written when a run fails or is interrupted.
    cores: how many share the work of each rank's larger kernels; None: those that the process may use, divided
    among the ranks. The results have the same bits with any number.
    """

    name = "local"

    def __init__(
        self, timeout: float | None = None, flight: str | None = None, cores: int | None = None
    ) -> None:
        self.timeout = timeout
        self.flight = flight_folder(flight)
        self.cores = checked_cores(cores)

    def load(self, bundle: Bundle) -> LocalExecutable:
        """Load a bundle compiled for this engine.

        Raises MeshweaveError when it is for another, or cannot be loaded here.
        """
        check_engine(bundle.manifest, self.name)
        return LocalExecutable(bundle, self.timeout, self.flight, self.cores)

    def close(self) -> None:
        """Do nothing: the engine holds nothing."""


class World:
    """Hold the shared block of a program.

    It has the abort flag, and for every group of ranks the lines where its members meet.
    """

    def __init__(self, mesh: Mesh, groups: Sequence[tuple[str, ...]], board: StatusBoard) -> None:
        self.mesh, self._board = mesh, board
        places: dict[tuple[int, tuple[int, ...]], int] = {}
        end = WorldLayout.WORLD_BYTES
        for number, axes in enumerate(groups):
            for rank in range(mesh.nranks):
                members = mesh.group(axes, rank)
                if (number, members) not in places:
                    places[number, members] = end
                    end += WorldLayout.group_bytes(len(members))
        self._words = aligned(end).view(np.int64)
        self._groups = {key: (place, len(key[1])) for key, place in places.items()}
        self._axes = tuple(groups)
        self.arenas = [0] * mesh.nranks  # addresses
        self.reset()

    @property
    def address(self) -> int:
        """Return the address of the block."""
        return int(self._words.ctypes.data)

    def handles(self, rank: int) -> list[tuple[int, int]]:
        """Return (address of the group's block, member index) of a rank in each group."""
        found = []
        for number, axes in enumerate(self._axes):
            place, _ = self._groups[number, self.mesh.group(axes, rank)]
            found.append((self.address + place, self.mesh.group_index(axes, rank)))
        return found

    def reset(self) -> None:
        """Reset the block to its first state. No rank may be running."""
        self._words[:] = 0
        crowded = self.mesh.nranks > len(os.sched_getaffinity(0))
        self._words[WorldLayout.SPINS // 8] = _SPINS_CROWDED if crowded else _SPINS
        for (_, members), (place, size) in self._groups.items():
            self._words[(place + WorldLayout.SIZE) // 8] = size
            self._words[(place + WorldLayout.WORLD) // 8] = self.address
            first = (place + WorldLayout.MEMBERS + WorldLayout.ARENA) // 8
            for k, member in enumerate(members):
                self._words[first + k * WorldLayout.LINE // 8] = self.arenas[member]

    def abort(self) -> None:
        """Make every rank leave its wait, and its loops that have no end for sure."""
        self._words[WorldLayout.ABORT // 8] = 1
        self._board.leave_loops()

    @property
    def aborted(self) -> bool:
        """Tell whether `abort` was called since the last `reset`."""
        return bool(self._words[WorldLayout.ABORT // 8])


class RankThread:
    """Run the thread of one rank.

    It holds no reference to the executable, so dropping the executable ends the thread.
    """

    def __init__(self, rank: int, step: StepFunction, world: World, board: StatusBoard) -> None:
        self._rank, self._step, self._world, self._board = rank, step, world, board
        self._go = _thread.allocate_lock()
        self._done = _thread.allocate_lock()
        self._go.acquire()
        self._done.acquire()
        self._context: int | Serving | None = None
        self._busy = False
        self.result = 0
        self.error: BaseException | None = None
        threading.Thread(target=self._serve, name=f"meshweave-rank-{rank}", daemon=True).start()

    def start(self, context: int | Serving | None) -> None:
        """Call `step` with the table at address `context`, or serve the calls that come there; None ends the thread."""
        self._context, self._busy = context, True
        self._go.release()

    def wait(self, seconds: float) -> bool:
        """Tell whether the call has ended within this time.

        May be asked again: Ctrl-C takes the answer of one that gets the lock from its caller.
        """
        while self._busy:
            if not self._done.acquire(timeout=seconds):
                return not self._busy
        return True

    def _end(self) -> None:
        """Note that the call has ended; the end of the one before may have had no waiter."""
        self._busy = False
        if self._done.locked():
            self._done.release()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            context, self._context = self._context, None
            if context is None:
                return
            if isinstance(context, Serving):
                context.serve(self._rank)
                self._end()
                continue
            self._board.begin(self._rank)
            self.error = None
            try:
                self.result = self._step(context)
            except BaseException as error:  # a defect of ours: it must not leave the others waiting
                self.error, self.result = error, -1
            if self.result:
                self._world.abort()
            self._board.end(self._rank)
            self._end()


def _stop(
    workers: list[RankThread], serving: Serving | None, helpers: Sequence[Helpers] = ()
) -> None:
    """End the threads; those that serve leave first."""
    if serving is not None and serving.entered:
        serving.stop()
    for worker in workers:
        worker.start(None)
    for each in helpers:
        each.stop()


def _stalled(flight: FlightRecorder, world: World, line: str) -> str:
    """Make the ranks leave a short call that is stalled; return what to tell of it.

    The thread that calls this must hold no reference to the executable, as those of the ranks.
    """
    line = flight.written("timeout", line)
    world.abort()
    return line


class LocalExecutable:
    """Run a program on the ranks of its mesh. Calls from several threads run one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        timeout: float | None = None,
        flight: str | None = None,
        cores: int | None = None,
    ) -> None:
        manifest = bundle.manifest
        self.bundle, self.manifest, self.timeout = bundle, manifest, timeout
        self.mesh, self.slots = check_machine(manifest, manifest.engine), slots(manifest)
        self._code, self._step = load_code(bundle)
        self.heard_by: CallWatcher | None = None
        self._marks: Marks | None = None
        self._board = StatusBoard.private(self.mesh.nranks)
        self._world = World(self.mesh, manifest.groups, self._board)
        nranks = self.mesh.nranks
        self.cores = cores_of(cores, nranks)
        crowded = self.cores * nranks > usable_cores()
        self._helpers = [
            Helpers(self._code, self.cores, manifest.core_bytes, crowded) for _ in range(nranks)
        ]
        self._flight = FlightRecorder(self._board, manifest, flight)
        self._tables = [self._table(rank, self._helpers[rank].address) for rank in range(nranks)]
        self._world.arenas = [int(table.arena.ctypes.data) for table in self._tables]
        self._world.reset()
        self._workers: list[RankThread] = []
        self._leaving: list[RankThread] = []  # told to end serving, not yet known to have done so
        self._serving: Serving | None = None
        self._lookout: Lookout | None = None
        if nranks > 1 and Serving.offered(self._code):
            self._serve_short_calls()
        self._busy = new_lock()
        self._closed = False
        self._lost: list[int] = []  # ranks still in code after an abort
        tell_of_forks(self)

    def forked(self) -> None:
        """Start over in a copy of the process, without threads of the ranks."""
        if self._workers:
            self._end.detach()
        self._workers, self._lost, self._leaving = [], [], []
        for helpers in self._helpers:
            helpers.reset()
        self._reset()
        if self._serving is not None:
            self._serve_short_calls()

    def _table(self, rank: int, cores: int = 0) -> SlotTable:
        """Return a table of a rank, with an arena of its own."""
        return SlotTable(
            self.manifest,
            rank,
            status=self._board.address(rank),
            private=self._world.address,
            groups=self._world.handles(rank),
            exchanges=[section.words() for section in sections(self.manifest, rank)],
            cores=cores,
        )

    def entry_and_table(self) -> tuple[int, SlotTable]:
        """Return the address of the code, and a table of the only rank: for who calls it beside the calls made here."""
        return self._code.address(self.manifest.entry), self._table(0)

    def run(self, inputs: Sequence[Sequence[Values]], fixed: int = 0) -> list[list[Values]]:
        """Run once on local arrays, `inputs[rank][index]`; return new arrays in the same order.

        Raises MeshweaveError for arrays that do not fit, RankError when a rank fails or the job
        stalls.
        """
        call = self.bind(inputs)
        call()
        return call.outputs

    def bind(self, inputs: Sequence[Sequence[Values]]) -> LocalCall:
        """Bind the program to fixed buffers for many calls: no checks, no copies, no allocation.

        `call.inputs` are the buffers that the program reads: the given arrays where they are
        contiguous and aligned, else copies. `call.outputs` are those it writes.
        """
        return LocalCall(self, *bind_rows(self.manifest, self.mesh.nranks, inputs))

    def trace(self, room: int) -> ClockReading | None:
        """Have the ranks write marks, with room for so many. Return what the clocks say, where they can.

        For who hears that a call begins: no other call runs then.
        """
        self._marks = Marks(range(self.mesh.nranks), room)
        self._marks.show(self._board)
        return read_clock(self._code)

    def untrace(self) -> ClockReading | None:
        """Have the ranks write no marks any more, once a call of another thread is over: it may still write some."""
        with self._busy:
            hide(self._board, range(self.mesh.nranks))
            self._marks = None
        return read_clock(self._code)

    def marks(self) -> Marks | None:
        """Return what the ranks write their marks to, while they do."""
        return self._marks

    def close(self) -> None:
        """End the rank threads. The executable cannot run any more."""
        with self._busy:
            if self._workers:
                self._end()
            self._closed = True

    def execute(self, call: LocalCall) -> None:
        """Call `step` on every rank with the tables of `call`."""
        with self._busy:
            if self._closed:
                raise MeshweaveError("the program is closed: load it again")
            if self._lost:
                raise RankError(
                    f"{named(self._lost)} never came back from an earlier run: "
                    "load the program again"
                )
            if self.heard_by is not WATCHERS.newest:
                told_begins(self)
            self._execute_somehow(call)

    def _execute_somehow(self, call: LocalCall) -> None:
        """Run a call in the way that is fastest for it."""
        alone = len(call.contexts) == 1
        if not self._workers and call.is_short and not sys.is_finalizing():
            self._have_workers()  # in a copy of the process
        if alone and (call.is_short or sys.is_finalizing()):
            self._execute_here(call)
        elif call.is_short:
            self._execute_short(call)
        else:
            began = time.perf_counter()
            self._execute(call)
            short = self.manifest.ends and time.perf_counter() - began < SHORT
            call.is_short = short and (alone or self._serving is not None)

    @property
    def lock(self) -> threading.Lock:
        """Return what a call holds while it runs."""
        return self._busy

    def execute_here(self, call: LocalCall) -> None:
        """Run the only rank in this thread, which holds `lock`: a call that is neither timed nor told to the board."""
        if self._closed:
            raise MeshweaveError("the program is closed: load it again")
        if self.heard_by is not WATCHERS.newest:
            told_begins(self)
        code = self._step(call.contexts[0])
        if code:
            raise RankError(self._failure([code]) or "the rank failed")

    def _execute_here(self, call: LocalCall) -> None:
        """Run the only rank in this thread, which does not listen to Ctrl-C meanwhile."""
        began = time.perf_counter()
        self._board.begin(0)
        code = self._step(call.contexts[0])
        if code and (failure := self._failure([code])) is not None:
            raise RankError(failure)
        call.is_short = time.perf_counter() - began < LONG

    def _serve_short_calls(self) -> None:
        entry = self._code.address(self.manifest.entry)
        crowded = self.mesh.nranks > len(os.sched_getaffinity(0))
        self._serving = Serving(self._code, entry, self._world.address, self.mesh.nranks, crowded)
        watchdog = Watchdog(self._board, self.manifest, self.timeout)
        self._lookout = Lookout(watchdog, partial(_stalled, self._flight, self._world))

    def _execute_short(self, call: LocalCall) -> None:
        """Make a call in which this thread is rank 0; the others wait for it in compiled code."""
        serving, lookout = self._serving, self._lookout
        assert serving is not None and lookout is not None
        self._have_workers()
        if not serving.entered:
            self._leave()
            serving.enter()
            for worker in self._workers[1:]:
                worker.start(serving)
        lookout.begin()
        began, done, report = time.perf_counter(), False, None
        try:
            done = serving.call(call.table_address)
            while not done and lookout.report is None:
                done = serving.finish()
            call.is_short = time.perf_counter() - began < LONG
        except BaseException as error:  # Ctrl-C
            report = self._flight.interrupted(error)
            raise
        finally:
            if not done:
                self._give_up(call)
            report = lookout.end() or report
            if self._world.aborted:
                report = report or self._failure(serving.results.tolist())
                self._reset()
        if report is not None:
            raise RankError(report)

    def _give_up(self, call: LocalCall) -> None:
        """Make the ranks leave, as `_abort` does."""
        assert self._serving is not None
        self._world.abort()
        end = time.monotonic() + GRACE
        while not self._serving.finish():
            if time.monotonic() > end:
                self._lost = list(range(1, self.mesh.nranks))
                _LOST.append((self, call))
                return

    def _leave(self) -> None:
        """Have the ranks wait for calls in Python again.

        Where Ctrl-C ends the wait, the next call resumes it: a rank told twice would leave when it serves next, and one
        not waited for would seem to have ended that call.
        """
        if self._serving is not None and self._serving.entered:
            self._leaving = self._workers[1:]
            self._serving.entered = False
            self._serving.stop()
        while self._leaving:
            self._leaving[-1].wait(-1)
            self._leaving.pop()

    def _execute(self, call: LocalCall) -> None:
        if sys.is_finalizing():
            raise MeshweaveError("Python is shutting down: its threads do not run any more")
        self._have_workers()
        self._leave()
        self._board.clear()
        pending: list[int] = []
        report: str | None = None
        try:
            for rank, context in enumerate(call.contexts):
                pending.append(rank)
                self._workers[rank].start(context)
            report = self._wait(pending)
        except BaseException as error:  # Ctrl-C
            report = self._flight.interrupted(error)
            raise
        finally:
            if pending:
                self._abort(pending, call)
            if self._world.aborted:
                report = report or self._failure([worker.result for worker in self._workers])
                self._reset()
        errors = [worker.error for worker in self._workers if worker.error is not None]
        if errors:
            raise errors[0]
        if report is not None:
            raise RankError(report)

    def _reset(self) -> None:
        """Reset the world after an abort, unless some rank still runs."""
        if self._lost:
            return
        self._world.reset()
        self._board.reset()
        if self._marks is not None:
            self._marks.show(self._board)
        for table in self._tables:
            table.reset_async()

    def _have_workers(self) -> None:
        """Start the threads if there are none yet."""
        if not self._workers:
            self._workers = self._started()
            for rank, helpers in enumerate(self._helpers):
                helpers.start(f"meshweave-rank-{rank}")
            self._end = weakref.finalize(self, _stop, self._workers, self._serving, self._helpers)
            self._end.atexit = (
                False  # calls may still come, or be under way; exit ends threads anyway
            )

    def _started(self) -> list[RankThread]:
        """Start a thread for every rank, or none."""
        workers: list[RankThread] = []
        try:
            for rank in range(self.mesh.nranks):
                workers.append(RankThread(rank, self._step, self._world, self._board))
        except (RuntimeError, MemoryError):
            _stop(workers, None)
            raise MeshweaveError(
                f"rank {len(workers)}: the system starts no more threads for this process"
            ) from None
        return workers

    def _wait(self, pending: list[int]) -> str | None:
        """Wait for the ranks in `pending`, removing those that return. Return a line when they stall."""
        watchdog = Watchdog(self._board, self.manifest, self.timeout)
        watchdog.start(time.monotonic())
        while pending:
            tick = min(_TICK, watchdog.seconds / 4)
            if self._workers[pending[0]].wait(tick):
                pending.pop(0)
            elif (report := watchdog.report(time.monotonic())) is not None:
                return self._flight.written("timeout", report)
        return None

    def _abort(self, pending: list[int], call: LocalCall) -> None:
        """Make the ranks leave.

        One that keeps computing is given up: its buffers stay, and the executable cannot be used any more.
        """
        self._world.abort()
        end = time.monotonic() + GRACE
        for rank in list(pending):
            if self._workers[rank].wait(max(0.0, end - time.monotonic())):
                pending.remove(rank)
        self._lost = list(pending)
        if pending:
            _LOST.append((self, call))

    def _failure(self, results: Sequence[int]) -> str | None:
        """Describe the first rank that has failed, of those that did so before others left their wait for it."""
        failed = [
            (rank, code) for rank, code in enumerate(results) if code and code & 0xFFFF != ABORTED
        ] or [(rank, code) for rank, code in enumerate(results) if code]
        if not failed:
            return None
        return self._flight.written("failure", fault(self.manifest, *failed[0]))


_LOST: list[Any] = []  # programs and calls whose code may still run: their memory must stay


class LocalCall:
    """Run a program on buffers that it is bound to. A call runs all ranks once; the object keeps the buffers alive.

    held: what else stays while the code may run: arrays that `read` and `write` were given.
    """

    def __init__(
        self, executable: LocalExecutable, inputs: list[list[Values]], outputs: list[list[Values]]
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.held: object = None
        self._executable = executable
        self._bound = [
            table.bound(read, written)
            for table, read, written in zip(executable._tables, inputs, outputs, strict=True)
        ]
        self._words = [table.data for table in self._bound]  # faster to write than an array
        self._slots = executable.slots
        self.contexts = [int(table.ctypes.data) for table in self._bound]
        self._addresses = np.array(self.contexts, np.int64)
        self.table_address = int(self._addresses.ctypes.data)
        self.is_short = False  # so far as is known

    def read(self, rank: int, index: int, address: int) -> None:
        """Make the next calls read input `index` of a rank from an array here, which fits, contiguous and aligned.

        Who calls keeps the array.
        """
        self._words[rank][self._slots.input(index)] = address

    def write(self, rank: int, index: int, address: int) -> None:
        """Make the next calls write output `index` of a rank to an array here, as `read` reads."""
        self._words[rank][self._slots.output(index)] = address

    def __call__(self) -> None:
        """Run. Raises RankError when a rank fails or the job stalls."""
        self._executable.execute(self)
