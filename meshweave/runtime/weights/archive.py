"""Find the members of a zip archive in its file, so that those which are not compressed are read where they lie."""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.errors import MeshweaveError
from meshweave.runtime.weights.boxes import OpenFile

_LOCAL = 30  # bytes of a member's own header, before its name


@dataclass(frozen=True)
class ArchiveMember:
    """Describe a member: where its bytes begin in the archive, and how many they are, unpacked."""

    name: str
    offset: int
    nbytes: int
    compressed: bool


def members(file: OpenFile) -> list[ArchiveMember]:
    """List the members of an archive. Raises MeshweaveError for what is none, or says what cannot be."""
    import zipfile  # imported here: it loads slowly

    try:
        with zipfile.ZipFile(file.path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise MeshweaveError(f"{file.path}: no zip archive, or cut short: {error}") from None
    found, end = [], 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        head = file.read(info.header_offset, _LOCAL)
        lengths = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
        start = info.header_offset + _LOCAL + sum(lengths)
        if head[:4] != b"PK\3\4" or info.header_offset < end or info.flag_bits & 1:
            raise MeshweaveError(
                f"{file.path}: member {info.filename!r:.60} is damaged or encrypted"
            )
        end = start + info.compress_size
        compressed = info.compress_type != zipfile.ZIP_STORED
        if end > file.nbytes or (not compressed and info.compress_size != info.file_size):
            raise MeshweaveError(f"{file.path}: member {info.filename!r:.60} is cut short")
        found.append(ArchiveMember(info.filename, start, info.file_size, compressed))
    return found
