"""Reading and writing of the commands: errors in one line, files written whole or not at all."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshweave.errors import CompileError
from meshweave.files import replacing


def read_bytes(file: str) -> tuple[str, bytes]:
    """The name of `file` for locations, and what is in it; "-" is standard input."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CompileError(f"cannot read {file}: {reason}") from None
    return "<stdin>" if file == "-" else file, data


def read_text(file: str) -> tuple[str, str]:
    """The name of `file` for locations, and its text; "-" is standard input."""
    from meshweave.sources import decoded

    name, data = read_bytes(file)
    return name, decoded(data, name)


def write_text(file: str, text: str) -> None:
    """Write `file` whole or not at all ("-": standard output). Raises CompileError."""
    if file == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(file)
    try:
        if path.exists() and not path.is_file():  # /dev/null, a pipe
            path.write_text(text)
            return
        with replacing(path, "w") as out:
            out.write(text)
    except OSError as error:
        raise CompileError(f"cannot write {file}: {error.strerror}") from None


class Held:
    """What is written to standard error meanwhile: dropped at the end, unless `keep` was called."""

    def __init__(self) -> None:
        self.shown = False

    def keep(self) -> None:
        """Show it at the end."""
        self.shown = True


@contextmanager
def held_stderr() -> Iterator[Held]:
    """Hold back standard error, that of C++ code too, which has no other way to be quiet."""
    held = Held()
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
