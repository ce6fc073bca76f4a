"""Compile programs for the gpu: device modules, and host code that launches them and calls NCCL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from meshweave.bundle import Bundle, Manifest
from meshweave.certificate import UNCHECKED, Certificate
from meshweave.device import DeviceModule, GpuTable, KernelInfo
from meshweave.errors import CompileError, UsageError
from meshweave.ir.bindings import ir
from meshweave.layout.mesh import Mesh
from meshweave.lowering.cpu.codegen import step_object
from meshweave.lowering.cpu.collectives.objects import Collective, compile_text
from meshweave.lowering.gpu.host.calls import SIGNATURES
from meshweave.lowering.gpu.host.emit import HostCode
from meshweave.lowering.gpu.host.nccl import EVENTS, collectives_text
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.gpu.launches import device_program
from meshweave.lowering.gpu.toolchain.ptx import compile_kernels
from meshweave.lowering.host.program import LoweredProgram, read_program
from meshweave.lowering.host.program_op import CHIP, program_op
from meshweave.processor import COMMON, OF_COMMON


class Texts(NamedTuple):
    """Hold a program as text: host code of the step and of its collectives ("" without any), and what gathered them."""

    code: HostCode
    step: str
    collectives: str
    table: GpuTable


def host_texts(program: LoweredProgram, texts: Mapping[int, str]) -> Texts:
    """Write host code as text, of a program that to-gpu has run on. texts: see `device_ops.read_kernels`."""
    code = HostCode(program, texts)
    program.write(code)
    calls = program.called(code)
    events = EVENTS + len(code.events) + code.crossings if calls or code.crossings else 0
    table = GpuTable(len(code.kernels), len(code.gemms), events, code.streams)
    collectives = ""
    if calls:
        wanted = sorted({Collective.parse(symbol) for symbol in calls})
        collectives = collectives_text(wanted, _sizes(program), table)
    return Texts(code, code.text_with(table), collectives, table)


def _sizes(program: LoweredProgram) -> list[int]:
    """Return the members of each group."""
    mesh = Mesh.parse(program.mesh) if program.mesh else Mesh()
    return [math.prod(mesh.size(a) for a in axes) for axes in program.collectives.groups]


def bundle_of(program: LoweredProgram, target: Target) -> Bundle:
    """Device modules, host code and manifest of a planned program, within its context."""
    made = device_program(program, target, bodies=False)
    return _bundle(read_program(made.module), made.texts, program.certificate)


def bundle_of_module(module: ir.Module) -> Bundle:
    """Return the bundle of a module that to-gpu has run on."""
    return _bundle(read_program(module), {})


def chip_of(module: ir.Module) -> str:
    """Return the chip that the kernels of a module are for, which to-gpu has made."""
    program = program_op(module)
    assert program is not None, "to-gpu keeps the mw.program"
    return str(program.attributes[CHIP].value)


def check_chip(module: ir.Module, chip: str) -> None:
    """Raise UsageError unless to-gpu has made a module's kernels for this chip."""
    if chip_of(module) != chip:
        raise UsageError(f"the program has kernels for {chip_of(module)}, not for {chip}")


def _bundle(
    program: LoweredProgram, texts: Mapping[int, str], certificate: Certificate = UNCHECKED
) -> Bundle:
    code, step, collectives, table = host_texts(program, texts)
    chip = chip_of(program.module)
    devices, kernels = _devices(code, chip)
    libraries = {"cuda", "m"} | ({"nccl"} if collectives else set())
    libraries |= {"cublaslt"} if code.gemms else set()
    manifest = Manifest(
        mesh=program.mesh,
        engine=program.engine,
        inputs=program.inputs,
        outputs=program.outputs,
        arena_bytes=program.plan.arena_bytes,
        groups=program.collectives.groups,
        ops=tuple(code.ops),
        collectives=program.moved,
        exchanges=program.exchanges,
        libraries=tuple(sorted(libraries)),
        target="gpu",
        chip=chip,
        kernels=kernels,
        gemms=tuple(code.gemms),
        events=table.events,
        streams=table.streams,
        scratch_bytes=code.scratch_bytes,
        graph=not code.waits,
        features=OF_COMMON,
        certificate=certificate,
        marks=tuple(code.marks),
    )
    known = {*code.called, *code.declared, *SIGNATURES}
    objects = [step_object(step + manifest.constant, known, COMMON)]
    if collectives:
        text = f"module {{\n{collectives}}}"
        objects.append(compile_text(text, SIGNATURES, opt_level=0, processor=COMMON))
    return Bundle(manifest, tuple(objects), devices, code.device.block)


def _devices(code: HostCode, chip: str) -> tuple[tuple[DeviceModule, ...], tuple[KernelInfo, ...]]:
    """Return the device modules, each once, and the kernels in them."""
    try:
        made = compile_kernels([kernel for kernel, _ in code.kernels], chip)
    except CompileError as error:
        where = next((w for k, w in code.kernels if k.entry in error.message.split()), None)
        raise CompileError(error.message, error.location or where) from None
    modules = tuple(dict.fromkeys(made))
    infos = [
        KernelInfo(
            modules.index(module), k.entry, k.grid, k.block, k.shared_bytes, k.parameters, k.family,
            where,
        )
        for module, (k, where) in zip(made, code.kernels)
    ]  # fmt: skip
    return modules, tuple(infos)
