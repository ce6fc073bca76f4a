"""Ask the system what a process does, whether or not it answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

ALIVE, STOPPED, DEAD, UNKNOWN = PROCESS_STATES = ("alive", "stopped", "dead", "unknown")
_STATE, _BEGAN, _EXIT_STATUS = 0, 19, 49  # words of /proc/PID/stat behind the name
# struct pidfd_info of <linux/pidfd.h>: a mask first, the exit status last.
_PIDFD_INFO = struct.Struct("<QQ11Ii")
_GET_INFO, _EXIT = 0xC040FF0B, 8  # PIDFD_GET_INFO, PIDFD_INFO_EXIT


def stat_words(pid: int) -> list[str]:
    """Return the words of /proc/PID/stat behind the process's name; none where there is no such process."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return []


def began(pid: int) -> int:
    """Return when a process began, in clock ticks: with its number this names it for ever. 0 where there is none."""
    words = stat_words(pid)
    return int(words[_BEGAN]) if words else 0


def process_state(pid: int, since: int) -> tuple[str, str]:
    """Return whether the process `pid` that began at `since` is ALIVE, STOPPED or DEAD, and how it ended, if known.

    UNKNOWN for process 0, of which nobody has told the number.
    """
    if not pid:
        return UNKNOWN, ""
    words = stat_words(pid)
    if not words or int(words[_BEGAN]) != since:
        return DEAD, ""
    if words[_STATE] in "ZXx":
        from meshweave.runtime.processes.launcher import (
            how_ended,  # with all that starts processes: only now
        )

        return DEAD, how_ended(os.waitstatus_to_exitcode(int(words[_EXIT_STATUS])))
    return (STOPPED if words[_STATE] in "Tt" else ALIVE), ""


def exit_status(pid: int, since: int, handle: int) -> int | None:
    """Return the status of a process that has ended, negative for a signal; None where the system does not tell.

    handle: of the process. It tells when the parent has asked already, on Linux from 6.15 on; else the parent must not
    have asked yet.
    """
    words = stat_words(pid)
    if words and int(words[_BEGAN]) == since and words[_STATE] in "ZXx":
        return os.waitstatus_to_exitcode(int(words[_EXIT_STATUS]))
    data = bytearray(_PIDFD_INFO.pack(_EXIT, *[0] * 13))
    with contextlib.suppress(OSError):
        fcntl.ioctl(handle, _GET_INFO, data)
        found = _PIDFD_INFO.unpack(data)
        if found[0] & _EXIT:
            return os.waitstatus_to_exitcode(found[-1])
    return None
