"""Arrays that stay on the devices: nothing of them is copied in a step, and no value is lost or stale."""

from __future__ import annotations

import gc
import os
import pickle
import signal

import numpy as np
import pytest
from runtime.gpu.programs import Launch, engine, program
from runtime.gpu.test_nccl import folder, ranks  # noqa: F401 (fixtures)

import meshweave as mw
from meshweave.api.program import Program
from meshweave.errors import RankError
from meshweave.runtime.gpu.engine import NcclEngine
from meshweave.simulator.driver.recorder import InjectedFailure
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
        first.run_arrays([three])
    (again,) = first.run_arrays([value])
    os.kill(first.pids[0], signal.SIGKILL)
    with pytest.raises(RankError):
        first.run_arrays([value])
    with pytest.raises(RankError, match="ranks that have ended: its value is lost"):
        np.asarray(again)


def test_programs_of_several_engines_share_their_ranks_and_arrays(ranks):  # noqa: F811
    other = NcclEngine(timeout=1.5)
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
