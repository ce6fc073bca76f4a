"""Engine nccl with the recorder in its ranks' processes: start, runs, failures; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest
from depth import sampled
from runtime.gpu.programs import Launch, program

import meshweave as mw
from meshweave.errors import MeshweaveError, RankError
from meshweave.runtime import engine
from meshweave.runtime.gpu import launcher as launching
from meshweave.runtime.gpu.engine import NcclEngine

N = 64


def recorded_launcher(share):
    """As the product's, with other workers."""
    made = launching.launcher(share, "runtime.gpu.recorded_worker")

    def surroundings(nranks):
        found = made.environment(nranks)
        return found | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    return replace(made, environment=surroundings)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Everything temporary goes to a folder of this test; nothing may be left at its end."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    yield found
    assert list(found.iterdir()) == []


@pytest.fixture
def ranks(folder, monkeypatch, times):
    monkeypatch.setattr("meshweave.runtime.gpu.engine.launcher", recorded_launcher)
    made = NcclEngine(timeout=1.5 * times)
    yield made
    made.close()


def test_devices_of_other_processes_tell_what_they_did(ranks):
    made, rows = ranks.load(twice()), [[np.ones(N, np.float32)]] * 2
    made.run(rows)
    with mw.trace() as t:
        for _ in range(3):
            made.run(rows)
    assert (t.calls, t.unseen, t.dropped) == (3, 0, 0)
    for rank in range(2):
        own = [s for s in t.slices if s.rank == rank]
        assert [(s.kind, s.call) for s in own] == [("copy", n) for n in range(3) for _ in "io"]
        assert all(s.duration >= 0 for s in own)
    with pytest.raises(RankError, match="rank 0 died"), mw.trace():
        made.run(rows)
        os.kill(made.pids[0], signal.SIGKILL)
    assert (made.run(rows)[0][0] == 2).all()


def twice(nranks=2, **options):
    """y = 2 x on every rank."""
    port = [("f32", (N,))]
    steps = [Launch("twice", ("input", 0), ("output", 0), N)]
    return program(f"x={nranks}", [], port, port, steps, **options)


def inputs(nranks=2):
    return [[np.full(N, rank + 1, "f4")] for rank in range(nranks)]


def test_a_program_runs_again_and_again_and_starts_anew_after_a_death(ranks):
    executable = ranks.load(twice())
    for _ in range(2):
        assert [row[0][0] for row in executable.run(inputs())] == [2, 4]
    call = executable.bind(inputs())
    call.inputs[1][0][:] = 5
    call()
    assert call.outputs[1][0][0] == 10 and all(seconds > 0 for seconds in call.seconds)
    pids = executable.pids
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(
        RankError, match=r"^rank 0 died \(launcher: Killed \(signal 9\)\), last seen"
    ):
        executable.run(inputs())
    assert [row[0][0] for row in executable.run(inputs())] == [2, 4]
    executable.close()
    ranks.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_steps_run_as_graphs(folder, monkeypatch):
    monkeypatch.setattr("meshweave.runtime.gpu.engine.launcher", recorded_launcher)
    made = NcclEngine(timeout=60, graph=True)
    executable = made.load(twice(1))
    assert [executable.run(inputs(1))[0][0][0] for _ in range(3)] == [2, 2, 2]
    with pytest.raises(MeshweaveError, match=r"^rank 0: this program cannot be a graph"):
        other = made.load(twice(1, graph=False))
        other.run(inputs(1))
        other.run(inputs(1))
    made.close()


def test_a_failing_call_is_named_by_the_rank(ranks, monkeypatch):
    monkeypatch.setenv("MESHWEAVE_TEST_FAIL", "1 1 700 cuLaunchKernel")
    line = r"^rank 1 failed in twice at test.mlir:1:1: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)$"
    with pytest.raises(RankError, match=line):
        ranks.load(twice()).run(inputs())


@sampled(4)
@pytest.mark.parametrize(
    ("failure", "kind", "line"),
    [
        ("1 1 100 cuInit", MeshweaveError, "the CUDA driver finds none on this host"),
        ("0 1 999 cuInit", RankError, r"rank 0: cuInit failed: CUDA_ERROR_UNKNOWN \(999\)"),
        ("1 1 2 cuMemAlloc_v2", RankError, r"OUT_OF_MEMORY \(2\), for 0 bytes of the arena"),
        ("0 2 222 cuModuleLoadDataEx", MeshweaveError, r"does not read PTX 8.0: that of CUDA 12.0"),
    ],
)
def test_what_fails_at_load_is_named(ranks, monkeypatch, failure, kind, line):
    monkeypatch.setenv("MESHWEAVE_TEST_FAIL", failure)
    with pytest.raises(kind, match=line):
        ranks.load(twice())


def test_a_rank_that_exits_is_named(ranks, monkeypatch):
    monkeypatch.setenv("MESHWEAVE_TEST", "exit 1")
    line = r"^rank 1 died \(launcher: status 9\), last seen: waits for its device"
    with pytest.raises(RankError, match=line):
        ranks.load(twice()).run(inputs())


def test_a_device_that_stalls_is_named_within_the_limit(ranks, monkeypatch, times):
    monkeypatch.setenv("MESHWEAVE_TEST", "sleep 1")
    executable = ranks.load(twice())
    start = time.monotonic()
    line = r"^no progress for .* s: rank 1 waits for its device; rank 0 has returned$"
    with pytest.raises(RankError, match=line):
        executable.run(inputs())
    assert time.monotonic() - start < 20 * times


def test_a_rank_that_is_stopped_is_named(ranks):
    executable = ranks.load(twice())
    os.kill(executable.pids[1], signal.SIGSTOP)
    with pytest.raises(
        RankError, match=r"^no progress for .* s: rank 1 is stopped, last seen: has not begun"
    ):
        executable.run(inputs())


def test_without_a_driver_the_real_libraries_say_so(folder):
    """On a machine with a driver there is no such message to see."""
    from meshweave.runtime.gpu.libraries import SystemLibrary

    try:
        SystemLibrary().opened("cuda")
    except MeshweaveError:
        made = engine("nccl")
        with pytest.raises(
            MeshweaveError, match=r"needs a GPU and its driver: there is no libcuda"
        ):
            made.load(twice())
        made.close()
    else:
        pytest.skip("this machine has a CUDA driver")


def test_the_environment_of_a_rank():
    alone = launching.rank_environment(2, 4, share=False)
    assert alone == {
        "MESHWEAVE_RANK": "2", "MESHWEAVE_SIZE": "4", "MESHWEAVE_LOCAL_RANK": "2",
    }  # fmt: skip
    shared = launching.rank_environment(2, 4, share=True)
    assert shared["NCCL_HOSTID"] == "2" and shared["NCCL_SOCKET_IFNAME"] == "lo"
    job = json.loads(launching.launcher(True).command(3, "/s")[-1])
    assert job["command"][1:] == ["-m", "meshweave.runtime.gpu.worker", "/s", "1"]
    assert job["ranks"] == [launching.rank_environment(rank, 3, share=True) for rank in range(3)]
