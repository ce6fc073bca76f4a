"""Define what `mw.trace()` gives: what each rank did and when, in slices, written as Chrome's trace events.

Compiled code marks what begins when (`abi.TraceBuffer`): a slice lasts until the next mark. A collective cannot be done
before its last member has arrived: what a rank spends in it until then is a wait.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from meshweave.abi import StatusRow, TraceBuffer
from meshweave.bundle import Manifest, OpInfo
from meshweave.errors import UsageError
from meshweave.files.whole import write_bytes, write_text
from meshweave.layout import Mesh
from meshweave.runtime.forks import new_lock
from meshweave.runtime.memory import Values
from meshweave.runtime.tracing import DeviceRecord, Marks, Slice
from meshweave.runtime.watched import WATCHERS, Watched, WatchesDevices, WritesMarks
from meshweave.see.account import source_line
from meshweave.see.exports import xspace

Spans = np.ndarray[Any, Any]
_STARTED = ", start"
_NO_MARKS, _NO_SPANS = np.empty((0, 2), np.int64), np.empty((0, 3), np.int64)
_EQUAL = 1000.0  # nanoseconds that two times of a GPU's events may differ and mean one
ROOM = 1 << 22  # marks of a rank, 16 bytes each; memory that is not written takes none


class RankTrace:
    """Hold what ranks did while it was entered: `slices`, in order of time for each rank.

    dropped: marks for which there was no room. unseen: programs whose engine writes none.
    """

    def __init__(self, room: int = ROOM) -> None:
        if room < 1:
            raise UsageError(f"trace: room={room}, a number of marks of at least 1 is right")
        self.slices: tuple[Slice, ...] = ()
        self.calls = self.dropped = self.unseen = 0
        self._room, self._began, self._began_at = room, 0, 0
        self._programs: dict[int, _ProgramTrace] = {}
        self._lock, self._over = new_lock(), False

    def __enter__(self) -> RankTrace:
        if any(isinstance(watcher, RankTrace) for watcher in WATCHERS):
            raise UsageError("trace: a trace is under way already")
        self._began, self._began_at = time.monotonic_ns(), time.time_ns()
        WATCHERS.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        WATCHERS.remove(self)
        with self._lock:  # a call of another thread may begin now
            self._over, traced, self._programs = True, list(self._programs.values()), {}
        calls = [call for each in traced for call in each.stopped(self._began)]
        self.calls = len(calls)
        self.dropped = sum(each.dropped for each in traced)
        found: list[Slice] = []
        for number, call in enumerate(sorted(calls, key=lambda call: call.began)):
            found += slices_of(call.manifest, number, call.spans, call.devices)
        self.slices = tuple(sorted(found, key=lambda s: (s.rank, s.start, -s.duration)))

    def compiled(self) -> None:
        """Do nothing: compiling is no part of a trace."""

    def begins(self, program: Watched) -> bool:
        """Have a program write marks from its first call on; it tells of further calls where it cannot."""
        with self._lock:
            if self._over:
                return False
            traced = self._programs.get(id(program))
            if traced is None:
                self._programs[id(program)] = traced = _ProgramTrace(program, self._room)
                self.unseen += traced.unseen
            return traced.begins()

    def as_dict(self) -> dict[str, Any]:
        """Return the trace as Chrome's trace events: a track for each rank, times in microseconds."""
        tracks = sorted({(s.rank, s.aside) for s in self.slices})
        ids = _track_ids(tracks)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "meshweave"}}
        ]
        for place, (rank, aside) in enumerate(tracks):
            about = {"ph": "M", "pid": 0, "tid": ids[rank, aside]}
            name = f"rank {rank}, beside" if aside else f"rank {rank}"
            events.append({**about, "name": "thread_name", "args": {"name": name}})
            events.append({**about, "name": "thread_sort_index", "args": {"sort_index": place}})
        events += [_event(each, ids[each.rank, each.aside]) for each in self.slices]
        more = {"calls": self.calls, "dropped_marks": self.dropped, "programs_unseen": self.unseen}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": more}

    def save(self, path: str) -> None:
        """Write the trace to a file, for ui.perfetto.dev or chrome://tracing. Raises UsageError where it cannot.

        path: one that ends in `.xplane.pb` is for XProf, which finds it as `LOGS/plugins/profile/RUN/HOST.xplane.pb`.
        """
        if path.endswith(".xplane.pb"):
            write_bytes(path, xspace(self.slices, self._began_at))
        else:
            write_text(path, json.dumps(self.as_dict(), separators=(",", ":")) + "\n")

    def __repr__(self) -> str:
        ranks = len({s.rank for s in self.slices})
        return f"<trace of {self.calls} calls: {len(self.slices)} slices on {ranks} ranks>"


def _track_ids(tracks: Sequence[tuple[int, bool]]) -> dict[tuple[int, bool], int]:
    """Return the number of each track: a rank's own, and for what was done beside it one behind those of all ranks."""
    beyond = 1 + max((rank for rank, _ in tracks), default=0)
    return {(rank, aside): rank + beyond * aside for rank, aside in tracks}


def _event(each: Slice, track: int) -> dict[str, Any]:
    said: dict[str, Any] = {"call": each.call}
    if each.where:
        said["where"] = each.where
    if code := source_line(each.where):
        said["code"] = code
    if each.kind == "collective":
        said["bytes"] = each.nbytes
    if each.waits_for is not None:
        said["for"] = f"rank {each.waits_for}"
    times = {"ts": round(each.start / 1e3, 3), "dur": round(each.duration / 1e3, 3)}
    return {
        "ph": "X", "name": each.name, "cat": each.kind, "pid": 0, "tid": track, **times, "args": said
    }  # fmt: skip


class _TracedCall(NamedTuple):
    """Hold what ranks did in a call, in nanoseconds from when the trace began. spans, devices: as for `slices_of`."""

    began: float
    manifest: Manifest
    spans: dict[int, Spans]
    devices: bool = False


class _ProgramTrace:
    """Have a program write marks, and hold what they are written to.

    unseen: whether it writes none. dropped: marks that there was no room for, once it has stopped.
    """

    def __init__(self, program: Watched, room: int) -> None:
        self._program, self._manifest, self._room = program, program.bundle.manifest, room
        self._writer = program if isinstance(program, WritesMarks) else None
        self._first = None if self._writer is None else self._writer.trace(room)
        self._devices = program if isinstance(program, WatchesDevices) else None
        if self._devices is not None:
            self._devices.watch_devices(room)
        self._marks: list[Marks] = []  # of ranks that were started again, further ones
        self._began: list[int] = []  # each call that the program has told of
        self.unseen, self.dropped = self._first is None and self._devices is None, 0

    def begins(self) -> bool:
        """Hear that a call begins; tell whether to be told of the next one too."""
        writer = self._writer
        if writer is None or self._first is None:
            self._began.append(time.monotonic_ns())
            return True
        if (marks := writer.marks()) is None:
            writer.trace(self._room)
            marks = writer.marks()
        if marks is not None and marks not in self._marks:
            self._marks.append(marks)
        return False

    def stopped(self, began: int) -> list[_TracedCall]:
        """End the tracing of the program; return its calls, in times from `began` on."""
        self._program.heard_by = None  # the trace itself, which holds much
        if self._devices is not None:
            return self._calls_of_devices(self._devices.unwatch_devices(), began)
        if self._writer is None or self._first is None:
            return [_TracedCall(each - began, self._manifest, {}) for each in self._began]
        first, last = self._first, self._writer.untrace() or self._first
        rate = (last.nanoseconds - first.nanoseconds) / max(last.stamp - first.stamp, 1)
        found = []
        for marks in self._marks:
            rows, dropped = marks.read()
            self.dropped += dropped
            calls = zip_longest(*(_calls_in(row) for row in rows.values()), fillvalue=_NO_MARKS)
            for call in calls:
                spans, begins = {}, []
                for rank, row in zip(rows, call):
                    times = (row[:, 0] - first.stamp) * rate + (first.nanoseconds - began)
                    spans[rank] = np.column_stack([times[:-1], times[1:], row[:-1, 1]])
                    begins += times[:1].tolist()
                found.append(_TracedCall(min(begins), self._manifest, spans))
        return found

    def _calls_of_devices(self, records: Sequence[DeviceRecord], began: int) -> list[_TracedCall]:
        self.dropped = sum(each.dropped for each in records)
        calls = zip_longest(*(each.calls for each in records), fillvalue=_NO_SPANS)
        ranks = [
            {rank: row - np.array([began, began, 0]) for rank, row in enumerate(rows)}
            for rows in calls
        ]
        ranks += [{} for _ in self._began[len(ranks) :]]  # calls of ranks that have ended since
        named = zip(self._began, ranks)
        return [_TracedCall(at - began, self._manifest, spans, True) for at, spans in named]


def _calls_in(marks: Values) -> list[Values]:
    """Return the marks of each call, the last of which says that it ends; of one that had no room, what there is."""
    ends = np.flatnonzero(marks[:, 1] == TraceBuffer.NOTHING) + 1
    return [call for call in np.split(marks, ends) if len(call)]


def slices_of(
    manifest: Manifest, call: int, spans: Mapping[int, Spans], devices: bool = False
) -> Iterator[Slice]:
    """Yield the slices of a call. spans: of each rank a row (start, end, what) for each mark, in nanoseconds.

    devices: whether GPUs did it, which do several things at a time: what would overlap a slice is aside.
    """
    mesh = Mesh.parse(manifest.mesh) if manifest.mesh else Mesh()
    arrived = _arrivals(spans)
    for rank, rows in spans.items():
        seen: dict[int, int] = defaultdict(int)
        free = [-np.inf, -np.inf]  # since when the rank does nothing, and nothing aside
        for start, end, what in sorted(_numbers(rows)) if devices else _numbers(rows):
            if what == TraceBuffer.NOTHING:
                continue
            op, kind, half = _meaning(manifest, what)
            aside = False
            if devices:
                aside = half == _STARTED or start < free[0] - _EQUAL
                half = "" if half == _STARTED else half
                start = max(start, free[aside])
                end = free[aside] = max(end, start)
            about = (call, op.location, op.bytes, None, aside)
            yield Slice(rank, kind, f"{op.name}{half}", start, end - start, *about)
            number, seen[what] = seen[what], seen[what] + 1
            if kind == "collective" and not half:
                members = mesh.group(op.axes, rank) if op.axes else (rank,)
                last = max(members, key=lambda r: arrived.get((r, what, number), 0.0))
                until = min(arrived.get((last, what, number), 0.0), end)
                if last != rank and until > start:
                    wait = ("wait", f"wait for rank {last}", start, until - start)
                    yield Slice(rank, *wait, call, op.location, waits_for=last, aside=aside)


def _numbers(rows: Spans) -> Iterator[tuple[float, float, int]]:
    """Yield rows as numbers of Python."""
    for start, end, what in rows.tolist():
        yield float(start), float(end), int(what)


def _arrivals(spans: Mapping[int, Spans]) -> dict[tuple[int, int, int], float]:
    """Return when each rank made its n-th mark of each kind: (rank, what, n)."""
    found: dict[tuple[int, int, int], float] = {}
    for rank, rows in spans.items():
        seen: dict[int, int] = defaultdict(int)
        for start, _, what in _numbers(rows):
            found[rank, what, seen[what]] = start
            seen[what] += 1
    return found


def _meaning(manifest: Manifest, what: int) -> tuple[OpInfo, str, str]:
    """Return what a mark is about, the kind of its slice, and which half of an async collective it is."""
    if what >= TraceBuffer.COPY:
        return OpInfo(0, "copy", ""), "copy", ""
    if what >= TraceBuffer.KERNEL:
        op = _of(manifest.marks, what - TraceBuffer.KERNEL)
        return op, "copy" if op.name == "copy" else "kernel", ""
    op = manifest.op(what % StatusRow.START)
    if what >= StatusRow.WAIT:
        return op, "wait", ", wait"
    if what >= StatusRow.START:
        return op, "collective", _STARTED
    return op, "collective" if op.axes else "copy", ""


def _of(ops: Sequence[OpInfo], number: int) -> OpInfo:
    if number < len(ops):
        return ops[number]
    return OpInfo(number, f"kernel {number}", "")
