"""Tell whoever watches (`mw.expect`, `mw.trace`) of programs that are compiled and of their calls.

Nobody watches most of the time: a call then looks once whether the list is empty.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from meshweave.bundle import Bundle
from meshweave.runtime.tracing import ClockReading, DeviceRecord, Marks


class Watched(Protocol):
    """Be a loaded program, of any engine."""

    bundle: Bundle


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


class CallWatcher(Protocol):
    """Hear of all programs that this process calls while it is in WATCHERS."""

    def compiled(self) -> None:
        """Hear that a program was made."""

    def begins(self, program: Watched) -> None:
        """Hear that a program is about to run. Calls of one program do not overlap."""

    def ended(self, program: Watched) -> None:
        """Hear that it has run."""


WATCHERS: list[CallWatcher] = []


def told_compiled() -> None:
    """Tell that a program was made: compiled, or read from the disk where an earlier process has compiled it."""
    for watcher in tuple(WATCHERS):
        watcher.compiled()


def told_begins(program: Watched) -> None:
    """Tell that a program is about to run."""
    for watcher in tuple(WATCHERS):
        watcher.begins(program)


def told_ended(program: Watched) -> None:
    """Tell that a program has run."""
    for watcher in tuple(WATCHERS):
        watcher.ended(program)
