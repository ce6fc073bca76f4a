"""Run bundles of the `mpi` engine: a process per rank, whose compiled code calls MPI.

`MpiEngine` is for any Python program: it starts the ranks under `mpiexec`. `run_inside` is for a program that the user
has started under an `mpiexec` of their own, on any number of hosts. This process never loads mpi4py: the ranks do.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.runtime.mpi.inside import InsideProgram
from meshweave.runtime.mpi.window import wanted
from meshweave.runtime.processes.engine import ProcessEngine
from meshweave.runtime.processes.launch import Launcher, environment
from meshweave.runtime.program import Values


def mpiexec() -> str:
    """Return the launcher of the MPI that mpi4py uses: the one beside this Python, else on PATH.

    Raises MeshweaveError without one.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise MeshweaveError("the mpi engine needs mpiexec: pip install mpi4py mpich")
    return found


def _mpi_command(nranks: int, path: str) -> list[str]:
    ranks = [mpiexec(), "-n", str(nranks), sys.executable, "-m", "mpi4py"]
    return [*ranks, "-m", "meshweave.runtime.mpi.worker", path]


class MpiEngine(ProcessEngine):
    """Run bundles in processes under `mpiexec`; see ProcessEngine for how long they live, `timeout` and `flight`.

    window: whether collectives go through shared memory (True) or by MPI's own (False, slower, for comparison);
    by default through shared memory, unless MESHWEAVE_MPI_WINDOW=0 is in the environment.
    """

    name = "mpi"

    def __init__(
        self, timeout: float = 60.0, window: bool | None = None, flight: str | None = None
    ) -> None:
        super().__init__(timeout, flight)
        self.window = wanted(window)

    def launcher(self) -> Launcher:
        """Return `mpiexec`."""
        return Launcher("mpiexec", _mpi_command, environment)

    def loading(self) -> AbstractContextManager[dict[str, object]]:
        """Tell the ranks whether to meet in a window."""
        return nullcontext({"window": self.window})


def run_inside(
    bundle: Bundle, inputs: Sequence[Values], timeout: float = 60.0, window: bool | None = None,
    flight: str | None = None,
) -> list[Values]:  # fmt: skip
    """Run a bundle once as one rank of the `mpiexec` job that this process belongs to.

    Every rank makes this call.

    inputs: this rank's local arrays. Returns this rank's outputs. COMM_WORLD must have as many
    ranks as the mesh. A rank that fails or stalls for `timeout` seconds ends the whole job with
    status 3 and one line on stderr. window, flight: as for MpiEngine.
    """
    program = InsideProgram(bundle, timeout, window, flight)
    try:
        return program.run(inputs)
    finally:
        program.close()
