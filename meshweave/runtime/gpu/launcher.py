"""Start the ranks of the `nccl` engine on this host: `python -m meshweave.runtime.gpu.launcher RANKS SOCKET SHARE`.

It does what mpiexec does for engine mpi: when a rank fails it writes how, and ends the others.
"""

from __future__ import annotations

import os
import subprocess
import sys

from meshweave.runtime.flight.processes import how_ended
from meshweave.runtime.processes.launch import Launcher, end_with_parent, environment

_SHARED = {
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0",
}  # fmt: skip


def launcher(share: bool) -> Launcher:
    """Return this launcher for `processes.launch.RankProcesses`. share: the ranks may share GPUs."""

    def command(nranks: int, path: str) -> list[str]:
        module = "meshweave.runtime.gpu.launcher"
        return [sys.executable, "-m", module, str(nranks), path, str(int(share))]

    return Launcher("launcher", command, environment)


def rank_environment(rank: int, nranks: int, share: bool) -> dict[str, str]:
    """Return what is added to a rank's environment.

    Ranks that share a GPU look to NCCL as if each had a host of its own, and talk over the loopback device.
    """
    names = {
        "MESHWEAVE_RANK": str(rank), "MESHWEAVE_SIZE": str(nranks),
        "MESHWEAVE_LOCAL_RANK": str(rank),
    }  # fmt: skip
    if share:
        names |= {"NCCL_HOSTID": str(rank), **_SHARED}
    return names


def main(nranks: int, path: str, share: bool, worker: str = "meshweave.runtime.gpu.worker") -> int:
    """Start the ranks (worker: their module) and wait for them; return 0 when all have ended well."""
    end_with_parent()
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
