"""What compiled programs write in the ring: each collective, in order, with the bytes that the program states."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from commands import meshweave, start
from depth import sampled

import meshweave as mw
from meshweave.abi import StatusRow
from meshweave.api.program import Program
from meshweave.errors import RankError
from meshweave.runtime.flight.dump import read_dumps
from meshweave.runtime.flight.faults import faults
from meshweave.runtime.flight.records import RankRecord
from meshweave.simulator.driver.recorder import InjectedFailure
from meshweave.simulator.engine import EmulateEngine


def record_of(program: Program) -> RankRecord:
    executable = program.executable
    board = getattr(executable, "board", None) or executable._board
    return board.record(1)


def loop(x, w):
    """A collective in each round of a loop."""
    return mw.scan(lambda carry, _: (carry @ w, ()), x, None, length=14)[0]


@pytest.mark.parametrize("name", ["local", "emulate"])
def test_each_round_of_a_loop_is_a_collective_of_its_own(name):
    calls = 2 if name == "emulate" else 20  # on local the ring comes round
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
    assert per_call >= 14 and record.calls == calls and record.count == calls * per_call
    assert all(entry.ended for entry in record.entries)
    last = [manifest.op(entry.op).bytes for entry in record.entries[-per_call:]]
    assert last == [each.bytes for each in manifest.collectives]


def endless(x, w):
    """More rounds than anyone waits for."""
    return mw.scan(lambda carry, _: (carry @ w, ()), x, None, length=1 << 40)[0]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The file of an endless program for engine local."""
    x, w = np.ones((4, 4), "f4"), np.eye(4, dtype="f4")
    made = mw.jit(endless, mesh="x=2", in_layouts=("[_, x]", "[x, _]"), out_layouts="[_, x]")
    path = tmp_path_factory.mktemp("endless") / "endless.mwb"
    made.lower(x, w).compile().program.bundle.write(path)
    return path


@sampled(2)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_ended_leaves_a_dump(bundle, tmp_path, number, status):
    folder = tmp_path / "flight"
    for seconds in (1.5, 5, 15, 60):  # until it has come to the run
        command = start("meshweave", "run", bundle, "--flight", folder)
        time.sleep(seconds)
        os.killpg(command.pid, number)
        out, _ = command.communicate(timeout=100)
        if os.path.isdir(folder) and os.listdir(folder):
            break
    assert (command.returncode, out) == (status, "")
    done = meshweave("doctor", "--dump", folder)
    assert done.status == 0 and done.out.startswith("signal on ")
    (fault,) = faults(read_dumps([str(folder)])[0])
    for rank in fault.ranks:
        assert {entry.op for entry in rank.entries} <= {1}
        assert len(rank.entries) == min(rank.count, StatusRow.ENTRIES)


def test_a_rank_of_an_emulated_gpu_that_fails_leaves_a_dump(tmp_path):
    folder = tmp_path / "flight"
    x, w = np.ones((4, 4), "f4"), np.eye(4, dtype="f4")
    layouts = {"in_layouts": ("[_, x]", "[x, _]"), "out_layouts": "[_, x]"}
    bundle = (
        mw.jit(loop, mesh="x=2", engine="emulate", **layouts).lower(x, w).compile().program.bundle
    )
    sums = [info.op for info in bundle.manifest.collectives]
    assert set(sums) == {"reduce_scatter"}
    runner = EmulateEngine(failures=[InjectedFailure(1, 2, 2, "ncclReduceScatter")], flight=folder)
    with (
        Program(bundle, runner) as program,
        pytest.raises(RankError, match=r"rank 1 failed in .*; flight recorder: "),
    ):
        program(x, w)
    (fault,) = faults(read_dumps([str(folder)])[0])
    assert fault.dumps[0].reason == "failure"
    assert not fault.ranks[1].entries[-1].ended
