"""Write files whole or not at all."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from meshweave.errors import MeshweaveError, UsageError


@contextmanager
def renamed_to(path: str | os.PathLike[str], permissions: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a new file that takes the name `path`, whatever has it, when the block ends without an exception.

    permissions: of the file, less those that the process's umask takes away. Raises OSError as `open` does.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(8).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[Any]]:
    """Open a new file that takes the place of the file `path` when the block ends without an exception.

    A reader sees the old file or the whole new one. A link stays one: the file that it leads to is replaced. What is no
    regular file (a device, a pipe), and what this process writes to already (/dev/stdout), is written to directly.
    Raises OSError as `open` does.
    """
    with open(path, "wb") if _is_stream(path) else renamed_to(os.path.realpath(path)) as out:
        yield out


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Tell whether something lies at `path` that can only be written to."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    ours = [os.fstat(number) for number in (1, 2) if _is_open(number)]
    return not stat.S_ISREG(found.st_mode) or any(os.path.samestat(found, own) for own in ours)


def _is_open(number: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{number}")


def regular_bytes(path: Path, most: int) -> bytes | None:
    """Return what a regular file of at most `most` bytes holds; None for anything else. Raises OSError as `open` does.

    Nothing is waited for, as opening a pipe would.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        return file.read() if stat.S_ISREG(status.st_mode) and status.st_size <= most else None


def write_bytes(path: str, data: bytes, failure: type[MeshweaveError] = UsageError) -> None:
    """Write `data` to the file `path`, whole or not at all. Raises `failure`, with the file and the reason, if not."""
    try:
        with replacing(path) as out:
            out.write(data)
    except OSError as error:
        raise failure(f"{path}: cannot be written: {error.strerror or error}") from None


def write_text(path: str, text: str, failure: type[MeshweaveError] = UsageError) -> None:
    """Write `text` to the file `path`, whole or not at all; "-" is standard output.

    Raises `failure`, with the file and the reason, when the file cannot be written.
    """
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_bytes(path, text.encode(), failure)
