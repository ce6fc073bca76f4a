"""Read files and standard input for the commands, and hold back standard error."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshweave.errors import CompileError


def read_bytes(file: str) -> tuple[str, bytes]:
    """Return the name of `file` for locations, and its bytes; "-" is standard input."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CompileError(f"cannot read {file}: {reason}") from None
    return "<stdin>" if file == "-" else file, data


def begins_with(file: str, start: bytes) -> bool:
    """Tell whether a file begins with these bytes; a pipe is not looked at. Raises CompileError."""
    try:
        mode = os.stat(file).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return False
        with open(file, "rb") as opened:
            return opened.read(len(start)) == start
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CompileError(f"cannot read {file}: {reason}") from None


def read_text(file: str) -> tuple[str, str]:
    """Return the name of `file` for locations, and its text; "-" is standard input."""
    from meshweave.files.sources import decoded

    name, data = read_bytes(file)
    return name, decoded(data, name)


class HeldOutput:
    """Hold what is written to standard error; it is dropped at the end unless `keep` was called."""

    def __init__(self) -> None:
        self.shown = False

    def keep(self) -> None:
        """Show it at the end."""
        self.shown = True


@contextmanager
def held_stderr() -> Iterator[HeldOutput]:
    """Hold back standard error, that of C++ code too, which has no other way to be quiet."""
    held = HeldOutput()
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as store:
        os.dup2(store.fileno(), 2)
        try:
            yield held
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if held.shown:
                store.seek(0)
                os.write(2, store.read())
