"""Short calls of engine `local`: ranks that wait in compiled code give the same, fail and stall as told, and leave."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from unittest.mock import patch

import numpy as np
import pytest
from runtime.programs import CallOf, on_rank, program

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError, RankError
from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.steps import Step
from meshweave.lowering.cpu.collectives.serve import always_ends, serve_object
from meshweave.runtime import engine
from meshweave.runtime.local import engine as local_engine
from meshweave.runtime.local import serving
from meshweave.runtime.local.engine import LocalExecutable, RankThread
from meshweave.runtime.local.serving import LONG, SHORT, own_cores

COUNT = 64
SLEEPS, FAILS = 100.0, 1e6  # what input 1 says of a rank: milliseconds beyond SLEEPS


def bundle(ranks: int = 2, rank: int = 1) -> Bundle:
    """all_reduce of input 0; before it `rank` sleeps or fails if input 1 says so."""
    text = f"""
  %word_at = llvm.getelementptr %ctx[{4 + 2 + 1}] : (!llvm.ptr) -> !llvm.ptr, i64
  %word_ptr = llvm.load %word_at : !llvm.ptr -> !llvm.ptr
  %word = llvm.load %word_ptr : !llvm.ptr -> f32
  %sleepy = llvm.mlir.constant({SLEEPS} : f32) : f32
  %broken = llvm.mlir.constant({FAILS} : f32) : f32
  %is_broken = llvm.fcmp "oge" %word, %broken : f32
  %own = llvm.mlir.constant({(2 << 16) | 7} : i32) : i32
  llvm.cond_br %is_broken, ^fail(%own : i32), ^sound
^sound:
  %is_sleepy = llvm.fcmp "oge" %word, %sleepy : f32
  llvm.cond_br %is_sleepy, ^nap, ^awake
^nap:
  %less = llvm.fsub %word, %sleepy : f32
  %micro = llvm.fptosi %less : f32 to i32
  %thousand = llvm.mlir.constant(1000 : i32) : i32
  %long = llvm.mul %micro, %thousand : i32
  %slept = llvm.call @usleep(%long) : (i32) -> i32
  llvm.br ^awake
^awake:"""
    call = CallOf("mw_all_reduce_sum_f32", 0, ("input", 0), ("output", 0), (COUNT,))
    ports = [("f32", (COUNT,)), ("f32", (1,))]
    made = program(
        f"x={ranks}", "local", [("x",)], ports, ports[:1],
        [on_rank(rank, text, "s"), call], externals=("usleep",),
    )  # fmt: skip
    return Bundle(made.manifest, (*made.objects, serve_object()))


def bound(ranks: int = 2, rank: int = 1, timeout: float = 20.0):
    """A call, and what to set input 1 of `rank` with."""
    executable = engine("local", timeout=timeout).load(bundle(ranks, rank))
    numbers = [[np.full(COUNT, r, "f4"), np.zeros(1, "f4")] for r in range(ranks)]
    call = executable.bind(numbers)
    return executable, call, call.inputs[rank][1]


def made_short(call) -> None:
    """Call until it is known to be short."""
    with patch.multiple(local_engine, SHORT=60.0, LONG=60.0):  # whatever else this machine does
        while not call.is_short:
            call()


def right(call) -> bool:
    ranks = len(call.outputs)
    call()
    return all((row[0] == ranks * (ranks - 1) / 2).all() for row in call.outputs)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_short_calls_give_the_same_and_take_the_short_way(ranks, monkeypatch):
    for limit in ("SHORT", "LONG"):
        monkeypatch.setattr(local_engine, limit, 60.0)
    executable, call, _ = bound(ranks)
    made_short(call)
    ways = []
    for name in ("_execute", "_execute_short"):
        own = getattr(LocalExecutable, name)
        taken = lambda self, c, own=own, name=name: (ways.append(name), own(self, c))  # noqa: E731
        monkeypatch.setattr(LocalExecutable, name, taken)
    for k in range(50):
        call.inputs[0][0][:] = k
        call()
        total = k + ranks * (ranks - 1) / 2
        assert all((row[0] == total).all() for row in call.outputs)
    assert ways == ["_execute_short"] * 50
    executable.close()


def test_a_rank_that_fails_in_a_short_call_is_named_and_the_next_call_runs():
    executable, call, word = bound()
    for _ in range(3):
        made_short(call)
        word[:] = FAILS
        with pytest.raises(RankError, match=r"rank 1 failed in .* at test.mlir:\d:1: code 7"):
            call()
        word[:] = 0
        assert right(call)
    executable.close()


def test_a_rank_that_stalls_in_a_short_call_is_named_within_the_limit(times):
    _, call, word = bound(timeout=0.4 * times)
    made_short(call)
    word[:] = SLEEPS + 30_000 * times  # milliseconds
    began = time.monotonic()
    with pytest.raises(RankError, match=r"no progress for .* s: rank 1 computes"):
        call()
    assert time.monotonic() - began < 20 * times
    with pytest.raises(RankError, match="never came back from an earlier run"):
        call()


def test_a_call_that_took_long_listens_to_ctrl_c_the_next_time():
    executable, call, word = bound()
    made_short(call)
    word[:] = SLEEPS + 300
    assert right(call) and not call.is_short
    word[:] = SLEEPS + 1500
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:  # it may be late
            call()
    word[:] = 0
    assert right(call)
    executable.close()


@pytest.mark.parametrize("short", [True, False])
def test_ctrl_c_while_ranks_end_serving_harms_no_later_call(short, monkeypatch):
    executable, call, _ = bound(3)
    made_short(call)
    assert right(call)
    own, waits = RankThread.wait, []

    def interrupted(self, seconds):
        waits.append(self)
        if len(waits) == 2:  # one rank has been waited for, the other not
            raise KeyboardInterrupt
        return own(self, seconds)

    monkeypatch.setattr(RankThread, "wait", interrupted)
    call.is_short = False
    with pytest.raises(KeyboardInterrupt):
        call()
    call.is_short = short
    for _ in range(20):
        assert right(call)
    executable.close()


def test_ctrl_c_just_as_a_rank_ends_loses_no_rank():
    executable, call, word = bound()
    word[:] = SLEEPS + 30  # so that this call and the next are long ones
    assert right(call)
    worker = executable._workers[0]
    done, took = worker._done, []

    class Interrupted:
        """The lock, with Ctrl-C once it has been got."""

        def acquire(self, timeout: float) -> bool:
            took.append(done.acquire(timeout=timeout))
            if len(took) == 1:
                raise KeyboardInterrupt
            return took[-1]

        def __getattr__(self, name: str):
            return getattr(done, name)

    worker._done = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        call()
    assert took[0]
    worker._done = done
    for _ in range(3):
        assert right(call)
    executable.close()


def test_calls_of_several_threads_run_one_after_the_other():
    executable, call, _ = bound()
    made_short(call)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: right(call), range(100)))
    executable.close()


def test_ranks_leave_when_the_program_is_closed_or_forgotten():
    def ranks() -> list[threading.Thread]:
        return [t for t in set(threading.enumerate()) - before if "meshweave-rank" in t.name]

    for forget in (False, True):
        before = set(threading.enumerate())
        executable, call, word = bound()
        made_short(call)
        call()
        assert len(ranks()) == 2
        if not forget:
            executable.close()
            with pytest.raises(MeshweaveError, match="closed"):
                call()
        del executable, call, word
        gc.collect()
        end = time.monotonic() + 60
        while ranks() and time.monotonic() < end:
            time.sleep(0.01)
        assert not ranks()


def test_a_call_behind_a_pause_is_watched_as_the_first_was(monkeypatch):
    monkeypatch.setattr(serving, "_TICK", 0.01)
    monkeypatch.setattr(serving, "_IDLE_TICKS", 1)

    class Stalled:
        def start(self, now: float) -> None: ...

        def report(self, now: float) -> str:
            return "no progress"

    stalls = []
    lookout = serving.Lookout(Stalled(), lambda line: stalls.append(lookout.number) or line)
    for number in (1, 2, 3):
        lookout.begin()
        end = time.monotonic() + 60
        while number not in stalls and time.monotonic() < end:
            time.sleep(0.002)
        assert number in stalls and lookout.end() == "no progress"
        while lookout._awake and time.monotonic() < end:  # until its thread has ended
            time.sleep(0.002)
        assert not lookout._awake


def test_ranks_have_cores_apart_where_there_are_enough():
    cores = {0, 1, 2, 3, 4, 5}
    sets = [own_cores(cores, k, 2, taken=1) for k in range(2)]
    assert sets == [{0, 3, 5}, {2, 4}]
    assert own_cores({0, 1}, 0, 1, taken=0) == {1}
    assert own_cores({0, 1}, 0, 2, taken=0) == {0, 1}
    assert own_cores({3}, 0, 1, taken=3) == {3}


def test_programs_that_data_may_keep_running_are_not_served():
    def entry(what: str, *bodies: list[Step]) -> Step:
        return Step(what, cast(ir.Operation, None), bodies=list(bodies))

    loop = entry("scf.for", [entry("kernel"), entry("scf.if", [entry("scf.while")])])
    assert always_ends([[entry("kernel")], [entry("scf.for", [entry("kernel")])]])
    assert not always_ends([[entry("kernel")], [loop]])
    assert SHORT < LONG < 0.1
