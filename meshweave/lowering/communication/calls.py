"""Read the collectives of a planned program, numbered in the order in which a step calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshweave.bundle import CollectiveInfo, OpInfo
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.trips import trips_around
from meshweave.lowering.buffers.steps import Step
from meshweave.lowering.nests.rows import Entry, in_order

MOST_LISTED = 1024  # entries of the manifest for one collective; of more only the sum of the bytes


@dataclass(frozen=True)
class Call:
    """Describe a call of a collective.

    arguments: the i64 arguments after the two buffers. One is a number, or "table:2,0,1": the entry at this rank's
               member index, or "times:3*64": 64 times what input 3 of the program holds, a tensor of one i64.
    exchange:  the number of the exchange that it does, -1 for others. The address of the rank's section follows the
               arguments, then that of the step's own memory.
    early:     the bytes that a call sends which is started before it is waited for; 0 for others.
    scratch:   whether it has memory of its own besides, whose address comes last.
    runs:      the lengths, in bytes, of what a direct move copies at a time.
    """

    symbol: str
    group: int
    op_id: int
    arguments: tuple[int | str, ...]
    exchange: int = -1
    early: int = 0
    runs: frozenset[int] = frozenset()
    scratch: bool = False

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return the functions that make it: one, or one that starts it and one that waits for it."""
        names = (f"{self.symbol}_start", f"{self.symbol}_wait")
        return names if self.early else (self.symbol,)


@dataclass
class Calls:
    """Number the collectives of a program.

    groups: the mesh axes of each group. calls: what the step calls. ops: what the op numbers in codes mean. infos: an
    entry for each time that a collective runs; sources, locations: the op of each.
    """

    groups: tuple[tuple[str, ...], ...]
    calls: list[Call] = field(default_factory=list)
    infos: list[CollectiveInfo] = field(default_factory=list)
    ops: list[OpInfo] = field(default_factory=list)
    sources: list[OpInfo] = field(default_factory=list)
    locations: list[ir.Location] = field(default_factory=list)
    areas: dict[int, int] = field(default_factory=dict)

    def add(self, entries: Sequence[Entry], times: int) -> None:
        """Add the collectives of a function, which a step runs `times` times; op numbers begin at 1."""
        tickets: dict[int, int] = {}
        for step in in_order(entries):
            if not isinstance(step, Step):
                continue
            if step.what == "wait":
                step.number = tickets[step.ticket]
            elif step.what == "collective":
                step.number = tickets[step.ticket] = len(self.calls)
                self._add(step.op, times)

    def _add(self, op: ir.Operation, times: int) -> None:
        attributes = op.attributes
        number = len(self.calls)
        op_id = number + 1
        self.calls.append(_call(attributes, op_id))
        nbytes = attributes["bytes"].value
        where = location_text(op.location)
        axes = tuple(axis.value for axis in attributes["axes"])
        self.ops.append(OpInfo(op_id, attributes["title"].value, where, nbytes, axes))
        info = CollectiveInfo(attributes["what"].value, axes, nbytes)
        listed = _listed(info, times * trips_around(op))
        self.infos += listed
        self.sources += [self.ops[-1]] * len(listed)
        self.locations += [op.location] * len(listed)
        if "area" in attributes:
            self.areas[number] = attributes["area"].value


def _call(attributes: Mapping[str, ir.Attribute], op_id: int) -> Call:
    arguments = tuple(argument.value for argument in attributes["arguments"])
    exchange = attributes["exchange"].value if "exchange" in attributes else -1
    runs = frozenset(attributes["runs"]) if "runs" in attributes else frozenset[int]()
    sent = attributes["sent"].value if "sent" in attributes else 0
    symbol, group = attributes["symbol"].value, attributes["group"].value
    scratch = "scratch" in attributes and exchange < 0
    return Call(symbol, group, op_id, arguments, exchange, sent, runs, scratch)


def _listed(info: CollectiveInfo, times: int) -> list[CollectiveInfo]:
    """Return an entry for each time it runs; one of all their bytes where they would be too many."""
    if times <= MOST_LISTED:
        return [info] * times
    return [replace(info, bytes=info.bytes * times)]
