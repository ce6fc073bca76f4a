"""Launch a kernel: run its grid in batches of blocks, on buffers of global memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshweave.simulator.ptx.access_sets import AccessSets
from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.grid import Checks, GridLaunch
from meshweave.simulator.ptx.kernel import DecodedKernel, decode
from meshweave.simulator.ptx.machine import Machine
from meshweave.simulator.ptx.memory import GlobalMemory
from meshweave.simulator.ptx.program import PtxModule
from meshweave.simulator.ptx.traffic import Counts

_BATCH = 8192  # threads that run in lock-step, as far as whole blocks allow
_SHARED_BATCH = 1 << 25  # bytes of shared memory of a batch


def launch(
    module: PtxModule,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    parameters: Sequence[bytes],
    memory: GlobalMemory,
    checks: Checks | None = None,
    access_sets: AccessSets | None = None,
) -> Counts:
    """Run a kernel of a module on the buffers of `memory`, in place.

    grid, block: sizes in x, y, z. shared_bytes: dynamic shared memory of a block. parameters: the
    bytes of each parameter, little-endian, in order. access_sets: is told what the kernel reads and
    writes. Raises EmulationError, with kernel, line of the
    PTX and thread, when the kernel breaks a rule or uses what is not emulated.
    """
    if entry not in module.kernels:
        module.kernels[entry] = decode(module, entry)
    kernel: DecodedKernel = module.kernels[entry]
    _check_sizes(kernel, grid, block)
    run = GridLaunch(
        module, kernel, grid, block, shared_bytes, memory, checks or Checks(), access_sets
    )
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


def _batches(run: GridLaunch, blocks: int) -> list[np.ndarray]:
    threads = -(-int(np.prod(run.block)) // 32) * 32
    shared = max(1, run.kernel.shared_bytes + run.shared_bytes)
    size = max(1, min(_BATCH // threads, _SHARED_BATCH // shared))
    return [np.arange(at, min(at + size, blocks)) for at in range(0, blocks, size)]


def _check_sizes(
    kernel: DecodedKernel, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    threads = int(np.prod(block))
    most = kernel.function.max_threads
    if not 1 <= threads <= 1024 or min(*grid, *block) < 1:
        raise EmulationError(
            f"{kernel.name}: grid {grid}, block {block}: 1 to 1024 threads a block"
        )
    if most is not None and threads > most:
        raise EmulationError(f"{kernel.name}: {threads} threads a block, made for at most {most}")


def _parameters(kernel: DecodedKernel, values: Sequence[bytes]) -> np.ndarray:
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


def _add_variables(module: PtxModule, memory: GlobalMemory) -> list[int]:
    """Put the module's variables of global and constant memory at their addresses."""
    added: list[int] = []
    for variable in module.variables.values():
        if variable.space in ("global", "const") and variable.data is not None and variable.nbytes:
            address = variable.data.ctypes.data
            memory.add(address, variable.data, f"variable {variable.name}")
            added.append(address)
    return added
