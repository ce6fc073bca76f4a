"""A rank that raises, dies or stalls ends the run in time: rank, op, place; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest.mock import patch

import numpy as np
import pytest
from depth import sampled, some
from runtime.programs import ENGINES, CallOf, exits, on_rank, program, sleeps, started

from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime import engine
from meshweave.runtime.mpi.engine import MpiEngine
from meshweave.runtime.processes.shared_files import mpi_memory

COUNT = 256
EXTERNALS = ("sleep", "_exit")
FIRST = CallOf("mw_all_reduce_sum_f32", 0, ("input", 0), ("output", 0), (COUNT,))
SECOND = CallOf("mw_all_gather", 0, ("input", 0), ("output", 1), (COUNT * 4,))


def failing(name, text, ranks=3):
    """all_reduce, then `text`, then all_gather."""
    ports = [("f32", (COUNT,)), ("f32", (ranks * COUNT,))]
    return program(
        f"x={ranks}", name, [("x",)], ports[:1], ports, [FIRST, text, SECOND], externals=EXTERNALS
    )


def inputs(ranks=3):
    return [[np.ones(COUNT, "f4")] for _ in range(ranks)]


def returns(code):
    """Text that leaves `step` with a code."""
    return f"""
  %bad = llvm.mlir.constant({code} : i32) : i32
  llvm.br ^fail(%bad : i32)
^never:"""


class Traces:
    """What the ranks of this test may leave: processes, memory of their MPI, temporary folders."""

    def __init__(self, folder):
        self.folder = folder
        self.pids, self.memory = set(), set()

    def note(self, pids):
        self.pids |= set(pids)
        self.memory |= set().union(*map(mpi_memory, pids))

    def left(self):
        found = {f"/proc/{pid}" for pid in self.pids} | self.memory
        return {path for path in found if os.path.exists(path)} | set(os.listdir(self.folder))


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """Everything temporary goes to a folder of this test; nothing may be left at its end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    seen = Traces(folder)
    load = MpiEngine.load

    def noting(self, bundle):
        executable = load(self, bundle)
        seen.note(executable.pids)
        return executable

    monkeypatch.setattr(MpiEngine, "load", noting)
    yield seen
    end = time.monotonic() + 60
    while (left := seen.left()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left


@pytest.fixture(params=ENGINES)
def either(request, traces, times):
    made = started(request.param, timeout=1.5 * times)
    yield made
    made.close()


@pytest.fixture(params=ENGINES[1:])
def ranks(request, traces, times):
    made = started(request.param, timeout=1.5 * times)
    yield made
    made.close()


def seconds(action):
    start = time.monotonic()
    action()
    return time.monotonic() - start


def when_running(board, rank, action):
    """Act, from a thread, when a rank computes behind its first collective."""

    def wait():
        while (record := board.record(rank)).op == 0 or record.waits:
            time.sleep(0.01)
        action()

    threading.Thread(target=wait, daemon=True).start()


def test_a_rank_that_fails_is_named_with_op_and_place(either):
    executable = either.load(failing(either.name, on_rank(1, returns((3 << 16) | 5), "r")))
    with pytest.raises(RankError, match=r"rank 1 failed in mw_all_gather at test.mlir:3:1: "):
        executable.run(inputs())


def test_a_failed_program_can_run_again(either):
    bundle = failing(either.name, on_rank(1, returns((3 << 16) | 5), "r"))
    good = failing(either.name, "")
    executable = either.load(good)
    with pytest.raises(RankError):
        either.load(bundle).run(inputs())
    assert executable.run(inputs())[2][0][0] == 3.0


def test_a_rank_that_stalls_is_named_within_the_limit(either, times):
    executable = either.load(failing(either.name, on_rank(2, sleeps(40 * times), "s")))
    line = (
        rf"^no progress for {1.5 * times:g} s: rank 2 computes, after mw_all_reduce_sum_f32 at test.mlir:1:1; "
        r"ranks 0 and 1 are in mw_all_gather at test.mlir:3:1$"
    )

    def run():
        with pytest.raises(RankError, match=line):
            executable.run(inputs())

    assert seconds(run) < 20 * times


def test_a_local_rank_that_never_comes_back_is_given_up(times):
    code = failing("local", on_rank(0, sleeps(40 * times), "s"))
    executable = engine("local", timeout=0.3 * times).load(code)
    with pytest.raises(RankError, match="rank 0 computes"):
        executable.run(inputs())
    with pytest.raises(RankError, match="rank 0 never came back"):
        executable.run(inputs())


def test_long_computing_is_no_stall_unless_a_limit_is_stated(times):
    code = failing("local", sleeps(2 * times))
    with patch("meshweave.runtime.watchdog.WAITING", 0.5):
        assert engine("local").load(code).run(inputs())[0][0][0] == 3.0
        with pytest.raises(RankError, match=r"no progress for .* s: ranks 0, 1 and 2 compute"):
            engine("local", timeout=0.4 * times).load(code).run(inputs())


def test_a_closed_program_says_so():
    executable = engine("local").load(failing("local", ""))
    executable.run(inputs())
    executable.close()
    with pytest.raises(MeshweaveError, match="the program is closed"):
        executable.run(inputs())


def test_a_rank_that_exits_is_named(ranks, times):
    late = sleeps(times, "e") + exits(9, "e")  # the others are in the next collective by then
    executable = ranks.load(failing("mpi", on_rank(1, late, "e")))
    line = (
        r"rank 1 died \(launcher: .*\), last seen: computes, after mw_all_reduce_sum_f32 at "
        r"test.mlir:1:1; ranks 0 and 2 are in mw_all_gather at test.mlir:3:1"
    )
    with pytest.raises(RankError, match=line):
        executable.run(inputs())


@sampled(4)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_is_killed_is_named(ranks, number, times):
    executable = ranks.load(failing("mpi", sleeps(40 * times)))
    when_running(executable.board, 2, lambda: os.kill(executable.pids[2], number))
    line = rf"rank 2 died \(launcher: .*signal {number:d}\)\), last seen: computes"
    with pytest.raises(RankError, match=line):
        executable.run(inputs())


def test_a_rank_that_dies_between_runs_is_noticed_and_replaced(ranks):
    executable = ranks.load(failing("mpi", ""))
    executable.run(inputs())
    os.kill(executable.pids[0], signal.SIGKILL)
    with pytest.raises(RankError, match="rank 0"):
        executable.run(inputs())
    assert executable.run(inputs())[1][0][0] == 3.0


def test_a_rank_that_is_stopped_is_named(ranks, times):
    executable = ranks.load(failing("mpi", ""))
    os.kill(executable.pids[1], signal.SIGSTOP)

    def run():
        with pytest.raises(
            RankError, match=r"no progress for .* s: rank 1 is stopped, last seen: has not begun; "
        ):
            executable.run(inputs())

    assert seconds(run) < 20 * times


def test_a_bound_call_ends_with_its_ranks(ranks):
    executable = ranks.load(failing("mpi", ""))
    call = executable.bind(inputs())
    call()
    ranks.close()
    with pytest.raises(RankError, match="bind the program again"):
        call()


def test_ranks_that_cannot_start_say_why(ranks, monkeypatch):
    monkeypatch.setattr("meshweave.runtime.mpi.engine.mpiexec", lambda: "/bin/false")
    with pytest.raises(RankError, match="the ranks did not start: they wrote nothing"):
        ranks.load(failing("mpi", ""))


def test_a_bundle_of_the_other_engine_is_refused(either):
    other = "mpi" if either.name == "local" else "local"
    with pytest.raises(MeshweaveError, match=f'the bundle is for engine "{other}"'):
        either.load(failing(other, ""))


DRIVER = """
import sys, time
import numpy as np
from runtime.programs import *
from runtime.test_failures import failing, inputs
from meshweave.runtime import engine
ranks = engine("mpi", timeout=20)
executable = ranks.load(failing("mpi", sleeps(20)))
print(*executable.pids, flush=True)
executable.run(inputs())
"""


@pytest.mark.parametrize("number", some([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], 3))
def test_nothing_is_left_when_the_caller_is_ended(number, traces):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = [int(word) for word in driver.stdout.readline().split()]
    traces.note(pids)
    time.sleep(0.5)
    driver.send_signal(number)
    _, said = driver.communicate(timeout=100)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in said


def test_ctrl_c_frees_local_ranks():
    executable = engine("local").load(failing("local", on_rank(0, sleeps(2), "s")))
    when_running(executable._board, 0, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        while True:  # the thread may be late
            executable.run(inputs())
    assert executable.run(inputs())[0][0][0] == 3.0


def test_ctrl_c_is_heard_while_the_only_rank_computes():
    executable = engine("local").load(failing("local", on_rank(0, sleeps(20), "s"), 1))
    when_running(executable._board, 0, lambda: os.kill(os.getpid(), signal.SIGINT))

    def run():
        with pytest.raises(KeyboardInterrupt):
            executable.run(inputs(1))

    assert seconds(run) < 15


def test_the_only_rank_runs_in_the_calling_thread_once_its_calls_are_short():
    executable = engine("local").load(failing("local", "", 1))
    call = executable.bind(inputs(1))
    for _ in range(1000):
        call()
        if call.is_short:
            break
    call()
    assert call.is_short
    assert call.outputs[0][0][0] == 1.0
