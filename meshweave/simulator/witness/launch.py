"""Compile a kernel for the host, and launch its grid: `witnessed`, `WitnessedKernel.launch`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from meshweave.simulator.witness.block import ANSWERED, BlockRun
from meshweave.simulator.witness.fault import WitnessError
from meshweave.simulator.witness.fibers import MOST_THREADS, SHARED_BYTES, Fibers
from meshweave.simulator.witness.library import linked
from meshweave.simulator.witness.text import nbytes
from meshweave.simulator.witness.translate import TranslatedModule, host_code

Size = tuple[int, int, int]
_BRANCHES = 20_000_000  # of a block's threads
_FEATURES = "+avx2,+fma,+f16c"


class WitnessedKernel:
    """Hold the kernels of a module as code of the host."""

    def __init__(self, code: TranslatedModule) -> None:
        self.code = code
        llvm = _llvm()
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu="x86-64", features=_FEATURES, opt=1)
        module = llvm.parse_assembly(code.text, context=llvm.create_context())
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
        fibers = _fibers()
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._place(module, "witness.machine", fibers.machine.ctypes.data)
        self.shared_bytes, base = 0, fibers.shared.ctypes.data
        for name, size, align in sorted(code.shared, key=lambda each: each[1] == 0):
            start = -(-self.shared_bytes // align) * align
            self._place(module, name, base + start)
            self.shared_bytes = start + size
        self._tables = [
            (v.name, machine.target_data.get_abi_size(v.global_value_type))
            for v in module.global_variables
            if not v.is_declaration
        ]
        self._engine.finalize_object()
        where = self._engine.get_function_address
        self._starts = {name: where(f"witness.start.{name}") for name in code.entries}
        self._begin = where("witness.begin")
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)(
            where("witness.resume")
        )

    def _place(self, module: Any, name: str, address: int) -> None:
        self._engine.add_global_mapping(module.get_global_variable(name), address)

    def launch(
        self,
        entry: str,
        grid: Size,
        block: Size,
        shared_bytes: int,
        parameters: Sequence[bytes],
        buffers: Iterable[tuple[int, int]],
        seed: int = 0,
    ) -> None:
        """Run a kernel in place, its blocks one after another in an order that the seed draws.

        shared_bytes: dynamic shared memory of a block. parameters: the bytes of each, in order. buffers: address
        and bytes of the memory that it may touch. Raises WitnessError, with kernel, block and thread, when it
        breaks a rule.
        """
        types, threads = self.code.entries.get(entry), int(np.prod(block))
        if types is None:
            raise WitnessError(f"no kernel {entry}; there are {', '.join(self.code.entries)}")
        if [nbytes(kind) for kind in types] != [len(value) for value in parameters]:
            raise WitnessError(
                f"{entry}: parameters of {types}, given {[len(v) for v in parameters]} bytes"
            )
        size = self.shared_bytes + shared_bytes
        if not 1 <= threads <= MOST_THREADS or size > SHARED_BYTES or min(*grid, *block) < 1:
            raise WitnessError(
                f"{entry}: grid {grid}, block {block}, {size} bytes of shared memory"
            )
        fibers, rng = _fibers(), np.random.default_rng(seed)
        with fibers.lock:
            given = np.frombuffer(
                b"".join(value.ljust(16, b"\0") for value in parameters), np.uint8
            ).copy()
            spaces = self._spaces(size, buffers)
            machine = fibers.machine
            machine[3] = self._starts[entry]
            machine[4] = given.ctypes.data if len(given) else 0
            machine[5], machine[6] = spaces.ctypes.data, len(spaces)
            machine[11:14], machine[14:17] = grid, block
            for number in rng.permutation(int(np.prod(grid))):
                x, y, z = (
                    number % grid[0],
                    number // grid[0] % grid[1],
                    number // (grid[0] * grid[1]),
                )
                machine[2], machine[8:11] = _BRANCHES, (x, y, z)
                fibers.shared[:size] = 0xFF  # a NaN of every type
                fibers.begin(block, self._begin)
                where = f"block {x}" if grid[1:] == (1, 1) else f"block {(x, y, z)}"
                BlockRun(
                    entry, where, self.code.lines, self.code.requests, threads, fibers, self._resume, spaces,
                    seed + int(number), rng,
                ).run()  # fmt: skip

    def _resume(self, records: np.ndarray) -> None:
        self._run(records.ctypes.data, len(records))

    def _spaces(self, shared: int, buffers: Iterable[tuple[int, int]]) -> np.ndarray:
        """Return where memory begins and ends: shared memory, buffers, tables of the module."""
        base = _fibers().shared.ctypes.data
        found = [(base, base + shared), *((a, a + n) for a, n in buffers)]
        for name, size in self._tables:
            address = self._engine.get_global_value_address(name)
            found.append((address, address + size))
        return np.array(found, np.uint64)


def witnessed(text: str, libdevice: str = "", architecture: int = 800) -> WitnessedKernel:
    """Compile a module of kernels.

    text: LLVM IR as llvmlite's LLVM reads it. libdevice: path of the bitcode of the device's mathematics, where
    the text calls it. architecture: of the chip (sm_80: 800). Raises WitnessError that names what the witness
    does not know.
    """
    return WitnessedKernel(host_code(linked(_llvm(), text, libdevice, architecture), ANSWERED))


@cache
def _fibers() -> Fibers:
    return Fibers()


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    if missing := missing_here():
        raise WitnessError(f"the witness needs a processor with {', '.join(missing)}")
    return llvm


def missing_here() -> list[str]:
    """Return what this machine's processor lacks."""
    import llvmlite.binding as llvm

    has = llvm.get_host_cpu_features()
    return [name for name in ("avx2", "fma", "f16c") if not has.get(name)]
