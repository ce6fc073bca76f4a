"""Arrays that stay on the devices: nothing of them is copied in a step, and no value is lost or stale."""

from __future__ import annotations

import gc
import os
import pickle
import signal

import numpy as np
import pytest
from depth import sampled
from runtime.gpu.numpy_kernels import NumpyKernels
from runtime.gpu.programs import Launch, engine, program
from runtime.gpu.test_mutations import BUNDLE
from runtime.gpu.test_nccl import folder, ranks, recorded_launcher  # noqa: F401 (fixtures)

import meshweave as mw
from meshweave.api.program import Program
from meshweave.errors import RankError, UsageError
from meshweave.layout import Mesh
from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.gpu.call import RankCall
from meshweave.runtime.gpu.engine import NcclEngine
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.gpu.staging import InFlight
from meshweave.runtime.processes.bootstrap import JobRank, MemoryStore
from meshweave.simulator.driver.move import move
from meshweave.simulator.driver.recorder import InjectedFailure, Recorder
from meshweave.simulator.driver.replay import Scheduler
from meshweave.simulator.engine import EmulateEngine

RNG = np.random.default_rng(0)
N = 64


def bundle_of_decode():
    """A step that puts a row into a cache, which is donated, and gives the sum of all rows."""

    def step(t, at, w, cache):
        new = mw.where(at, t @ w, cache)
        return mw.sum(new, axis=0), new

    lowered = mw.jit(
        step, mesh="x=2", in_layouts=("[_, _]", "[_, _]", "[_, x]", "[_, x]"),
        out_layouts=("[_]", "[_, x]"), donate=(3,), engine="emulate",
    ).lower(*(np.ones(s, d) for s, d in (((1, 8), "f4"), ((6, 1), bool), ((8, 8), "f4"), ((6, 8), "f4"))))  # fmt: skip
    return lowered.compile().program.bundle


def laid(value, mesh="x=2", layout="[_, x]"):
    return mw.Array.from_numpy(value, mesh=mesh, layout=layout)


def decode(step, program):
    """What the calls of a decode loop give, and NumPy's answer."""
    weights = RNG.standard_normal((8, 8)).astype(np.float32)
    w, cache, right = (
        laid(weights),
        laid(np.zeros((6, 8), np.float32)),
        np.zeros((6, 8), np.float32),
    )
    for k in range(6):
        t = RNG.standard_normal((1, 8)).astype(np.float32)
        right[k] = (t @ weights)[0]
        y, cache = program(t, np.arange(6)[:, None] == k, w, cache)
        step(k)
        np.testing.assert_allclose(y, right.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cache, right, rtol=1e-4, atol=1e-5)
    assert (np.asarray(w) == weights).all()


@sampled(1)
@pytest.mark.parametrize("graph", [False, True])
def test_a_decode_loop_copies_neither_parameters_nor_cache(graph):
    made = Program(bundle_of_decode(), EmulateEngine(graph=graph))
    recorder, seen = made.executable.recorder, []

    def step(k):
        for rank in range(2):
            copies = [entry.what for entry in recorder.log[rank] if entry.what.startswith("copy")]
            if k:
                sizes = sorted(int(what.split()[-2]) for what in copies)
                assert sizes == [6, 32, 32], copies  # in: the place and the token; out: the result
        seen.append(len(recorder.memory._found))

    decode(step, made)
    assert len(set(seen[2:])) == 1  # memory is used again
    if graph:
        assert recorder.calls[0].count("cuGraphLaunch") >= 4
        assert recorder.calls[0].count("cuStreamBeginCapture_v2") <= 2
    made.close()
    assert recorder.live() == []


def test_an_array_that_others_may_write_is_copied_again():
    port = [("f32", (N,))]
    made = Program(
        program("x=1", [], port, port, [Launch("twice", ("input", 0), ("output", 0), N)]), engine()
    )
    given = np.ones(N, "f4")
    shared = mw.Array.from_shards([given], mesh="x=1", layout="[_]", shape=(N,))
    own = laid(np.ones(N, "f4"), "x=1", "[_]")
    for k in (1, 3):
        given[:] = k
        assert (made(shared)[0] == 2 * k).all() and (made(own)[0] == 2).all()
    assert made.executable.recorder.calls[0].count("cuMemcpyHtoDAsync_v2") == 3
    own.shards[0][:] = 5  # from now on somebody else may write it
    assert (made(own)[0] == 10).all()
    own[2] = 7
    assert made(own)[0][:4].tolist() == [10, 10, 14, 10]
    made.close()


def test_results_come_home_when_the_program_is_closed():
    port = [("f32", (N,))]
    made = engine().load(
        program("x=1", [], port, port, [Launch("twice", ("input", 0), ("output", 0), N)])
    )
    (first,) = made.run_arrays([laid(np.ones(N, "f4"), "x=1", "[_]")])
    (second,) = made.run_arrays([first])
    assert made.recorder.calls[0].count("cuMemcpyDtoH_v2") == 0
    assert (np.asarray(pickle.loads(pickle.dumps(second))) == 4).all() and second.away is not None
    made.close()
    assert (np.asarray(first) == 2).all() and (np.asarray(second) == 4).all()
    assert made.recorder.live() == []


def test_what_is_lost_with_failed_ranks_says_so():
    port = [("f32", (N,))]
    made = engine(failures=[InjectedFailure(0, 2, 700, "cuLaunchKernel")]).load(
        program("x=1", [], port, port, [Launch("twice", ("input", 0), ("output", 0), N)])
    )
    given = laid(np.ones(N, "f4"), "x=1", "[_]")
    (result,) = made.run_arrays([given])
    with pytest.raises(RankError, match="ILLEGAL_ADDRESS"):
        made.run_arrays([given])
    with pytest.raises(
        RankError, match="this Array lay on devices of ranks that have ended: its value is lost"
    ):
        np.asarray(result)
    assert (np.asarray(made.run_arrays([given])[0]) == 2).all()  # what is here, too, is copied anew
    made.close()


def twice(nranks=2):
    port = [("f32", (N,))]
    steps = [Launch("twice", ("input", 0), ("output", 0), N)]
    return program(f"x={nranks}", [], port, port, steps)


def test_arrays_stay_on_the_gpus_of_other_processes(ranks):  # noqa: F811
    first, second = ranks.load(twice()), ranks.load(twice())
    value = laid(np.arange(N, dtype="f4"), "x=2", "[_]")
    (one,) = first.run_arrays([value])
    (two,) = second.run_arrays([one])  # another program of the same ranks
    (three,) = first.run_arrays([two])
    assert value.away is not None and one.away is not None
    del two
    gc.collect()
    (four,) = first.run_arrays([three])
    assert np.array_equal(np.asarray(four), 16 * np.arange(N))
    assert np.array_equal(np.asarray(one), 2 * np.arange(N))
    ranks.close()
    assert np.array_equal(np.asarray(three), 8 * np.arange(N))
    assert np.array_equal(np.asarray(first.run_arrays([three])[0]), 16 * np.arange(N))
    os.kill(first.pids[0], signal.SIGKILL)
    with pytest.raises(RankError, match="died"):
        np.asarray(first.run_arrays([three])[0])
    (again,) = first.run_arrays([value])
    os.kill(first.pids[0], signal.SIGKILL)
    with pytest.raises(RankError):
        np.asarray(first.run_arrays([value])[0])
    with pytest.raises(RankError, match="ranks that have ended: its value is lost"):
        np.asarray(again)


def test_programs_of_several_engines_share_their_ranks_and_arrays(ranks, times):  # noqa: F811
    other = NcclEngine(timeout=1.5 * times)
    first, second = ranks.load(twice()), other.load(twice())
    assert first.pids == second.pids
    (one,) = first.run_arrays([laid(np.arange(N, dtype="f4"), "x=2", "[_]")])
    (two,) = second.run_arrays([one])
    first.close()
    ranks.close()
    (three,) = second.run_arrays([two])
    assert all(array.away is not None for array in (one, two, three))
    assert np.array_equal(np.asarray(three), 8 * np.arange(N))
    other.close()
    assert np.array_equal(np.asarray(one), 2 * np.arange(N))


# Calls are queued: they return before the devices have done anything.


def launched(made):
    """How many kernels have run since the last call began."""
    return sum("twice" in entry.what for entry in made.recorder.scheduler.executed)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_calls_are_queued_and_awaited_by_whoever_reads(seed):
    made = engine(seed=seed).load(twice(1))
    first = value = laid(np.arange(N, dtype="f4"), "x=1", "[_]")
    for _ in range(5):
        (value,) = made.run_arrays([value])
        assert launched(made) == 0
    assert made.recorder.calls[0].count("cuStreamSynchronize") == 0
    assert np.array_equal(np.asarray(value), 32 * np.arange(N)) and launched(made) == 5
    (again,) = made.run_arrays([first])
    made.close()
    assert np.array_equal(np.asarray(again), 2 * np.arange(N))


@pytest.mark.parametrize("seed", range(6))
def test_queued_steps_of_several_streams_do_not_race(seed):
    made = engine(seed=seed).load(BUNDLE)
    mesh = Mesh.parse("x=2,y=2")
    given = np.arange(4 * N, dtype="f4").reshape(2, 2, N)
    shards = [given[m // 2, m % 2].copy() for m in range(4)]
    found = []
    for k in range(4):
        rows = [shard + k for shard in shards]
        array = mw.Array.from_shards(rows, mesh=mesh, layout="[_]", shape=(N,))
        found.append(made.run_arrays([array]))
    for k, results in enumerate(found):
        for rank in range(4):
            both = shards[rank % 2] + shards[rank % 2 + 2] + 2 * k
            assert (results[0].shards[rank] == 2 * both + 1).all()
            assert (results[1].shards[rank] == 2 * (both + 2)).all()
    made.close()


def written_between_calls(made, count=40):
    """Give a call the same NumPy array again and again, with other values in it; return the results."""
    given, found = np.zeros(N, "f4"), []
    for k in range(count):
        given[:] = k
        found += made.run_arrays([given])
    return [float(np.asarray(array)[-1]) for array in found]


def test_numpy_inputs_may_be_written_after_a_call():
    made = engine().load(twice(1))
    assert written_between_calls(made) == [2.0 * k for k in range(40)]
    assert made.recorder.calls[0].count("cuMemHostAlloc") == 2
    assert "cuMemcpyHtoD_v2" not in made.recorder.calls[0]
    made.close()
    assert made.recorder.live() == []


def test_pinned_memory_that_is_used_before_its_copy_has_landed_is_told(monkeypatch):
    monkeypatch.setattr(InFlight, "wait_for", lambda self, start, end: None)
    made = engine().load(twice(1))
    line = r"^race on rank 0: the host has written pinned memory, m\d.*, before copy to device host -> in0 256 bytes"
    with pytest.raises(RankError, match=line):
        written_between_calls(made)
    made.close()


@pytest.mark.parametrize("room", [1024, 2560])  # too small for threads, and just large enough
def test_large_inputs_go_through_a_small_ring(monkeypatch, room):
    monkeypatch.setattr("meshweave.runtime.gpu.staging._ROOM", room)
    monkeypatch.setattr("meshweave.runtime.gpu.staging._PIECE", 320)
    port = [("f32", (1000,))]
    steps = [Launch("twice", ("input", 0), ("output", 0), 1000)]
    made = engine().load(program("x=1", [], port, port, steps))
    found = [made.run_arrays([np.arange(1000, dtype="f4") + k])[0] for k in range(3)]
    for k, array in enumerate(found):
        assert np.array_equal(np.asarray(array), 2 * (np.arange(1000) + k))
    made.close()


def test_the_host_is_a_few_steps_ahead_at_most(monkeypatch):
    monkeypatch.setattr("meshweave.runtime.gpu.rank.MOST_STEPS", 3)
    made = engine().load(twice(1))
    value = laid(np.ones(N, "f4"), "x=1", "[_]")
    done = []
    for _ in range(6):
        (value,) = made.run_arrays([value])
        done.append(made.ranks()[0].reached() >> 32)
    assert done[:3] == [0, 0, 0] and done[3:] == sorted(done[3:]) and done[3] >= 1
    assert (np.asarray(value) == 64).all()
    made.close()


class Failing(NumpyKernels):
    """Kernels of which the third launch fails on the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def launch(self, module, entry, grid, block, shared, parameters, rank, memory):
        self.count += 1
        if self.count == 3:
            raise RankError(f"{entry} reads outside of its memory")
        return super().launch(module, entry, grid, block, shared, parameters, rank, memory)


@pytest.mark.parametrize("how", ["read", "close", "run"])
def test_what_a_queued_step_did_wrong_is_told_at_the_next_wait(how):
    made = engine(kernels=Failing()).load(twice(1))
    value = given = laid(np.ones(N, "f4"), "x=1", "[_]")
    for _ in range(4):
        (value,) = made.run_arrays([value])
    line = r"^rank 0 failed in twice at test.mlir:twice: twice reads outside of its memory$"
    with pytest.raises(RankError, match=line):
        if how == "run":
            made.run([[np.ones(N, "f4")]])
        else:
            np.asarray(value) if how == "read" else made.close()
    with pytest.raises(RankError, match="its value is lost"):
        np.asarray(value)
    if how != "close":
        assert (np.asarray(made.run_arrays([given])[0]) == 2).all()
        made.close()
    assert made.recorder.live() == []


@pytest.mark.parametrize("ordered", [True, False])
def test_programs_of_one_rank_take_turns(ordered):
    """What one program leaves on the device another may read at once, if its stream waits for the first's."""
    library = Recorder(1, NumpyKernels(), Scheduler(move, seed=0))
    calls = []
    for _ in range(2):
        board, store = StatusBoard.private(1), MemoryStore(lambda ready, what: None)
        rank = GpuRank(twice(1), JobRank(0, 1, 0), library, store, board.address(0))
        calls.append(RankCall(rank, board, False))
    first, second = calls
    first.rank.copy_in(first.input(0), np.ones(N, "f4"))
    first.step(first.inputs, first.outputs)
    if ordered:
        second.rank.come_after(first.rank)
    second.step(first.outputs, second.outputs)
    if ordered:
        second.wait()
        found = library.memory.view(0, second.output(0), 4 * N, "test").view("f4")
        assert (found == 4).all()
    else:
        with pytest.raises(RankError):
            second.wait()
            first.wait()
        assert "twice(" in str(library.error) and "nothing orders them" in str(library.error)


def test_a_queued_step_that_fails_in_another_process_is_told_by_whoever_reads(ranks, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MESHWEAVE_TEST", "fail 1")
    made = ranks.load(twice())
    (value,) = made.run_arrays([laid(np.arange(N, dtype="f4"), "x=2", "[_]")])
    with pytest.raises(
        RankError, match=r"^rank 1 failed on its device, in twice at test.mlir:1:1: CUDA_ERROR"
    ):
        np.asarray(value)


def test_calls_that_ranks_have_not_answered_run_in_order(ranks):  # noqa: F811
    first, second = ranks.load(twice()), ranks.load(twice())
    value = laid(np.arange(N, dtype="f4"), "x=2", "[_]")
    for k in range(40):
        (value,) = (second if k % 3 else first).run_arrays([value])
    assert np.array_equal(np.asarray(value), 2.0**40 * np.arange(N))


def test_what_an_unanswered_call_did_wrong_is_told_with_the_next_answer(ranks, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MESHWEAVE_TEST_FAIL", "1 2 700 cuLaunchKernel")
    made = ranks.load(twice())
    (value,) = made.run_arrays([laid(np.arange(N, dtype="f4"), "x=2", "[_]")])
    (value,) = made.run_arrays([value])
    with pytest.raises(
        RankError, match=r"^rank 1 failed in twice at test.mlir:1:1: CUDA_ERROR_ILL"
    ):
        np.asarray(value)


def test_an_awaited_step_tells_which_op_has_failed_on_the_device(folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr("meshweave.runtime.gpu.engine.launcher", recorded_launcher)
    port = [("f32", (N,))]
    steps = [Launch(name, ("input", 0), ("output", 0), N) for name in ("plus_one", "twice")]
    awaited, queued = NcclEngine(timeout=60, awaited=True), NcclEngine(timeout=60)
    value = laid(np.arange(N, dtype="f4"), "x=2", "[_]")
    bundle = program("x=2", [], port, port, steps)
    assert np.array_equal(np.asarray(awaited.load(bundle).run_arrays([value])[0]), 2 * np.arange(N))
    awaited.close()
    monkeypatch.setenv("MESHWEAVE_TEST", "twice 1")
    op = r"twice at test.mlir:2:1"
    for made, line in ((awaited, op), (queued, rf"plus_one at test.mlir:1:1 to {op}")):
        with pytest.raises(
            RankError, match=rf"^rank 1 failed (on its device, )?in {line}: CUDA_ERROR"
        ):
            np.asarray(made.load(bundle).run_arrays([value])[0])
        made.close()
    with pytest.raises(UsageError, match="cannot be awaited launch by launch"):
        NcclEngine(graph=True, awaited=True)
