"""Which bytes each entry of a schedule touches, on which stream: what streams.py plans with.

Memories: the arena (a function's own part of it), each input, each output. Constants are written by
nobody. A pointer that control flow hands on may be any of the buffers that it is tied to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from meshweave.bindings import ir
from meshweave.lowering.bind import Access, Nest
from meshweave.lowering.gpu.streams import BARRIER, EVERYTHING, Op, Range
from meshweave.lowering.linear import Linear
from meshweave.lowering.rows import Unit
from meshweave.lowering.schedule import Schedule
from meshweave.lowering.steps import Place, Root, Step
from meshweave.transforms.hint_ledger import stream_of

_ELEMENTS = ("memref.load", "memref.store")
_BUFFERS = ("arena", "input", "output")
OPERATION, JOIN, NUMBERS = "operation", "join", "numbers"


def role_of(entry: Any, forking: Collection[int]) -> str:
    """OPERATION: it is given to a stream. JOIN: a loop, a branch or the call of a function of those
    in `forking`, before and after which all streams meet. NUMBERS: the host's own.
    """
    if isinstance(entry, Unit) or entry.what in ("collective", "wait", *_ELEMENTS):
        return OPERATION
    if entry.what == "call":
        return JOIN if entry.number in forking else OPERATION
    return JOIN if entry.bodies else NUMBERS


def forks(schedule: Schedule, forking: Collection[int]) -> bool:
    """Does a function use several streams, or one that it calls?"""
    entries = [entry for _, entry in schedule.moments]
    operations = [entry for entry in entries if role_of(entry, forking) == OPERATION]
    calls = any(isinstance(e, Step) and e.what == "call" and e.number in forking for e in entries)
    return calls or any(asked(entry) for entry in operations)


def asked(entry: Any) -> int | None:
    """The stream that hints ask for; None: they say nothing. Single elements have no choice."""
    if isinstance(entry, Unit):
        return stream_of(entry.steps[0].op.location)
    return 0 if entry.what in _ELEMENTS else stream_of(entry.op.location)


class Touched:
    """Reads the schedule of a function that forks. `ops()`: its operations, in the order in which
    host code is written, a barrier at the beginning and end of each block and around what joins.
    """

    def __init__(self, schedule: Schedule, forking: Collection[int]) -> None:
        """forking: the numbers of the functions that use several streams themselves."""
        self.schedule, self.forking = schedule, forking
        self._groups = _tied(schedule)
        self._ops: list[Op] = []
        self._tickets: dict[int, int] = {}  # of a collective that is under way, its stream

    def ops(self) -> list[Op]:
        """All of them."""
        self._ops = []
        self._block(self.schedule.entries)
        return self._ops

    def _block(self, entries: list[Any]) -> None:
        self._ops.append(BARRIER)
        for entry in entries:
            role = role_of(entry, self.forking)
            if role == OPERATION:
                self._ops.append(self._operation(entry))
            elif role == JOIN:
                self._ops.append(BARRIER)
                for body in entry.bodies:
                    self._block(body)
                self._ops.append(BARRIER)
        self._ops.append(BARRIER)

    def _operation(self, entry: Any) -> Op:
        if isinstance(entry, Unit):
            return self._unit(entry)
        return self._element(entry) if entry.what in _ELEMENTS else self._call(entry)

    def _unit(self, unit: Unit) -> Op:
        reads: list[Range] = []
        writes: list[Range] = []
        for nest in unit.nests:
            for pointer, span in _read(nest):
                reads += self._ranges(*unit.pointers.places[pointer], span)
            for store in nest.stores:
                place = unit.pointers.places[store.access.pointer]
                writes += self._ranges(*place, _span(store.access, nest))
        return Op(asked(unit) or 0, _unique(reads), _unique(writes))

    def _call(self, step: Step) -> Op:
        """Of a collective, its wait, or a function."""
        reads = [r for place in step.operands for r in self._place(place)]
        places = [*step.outputs, *([step.scratch] if step.scratch is not None else [])]
        writes = [r for place in places for r in self._place(place)]
        if step.what == "wait" and step.number in self._tickets:
            stream = self._tickets.pop(step.number)
        else:
            stream = self._stream(step, tuple(reads))
        if step.ticket >= 0:
            self._tickets[step.ticket] = stream
        return Op(stream, tuple(reads), tuple(writes))

    def _stream(self, step: Step, reads: tuple[Range, ...]) -> int:
        """The one that hints ask for; else a collective waits for the one that wrote last what it
        sends.
        """
        wanted = asked(step)
        if wanted is not None or step.what == "call":
            return wanted or 0
        sent = Op(0, reads)
        return next((op.stream for op in reversed(self._ops) if op.conflicts(sent)), 0)

    def _element(self, step: Step) -> Op:
        """The host reads or writes a number: always on stream 0."""
        if step.what == "memref.load":
            return Op(0, self._place(step.operands[0]), ())
        return Op(0, (), self._place(step.operands[1]))

    def _place(self, place: Any) -> tuple[Range, ...]:
        """All of the buffer that a place is in."""
        if not isinstance(place, Place):
            return ()
        return self._ranges(place.root, place.offset, place.width, None)

    def _ranges(
        self, root: Root, offset: Linear, nbytes: int, span: tuple[int, int] | None
    ) -> tuple[Range, ...]:
        """Bytes of a buffer: elements span[0] to below span[1] from an offset on; all of it where
        that is known at run time alone.
        """
        root = self.schedule.final(root)
        if root.kind == "constant":
            return ()
        if root.kind == "pointer":
            return self._groups.get(root, (EVERYTHING,))
        whole = _whole(root)
        if span is None or offset.terms:
            return (whole,)
        first = whole.first + (offset.const + span[0]) * nbytes
        last = whole.first + (offset.const + span[1]) * nbytes
        return (Range(whole.memory, first, last),)


def _whole(root: Root) -> Range:
    if root.kind == "arena":
        return Range("arena", root.offset, root.offset + root.nbytes)
    return Range(f"{root.kind}{root.index}", 0, root.nbytes)


def _tied(schedule: Schedule) -> dict[Root, tuple[Range, ...]]:
    """Of each pointer that control flow hands on, the buffers that it may be."""
    groups: dict[Root, list[Root]] = {}
    for pair in schedule.buffers.aliases:
        joined = [groups.get(root, [root]) for root in pair]
        merged = joined[0] if joined[0] is joined[1] else joined[0] + joined[1]
        for root in merged:
            groups[root] = merged
    found = {}
    for root, members in groups.items():
        finals = [schedule.final(member) for member in members]
        if root.kind == "pointer" and all(_is_tied(r) for r in finals):
            found[root] = _unique([_whole(r) for r in finals if r.kind in _BUFFERS])
    return found


def _is_tied(root: Root) -> bool:
    """Is this a buffer, or a pointer that control flow hands on and nothing else?"""
    if root.kind != "pointer":
        return True
    owner = root.value.owner
    return isinstance(owner, ir.Block) or owner.operation.name.startswith("scf.")


def _read(nest: Nest) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """The pointers that a nest reads through, and which elements from there."""
    for node in nest.code:
        if node[0] == "load":
            yield node[1].pointer, _span(node[1], nest)
        elif node[0] == "gather":
            yield node[1], None
    for store in nest.stores:
        if store.reads:
            yield store.access.pointer, _span(store.access, nest)


def _span(access: Access, nest: Nest) -> tuple[int, int]:
    """From which element to below which an access reaches."""
    steps = [stride * (size - 1) for stride, size in zip(access.strides, nest.sizes)]
    low = access.const + sum(step for step in steps if step < 0)
    return low, access.const + sum(step for step in steps if step > 0) + 1


def _unique(ranges: list[Range]) -> tuple[Range, ...]:
    return tuple(dict.fromkeys(ranges))
