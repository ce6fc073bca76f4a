"""Hold what the batches of one launch share: sizes, memory, checks and parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshweave.simulator.ptx.access_sets import AccessSets
from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.memory import GlobalMemory, MemoryAccess
from meshweave.simulator.ptx.program import PtxModule
from meshweave.simulator.ptx.slots import OperandSlots
from meshweave.simulator.ptx.traffic import Traffic


@dataclass(frozen=True)
class Checks:
    """Choose what a launch looks for besides bounds and alignment, which it always checks.

    races: two warps touch the same bytes, one writes, no barrier between. uninitialised: shared
    memory is read before it was written or before the wait for a copy to it. collectives: warps
    are whole at barriers and where they exchange values. traffic: count sectors and wavefronts;
    takes time, so it is off. limit: instructions of one batch of threads before the launch is
    taken to hang.
    """

    races: bool = True
    uninitialised: bool = True
    collectives: bool = True
    traffic: bool = False
    limit: int = 20_000_000


@dataclass
class KernelResources:
    """Describe what a kernel needs of each block, and the slots of its operands.

    shared: offset of each variable of shared memory; shared_bytes: of all but the dynamic part.
    local: offset of each variable of local memory. global_shift, shared_shift: log2 of the
    narrowest access of the kernel to that memory. accumulators: registers that `wgmma` adds to,
    each with the first of those that belong together.
    """

    name: str
    slots: OperandSlots
    shared: dict[str, int]
    shared_bytes: int
    local: dict[str, int]
    local_bytes: int
    global_shift: int
    shared_shift: int
    accumulators: dict[str, str]


class GridLaunch:
    """Hold what the batches of one launch share."""

    def __init__(
        self,
        module: PtxModule,
        kernel: KernelResources,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        memory: GlobalMemory,
        checks: Checks,
        access_sets: AccessSets | None = None,
    ) -> None:
        self.module, self.kernel, self.grid, self.block = module, kernel, grid, block
        self.shared_bytes, self.memory, self.checks = shared_bytes, memory, checks
        self.access_sets = access_sets
        self.limit = checks.limit
        self.met: set[MemoryAccess] = set()  # accesses that remember a segment of this launch
        self.first = self.number = self.last = memory.clock
        self.parameters = np.zeros(0, np.uint8)
        self.traffic = Traffic() if checks.traffic else None

    def symbol(self, name: str) -> int:
        """Return the address of a variable in its space."""
        for places in (self.kernel.shared, self.kernel.local):
            if name in places:
                return places[name]
        variable = self.module.variables.get(name)
        if variable is None or variable.data is None:
            raise EmulationError(f'{self.kernel.name}: no variable "{name}"')
        return int(variable.data.ctypes.data)
