"""Hold the state of a batch of blocks: what the handlers of instructions read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.grid import GridLaunch, KernelResources
from meshweave.simulator.ptx.memory import LocalMemory, MemoryAccess, SharedMemory
from meshweave.simulator.ptx.races import BarrierOrder


@dataclass
class Flight:
    """Hold the copies in flight of one instruction.

    For each lane: the address in shared memory, the bytes, and the number of its group.
    """

    access: MemoryAccess
    lanes: np.ndarray
    addresses: np.ndarray
    values: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class TensorReads:
    """Hold what a product of a warpgroup reads of shared memory until the wait for its `group`.

    rows, of 2^log2 granules; within: counted in the block; lanes: that stand for each; granules: all of them.
    """

    rows: np.ndarray
    within: np.ndarray
    lanes: np.ndarray
    granules: np.ndarray
    log2: int
    group: int


class Multiplying:
    """Hold what the tensor cores do while threads go on.

    committed: groups of products of each lane; done: those that it has waited for; fences: that it has passed. For
    the registers that products add to, by the first of them: flights, the group of the last product (-1: none), and
    touched, how many fences there had been when anything else touched them.
    """

    def __init__(self, threads: int, accumulators: set[str]) -> None:
        self.committed, self.done, self.fences = (np.zeros(threads, np.int64) for _ in range(3))
        self.flights = {name: np.full(threads, -1, np.int64) for name in accumulators}
        self.touched = {name: np.zeros(threads, np.int64) for name in accumulators}
        self.reads: list[TensorReads] = []


class Batch:
    """Hold the state of a batch of blocks. Handlers read these.

    regs:    arrays of the slots. threads: lanes of the batch, whole warps of 32.
    where:   True, or the mask that results of arithmetic are written under.
    active:  None when every lane takes part, else the mask of those that do; lanes: their numbers.
    block_of: number of each lane's block in the batch; lane, of each, counts in the block.
    """

    def __init__(self, launch: GridLaunch, kernel: KernelResources, blocks: np.ndarray) -> None:
        self.launch, self.kernel, self.blocks = launch, kernel, blocks
        self.checks = launch.checks
        self.block_threads = int(np.prod(launch.block))
        self.lanes_per_block = -(-self.block_threads // 32) * 32
        self.threads = self.lanes_per_block * len(blocks)
        lane = np.arange(self.threads)
        self.lane = lane % self.lanes_per_block
        self.block_of = lane // self.lanes_per_block
        self.alive = self.lane < self.block_threads
        self.living = int(np.count_nonzero(self.alive))
        self.where: Any = True
        self.active: np.ndarray | None = None
        self.all_lanes = self.lanes = lane
        self.flights: list[Flight] = []  # cp.async copies under way
        self.committed = np.zeros(self.threads, np.int64)  # groups of them, of each lane
        self.order = BarrierOrder(launch.first, launch.grid, blocks, self.lanes_per_block)
        size = kernel.shared_bytes + launch.shared_bytes
        added = set(kernel.accumulators.values())
        self.multiplying = Multiplying(self.threads, added) if added else None
        self.shared = SharedMemory(self.block_of, max(size, 1), kernel.shared_shift, bool(added))
        self.order.shared = self.shared.tracker
        self.local = LocalMemory(self.threads, kernel.local_bytes)
        self.traffic = launch.traffic
        self.regs = kernel.slots.arrays(self)

    def special(self, name: str) -> np.ndarray:
        """Return the value of a special register: one element, or one for each lane."""
        base, _, axis = name.partition(".")
        sizes = {"%ntid": self.launch.block, "%nctaid": self.launch.grid}
        if base in sizes and axis in ("x", "y", "z"):
            return np.array([sizes[base]["xyz".index(axis)]], np.uint32)
        if axis in ("x", "y", "z") and base == "%tid":
            lane = np.minimum(self.lane, self.block_threads - 1)
            return _place(lane, self.launch.block)["xyz".index(axis)]
        if axis in ("x", "y", "z") and base == "%ctaid":
            return _place(self.blocks[self.block_of], self.launch.grid)["xyz".index(axis)]
        return self._lane_register(name)

    def _lane_register(self, name: str) -> np.ndarray:
        dynamic, static = self.launch.shared_bytes, self.kernel.shared_bytes
        lane = (self.lane % 32).astype(np.uint32)
        one = np.uint32(1) << lane
        values = {
            "%laneid": lane,
            "%warpid": (self.lane // 32).astype(np.uint32),
            "%nwarpid": np.array([self.lanes_per_block // 32], np.uint32),
            "%lanemask_eq": one,
            "%lanemask_lt": one - np.uint32(1),
            "%lanemask_le": (one - np.uint32(1)) | one,
            "%lanemask_gt": ~((one - np.uint32(1)) | one),
            "%lanemask_ge": ~(one - np.uint32(1)),
            "%dynamic_smem_size": np.array([dynamic], np.uint32),
            "%total_smem_size": np.array([dynamic + static], np.uint32),
        }
        if name not in values:
            raise EmulationError(f"{self.kernel.name}: special register {name} is not emulated")
        out: np.ndarray = values[name]
        return out

    def symbol(self, name: str) -> int:
        """Return the address of a variable."""
        return self.launch.symbol(name)

    def check_aligned(self, access: MemoryAccess, addresses: np.ndarray) -> None:
        """Raise the error of the first address that is not a multiple of the bytes of the access."""
        real = access.real(addresses)
        odd = (real & np.uint64(access.nbytes - 1)) != 0
        if odd.any():
            place = int(np.argmax(odd))
            what = f"address {int(real[place]):#x} is not a multiple of {access.nbytes}"
            raise self.fault_at(access, what, place)

    def fault_at(self, access: MemoryAccess, what: str, place: int) -> EmulationError:
        """Return an error of an access by the active lane number `place`."""
        lane = int(self.lanes[min(place, len(self.lanes) - 1)])
        return self.fault(access.line, f"{access.instruction.opcode}: {what}", lane)

    def fault(self, line: int, what: str, lane: int | None = None) -> EmulationError:
        """Return an error at a line of the PTX, and at a thread."""
        who = "" if lane is None else f", {self.thread(lane)}"
        return EmulationError(f"{self.kernel.name}: ptx line {line}{who}: {what}")

    def thread(self, lane: int) -> str:
        """Return `block (x, y, z) thread (x, y, z)` of a lane."""
        block = unravel(int(self.blocks[self.block_of[lane]]), self.launch.grid)
        return f"block {block} thread {unravel(int(self.lane[lane]), self.launch.block)}"


def _place(number: np.ndarray, sizes: tuple[int, int, int]) -> list[np.ndarray]:
    places = (
        number % sizes[0],
        number // sizes[0] % sizes[1],
        number // sizes[0] // sizes[1],
    )
    return [place.astype(np.uint32) for place in places]


def unravel(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return x, y, z of a number that counts x first."""
    return (
        number % sizes[0],
        number // sizes[0] % sizes[1],
        number // sizes[0] // sizes[1],
    )
