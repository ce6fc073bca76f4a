"""Tell whoever watches (`mw.expect`, `mw.trace`) of programs that are compiled and of their calls.

A call compares two references: who watches, and whom the program has told all that it needs to hear.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from meshweave.bundle import Bundle
from meshweave.runtime.forks import new_lock
from meshweave.runtime.tracing import ClockReading, DeviceRecord, Marks


class CallWatcher(Protocol):
    """Hear of all programs that this process calls while it is in WATCHERS."""

    def compiled(self) -> None:
        """Hear that a program was made."""

    def begins(self, program: Watched) -> bool:
        """Hear that a program is about to run; tell whether to be told of its next call too.

        Calls of one program do not overlap.
        """


class Watched(Protocol):
    """Be a loaded program, of any engine.

    heard_by: the newest watcher, where neither it nor any other needs to hear of further calls.
    """

    bundle: Bundle
    heard_by: CallWatcher | None


@runtime_checkable
class WritesMarks(Protocol):
    """Be a loaded program whose ranks write what begins when; None where it was compiled without marks."""

    def trace(self, room: int) -> ClockReading | None:
        """Begin, with room for so many marks of a rank; return the clocks now."""

    def marks(self) -> Marks | None:
        """Return the marks of the ranks that are there now."""

    def untrace(self) -> ClockReading | None:
        """End; return the clocks then."""


@runtime_checkable
class WatchesDevices(Protocol):
    """Be a loaded program whose ranks have GPUs."""

    def watch_devices(self, room: int) -> None:
        """Begin, with room for so many marks of a rank."""

    def unwatch_devices(self) -> list[DeviceRecord]:
        """End; return what each rank's GPU did."""


class Watchers:
    """Hold who watches. newest: the one that came last, None while nobody watches."""

    def __init__(self) -> None:
        self.newest: CallWatcher | None = None
        self._all: tuple[CallWatcher, ...] = ()
        self._lock = new_lock()

    def __iter__(self) -> Iterator[CallWatcher]:
        return iter(self._all)

    def add(self, watcher: CallWatcher) -> None:
        """Let it hear of what happens from now on."""
        with self._lock:
            self._set((*self._all, watcher))

    def remove(self, watcher: CallWatcher) -> None:
        """Let it hear of nothing more."""
        with self._lock:
            self._set(tuple(each for each in self._all if each is not watcher))

    def _set(self, those: tuple[CallWatcher, ...]) -> None:
        self._all = those
        self.newest = those[-1] if those else None


WATCHERS = Watchers()


def told_compiled() -> None:
    """Tell that a program was made: compiled, or read from the disk where an earlier process has compiled it."""
    for watcher in WATCHERS:
        watcher.compiled()


def told_begins(program: Watched) -> None:
    """Tell that a program is about to run. For a program that has not told `WATCHERS.newest` what it needs to hear."""
    newest = WATCHERS.newest
    again = [watcher.begins(program) for watcher in WATCHERS]
    program.heard_by = None if any(again) else newest
