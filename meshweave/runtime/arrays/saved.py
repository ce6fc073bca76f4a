"""Save and load arrays: a folder with a file for each rank and a manifest, read back on any mesh, in any layout.

array.save("weights");  again = meshweave.load("weights", mesh="x=8", layout="[_, x]")

    weights/manifest.json    format, mesh, layout, shape, dtype, and for each file its bytes and SHA-256
    weights/rank0.npy ...    what each rank holds, in memory order; never a pickle. bf16 are 16-bit patterns,
                             floats of 8 bits and integers of 4 bytes
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.bundle import NUMPY_DTYPES, file_dtype, numpy_dtype
from meshweave.errors import LayoutError, MeshweaveError
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.digits import dim_indices, padding, to_allocation
from meshweave.layout.places import dim_addresses, locate
from meshweave.runtime.arrays.array import Array, as_mesh, laid_out_whole
from meshweave.runtime.arrays.saving import FORMAT, KIND, MANIFEST, folder_path, rank_file
from meshweave.runtime.job.current import own_rank, ranks_here
from meshweave.runtime.memory import Values

MAX_HEADER = 1 << 16  # bytes of a file beside the elements


def load(
    folder: str | os.PathLike[str],
    *,
    mesh: Mesh | str | None = None,
    layout: object = None,
    verify: bool = True,
) -> Array:
    """Read an array that `Array.save` has written.

    mesh, layout: how it is to be laid out; by default as it was when it was saved (a layout must fit another mesh).
    Only
            the parts of each file that a rank needs are read, and no two ranks need more memory than their shards.
    verify: check the SHA-256 of each file that is used.
    Raises MeshweaveError, which names the file, when the folder is no saved array, or is incomplete or damaged;
    LayoutError
    when the layout does not fit.

    >>> import tempfile
    >>> import numpy as np
    >>> import meshweave as mw
    >>> a = mw.Array.from_numpy(np.arange(6.0), mesh="x=2", layout="[x]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     a.save(folder + "/a")
    ...     b = mw.load(folder + "/a", mesh="y=3", layout="[y]")
    >>> [shard.tolist() for shard in b.shards]
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    """
    saved = Saved.open(folder)
    on = saved.mesh if mesh is None else as_mesh(mesh)
    laid = saved.layout if layout is None else as_layout(layout, len(saved.shape))
    try:
        laid.check(on, saved.shape)
    except LayoutError as error:
        hint = "" if layout is not None else ": say which layout it is to have"
        raise LayoutError(f"{saved.folder}: {error.message}{hint}") from None
    try:
        shards = saved.shards(on, laid, verify)
    except MemoryError as error:
        raise MeshweaveError(f"{saved.folder}: more than this machine holds: {error}") from None
    return Array(shards, on, laid, saved.shape, saved.dtype, own_rank(on))


@dataclass(frozen=True)
class Saved:
    """Describe a folder with an array: its manifest, checked. files: bytes and SHA-256 of each rank's file."""

    folder: Path
    mesh: Mesh
    layout: Layout
    shape: tuple[int, ...]
    dtype: str
    files: tuple[tuple[int, str], ...]

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> Saved:
        """Read a folder's manifest. Raises MeshweaveError when it is not ours, or not whole."""
        place = folder_path("load", folder)
        try:
            text = (place / MANIFEST).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MeshweaveError(
                f"{place}: no array was saved here: {MANIFEST}: {reason}"
            ) from None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeshweaveError(f"{place / MANIFEST}: not JSON: {error}") from None
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise MeshweaveError(f"{place / MANIFEST}: not the manifest of a saved array")
        if value.get("format") != FORMAT:
            raise MeshweaveError(
                f"{place}: format {value.get('format')!r:.40}, this version reads format {FORMAT}"
            )
        try:
            return _checked(place, value)
        except (KeyError, TypeError, ValueError) as error:
            raise MeshweaveError(f"{place / MANIFEST}: damaged: {error!r:.80}") from None
        except MeshweaveError as error:
            raise MeshweaveError(f"{place / MANIFEST}: {error.message}") from None

    def shards(self, mesh: Mesh, layout: Layout, verify: bool = True) -> list[Values]:
        """Return what the ranks of another mesh that are in this process hold in another layout."""
        reader, ranks = _SavedFiles(self, verify), ranks_here(mesh)
        if (mesh, layout) == (self.mesh, self.layout):
            return [np.array(reader.file(rank)) for rank in ranks]
        if self.layout.partial or layout.partial:  # what is still to be reduced is no one's part
            parts = [np.array(reader.file(rank)) for rank in range(self.mesh.nranks)]
            whole = Array(parts, self.mesh, self.layout, self.shape, self.dtype).numpy()
            return list(laid_out_whole(whole, mesh, layout, self.dtype).here)
        reader.check_sizes()
        return [self._shard(reader, mesh, layout, rank) for rank in ranks]

    def _shard(self, reader: _SavedFiles, mesh: Mesh, layout: Layout, rank: int) -> Values:
        """Assemble what one rank holds from the files that have parts of it."""
        dims = [
            self._pieces(dim, dim_indices(layout, mesh, self.shape, dim, rank))
            for dim in range(len(self.shape))
        ]
        found = [(pieces, reader.file(sum(p.rank for p in pieces))) for pieces in product(*dims)]
        local = np.empty(layout.local_shape(mesh, self.shape), numpy_dtype(self.dtype))
        if not layout.is_even(mesh, self.shape):
            local.fill(padding(local.dtype))
        for pieces, source in found:
            local[_at([p.target for p in pieces])] = _read(
                source, self.layout, [p.source for p in pieces], [p.address for p in pieces]
            )
        return to_allocation(local, layout, mesh, self.shape)

    def _pieces(self, dim: int, index: Values) -> list[_DimPart]:
        """Return the local positions of a dim that hold these global indices, by the ranks that have them on disk."""
        target = np.flatnonzero(index >= 0)
        coordinates, place = locate(self.layout, self.mesh, self.shape, dim, index[target])
        ranks = np.zeros_like(target)
        for name, values in zip(self.layout.axes_of(dim), coordinates, strict=True):
            ranks = ranks + values * self.mesh.stride(name)
        addresses = dim_addresses(self.layout, self.mesh, self.shape, dim)
        found = []
        for rank in np.unique(ranks):
            here = ranks == rank
            found.append(_DimPart(int(rank), target[here], place[here], addresses[place[here]]))
        return found


@dataclass(frozen=True)
class _DimPart:
    """Describe one rank's part of one dim: where its elements go, where they are, and where they are in memory."""

    rank: int
    target: Any
    source: Any
    address: Any


class _SavedFiles:
    """Open the files of a saved array when they are needed, and check each once."""

    def __init__(self, saved: Saved, verify: bool) -> None:
        self._saved, self._verify = saved, verify
        self._open: dict[int, Values] = {}

    def check_sizes(self) -> None:
        """Raise MeshweaveError for a file of another size than was saved, before memory is allocated."""
        for rank, (nbytes, _) in enumerate(self._saved.files):
            with suppress(OSError):  # what is missing may not be needed
                self._check_size(self._saved.folder / rank_file(rank), nbytes)

    @staticmethod
    def _check_size(path: Path, nbytes: int) -> None:
        size = path.stat().st_size
        if size != nbytes:
            raise MeshweaveError(f"{path}: {size} bytes, {nbytes} were saved")

    def file(self, rank: int) -> Values:
        """Return what a rank held, from a file that is mapped, not read. Raises MeshweaveError when it is damaged."""
        if rank not in self._open:
            saved, path = self._saved, self._saved.folder / rank_file(rank)
            nbytes, digest = saved.files[rank]
            try:
                self._check_size(path, nbytes)
                if self._verify and _digest(path) != digest:
                    raise MeshweaveError(f"{path}: damaged: its contents do not match its SHA-256")
                array = read_npy(path, mapped=True)
            except OSError as error:
                raise MeshweaveError(f"{path}: cannot be read: {error.strerror}") from None
            wanted = saved.layout.allocation_shape(saved.mesh, saved.shape)
            held = file_dtype(saved.dtype)
            if array.shape != wanted or array.dtype != held:
                raise MeshweaveError(
                    f"{path}: {array.dtype} {list(array.shape)}, {held} {list(wanted)} was saved"
                )
            self._open[rank] = array.view(numpy_dtype(saved.dtype))
        return self._open[rank]


def read_npy(file: str | os.PathLike[str], mapped: bool = False) -> Values:
    """Return the array in a .npy file, never a pickle. mapped: leave the elements in the file until they are used.

    Raises MeshweaveError, which names the file, for what is no such file; OSError when it cannot be read.
    """
    try:
        array = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # zipfile, tokenize and others raise their own kinds
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise MeshweaveError(f"{file}: not a .npy array: {said}") from None
    if not isinstance(array, np.ndarray):
        raise MeshweaveError(f"{file}: an .npz archive: one .npy file for each argument is right")
    found: Values = array
    return found


def _at(positions: Sequence[Any]) -> Any:
    """Return an index for the product of these positions: slices where they are runs, which copies fast."""
    if all(len(p) and p[-1] - p[0] + 1 == len(p) and (np.diff(p) == 1).all() for p in positions):
        return tuple(slice(int(p[0]), int(p[-1]) + 1) for p in positions)
    return np.ix_(*positions)


def _read(
    source: Values, layout: Layout, positions: Sequence[Any], addresses: Sequence[Any]
) -> Values:
    """Read the elements at the product of local positions, from a buffer in memory order."""
    if layout.order is None:
        found: Values = source[_at(positions)]
        return found
    total: Any = np.zeros((), np.int64)
    for part in addresses:
        total = total[..., None] + part
    found = source.reshape(-1)[total]
    return found


def _checked(place: Path, value: dict[str, Any]) -> Saved:
    for name in ("mesh", "layout", "dtype"):
        if not isinstance(value[name], str):
            raise MeshweaveError(f"{name} should be text, is {value[name]!r:.60}")
    mesh, layout = Mesh.parse(value["mesh"]), Layout.parse(value["layout"])
    shape, dtype = value["shape"], value["dtype"]
    if mesh.is_symbolic:
        raise MeshweaveError(f"mesh ({mesh}) has a symbol for a size")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise MeshweaveError(f"shape {shape!r:.60} is none")
    if dtype not in NUMPY_DTYPES:
        raise MeshweaveError(f"no arrays of dtype {dtype!r:.40}")
    layout.check(mesh, tuple(shape))
    files = tuple((int(entry["bytes"]), str(entry["sha256"])) for entry in value["files"])
    if len(files) != mesh.nranks:
        raise MeshweaveError(f"{len(files)} files, the mesh ({mesh}) has {mesh.nranks} ranks")
    least = prod(layout.allocation_shape(mesh, tuple(shape))) * numpy_dtype(dtype).itemsize
    for rank, (nbytes, _) in enumerate(files):
        if not least < nbytes <= least + MAX_HEADER:
            raise MeshweaveError(
                f"{rank_file(rank)} has {nbytes} bytes, a rank's part of {shape} has {least}"
            )
    return Saved(place, mesh, layout, tuple(shape), dtype, files)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()
