"""Starts the ranks of the `nccl` engine on this host, a process for each GPU:
`python -m meshweave.runtime.gpu.launcher RANKS SOCKET SHARE`.

It does what mpiexec does for engine mpi: when a rank ends in a bad way it writes how, and ends the
others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

from meshweave.runtime.launch import Launcher, environment

_PARENT_DEATH_SIGNAL = 1  # prctl

_SHARED = {
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0",
}  # fmt: skip


def launcher(share: bool) -> Launcher:
    """For `launch.Ranks`. share: the ranks may share GPUs."""

    def command(nranks: int, path: str) -> list[str]:
        module = "meshweave.runtime.gpu.launcher"
        return [sys.executable, "-m", module, str(nranks), path, str(int(share))]

    return Launcher("launcher", command, environment)


def rank_environment(rank: int, nranks: int, share: bool) -> dict[str, str]:
    """What is added to a rank's environment. Ranks that share a GPU look to NCCL as if each had a
    host of its own, and talk over the loopback device.
    """
    names = {
        "MESHWEAVE_RANK": str(rank), "MESHWEAVE_SIZE": str(nranks),
        "MESHWEAVE_LOCAL_RANK": str(rank),
    }  # fmt: skip
    if share:
        names |= {"NCCL_HOSTID": str(rank), **_SHARED}
    return names


def how_ended(status: int) -> str:
    """`Killed (signal 9)` of a process's status -9; "" of 0."""
    if status < 0:
        return f"{signal.strsignal(-status)} (signal {-status})"
    return f"status {status}" if status else ""


def main(nranks: int, path: str, share: bool, worker: str = "meshweave.runtime.gpu.worker") -> int:
    """Start the ranks (worker: their module), wait for them; 0 when all have ended well."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    command = [sys.executable, "-m", worker, path, str(int(share))]
    ranks = [
        subprocess.Popen(command, env=os.environ | rank_environment(rank, nranks, share))
        for rank in range(nranks)
    ]
    waiting = {process.pid: process for process in ranks}
    while waiting:
        pid, status = os.wait()
        process = waiting.pop(pid, None)
        if process is None:
            continue
        process.returncode = os.waitstatus_to_exitcode(status)
        if how := how_ended(process.returncode):
            print(f"rank {ranks.index(process)}: EXIT STRING: {how}", flush=True)
            for other in waiting.values():
                other.kill()
            for other in waiting.values():
                other.wait()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"))
