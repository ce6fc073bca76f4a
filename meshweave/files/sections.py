"""Hold bytes that lie in files: sections, which are known by their SHA-256 and read when they are asked for."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from meshweave.errors import MeshweaveError

PIECE = 4 << 20  # bytes that are read at a time
BEGINS = 64  # a section begins at a multiple of this, so that code can read it in place


@dataclass(frozen=True)
class Section:
    """Describe bytes of a file that is open, which may have no name any more.

    digest: their SHA-256, as hex. Sections with equal digests are equal.
    """

    digest: str
    nbytes: int
    offset: int = field(compare=False)
    file: IO[bytes] = field(compare=False, repr=False)

    @property
    def path(self) -> Path:
        """Return a name by which this process can open the file, also one that was removed."""
        return Path(f"/proc/self/fd/{self.file.fileno()}")

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes, some MiB at a time. Raises MeshweaveError where the file is cut short."""
        done = 0
        while done < self.nbytes:
            most = min(PIECE, self.nbytes - done)
            piece = os.pread(self.file.fileno(), most, self.offset + done)
            if not piece:
                raise MeshweaveError(
                    f"a file of weights is cut short at {self.offset + done} bytes"
                )
            done += len(piece)
            yield piece

    def mapped(self) -> memoryview:
        """Return the bytes as memory, which the system reads when something looks at it; not of empty sections."""
        first = self.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        end = self.offset + self.nbytes - first
        whole = mmap.mmap(self.file.fileno(), end, access=mmap.ACCESS_READ, offset=first)
        return memoryview(whole)[self.offset - first :]

    def is_whole(self) -> bool:
        """Tell whether the bytes are those of the digest, reading them all."""
        whole = hashlib.sha256()
        for piece in self.pieces():
            whole.update(piece)
        return whole.hexdigest() == self.digest


class SectionWriter:
    """Write sections one after the other to a file without a name, which is gone when nothing holds it any more."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._begin = self._end = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append bytes to the section. Raises MeshweaveError where the disk is full."""
        import tempfile  # imported here: it loads much

        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="meshweave-", buffering=0)  # noqa: SIM115
            left = memoryview(data)
            while left:
                left = left[
                    os.pwrite(self._file.fileno(), left, self._end + len(data) - len(left)) :
                ]
        except OSError as error:
            raise MeshweaveError(
                f"cannot keep weights in {tempfile.gettempdir()}: {error.strerror} (TMPDIR says where)"
            ) from None
        self._hash.update(data)
        self._end += len(data)

    def end(self) -> Section:
        """Return the section that was written, and begin another."""
        assert self._file is not None
        made = Section(self._hash.hexdigest(), self._end - self._begin, self._begin, self._file)
        self._begin = self._end = -(-self._end // BEGINS) * BEGINS
        self._hash = hashlib.sha256()
        return made
