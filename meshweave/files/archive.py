"""Pack members of a file into one zip archive: equal members make equal bytes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping

from meshweave.errors import MeshweaveError

_DATE = (1980, 1, 1, 0, 0, 0)  # the same for every member, so that equal archives have equal bytes


# What an archive may unpack to, in bytes: so much, and so many times what it takes itself. A wrong or hostile file of a
# few MB could fill the memory otherwise.
FREE, TIMES = 64 << 20, 100


def packed(members: Mapping[str, bytes]) -> bytes:
    """Return the archive of these members, in their order; compressed, unless that makes less than `unpacked` takes."""
    import zipfile  # imported here: it loads slowly

    compressed = _zip(members, zipfile.ZIP_DEFLATED)
    if _within(sum(map(len, members.values())), len(compressed)):
        return compressed
    return _zip(members, zipfile.ZIP_STORED)


def _zip(members: Mapping[str, bytes], method: int) -> bytes:
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=_DATE)
            info.compress_type = method
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return out.getvalue()


def _within(nbytes: int, archive_bytes: int) -> bool:
    """Tell whether an archive may unpack to so many bytes."""
    return nbytes <= FREE + TIMES * archive_bytes


def unpacked(data: bytes, name: str, what: str) -> dict[str, bytes]:
    """Return the members of an archive. what: what the file should be.

    Raises MeshweaveError, prefixed with `name`, when the data is not an archive, is damaged, or its headers say more
    than an archive of its size may hold: then nothing is unpacked.
    """
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            told = sum(member.file_size for member in archive.infolist())
            if not _within(told, len(data)):
                raise MeshweaveError(
                    f"{name}: a {what} of {len(data):,} bytes may unpack to {FREE + TIMES * len(data):,}, "
                    f"and this says {told:,}"
                )
            return {member: archive.read(member) for member in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise MeshweaveError(f"{name}: not a meshweave {what}, or cut short ({error})") from None
    except (zlib.error, RuntimeError, OSError, EOFError, ValueError) as error:
        raise MeshweaveError(f"{name}: the {what} is damaged ({error})") from None
