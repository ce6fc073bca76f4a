"""Copies and ends of processes that run programs: a forked one has ranks of its own, and calls come at exit too."""

from __future__ import annotations

import subprocess
import sys

import pytest
from depth import some

SCRIPT = """
import multiprocessing, os, signal, sys
import numpy as np
import meshweave as mw

f = mw.jit(lambda a: mw.sum(a, axis=0), mesh="x=2", in_layouts="[x, _]", engine=sys.argv[1])
a = np.arange(12, dtype=np.float32).reshape(4, 3)

def right():
    for k in range(4):
        assert np.array_equal(np.asarray(f(a + k)), (a + k).sum(0))

def in_a_copy(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        work()
        sys.exit(0)  # with all that ends at exit
    assert os.waitpid(pid, 0)[1] == 0

right()
in_a_copy(right)
right()
in_a_copy(lambda: None)
right()
pool = multiprocessing.get_context("fork").Process(target=right)
pool.start()
pool.join()
assert pool.exitcode == 0
right()
"""


@pytest.mark.parametrize("engine", some(["local", "mpi"], 2))
def test_a_forked_process_runs_what_its_parent_compiled(engine: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, engine]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (ended.returncode, ended.stderr) == (0, "")


WHILE_OTHERS_CALL = """
import os, signal, sys, threading
import numpy as np
import meshweave as mw

mesh, a = sys.argv[1], np.arange(4096, dtype=np.float32).reshape(64, 64)
f = mw.jit(lambda a: mw.tanh(a @ a), mesh=mesh)
array = mw.Array.from_numpy(a, mesh=mesh, layout="[x, _]")

def work():
    assert np.allclose(np.asarray(f(a)), np.tanh(a @ a))
    assert np.array_equal(np.asarray(mw.redistribute(array, "[_, x]")), a)

work()
ended = threading.Event()

def until_ended():
    while not ended.is_set():
        work()

threads = [threading.Thread(target=until_ended) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        work()
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        print("a copy hangs or fails", file=sys.stderr)
        break
ended.set()
"""


@pytest.mark.parametrize("mesh", some(["x=2", "x=1"], 2))
def test_a_fork_while_other_threads_call(mesh: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WHILE_OTHERS_CALL, mesh]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (ended.returncode, ended.stderr) == (0, "")


WHILE_RANKS_LEAVE = """
import os, signal, sys
import numpy as np
import meshweave as mw
from meshweave.runtime import engine

f = mw.jit(lambda a: mw.sum(a, axis=0), mesh="x=2", in_layouts="[x, _]")
a = np.arange(12, dtype=np.float32).reshape(4, 3)
executable = engine("local").load(f.lower(a).compile().program.bundle)

def work():
    assert np.array_equal(executable.run([[a[:2]], [a[2:]]])[0][0], a.sum(0))

work()
executable._leaving = executable._workers[1:]  # as another thread's call has them, just now
executable._leaving[0]._busy = True
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    work()
    os._exit(0)
print(os.waitpid(pid, 0)[1])
executable._leaving[0]._busy = False
"""


def test_a_copy_does_not_wait_for_ranks_that_it_has_not() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WHILE_RANKS_LEAVE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (ended.stdout, ended.stderr) == ("0\n", "")


AT_EXIT = """
import atexit, threading
import numpy as np
import meshweave as mw

f = mw.jit(lambda a: mw.sum(a, axis=0), mesh="x=2", in_layouts="[x, _]")
a = np.arange(12, dtype=np.float32).reshape(4, 3)

def right(times):
    for k in range(times):
        assert np.array_equal(np.asarray(f(a + k)), (a + k).sum(0))

atexit.register(right, 5)  # runs last: the ranks' threads have been ended
right(5)
atexit.register(right, 5)
threading.Thread(target=right, args=(1 << 40,), daemon=True).start()
"""


def test_calls_at_exit_are_right_and_those_in_other_threads_say_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=500
    )
    assert (ended.returncode, ended.stderr) == (0, "")
