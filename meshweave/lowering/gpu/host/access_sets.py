"""Tell which bytes each entry of a schedule touches, on which stream: what streams.py plans with.

Memories: the arena (a function's own part of it), each input, each output. Constants are written by
nobody. A pointer that control flow hands on may be any of the buffers that it is tied to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.steps import MemrefPlace, Root, Step
from meshweave.lowering.gpu.host.streams import BARRIER, EVERYTHING, Range, StreamWork
from meshweave.lowering.nests.bind import Access, LoopNest
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import Entry, KernelUnit
from meshweave.transforms.slicing.ledger import HintMarks

_ELEMENTS = ("memref.load", "memref.store")
_BUFFERS = ("arena", "input", "output")
OPERATION, JOIN, NUMBERS = "operation", "join", "numbers"


def role_of(entry: Entry, forking: Collection[int]) -> str:
    """Return OPERATION, JOIN or NUMBERS for an entry.

    OPERATION: it is given to a stream. JOIN: a loop, a branch or the call of a function of those in
    `forking`, before and after which all streams meet. NUMBERS: the host's own.
    """
    if isinstance(entry, KernelUnit) or entry.what in ("collective", "wait", *_ELEMENTS):
        return OPERATION
    if entry.what == "call":
        return JOIN if entry.number in forking else OPERATION
    return JOIN if entry.bodies else NUMBERS


def forks(plan: FunctionPlan, forking: Collection[int]) -> bool:
    """Tell whether a function uses several streams, or calls one that does."""
    entries = [entry for _, entry in plan.moments]
    operations = [entry for entry in entries if role_of(entry, forking) == OPERATION]
    calls = any(isinstance(e, Step) and e.what == "call" and e.number in forking for e in entries)
    return calls or any(map(partial(asked, HintMarks()), operations))


def asked(marks: HintMarks, entry: Entry) -> int | None:
    """Return the stream that hints ask for; None where they ask for none. Single elements are always on stream 0."""
    if isinstance(entry, KernelUnit):
        return marks.stream(entry.steps[0].op.location)
    return 0 if entry.what in _ELEMENTS else marks.stream(entry.op.location)


class StreamAccesses:
    """Read the schedule of a function that uses several streams.

    `ops()` lists its operations, in the order in which host code is written, a barrier at the beginning
    and end of each block and around what joins.
    """

    def __init__(self, plan: FunctionPlan, forking: Collection[int]) -> None:
        """Read a plan. forking: the numbers of the functions that use several streams themselves."""
        self.plan, self.forking = plan, forking
        self._groups, self._marks = _tied(plan), HintMarks()
        self._ops: list[StreamWork] = []
        self._tickets: dict[int, int] = {}  # of a collective that is under way, its stream

    def ops(self) -> list[StreamWork]:
        """Return all operations."""
        self._ops = []
        self._block(self.plan.entries)
        return self._ops

    def _block(self, entries: list[Entry]) -> None:
        self._ops.append(BARRIER)
        for entry in entries:
            role = role_of(entry, self.forking)
            if role == OPERATION:
                self._ops.append(self._operation(entry))
            elif role == JOIN and isinstance(entry, Step):
                self._ops.append(BARRIER)
                for body in entry.bodies:
                    self._block(body)
                self._ops.append(BARRIER)
        self._ops.append(BARRIER)

    def _operation(self, entry: Entry) -> StreamWork:
        if isinstance(entry, KernelUnit):
            return self._unit(entry)
        return self._element(entry) if entry.what in _ELEMENTS else self._call(entry)

    def _unit(self, unit: KernelUnit) -> StreamWork:
        reads: list[Range] = []
        writes: list[Range] = []
        for nest in unit.nests:
            for pointer, span in _read(nest):
                reads += self._ranges(*unit.pointers.places[pointer], span)
            for store in nest.stores:
                place = unit.pointers.places[store.access.pointer]
                writes += self._ranges(*place, _span(store.access, nest))
        return StreamWork(asked(self._marks, unit) or 0, _unique(reads), _unique(writes))

    def _call(self, step: Step) -> StreamWork:
        """Return the operation of a collective, its wait, or the call of a function."""
        reads = [r for place in step.operands for r in self._place(place)]
        places = [*step.outputs, *([step.scratch] if step.scratch is not None else [])]
        writes = [r for place in places for r in self._place(place)]
        if step.what == "wait" and step.number in self._tickets:
            stream = self._tickets.pop(step.number)
        else:
            stream = self._stream(step, tuple(reads))
        if step.ticket >= 0:
            self._tickets[step.ticket] = stream
        return StreamWork(stream, tuple(reads), tuple(writes))

    def _stream(self, step: Step, reads: tuple[Range, ...]) -> int:
        """Return the stream of a collective or a call.

        It is the one that hints ask for; else a collective follows the op that last wrote what it sends.
        """
        wanted = asked(self._marks, step)
        if wanted is not None or step.what == "call":
            return wanted or 0
        sent = StreamWork(0, reads)
        return next((op.stream for op in reversed(self._ops) if op.conflicts(sent)), 0)

    def _element(self, step: Step) -> StreamWork:
        """Return the operation of an element that the host reads or writes: always on stream 0."""
        if step.what == "memref.load":
            return StreamWork(0, self._place(step.operands[0]), ())
        return StreamWork(0, (), self._place(step.operands[1]))

    def _place(self, place: MemrefPlace | ir.Value) -> tuple[Range, ...]:
        """Return all of the buffer that a place is in."""
        if not isinstance(place, MemrefPlace):
            return ()
        return self._ranges(place.root, place.offset, place.width, None)

    def _ranges(
        self, root: Root, offset: Linear, nbytes: int, span: tuple[int, int] | None
    ) -> tuple[Range, ...]:
        """Return the bytes of elements span[0] to below span[1] of a buffer, counted from an offset.

        It is all of the buffer where only the run time knows them.
        """
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


def _tied(plan: FunctionPlan) -> dict[Root, tuple[Range, ...]]:
    """Return the buffers that each pointer may be which control flow hands on."""
    groups: dict[Root, list[Root]] = {}
    for pair in plan.buffers.aliases:
        joined = [groups.get(root, [root]) for root in pair]
        merged = joined[0] if joined[0] is joined[1] else joined[0] + joined[1]
        for root in merged:
            groups[root] = merged
    found = {}
    for root, members in groups.items():
        if root.kind == "pointer" and all(_is_tied(r) for r in members):
            found[root] = _unique([_whole(r) for r in members if r.kind in _BUFFERS])
    return found


def _is_tied(root: Root) -> bool:
    """Tell whether a root is a buffer, or a pointer that control flow hands on and nothing else."""
    if root.kind != "pointer":
        return True
    owner = root.value.owner
    return isinstance(owner, ir.Block) or owner.operation.name.startswith("scf.")


def _read(nest: LoopNest) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """Yield the pointers that a nest reads through, and which elements from there."""
    for load in nest.loads:
        yield load.access.pointer, _span(load.access, nest)
    for gather in nest.gathers:
        yield gather.access.pointer, None
    for store in nest.stores:
        if store.reads:
            yield store.access.pointer, _span(store.access, nest)


def _span(access: Access, nest: LoopNest) -> tuple[int, int]:
    """Return the first element that an access reaches, and the end of the last."""
    steps = [stride * (size - 1) for stride, size in zip(access.strides, nest.sizes)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + 1


def _unique(ranges: list[Range]) -> tuple[Range, ...]:
    return tuple(dict.fromkeys(ranges))
