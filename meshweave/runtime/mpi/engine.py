"""Run bundles of the `mpi` engine: a process per rank, whose compiled code calls MPI.

`MpiEngine` is for any Python program: it starts the ranks on this host. `run_inside` is for a program that the user has
started under an `mpiexec` of their own, on any number of hosts. This process never loads mpi4py: the ranks do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.runtime.cores import checked_cores
from meshweave.runtime.memory import Values
from meshweave.runtime.mpi.inside import InsideProgram
from meshweave.runtime.mpi.window import wanted
from meshweave.runtime.processes.engine import ProcessEngine
from meshweave.runtime.processes.launch import Launcher, environment, forking_launcher

_LOCAL = {"UCX_TLS": "self,sm", "FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo"}


def mpiexec() -> str:
    """Return the launcher of the MPI that mpi4py uses: the one beside this Python, else on PATH.

    Raises MeshweaveError without one.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise MeshweaveError("the mpi engine needs mpiexec: pip install mpi4py mpich")
    return found


def _is_mpich(path: str) -> bool:
    """Tell whether this `mpiexec` is MPICH's or made of it: our launcher then serves the ranks."""
    said = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True)
    return b"HYDRA" in said.stdout


_WORKER = "meshweave.runtime.mpi.worker"


def _mpiexec_command(nranks: int, path: str) -> list[str]:
    return [mpiexec(), "-n", str(nranks), sys.executable, "-m", "mpi4py", "-m", _WORKER, path]


def _on_this_host(rank: int, nranks: int) -> dict[str, str]:
    """Return the environment in which ranks talk through memory (UCX), at most over the loopback device (libfabric)."""
    return {name: text for name, text in _LOCAL.items() if name not in os.environ}


class MpiEngine(ProcessEngine):
    """Run bundles in processes of this host that call MPI; see ProcessEngine for their life, `timeout` and `flight`.

    window: whether collectives go through shared memory (True) or by MPI's own (False, slower, for comparison);
    by default through shared memory, unless MESHWEAVE_MPI_WINDOW=0 is in the environment. cores: as for LocalEngine.
    """

    name = "mpi"
    traces = True

    def __init__(
        self,
        timeout: float | None = None,
        window: bool | None = None,
        flight: str | None = None,
        cores: int | None = None,
    ) -> None:
        super().__init__(timeout, flight)
        self.window, self.cores = wanted(window), checked_cores(cores)

    def launcher(self) -> Launcher:
        """Return our own launcher where the MPI is MPICH, else `mpiexec`."""
        if _is_mpich(mpiexec()):
            return forking_launcher(_WORKER, _on_this_host, pmi=True)
        return Launcher("mpiexec", _mpiexec_command, environment)

    def loading(self) -> AbstractContextManager[dict[str, object]]:
        """Tell the ranks whether to meet in a window, and on how many cores to compute."""
        return nullcontext({"window": self.window, "cores": self.cores})


def run_inside(
    bundle: Bundle, inputs: Sequence[Values], timeout: float | None = None, window: bool | None = None,
    flight: str | None = None, cores: int | None = None,
) -> list[Values]:  # fmt: skip
    """Run a bundle once as one rank of the `mpiexec` job that this process belongs to.

    Every rank makes this call.

    inputs: this rank's local arrays. Returns this rank's outputs. COMM_WORLD must have as many
    ranks as the mesh. A rank that fails or stalls for `timeout` seconds (see InsideProgram) ends the whole job with
    status 3 and one line on stderr. window, flight, cores: as for MpiEngine.
    """
    program = InsideProgram(bundle, timeout, window, flight, cores)
    try:
        return program.run(inputs)
    finally:
        program.close()
