"""Say how the ranks of the `nccl` engine are started on this host."""

from __future__ import annotations

from meshweave.runtime.processes.launch import Launcher, own_launcher

_SHARED = {
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0",
}  # fmt: skip


def launcher(share: bool, worker: str = "meshweave.runtime.gpu.worker") -> Launcher:
    """Return the launcher for `processes.launch.Ranks`. share: the ranks may share GPUs. worker: their module."""
    return own_launcher(
        lambda path: ["-m", worker, path, str(int(share))],
        lambda rank, nranks: rank_environment(rank, nranks, share),
        pmi=False,
    )


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
