"""Checkpoints in several files: safetensors or archives of torch.save, with an index that says where each tensor is."""

from __future__ import annotations

import os
from pathlib import Path

from meshweave.errors import MeshweaveError
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.orbax import orbax
from meshweave.runtime.weights.pytorch import pytorch
from meshweave.runtime.weights.safetensors import MAX_HEADER, json_object, read_header
from meshweave.runtime.weights.stored import Stored

INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Names of the index in the folder of a checkpoint, the first that is there counts."""
TORCH = (".bin", ".pt", ".pth")
"""How names of archives of torch.save end."""


def tensors(path: Path) -> dict[str, Stored]:
    """Return the tensors of a file, or of a checkpoint in several: its folder, or its index.

    Raises MeshweaveError for what is none, or not whole.
    """
    if path.is_dir():
        indices = [path / name for name in INDICES if (path / name).exists()]
        return _indexed(indices[0]) if indices else _all_of(path)
    return _indexed(path) if path.name.endswith(".index.json") else _tensors_of(path)


ORBAX = ("manifest.ocdbt", "ocdbt.process_0", "_METADATA", "_CHECKPOINT_METADATA")
"""What lies in folders that Orbax has written."""


def _tensors_of(file: Path) -> dict[str, Stored]:
    """Return the tensors of one file of a checkpoint, PyTorch's archives by the endings that they have."""
    return pytorch(file) if file.suffix in TORCH else read_header(file)[0]


def _all_of(folder: Path) -> dict[str, Stored]:
    """Return the tensors of all files of a folder without an index."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files and any((folder / name).exists() for name in ORBAX):
        return dict(orbax(folder))
    if not files:
        raise MeshweaveError(f"{folder}: no {INDICES[0]}, and no *.safetensors, is in this folder")
    found: dict[str, Stored] = {}
    for file in files:
        for name, stored in _tensors_of(file).items():
            if name in found:
                raise MeshweaveError(f"{file}: tensor {name} is in {found[name].path.name} too")
            found[name] = stored
    return found


def _indexed(index: Path) -> dict[str, Stored]:
    """Return the tensors that an index names, each from the file that it says, beside it."""
    with OpenFile(index) as file:
        if file.nbytes > MAX_HEADER:
            raise MeshweaveError(f"{index}: {file.nbytes} bytes, an index has at most {MAX_HEADER}")
        weights = json_object(index, file.read(0, file.nbytes), "the index").get("weight_map")
    if not isinstance(weights, dict):
        raise MeshweaveError(f"{index}: no weight_map, which says in which file each tensor is")
    for name, file_name in weights.items():
        if not isinstance(file_name, str) or file_name != os.path.basename(file_name):
            raise MeshweaveError(
                f"{index}: tensor {name} in {file_name!r:.60}: a file of this folder is right"
            )
    headers = {name: _tensors_of(index.parent / name) for name in sorted({*weights.values()})}
    for name, file_name in weights.items():
        if name not in headers[file_name]:
            raise MeshweaveError(f"{index}: tensor {name} is not in {file_name}")
    return {name: headers[file_name][name] for name, file_name in weights.items()}
