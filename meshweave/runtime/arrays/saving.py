"""Write arrays to a folder, a file per rank and a manifest: all of it or nothing."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshweave.bundle import as_in_files
from meshweave.errors import MeshweaveError, UsageError
from meshweave.runtime.job import current
from meshweave.runtime.memory import Values

FORMAT = 1
KIND = "meshweave array"
MANIFEST = "manifest.json"


def save(
    folder: str | os.PathLike[str],
    shards: Sequence[Values],
    about: Mapping[str, object],
    overwrite: bool,
) -> None:
    """Write an array to a folder: see `Array.save`. about: mesh, layout, shape and dtype for the manifest."""
    target = folder_path("save", folder)
    _check_free(target, overwrite)
    temporary: Path | None = None
    try:
        with _told(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = _beside(target)
            temporary.mkdir()
            files = [_write(temporary / rank_file(r), shard) for r, shard in enumerate(shards)]
            _write_manifest(temporary, about, files)
            _sync(temporary)
            _put(temporary, target)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def save_part(
    folder: str | os.PathLike[str],
    rank: int,
    shard: Values,
    about: Mapping[str, object],
    overwrite: bool,
) -> None:
    """Write the part of one rank of a job, as `save` does all: rank 0 makes the folder, and names it when all are done.

    Every rank makes this call. Raises MeshweaveError on all of them where one cannot write.
    """
    job = current.current()
    assert job is not None
    target = folder_path("save", folder)

    def begun() -> bytes:
        _check_free(target, overwrite)
        temporary = _beside(target)
        with _told(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        return os.fsencode(temporary)

    job.agree(b"save", lambda: f"save {target}")
    temporary = Path(os.fsdecode(job.from_first(begun, lambda: None)))
    try:
        problem = ""
        entry: dict[str, Any] = {}
        try:
            entry = _write(temporary / rank_file(rank), shard)
        except OSError as error:
            problem = f"{target}: cannot save the part of rank {rank}: {error.strerror}"
        said = job.all_gather((problem, entry))
        if problems := [text for text, _ in said if text]:
            raise MeshweaveError(problems[0])

        def ended() -> bytes:
            with _told(target):
                _write_manifest(temporary, about, [found for _, found in said])
                _sync(temporary)
                _put(temporary, target)
            return b""

        job.from_first(ended, lambda: b"")
    finally:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MeshweaveError(f"{target}: cannot save the array: {error.strerror}") from None


def folder_path(who: str, folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that `who` was given. Raises UsageError for what is no path."""
    try:
        return Path(folder)
    except TypeError:
        kind = type(folder).__name__
        raise UsageError(f"{who}: folder is of type {kind}, a path is right") from None


def rank_file(rank: int) -> str:
    """Return the name of the file of a rank."""
    return f"rank{rank}.npy"


class _Hashed:
    """Write to a file, and keep the bytes and SHA-256 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.nbytes, self.hash = file, 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.nbytes += len(data)
        self._file.write(data)
        return len(data)


def _write(path: Path, shard: Values) -> dict[str, Any]:
    """Write a shard; return its file's entry in the manifest."""
    with open(path, "wb") as file:
        hashed: Any = _Hashed(file)
        held = np.ascontiguousarray(shard).reshape(shard.shape)
        np.lib.format.write_array(hashed, as_in_files(held), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashed.nbytes, "sha256": hashed.hash.hexdigest()}


def _write_manifest(folder: Path, about: Mapping[str, object], files: list[dict[str, Any]]) -> None:
    manifest = {"kind": KIND, "format": FORMAT, **about, "files": files}
    with open(folder / MANIFEST, "w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _check_free(target: Path, overwrite: bool) -> None:
    """Raise MeshweaveError unless nothing is there, or a saved array that may be replaced."""
    if not target.name:
        raise MeshweaveError(f"{target}: a folder to save the array to has a name")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise MeshweaveError(f"{target} exists already: overwrite=True replaces a saved array")
    if os.path.islink(target) or not (target / MANIFEST).is_file():
        raise MeshweaveError(f"{target} exists, and is no saved array: it is not replaced")


def _beside(target: Path) -> Path:
    """Return a new name beside `target`."""
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}")


def _put(temporary: Path, target: Path) -> None:
    """Rename the folder to `target`; what was there takes its name, for the caller to remove."""
    if not os.path.lexists(target):
        os.rename(temporary, target)
    elif not _exchanged(temporary, target):
        old = _beside(target)
        os.rename(target, old)
        os.rename(temporary, target)
        os.rename(old, temporary)
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Have the names in a folder written to disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; return False where the system cannot."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        renamed = ctypes.CDLL(None).renameat2(
            here, os.fsencode(one), here, os.fsencode(other), exchange
        )
    except AttributeError:
        return False
    return bool(renamed == 0)
