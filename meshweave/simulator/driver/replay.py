"""Execute recorded operations in legal orders: stream order, event edges, collectives that meet.

Every rank has streams, each a queue of `QueueEntry`s. The scheduler picks, by its seed, any stream whose
head may run, so each seed is another interleaving that hardware might show. What no legal order
allows is an error that names both parties: collectives that differ, ranks that wait for each other
for ever, and operations on the same bytes that nothing orders.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from meshweave.errors import MeshweaveError, RankError
from meshweave.simulator.driver.races import History, OperationAccess, Ranges

Work = Callable[[], tuple[Ranges, Ranges]]  # does it; the bytes it has read and written


@dataclass(eq=False)
class NcclOp:
    """Describe one NCCL operation of an entry.

    kind: "all_reduce", "send", ... signature: what must be equal at all members (count, dtype, reduction).

    member: of the caller in `comm`; peer: the other member of a send or recv. source, target: addresses.
    """

    kind: str
    comm: Comm
    member: int
    signature: tuple[Any, ...]
    source: int = 0
    target: int = 0
    peer: int = -1
    entry: QueueEntry | None = None  # set when it is enqueued
    done: bool = False

    @property
    def owner(self) -> QueueEntry:
        """Return the entry that the operation belongs to."""
        assert self.entry is not None
        return self.entry


@dataclass(eq=False)
class QueueEntry:
    """Hold one operation of a stream.

    what: in words, as the recorder prints it; where: op and source line, where known. work: does
    it, for what runs on one rank; items: what is done together with other ranks. event: for a wait,
    the record that it waits for. clock: of each stream of the rank, how many of its entries are
    ordered before this one, itself included. ended: when it was done, in nanoseconds.
    """

    rank: int
    stream: Stream
    what: str
    where: str = ""
    work: Work | None = None
    items: Sequence[NcclOp] = ()
    event: QueueEntry | None = None
    position: int = 0
    clock: tuple[int, ...] = ()
    posted: bool = False
    done: bool = False
    ended: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.what}" + (f" in {self.where}" if self.where else "")


@dataclass(eq=False)
class Stream:
    """Hold a stream of a rank; `index` counts the rank's streams."""

    rank: int
    index: int
    name: str
    queue: deque[QueueEntry] = field(default_factory=deque)
    clock: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Comm:
    """Hold a communicator: the ranks of its members, and what each has posted and not yet completed."""

    name: str
    ranks: tuple[int, ...]
    posted: dict[int, deque[NcclOp]] = field(default_factory=dict)
    channels: dict[tuple[int, int, str], deque[NcclOp]] = field(default_factory=dict)

    def collectives(self, member: int) -> deque[NcclOp]:
        """Return the collectives that a member has posted."""
        return self.posted.setdefault(member, deque())

    def channel(self, source: int, target: int, kind: str) -> deque[NcclOp]:
        """Return the sends, or the recvs, posted between two members."""
        return self.channels.setdefault((source, target, kind), deque())


Move = Callable[[Sequence[NcclOp]], list[tuple[Ranges, Ranges]]]


class Scheduler:
    """Run entries in an order that hardware might choose.

    `move(items)` does a collective (items of all members, in order), or a send and its recv, and returns for each the
    bytes read and written.
    """

    def __init__(self, move: Move, seed: int | None = None, races: bool = True) -> None:
        """Start without streams.

        seed: chooses the interleaving; None: streams in their fixed order. races: whether to look for races.
        """
        self._move, self._races = move, races
        self._random = None if seed is None else random.Random(seed)
        self._streams: list[Stream] = []
        self._order: dict[int, deque[QueueEntry]] = {}  # of each rank, NCCL entries not yet posted
        self._histories: dict[int, History] = {}
        self.executed: list[QueueEntry] = []

    def add_stream(self, stream: Stream) -> None:
        """Run the queue of this stream too."""
        self._streams.append(stream)

    def remove_stream(self, stream: Stream) -> None:
        """Drop a destroyed stream; what its queue holds never runs."""
        self._streams.remove(stream)

    def enqueue(self, entry: QueueEntry) -> None:
        """Append an entry to its stream's queue."""
        entry.stream.queue.append(entry)
        for item in entry.items:
            item.entry = entry
        if entry.items:
            self._order.setdefault(entry.rank, deque()).append(entry)

    def forget(self, rank: int) -> None:
        """Forget the accesses of a rank whose host has waited for everything: nothing later can race with them."""
        self._histories.pop(rank, None)

    def run(self) -> int:
        """Run all that can run, and return how many entries that were. Raises RankError for mismatches and races."""
        count = 0
        ready = self._candidates()
        while ready:
            stream = self._random.choice(ready) if self._random else ready[0]
            count += self._advance(stream)
            ready = self._candidates()
        return count

    def pending(self) -> list[QueueEntry]:
        """Return the heads of the streams that are not empty."""
        return [stream.queue[0] for stream in self._streams if stream.queue]

    def clear(self) -> None:
        """Drop everything that has not run."""
        for stream in self._streams:
            stream.queue.clear()
        self._order.clear()
        self._histories.clear()

    def stuck(self) -> str:
        """Say why nothing can run: the heads of the streams, and what each waits for."""
        return "; ".join(f"{head}, which {self._lacks(head)}" for head in self.pending())

    # One step.

    def _candidates(self) -> list[Stream]:
        return [s for s in self._streams if s.queue and self._may_advance(s.queue[0])]

    def _may_advance(self, entry: QueueEntry) -> bool:
        if entry.event is not None:
            return entry.event.done
        if not entry.items:
            return True
        if entry.posted:
            return all(item.done for item in entry.items)
        return self._order[entry.rank][0] is entry

    def _advance(self, stream: Stream) -> int:
        """Run the head of a stream, or post it where it needs other ranks. Returns 1 when an entry ended."""
        entry = stream.queue[0]
        if entry.items and not entry.posted:
            self._post(entry)
            return 0
        if entry.work is not None:
            self._note(entry, *_worked(entry, entry.work))
        stream.queue.popleft()
        entry.done, entry.ended = True, monotonic_ns()
        self.executed.append(entry)
        return 1

    def _post(self, entry: QueueEntry) -> None:
        """Launch an NCCL operation, which from now on waits for its peers."""
        self._order[entry.rank].popleft()
        entry.posted = True
        for item in entry.items:
            if item.kind in ("send", "recv"):
                self._post_pair(item)
            else:
                item.comm.collectives(item.member).append(item)
                self._meet(item.comm)

    def _post_pair(self, item: NcclOp) -> None:
        if item.kind == "send":
            source, target = item.member, item.peer
        else:
            source, target = item.peer, item.member
        comm = item.comm
        comm.channel(source, target, item.kind).append(item)
        sends, recvs = (comm.channel(source, target, kind) for kind in ("send", "recv"))
        while sends and recvs:
            self._complete([sends.popleft(), recvs.popleft()], pair=True)

    def _meet(self, comm: Comm) -> None:
        members = range(len(comm.ranks))
        while all(comm.collectives(member) for member in members):
            self._complete([comm.collectives(member).popleft() for member in members], pair=False)

    def _complete(self, items: Sequence[NcclOp], pair: bool) -> None:
        first = items[0]
        for other in items[1:]:
            if not pair and other.kind != first.kind:
                raise mismatch(first, other, "different operations")
            if other.signature != first.signature:
                raise mismatch(first, other, "different counts, dtypes or reductions")
            if "" not in (a := first.owner.where, b := other.owner.where) and a != b:
                raise mismatch(first, other, "different ops of the program")
        for item, (reads, writes) in zip(items, self._move(items), strict=True):
            item.done = True
            self._note(item.owner, reads, writes)

    def _note(self, entry: QueueEntry, reads: Ranges, writes: Ranges) -> None:
        """Remember what an entry has touched. Raises RankError when it races with another."""
        if not self._races:
            return
        history = self._histories.setdefault(entry.rank, History())
        access = OperationAccess(
            entry, entry.stream.index, entry.position, entry.clock, reads, writes
        )
        found = history.add(access)
        if found is not None:
            other, start, kinds = found
            raise RankError(
                f"race on rank {entry.rank}: {other.what}{_place(other)} and "
                f"{entry.what}{_place(entry)} {kinds} the same bytes at {start:#x} and nothing "
                "orders them"
            )

    def _lacks(self, head: QueueEntry) -> str:
        """Say what the head of a stream waits for."""
        if head.event is not None:
            return f"waits for {head.event.what} on {head.event.stream.name}"
        if not head.items:
            return "could run"
        if not head.posted:
            return f"waits its turn after {self._order[head.rank][0].what}"
        lacking = []
        for item in head.items:
            if item.done:
                continue
            if item.kind in ("send", "recv"):
                there = [item.peer]
            else:
                there = [m for m in range(len(item.comm.ranks)) if not item.comm.collectives(m)]
            lacking += [item.comm.ranks[member] for member in there]
        ranks = ", ".join(str(rank) for rank in sorted(set(lacking)))
        return f"waits for rank {ranks}"


def _worked(entry: QueueEntry, work: Work) -> tuple[Ranges, Ranges]:
    """Do the work of an entry. Raises RankError that says whose it is, where the error does not."""
    try:
        return work()
    except MeshweaveError as error:
        if not entry.where or entry.where in error.message:
            raise
        name = entry.what.partition("(")[0]
        line = f"rank {entry.rank} failed in {name} at {entry.where}: {error.message}"
        raise RankError(line) from None


def _place(entry: QueueEntry) -> str:
    return f" in {entry.where}" if entry.where else ""


def mismatch(first: NcclOp, other: NcclOp, how: str) -> RankError:
    """Return the error for two operations that meet and do not match."""
    return RankError(f"{how} meet on {first.comm.name}: {first.owner} against {other.owner}")


def text(entries: Iterable[QueueEntry]) -> str:
    """Format a sequence of entries for tests, one a line."""
    return "\n".join(f"{entry.stream.name}: {entry.what}" for entry in entries)
