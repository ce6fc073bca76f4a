"""Run programs on the ranks of a job, of which this process is one: engine `mpi` after `mw.init`.

Every rank loads the same programs and makes the same calls. A call gives the own part of each argument, and gets the
own part of each result; nothing goes to another rank but what the program itself sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from meshweave.abi import PYTHON
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime.arrays.array import Array, collect, laid_out
from meshweave.runtime.cores import checked_cores
from meshweave.runtime.engine import check_engine
from meshweave.runtime.flight.dump import flight_folder
from meshweave.runtime.flight.recorder import FlightRecorder
from meshweave.runtime.forks import new_reentrant_lock
from meshweave.runtime.job import current
from meshweave.runtime.job.member import Job
from meshweave.runtime.limits import check_job
from meshweave.runtime.local.serving import Lookout
from meshweave.runtime.memory import Values
from meshweave.runtime.mpi.rank import MpiRank, TracedRank, code_meaning
from meshweave.runtime.mpi.window import wanted
from meshweave.runtime.program import bind_row, fault
from meshweave.runtime.watchdog import Watchdog
from meshweave.runtime.watched import WATCHERS, told_begins


class JobEngine:
    """Load programs on this rank, as all other ranks do. The arguments are those of MpiEngine."""

    name = "mpi"

    def __init__(
        self,
        timeout: float | None = None,
        window: bool | None = None,
        flight: str | None = None,
        cores: int | None = None,
    ) -> None:
        job = current.current()
        assert isinstance(job, Job)
        self.job: Job = job
        self.timeout: float | None = timeout
        self.flight: str | None = flight_folder(flight)
        self.window, self.cores = wanted(window), checked_cores(cores)

    def load(self, bundle: Bundle) -> JobExecutable:
        """Load a bundle; every rank makes this call. Raises MeshweaveError where it does not fit this job."""
        check_engine(bundle.manifest, self.name)
        check_job(bundle.manifest, self.job.size)
        return JobExecutable(self, bundle)

    def close(self) -> None:
        """End nothing: the ranks are there for other programs too."""


class JobExecutable(TracedRank):
    """Hold a program that all ranks have loaded. called: what messages call it."""

    def __init__(self, engine: JobEngine, bundle: Bundle) -> None:
        self.bundle, self.manifest = bundle, bundle.manifest
        self.job = job = engine.job
        self.rank = job.rank
        self._hash = hashlib.sha256(bundle.digest.encode()).digest()
        self.called = f"a program of mesh ({self.manifest.mesh})"
        job.agree(self._hash, lambda: f"load {self.called}")
        self._program = MpiRank(
            bundle, job.board, window=engine.window, foreign=True, cores=engine.cores
        )
        self.cores, self.mesh = self._program.cores, self._program.mesh
        self._flight = FlightRecorder(job.board, self.manifest, engine.flight)
        self._lookout = Lookout(Watchdog(job.board, self.manifest, engine.timeout), self._stalled)
        self._new = True  # whether no call has compared the arguments of all ranks yet
        self._lock = new_reentrant_lock()
        job.at_end(self._program.close)

    def run_arrays(self, values: Sequence[object], fixed: int = 0) -> list[Array]:
        """Run once on arrays; return the own parts of the results. Every rank makes this call.

        values: Arrays that lie right, or whole NumPy arrays, the same on all ranks: the first call compares them.
        fixed: of no meaning here.
        """
        with self._lock:
            arrays, donated = laid_out(self, values), self.manifest.donated
            self.job.agree(self._hash, lambda: f"call {self.called}")
            if self._new:
                current.check_same(self.mesh, self._whole(values), self.called)
                self._new = False
            row = [
                array.given_up()[0] if index in donated else array.here[0]
                for index, array in enumerate(arrays)
            ]
            inputs, outputs = bind_row(self.manifest, self.rank, row)
            table = self._program.table.bound(inputs, outputs)
            if self.heard_by is not WATCHERS.newest:
                told_begins(self)
            self._execute(int(table.ctypes.data))
            return collect(self, [outputs])

    def _whole(self, values: Sequence[object]) -> dict[str, Values]:
        """Return the arguments that every rank gives as a whole."""
        named = zip(self.manifest.inputs, values, strict=True)
        return {f"argument {p.name}": np.asarray(v) for p, v in named if not isinstance(v, Array)}

    def run(self, inputs: Sequence[Sequence[Values]], fixed: int = 0) -> list[list[Values]]:
        """Refuse: the parts of other ranks are in other processes."""
        raise self._refusal()

    def bind(self, inputs: Sequence[Sequence[Values]]) -> Any:
        """Refuse, as `run` does."""
        raise self._refusal()

    def _refusal(self) -> MeshweaveError:
        return MeshweaveError(
            f"{self.called}: in a job of {self.job.size} processes a program is called with Arrays: "
            "the parts of other ranks are not in this process"
        )

    def _execute(self, context: int) -> None:
        board = self.job.board
        board.trace(self.rank, self._program.marks_at)  # all programs of the job have one board
        board.begin(self.rank)
        self._lookout.begin()
        code, raised = 0, None
        try:
            code = self._program.step(context)
        except RankError as error:  # of a function of Python
            raised = error
        self._lookout.end()
        board.end(self.rank)
        if code:
            line = fault(self.manifest, self.rank, code, code_meaning(code))
            self.job.fail(self._flight.written("failure", line))
        if PYTHON in self.manifest.libraries:
            self._raise_together(raised)

    def _raise_together(self, own: RankError | None) -> None:
        """Raise on every rank what a function of Python has raised on some: all have zeros from it."""
        told = self.job.all_gather(own and str(own))
        if own is not None:
            raise own
        if any(told):
            raise RankError(next(line for line in told if line))

    def _stalled(self, line: str) -> NoReturn:
        self.job.fail(self._flight.written("timeout", line))

    def close(self) -> None:
        """Free nothing yet: the other ranks may still call it. `Job.leave` frees all programs, on all ranks."""
