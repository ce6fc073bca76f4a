"""A lowered program as figures: bytes of the arena that are live while each op runs, what the regions of hints take,
what code each op gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshweave.abi import rounded
from meshweave.locations import location_text
from meshweave.lowering import blas
from meshweave.lowering.arena import Block
from meshweave.lowering.rows import Unit
from meshweave.lowering.schedule import length
from meshweave.report import KernelRow, Moment
from meshweave.transforms.hint_ledger import regions_marked

if TYPE_CHECKING:
    from meshweave.lowering.program import Program
    from meshweave.lowering.schedule import Schedule


def moments(program: Program) -> tuple[Moment, ...]:
    """The ops of a step in the order they run; those of a loop once, those of a called function at
    every call.
    """
    known: list[tuple[Moment, ...]] = []
    for body in program.bodies:
        known.append(_moments(body.schedule, program, known))
    return known[-1]


def _moments(
    schedule: Schedule, program: Program, called: Sequence[tuple[Moment, ...]]
) -> tuple[Moment, ...]:
    live = _live(schedule)
    found: list[Moment] = []
    for position, entry in schedule.moments:
        nbytes = live[position]
        if not isinstance(entry, Unit) and entry.what == "call":
            frame = rounded(program.bodies[entry.number].schedule.arena_bytes)
            found += [
                Moment(m.op, m.where, nbytes - frame + m.nbytes) for m in called[entry.number]
            ]
        elif name := _name(entry, program):
            where = entry.where if isinstance(entry, Unit) else location_text(entry.op.location)
            found.append(Moment(name, where, nbytes))
    return tuple(found)


def _live(schedule: Schedule) -> list[int]:
    """Live bytes of the arena at each position."""
    last = max((position for position, _ in schedule.moments), default=0)
    change = [0] * (last + 2)
    for block in schedule.blocks.values():
        change[min(block.first, last)] += rounded(block.nbytes)
        change[min(block.last, last) + 1] -= rounded(block.nbytes)
    total, live = 0, []
    for difference in change:
        total += difference
        live.append(total)
    return live


def _name(entry: Any, program: Program) -> str:
    """What an entry is called; "" for numbers and control flow."""
    if isinstance(entry, Unit):
        return "matrix product" if any(n.contraction for n in entry.nests) else "loops"
    if entry.what == "collective":
        return program.collectives.ops[entry.number].name
    return ""


def region_bytes(program: Program) -> dict[int, int]:
    """By region of hints, for those that made any code: its intermediate bytes.

    These are what the region takes of the arena beyond what it is given and what it gives: at each moment from its
    first op to its last the bytes of the buffers that begin and end between these two; of all moments the most. A
    region in a function that is called is counted once, at its largest.
    """
    found: dict[int, int] = {}
    for body in program.bodies:
        for region, (first, last) in _spans(body.schedule).items():
            inside = [
                b for b in body.schedule.blocks.values() if first <= b.first and b.last <= last
            ]
            most = max((_alive(inside, b.first) for b in inside), default=0)
            found[region] = max(found.get(region, 0), most)
    return found


def _alive(blocks: Sequence[Block], position: int) -> int:
    return sum(rounded(b.nbytes) for b in blocks if b.first <= position <= b.last)


def _spans(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """The positions between which each region runs."""
    found: dict[int, tuple[int, int]] = {}
    for position, entry in schedule.moments:
        last = position if isinstance(entry, Unit) else position + length(entry)
        steps = entry.steps if isinstance(entry, Unit) else [entry]
        for region in {n for step in steps for n in regions_marked(step.op.location)}:
            first, end = found.get(region, (position, last))
            found[region] = (min(first, position), max(end, last))
    return found


def unit_kernels(program: Program) -> tuple[KernelRow, ...]:
    """The code that each kernel call of the program gets, where nobody has chosen any."""
    found = []
    for body in program.bodies:
        for _, entry in body.schedule.moments:
            if isinstance(entry, Unit):
                found.append(_unit_kernel(entry))
    return tuple(found)


def _unit_kernel(unit: Unit) -> KernelRow:
    if not any(n.contraction for n in unit.nests):
        why = "loops, one over the rows of several ops" if len(unit.nests) > 1 else "loops"
        return KernelRow("loops", "codegen", why, unit.where)
    gemm = blas.gemm_of(unit.nests[0]) if len(unit.nests) == 1 else None
    if gemm is not None:
        return KernelRow("matrix product", "blas", f"a product of {gemm.dtype}", unit.where)
    why = "no product of matrices that the library takes"
    return KernelRow("matrix product", "codegen", why, unit.where)
