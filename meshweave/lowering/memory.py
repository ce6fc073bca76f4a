"""Memory over time: how many bytes of the arena hold something while each op of a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshweave.lowering.arena import rounded
from meshweave.lowering.rows import Unit

if TYPE_CHECKING:
    from meshweave.lowering.cpu import Program
    from meshweave.lowering.schedule import Schedule


@dataclass(frozen=True)
class Moment:
    """One op of the step: what it does, where it stands in the source, and the bytes that are live
    while it runs.
    """

    op: str
    where: str
    nbytes: int


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
            where = entry.where if isinstance(entry, Unit) else ""
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
