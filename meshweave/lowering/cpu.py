"""The cpu target: a program in the local view to a bundle.

tensors -> kernels fused, everything else in place (fuse.py) -> buffers (bufferize.py) -> units in
an arena (schedule.py) -> machine code: the kernels at O3, each once however often it is called; the
step function, which calls them, at O0.
"""

from __future__ import annotations

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
from meshweave.lowering.emit import Emitter
from meshweave.lowering.fuse import Fusion
from meshweave.lowering.loops import unit_text
from meshweave.lowering.prepare import (
    PREPARE,
    copied,
    decompose,
    main_function,
    ports,
    refuse_unknown,
    spell_out,
)
from meshweave.lowering.rows import Unit
from meshweave.lowering.schedule import Schedule
from meshweave.lowering.steps import Buffers


def compile_local(module: Any, engine: str = "local") -> Bundle:
    """Compile `@main` of a module in the local view for the cpu.

    engine: whose collectives the program calls, "local" or "mpi".
    Raises CompileError, with op and place, for what cannot be lowered. The module itself is left as
    it is.
    """
    if engine not in CODES:
        raise CompileError(f'no engine "{engine}" on target cpu; there are {", ".join(CODES)}')
    with module.context, ir.Location.unknown():
        return lower(module).bundle(engine)


def lower(source: Any) -> Program:
    """Everything before code generation, within the context of `source`."""
    inputs, outputs, mesh = ports(source)
    module = copied(source)
    collectives = Collectives(module, mesh)
    decompose(module)
    run_passes(module, PREPARE)
    function = main_function(module)
    groups = collectives.indices(function)
    refuse_unknown(module)
    spell_out(function)
    collectives.renumber(function)
    fusion = Fusion(function.operation.regions[0].blocks[0])
    fusion.run()
    boundary(function, len(groups))
    module = bufferize(module, function)
    buffers = Buffers(main_function(module), len(inputs), len(outputs))
    schedule = Schedule(buffers, fusion.kernels, collectives.in_place)
    return Program(inputs, outputs, mesh, module, collectives, schedule, groups)


@dataclass
class Program:
    """A program as units and steps. groups: of each member index that the program uses."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    mesh: str
    module: Any
    collectives: Collectives
    schedule: Schedule
    groups: list[int]

    def bundle(self, engine: str) -> Bundle:
        """Machine code and manifest."""
        kernels, collectives = Kernels(), self.collectives
        slots = Slots(len(collectives.groups), len(self.inputs), len(self.outputs))
        constants = constant_buffers(self.module)
        emitter = Emitter(self.schedule, slots, collectives.calls, kernels.name, constants)
        text = emitter.text(list(zip(self.schedule.buffers.indices, self.groups)))
        objects = [step_object(text, set(emitter.declared))]
        if kernels.texts:
            objects.append(kernels.compiled())
        libraries = {"m"} | ({"openblas"} if kernels.symbols else set())
        if calls := {c.symbol for c in collectives.calls if c.symbol in emitter.declared}:
            objects.append(collectives_object(engine, calls))
            libraries |= set(CODES[engine].libraries)
        manifest = Manifest(
            mesh=self.mesh,
            engine=engine,
            inputs=self.inputs,
            outputs=self.outputs,
            arena_bytes=self.schedule.arena_bytes,
            groups=collectives.groups,
            ops=tuple(collectives.ops),
            collectives=tuple(collectives.infos),
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
