"""Load and save trees of arrays: safetensors files, sharded checkpoints, and folders that `Array.save` has written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, overload

import numpy as np

from meshweave.api.progress import Bar
from meshweave.errors import MeshweaveError, UsageError
from meshweave.files.whole import replacing
from meshweave.frontends.python.tree import LEAF, Container, Structure, flatten
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays import saved
from meshweave.runtime.arrays.array import Array, as_mesh, as_numpy, dtype_name
from meshweave.runtime.job import current
from meshweave.runtime.job.current import own_rank, ranks_here
from meshweave.runtime.memory import Values
from meshweave.runtime.weights.bands import bands
from meshweave.runtime.weights.checkpoints import tensors
from meshweave.runtime.weights.formats import as_path
from meshweave.runtime.weights.loading import fitting, layouts_of, read_shards
from meshweave.runtime.weights.safetensors import NAMES, read_header, write
from meshweave.runtime.weights.stored import Stored

# Classes of meshweave.api.quantized, which loads the compiler.
QUANTIZED = ("QuantizedArray", "PackedArray")
_TREE, _LAYOUTS = "meshweave.tree", "meshweave.layouts"  # keys of a file's metadata


@overload
def load_safetensors(
    path: str | os.PathLike[str],
    layouts: object = None,
    *,
    mesh: Mesh | str = "",
    rank: None = None,
) -> dict[str, Array]: ...
@overload
def load_safetensors(
    path: str | os.PathLike[str], layouts: object = None, *, mesh: Mesh | str = "", rank: int
) -> dict[str, Values]: ...
def load_safetensors(
    path: str | os.PathLike[str],
    layouts: object = None,
    *,
    mesh: Mesh | str = "",
    rank: int | None = None,
) -> dict[str, Array] | dict[str, Values]:
    """Read the tensors of a safetensors file, or of a checkpoint in several; for each rank its own parts alone.

    path:    of a file, of a checkpoint's folder, or of its index (`model.safetensors.index.json`).
    layouts: of the tensors, by patterns of their names: `{"*.up.weight": "[tp, _]"}`; the first that fits a name
             counts, and what none fits is whole on every rank. Or one layout for all.
    mesh:    by default one rank.
    rank:    a rank of the mesh whose other ranks are other processes: what it holds of each tensor comes as a NumPy
             array (bf16 as bits), as `InsideProgram` takes it.
    A bar on the terminal shows long loads. Raises MeshweaveError, which names file and tensor, for what is damaged, a
    pattern that nothing fits, and a layout that does not fit its tensor.

    >>> import tempfile
    >>> import numpy as np
    >>> import meshweave as mw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mw.save({"up": np.ones((4, 2), "f4"), "bias": np.zeros(4, "f4")}, folder + "/w.safetensors")
    ...     w = mw.load_safetensors(folder + "/w.safetensors", {"up": "[tp, _]"}, mesh="tp=2")
    >>> w["up"]
    Array([[1., 1.],
           [1., 1.],
           [1., 1.],
           [1., 1.]],
          4x2xf32 [tp, _] on (tp=2): rank 0 [0:2, :], rank 1 [2:4, :])
    """
    place, on = as_path("load_safetensors", path), as_mesh(mesh)
    found = tensors(place)
    laid = layouts_of(found, layouts, "load_safetensors")
    with Bar(f"loading {place.name}", len(found)) as bar:
        if rank is None:
            return _read(found, laid, on, bar)
        if not 0 <= rank < on.nranks:
            raise UsageError(f"rank {rank}: the mesh ({on}) has ranks 0 to {on.nranks - 1}")
        fits = _fitting(found, laid, on)
        return {name: part for name, (part,) in read_shards(found, on, fits, (rank,), bar)}


def _read(
    found: Mapping[str, Stored], layouts: Mapping[str, object], mesh: Mesh, bar: Bar
) -> dict[str, Array]:
    """Return the tensors as arrays."""
    laid, read = _fitting(found, layouts, mesh), {}
    rank = own_rank(mesh)
    for name, shards in read_shards(found, mesh, laid, ranks_here(mesh), bar):
        stored = found[name]
        read[name] = Array(shards, mesh, laid[name], stored.shape, stored.dtype, rank)
    return read


def _fitting(
    found: Mapping[str, Stored], layouts: Mapping[str, object], mesh: Mesh
) -> dict[str, Layout]:
    return {name: fitting(name, stored, mesh, layouts[name]) for name, stored in found.items()}


def load(
    path: str | os.PathLike[str],
    *,
    mesh: Mesh | str | None = None,
    layout: object = None,
    verify: bool = True,
) -> Any:
    """Read what `mw.save` or `Array.save` has written, on any mesh, in any layout.

    path:   of the file of a tree, or of the folder of an array.
    mesh:   by default that of each array when it was saved.
    layout: of all arrays; for a tree also by patterns of their names, as for `load_safetensors`. By default each has
            the one it was saved in, which must fit another mesh.
    verify: check the SHA-256 of each file of a folder that is used.
    Only what each rank needs is read. Raises MeshweaveError, which names the file, when it is no such file or
    folder, or is incomplete or damaged; LayoutError when a layout does not fit.

    >>> import tempfile
    >>> import numpy as np
    >>> import meshweave as mw
    >>> a = mw.Array.from_numpy(np.arange(6.0), mesh="x=2", layout="[x]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mw.save({"layers": [a, a], "step": 3}, folder + "/model")
    ...     model = mw.load(folder + "/model", mesh="y=3", layout={"layers.*": "[y]"})
    >>> [shard.tolist() for shard in model["layers"][1].shards], int(model["step"])
    ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], 3)
    """
    place = as_path("load", path)
    if place.is_dir():
        return saved.load(place, mesh=mesh, layout=layout, verify=verify)
    if not place.exists():
        raise MeshweaveError(f"{place}: no array was saved here: no such file or folder")
    return _load_tree(place, None if mesh is None else as_mesh(mesh), layout)


def _load_tree(path: Path, mesh: Mesh | None, layout: object) -> Any:
    found, metadata = read_header(path)
    kept, structure = _described(path, metadata)
    laid = layouts_of(found, layout, "load")
    read: dict[str, Array] = {}
    with Bar(f"loading {path.name}", len(found)) as bar:
        for name, stored in found.items():
            own_mesh, own_layout = kept.get(name, ("", None))
            on = Mesh.parse(own_mesh) if mesh is None else mesh
            where = {name: own_layout if laid[name] is None else laid[name]}
            read |= _read({name: stored}, where, on, bar)
    return read if structure is None else _rebuilt(path, structure, read)


def _described(path: Path, metadata: dict[str, str]) -> tuple[dict[str, tuple[str, str]], Any]:
    """Return mesh and layout of each tensor, and the description of the tree (None: a dict by name)."""
    try:
        layouts = json.loads(metadata.get(_LAYOUTS, "{}"))
        tree = json.loads(metadata.get(_TREE, "null"))
        kept = {name: (str(mesh), str(layout)) for name, (mesh, layout) in layouts.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MeshweaveError(f"{path}: its metadata is damaged: {error!s:.80}") from None
    return kept, tree


def save(tree: Any, path: str | os.PathLike[str]) -> None:
    """Write arrays in a safetensors file, which other programs read too; `mw.load` gives them back.

    tree: an array (an Array, NumPy's, a number, or of any library with DLPack), or dicts, lists and tuples of them, at
          any depth. A tensor is named by its place in them: `layers.0.up`.
    path: of the file. It is written whole, or what was there stays.
    A part of an array is put together at a time, not the whole; in a job (`mw.init`) every rank makes this call, and
    rank 0 writes. Raises UsageError for keys that are no text or number,
    and for dtypes that the format lacks; MeshweaveError when the file cannot be written.

    >>> import tempfile
    >>> import numpy as np
    >>> import meshweave as mw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mw.save({"layers": [{"up": np.ones((4, 2), "f4")}]}, folder + "/w.safetensors")
    ...     list(mw.load_safetensors(folder + "/w.safetensors"))
    ['layers.0.up']
    """
    place = as_path("save", path)
    leaves, structure = flatten(tree, _is_array)
    names = _names(structure)
    arrays = {name: _array(name, leaf) for name, leaf in zip(names, leaves)}
    if len(arrays) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"save: two arrays of the tree have the name {twice}")
    metadata = {
        "format": "pt",  # by which other readers know rows as they are here
        _TREE: json.dumps(_description(structure, iter(names))),
        _LAYOUTS: json.dumps({n: [str(a.mesh), str(a.layout)] for n, a in arrays.items()}),
    }
    entries = [(name, array.dtype_name, array.shape) for name, array in arrays.items()]
    job = current.current()
    if job is not None and any(array.kind.rank is not None for array in arrays.values()):
        _save_of_a_job(job, place, entries, arrays, metadata)
        return
    try:
        with replacing(place) as file, Bar(f"saving {place.name}", len(entries)) as bar:
            for name in write(file, entries, lambda name: bands(arrays[name]), metadata):
                bar(name)
    except OSError as error:
        raise MeshweaveError(f"{place}: cannot be written: {error.strerror}") from None


def _save_of_a_job(
    job: current.Member,
    place: Path,
    entries: Sequence[tuple[str, str, Sequence[int]]],
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str],
) -> None:
    """Write a file whose arrays lie on the ranks of a job: rank 0 writes, a band of rows at a time."""
    job.agree(repr(entries).encode(), lambda: f"save {place}")
    careful = _Careful(place)
    file: Any = careful  # of all that a file is, `write` needs that it can be written
    with ExitStack() as stack:
        if job.rank == 0:
            careful.open(stack)
        for _ in write(file, entries, lambda name: bands(arrays[name]), metadata):
            pass
        job.from_first(lambda: careful.ended(stack), lambda: b"")


class _Careful:
    """Write a file on rank 0; keep an error until the other ranks have given all that they have."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.file: IO[bytes] | None = None
        self.problem: MeshweaveError | None = None

    def _failed(self, error: OSError) -> MeshweaveError:
        return MeshweaveError(f"{self.place}: cannot be written: {error.strerror}")

    def open(self, stack: ExitStack) -> None:
        try:
            self.file = stack.enter_context(replacing(self.place))
        except OSError as error:
            self.problem = self._failed(error)

    def write(self, data: Any) -> int:
        """Write, unless that has failed before."""
        if self.file is not None and self.problem is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.problem = self._failed(error)
        return len(data)

    def ended(self, stack: ExitStack) -> bytes:
        """Give the file its name. Raises MeshweaveError where something went wrong."""
        if self.problem is not None:
            raise self.problem
        try:
            stack.close()
        except OSError as error:
            raise self._failed(error) from None
        return b""


def _is_array(value: Any) -> bool:
    return isinstance(value, Array) or hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def _array(name: str, value: object) -> Array:
    """Return a leaf as an array whose dtype the format has."""
    try:
        array = value if isinstance(value, Array) else _whole(value)
    except MeshweaveError as error:
        raise UsageError(f"save: {name}: {error.message}") from None
    if array.dtype_name not in NAMES:
        known = ", ".join(NAMES)
        raise UsageError(f"save: {name}: safetensors has no dtype {array.dtype_name}: {known}")
    return array


def _whole(value: Any) -> Array:
    """Return an array of one rank, which keeps the memory where it can."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            return Array.from_dlpack(value)
        except (MeshweaveError, BufferError, RuntimeError, TypeError):
            pass  # its own conversion may know better
    array = as_numpy(value, "an array")
    if dtype_name(array) == "bf16":
        array = array.view(np.uint16)
        return Array([array], Mesh(), Layout.replicated(array.ndim), array.shape, "bf16")
    return Array.from_shards(
        [array], mesh=Mesh(), layout=Layout.replicated(array.ndim), shape=array.shape
    )


def _names(structure: Structure, at: str = "") -> list[str]:
    """Return the name of each leaf, its place in the tree, joined by dots."""
    if not isinstance(structure, Container):
        return [at or "array"]
    keys = structure.keys or range(len(structure.children))
    return [
        name
        for key, child in zip(_fields(structure) or keys, structure.children)
        for name in _names(child, f"{at}.{_key(key)}" if at else _key(key))
    ]


def _key(key: object) -> str:
    if not isinstance(key, str | int) or key == "":
        raise UsageError(f"save: key {key!r:.40} of a dict: text or a whole number is right")
    return str(key)


def _fields(container: Container) -> tuple[Any, ...] | None:
    """Return the names of the fields of a namedtuple, or the keys of a dict or a dataclass."""
    return container.keys or getattr(container.kind, "_fields", None)


def _description(structure: Structure, names: Iterator[str]) -> Any:
    """Return what JSON says of a tree: the name of an array, null, {"dict": [[key, ..], ..]} or {"list": [..]}."""
    if structure == LEAF or not isinstance(structure, Container):
        return next(names)
    if structure.kind is None:
        return None
    children = [_description(child, names) for child in structure.children]
    keys = _fields(structure)
    if getattr(structure.kind, "__name__", "") in QUANTIZED:
        return {structure.kind.__name__: children}
    if keys is not None or structure.kind is dict or is_dataclass(structure.kind):
        return {"dict": [list(pair) for pair in zip(keys or (), children)]}
    return {"tuple" if structure.kind is tuple else "list": children}


def _rebuilt(path: Path, tree: Any, read: dict[str, Array]) -> Any:
    """Return the tree that JSON describes around the arrays."""
    try:
        if tree is None or isinstance(tree, str):
            return None if tree is None else read[tree]
        ((kind, children),) = tree.items()
        if kind == "dict":
            return {key: _rebuilt(path, child, read) for key, child in children}
        parts = [_rebuilt(path, child, read) for child in children]
        if kind in QUANTIZED:
            return getattr(import_module("meshweave.api.quantized"), kind)(*parts)
        return {"tuple": tuple, "list": list}[kind](parts)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MeshweaveError(
            f"{path}: the tree in its metadata is damaged: {error!r:.80}"
        ) from None
