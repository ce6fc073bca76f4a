"""The `mpi` engine: a process per rank; the compiled code of each calls MPI.

`MpiEngine` is for any Python program: it starts the ranks under `mpiexec` and keeps them for the
next bundle. `run_inside` is for a program that the user has started under an `mpiexec` of their
own, on any number of hosts. Neither needs mpi4py to be imported by this module: the ranks do that.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshweave import errors
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.layout import Mesh
from meshweave.runtime.inside import InsideProgram
from meshweave.runtime.launch import Death, Failure, Ranks, Silence
from meshweave.runtime.limits import check_memory, check_ranks
from meshweave.runtime.program import Values, buffer_bytes, check_all, place_buffers
from meshweave.runtime.watchdog import StatusBoard, Watchdog, together
from meshweave.runtime.window import wanted

START_SECONDS = 60.0
_numbers = itertools.count(1)


class MpiEngine:
    """Runs bundles in processes under `mpiexec`, started at the first load and kept until `close`
    or the program's end.

    timeout: seconds without progress of any rank, while one waits, after which a run ends with
    RankError. To start and to load a program the ranks get START_SECONDS. window: whether
    collectives go through shared memory (True) or by MPI's own (False, slower, for comparison);
    by default, unless MESHWEAVE_MPI_WINDOW=0 is in the environment.
    """

    name = "mpi"

    def __init__(self, timeout: float = 60.0, window: bool | None = None) -> None:
        self.timeout = timeout
        self.window = wanted(window)
        self.busy = threading.RLock()
        self._jobs: dict[int, Ranks] = {}

    def load(self, bundle: Bundle) -> MpiExecutable:
        """Load a bundle compiled for this engine on as many ranks as its mesh has.

        Raises MeshweaveError when it is another's or cannot be loaded, RankError when the ranks
        cannot be started.
        """
        if bundle.manifest.engine != self.name:
            raise MeshweaveError(
                f'the bundle is for engine "{bundle.manifest.engine}", not "{self.name}"'
            )
        return MpiExecutable(self, bundle)

    def job(self, nranks: int) -> Ranks:
        """The running ranks for meshes of this size; new ones when there are none (any more)."""
        with self.busy:
            if nranks not in self._jobs or not self._jobs[nranks].alive:
                self._jobs[nranks] = Ranks(nranks, START_SECONDS)
            return self._jobs[nranks]

    def close(self) -> None:
        """End all ranks."""
        with self.busy:
            for job in self._jobs.values():
                job.close()
            self._jobs = {}


class _Memory:
    """Memory that can be handed to other processes: nothing of it is in the file system, so
    nothing is left behind.
    """

    def __init__(self, nbytes: int) -> None:
        self.file = os.memfd_create("meshweave")
        weakref.finalize(self, os.close, self.file)
        try:
            os.ftruncate(self.file, nbytes)
            self.map = mmap.mmap(self.file, nbytes)
        except (OSError, OverflowError, ValueError):
            raise MeshweaveError(f"no memory for buffers of {nbytes} bytes") from None


class MpiExecutable:
    """A program on the ranks of its mesh. After a failed run the ranks are started anew by the
    next one.
    """

    def __init__(self, engine: MpiEngine, bundle: Bundle) -> None:
        self.engine, self.bundle, self.manifest = engine, bundle, bundle.manifest
        self.mesh = Mesh.parse(self.manifest.mesh)
        check_ranks(self.manifest.engine, self.mesh)
        check_memory(self.manifest)
        self.timeout = engine.timeout
        self._job: Ranks | None = None
        self._number = 0
        self._scratch: MpiCall | None = None
        self.through_window = False  # whether all groups of ranks meet in shared memory
        self.attach()

    @property
    def pids(self) -> list[int]:
        """The ranks' processes."""
        return [] if self._job is None else self._job.pids

    def run(self, inputs: Sequence[Sequence[Values]]) -> list[list[Values]]:
        """Run once. inputs[rank][i] are local arrays; returns the outputs in the same way, newly
        made.

        Raises MeshweaveError for arrays that do not fit, RankError when a rank raises, dies or
        stalls.
        """
        rows = check_all(self.manifest.inputs, "input", self.mesh.nranks, inputs)
        with self.engine.busy:
            if self._scratch is None or not self._scratch.alive:
                self._scratch = MpiCall(self)
            self._scratch.fill(rows)
            self._scratch()
            return [[value.copy() for value in row] for row in self._scratch.outputs]

    def bind(self, inputs: Sequence[Sequence[Values]]) -> MpiCall:
        """A call on fixed buffers, to be made many times: `call.inputs` hold copies of `inputs`,
        in memory shared with the ranks; `call.outputs` are what the ranks write.
        """
        rows = check_all(self.manifest.inputs, "input", self.mesh.nranks, inputs)
        call = MpiCall(self)
        call.fill(rows)
        return call

    def close(self) -> None:
        """Take the program off the ranks."""
        with self.engine.busy:
            if self._job is not None and self._job.alive:
                self.ask(self._job, [{"do": "unload", "program": self._number}] * self.mesh.nranks)
            self._job = self._scratch = None

    def attach(self) -> tuple[Ranks, int]:
        """The ranks, with this program loaded, and its number there."""
        with self.engine.busy:
            job = self.engine.job(self.mesh.nranks)
            if job is not self._job:
                self._memory = _Memory(StatusBoard.nbytes(self.mesh.nranks))
                self.board = StatusBoard(self._memory.map, self.mesh.nranks)
                self._number = next(_numbers)
                answers = self.ask(
                    job,
                    [self._loading()] * self.mesh.nranks,
                    self.bundle.to_bytes(),
                    [[self._memory.file]] * self.mesh.nranks,
                )
                self._job = job
                self.through_window = all(answer["window"] for answer in answers)
            return job, self._number

    def _loading(self) -> dict[str, Any]:
        return {"do": "load", "program": self._number, "window": self.engine.window}

    def ask(
        self,
        job: Ranks,
        messages: Sequence[dict[str, Any]],
        payload: bytes = b"",
        files: Sequence[Sequence[int]] = (),
        watch: Callable[[float], str | None] | None = None,
    ) -> list[dict[str, Any]]:
        """Send each rank its message and wait for all answers; whatever goes wrong ends the job.

        watch: ends the wait by returning a line; by default after START_SECONDS.
        """
        with self.guard(job):
            job.post(messages, payload, files)
            return job.answers(watch or self._deadline(messages[0]["do"]))

    @contextlib.contextmanager
    def guard(self, job: Ranks) -> Iterator[None]:
        """Whatever goes wrong within ends the job; what a rank did wrong is raised as one line."""
        try:
            yield
        except Death as death:
            raise self._dead(job, death) from None
        except Failure as failure:
            job.kill()
            kind = getattr(errors, failure.kind, RankError)
            who = f"rank {failure.rank}"
            line = failure.line
            raise kind(line if line.startswith(f"{who} ") else f"{who}: {line}") from None
        except Silence as silence:
            job.kill()
            raise RankError(str(silence)) from None
        except BaseException:  # Ctrl-C among them
            job.kill()
            raise

    def _dead(self, job: Ranks, death: Death) -> RankError:
        """End the job of which a rank has died; the error says where all ranks were."""
        where = self.board.where(self.manifest, death.rank)
        others = [rank for rank in range(self.mesh.nranks) if rank != death.rank]
        tail = f"; {together(self.board, self.manifest, others)}" if others else ""
        job.kill()
        return RankError(f"rank {death.rank} {death.how}, last seen: {where}{tail}")

    def _deadline(self, what: str) -> Callable[[float], str | None]:
        end = time.monotonic() + START_SECONDS
        line = f"the ranks gave no answer to {what} within {START_SECONDS:g} s"
        return lambda now: line if now > end else None


class MpiCall:
    """A program bound to memory that the ranks share with this process. Calling it runs all
    ranks once.
    """

    def __init__(self, executable: MpiExecutable) -> None:
        self._executable = executable
        manifest, nranks = executable.manifest, executable.mesh.nranks
        nbytes = -(-buffer_bytes(manifest) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = _Memory(nbytes * nranks)  # one for all: the ranks read each other's
        whole = memoryview(self._memory.map)
        parts = [whole[rank * nbytes : (rank + 1) * nbytes] for rank in range(nranks)]
        placed = [place_buffers(manifest, part) for part in parts]
        self.inputs = [inputs for inputs, _ in placed]
        self.outputs = [outputs for _, outputs in placed]
        self.seconds = [0.0] * nranks  # what `step` took on each rank the last time
        self._number = next(_numbers)
        with executable.engine.busy:
            self._job, program = executable.attach()
            message = {"do": "bind", "call": self._number, "program": program, "nbytes": nbytes}
            with executable.guard(self._job):
                self._job.post([message] * nranks, files=[[self._memory.file]] * nranks)
        weakref.finalize(self, self._job.forget.append, self._number)

    @property
    def alive(self) -> bool:
        """Whether the ranks that it was bound on still run."""
        return self._job.alive

    def fill(self, rows: Sequence[Sequence[Values]]) -> None:
        """Copy input values to the ranks."""
        for row, given in zip(self.inputs, rows, strict=True):
            for place, value in zip(row, given, strict=True):
                place[...] = value

    def __call__(self) -> None:
        """Run. Raises RankError when a rank raises, dies or stalls, or when an earlier failure
        has ended the ranks.
        """
        executable = self._executable
        with executable.engine.busy:
            if not self.alive:
                raise RankError("the ranks of this call have ended: bind the program again")
            executable.board.clear()
            watchdog = Watchdog(executable.board, executable.manifest, executable.timeout)
            watchdog.start(time.monotonic())
            messages = [{"do": "run", "call": self._number}] * executable.mesh.nranks
            answers = executable.ask(self._job, messages, watch=watchdog.report)
            self.seconds = [float(answer["seconds"]) for answer in answers]


def run_inside(
    bundle: Bundle, inputs: Sequence[Values], timeout: float = 60.0, window: bool | None = None
) -> list[Values]:
    """Run a bundle once as one rank of the `mpiexec` job that this process belongs to; every rank
    makes this call.

    inputs: this rank's local arrays. Returns this rank's outputs. COMM_WORLD must have as many
    ranks as the mesh. A rank that fails or stalls for `timeout` seconds ends the whole job with
    status 3 and one line on stderr. window: as for MpiEngine.
    """
    program = InsideProgram(bundle, timeout, window)
    try:
        return program.run(inputs)
    finally:
        program.close()
