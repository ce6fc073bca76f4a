"""Write what `perf` needs to name compiled code of this process: a line for each function, `START SIZE name`."""

from __future__ import annotations

import os

from meshweave.errors import UsageError
from meshweave.runtime.loader import loaded_functions


def write_perf_map(path: str | None = None) -> str:
    """Write the functions of all programs that are loaded in this process; return the path of the file.

    path: None is /tmp/perf-PID.map, where `perf report` looks for them. Raises UsageError where it cannot be written.
    """
    target = path or f"/tmp/perf-{os.getpid()}.map"
    lines = [f"{f.address:x} {f.size:x} {f.name}\n" for f in loaded_functions()]
    try:
        # Its name can be guessed: a link that somebody else has put there is not followed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(target, flags, 0o600), "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror}") from None
    return target
