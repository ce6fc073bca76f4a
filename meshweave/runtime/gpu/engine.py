"""The `nccl` engine: a process per GPU; the compiled host code of each calls the CUDA driver, NCCL
and cuBLASLt.

It is engine mpi with other ranks: processes that our own launcher starts on this host, and memory
that lies on devices. For ranks that somebody else has started, on any number of hosts, there is
`run_inside` (inside.py).
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.runtime.gpu.launcher import launcher
from meshweave.runtime.launch import Ranks
from meshweave.runtime.mpi import START_SECONDS, MpiEngine, MpiExecutable


class NcclEngine(MpiEngine):
    """Runs bundles of target gpu in processes of this host, one for each GPU, started at the first
    load and kept until `close` or the program's end.

    timeout: seconds without progress, while a rank waits, after which a run ends with RankError; a
    single kernel or collective must not take longer. share: ranks may share a GPU (correctness
    only: they take turns, and NCCL talks over the loopback device). graph: run steps as CUDA graphs
    from the second time on.
    """

    name = "nccl"

    def __init__(self, timeout: float = 60.0, share: bool = False, graph: bool = False) -> None:
        super().__init__(timeout, window=False)
        self.share, self.graph = share, graph

    def load(self, bundle: Bundle) -> NcclExecutable:
        """Load a bundle of target gpu on as many GPUs as its mesh has ranks.

        Raises MeshweaveError when it is another's or cannot be loaded here, RankError when the
        ranks cannot be started or a call fails.
        """
        if bundle.manifest.target != "gpu":
            raise MeshweaveError(
                f'the bundle is for target "{bundle.manifest.target}", engine "{self.name}" '
                'runs "gpu"'
            )
        return NcclExecutable(self, bundle)

    def job(self, nranks: int) -> Ranks:
        """The running ranks for meshes of this size; new ones when there are none (any more)."""
        with self.busy:
            if nranks not in self._jobs or not self._jobs[nranks].alive:
                self._jobs[nranks] = self._started(nranks)
            return self._jobs[nranks]

    def _started(self, nranks: int) -> Ranks:
        return Ranks(nranks, START_SECONDS, launcher(self.share))


class NcclExecutable(MpiExecutable):
    """A program on the GPUs of its mesh. After a failed run the ranks are started anew by the next
    one.
    """

    engine: NcclEngine

    def attach(self) -> tuple[Ranks, int]:
        """The ranks, with this program loaded, and its number there."""
        self._folder = ""
        try:
            return super().attach()
        finally:
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _loading(self) -> dict[str, Any]:
        """The message that loads; the ranks meet in a folder that is gone when all have loaded."""
        self._folder = tempfile.mkdtemp(prefix="meshweave-")
        return {
            "do": "load", "program": self._number, "graph": self.engine.graph,
            "store": f"file://{self._folder}",
        }  # fmt: skip
