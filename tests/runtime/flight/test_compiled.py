"""What compiled programs write in the ring: each collective, in order, with the bytes that the program states."""

from __future__ import annotations

import numpy as np
import pytest

import meshweave as mw
from meshweave.api.program import Program
from meshweave.runtime.flight.records import RankRecord

CALLS = 300  # enough that a short call is served from compiled code


def record_of(program: Program) -> RankRecord:
    executable = program.executable
    board = getattr(executable, "board", None) or executable._board
    return board.record(1)


def loop(x, w):
    """A collective in each round of a loop."""
    return mw.scan(lambda carry, _: (carry @ w, ()), x, None, length=5)[0]


@pytest.mark.parametrize("name", ["local", "emulate"])
def test_each_round_of_a_loop_is_a_collective_of_its_own(name):
    calls = 3 if name == "emulate" else CALLS
    x, w = np.ones((4, 4), "f4"), np.eye(4, dtype="f4")
    made = mw.jit(
        loop, mesh="x=2", in_layouts=("[_, x]", "[x, _]"), out_layouts="[_, x]", engine=name
    )
    program = made.lower(x, w).compile().program
    for _ in range(calls):
        (result,) = program(x, w)
    assert np.array_equal(result, x)
    record, manifest = record_of(program), program.bundle.manifest
    per_call = len(manifest.collectives)
    assert per_call >= 5 and record.calls == calls and record.count == calls * per_call
    assert all(entry.ended for entry in record.entries)
    last = [manifest.op(entry.op).bytes for entry in record.entries[-per_call:]]
    assert last == [each.bytes for each in manifest.collectives]
