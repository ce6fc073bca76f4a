"""Report on a lowered program: live bytes of the arena at each op, bytes of the regions of hints, code of each op."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from meshweave.abi import rounded
from meshweave.ir.calls import called
from meshweave.ir.locations import location_text
from meshweave.ir.trips import trips_around
from meshweave.lowering.buffers.arena import ArenaBlock
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.schedule import length
from meshweave.lowering.buffers.steps import MemrefPlace, Step
from meshweave.lowering.cpu.products import blas
from meshweave.lowering.cpu.products.groups import groups_of
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.nests.rows import Entry, KernelUnit
from meshweave.report import KernelRow, Moment
from meshweave.transforms.slicing.ledger import HintMarks


def moments(program: LoweredProgram) -> tuple[Moment, ...]:
    """Return the ops of a step in the order they run: those of a loop once, those of a function at every call."""
    known: list[tuple[Moment, ...]] = []
    for body in program.bodies:
        known.append(_moments(body.plan, program, known))
    return known[-1]


def _moments(
    plan: FunctionPlan, program: LoweredProgram, called: Sequence[tuple[Moment, ...]]
) -> tuple[Moment, ...]:
    live = _live(plan)
    found: list[Moment] = []
    for position, entry in plan.moments:
        nbytes = live[position]
        if not isinstance(entry, KernelUnit) and entry.what == "call":
            frame = rounded(program.bodies[entry.number].plan.arena_bytes)
            found += [
                Moment(m.op, m.where, nbytes - frame + m.nbytes) for m in called[entry.number]
            ]
        elif name := _name(entry, program):
            where = (
                entry.where if isinstance(entry, KernelUnit) else location_text(entry.op.location)
            )
            found.append(Moment(name, where, nbytes))
    return tuple(found)


def _live(plan: FunctionPlan) -> list[int]:
    """Return the live bytes of the arena at each position."""
    last = max((position for position, _ in plan.moments), default=0)
    return _alive(plan.blocks.values(), last)


def _alive(blocks: Iterable[ArenaBlock], last: int) -> list[int]:
    """Return the bytes that blocks hold at each position up to `last`."""
    change = [0] * (last + 2)
    for block in blocks:
        change[min(block.first, last)] += rounded(block.nbytes)
        change[min(block.last, last) + 1] -= rounded(block.nbytes)
    total, live = 0, []
    for difference in change:
        total += difference
        live.append(total)
    return live


def _name(entry: Entry, program: LoweredProgram) -> str:
    """Return the name of an entry; "" for numbers and control flow."""
    if isinstance(entry, KernelUnit):
        return entry.title
    if entry.what == "collective":
        return program.collectives.ops[entry.number].name
    if entry.what in ("routine", "host"):
        return called(entry.op).title
    return ""


def region_bytes(program: LoweredProgram) -> dict[int, int]:
    """Return the intermediate bytes of each region of hints that made any code, by its number.

    These are the bytes of the arena that the region takes beyond what it reads and what it gives: the largest sum, at
    any moment, of the buffers whose lifetime begins and ends within the region. A region in a function that is called
    is counted once, at its largest.
    """
    found: dict[int, int] = {}
    for body in program.bodies:
        for region, (first, last) in _spans(body.plan).items():
            inside = [b for b in body.plan.blocks.values() if first <= b.first and b.last <= last]
            found[region] = max(found.get(region, 0), *_alive(inside, last))
    return found


def _spans(plan: FunctionPlan) -> dict[int, tuple[int, int]]:
    """Return the first and the last position of each region."""
    marks, found = HintMarks(), dict[int, tuple[int, int]]()
    for position, entry in plan.moments:
        last = position if isinstance(entry, KernelUnit) else position + length(entry)
        steps = entry.steps if isinstance(entry, KernelUnit) else [entry]
        for region in {n for step in steps for n in marks.regions(step.op.location)}:
            first, end = found.get(region, (position, last))
            found[region] = (min(first, position), max(end, last))
    return found


def unit_kernels(program: LoweredProgram) -> tuple[KernelRow, ...]:
    """Return the code that each kernel call of the program gets where select-kernels has not chosen any."""
    found = []
    for body in program.bodies:
        for _, entry in body.plan.moments:
            if isinstance(entry, KernelUnit):
                found.append(_unit_kernel(entry))
    return tuple(found)


def _unit_kernel(unit: KernelUnit) -> KernelRow:
    if not any(n.contraction for n in unit.nests):
        why = "loops, one over the rows of several ops" if len(unit.nests) > 1 else "loops"
        return KernelRow(unit.title, "codegen", why, unit.where)
    gemm = blas.gemm_of(unit.nests[0]) if len(unit.nests) == 1 else None
    if gemm is not None:
        return KernelRow("matrix product", "blas", f"a product of {gemm.dtype}", unit.where)
    if len(unit.nests) == 1 and groups_of(unit.nests[0]) is not None:
        why = "a product of which a condition keeps a part, run by run"
        return KernelRow("matrix product", "blas", why, unit.where)
    why = "no product of matrices that the library takes"
    return KernelRow("matrix product", "codegen", why, unit.where)


def state_copies(program: LoweredProgram) -> dict[int, int]:
    """Count the bytes that a step copies of each donated input: out of its buffer, or of all of it back into it."""
    donated = {port.takes for port in program.outputs if port.takes is not None}
    found: dict[int, int] = {}
    for _, entry in program.plan.moments if donated else ():
        for step in entry.steps if isinstance(entry, KernelUnit) else ():
            if step.what == "copy":
                number, nbytes = _copied_state(step)
                if number in donated:
                    found[number] = found.get(number, 0) + nbytes * trips_around(step.op)
    return found


def _copied_state(step: Step) -> tuple[int, int]:
    """Return the input that a copy is of, and the bytes; -1 for no input, or for a part that is written alone."""
    source, target = step.operands[0], step.outputs[0]
    assert isinstance(source, MemrefPlace)
    nbytes = math.prod(source.shape) * source.width
    if source.root.kind == "input":
        return source.root.index, nbytes
    if target.root.kind == "input" and nbytes == target.root.nbytes:
        return target.root.index, nbytes
    return -1, 0
