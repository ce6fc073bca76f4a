"""The cpu target: units and steps to a bundle of machine code: the kernels at O3, each once however
often it is called; the step function, which calls them, at O0.
"""

from __future__ import annotations

from typing import Any

from meshweave.bindings import ir
from meshweave.bundle import Bundle, Manifest
from meshweave.layout import Mesh
from meshweave.lowering import blas
from meshweave.lowering.codegen import program_object
from meshweave.lowering.collectives import CODES, collectives_object
from meshweave.lowering.constants import constant_buffers
from meshweave.lowering.emit import Code
from meshweave.lowering.loops import unit_text
from meshweave.lowering.program import Program, lower
from meshweave.lowering.rows import Unit
from meshweave.lowering.serve import can_be_served, serve_object
from meshweave.lowering.window import staging_bytes


def compile_local(module: Any, engine: str = "local") -> Bundle:
    """Compile `@main` of a module in the local view for the cpu.

    engine: whose collectives the program calls, "local" or "mpi".
    Raises CompileError, with op and place, for what cannot be lowered. The module itself is left as
    it is.
    """
    with module.context, ir.Location.unknown():
        return bundle_of(lower(module, engine))


def bundle_of(program: Program) -> Bundle:
    """Machine code and manifest, within the context of the program."""
    kernels, collectives = Kernels(), program.collectives
    areas, arena_bytes = program.areas
    constants = constant_buffers(program.module)
    code = Code(program.slots, collectives.calls, kernels.name, constants, areas=areas)
    program.write(code)
    known = {*code.called, *code.declared, *blas.SYMBOLS.values()}
    objects = [program_object(code.text(), kernels.text(), known, kernels.places)]
    libraries = {"m"} | ({"openblas"} if kernels.symbols else set())
    if calls := program.called(code):
        symbols = [c.symbol for c in collectives.calls]
        schedules = [body.schedule for body in program.bodies]
        staging = max(staging_bytes(s.entries, s.final, symbols) for s in schedules)
        staging = staging if program.engine == "mpi" else 0
        runs = frozenset[int]().union(*(call.runs for call in collectives.calls))
        objects.append(collectives_object(program.engine, calls, staging, runs))
        libraries |= set(CODES[program.engine].libraries)
    entries = (body.schedule.entries for body in program.bodies)
    several = Mesh.parse(program.mesh).nranks > 1
    if program.engine == "local" and several and can_be_served(entries):
        objects.append(serve_object())
    manifest = Manifest(
        mesh=program.mesh,
        engine=program.engine,
        inputs=program.inputs,
        outputs=program.outputs,
        arena_bytes=arena_bytes,
        early_bytes=arena_bytes - min(areas.values(), default=arena_bytes),
        groups=collectives.groups,
        ops=tuple(collectives.ops),
        collectives=program.moved,
        libraries=tuple(sorted(libraries)),
    )
    return Bundle(manifest, tuple(objects))


class Kernels:
    """The kernels of a program: equal units get one name."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self.places: dict[str, str] = {}  # where in the source the first call of each came from
        self.texts: list[str] = []
        self.symbols: set[str] = set()  # element types of the library's GEMMs that are called

    def name(self, unit: Unit) -> str:
        """The function that does what `unit` does, generated when it is new."""
        key = unit.key
        if key not in self._names:
            name = f"mw_kernel_{len(self._names)}"
            self._names[key], self.places[name] = name, unit.where
            self.texts.append(self._text(name, unit))
        return self._names[key]

    def _text(self, name: str, unit: Unit) -> str:
        gemm = blas.gemm_of(unit.nests[0]) if len(unit.nests) == 1 else None
        if gemm is None:
            return unit_text(name, unit)
        self.symbols.add(gemm.dtype)
        return blas.gemm_text(name, unit, gemm)

    def text(self) -> str:
        """The module of all of them."""
        declared = [blas.declaration(dtype) for dtype in sorted(self.symbols)]
        return "".join(declared + self.texts)
