"""Keep compiled programs on disk and find them again by their content, so that a later process need not compile.

The folder is `meshweave` in the user's cache folder (XDG_CACHE_HOME, or ~/.cache). The environment variable
MESHWEAVE_CACHE moves it, or switches it off: "off". Each file holds a bundle behind a checksum of its contents and its
name, which says everything that it depends on; beside them lie device modules, and objects that many programs share,
which a first compile would have to make.
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
from typing import TypeVar

from meshweave.bundle import Bundle
from meshweave.errors import MeshweaveError
from meshweave.files.whole import regular_bytes, renamed_to

VARIABLE = "MESHWEAVE_CACHE"
OFF = ("off", "0", "no", "false")
LIMIT = 512 << 20  # bytes of all files; above it, the least recently used are removed
FILES = 4096  # the largest number of files
EVERY = 16  # files that are written for each look at the limits, on average: a look reads the whole folder
ABANDONED = 3600.0  # seconds after which an unfinished file has no writer any more
SUFFIX = ".mwb"
KERNELS, KERNEL_SUFFIX = "kernels", ".mwk"  # the inner folder of device modules, and their ending
OBJECTS, OBJECT_SUFFIX = "objects", ".mwo"  # the same for objects that many programs share


Kept = TypeVar("Kept")


def cached(parts: Sequence[object], make: Callable[[], Bundle]) -> tuple[Bundle, bool]:
    """Return the bundle that `make` gives, or gave to an earlier call with equal parts; and whether it was found.

    parts: everything that the bundle depends on beside this package, MLIR and the processor: plain values whose `repr`
    tells them apart.
    """
    return cached_in("", SUFFIX, parts, make, Bundle.to_bytes, Bundle.from_bytes)


def found(parts: Sequence[object]) -> bytes | None:
    """Return the bundle, as bytes, that an earlier call of `cached` with equal parts has kept; None where none has."""
    place, name = folder(), key(parts)
    return None if place is None else _read(place / f"{name}{SUFFIX}", name)


def cached_object(parts: Sequence[object], make: Callable[[], bytes]) -> bytes:
    """Return the object that `make` gives, or gave to an earlier call with equal parts, also in another process."""
    return cached_in(OBJECTS, OBJECT_SUFFIX, parts, make, bytes, bytes)[0]


def cached_in(
    within: str,
    suffix: str,
    parts: Sequence[object],
    make: Callable[[], Kept],
    write: Callable[[Kept], bytes],
    read: Callable[[bytes], Kept],
) -> tuple[Kept, bool]:
    """Return what a file in the folder `within` holds, making it if need be; and whether it existed.

    write, read: turn a value into bytes and back.
    """
    place = folder(within)
    if place is None:
        return make(), False
    name = key(parts)
    path = place / f"{name}{suffix}"
    data = _read(path, name)
    if data is not None:
        with suppress(MeshweaveError):
            return read(data), True
    made = make()
    _write(path, name, write(made))
    return made, False


def key(parts: Sequence[object]) -> str:
    """Return the name of a program's file, without its ending."""
    return hashlib.sha256(
        f"{fingerprint()}\n{tuple(parts)!r}".encode("utf-8", "replace")
    ).hexdigest()


def folder(within: str = "") -> Path | None:
    """Return the folder that holds the programs, private to this user, creating it if need be; None: caching is off.

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
            return place / within  # a folder that others may write could hold code of theirs
    return None


def _users() -> Path:
    """Return the user's cache folder, by the XDG base directory specification, which ignores a relative one."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    return Path(said) if os.path.isabs(said) else Path.home() / ".cache"


def clear() -> int:
    """Remove all programs, device modules and objects; return the number of files."""
    place = folder()
    if place is None:
        return 0
    kinds = ((".", SUFFIX), (KERNELS, KERNEL_SUFFIX), (OBJECTS, OBJECT_SUFFIX))
    files = [file for name, suffix in kinds for file in _files(place / name, suffix)]
    return sum(_remove(path) for _, _, path in files)


def _read(path: Path, name: str) -> bytes | None:
    """Return what a file holds; None when it does not exist. One that is damaged, or of another name, is removed."""
    try:
        data = regular_bytes(path, LIMIT)
    except OSError:
        return None
    if data is None or _digest(name, data[32:]) != data[:32]:
        _remove(path)
        return None
    with suppress(OSError):
        os.utime(path)  # used just now
    return data[32:]


def _write(path: Path, name: str, data: bytes) -> None:
    """Write a file, for this user alone, and trim the folder now and then. A full or read-only disk keeps nothing."""
    if len(data) + 32 > LIMIT:
        return
    with suppress(OSError):
        with renamed_to(path, 0o600) as file:
            file.write(_digest(name, data))
            file.write(data)
        if int(name, 16) % EVERY == 0:
            trim(path.parent, path.suffix)


def _digest(name: str, data: bytes) -> bytes:
    """Return the 32 bytes at the front of a file, by which it is known to be whole, and to belong to its name."""
    found = hashlib.sha256(name.encode())
    found.update(data)
    return found.digest()


def trim(place: Path, suffix: str) -> None:
    """Remove the least recently used files until the limits hold, and all that killed writers left."""
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
    """List (last use, bytes, path) of every file in a cache folder, unfinished ones included."""
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
    """Hash what determines code: the sources of this package, the installed MLIR, and the processor."""
    whole = hashlib.sha256()
    for name, source in _sources(os.path.dirname(__file__)):
        whole.update(f"{name} {len(source)}\n".encode())
        whole.update(source)
    whole.update(f"{_mlir()}\n{_processor()}".encode())
    return whole.hexdigest()


def _sources(folder: str, within: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the name and text of each source below a folder, in a fixed order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.endswith(".py"):
            with open(entry.path, "rb", buffering=0) as file:
                yield within + entry.name, file.readall()
        elif entry.is_dir():
            yield from _sources(entry.path, f"{within}{entry.name}/")


def _mlir() -> list[tuple[str, int, int]]:
    """List the name, bytes and date of each library of the MLIR package, without loading it."""
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
    """Return the model, features and cache of the processor, on which code and slices depend."""
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
