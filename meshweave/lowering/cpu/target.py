"""Lower planned programs to the LLVM dialect, and compile that for the cpu.

Kernels are compiled at O3, each once however often it is called; the step function, which calls them, at O0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshweave.abi import HOST_CALL, PYTHON
from meshweave.bundle import Bundle, Manifest
from meshweave.certificate import UNCHECKED, Certificate
from meshweave.ir.bindings import ir
from meshweave.ir.calls import Written
from meshweave.ir.routines import RoutineCall
from meshweave.layout import Mesh
from meshweave.lowering.buffers.constants import constant_buffers
from meshweave.lowering.cpu.codegen import check_functions, declares, llvm_functions, machine_code
from meshweave.lowering.cpu.collectives.cores import SHARE, cores_object
from meshweave.lowering.cpu.collectives.objects import collectives_object, runtime_of
from meshweave.lowering.cpu.collectives.serve import always_ends, serve_object
from meshweave.lowering.cpu.collectives.staging import staging_bytes
from meshweave.lowering.cpu.emitter import CpuEmitter
from meshweave.lowering.cpu.fft import TransformWriter
from meshweave.lowering.cpu.lapack import RoutineWriter
from meshweave.lowering.cpu.pieces import Pieces, pieces_of
from meshweave.lowering.cpu.products import blas
from meshweave.lowering.cpu.products.blocks import blocks_of
from meshweave.lowering.cpu.products.few import by_size_text, sized_units
from meshweave.lowering.cpu.products.groups import groups_of, groups_text
from meshweave.lowering.cpu.products.pairs.loops import features_of, product_of, product_text
from meshweave.lowering.cpu.products.panels import panels_of, panels_text
from meshweave.lowering.cpu.reuse import reads_once
from meshweave.lowering.cpu.sharing import DECLARATION, shared_text
from meshweave.lowering.cpu.units import unit_text
from meshweave.lowering.host.emit import Code
from meshweave.lowering.host.marks import MARK_TEXT
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.host.program_op import (
    CodeFacts,
    Interface,
    erase_program,
    read_code,
    read_interface,
    write_code,
    write_program,
)
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.stages import lower
from meshweave.processor import generated
from meshweave.targets import engine_traits


def compile_local(module: ir.Module, engine: str = "local") -> Bundle:
    """Compile `@main` of a module in the local view for the cpu.

    engine: whose collectives the program calls, "local" or "mpi".
    Raises CompileError, with op and place, for what cannot be lowered. The module itself is left as
    it is.
    """
    with module.context, ir.Location.unknown():
        return bundle_of(lower(module, engine))


def bundle_of(program: LoweredProgram, meanwhile: Callable[[], object] = lambda: None) -> Bundle:
    """Compile a program to machine code and a manifest, within the context of the program.

    meanwhile: what another thread does while LLVM compiles.
    """
    return _bundle(*_code(program), program.interface, program.certificate, meanwhile)


def llvm_module(program: LoweredProgram) -> ir.Module:
    """Return a program in the LLVM dialect: its functions, the kernels that they call, and `mw.program`."""
    module, facts = _code(program)
    write_program(module, program.interface)
    write_code(module, facts)
    return module


def _code(program: LoweredProgram) -> tuple[ir.Module, CodeFacts]:
    """Return the functions of a program in the LLVM dialect, and what else its bundle says."""
    kernels, collectives = Kernels(), program.collectives
    areas, arena_bytes = program.areas
    constants = constant_buffers(program.module)
    code = Code(
        program.slots,
        collectives.calls,
        kernels.name,
        constants,
        areas=areas,
        routine_of=kernels.routine,
        shared=kernels.shared,
        emitter=CpuEmitter,
        alone_of=kernels.one_core,
    )
    program.write(code)
    calls = sorted(program.called(code))
    module = llvm_functions(code.text(), kernels.text() + MARK_TEXT, kernels.places, calls)
    facts = CodeFacts(
        arena_bytes=arena_bytes,
        core_bytes=code.core_bytes,
        early_bytes=arena_bytes - min(areas.values(), default=arena_bytes),
        ops=tuple(collectives.ops),
        collectives=program.moved,
        calls=tuple(calls),
        runs=frozenset[int]().union(*(call.runs for call in collectives.calls)),
        staging_bytes=_staging(program) if calls else 0,
        libraries=_libraries(code, kernels),
        ends=always_ends(body.plan.entries for body in program.bodies),
        features=tuple(sorted(kernels.features)),
        marks=tuple(code.marks),
    )
    return module, facts


def _libraries(code: Code, kernels: Kernels) -> tuple[str, ...]:
    """Return what the code itself calls."""
    calls_python = HOST_CALL in code.declared
    return ("m", *["openblas"] * bool(kernels.declared), *[PYTHON] * calls_python)


def _staging(program: LoweredProgram) -> int:
    """Return the bytes that the collectives need of a window that ranks share; 0 where they share none."""
    if not engine_traits(program.engine).shares_window:
        return 0
    symbols = [call.symbol for call in program.collectives.calls]
    plans = [body.plan for body in program.bodies]
    return max(staging_bytes(plan.entries, symbols) for plan in plans)


def check_module(module: ir.Module) -> None:
    """Raise CompileError for what the code of a module that was read from text must not have: see `check_functions`."""
    check_functions(module, read_code(module).calls, {})


def bundle_of_module(module: ir.Module) -> Bundle:
    """Compile a module that `llvm_module` has made, or that was read from its text; it is used up."""
    interface, facts = read_interface(module), read_code(module)
    erase_program(module)
    return _bundle(module, facts, interface)


def _bundle(
    module: ir.Module,
    facts: CodeFacts,
    interface: Interface,
    certificate: Certificate = UNCHECKED,
    meanwhile: Callable[[], object] = lambda: None,
) -> Bundle:
    """Compile functions of the LLVM dialect to machine code and a manifest."""
    engine, mesh = interface.engine, interface.mesh
    traits, libraries, others = engine_traits(engine), set(facts.libraries), []
    if facts.calls:
        others.append(collectives_object(engine, facts.calls, facts.staging_bytes, facts.runs))
        libraries |= set(runtime_of(engine).libraries)
    if traits.reads_peers and facts.ends and Mesh.parse(mesh).nranks > 1:
        others.append(serve_object())
    manifest = Manifest(
        mesh=mesh,
        engine=engine,
        inputs=interface.inputs,
        outputs=interface.outputs,
        arena_bytes=facts.arena_bytes,
        early_bytes=facts.early_bytes,
        core_bytes=facts.core_bytes,
        groups=interface.groups,
        ops=facts.ops,
        collectives=facts.collectives,
        exchanges=interface.exchanges,
        libraries=tuple(sorted(libraries)),
        features=tuple(sorted({*facts.features, *generated()})),
        ends=facts.ends,
        marks=facts.marks,
        certificate=certificate,
    )
    if declares(module, SHARE):
        others.append(cores_object())
    with module.context:
        module.body.append(ir.Operation.parse(manifest.constant))
    return Bundle(manifest, (*machine_code(module, meanwhile), *others))


class Kernels:
    """Collect the kernels of a program; equal units get one name."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._parts: dict[Any, str] = {}  # functions that one core runs, for one kind of sizes
        self._singles: dict[Any, str] = {}  # functions that one core runs
        self.places: dict[str, str] = {}  # where in the source the first call of each came from
        self.texts: list[str] = []
        self.declared: set[str] = set()  # functions of the library that are called
        self.features: set[str] = set()  # of the processor that they ask for by name
        self.shared: set[str] = set()  # kernels whose work the rank's cores share

    def name(self, unit: KernelUnit) -> str:
        """Return the function that does what `unit` does, generated when it is new."""
        name = self._names.get(unit.key)
        if name is None:
            name = self._names[unit.key] = self._by_size(unit, self._of_cores)
        return name

    def one_core(self, unit: KernelUnit) -> str:
        """Return the function that does what `unit` does on one core, generated when it is new."""
        name = self._singles.get(unit.key)
        if name is None:
            name = self._singles[unit.key] = self._by_size(unit, self.alone)
        return name

    def _by_size(self, unit: KernelUnit, made: Callable[[KernelUnit], str]) -> str:
        """Return the function that does what `unit` does, by the kernel that suits the sizes of a call."""
        sized = sized_units(unit)
        if not sized:
            return made(unit)
        chosen = [(size, made(size.unit)) for size in sized]
        other = made(unit)
        name = self._new(unit)
        self.texts.append(by_size_text(name, unit, chosen, other, self.shared))
        if self.shared & {other, *(function for _, function in chosen)}:
            self.shared.add(name)
        return name

    def _of_cores(self, unit: KernelUnit) -> str:
        """Return the function that has the cores do what `unit` does, or one of them where it is too small."""
        pieces = pieces_of(unit)
        return self.alone(unit) if pieces is None else self._shared(unit, pieces)

    def _shared(self, unit: KernelUnit, pieces: Pieces) -> str:
        """Return the function that has the cores do what `unit` does."""
        parts = [self.alone(part) for part in (pieces.whole, pieces.rest) if part is not None]
        name = self._new(unit)
        self.shared.add(name)
        self.texts.append(shared_text(name, unit, pieces, parts))
        return name

    def alone(self, unit: KernelUnit) -> str:
        """Return the function that does what `unit` does on one core."""
        name = self._parts.get(unit.key)
        if name is None:
            name = self._parts[unit.key] = self._new(unit)
            self.texts.append(self._text(name, unit))
        return name

    def routine(self, call: Written) -> str:
        """Return the function that calls LAPACK, or transforms, for each of a batch, generated when it is new."""
        name = self._names.get(call.key)
        if name is None:
            name = self._names[call.key] = f"mw_routine_{len(self._names)}"
            writer = RoutineWriter(call) if isinstance(call, RoutineCall) else TransformWriter(call)
            self.texts.append(writer.text(name))
            self.declared |= writer.declared
        return name

    def _new(self, unit: KernelUnit) -> str:
        name = f"mw_kernel_{len(self.places)}"
        self.places[name] = unit.where
        return name

    def _text(self, name: str, unit: KernelUnit) -> str:
        nest = unit.nests[0]
        if len(unit.nests) > 1 or reads_once(nest):
            return unit_text(name, unit)
        if (short := product_of(nest)) is not None:
            self.features |= features_of(short)
            return product_text(name, unit, short)
        if (product := panels_of(nest)) is not None:
            return panels_text(name, unit, product)
        if (grouped := groups_of(nest)) is not None:
            dtype = grouped.gemm.dtype
            self.declared |= {blas.declaration(dtype), blas.row_declaration(dtype)}
            return groups_text(name, unit, grouped)
        gemm = None if blocks_of(nest) is not None else blas.gemm_of(nest)
        if gemm is None:
            return unit_text(name, unit)
        self.declared.add(blas.declaration(gemm.dtype))
        return blas.gemm_text(name, unit, gemm)

    def text(self) -> str:
        """Return the module with all of them."""
        declared = sorted(self.declared) + ([DECLARATION] if self.shared else [])
        return "".join([*declared, *self.texts])
