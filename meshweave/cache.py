"""Compiled programs kept on disk and found again by their content: a later process compiles nothing anew.

The folder is `meshweave` in the user's cache folder (XDG_CACHE_HOME, or ~/.cache). The environment variable
MESHWEAVE_CACHE moves it, or switches it off: "off". Each file is a bundle, named after everything that it depends on;
beside them lie device modules, and objects that many programs hold, which a first compile would make anew.
Several processes may read and write at a time. A file that is damaged counts as absent; a folder that cannot be
written, or that others may write, is not used: nothing here ever fails.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.files import replacing

VARIABLE = "MESHWEAVE_CACHE"
OFF = ("off", "0", "no", "false")
LIMIT = 512 << 20  # bytes of all files: above, those used longest ago go
FILES = 4096  # at most so many
ABANDONED = 3600.0  # seconds after which a file half written has no writer any more
SUFFIX = ".mwb"
KERNELS, KERNEL_SUFFIX = "kernels", ".mwk"  # the folder of device modules within, and their ending
OBJECTS, OBJECT_SUFFIX = "objects", ".mwo"  # the same of objects that many programs hold


Kept = TypeVar("Kept")


def cached(parts: Sequence[object], make: Callable[[], Bundle]) -> tuple[Bundle, bool]:
    """The bundle that `make` gives, or gave to an earlier call with equal parts; and whether it was found.

    parts: everything that the bundle depends on beside this package, MLIR and the processor: plain values whose `repr`
    tells them apart.
    """
    return _cached(folder(), parts, _Form(SUFFIX, Bundle.to_bytes, _bundle), make)


def cached_object(parts: Sequence[object], make: Callable[[], bytes]) -> bytes:
    """The object that `make` gives, or gave to an earlier call with equal parts, also in another process."""
    form = _Form(OBJECT_SUFFIX, _signed, _unsigned)
    return _cached(folder(OBJECTS), parts, form, make)[0]


class _Form(NamedTuple, Generic[Kept]):
    """How a value lies in a file. read: None for a damaged one."""

    suffix: str
    write: Callable[[Kept], bytes]
    read: Callable[[bytes], Kept | None]


def _bundle(data: bytes) -> Bundle | None:
    try:
        return Bundle.from_bytes(data)
    except MeshweaveError:
        return None


def _signed(code: bytes) -> bytes:
    return hashlib.sha256(code).digest() + code


def _unsigned(data: bytes) -> bytes | None:
    code = data[32:]
    return code if _signed(code) == data else None


def _cached(
    place: Path | None, parts: Sequence[object], form: _Form[Kept], make: Callable[[], Kept]
) -> tuple[Kept, bool]:
    """What a file holds, or is made to; and whether it was there."""
    if place is None:
        return make(), False
    path = place / f"{key(parts)}{form.suffix}"
    found = _read(path, form)
    if found is not None:
        return found, True
    made = make()
    _write(path, form.write(made))
    return made, False


def key(parts: Sequence[object]) -> str:
    """The name of a program's file, without its ending."""
    return hashlib.sha256(
        f"{fingerprint()}\n{tuple(parts)!r}".encode("utf-8", "replace")
    ).hexdigest()


def folder(within: str = "") -> Path | None:
    """Where the programs are kept: a folder of this user's alone, made if need be. None: nowhere.

    within: the name of a folder in it.
    """
    said = os.environ.get(VARIABLE, "")
    if said.lower() in OFF:
        return None
    with suppress(OSError, ValueError, RuntimeError):
        place = Path(said) if said else _users() / "meshweave"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            (place / within).mkdir(mode=0o700, exist_ok=True)
            return place / within  # of one that others may write, code of theirs would be run
    return None


def _users() -> Path:
    """The user's cache folder, by the XDG base directory specification: a relative one does not count."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    return Path(said) if os.path.isabs(said) else Path.home() / ".cache"


def clear() -> int:
    """Forget all programs, device modules and objects; how many files there were."""
    place = folder()
    if place is None:
        return 0
    kinds = ((".", SUFFIX), (KERNELS, KERNEL_SUFFIX), (OBJECTS, OBJECT_SUFFIX))
    files = [file for name, suffix in kinds for file in _files(place / name, suffix)]
    return sum(_remove(path) for _, _, path in files)


def _read(path: Path, form: _Form[Kept]) -> Kept | None:
    """What a file holds; None when it is not there, or damaged: then it goes."""
    try:
        found = form.read(path.read_bytes())
    except OSError:
        return None
    if found is None:
        _remove(path)
        return None
    with suppress(OSError):
        os.utime(path)  # used just now
    return found


def _write(path: Path, data: bytes) -> None:
    """Keep a file, and let go of what that is too much. A full or read-only disk keeps nothing."""
    if len(data) > LIMIT:
        return
    with suppress(OSError):
        with replacing(path) as file:
            file.write(data)
        trim(path.parent, path.suffix)


def trim(place: Path, suffix: str) -> None:
    """Let the files used longest ago go until the limits hold, and all that killed writers left."""
    files = sorted(_files(place, suffix))
    now, total, count = time.time(), sum(nbytes for _, nbytes, _ in files), len(files)
    for used, nbytes, path in files:
        if path.suffix != suffix:
            gone = now - used > ABANDONED and _remove(path)
        else:
            gone = (total > LIMIT or count > FILES) and _remove(path)
        if gone:
            total, count = total - nbytes, count - 1


def _files(place: Path, suffix: str) -> list[tuple[float, int, Path]]:
    """Of each file of a folder of the cache, those half written too: when it was used last, its bytes, its path."""
    found = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if suffix in entry.name and entry.is_file(follow_symlinks=False):
                with suppress(OSError):  # another process has just removed it
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, Path(entry.path)))
    return found


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


@cache
def fingerprint() -> str:
    """Of what makes code: the sources of this package, the MLIR that is installed, and the processor."""
    whole = hashlib.sha256()
    for name, source in _sources(os.path.dirname(__file__)):
        whole.update(f"{name} {len(source)}\n".encode())
        whole.update(source)
    whole.update(f"{_mlir()}\n{_processor()}".encode())
    return whole.hexdigest()


def _sources(folder: str, within: str = "") -> Iterator[tuple[str, bytes]]:
    """Name and text of each source below a folder, in one order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".py"):
            with open(entry.path, "rb", buffering=0) as file:
                yield within + entry.name, file.readall()
        elif entry.is_dir():
            yield from _sources(entry.path, f"{within}{entry.name}/")


def _mlir() -> list[tuple[str, int, int]]:
    """Name, bytes and date of each library of the MLIR package, which is not loaded for it."""
    from importlib.util import find_spec

    for package in ("torch_mlir", "mlir"):
        found = find_spec(package)
        for home in (found.submodule_search_locations or ()) if found else ():
            with suppress(OSError), os.scandir(os.path.join(home, "_mlir_libs")) as entries:
                libraries = [e for e in entries if ".so" in e.name]
                stats = [(e.name, e.stat()) for e in libraries]
                return sorted((name, s.st_size, s.st_mtime_ns) for name, s in stats)
    return []


def _processor() -> str:
    """Model, features and cache of the processor, for which code is made and slices are chosen."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features")
    lines = []
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if not line.strip():
                break  # the first core is like the others
            if line.split(":")[0].strip() in wanted:
                lines.append(line)
    with suppress(OSError):
        lines.append(Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text())
    return "".join([*lines, os.uname().machine])
