"""Report what a compilation decided, read off the module and what the lowering made of it."""

from __future__ import annotations

from collections.abc import Iterator

from meshweave.bundle import port_bytes
from meshweave.dialects.dist import DONATIONS
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text, numbers_in
from meshweave.lowering.buffers.memory import moments, region_bytes, state_copies, unit_kernels
from meshweave.lowering.gpu.choices import taken_rows
from meshweave.lowering.host.prepare import main_function
from meshweave.lowering.host.program import LoweredProgram
from meshweave.report import (
    KernelRow,
    LedgerRow,
    MemoryChoice,
    Placement,
    PlanChoice,
    PortChoice,
    RegionRow,
    Report,
    TransferRow,
    ValueMadeAgain,
)
from meshweave.targets import CHIP
from meshweave.transforms.kernels.select_kernels import kernel_rows
from meshweave.transforms.propagation.place import PLACEMENT
from meshweave.transforms.slicing.ledger import read_ledger


def report_of(module: ir.Module, program: LoweredProgram, chip: str = "") -> Report:
    """Return the report of a compilation.

    module: the local view, with its ledger. program: what lowering made of it. chip: of target gpu; "": CHIP.
    """
    ledger = read_ledger(module)
    nbytes = region_bytes(program)
    ports = (*program.inputs, *program.outputs)
    _, arena = program.areas
    made = program.collectives
    return Report(
        peak_bytes=arena + port_bytes(ports),
        arena_bytes=arena,
        regions=tuple(
            RegionRow(
                *(ledger.name(r.number), r.slices, r.order, r.width),
                *(nbytes.get(r.number, 0), r.where),
            )
            for r in ledger.regions
        ),
        ledger=(
            *(
                LedgerRow(f"{e.key}={e.value}", e.op, e.op_location, e.outcome, e.reason)
                for e in ledger.entries()
            ),
            *_donations(module, program),
        ),
        kernels=_kernels(module, program, chip or CHIP),
        collectives=tuple(
            TransferRow(
                *(info.op, tuple(info.axes), info.bytes, source.tensor, source.location),
                numbers_in(where),
            )
            for info, source, where in zip(made.infos, made.sources, made.locations)
            if info.op != "relayout"
        ),
        moments=moments(program),
        certificate=program.certificate,
        state_bytes=sum(state_copies(program).values()),
        reasons=program.reasons,
        ops=program.whole,
        placement=_placement(module),
    )


def _placement(module: ir.Module) -> Placement | None:
    """Return what dist-place noted; None for a program that was propagated."""
    noted = module.operation.attributes.get(PLACEMENT)
    if noted is None:
        return None
    said = {entry.name: entry.attr for entry in ir.DictAttr(noted)}
    decisions = [{e.name: e.attr.value for e in ir.DictAttr(d)} for d in said.get("decisions", ())]
    plans = [ir.DictAttr(plan) for plan in said.get("plans", ())]
    return Placement(
        *(said["mesh"].value, said["seconds"].value, said["gap"].value),
        tuple([PortChoice(**decision) for decision in decisions]),
        tuple(
            [PlanChoice(p["seconds"].value, tuple([d.value for d in p["differs"]])) for p in plans]
        ),
        _memory(said),
    )


def _memory(noted: dict[str, ir.Attribute]) -> MemoryChoice | None:
    if "free_seconds" not in noted:
        return None
    said = {name: attr.value for name, attr in noted.items() if hasattr(attr, "value")}
    values = [{e.name: e.attr.value for e in ir.DictAttr(v)} for v in noted.get("made_again", ())]
    return MemoryChoice(
        *(int(said["limit"]), int(said["nbytes"]), int(said["resident"])),
        *(said["free_seconds"], said["price"], said.get("again", 0.0)),
        tuple([ValueMadeAgain(**{**v, "nbytes": int(v["nbytes"])}) for v in values]),
    )


def _donations(module: ir.Module, program: LoweredProgram) -> Iterator[LedgerRow]:
    """Yield what became of each donation, and what a step copies of its state all the same."""
    copies = state_copies(program)
    where = location_text(main_function(module).operation.location)
    for entry in module.operation.attributes.get(DONATIONS, ()):
        number, reason = entry["argument"].value, entry["reason"].value
        if entry["result"].value >= 0:
            reason += f"; {copies.get(number, 0):,} bytes of it are copied in a step"
        row = f"donate={entry['strength'].value}", f"argument {number}", where
        yield LedgerRow(*row, entry["outcome"].value, reason)


def _kernels(module: ir.Module, program: LoweredProgram, chip: str) -> tuple[KernelRow, ...]:
    """Return what select-kernels chose, or the code that each op gets where the lowering chooses."""
    rows = []
    for row in kernel_rows(module):
        op, _, where = row["op"].partition(" at ")
        rows.append(KernelRow(op, row["kernel"], row["why"], where))
    if program.target == "gpu":
        return taken_rows(rows, program, chip)
    return tuple(rows) or unit_kernels(program)
