"""Members of a file as one zip archive: equal members make equal bytes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping

from meshweave.errors import MeshweaveError

_DATE = (1980, 1, 1, 0, 0, 0)  # of every member: a date would make equal archives differ


def packed(members: Mapping[str, bytes]) -> bytes:
    """The archive of these members, in their order."""
    import zipfile  # here, for it takes long to import

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return out.getvalue()


def unpacked(data: bytes, name: str, what: str) -> dict[str, bytes]:
    """The members of an archive. MeshweaveError, begun with `name`, when it is not one or is
    damaged; what: what the file should be.
    """
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {member: archive.read(member) for member in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise MeshweaveError(f"{name}: not a meshweave {what}, or cut short ({error})") from None
    except (zlib.error, RuntimeError, OSError, EOFError, ValueError) as error:
        raise MeshweaveError(f"{name}: the {what} is damaged ({error})") from None
