"""Checkpoints of Orbax: arrays in chunks, in a database (OCDBT) or in folders, which the package tensorstore reads.

A rank reads the chunks that hold its elements, and no others: Orbax makes a chunk of what each device held when the
checkpoint was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from meshweave.bundle import NUMPY_DTYPES, element_name
from meshweave.errors import MeshweaveError
from meshweave.runtime.memory import Values
from meshweave.runtime.weights.boxes import OpenFile, as_slice
from meshweave.runtime.weights.safetensors import MAX_HEADER, json_object
from meshweave.runtime.weights.stored import Stored

INDEX = "_METADATA"
"""The file of a checkpoint that says what arrays it has."""


@dataclass(frozen=True, kw_only=True)
class ChunkedArray(Stored):
    """Describe an array in chunks. opened: by tensorstore, which has no types to name."""

    opened: Any

    def _read(self, file: OpenFile, out: Values, wanted: Sequence[Any]) -> None:
        """Read the product of indices; `file` is the index of the checkpoint, where no elements are."""
        if not out.size:
            return
        source = self.opened
        for dim, indices in enumerate(wanted):
            place = as_slice(indices)
            source = source[(slice(None),) * dim + (indices if place is None else place,)]
        into = out.view(source.dtype.numpy_dtype) if self.dtype == "bf16" else out
        store = _tensorstore(self.path)
        target = store.array(into, copy=False, write=True)
        try:
            target.write(source.translate_to[(0,) * out.ndim]).result()
        except ValueError as error:
            raise MeshweaveError(f"{self.path.parent}: {_line(error)}") from None


def orbax(folder: Path) -> dict[str, Stored]:
    """Return the arrays of a checkpoint of Orbax, named by their places in the tree.

    Raises MeshweaveError where the package tensorstore is missing, and for what is no such checkpoint, or not whole.
    """
    index = folder / INDEX
    if not index.exists():
        raise MeshweaveError(
            f"{folder}: a checkpoint of Orbax without {INDEX}: the folder of one tree, such as default, is right"
        )
    with OpenFile(index) as file:
        if file.nbytes > MAX_HEADER:
            raise MeshweaveError(f"{index}: {file.nbytes} bytes, an index has at most {MAX_HEADER}")
        said = json_object(index, file.read(0, file.nbytes), "the index")
    return {name: _array(folder, name, said) for name in _names(index, said)}


def _names(index: Path, said: Mapping[str, Any]) -> list[str]:
    """Return the names of the arrays and numbers of a tree; texts, and what is empty, are none."""
    try:
        return [
            ".".join(str(part["key"]) for part in leaf["key_metadata"])
            for leaf in said["tree_metadata"].values()
            if leaf["value_metadata"]["value_type"] in ("jax.Array", "np.ndarray", "scalar")
        ]
    except (KeyError, TypeError, AttributeError):
        raise MeshweaveError(
            f"{index}: no tree_metadata, which says what arrays there are"
        ) from None


def _array(folder: Path, name: str, said: Mapping[str, Any]) -> ChunkedArray:
    where = folder / INDEX
    if said.get("use_ocdbt"):
        kept = {"driver": "ocdbt", "base": f"file://{folder.resolve()}/", "path": f"{name}/"}
    else:
        kept = {"driver": "file", "path": f"{folder.resolve() / name}/"}
    described = {
        "driver": "zarr3" if said.get("use_zarr3") else "zarr",
        "kvstore": kept,
        # Where all chunks are written, one that is missing is no zeros.
        "fill_missing_data_reads": not said.get("store_array_data_equal_to_fill_value"),
    }
    store = _tensorstore(where)
    try:
        opened = store.open(described, open=True, read=True).result()
    except ValueError as error:
        raise MeshweaveError(f"{folder}: array {name}: {_line(error)}") from None
    kind = opened.dtype.numpy_dtype
    dtype = element_name(kind)
    if dtype is None:
        raise MeshweaveError(
            f"{folder}: array {name}: no arrays of dtype {kind}: {', '.join(NUMPY_DTYPES)}"
        )
    return ChunkedArray(where, dtype, tuple(opened.shape), 0, opened=opened)


def _line(error: ValueError) -> str:
    """Return what tensorstore says, without its specification of the array."""
    return "cannot be read: " + " ".join(str(error).split(" [")[0].split())


def _tensorstore(who: Path) -> ModuleType:
    """Return the package that reads chunks. Raises MeshweaveError, which says how to get it, where it is missing."""
    try:
        return import_module("tensorstore")
    except ImportError:
        raise MeshweaveError(
            f"{who.parent}: a checkpoint of Orbax, which the package tensorstore reads: pip install "
            "'meshweave[orbax]'"
        ) from None
