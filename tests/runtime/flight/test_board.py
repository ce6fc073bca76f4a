"""What is read off the status board: what each rank announced last, and what the system says of its process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshweave.abi import StatusRow
from meshweave.bundle import OpInfo
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import account, stragglers
from meshweave.runtime.flight.processes import (
    ALIVE,
    DEAD,
    STOPPED,
    UNKNOWN,
    began,
    exit_status,
    process_state,
)
from meshweave.runtime.processes.launcher import how_ended


def announce(board: StatusBoard, rank: int, op: int, half: int = 0, ended: bool = True) -> None:
    """What compiled code does around a collective."""
    row = board.rows[rank]
    row[StatusRow.RING + row[StatusRow.STARTED] % StatusRow.ENTRIES] = op + half
    row[StatusRow.STARTED] += 1
    row[StatusRow.ENDED] += ended


@given(st.lists(st.integers(1, 1 << 20), max_size=600), st.booleans())
def test_the_ring_holds_the_last_collectives_in_order(ops: list[int], ended: bool) -> None:
    board = StatusBoard.private(2)
    board.begin(1)
    for index, op in enumerate(ops):
        announce(board, 1, op, ended=ended or index < len(ops) - 1)
    last = board.record(1)
    told = list(enumerate(ops, 1))[-StatusRow.ENTRIES :]
    assert [(entry.sequence, entry.op) for entry in last.entries] == told
    assert last.count == len(ops) and board.record(0).entries == ()
    assert (last.op, last.in_collective) == (ops[-1] if ops else 0, bool(ops) and not ended)
    assert [entry.ended for entry in last.entries] == [*[True] * (len(told) - 1), ended][
        : len(told)
    ]


def test_halves_of_async_collectives_are_told() -> None:
    board = StatusBoard.private(1)
    board.begin(0)
    announce(board, 0, 1, StatusRow.START)
    announce(board, 0, 2)
    announce(board, 0, 1, StatusRow.WAIT, ended=False)
    entries = board.record(0).entries
    assert [(e.op, e.half, e.ended) for e in entries] == [
        (1, "start", True), (2, "", True), (1, "wait", False),
    ]  # fmt: skip


def test_the_next_call_forgets_no_collective() -> None:
    board = StatusBoard.private(1)
    for _ in range(3):
        board.clear()
        board.begin(0)
        announce(board, 0, 1)
        board.end(0)
    record = board.record(0)
    assert (record.count, record.calls, len(record.entries)) == (3, 3, 3)
    board.reset()
    assert board.record(0).entries == ()


def until(state: str, pid: int, since: int) -> tuple[str, str]:
    """What the system says of a process, once it is in a state."""
    end = time.monotonic() + 60
    while (found := process_state(pid, since))[0] != state and time.monotonic() < end:
        time.sleep(0.01)
    return found


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield child
    child.kill()
    child.wait()


def test_what_the_system_says_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    pid, since = sleeper.pid, began(sleeper.pid)
    assert process_state(pid, since) == (ALIVE, "")
    os.kill(pid, signal.SIGSTOP)
    assert until(STOPPED, pid, since) == (STOPPED, "")
    os.kill(pid, signal.SIGKILL)
    assert until(DEAD, pid, since) == (DEAD, "Killed (signal 9)")  # nobody has asked for it yet
    sleeper.wait()
    assert process_state(pid, since) == (DEAD, "")


def test_the_status_of_a_process_is_told_before_its_parent_has_asked_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    pid, since, handle = child.pid, began(child.pid), os.pidfd_open(child.pid)
    assert exit_status(pid, since, handle) is None
    child.kill()
    assert select.select([handle], [], [], 60)[0]
    assert exit_status(pid, since, handle) == -signal.SIGKILL
    child.wait()
    assert exit_status(pid, since, handle) in (-signal.SIGKILL, None)  # None: on older systems
    os.close(handle)


def test_another_process_of_the_same_number_is_not_the_rank() -> None:
    assert process_state(os.getpid(), began(os.getpid())) == (ALIVE, "")
    assert process_state(os.getpid(), began(os.getpid()) - 1) == (DEAD, "")
    assert process_state(0, 0) == (UNKNOWN, "")


@pytest.mark.parametrize(
    ("status", "said"), [(0, ""), (3, "status 3"), (-11, "Segmentation fault (signal 11)")]
)
def test_how_a_process_ended(status: int, said: str) -> None:
    assert how_ended(status) == said


def op(number: int) -> OpInfo:
    return OpInfo(number, "reduce", f"a.mlir:{number}:1")


def test_a_stopped_rank_in_the_same_op_as_the_others_is_named(
    sleeper: subprocess.Popen[bytes],
) -> None:
    board = StatusBoard.private(3)
    for rank in range(3):
        board.begin(rank)
        announce(board, rank, 1, ended=False)
    assert len(stragglers(board.records())) == 3  # nothing tells them apart yet
    board.rows[1, StatusRow.PID] = sleeper.pid
    board.rows[1, StatusRow.BORN] = began(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    until(STOPPED, sleeper.pid, began(sleeper.pid))
    assert account(board.records(), op) == (
        "rank 1 is stopped, last seen: in reduce at a.mlir:1:1; ranks 0 and 2 are in reduce at a.mlir:1:1"
    )
    sleeper.kill()
    until(DEAD, sleeper.pid, began(sleeper.pid))
    assert account(board.records(), op).startswith(
        "rank 1 died (Killed (signal 9)), last seen: in reduce at a.mlir:1:1; ranks 0 and 2 are in"
    )
