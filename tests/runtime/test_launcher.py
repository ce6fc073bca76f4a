"""Our launcher: PMI as MPI ranks speak it, no port that anyone could connect to, and how a rank that failed is told."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from socket import socketpair

import numpy as np
import pytest

import meshweave as mw
from meshweave.runtime.mpi.engine import MpiEngine, _on_this_host
from meshweave.runtime.processes import launcher
from meshweave.runtime.processes.launch import descendants, forking_launcher, own_launcher
from meshweave.runtime.processes.launcher import reply, serve


def listening(pids: list[int]) -> list[str]:
    """Addresses, in hex, at which TCP or UDP sockets of these processes take what comes."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            sockets.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in sockets and (words[3] == "0A" or table.startswith("udp")):
                found.append(words[1].partition(":")[0])
    return found


@pytest.mark.parametrize("transport", ["ucx", "ofi"])
def test_ranks_of_engine_mpi_listen_nowhere_but_on_the_loopback(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPIR_CVAR_CH4_NETMOD", transport)
    made = mw.jit(lambda x: mw.sum(x, axis=0), mesh="x=3", in_layouts=("[x]",), engine="mpi")
    assert np.asarray(made(np.ones(6, np.float32))) == 6
    job = descendants(os.getpid())
    assert len(job) >= 4
    assert set(listening(job)) <= ({"0100007F"} if transport == "ofi" else set())
    made.close()


def test_what_the_user_chose_of_transports_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert "UCX_TLS" not in _on_this_host(0, 2) and "FI_TCP_IFACE" in _on_this_host(0, 2)


def test_another_mpi_starts_its_ranks_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mpiexec"
    monkeypatch.setattr("meshweave.runtime.mpi.engine.mpiexec", lambda: str(path))
    path.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    path.chmod(0o755)
    made = MpiEngine().launcher()
    assert made.name == "mpiexec" and made.command(3, "/s")[:3] == [str(path), "-n", "3"]
    path.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    assert MpiEngine().launcher().name == "launcher"


def test_ranks_meet_and_exchange_values() -> None:
    pairs = [socketpair() for _ in range(3)]
    server = threading.Thread(target=serve, args=([ours for ours, _ in pairs],), daemon=True)
    server.start()
    links = [(theirs, theirs.makefile()) for _, theirs in pairs]

    def ask(rank: int, line: str) -> str:
        links[rank][0].sendall(f"cmd={line}\n".encode())
        return links[rank][1].readline().strip().removeprefix("cmd=")

    assert ask(0, "init pmi_version=1 pmi_subversion=1").startswith(
        "response_to_init pmi_version=1"
    )
    assert ask(2, "put kvsname=job key=a value=x=1;y") == "put_result rc=0 msg=success"
    for theirs, _ in links[:2]:
        theirs.sendall(b"cmd=barrier_in\n")
    assert ask(2, "barrier_in") == "barrier_out"
    assert [lines.readline() for _, lines in links[:2]] == ["cmd=barrier_out\n"] * 2
    assert ask(0, "get kvsname=job key=a") == "get_result rc=0 msg=success value=x=1;y"
    assert ask(1, "get kvsname=job key=b").startswith("get_result rc=-1")
    assert ask(1, "get kvsname=job key=PMI_process_mapping").endswith("value=(vector,(0,1,3))")
    assert ask(1, "finalize") == "finalize_ack"
    for theirs, lines in links:
        lines.close()
        theirs.close()
    server.join(10)
    assert not server.is_alive()


def test_what_is_not_of_pmi_is_answered_too() -> None:
    assert reply("cmd=spawn nprocs=2", 2, {}) == "spawn_result rc=-1 msg=not_supported"
    assert reply("cmd=get_universe_size", 2, {}) == "universe_size size=2"


def test_jobs_side_by_side_do_not_share_names() -> None:
    text = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    bundle = mw.compile(text, mesh="x=2", engine="mpi").bundle
    x = np.arange(4, dtype=np.float32)
    with mw.Program(bundle, MpiEngine()) as one, mw.Program(bundle, MpiEngine()) as other:
        for program in (one, other, one, other):
            np.testing.assert_array_equal(program(x)[0], x)


def test_a_rank_that_fails_ends_the_others_and_is_named() -> None:
    code = "import os, sys, time; rank = int(os.environ['R']); rank != 1 and time.sleep(1000); os.kill(os.getpid(), 9)"
    made = own_launcher(lambda path: ["-c", code], lambda rank, nranks: {"R": str(rank)}, pmi=False)
    command = made.command(3, "")
    assert command[1:4] == ["-I", "-S", launcher.__file__]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=made.environment(3)
    )
    assert (ended.returncode, ended.stdout) == (1, "rank 1: EXIT STRING: Killed (signal 9)\n")
    job = {"command": [sys.executable, "-c", ""], "ranks": [{}] * 2, "pmi": False}
    assert subprocess.run([*command[:4], json.dumps(job)], timeout=300).returncode == 0


# A line stays whole while another rank writes: its second word takes a moment.
TELLS = "print(path, Late(), loaded == os.getppid(), os.getsid(0) == os.getpid())"
FAILS = "os.environ['R'] == '1' and 1 / 0; time.sleep(1000)"


@pytest.mark.parametrize(
    ("does", "status", "said"),
    [
        (TELLS, 0, ["/s 0 True True", "/s 1 True True"]),
        (FAILS, 1, ["rank 1: EXIT STRING: status 1"]),
    ],
)
def test_ranks_that_are_copies_share_what_is_imported_alone(
    tmp_path: Path, does: str, status: int, said: list[str]
) -> None:
    text = f"""
import os, time
loaded = os.getpid()
class Late:
    def __str__(self):
        time.sleep(0.2)
        return os.environ["R"]
def main(path):
    {does}
"""
    (tmp_path / "ranked.py").write_text(text)
    made = forking_launcher("ranked", lambda rank, nranks: {"R": str(rank)}, pmi=False)
    ended = subprocess.run(
        made.command(2, "/s"), capture_output=True, text=True, timeout=300, cwd=tmp_path, env=made.environment(2)
    )  # fmt: skip
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (status, said)
    assert ("ZeroDivisionError" in ended.stderr) == bool(status)
