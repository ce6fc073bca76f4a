"""Run bundles of the `nccl` engine: a process per GPU, whose host code calls the CUDA driver, NCCL and cuBLASLt.

Our own launcher starts the processes, on this host. For ranks that another launcher has started, on any number of
hosts, there is `run_inside` (inside.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from meshweave.runtime.gpu.launcher import launcher
from meshweave.runtime.processes.engine import ProcessEngine
from meshweave.runtime.processes.launch import Launcher


class NcclEngine(ProcessEngine):
    """Run bundles of target gpu in processes of this host, one for each GPU.

    timeout: as for LocalEngine; a single kernel or collective must not take longer.
    share:   ranks may share a GPU (correctness only: they take turns, and NCCL talks over the loopback device).
    graph:   run steps as CUDA graphs from the second time on.
    flight:  as for LocalEngine.
    """

    name = "nccl"

    def __init__(
        self, timeout: float | None = None, share: bool = False, graph: bool = False,
        flight: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(timeout, flight)
        self.share, self.graph = share, graph

    def launcher(self) -> Launcher:
        """Return our own launcher, which gives each rank a GPU."""
        return launcher(self.share)

    @contextmanager
    def loading(self) -> Iterator[dict[str, object]]:
        """Tell the ranks to meet in a folder, which is removed when all have loaded."""
        with tempfile.TemporaryDirectory(prefix="meshweave-", ignore_cleanup_errors=True) as folder:
            yield {"graph": self.graph, "store": f"file://{folder}"}
