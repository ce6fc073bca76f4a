"""Several cores for a rank: the same bits as on one, in forked processes, from several threads, and on any machine."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import HealthCheck, given, settings
from python_programs import NUMPY, Case, cases
from traced import mw

from meshweave.api.program import Program, build
from meshweave.errors import MeshweaveError
from meshweave.lowering.cpu import iterations, pieces
from meshweave.runtime import cores as machine
from meshweave.runtime import engine
from meshweave.runtime.arrays.array import place
from meshweave.runtime.local.engine import LocalEngine

RNG = np.random.default_rng(0)


def floats(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def layer_norm(x):
    centred = x - mw.mean(x, axis=-1, keepdims=True)
    return centred / mw.sqrt(mw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def sliced(x, v, w):
    with mw.hint(slice="t=8", order="dfs"):
        return mw.exp(x @ v) @ w


CASES = {
    "maps": (lambda a, b: mw.exp(a) * b + 1, floats(521, 301), floats(521, 301)),
    "a map of one row": (lambda a: mw.tanh(a), floats(1, 200_003)),
    "a transposition": (lambda a: mw.permute_dims(a, (1, 0)) * 2, floats(515, 390)),
    "rows that share a loop": (layer_norm, floats(700, 257)),
    "sums of columns": (lambda a: mw.sum(a, axis=0), floats(1031, 517)),
    "places": (lambda a: mw.argmax(a, axis=-1), floats(900, 301)),
    "numbers of rows": (lambda a: a + mw.arange(401)[:, None] * 3, floats(401, 333)),
    "elements at places": (
        lambda a, i: mw.take(a, i, axis=0), floats(401, 333), RNG.integers(0, 401, 999),
    ),
    "scans": (lambda a: mw.cumulative_sum(a, axis=1), floats(333, 401)),
    "a product": (lambda a, b: a @ b, floats(301, 260), floats(260, 173)),
    "a product of many columns": (lambda a, b: a @ b, floats(32, 260), floats(260, 1930)),
    "one row": (lambda a, b: a @ b, floats(1, 517), floats(517, 1030)),
    "three rows": (lambda a, b: a @ b, floats(3, 517), floats(517, 1030)),
    "one row, turned weights": (lambda a, b: a @ b.T, floats(1, 517), floats(1030, 517)),
    "three rows, turned weights": (lambda a, b: a @ b.T * 2, floats(3, 517), floats(1030, 517)),
    "products": (lambda a, b: a @ b, floats(12, 130, 70), floats(12, 70, 90)),
    "a perceptron": (
        lambda x, v, w: mw.maximum(x @ v, 0.0) @ w, floats(130, 257), floats(257, 300), floats(300, 99),
    ),
    "attention": (
        lambda q, k, v: mw.softmax(q @ mw.matrix_transpose(k), axis=-1) @ v,
        floats(6, 170, 24), floats(6, 170, 24), floats(6, 170, 24),
    ),
    "slices": (sliced, floats(256, 90), floats(90, 200), floats(200, 50)),
    "doubles": (lambda a, b: a @ b - 1, floats(201, 260, dtype=np.float64), floats(260, 173, dtype=np.float64)),
    "halves": (lambda a, b: a @ b, floats(201, 260, dtype=np.float16), floats(260, 173, dtype=np.float16)),
    "integers": (lambda a: a * a - 7, RNG.integers(-99, 99, (521, 301))),
}  # fmt: skip


def bits_on(text: str, arrays: list[np.ndarray], *counts: int) -> list[list[bytes]]:
    """The bits of all results, for each number of cores, of a second call on the same buffers."""
    bundle, found = build(text), []
    for count in counts:
        with Program(bundle, LocalEngine(timeout=30, cores=count)) as program:
            assert "mw_help" in program.executable._code  # something is cut
            call = program.executable.bind(place(program.executable, arrays))
            for _ in range(3):
                call()
            found.append([value.tobytes() for row in call.outputs for value in row])
    return found


@pytest.fixture
def small(monkeypatch):
    """Cut smaller kernels than is worth it."""
    monkeypatch.setattr(pieces, "GRAIN", 1 << 10)
    monkeypatch.setattr(pieces, "LEAST_PRODUCT", 1 << 14)


@sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_the_number_of_cores_does_not_show_in_the_bits(name, small):
    function, *arrays = CASES[name]
    lowered = mw.jit(function).lower(*arrays)
    text = lowered.as_text()
    one, two, three, nine = bits_on(text, arrays, 1, 2, 3, 9)
    assert one == two == three == nine
    compiled = mw.jit(function)
    found = np.asarray(compiled(*arrays))
    compiled.close()
    assert [found.tobytes()] == one


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_random_programs_give_what_numpy_gives_on_three_cores(case: Case):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GRAIN", "LEAST_PRODUCT", "LINE"):
            patch.setattr(pieces, name, 2)
        patch.setattr(iterations, "FEWEST", 2)
        patch.setattr(machine, "usable_cores", lambda: 3 * case.mesh.nranks)
        f = mw.jit(
            case.function(mw),
            mesh=case.mesh,
            in_layouts=tuple(case.given),
            out_layouts=tuple(case.wanted),
        )
        inputs = [values[0] for values in case.values[: case.inputs]]
        right = [np.array(y) for y in case.function(NUMPY)(*inputs)]
        for y, wanted in zip(f(*inputs), right, strict=True):
            np.testing.assert_array_equal(np.asarray(y), wanted, case.text)
        f.close()


def on_two_ranks(a: np.ndarray) -> str:
    function = mw.jit(lambda a: mw.exp(a) + mw.sum(a, axis=0), mesh="x=2", in_layouts=("[x, _]",))
    return function.lower(a).as_text()


def test_ranks_have_cores_of_their_own(small):
    a = floats(400, 300)
    one, three = bits_on(on_two_ranks(a), [a], 1, 3)
    assert one == three


@sampled(1)
@pytest.mark.parametrize("window", [True, False])
def test_ranks_of_processes_too(window, small):
    a = floats(400, 300)
    bundle, found = build(on_two_ranks(a), engine="mpi"), []
    for count in (1, 3):
        runs_on = engine("mpi", timeout=30.0, window=window, cores=count)
        with Program(bundle, runs_on) as program:
            assert program.executable.cores == count
            found.append([np.asarray(y).tobytes() for y in program(a)])
        runs_on.close()
    assert found[0] == found[1]


def test_each_rank_gets_an_equal_part_of_the_cores(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 7)
    assert [machine.cores_of(None, ranks) for ranks in (1, 2, 3, 8)] == [7, 3, 2, 1]
    assert machine.cores_of(5, 2) == 5


def test_the_quota_of_the_control_group_counts(monkeypatch, tmp_path):
    file = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "_QUOTA", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "process_cpu_count", lambda: 6, raising=False)
    assert machine.usable_cores() == 6  # no such file
    for text, cores in (("max 100000", 6), ("250000 100000", 3), ("50000 100000", 1), ("", 6)):
        file.write_text(text)
        assert machine.usable_cores() == cores


@pytest.mark.parametrize("cores", [0, -1, 33, 1.5, "2"])
def test_another_number_of_cores_is_refused(cores):
    with pytest.raises(MeshweaveError, match="a rank has from 1 to 32 cores, or None"):
        LocalEngine(cores=cores)


def loaded(cores: int, rows: int = 2000) -> tuple[Program, np.ndarray]:
    a = floats(rows, 300)
    text = mw.jit(lambda a: mw.tanh(a) * 2).lower(a).as_text()
    return Program(build(text), LocalEngine(30, cores=cores)), a


def started(before: set[threading.Thread]) -> list[str]:
    """The threads of cores that were not there before; some that were may be about to leave."""
    return [t.name for t in set(threading.enumerate()) - before if "-core-" in t.name]


def test_the_cores_leave_with_the_program():
    before = set(threading.enumerate())
    program, a = loaded(4)
    program(a)
    assert len(started(before)) == 3
    program.close()
    dropped, a = loaded(3)
    dropped(a)
    del dropped
    gc.collect()
    end = time.monotonic() + 60
    while started(before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not started(before)


def test_a_program_without_large_kernels_starts_no_threads():
    before = set(threading.enumerate())
    program, a = loaded(4, rows=3)
    program(a)
    assert not started(before)
    program.close()


def test_where_the_system_starts_no_more_threads_there_are_fewer(monkeypatch):
    program, a = loaded(4)
    start, count = threading.Thread.start, [0]

    def limited(thread):
        if "-core-" in thread.name:
            count[0] += 1
            if count[0] > 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    (y,) = program(a)
    assert np.allclose(np.asarray(y), np.tanh(a) * 2, atol=1e-6)
    program.close()


def test_calls_from_several_threads_and_of_two_programs_at_once():
    first, a = loaded(2)
    second, b = loaded(3)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(*pair) for _ in range(20) for pair in ((first, a), (second, b))]
        for k, job in enumerate(jobs):
            (y,) = job.result(timeout=60)
            given_ = (a, b)[k % 2]
            assert np.allclose(np.asarray(y), np.tanh(given_) * 2, atol=1e-6)
    first.close()
    second.close()


FORKING = """
import os, signal, sys
import numpy as np
import meshweave as mw
from meshweave.api.program import Program, build
from meshweave.runtime.local.engine import LocalEngine

a = np.arange(600000, dtype=np.float32).reshape(2000, 300) / 1e6
program = Program(build(mw.jit(lambda a: mw.tanh(a) * 2).lower(a).as_text()), LocalEngine(30, cores=3))

def right():
    for _ in range(5):
        (y,) = program(a)
        assert np.allclose(np.asarray(y), np.tanh(a) * 2, atol=1e-6)

right()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        right()
        sys.exit(0)
    right()
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_process_has_cores_of_its_own():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_ends_a_call_and_the_next_one_is_right():
    x = floats(1500, 1500)

    def long(x):
        for _ in range(12):
            x = mw.tanh(x @ x)
        return x

    program = Program(build(mw.jit(long).lower(x).as_text()), LocalEngine(60, cores=3))
    (right,) = program(x)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        while True:
            program(x)
    try:
        (again,) = program(x)
    except MeshweaveError as error:  # on a slow machine the rank was given up
        assert "never came back" in str(error)
    else:
        assert np.asarray(again).tobytes() == np.asarray(right).tobytes()


def test_explain_names_the_cores(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    f = mw.jit(lambda a: a + 1)
    f(floats(4, 4))
    assert "each rank computes on 3 cores" in " ".join(f.explain().split())
    f.close()
