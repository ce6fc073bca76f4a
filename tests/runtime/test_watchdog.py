"""The watchdog: who holds the others up, said in one line; progress and computing are no stall."""

from __future__ import annotations

import pytest

from meshweave.abi import StatusRow
from meshweave.bundle import Manifest, OpInfo
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.diagnosis import named
from meshweave.runtime.flight.records import ELSEWHERE, LEFT
from meshweave.runtime.watchdog import WAITING, Watchdog

OPS = tuple(OpInfo(n, name, f"a.mlir:{n}:1") for n, name in enumerate(("reduce", "gather"), 1))
MANIFEST = Manifest("x=4", "local", (), (), 0, ops=OPS)


@pytest.fixture
def board():
    made = StatusBoard(bytearray(StatusBoard.nbytes(4)), 4)
    for rank in range(4):
        made.begin(rank)
    return made


def at(board, rank, op, within, count=None):
    """Write the row of a rank as its compiled code does. count: of collectives so far; by default one for each op."""
    count = op if count is None else count
    board.rows[rank, StatusRow.RING + count - 1] = op
    board.rows[rank, [StatusRow.STARTED, StatusRow.ENDED]] = (count, count - within)


def report(board, seconds=5.0, stated=2.0):
    dog = Watchdog(board, MANIFEST, stated)
    dog.start(0.0)
    return dog.report(seconds)


def test_the_rank_that_waits_for_nobody_is_named_first(board):
    for rank in (0, 1, 3):
        at(board, rank, 2, True)
    at(board, 2, 1, False)
    assert report(board) == (
        "no progress for 2 s: rank 2 computes, after reduce at a.mlir:1:1; "
        "ranks 0, 1 and 3 are in gather at a.mlir:2:1"
    )


def test_nothing_is_said_before_the_limit(board):
    at(board, 0, 1, True)
    assert report(board, 1.9) is None


def test_progress_starts_the_clock_again(board):
    at(board, 0, 1, True)
    dog = Watchdog(board, MANIFEST, 2.0)
    dog.start(0.0)
    at(board, 0, 1, False)
    assert dog.report(3.0) is None
    at(board, 0, 2, True)
    assert dog.report(4.5) is None
    assert dog.report(6.0) is None
    assert dog.report(6.6) is not None


def test_a_stated_limit_means_ranks_that_compute_too(board):
    assert (
        report(board)
        == "no progress for 2 s: ranks 0, 1, 2 and 3 compute, before the first collective"
    )


def test_ranks_that_all_compute_do_not_stall_where_no_limit_is_stated(board):
    assert report(board, 1000.0, stated=None) is None
    at(board, 0, 1, True)
    assert report(board, WAITING - 1, stated=None) is None
    assert report(board, WAITING + 1, stated=None).startswith("no progress for 60 s: ")


def test_a_rank_that_others_have_left_behind_stalls(board):
    for rank in (1, 2, 3):
        board.end(rank)
    assert report(board) == (
        "no progress for 2 s: rank 0 computes, before the first collective; "
        "ranks 1, 2 and 3 have returned"
    )


def test_a_rank_that_never_began_stalls(board):
    board.clear()
    for rank in (0, 1, 2):
        board.begin(rank)
        at(board, rank, 1, True)
    assert report(board).startswith("no progress for 2 s: rank 3 has not begun; ranks 0, 1 and 2")


def test_of_ranks_in_different_collectives_the_furthest_behind_is_named(board):
    for rank in range(3):
        at(board, rank, 2, True)
    at(board, 3, 1, True)
    assert report(board).startswith("no progress for 2 s: rank 3 is in reduce at a.mlir:1:1; ranks")


def test_a_rank_that_has_run_fewer_rounds_of_a_loop_is_named(board):
    for rank, count in enumerate((7, 7, 5, 7)):
        at(board, rank, 1, True, count)
    assert report(board) == (
        "no progress for 2 s: rank 2 is in reduce at a.mlir:1:1 (collective 5); "
        "ranks 0, 1 and 3 are in reduce at a.mlir:1:1 (collective 7)"
    )


def test_each_round_of_a_loop_is_progress(board):
    at(board, 0, 1, True, 1)
    dog = Watchdog(board, MANIFEST, 2.0)
    dog.start(0.0)
    at(board, 0, 1, True, 2)
    assert dog.report(3.0) is None


def test_a_rank_that_has_not_made_the_call_of_the_others_is_named(board):
    for rank in range(4):
        at(board, rank, 2, False)
        board.end(rank)
    for rank in (0, 1, 3):
        board.begin(rank)
        at(board, rank, 1, True, 3)
    assert report(board) == (
        "no progress for 2 s: rank 2 has returned (call 1); "
        "ranks 0, 1 and 3 are in reduce at a.mlir:1:1 (call 2)"
    )


def test_a_rank_that_has_left_before_the_call_of_the_others_is_named(board):
    board.mark(2, LEFT)
    for rank in (0, 1, 3):
        board.begin(rank)
        at(board, rank, 1, True)
    assert report(board) == (
        "no progress for 2 s: rank 2 has left the job; ranks 0, 1 and 3 are in reduce at a.mlir:1:1"
    )


def test_a_rank_that_has_left_waits_for_none(board):
    board.mark(2, LEFT)
    assert report(board, 1000.0, stated=None) is None  # the others compute


def test_all_in_one_collective_are_named_together(board):
    for rank in range(4):
        at(board, rank, 1, True)
    assert report(board) == "no progress for 2 s: ranks 0, 1, 2 and 3 are in reduce at a.mlir:1:1"


def test_ranks_of_other_hosts_are_not_blamed(board):
    for rank in (0, 1):
        at(board, rank, 1, True)
    for rank in (2, 3):
        board.mark(rank, ELSEWHERE)
    line = report(board)
    assert line.startswith("no progress for 2 s: ranks 0 and 1 are in reduce")
    assert line.endswith("ranks 2 and 3 are on another host")


def test_many_ranks_are_counted():
    assert named(range(20)) == "ranks 0, 1, 2, 3, 4, 5 and 14 more"
