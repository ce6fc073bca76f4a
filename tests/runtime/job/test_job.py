"""Processes that others have started become ranks: right answers under every launcher, and one line when one fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from depth import DEEP, deep, sampled, some
from ports import FIRST, free_port

from meshweave.runtime.flight.dump import read_dumps
from meshweave.runtime.flight.faults import Fault, faults
from meshweave.runtime.mpi.engine import mpiexec

HERE = Path(__file__).parent
PYTHON = [sys.executable, "-W", "error::UserWarning"]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "MESHWEAVE_MPI"))}
    path = os.pathsep.join(filter(None, sys.path))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


class Ended:
    """How a job has ended: the status and the text of each process; under a launcher it is one."""

    def __init__(self, commands: list[tuple[list[str], dict[str, str]]], seconds: float) -> None:
        began = time.monotonic()
        processes = [
            subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            )
            for command, env in commands
        ]  # fmt: skip
        try:
            said = [
                p.communicate(timeout=max(1, began + seconds - time.monotonic())) for p in processes
            ]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.communicate()
        self.out, self.err = [out for out, _ in said], [err for _, err in said]
        self.status = [process.returncode for process in processes]
        had = re.findall("^has (.*)$", "".join(self.out), re.M)
        end = time.monotonic() + 60  # who watches a host tidies up once its ranks are gone
        while (left := {path for path in had if os.path.exists(path)}) and time.monotonic() < end:
            time.sleep(0.05)
        self.left = left


def by_variables(nranks: int, *arguments: str, seconds: float = 100, times: int = 1) -> Ended:
    """Start the processes one by one, each told its rank."""
    store = f"tcp://127.0.0.1:{free_port()}"
    commands = []
    for rank in range(nranks):
        env = environment(
            MESHWEAVE_RANK=str(rank), MESHWEAVE_SIZE=str(nranks), MESHWEAVE_STORE=store,
            MESHWEAVE_TOKEN="a secret of this test", MESHWEAVE_TEST_TIMES=str(times),
        )  # fmt: skip
        commands.append(([*PYTHON, *arguments], env))
    return Ended(commands, seconds)


def by_slurm(nranks: int, *arguments: str) -> Ended:
    """Start them with what srun puts in the environment."""
    commands, job = [], str(free_port() - FIRST)
    for rank in range(nranks):
        env = environment(
            SLURM_PROCID=str(rank), SLURM_NTASKS=str(nranks), SLURM_LOCALID=str(rank),
            SLURM_JOB_NODELIST="localhost", SLURM_JOB_ID=job,
            MESHWEAVE_TOKEN="a secret of this test",
        )  # fmt: skip
        commands.append(([*PYTHON, *arguments], env))
    return Ended(commands, 100)


def by_mpiexec(nranks: int, *arguments: str) -> Ended:
    return Ended([([mpiexec(), "-n", str(nranks), *PYTHON, *arguments], environment())], 100)


def by_torchrun(nranks: int, *arguments: str, seconds: float = 100) -> Ended:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={nranks}"),
        *("--master-addr=127.0.0.1", f"--master-port={free_port()}", *arguments),
    ]
    return Ended([(command, environment(MESHWEAVE_TOKEN="a secret of this test"))], seconds)


def check_done(ended: Ended, nranks: int) -> None:
    told = sorted(re.findall(r"rank \d of \d is done", "".join(ended.out)))
    assert told == [f"rank {rank} of {nranks} is done" for rank in range(nranks)], ended.err
    assert set(ended.status) == {0}


@pytest.mark.parametrize(
    ("launch", "nranks", "more"),
    [(by_variables, 4, ()), pytest.param(by_mpiexec, 2, ("jax",), marks=deep)],
)
def test_a_job_computes_what_one_process_does(tmp_path, launch, nranks, more):
    more = tuple(name for name in more if find_spec(name))
    more += ("deep",) * DEEP
    check_done(launch(nranks, str(HERE / "everything.py"), str(tmp_path), *more), nranks)


def test_a_job_of_srun():
    code = "import meshweave as mw; mw.init(); print(f'rank {mw.rank()} of {mw.size()} is done')"
    check_done(by_slurm(2, "-c", code), 2)


@pytest.mark.skipif(not find_spec("jax"), reason="JAX is missing")
def test_programs_on_a_job_call_python():
    check_done(by_mpiexec(2, str(HERE / "calling.py")), 2)


@pytest.mark.torch
def test_a_job_of_torchrun(tmp_path):
    check_done(by_torchrun(2, str(HERE / "everything.py"), str(tmp_path), "torch"), 2)


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_steps_of_pytorch_on_a_job_are_those_of_eager():
    check_done(by_torchrun(2, str(HERE / "steps.py"), seconds=280), 2)


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_modules_that_torch_has_distributed_train_on_a_job():
    check_done(by_torchrun(2, str(HERE / "modules.py"), seconds=280), 2)


@sampled(2)
@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("raise", "rank 1 raised ValueError: no such thing"),
        ("kill", "rank 1 has died"),
        ("exit", "rank 1 has left the job, rank . is about to call first: every rank makes the same calls"),
        ("sleep", "no progress for {limit} s: rank 1 has not come to call first"),
    ],
)  # fmt: skip
def test_all_ranks_end_when_one_does(how, line, times):
    ended = by_variables(3, str(HERE / "failing.py"), how, "1", seconds=60 * times, times=times)
    line = line.format(limit=3 * times)
    for rank in (0, 2):
        assert re.search(f"^meshweave: {line}$", ended.err[rank], re.M), ended.err
        assert "Traceback" not in ended.err[rank] and ended.status[rank] == 3
        assert "done" not in ended.out[rank]
    assert not ended.left


def test_all_ranks_end_when_the_first_does():
    ended = by_variables(2, str(HERE / "failing.py"), "kill", "0")
    assert ended.err[1] == "meshweave: rank 0 has died\n" and ended.status[1] == 3
    assert not ended.left


@sampled(3)
@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("program", r"RankError: the ranks call different programs: rank 0: call first; rank 1: compile second"),
        ("loaded", r"RankError: the ranks call different programs: rank 0: call first; rank 1: call second"),
        ("values", r"RankError: second: argument arg0 is not the same on all ranks: each gives the same whole"),
        ("mixed", r"RankError: second: (argument arg0|an argument) is not the same on all ranks: each gives the"),
        ("numpy", r"RankError: from_numpy: the array is not the same on all ranks: each gives the same whole array"),
        ("captured", r"RankError: <lambda>: captured0 is not the same on all ranks"),
        ("mesh", r"MeshweaveError: the mesh \(a=3\) has 3 ranks, this job has 2 processes: as many, or one"),
        ("compile", r"CompileError: .*failing.py:\d+: reshape: 6 has 6 elements, 5 has 5"),
        ("whole", r"UsageError: 6xf32 \[dp\] on \(dp=2\): the parts of other ranks are in other processes, this"),
        ("part", r"MeshweaveError: from_local: the part of rank . has .*dim 0 has size 2, 3 is right"),
    ],
)  # fmt: skip
def test_what_ranks_do_wrong_together_is_told_in_a_line(how, line):
    ended = by_variables(2, str(HERE / "failing.py"), how, "1")
    assert re.search(
        line.replace("part of rank . has .*", "part of rank .: "), "".join(ended.err)
    ), ended.err
    assert all(ended.status) and not ended.left


def test_a_killed_rank_of_mpiexec_is_named(tmp_path):
    ended = by_mpiexec(3, str(HERE / "failing.py"), "kill", "1", str(tmp_path))
    assert re.search("^meshweave: (.*; )?rank 1 (has )?died", ended.err[0], re.M), ended.err
    assert ended.status[0] and not ended.left
    fault = left_by(tmp_path)
    assert fault.dumps[0].reason == "death" and "rank 1 " in fault.dumps[0].line
    assert [rank.calls for rank in fault.ranks] == [1, 1, 1]
    assert [rank.process for rank in fault.ranks][1] == "dead"


@pytest.mark.parametrize("how", some(["kill", "raise", "sleep"], 2))
def test_a_job_that_fails_leaves_what_its_ranks_did_last(tmp_path, how, times):
    more = ("1", str(tmp_path))
    by_variables(2, str(HERE / "failing.py"), how, *more, seconds=60 * times, times=times)
    fault = left_by(tmp_path)
    assert "rank 1 " in fault.dumps[0].line
    assert [rank.rank for rank in fault.ranks] == [0, 1]
    assert fault.dumps[0].reason == ("death" if how == "kill" else "failure")


def left_by(folder: Path) -> Fault:
    """The one fault that the dumps of a folder tell of: that of who watches, and perhaps of a rank that was as fast."""
    dumps, wrong = read_dumps([str(folder)])
    (fault,) = faults(dumps)
    assert not wrong
    return fault


def test_who_forgets_init_is_told_once():
    code = "import numpy as np, meshweave as mw; f = mw.jit(lambda x: x + 1); f(np.ones(2)); f(np.ones(3))"
    for rank, count in ((0, 1), (1, 0)):
        env = environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        ended = Ended([([sys.executable, "-c", code], env)], 60)
        assert ended.err[0].count("WORLD_SIZE=2: a launcher has started 2 processes") == count
        assert ended.status == [0]
