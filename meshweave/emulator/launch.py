"""Launch a kernel: its grid in batches of blocks, on buffers of global memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshweave.emulator.fault import EmulationError
from meshweave.emulator.kernel import Kernel, decode
from meshweave.emulator.machine import Machine
from meshweave.emulator.memory import LocalMemory, Memory, SharedMemory
from meshweave.emulator.program import Module
from meshweave.emulator.races import Order
from meshweave.emulator.spaces import Access
from meshweave.emulator.touched import Touched
from meshweave.emulator.traffic import Traffic

_BATCH = 8192  # threads that run in lock-step, as far as whole blocks allow
_SHARED_BATCH = 1 << 25  # bytes of shared memory of a batch


@dataclass(frozen=True)
class Checks:
    """What a launch looks for besides bounds and alignment, without which it cannot run.

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
class Counts:
    """What a launch did. instructions: executed, summed over threads. steps: executed, summed over
    batches. sectors: of 32 bytes of global memory touched by a warp's accesses, and the least
    possible; wavefronts: of 128 bytes of shared memory, and the least possible (both only with
    `Checks.traffic`). by_line: for ("global" or "shared", line of PTX) what was used, and the least.
    """

    instructions: int = 0
    steps: int = 0
    sectors: int = 0
    least_sectors: int = 0
    wavefronts: int = 0
    least_wavefronts: int = 0
    by_line: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


class Launch:
    """One launch: what its batches share."""

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        memory: Memory,
        checks: Checks,
        touched: Touched | None = None,
    ) -> None:
        self.module, self.kernel, self.grid, self.block = module, kernel, grid, block
        self.shared_bytes, self.memory, self.checks = shared_bytes, memory, checks
        self.touched = touched
        self.limit = checks.limit
        self.met: set[Access] = set()  # accesses that remember a segment of this launch
        self.first = self.number = self.last = memory.clock
        self.parameters = np.zeros(0, np.uint8)
        self.traffic = Traffic() if checks.traffic else None

    def attach(self, machine: Machine) -> None:
        """Give a batch its memories and its order."""
        kernel = self.kernel
        machine.order = Order(machine, self.first)
        size = kernel.shared_bytes + self.shared_bytes
        machine.shared = SharedMemory(machine.block_of, max(size, 1), kernel.shared_shift)
        machine.order.shared = machine.shared.tracker
        machine.local = LocalMemory(machine.threads, kernel.local_bytes)
        machine.traffic = self.traffic

    def symbol(self, name: str) -> int:
        """The address of a variable in its space."""
        for places in (self.kernel.shared, self.kernel.local):
            if name in places:
                return places[name]
        variable = self.module.variables.get(name)
        if variable is None or variable.data is None:
            raise EmulationError(f'{self.kernel.name}: no variable "{name}"')
        return int(variable.data.ctypes.data)

    def special(self, machine: Machine, name: str) -> np.ndarray:
        """The value of a special register: one element, or one for each lane."""
        base, _, axis = name.partition(".")
        sizes = {"%ntid": self.block, "%nctaid": self.grid}
        if base in sizes and axis in ("x", "y", "z"):
            return np.array([sizes[base]["xyz".index(axis)]], np.uint32)
        if axis in ("x", "y", "z") and base == "%tid":
            lane = np.minimum(machine.lane, machine.block_threads - 1)
            return _place(lane, self.block)["xyz".index(axis)]
        if axis in ("x", "y", "z") and base == "%ctaid":
            return _place(machine.blocks[machine.block_of], self.grid)["xyz".index(axis)]
        return _lane_register(machine, name, self.shared_bytes, self.kernel.shared_bytes)


def _place(number: np.ndarray, sizes: tuple[int, int, int]) -> list[np.ndarray]:
    places = (
        number % sizes[0],
        number // sizes[0] % sizes[1],
        number // sizes[0] // sizes[1],
    )
    return [place.astype(np.uint32) for place in places]


def _lane_register(machine: Machine, name: str, dynamic: int, static: int) -> np.ndarray:
    lane = (machine.lane % 32).astype(np.uint32)
    one = np.uint32(1) << lane
    values = {
        "%laneid": lane,
        "%warpid": (machine.lane // 32).astype(np.uint32),
        "%nwarpid": np.array([machine.lanes_per_block // 32], np.uint32),
        "%lanemask_eq": one,
        "%lanemask_lt": one - np.uint32(1),
        "%lanemask_le": (one - np.uint32(1)) | one,
        "%lanemask_gt": ~((one - np.uint32(1)) | one),
        "%lanemask_ge": ~(one - np.uint32(1)),
        "%dynamic_smem_size": np.array([dynamic], np.uint32),
        "%total_smem_size": np.array([dynamic + static], np.uint32),
    }
    if name not in values:
        raise EmulationError(f"{machine.kernel.name}: special register {name} is not emulated")
    out: np.ndarray = values[name]
    return out


def launch(
    module: Module,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    parameters: Sequence[bytes],
    memory: Memory,
    checks: Checks | None = None,
    touched: Touched | None = None,
) -> Counts:
    """Run a kernel of a module on the buffers of `memory`, in place.

    grid, block: sizes in x, y, z. shared_bytes: dynamic shared memory of a block. parameters: the
    bytes of each parameter, little-endian, in order. touched: is told what the kernel reads and
    writes. Raises EmulationError, with kernel, line of the
    PTX and thread, when the kernel breaks a rule or uses what is not emulated.
    """
    if entry not in module.kernels:
        module.kernels[entry] = decode(module, entry)
    kernel: Kernel = module.kernels[entry]
    _check_sizes(kernel, grid, block)
    run = Launch(module, kernel, grid, block, shared_bytes, memory, checks or Checks(), touched)
    run.parameters = _parameters(kernel, parameters)
    added = _add_variables(module, memory)
    counts = Counts()
    try:
        with np.errstate(all="ignore"):
            for blocks in _batches(run, int(np.prod(grid))):
                machine = Machine(run, kernel, blocks)
                machine.run()
                machine.finish()
                counts.instructions += machine.executed
                counts.steps += machine.steps
                run.last = max(run.last, int(machine.order.stamps.max()))
    finally:
        for access in run.met:
            access.segment = None
        memory.clock = run.last + 1
        for address in added:
            memory.remove(address)
    if run.traffic is not None:
        run.traffic.into(counts)
    return counts


def _batches(run: Launch, blocks: int) -> list[np.ndarray]:
    threads = -(-int(np.prod(run.block)) // 32) * 32
    shared = max(1, run.kernel.shared_bytes + run.shared_bytes)
    size = max(1, min(_BATCH // threads, _SHARED_BATCH // shared))
    return [np.arange(at, min(at + size, blocks)) for at in range(0, blocks, size)]


def _check_sizes(kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    threads = int(np.prod(block))
    most = kernel.function.max_threads
    if not 1 <= threads <= 1024 or min(*grid, *block) < 1:
        raise EmulationError(
            f"{kernel.name}: grid {grid}, block {block}: 1 to 1024 threads a block"
        )
    if most is not None and threads > most:
        raise EmulationError(f"{kernel.name}: {threads} threads a block, made for at most {most}")


def _parameters(kernel: Kernel, values: Sequence[bytes]) -> np.ndarray:
    wanted = kernel.function.parameters
    if len(values) != len(wanted):
        raise EmulationError(f"{kernel.name}: {len(wanted)} parameters, {len(values)} given")
    end = max((parameter.offset + parameter.nbytes for parameter in wanted), default=0)
    out = np.zeros(end, np.uint8)
    for number, (parameter, value) in enumerate(zip(wanted, values)):
        if len(value) != parameter.nbytes:
            raise EmulationError(
                f"{kernel.name}: parameter {number} has {parameter.nbytes} bytes, {len(value)} given"
            )
        out[parameter.offset :][: parameter.nbytes] = np.frombuffer(value, np.uint8)
    return out


def _add_variables(module: Module, memory: Memory) -> list[int]:
    """Put the module's variables of global and constant memory at their addresses."""
    added: list[int] = []
    for variable in module.variables.values():
        if variable.space in ("global", "const") and variable.data is not None and variable.nbytes:
            address = variable.data.ctypes.data
            memory.add(address, variable.data, f"variable {variable.name}")
            added.append(address)
    return added
