"""A run that ends in a fault leaves a dump, and what reads it names the rank that held the others up."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime.programs import ENGINES, on_rank, sleeps
from runtime.test_failures import failing, inputs, returns

import meshweave as mw
from meshweave.errors import RankError, UsageError
from meshweave.runtime import engine
from meshweave.runtime.engine import Engine, Executable
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.dump import read_dumps
from meshweave.runtime.flight.faults import Fault, faults
from meshweave.runtime.mpi.engine import MpiEngine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "flight"


def recording(name: str, folder: Path, times: int) -> Engine:
    """An engine of `runtime.programs.ENGINES` that records to a folder."""
    if name == "library":
        return MpiEngine(1.5 * times, window=False, flight=str(folder))
    return engine(name, timeout=1.5 * times, flight=str(folder))


@pytest.fixture(params=ENGINES)
def either(request: pytest.FixtureRequest, folder: Path, times: int) -> Iterator[Engine]:
    made = recording(request.param, folder, times)
    yield made
    made.close()


@pytest.fixture(params=ENGINES[1:])
def ranks(request: pytest.FixtureRequest, folder: Path, times: int) -> Iterator[Engine]:
    made = recording(request.param, folder, times)
    yield made
    made.close()


def told(folder: Path) -> Fault:
    """The only fault that a folder tells of."""
    dumps, errors = read_dumps([str(folder)])
    (fault,) = faults(dumps)
    assert not errors
    return fault


def history(fault: Fault, rank: int) -> list[tuple[int, str, int, bool]]:
    """The collectives of a rank: number, place, bytes, whether ended."""
    op = fault.dumps[0].op
    return [
        (e.sequence, op(e.op).location, op(e.op).bytes, e.ended) for e in fault.ranks[rank].entries
    ]


def board_of(executable: Executable) -> StatusBoard:
    board = getattr(executable, "board", None) or getattr(executable, "_board", None)
    assert isinstance(board, StatusBoard)
    return board


def when(holds: Callable[[], bool], action: Callable[[], None]) -> None:
    """Act, from a thread, once something holds."""

    def wait() -> None:
        while not holds():
            time.sleep(0.01)
        action()

    threading.Thread(target=wait, daemon=True).start()


def test_a_timeout_leaves_a_dump(either: Engine, folder: Path, times: int) -> None:
    executable = either.load(failing(either.name, on_rank(2, sleeps(40 * times), "s")))
    with pytest.raises(RankError, match=r"rank 2 computes.*; flight recorder: ") as caught:
        executable.run(inputs())
    (path,) = folder.iterdir()
    assert str(caught.value).endswith(f"; flight recorder: {path}")
    fault = told(folder)
    assert fault.dumps[0].reason == "timeout"
    assert [rank.rank for rank in fault.stragglers] == [2]
    ended = (1, "test.mlir:1:1", 256, True)
    assert history(fault, 2) == [ended]
    assert history(fault, 0) == history(fault, 1) == [ended, (2, "test.mlir:3:1", 768, False)]


def test_a_failure_leaves_a_dump(either: Engine, folder: Path) -> None:
    bundle = failing(either.name, on_rank(1, returns((3 << 16) | 5), "r"))
    with pytest.raises(RankError, match=r"^rank 1 failed in mw_all_gather at test.mlir:3:1: "):
        either.load(bundle).run(inputs())
    assert told(folder).dumps[0].reason == "failure"


def test_each_fault_of_a_program_leaves_its_own(folder: Path) -> None:
    executable = engine("local", flight=folder).load(
        failing("local", on_rank(1, returns((3 << 16) | 5), "r"))
    )
    for _ in range(3):
        with pytest.raises(RankError):
            executable.run(inputs())
    dumps, _ = read_dumps([str(folder)])
    assert len(faults(dumps)) == 3
    assert all(rank.calls == 1 for dump in dumps for rank in dump.ranks)  # each begins anew


def test_a_rank_that_is_stopped_in_the_op_of_the_others_is_named(
    ranks: Engine, folder: Path, times: int
) -> None:
    executable = ranks.load(failing("mpi", on_rank(0, sleeps(times), "s")))
    board = board_of(executable)
    when(
        lambda: all(board.record(rank).op == 3 for rank in (1, 2)),
        lambda: os.kill(executable.pids[1], signal.SIGSTOP),
    )
    line = (
        r"no progress for .* s: rank 1 is stopped, last seen: in mw_all_gather at test.mlir:3:1; "
        r"ranks 0 and 2 (are in mw_all_gather at test.mlir:3:1|have returned); flight recorder: "
    )
    with pytest.raises(RankError, match=line):
        executable.run(inputs())
    fault = told(folder)
    (stopped,) = fault.stragglers
    assert (stopped.rank, stopped.process) == (1, "stopped")
    assert {rank.op for rank in fault.ranks} == {3}


def test_a_rank_that_is_killed_leaves_a_dump(ranks: Engine, folder: Path, times: int) -> None:
    executable = ranks.load(failing("mpi", on_rank(0, sleeps(40 * times), "s")))
    board, pid = board_of(executable), executable.pids[2]
    when(
        lambda: board.record(2).in_collective and board.record(2).op == 3,
        lambda: os.kill(pid, signal.SIGKILL),
    )
    with pytest.raises(RankError, match=r"^rank 2 died .*signal 9.*, last seen: in mw_all_gather"):
        executable.run(inputs())
    fault = told(folder)
    assert [(rank.rank, rank.process, rank.pid) for rank in fault.stragglers] == [(2, "dead", pid)]
    assert fault.dumps[0].reason == "death"


def test_ctrl_c_leaves_a_dump(either: Engine, folder: Path, times: int) -> None:
    executable = either.load(failing(either.name, on_rank(0, sleeps(2 * times), "s")))
    board = board_of(executable)

    def waits() -> bool:
        first = board.record(0)
        return board.record(1).op == 3 and first.op == 1 and not first.in_collective

    when(waits, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        while True:  # the thread may be late
            executable.run(inputs())
    fault = told(folder)
    assert fault.dumps[0].reason == "signal"
    assert re.match("ended by KeyboardInterrupt: rank 0 computes, after", fault.dumps[0].line)


def test_a_run_that_is_right_writes_nothing(either: Engine, folder: Path) -> None:
    executable = either.load(failing(either.name, ""))
    assert executable.run(inputs())[0][0][0] == 3.0
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"flight: .*file: cannot be made: File exists"):
        engine("local", flight=tmp_path / "file")


def test_programs_take_the_folder_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    taken = str(tmp_path / "file")
    with pytest.raises(UsageError, match="file: cannot be made"):
        mw.compile(text, flight=taken)
    with pytest.raises(UsageError, match="file: cannot be made"):
        mw.jit(lambda x: x + x, flight=taken)(1.0)


def test_a_dump_that_cannot_be_written_does_not_hide_the_fault(folder: Path) -> None:
    bundle = failing("local", on_rank(1, returns((3 << 16) | 5), "r"))
    executable = engine("local", flight=folder).load(bundle)
    folder.rmdir()
    folder.write_text("")
    line = r"^rank 1 failed in mw_all_gather .*; flight recorder: cannot be written: File exists"
    with pytest.raises(RankError, match=line):
        executable.run(inputs())
