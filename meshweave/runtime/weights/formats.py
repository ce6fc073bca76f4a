"""Tell the format of a file of tensors by its first bytes, and find a tensor in it by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from meshweave.errors import MeshweaveError, UsageError, did_you_mean
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.checkpoints import tensors as checkpoint
from meshweave.runtime.weights.gguf import gguf
from meshweave.runtime.weights.npy import npy, npz
from meshweave.runtime.weights.pytorch import pytorch
from meshweave.runtime.weights.stored import Stored

_MAGIC: tuple[tuple[bytes, Callable[[Path], dict[str, Stored]]], ...] = (
    (b"\x93NUMPY", npy),
    (b"GGUF", gguf),
    (b"PK\3\4", pytorch),
)


def as_path(who: str, path: str | os.PathLike[str]) -> Path:
    """Return a path. Raises UsageError, prefixed with `who`, when it is none."""
    try:
        return Path(path)
    except TypeError:
        raise UsageError(f"{who}: path is of type {type(path).__name__}, a path is right") from None


def tensors_in(path: Path) -> dict[str, Stored]:
    """Return the tensors of a file by name, or of a folder with a checkpoint.

    Raises MeshweaveError for what is no file of tensors that we know.
    """
    if path.is_dir() or path.suffix in (".safetensors", ".json"):
        return checkpoint(path)
    if path.suffix == ".npz":
        return npz(path)
    with OpenFile(path) as file:
        start = file.read(0, min(9, file.nbytes))
    if start[8:9] == b"{":
        return checkpoint(path)
    for magic, read in _MAGIC:
        if start.startswith(magic):
            return read(path)
    raise MeshweaveError(
        f"{path}: not a file of tensors: safetensors, .npy, .npz, GGUF and torch.save's archives are read"
    )


def tensor_in(path: Path, name: str | None) -> tuple[str, Stored]:
    """Return a tensor of a file with its name; without a name the only one.

    Raises MeshweaveError when there is none.
    """
    found = tensors_in(path)
    if name is None and len(found) == 1:
        return next(iter(found.items()))
    if name in found:
        return str(name), found[name]
    if name is None:
        some = ", ".join(list(found)[:4]) or "none"
        raise MeshweaveError(f"{path}: {len(found)} tensors ({some}, ..): say which, by its name")
    raise MeshweaveError(f"{path}: no tensor {name!r:.60}{did_you_mean(name, found)}")
