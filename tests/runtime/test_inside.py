"""Programs under an mpiexec of the user: right answers, and one line when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from depth import sampled
from runtime.programs import CallOf, on_rank, program, sleeps
from runtime.test_failures import failing, returns

from meshweave.runtime.mpi.engine import mpiexec
from meshweave.runtime.mpi.window import VARIABLE

SCRIPT = """
import sys
import numpy as np
from mpi4py import MPI
from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.runtime import run_inside
rank = MPI.COMM_WORLD.rank
bundle = Bundle.read(sys.argv[2 + rank % (len(sys.argv) - 2)])
limit = float(sys.argv[1])
try:
    out = run_inside(bundle, [np.full(256, rank + 1.0, "f4")], timeout=limit)
    again = run_inside(bundle, [np.full(256, 1.0, "f4")], timeout=limit)
except MeshweaveError as error:
    sys.stdout.write(f"refused: {error}\\n")
    sys.exit(0)
assert again[0][0] == MPI.COMM_WORLD.size
sys.stdout.write(f"value {out[0][0]}\\n")
"""


def inside(tmp_path, bundles, ranks=3, window="1", limit=60.0):
    """Run SCRIPT; bundles are dealt out to the ranks in turn."""
    paths = []
    for index, bundle in enumerate(bundles):
        paths.append(str(tmp_path / f"{index}.mwb"))
        bundle.write(paths[-1])
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [
            *(mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpi4py"),
            script,
            str(limit),
            *paths,
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            VARIABLE: window,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_a_program_runs_inside_the_users_job(tmp_path):
    done = inside(tmp_path, [failing("mpi", "")])
    assert (done.returncode, done.stdout.count("value 6.0"), done.stderr) == (0, 3, "")


def test_a_job_of_another_size_is_refused(tmp_path):
    done = inside(tmp_path, [failing("mpi", "")], ranks=2)
    assert done.stdout.count("refused: the mesh (x=3) has 3 ranks, this job has 2") == 2


def other():
    call = CallOf("mw_all_reduce_max_f32", 0, ("input", 0), ("output", 0), (256,))
    ports = [("f32", (256,)), ("f32", (768,))]
    return program("x=3", "mpi", [("x",)], ports[:1], ports, [call])


def longer():
    call = CallOf("mw_all_reduce_max_f32", 0, ("input", 0), ("output", 0), (256,))
    return program("x=3", "mpi", [("x",)], [("f32", (256,))], [("f32", (512,))], [call])


@sampled(1)
@pytest.mark.parametrize(("second", "what"), [(other, "programs"), (longer, "shapes")])
def test_ranks_with_different_programs_are_refused(tmp_path, second, what):
    done = inside(tmp_path, [failing("mpi", ""), second()])
    assert done.stdout.count(f"refused: ranks 0 and 1 run different {what}") == 3
    assert done.returncode == 0


@pytest.mark.parametrize("window", ["1", "0"])
def test_a_rank_that_fails_inside_ends_the_job(tmp_path, window):
    bundle = failing("mpi", on_rank(1, returns((3 << 16) | 5), "r"))
    done = inside(tmp_path, [bundle], window=window)
    assert "meshweave: rank 1 failed in mw_all_gather at test.mlir:3:1: MPI: " in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("window", ["1", "0"])
def test_a_rank_that_stalls_inside_ends_the_job(tmp_path, window, times):
    start = time.monotonic()
    bundle = failing("mpi", on_rank(2, sleeps(90 * times), "s"))
    done = inside(tmp_path, [bundle], window=window, limit=times)
    assert (
        f"meshweave: no progress for {times} s: rank 2 computes, after mw_all_reduce_sum_f32 at "
        "test.mlir:1:1; ranks 0 and 1 are in mw_all_gather at test.mlir:3:1" in done.stderr
    )
    assert done.returncode == 3
    assert time.monotonic() - start < 60 * times
