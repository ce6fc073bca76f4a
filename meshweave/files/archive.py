"""Pack members of a file into one zip archive: equal members make equal bytes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING

from meshweave.errors import MeshweaveError
from meshweave.files.sections import BEGINS, Section

if TYPE_CHECKING:  # it loads slowly
    from zipfile import ZipInfo

_DATE = (1980, 1, 1, 0, 0, 0)  # the same for every member, so that equal archives have equal bytes


# What an archive may unpack to, in bytes: so much, and so many times what it takes itself. A wrong or hostile file of a
# few MB could fill the memory otherwise.
FREE, TIMES = 64 << 20, 100

SECTIONS = "sections/"
"""The folder of the members that stay as they are, to be read in place."""
_HEAD = 30  # bytes of a member's own header, before its name
_LARGE_EXTRA = 20  # bytes that zipfile adds to it for sizes of 64 bits
_PADDING = 0xD935  # the extra field that Android's zipalign uses too


SECTIONS = "sections/"
"""The folder of the members that stay as they are in an archive, to be read in place."""


def packed(members: Mapping[str, bytes]) -> bytes:
    """Return the archive of these members, in their order; compressed, unless that makes less than `unpacked` takes."""
    out = io.BytesIO()
    pack_to(out, members)
    return out.getvalue()


def pack_to(out: IO[bytes], members: Mapping[str, bytes], sections: Iterable[Section] = ()) -> None:
    """Write the archive of these members, as `packed` does, and behind them sections as they are.

    Such a member is called by its digest, and begins where code can read it in place.
    """
    import zipfile  # imported here: it loads slowly

    compressed = io.BytesIO()
    _write(compressed, members, zipfile.ZIP_DEFLATED, ())
    fits = _within(sum(map(len, members.values())), len(compressed.getbuffer()))
    _write(out, members, zipfile.ZIP_DEFLATED if fits else zipfile.ZIP_STORED, sections)


def _write(
    out: IO[bytes], members: Mapping[str, bytes], method: int, sections: Iterable[Section]
) -> None:
    import zipfile

    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=_DATE)
            info.compress_type = method
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
        for section in sorted(sections, key=lambda section: section.digest):
            info = zipfile.ZipInfo(f"{SECTIONS}{section.digest}", date_time=_DATE)
            info.external_attr, info.file_size = 0o644 << 16, section.nbytes
            head = archive.start_dir + _HEAD + len(info.filename) + _LARGE_EXTRA + 4
            padding = -head % BEGINS
            info.extra = struct.pack(f"<HH{padding}x", _PADDING, padding)
            with archive.open(info, "w", force_zip64=True) as member:
                for piece in section.pieces():
                    member.write(piece)


def _within(nbytes: int, archive_bytes: int) -> bool:
    """Tell whether an archive may unpack to so many bytes."""
    return nbytes <= FREE + TIMES * archive_bytes


def unpacked(data: bytes, name: str, what: str) -> dict[str, bytes]:
    """Return the members of an archive. what: what the file should be.

    Raises MeshweaveError, prefixed with `name`, when the data is not an archive, is damaged, or its headers say more
    than an archive of its size may hold: then nothing is unpacked.
    """
    return unpack_from(io.BytesIO(data), len(data), name, what)[0]


def unpack_from(
    file: IO[bytes], nbytes: int, name: str, what: str
) -> tuple[dict[str, bytes], dict[str, Section]]:
    """Return the members of an archive in an open file of so many bytes, and its sections by their digests, unread.

    Raises as `unpacked` does.
    """
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            told = sum(member.file_size for member in archive.infolist())
            if not _within(told, nbytes):
                raise MeshweaveError(
                    f"{name}: a {what} of {nbytes:,} bytes may unpack to {FREE + TIMES * nbytes:,}, "
                    f"and this says {told:,}"
                )
            members, sections = {}, {}
            for info in archive.infolist():
                if info.filename.startswith(SECTIONS):
                    digest = info.filename.removeprefix(SECTIONS)
                    sections[digest] = _section(file, nbytes, info, digest)
                else:
                    members[info.filename] = archive.read(info)
            return members, sections
    except zipfile.BadZipFile as error:
        raise MeshweaveError(f"{name}: not a meshweave {what}, or cut short ({error})") from None
    except (zlib.error, RuntimeError, OSError, EOFError, ValueError) as error:
        raise MeshweaveError(f"{name}: the {what} is damaged ({error})") from None


def _section(file: IO[bytes], nbytes: int, info: ZipInfo, digest: str) -> Section:
    """Find a section in its file. Raises ValueError where it cannot be there."""
    file.seek(info.header_offset)
    head = file.read(_HEAD)
    if len(head) < _HEAD or head[:4] != b"PK\3\4" or info.compress_type or info.flag_bits & 1:
        raise ValueError(f"{info.filename} is no section")
    start = info.header_offset + _HEAD + sum(struct.unpack("<HH", head[26:30]))
    if start + info.file_size > nbytes or info.compress_size != info.file_size:
        raise ValueError(f"{info.filename} is cut short")
    return Section(digest, info.file_size, start, file)
