"""Programs of one rank whose units run as device kernels in the emulator, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshweave.device import DeviceModule
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.constants import constant_buffers
from meshweave.lowering.gpu.facts import facts_of
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.toolchain.ptx import compile_kernels, device_llvm, to_ptx
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.stages import lower
from meshweave.pipeline import run_pipeline
from meshweave.simulator import ptx as emulator

NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i64": np.int64,
         "i32": np.int32, "i16": np.int16, "i8": np.int8, "i1": np.bool_, "index": np.int64}  # fmt: skip
_CHECKS = emulator.Checks()
Launch = Callable[[DeviceKernel, list[bytes], emulator.GlobalMemory], None]
"""Run a kernel, given its arguments."""
MESH = '"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()\n'


class DeviceRun:
    """A program of one rank, lowered: its units, their kernels, and their runs."""

    def __init__(
        self, text: str, target: Target | None = None, assemble: bool = True, passes: str = ""
    ) -> None:
        """text: of a module, whose `@main` calls no collectives and has no control flow. assemble:
        whether ptxas sees the kernels, which takes as long as all the rest. passes: what runs on it
        first; it then has its mesh.
        """
        self.target, self.assemble = target or Target(), assemble
        with context(), ir.Location.unknown():
            module = ir.Module.parse(text if passes else MESH + text)
            if passes:
                run_pipeline(module, passes)
            self.program: LoweredProgram = lower(module, "emulate" if passes else "local")
            schedule = self.program.plan
            parts = {
                k: families.launches_of(e, self.target, facts_of(e, schedule))
                for k, e in enumerate(schedule.entries)
                if isinstance(e, KernelUnit)
            }
            self.kernels: list[DeviceKernel] = [
                families.build(unit, self.target, facts)
                for part in parts.values()
                for unit, facts in part
            ]
            # What runs, in order: units, and steps that read single elements.
            self.entries = [
                u for k, e in enumerate(schedule.entries) for u, _ in parts.get(k, [(e, None)])
            ]
            inputs = schedule.buffers.inputs
            places = [
                (tuple(v.type.shape), str(v.type.element_type))
                for v in _function(self.program).arguments
            ]
            self.inputs = places[:inputs]
            self.results = places[inputs : inputs + schedule.buffers.outputs]
            self.constants = constant_buffers(self.program.module)

    @cached_property
    def modules(self) -> list[DeviceModule]:
        """Of each kernel; compiled when they are first asked for."""
        return compiled(self.kernels, self.target.chip, self.assemble)

    @property
    def families(self) -> list[str]:
        """Of each kernel."""
        return [k.family for k in self.kernels]

    def run(
        self, *inputs: Any, checks: emulator.Checks = _CHECKS, launch: Launch | None = None
    ) -> list[np.ndarray]:
        """The results; bf16 ones as their bits. launch: runs a kernel instead of the emulator."""
        memory = _Memory()
        schedule = self.program.plan
        arena = memory.buffer("arena", 0, max(schedule.arena_bytes, 1))
        arena[:] = 0xFF  # a NaN of every type
        for k, value in enumerate(inputs):
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            memory.buffer("input", k, data.nbytes)[:] = data
        for name, data in self.constants.items():
            memory.buffer("constant", name, len(data))[:] = np.frombuffer(data, np.uint8)
        sizes = [int(np.prod(s)) * np.dtype(NUMPY[t]).itemsize for s, t in self.results]
        outputs = [memory.buffer("output", k, n) for k, n in enumerate(sizes)]
        scratch = [
            p.root
            for e in self.entries
            if isinstance(e, KernelUnit)
            for p in e.pointers.places
            if p.root.kind == "scratch"
        ]
        room = memory.buffer("scratch", 0, max([r.offset + r.nbytes for r in scratch], default=1))
        room[:] = 0xFF
        self.counts: list[emulator.Counts] = []
        scalars: dict[Any, bytes] = {}
        todo = iter(range(len(self.kernels)))
        for entry in self.entries:
            if not isinstance(entry, KernelUnit):
                self._element(entry, memory, scalars)
                continue
            number = next(todo)
            arguments = [self._address(memory, *p) for p in entry.pointers.places]
            arguments += [scalars[s] for s in entry.pointers.scalars]
            if launch is not None:
                launch(self.kernels[number], arguments, memory.memory)
                continue
            kernel, parsed = self.kernels[number], emulator.parse(self.modules[number].ptx)
            self.counts.append(
                emulator.launch(
                    parsed,
                    kernel.entry,
                    kernel.grid,
                    kernel.block,
                    kernel.shared_bytes,
                    arguments,
                    memory.memory,
                    checks,
                )
            )
        return [
            out[:n].view(NUMPY[t]).reshape(s).copy()
            for out, n, (s, t) in zip(outputs, sizes, self.results)
        ]

    def _address(self, memory: _Memory, root: Any, offset: Any, nbytes: int) -> bytes:
        """A pointer as a kernel gets it."""
        assert not offset.terms, "an offset that is known at run time alone"
        base = _base(root)
        return (memory.address(*base) + offset.const * nbytes).to_bytes(8, "little")

    def _element(self, step: Any, memory: _Memory, scalars: dict[Any, bytes]) -> None:
        """A step that reads the one element of a buffer, for kernels that are given it."""
        if step.what == "memref.load":
            place, *indices = step.operands
            assert not indices
            buffer = memory.buffers[_base(place.root)[:2]]
            scalars[step.op.results[0]] = buffer[: place.width].tobytes()
        else:
            assert step.what in ("func.return", "arith.constant"), step.what


def compiled(kernels: list[DeviceKernel], chip: str, assemble: bool) -> list[DeviceModule]:
    """The device module of each kernel; with machine code if `assemble`."""
    if assemble:
        return compile_kernels(kernels, chip)
    return [DeviceModule(chip, to_ptx(device_llvm(kernel.text), chip)) for kernel in kernels]


class _Memory:
    """Buffers at addresses that are multiples of 256, as the runtime gives them."""

    def __init__(self) -> None:
        self.memory = emulator.GlobalMemory()
        self.buffers: dict[tuple[str, Any], np.ndarray] = {}

    def buffer(self, kind: str, index: Any, nbytes: int) -> np.ndarray:
        """A new one."""
        room = np.zeros(nbytes + 512, np.uint8)
        start = -room.ctypes.data % 256
        data = room[start : start + max(nbytes, 1)]
        self.buffers[kind, index] = data
        self.memory.add(data.ctypes.data, data, f"{kind} {index}")
        return data[:nbytes]

    def address(self, kind: str, index: Any, start: int) -> int:
        """Of byte `start` of a buffer."""
        return int(self.buffers[kind, index].ctypes.data) + start


def _base(root: Any) -> tuple[str, Any, int]:
    """Kind and number of a buffer, and the byte of it where this one begins."""
    if root.kind == "arena":
        return "arena", 0, root.offset
    if root.kind == "scratch":
        return "scratch", 0, root.offset
    if root.kind == "constant":
        return "constant", root.value.owner.attributes["name"].value, 0
    return root.kind, root.index, 0


def _function(program: LoweredProgram) -> Any:
    for view in program.module.body.operations:
        if view.operation.name == "func.func":
            return view.operation.regions[0].blocks[0]
    raise AssertionError("no function")


def bits(values: Any) -> np.ndarray:
    """bf16 numbers, rounded to nearest even, as their bits."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
    return rounded.astype(np.uint16).reshape(np.shape(values))


def numbers(raw: np.ndarray) -> np.ndarray:
    """bf16 numbers from their bits."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def run_text(text: str, *inputs: Any, target: Target | None = None) -> Sequence[np.ndarray]:
    """Results of a program of one rank."""
    return DeviceRun(text, target).run(*inputs)
