"""Report what a compilation decided, read off the module and what the lowering made of it."""

from __future__ import annotations

from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.memory import moments, region_bytes, unit_kernels
from meshweave.lowering.gpu.choices import taken_rows
from meshweave.lowering.host.program import LoweredProgram
from meshweave.report import KernelRow, LedgerRow, RegionRow, Report, TransferRow
from meshweave.transforms.kernels.select_kernels import kernel_rows
from meshweave.transforms.slicing.ledger import read_ledger


def report_of(module: ir.Module, program: LoweredProgram) -> Report:
    """Return the report of a compilation.

    module: the local view, with its ledger. program: what lowering made of it.
    """
    ledger = read_ledger(module)
    nbytes = region_bytes(program)
    ports = (*program.inputs, *program.outputs)
    _, arena = program.areas
    return Report(
        peak_bytes=arena + sum(port.nbytes for port in ports),
        arena_bytes=arena,
        regions=tuple(
            RegionRow(
                *(ledger.name(r.number), r.slices, r.order, r.width),
                *(nbytes.get(r.number, 0), r.where),
            )
            for r in ledger.regions
        ),
        ledger=tuple(
            LedgerRow(f"{e.key}={e.value}", e.op, e.op_location, e.outcome, e.reason)
            for e in ledger.entries()
        ),
        kernels=_kernels(module, program),
        collectives=tuple(
            TransferRow(info.op, tuple(info.axes), info.bytes, source.tensor, source.location)
            for info, source in zip(program.collectives.infos, program.collectives.sources)
            if info.op != "relayout"
        ),
        moments=moments(program),
        certificate=program.certificate,
    )


def _kernels(module: ir.Module, program: LoweredProgram) -> tuple[KernelRow, ...]:
    """Return what select-kernels chose, or the code that each op gets where the lowering chooses."""
    rows = []
    for row in kernel_rows(module):
        op, _, where = row["op"].partition(" at ")
        rows.append(KernelRow(op, row["kernel"], row["why"], where))
    if program.target == "gpu":
        return taken_rows(rows, program)
    return tuple(rows) or unit_kernels(program)
