"""Run as one rank of a job where one rank goes wrong. Usage: failing.py HOW RANK [FOLDER].

The tests run it often, and the programs are the same each time: they are compiled once for all of them.
"""

import os
import signal
import sys
import time

import numpy as np

import meshweave as mw
from meshweave.runtime.processes.shared_files import mpi_memory

os.environ["MESHWEAVE_CACHE"] = os.path.join(os.environ["MESHWEAVE_TEST_OBJECTS"], "programs")
how, guilty = sys.argv[1], int(sys.argv[2])
limit = 3.0 * int(os.environ.get("MESHWEAVE_TEST_TIMES", "1"))
mw.init(timeout=limit if how in ("sleep", "stop") else 60.0, flight="".join(sys.argv[3:]) or None)
sys.stdout.write("".join(f"has {path}\n" for path in mpi_memory("self")))
sys.stdout.flush()
mesh, x = mw.Mesh(dp=mw.size()), np.arange(6, dtype="f4")


@mw.jit(mesh=mesh, in_layouts="[dp]", out_layouts="[_]")
def first(x: mw.Array) -> mw.Array:
    return x + mw.sum(x)


@mw.jit(mesh=mesh, in_layouts="[dp]", out_layouts="[_]")
def second(x: mw.Array) -> mw.Array:
    return x - mw.sum(x)


first(x)
if how == "loaded":
    second(x)
if mw.rank() == guilty:
    if how == "raise":
        raise ValueError("no such thing")
    if how in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    if how == "exit":
        sys.exit(0)
    if how == "sleep":
        time.sleep(1000)
    if how in ("program", "loaded"):
        second(x)
if how == "values":
    second(x + (mw.rank() == guilty))
if how == "mixed":
    part = mw.Array.from_local(x[:3], mesh=mesh, layout="[dp]", shape=(6,))
    second(part if mw.rank() == guilty else x)
if how == "numpy":
    mw.Array.from_numpy(x + (mw.rank() == guilty), mesh=mesh, layout="[dp]")
if how == "captured":
    held = np.arange(1 << 15) + float(mw.rank() == guilty)
    mw.jit(lambda x: mw.sum(held * x[0]), mesh=mesh)(x)
if how == "mesh":
    mw.jit(lambda x: x, mesh="a=3", in_layouts="[a]")(x)
if how == "compile":
    mw.jit(lambda x: mw.reshape(x, (5,)), mesh=mesh)(x)
if how == "whole":
    np.asarray(mw.Array.from_numpy(x, mesh=mesh, layout="[dp]"))
if how == "part":
    mw.Array.from_local(np.zeros(2), mesh=mesh, layout="[dp]", shape=(6,))
first(x)
sys.stdout.write("done\n")
