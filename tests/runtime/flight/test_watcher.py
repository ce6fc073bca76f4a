"""Ranks under an mpiexec of the user: who died or was stopped is told, written down, and nothing is left behind."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from depth import sampled
from runtime.programs import on_rank, sleeps
from runtime.test_failures import failing

from meshweave.bundle import Bundle
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.dump import read_dumps
from meshweave.runtime.flight.faults import Fault, faults
from meshweave.runtime.flight.processes import stat_words
from meshweave.runtime.mpi.engine import mpiexec
from meshweave.runtime.processes.launch import descendants
from meshweave.runtime.processes.shared_files import mpi_memory

SCRIPT = """
import os, sys, time
import numpy as np
from mpi4py import MPI
from meshweave.bundle import Bundle
from meshweave.runtime.mpi.inside import InsideProgram

what, times, path, folder = sys.argv[1:]
times = int(times)
comm = MPI.COMM_WORLD
timeout = 3.0 * times if what == "stop" else 60.0
program = InsideProgram(Bundle.read(path), timeout=timeout, flight=folder)
pids = comm.gather(os.getpid())
if comm.rank == 0:
    sys.stdout.write(" ".join(map(str, pids)) + "\\n")
    sys.stdout.flush()
call = program.bind([np.ones(256, "f4")])
if what == "raise" and comm.rank == 1:
    time.sleep(times)
    raise ValueError("of the user")
call()
if what == "close":
    program.close()
    time.sleep(1)
"""


class Job:
    """A job of three ranks under mpiexec, and what it may leave behind."""

    def __init__(self, folder: Path, what: str, times: int, bundle: Bundle) -> None:
        self.flight, self.times = folder / "flight", times
        bundle.write(folder / "program.mwb")
        (folder / "script.py").write_text(SCRIPT)
        rank = [sys.executable, "-m", "mpi4py", folder / "script.py", what, str(times)]
        self.process = subprocess.Popen(
            [mpiexec(), "-n", "3", *rank, folder / "program.mwb", self.flight],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.pids = [int(word) for word in self.process.stdout.readline().split()]
        self.files = set().union(*map(mpi_memory, self.pids))
        self.family = set(descendants(self.process.pid))

    def watchers(self) -> list[int]:
        """The processes that look after the ranks: those in a session of their own."""
        ranks = {self.process.pid, *self.pids}
        own = [pid for pid in self.family - ranks if (w := stat_words(pid)) and int(w[3]) == pid]
        return [pid for pid in own if b"watcher" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def wait_until_watched(self, handles: int = 3) -> None:
        """Wait until the watcher holds so many ranks, and ranks 1 and 2 wait in their last collective."""
        end = time.monotonic() + 50 * self.times
        while not self._is_watched(handles):
            assert time.monotonic() < end
            time.sleep(0.01)

    def _is_watched(self, handles: int) -> bool:
        (watcher,) = self.watchers()
        open_files = {}
        for file in Path(f"/proc/{watcher}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                open_files[file] = os.readlink(file)
        boards = [file for file, name in open_files.items() if "/dev/shm/meshweave-" in name]
        if not boards or list(open_files.values()).count("anon_inode:[pidfd]") < handles:
            return False
        try:
            with open(boards[0], "r+b") as opened:
                board = StatusBoard(mmap.mmap(opened.fileno(), StatusBoard.nbytes(3)), 3)
        except FileNotFoundError:
            return False
        return board.record(0).op == 1 and all(board.op_begun(rank) == 3 for rank in (1, 2))

    def ended(self) -> tuple[int, list[str]]:
        """Its status, and the lines that are ours; nothing of it is left then."""
        _, said = self.process.communicate(timeout=300)
        end = time.monotonic() + 60
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left
        lines = [line for line in said.splitlines() if line.startswith("meshweave: ")]
        return self.process.returncode, lines

    def left(self) -> set[str]:
        """Processes and shared memory that are still there."""
        paths = {*self.files, *(f"/proc/{pid}" for pid in self.family)}
        return {path for path in paths if os.path.exists(path)}

    def fault(self) -> Fault:
        """The only fault that was written down."""
        dumps, errors = read_dumps([str(self.flight)])
        (found,) = faults(dumps)
        assert not errors
        return found


@pytest.fixture
def job(tmp_path: Path, times: int) -> Iterator[object]:
    made: list[Job] = []

    def start(what: str, bundle: Bundle) -> Job:
        made.append(Job(tmp_path, what, times, bundle))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        for pid in each.family:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)


WAITING = failing("mpi", on_rank(0, sleeps(1000), "s"))
PLACE = "mw_all_gather at test.mlir:3:1"


@sampled(1)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_is_named(job, victim):
    started = job("run", WAITING)
    assert len(started.watchers()) == 1
    started.wait_until_watched()
    os.kill(started.pids[victim], signal.SIGKILL)
    status, lines = started.ended()
    seen = "computes, after mw_all_reduce_sum_f32 at test.mlir:1:1"
    others = f"rank 1 is in {PLACE}; rank 2 is in {PLACE}"
    if victim:
        first = f"rank 1 died (Killed (signal 9)), last seen: in {PLACE}; rank 0 {seen}; rank 2 is in {PLACE}"
    else:
        first = f"rank 0 died (Killed (signal 9)), last seen: {seen}; ranks 1 and 2 are in {PLACE}"
    (line,) = lines
    assert line.startswith(f"meshweave: {first}; flight recorder: {started.flight}/flight-"), others
    assert status != 0
    fault = started.fault()
    assert [(rank.rank, rank.pid) for rank in fault.stragglers] == [(victim, started.pids[victim])]
    assert fault.dumps[0].reason == "death"


def test_a_rank_that_is_stopped_in_the_op_of_the_others_is_named(job, times):
    started = job("stop", failing("mpi", on_rank(0, sleeps(2 * times), "s")))
    started.wait_until_watched(handles=0)
    os.kill(started.pids[1], signal.SIGSTOP)
    status, lines = started.ended()
    assert status == 3
    (line,) = lines
    assert line.startswith(
        f"meshweave: no progress for {3 * times} s: rank 1 is stopped, last seen: in {PLACE}; "
        f"ranks 0 and 2 are in {PLACE}; flight recorder: {started.flight}/flight-"
    )
    assert [(rank.rank, rank.process) for rank in started.fault().stragglers] == [(1, "stopped")]


def test_the_launchers_end_is_told(job):
    started = job("run", WAITING)
    started.wait_until_watched()
    started.process.send_signal(signal.SIGTERM)
    _, lines = started.ended()
    assert len(lines) == 1 and " died (" in lines[0]
    assert started.fault().dumps[0].reason == "death"


def test_a_rank_that_leaves_the_others_waiting_is_named(job):
    started = job("raise", failing("mpi", ""))
    started.ended()  # this launcher no longer listens when a rank aborts the job
    fault = started.fault()
    assert fault.verdict().startswith("rank 1 has left the job; ranks 0 and 2 are in mw_all_reduce")
    assert [rank.rank for rank in fault.stragglers] == [1]


@sampled(1)
@pytest.mark.parametrize("what", ["run", "close"])
def test_a_job_that_ends_well_says_nothing(job, what):
    started = job(what, failing("mpi", ""))
    assert started.ended() == (0, [])
    assert not started.flight.exists()
