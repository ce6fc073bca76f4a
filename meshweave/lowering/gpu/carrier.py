"""Collectives as NCCL wants them: what goes out lies back to back, and so does what comes in.

Kernels pack and unpack around them, fused with what is next to them where they can be; members read
nothing out of each other's memory.
"""

from __future__ import annotations

from typing import Any

from meshweave.errors import CompileError
from meshweave.lowering.carrier import Collectives
from meshweave.lowering.collectives import Collective
from meshweave.lowering.gpu.nccl import DATATYPES


class DeviceCollectives(Collectives):
    """The collectives of a program for gpus."""

    target = "gpu"

    def __init__(self, module: Any, mesh: str, engine: str) -> None:
        """engine: either of the target's; both run the same code."""
        super().__init__(module, mesh, "mpi")  # ranks send each other messages, as between hosts

    def _direct(self, run: int, members: int = 1) -> bool:
        return False

    def _carry(self, op: Any, collective: Collective, *details: Any, **more: Any) -> Any:
        if collective.kind and collective.dtype not in DATATYPES:
            raise CompileError(f"{op.name}: NCCL cannot reduce {collective.dtype} on target gpu")
        return super()._carry(op, collective, *details, **more)
