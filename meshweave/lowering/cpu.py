"""The cpu target: a program in the local view to a bundle.

tensors -> kernels fused, everything else in place (fuse.py) -> buffers (bufferize.py) -> units in
an arena (schedule.py) -> machine code: the kernels at O3, each once however often it is called; the
step function, which calls them, at O0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.bindings import ir
from meshweave.bundle import Bundle, Manifest, Port, Slots
from meshweave.errors import CompileError
from meshweave.lowering import blas
from meshweave.lowering.bufferize import boundary, bufferize, run_passes
from meshweave.lowering.carrier import Collectives
from meshweave.lowering.codegen import kernels_object, step_object
from meshweave.lowering.collectives import CODES, collectives_object
from meshweave.lowering.constants import constant_buffers
from meshweave.lowering.emit import Code
from meshweave.lowering.functions import carry_calls, keep_functions, kept_functions, name_of
from meshweave.lowering.fuse import Fusion
from meshweave.lowering.kernels import Kernel
from meshweave.lowering.loops import unit_text
from meshweave.lowering.prepare import (
    PREPARE,
    ports,
    refuse_unknown,
    spell_out,
)
from meshweave.lowering.rows import Unit
from meshweave.lowering.schedule import Schedule
from meshweave.lowering.serve import can_be_served, serve_object
from meshweave.lowering.steps import Buffers
from meshweave.lowering.window import staging_bytes
from meshweave.transforms.base import copied, functions
from meshweave.transforms.generalize import decompose


def compile_local(module: Any, engine: str = "local") -> Bundle:
    """Compile `@main` of a module in the local view for the cpu.

    engine: whose collectives the program calls, "local" or "mpi".
    Raises CompileError, with op and place, for what cannot be lowered. The module itself is left as
    it is.
    """
    with module.context, ir.Location.unknown():
        return lower(module, engine).bundle(engine)


def lower(source: Any, engine: str = "local") -> Program:
    """Everything before code generation, within the context of `source`."""
    if engine not in CODES:
        raise CompileError(f'no engine "{engine}" on target cpu; there are {", ".join(CODES)}')
    inputs, outputs, mesh = ports(source)
    module = copied(source)
    collectives = Collectives(module, mesh, engine)
    decompose(module)
    wanted = keep_functions(module)
    run_passes(module, PREPARE)
    kept, times = kept_functions(module)
    bodies = [_Body(function, times[name_of(function)]) for function in kept]
    numbers = {body.name: k for k, body in enumerate(bodies) if body.name in wanted}
    for body in bodies:
        body.groups = collectives.indices(body.function)
        refuse_unknown(body.function, set(numbers))
        spell_out(body.function)
        carry_calls(body.function, numbers)
    collectives.renumber([(body.function, body.times) for body in bodies])
    for body in bodies:
        body.fuse()
    module = bufferize(module, [body.function for body in bodies])
    made = {name_of(function): function for function in functions(module)}
    frames: list[int] = []
    for body in bodies:
        body.plan(made[body.name], frames, collectives.in_place)
        frames.append(body.schedule.arena_bytes)
    return Program(inputs, outputs, mesh, module, collectives, bodies)


class _Body:
    """A function on its way: `kernels` and `groups` (of each member index it uses) before
    bufferisation, `schedule` after it. `times`: how often a step runs it.
    """

    schedule: Schedule

    def __init__(self, function: Any, times: int) -> None:
        self.function, self.times, self.name = function, times, name_of(function)
        type_ = function.operation.attributes["function_type"].value
        self.inputs, self.outputs = len(type_.inputs), len(type_.results)
        self.kernels: list[Kernel] = []
        self.groups: list[int] = []

    def fuse(self) -> None:
        """Kernels in the place of linalg ops, buffers in the place of arguments and results."""
        fusion = Fusion(self.function.operation.regions[0].blocks[0])
        fusion.run()
        self.kernels = fusion.kernels
        boundary(self.function, len(self.groups))

    def plan(self, function: Any, frames: Sequence[int], in_place: frozenset[int]) -> None:
        """Units and their places; frames: bytes of the functions it may call."""
        buffers = Buffers(function, self.inputs, self.outputs, frames)
        self.schedule = Schedule(buffers, self.kernels, in_place)


@dataclass
class Program:
    """A program as units and steps. bodies: its functions, callees first, the step last."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    mesh: str
    module: Any
    collectives: Collectives
    bodies: list[_Body]

    @property
    def schedule(self) -> Schedule:
        """Of the step."""
        return self.bodies[-1].schedule

    def bundle(self, engine: str) -> Bundle:
        """Machine code and manifest."""
        kernels, collectives = Kernels(), self.collectives
        slots = Slots(len(collectives.groups), len(self.inputs), len(self.outputs))
        code = Code(slots, collectives.calls, kernels.name, constant_buffers(self.module))
        for k, body in enumerate(self.bodies):
            indices = list(zip(body.schedule.buffers.indices, body.groups))
            code.add(body.schedule, indices, k if body is not self.bodies[-1] else None)
        objects = [step_object(code.text(), code.called.union(code.declared))]
        if kernels.texts:
            objects.append(kernels.compiled())
        libraries = {"m"} | ({"openblas"} if kernels.symbols else set())
        if calls := {c.symbol for c in collectives.calls if c.symbol in code.declared}:
            symbols = [c.symbol for c in collectives.calls]
            schedules = [body.schedule for body in self.bodies]
            staging = max(staging_bytes(s.entries, s.final, symbols) for s in schedules)
            objects.append(collectives_object(engine, calls, staging if engine == "mpi" else 0))
            libraries |= set(CODES[engine].libraries)
        if engine == "local" and can_be_served(body.schedule.entries for body in self.bodies):
            objects.append(serve_object())
        manifest = Manifest(
            mesh=self.mesh,
            engine=engine,
            inputs=self.inputs,
            outputs=self.outputs,
            arena_bytes=self.schedule.arena_bytes,
            groups=collectives.groups,
            ops=tuple(collectives.ops),
            collectives=tuple(info for info in collectives.infos if info.op != "relayout"),
            libraries=tuple(sorted(libraries)),
        )
        return Bundle(manifest, tuple(objects))


class Kernels:
    """The kernels of a program: equal units get one name."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._places: dict[str, str] = {}  # where in the source the first call of each came from
        self.texts: list[str] = []
        self.symbols: set[str] = set()  # element types of the library's GEMMs that are called

    def name(self, unit: Unit) -> str:
        """The function that does what `unit` does, generated when it is new."""
        key = unit.key
        if key not in self._names:
            name = f"mw_kernel_{len(self._names)}"
            self._names[key], self._places[name] = name, unit.where
            self.texts.append(self._text(name, unit))
        return self._names[key]

    def _text(self, name: str, unit: Unit) -> str:
        gemm = blas.gemm_of(unit.nests[0]) if len(unit.nests) == 1 else None
        if gemm is None:
            return unit_text(name, unit)
        self.symbols.add(gemm.dtype)
        return blas.gemm_text(name, unit, gemm)

    def compiled(self) -> bytes:
        """The object with all of them."""
        declared = [blas.declaration(dtype) for dtype in sorted(self.symbols)]
        text = "".join(declared + self.texts)
        return kernels_object(text, set(blas.SYMBOLS.values()), self._places)
