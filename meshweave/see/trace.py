"""Define what `mw.trace()` gives: what each rank did and when, in slices, written as Chrome's trace events.

Compiled code marks what begins when (`abi.TraceBuffer`): a slice lasts until the next mark. A collective cannot be done
before its last member has arrived: what a rank spends in it until then is a wait.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from meshweave.abi import StatusRow, TraceBuffer
from meshweave.bundle import Manifest, OpInfo
from meshweave.errors import UsageError
from meshweave.files.whole import write_bytes, write_text
from meshweave.layout import Mesh
from meshweave.runtime.memory import Values
from meshweave.runtime.tracing import DeviceRecord, Marks, Slice
from meshweave.runtime.watched import WATCHERS, Watched, WatchesDevices, WritesMarks
from meshweave.see.exports import xspace

Spans = np.ndarray[Any, Any]
_STARTED = ", start"
_EQUAL = 1000.0  # nanoseconds that two times of a GPU's events may differ and mean one
ROOM = 1 << 17  # marks of a rank, 16 bytes each, of which a call has half at least


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
        self._programs: dict[int, _ProgramMarks] = {}

    def __enter__(self) -> RankTrace:
        if any(isinstance(watcher, RankTrace) for watcher in WATCHERS):
            raise UsageError("trace: a trace is under way already")
        self._began, self._began_at = time.monotonic_ns(), time.time_ns()
        WATCHERS.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        WATCHERS.remove(self)
        found: list[Slice] = []
        for traced in self._programs.values():
            traced.stop()
            self.dropped += traced.dropped
            found += traced.slices(self._began)
        self._programs = {}
        self.slices = tuple(sorted(found, key=lambda s: (s.rank, s.start, -s.duration)))

    def compiled(self) -> None:
        """Do nothing: compiling is no part of a trace."""

    def begins(self, program: Watched) -> None:
        """Have a program write marks from its first call on."""
        traced = self._programs.get(id(program))
        if traced is None:
            traced = _ProgramMarks(program, self._room)
            self._programs[id(program)] = traced
            self.unseen += traced.first is None and traced.watching is None
        traced.begin()

    def ended(self, program: Watched) -> None:
        """Take the marks of a call; of one that another thread began before the trace there are none."""
        traced = self._programs.get(id(program))
        if traced is not None:
            traced.take(self.calls)
            self.calls += 1

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
    if each.kind == "collective":
        said["bytes"] = each.nbytes
    if each.waits_for is not None:
        said["for"] = f"rank {each.waits_for}"
    times = {"ts": round(each.start / 1e3, 3), "dur": round(each.duration / 1e3, 3)}
    return {
        "ph": "X", "name": each.name, "cat": each.kind, "pid": 0, "tid": track, **times, "args": said
    }  # fmt: skip


class _CallMarks:
    """Hold where the marks of a call begin and end in the buffer of each rank, and once they are read, the marks."""

    __slots__ = ("call", "ends", "rows", "starts")

    def __init__(self, call: int, starts: list[int], ends: list[int]) -> None:
        self.call, self.starts, self.ends = call, starts, ends
        self.rows: dict[int, Values] = {}


class _ProgramMarks:
    """Hold the marks of a program's calls."""

    def __init__(self, program: Watched, room: int) -> None:
        self.program, self.manifest = program, program.bundle.manifest
        self.writer = program if isinstance(program, WritesMarks) else None
        self.first = None if self.writer is None else self.writer.trace(room)
        self.last = self.first
        self.watching = program if isinstance(program, WatchesDevices) else None
        if self.watching is not None:
            self.watching.watch_devices(room)
        self.numbers: list[int] = []  # of the calls
        self.devices: list[DeviceRecord] = []
        self.marks = self._marks() if self.first is not None else None
        self.calls: list[_CallMarks] = []
        self.dropped = self._read = 0  # calls whose marks are read
        self._ends: list[int] = [] if self.marks is None else self.marks.counts
        self._runs = False

    def _marks(self) -> Marks | None:
        return None if self.writer is None else self.writer.marks()

    def begin(self) -> None:
        """Leave out what a call before has written that failed."""
        if self._runs and self.marks is not None:
            self._ends = self.marks.counts
        self._runs = True

    def take(self, call: int) -> None:
        """Note where the marks of a call are: they are read later, when half of the room is used."""
        self._runs = False
        self.numbers.append(call)
        marks = self.marks
        if marks is not None and self._marks() is marks:
            ends = marks.counts
            self.calls.append(_CallMarks(call, self._ends, ends))
            self._ends = ends
            if max(ends) > marks.room // 2:
                self._read_marks(marks)

    def _read_marks(self, marks: Marks) -> None:
        """Read the marks of the calls since the last time."""
        taken = marks.take()
        self.dropped += taken.dropped
        for each in self.calls[self._read :]:
            each.rows = {
                rank: rows[start:end]
                for (rank, rows), start, end in zip(taken.rows.items(), each.starts, each.ends)
            }
        self._read, self._ends = len(self.calls), marks.counts

    def stop(self) -> None:
        """End the tracing of the program."""
        if self.writer is not None and self.marks is not None:
            self.last = self.writer.untrace()
            self._read_marks(self.marks)
        if self.watching is not None:
            self.devices = self.watching.unwatch_devices()
            self.dropped += sum(each.dropped for each in self.devices)

    def slices(self, began: int) -> Iterator[Slice]:
        """Yield the slices of all calls, with times from `began` on."""
        for call, *rows in zip(self.numbers, *(each.calls for each in self.devices)):
            spans = {rank: row - np.array([began, began, 0]) for rank, row in enumerate(rows)}
            yield from slices_of(self.manifest, call, spans, devices=True)
        if self.first is None or self.last is None:
            return
        stamps = self.last.stamp - self.first.stamp
        rate = (self.last.nanoseconds - self.first.nanoseconds) / max(stamps, 1)
        for each in self.calls:
            spans = {}
            for rank, marks in each.rows.items():
                times = (marks[:, 0] - self.first.stamp) * rate + (self.first.nanoseconds - began)
                spans[rank] = np.column_stack([times[:-1], times[1:], marks[:-1, 1]])
            yield from slices_of(self.manifest, each.call, spans)


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
