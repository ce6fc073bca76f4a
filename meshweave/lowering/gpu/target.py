"""The gpu target: units and steps to a bundle of device modules and of host code that launches them
and calls NCCL.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshweave.bundle import Bundle, Manifest
from meshweave.device import DeviceModule, GpuTable, KernelInfo
from meshweave.errors import CompileError
from meshweave.layout.mesh import Mesh
from meshweave.lowering.codegen import step_object
from meshweave.lowering.collectives import Collective, compile_text
from meshweave.lowering.gpu.calls import SIGNATURES
from meshweave.lowering.gpu.host import HostCode
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.gpu.nccl import EVENTS, collectives_text
from meshweave.lowering.gpu.ptx import compile_kernels
from meshweave.lowering.program import Program


class Texts(NamedTuple):
    """A program as text: host code of the step and of its collectives ("" without any), and what
    gathered them.
    """

    code: HostCode
    step: str
    collectives: str
    table: GpuTable


def texts_of(program: Program, target: Target) -> Texts:
    """Host code as text, and the kernels it launches, within the context of the program."""
    code = HostCode(program, target)
    program.write(code)
    calls = program.called(code)
    events = EVENTS + len(code.events) + code.crossings if calls or code.crossings else 0
    table = GpuTable(len(code.kernels), len(code.gemms), events, len(code.streams))
    collectives = ""
    if calls:
        wanted = sorted({Collective.parse(symbol) for symbol in calls})
        collectives = collectives_text(wanted, _sizes(program), table)
    return Texts(code, code.text_with(table), collectives, table)


def _sizes(program: Program) -> list[int]:
    """Members of each group."""
    mesh = Mesh.parse(program.mesh) if program.mesh else Mesh()
    return [math.prod(mesh.size(a) for a in axes) for axes in program.collectives.groups]


def bundle_of(program: Program, target: Target) -> Bundle:
    """Device modules, host code and manifest, within the context of the program."""
    code, step, collectives, table = texts_of(program, target)
    objects = [step_object(step, {*code.called, *code.declared, *SIGNATURES})]
    if collectives:
        objects.append(compile_text(f"module {{\n{collectives}}}", SIGNATURES, opt_level=0))
    devices, kernels = _devices(code, target)
    libraries = {"cuda", "m"} | ({"nccl"} if collectives else set())
    libraries |= {"cublaslt"} if code.gemms else set()
    manifest = Manifest(
        mesh=program.mesh,
        engine=program.engine,
        inputs=program.inputs,
        outputs=program.outputs,
        arena_bytes=program.schedule.arena_bytes,
        groups=program.collectives.groups,
        ops=tuple(code.ops),
        collectives=program.moved,
        libraries=tuple(sorted(libraries)),
        target="gpu",
        chip=target.chip,
        kernels=kernels,
        gemms=tuple(code.gemms),
        events=table.events,
        streams=table.streams,
        graph=not code.waits,
    )
    return Bundle(manifest, tuple(objects), devices, code.device.block)


def _devices(
    code: HostCode, target: Target
) -> tuple[tuple[DeviceModule, ...], tuple[KernelInfo, ...]]:
    """The device modules, each once, and the kernels in them."""
    try:
        made = compile_kernels([kernel for kernel, _ in code.kernels], target.chip)
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
