"""Run a program on processes that the user has started: each is one rank of an `mpiexec` job, on any number of hosts.

There is no launcher to watch the ranks, so each watches the board of its host from a thread and
ends the job when it stalls.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from meshweave.bundle import Bundle
from meshweave.errors import RankError
from meshweave.runtime.cores import checked_cores
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.recorder import FlightRecorder, new_incident
from meshweave.runtime.flight.records import ELSEWHERE, TOLD
from meshweave.runtime.local.serving import Lookout
from meshweave.runtime.memory import Values
from meshweave.runtime.mpi.rank import MpiRank, TracedRank, code_meaning
from meshweave.runtime.mpi.watcher import alive_pipe, start_watcher
from meshweave.runtime.mpi.window import ranks_of, wanted
from meshweave.runtime.processes.shared_files import mpi_memory, remove
from meshweave.runtime.program import bind_row, fault
from meshweave.runtime.watchdog import Watchdog
from meshweave.runtime.watched import WATCHERS, told_begins
from meshweave.runtime.weights.bundled import weights_of_rank

if TYPE_CHECKING:  # importing mpi4py initialises MPI
    from mpi4py.MPI import Comm

_HEARD = 0.2  # seconds in which mpiexec passes on what a rank has said; when the job ends, it drops what is left


class InsideProgram(TracedRank):
    """Run a bundle of engine "mpi" on every rank of COMM_WORLD; every rank makes the same calls.

    bundle:  what `meshweave compile --engine mpi` wrote, read by `Bundle.read`; of as many ranks as the job has.
    """

    def __init__(
        self, bundle: Bundle, timeout: float | None = None, window: bool | None = None,
        flight: str | None = None, cores: int | None = None,
    ) -> None:  # fmt: skip
        """Load.

        Raises MeshweaveError when the bundle does not fit this job, RankError when the ranks load different ones.

        timeout: seconds without progress of the ranks of a host after which a run ends the job; None: 60 while one
        waits, and no limit while all compute. window, cores: as for MpiEngine. flight: as for LocalEngine; a folder on
        each host.
        """
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self.bundle = bundle.code
        self.manifest, self.rank = bundle.manifest, int(self._world.rank)
        self._host = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self._board, file = host_board(self._world, self._host)
        incident = self._world.bcast(new_incident(), 0)
        self._flight = FlightRecorder(self._board, self.manifest, flight, incident)
        self._left = weakref.finalize(self, self._board.leave, self.rank)
        alive = alive_pipe()
        self._closed = weakref.finalize(self, os.close, alive)
        self._closed.atexit = False  # the system closes it when this process ends
        pipes = self._host.allgather((self.rank, alive))
        if self._host.rank == 0:
            watcher = start_watcher(self._flight, file, dict(pipes))
            self._dismissed = weakref.finalize(self, _dismiss, watcher)
            self._dismissed.atexit = False  # the other ranks may still need it
        os.close(file)
        self._program = MpiRank(
            bundle, self._board, window=wanted(window), foreign=True, cores=checked_cores(cores)
        )
        self._weights = weights_of_rank(bundle, self.rank)
        watchdog = Watchdog(self._board, self.manifest, timeout)
        self._lookout = Lookout(watchdog, self._stalled)

    def run(self, inputs: Sequence[Values]) -> list[Values]:
        """Run once on this rank's local arrays; return its outputs as new arrays.

        inputs: an array of `manifest.given[i].local_shape` for each input that the program does not have itself.

        Raises MeshweaveError for arrays that do not fit. A rank that fails or stalls ends the job
        with status 3.
        """
        call = self.bind(inputs)
        call()
        return call.outputs

    def bind(self, inputs: Sequence[Values]) -> InsideCall:
        """Bind the program to fixed buffers for many calls by every rank: no checks, no copies, no allocation.

        inputs: as for `run`; they are kept where compiled code can read them in place, else copied once.

        Raises MeshweaveError for arrays that do not fit.
        """
        return InsideCall(self, *bind_row(self.manifest, self.rank, [*inputs, *self._weights]))

    def table(self, inputs: Sequence[Values], outputs: Sequence[Values]) -> Values:
        """Return the table of `step` for these buffers, inputs and outputs."""
        return self._program.table.bound(inputs, outputs)

    def execute(self, context: int) -> None:
        """Call `step` with the table at the address `context`."""
        if self.heard_by is not WATCHERS.newest:
            told_begins(self)
        self._board.begin(self.rank)
        self._lookout.begin()
        code = self._program.step(context)
        self._lookout.end()
        self._board.end(self.rank)
        if code:
            line = fault(self.manifest, self.rank, code, code_meaning(code))
            self._abort(self._flight.written("failure", line))

    def close(self) -> None:
        """Free what the program holds. The job goes on."""
        self._program.close()
        self._left()
        self._closed()
        self._host.Barrier()  # the watcher is to see nobody end who has not left
        if self._host.rank == 0:
            self._dismissed()
        self._host.Free()

    def _stalled(self, line: str) -> NoReturn:
        time.sleep(2 * _HEARD * self._host.rank)  # so that one rank speaks for its host
        self._abort(self._flight.written("timeout", line))

    def _abort(self, line: str) -> NoReturn:
        """Say why, and end every rank of the job."""
        self._board.mark(self.rank, TOLD)
        print(f"meshweave: {line}", file=sys.stderr, flush=True)
        time.sleep(_HEARD)
        remove(mpi_memory("self"))  # which MPI leaves when it aborts
        self._world.Abort(RankError.exit_status)


class InsideCall:
    """Run a program on a rank's buffers: `inputs` may be written between calls, `outputs` hold the last results."""

    def __init__(self, program: InsideProgram, inputs: list[Values], outputs: list[Values]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._execute = program.execute
        self._table = program.table(inputs, outputs)
        self._context = int(self._table.ctypes.data)

    def __call__(self) -> None:
        """Run. A rank that fails or stalls ends the job with status 3."""
        self._execute(self._context)


def _dismiss(watcher: subprocess.Popen[bytes] | None) -> None:
    """End the watcher: nothing is left to watch."""
    if watcher is not None:
        watcher.kill()
        watcher.wait()


def host_board(world: Comm, host: Comm) -> tuple[StatusBoard, int]:
    """Make a board that the ranks of a host share, with their processes on it; return it and its open file.

    The file's name is removed before anything can fail. Ranks in different name spaces of processes do not know each
    other's: they tell none.
    """
    nbytes = StatusBoard.nbytes(world.size)
    name = np.zeros(256, np.uint8)
    if host.rank == 0:
        file, path = tempfile.mkstemp(prefix="meshweave-", dir="/dev/shm")
        os.ftruncate(file, nbytes)
        encoded = os.fsencode(path)
        name[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    host.Bcast(name, 0)
    if host.rank:
        file = os.open(bytes(name).rstrip(b"\0"), os.O_RDWR)
    host.Barrier()
    if host.rank == 0:
        os.unlink(path)
    board = StatusBoard(mmap.mmap(file, nbytes), world.size)
    if len(set(host.allgather(os.stat("/proc/self/ns/pid").st_ino))) == 1:
        board.announce(world.rank)
    for rank in set(range(world.size)) - set(ranks_of(host, world.rank)):
        board.mark(rank, ELSEWHERE)
    host.Barrier()
    return board, file
