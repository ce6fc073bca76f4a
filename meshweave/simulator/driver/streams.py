"""Play the CUDA driver's streams and events, and the graphs made of what was captured."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshweave.errors import RankError
from meshweave.runtime.gpu.interface import (
    CAPTURE_ISOLATION,
    CAPTURE_UNJOINED,
    CAPTURE_UNSUPPORTED,
    EVENT_NO_TIMING,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
)
from meshweave.simulator.driver.memory import put
from meshweave.simulator.driver.replay import NcclOp, QueueEntry, Stream, Work
from meshweave.simulator.driver.session import Session


@dataclass(eq=False)
class Event:
    """Hold an event and what it recorded last: an entry, or within a capture what its stream had seen then."""

    name: str
    timed: bool = False
    record: QueueEntry | None = None
    capture: CapturedGraph | None = None
    seen: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class CapturedGraph:
    """Hold what was captured: calls, to be made again at each launch.

    seen: of each stream (by index) how many calls of the others, and its own, are before its next.
    """

    origin: Stream
    calls: list[Callable[[], None]] = field(default_factory=list)
    streams: dict[int, Stream] = field(default_factory=dict)
    seen: dict[int, dict[int, int]] = field(default_factory=dict)

    def add(self, stream: Stream, call: Callable[[], None], event: Event | None) -> None:
        """Capture a call on a stream; `event` is what it records."""
        seen = self.seen.setdefault(stream.index, {})
        seen[stream.index] = seen.get(stream.index, 0) + 1
        if event is not None:
            event.capture, event.seen = self, dict(seen)
        self.calls.append(call)

    def join(self, stream: Stream, event: Event) -> None:
        """Add a stream to this capture, because it waits for one of its events."""
        self.streams[stream.index] = stream
        seen = self.seen.setdefault(stream.index, {})
        for index, count in event.seen.items():
            seen[index] = max(seen.get(index, 0), count)

    @property
    def joined(self) -> bool:
        """Tell whether the stream that began the capture comes after all that the others do."""
        last = self.seen.get(self.origin.index, {})
        return all(
            last.get(index, 0) >= self.seen.get(index, {}).get(index, 0) for index in self.streams
        )


@dataclass(eq=False)
class GraphExec:
    """Hold a graph that can be launched."""

    graph: CapturedGraph


class RecordedStreams:
    """Implement the functions cuStream*, cuEvent* and cuGraph*. Each returns an error code, or None for success."""

    def __init__(self, session: Session) -> None:
        self._r = session
        self._made: dict[int, int] = {}  # of each rank, how many streams
        self._null: dict[int, Stream] = {}  # of each rank that has used it
        self._events: dict[int, int] = {}
        self._hosts: dict[int, list[int]] = {}  # of each rank, what the host knows to be done
        self._captures: dict[Stream, CapturedGraph] = {}

    def capturing(self, rank: int) -> bool:
        """Tell whether some stream of a rank is being captured."""
        return any(stream.rank == rank for stream in self._captures)

    # Streams and events.

    def cuStreamCreateWithPriority(self, stream: int, flags: int, priority: int) -> None:
        put(stream, self._r.new(self._new("")))

    def _new(self, name: str) -> Stream:
        """Make a stream of the calling rank, named by its number unless it has a name."""
        rank = self._r.rank
        index = self._made[rank] = self._made.get(rank, -1) + 1
        made = Stream(rank, index, name or f"s{index - (rank in self._null)}")
        self._r.scheduler.add_stream(made)
        return made

    def cuStreamDestroy_v2(self, stream: int) -> int | None:
        found = self._r.find(stream, Stream)
        if found is not None:
            self._r.scheduler.remove_stream(found)
        return self._r.drop(stream, Stream)

    def cuStreamSynchronize(self, stream: int | None) -> int | None:
        found = self._r.find(stream, Stream)
        return INVALID_HANDLE if found is None else self._synchronized([found])

    def cuCtxSynchronize(self) -> int | None:
        return self._synchronized(self._of_rank())

    def cuEventCreate(self, event: int, flags: int) -> None:
        rank = self._r.rank
        index = self._events[rank] = self._events.get(rank, -1) + 1
        put(event, self._r.new(Event(f"e{index}", timed=not flags & EVENT_NO_TIMING)))

    def cuEventDestroy_v2(self, event: int) -> int | None:
        return self._r.drop(event, Event)

    def cuEventQuery(self, event: int) -> int | None:
        found = self._r.find(event, Event)
        if found is None:
            return INVALID_HANDLE
        return None if found.record is None or found.record.done else NOT_READY

    def cuEventSynchronize(self, event: int) -> int | None:
        found = self._r.find(event, Event)
        if found is None:
            return INVALID_HANDLE
        last, rank = found.record, self._r.rank
        if last is not None:
            self._r.nccl.check_closed(rank)
            self._r.block(lambda: last.done, f"{found.name} on {last.stream.name}")
            self._host_knows(rank, last.clock)
        return None

    def cuEventElapsedTime(self, milliseconds: int, first: int, second: int) -> int | None:
        begin, end = self._r.find(first, Event), self._r.find(second, Event)
        if begin is None or end is None or not (begin.timed and end.timed):
            return INVALID_HANDLE
        if begin.record is None or end.record is None:
            return INVALID_HANDLE
        if not (begin.record.done and end.record.done):
            return NOT_READY
        nanoseconds = end.record.ended - begin.record.ended
        ctypes.c_float.from_address(milliseconds).value = nanoseconds / 1e6
        return None

    def cuEventRecord(self, event: int, stream: int | None) -> int | None:
        found = self._r.find(event, Event)
        if found is None:
            return INVALID_HANDLE
        found.capture = None
        return self.submit(stream, f"record {found.name}", None, record=found)

    def cuStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> int | None:
        made, found = self._r.find(event, Event), self._r.find(stream, Stream)
        if made is None or found is None:
            return INVALID_HANDLE
        graph: CapturedGraph | None = made.capture
        if graph is not None and graph in self._captures.values():
            self._captures[found] = graph
            graph.join(found, made)
        elif found in self._captures:
            return CAPTURE_ISOLATION
        elif made.record is None:
            place = self._r.where(found.rank)
            raise RankError(
                f"rank {found.rank}: {found.name} waits for {made.name}, which nobody has recorded"
                + (f", in {place}" if place else "")
            )
        return self.submit(stream, f"wait {made.name}", None, wait=made)

    # Graphs.

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> int | None:
        found = self._r.find(stream, Stream)
        if found is None or found in self._captures:
            return INVALID_HANDLE
        self._captures[found] = CapturedGraph(found, streams={found.index: found})
        return None

    def cuStreamEndCapture(self, stream: int, graph: int) -> int | None:
        found = self._r.find(stream, Stream)
        made = None if found is None else self._captures.get(found)
        if made is None:
            return INVALID_VALUE
        self._captures = {s: g for s, g in self._captures.items() if g is not made}
        if not made.joined:
            return CAPTURE_UNJOINED
        put(graph, self._r.new(made))
        return None

    def cuGraphInstantiateWithFlags(self, exec_: int, graph: int, flags: int) -> int | None:
        found = self._r.find(graph, CapturedGraph)
        if found is None:
            return INVALID_HANDLE
        put(exec_, self._r.new(GraphExec(found)))
        return None

    def cuGraphLaunch(self, exec_: int, stream: int | None) -> int | None:
        found, on = self._r.find(exec_, GraphExec), self._r.find(stream, Stream)
        if found is None or on is None:
            return INVALID_HANDLE
        graph = found.graph
        others = [s for s in graph.streams.values() if s is not on]
        fork = self._push(on, "graph begins")
        for other in others:
            self._push(other, "graph begins", wait=fork)
        for call in graph.calls:
            call()
        for other in others:
            self._push(on, "graph ends", wait=self._push(other, "graph ends"))
        return None

    def cuGraphExecDestroy(self, exec_: int) -> int | None:
        return self._r.drop(exec_, GraphExec)

    def cuGraphDestroy(self, graph: int) -> int | None:
        return self._r.drop(graph, CapturedGraph)

    # What all that enqueue share.

    def submit(
        self, stream: int | None, what: str, work: Work | None, *,
        items: tuple[NcclOp, ...] = (), record: Event | None = None, wait: Event | None = None,
        where: str = "",
    ) -> int | None:  # fmt: skip
        """Enqueue an operation, or add it to the graph that is being captured.

        where: op and source line, by default those that the rank's status names.
        """
        found = self._r.find(stream, Stream)
        if found is None or found.rank != self._r.rank:
            return INVALID_HANDLE
        place = where or self._r.where(found.rank)

        def issue() -> None:
            awaited = wait.record if wait is not None else None
            entry = self._push(found, what, place, work, tuple(map(_fresh, items)), awaited)
            if record is not None:
                record.record = entry

        graph = self._captures.get(found)
        if graph is not None:
            graph.add(found, issue, record)
        else:
            issue()
        return None

    def submit_to_null(self, what: str, work: Work, waits: bool = False) -> None:
        """Enqueue an operation on the null stream of the calling rank, which our streams do not wait for.

        waits: the host waits for it.
        """
        rank = self._r.rank
        if rank not in self._null:
            self._null[rank] = self._new("null")
        self._push(self._null[rank], what, self._r.where(rank), work)
        if waits:
            self._synchronized([self._null[rank]])

    def _push(
        self, stream: Stream, what: str, where: str = "", work: Work | None = None,
        items: tuple[NcclOp, ...] = (), wait: QueueEntry | None = None,
    ) -> QueueEntry:  # fmt: skip
        """Enqueue an entry, ordered after all that its stream, its event and the host have seen."""
        clock = stream.clock + [0] * (self._made[stream.rank] + 1 - len(stream.clock))
        _merge(clock, self._hosts.get(stream.rank, ()))
        _merge(clock, wait.clock if wait is not None else ())
        clock[stream.index] += 1
        stream.clock = clock
        entry = QueueEntry(stream.rank, stream, what, where, work, items, wait)
        entry.position, entry.clock = clock[stream.index], tuple(clock)
        self._r.log[stream.rank].append(entry)
        self._r.scheduler.enqueue(entry)
        return entry

    def _synchronized(self, streams: list[Stream]) -> int | None:
        """Make the host wait for streams."""
        if any(stream in self._captures for stream in streams):
            return CAPTURE_UNSUPPORTED
        rank = self._r.rank
        self._r.nccl.check_closed(rank)
        last = [stream.queue[-1] for stream in streams if stream.queue]
        names = " and ".join(stream.name for stream in streams)
        self._r.block(lambda: all(entry.done for entry in last), f"the end of {names}")
        for stream in streams:
            self._host_knows(rank, stream.clock)
        if all(self._awaited(stream) for stream in self._of_rank()):
            self._r.scheduler.forget(rank)
        return None

    def _host_knows(self, rank: int, clock: Sequence[int]) -> None:
        """Note that the host has waited for something, and so for all that was ordered before it."""
        host = self._hosts.setdefault(rank, [])
        host += [0] * (len(clock) - len(host))
        _merge(host, clock)

    def _awaited(self, stream: Stream) -> bool:
        """Tell whether the host knows that all of a stream is done."""
        known = self._hosts.get(stream.rank, [])
        done = stream.clock[stream.index] if stream.clock else 0
        return done <= (known[stream.index] if stream.index < len(known) else 0)

    def _of_rank(self) -> list[Stream]:
        rank = self._r.rank
        found = [s for s in self._r.objects.values() if isinstance(s, Stream)]
        null = [self._null[rank]] if rank in self._null else []
        return null + [stream for stream in found if stream.rank == rank]


def _merge(clock: list[int], other: Sequence[int]) -> None:
    """Let a clock have seen what another has."""
    for index, count in enumerate(other):
        clock[index] = max(clock[index], count)


def _fresh(item: NcclOp) -> NcclOp:
    """Copy an operation, to be done once more."""
    return NcclOp(
        item.kind, item.comm, item.member, item.signature, item.source, item.target, item.peer
    )
