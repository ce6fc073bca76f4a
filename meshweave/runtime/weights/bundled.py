"""Lay out the weights that a bundle has: where they lie in its file if a rank can read that, else its part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshweave.bundle import Bundle, Port, numpy_dtype
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.blocks import views
from meshweave.runtime.job.current import own_rank
from meshweave.runtime.memory import Values
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.stored import Stored


def weights_of(bundle: Bundle) -> Iterator[Array]:
    """Yield the inputs that a program has itself as Arrays. Raises MeshweaveError where the bundle has only code."""
    mesh = Mesh.parse(bundle.manifest.mesh)
    rank = own_rank(mesh)
    for port in bundle.manifest.held:
        layout, shape = Layout.parse(port.layout), port.global_shape
        shards = _held(bundle, port, mesh, layout, range(mesh.nranks) if rank is None else [rank])
        yield Array(shards, mesh, layout, shape, port.dtype, rank).alone()


def weights_of_rank(bundle: Bundle, rank: int) -> list[Values]:
    """Return what a rank holds of the inputs that a program has itself. Raises as `weights_of` does."""
    mesh = Mesh.parse(bundle.manifest.mesh)
    return [
        _held(bundle, port, mesh, Layout.parse(port.layout), [rank])[0]
        for port in bundle.manifest.held
    ]


def _held(
    bundle: Bundle, port: Port, mesh: Mesh, layout: Layout, ranks: range | list[int]
) -> list[Values]:
    section, shape = bundle.weight(port), port.global_shape
    if section.nbytes:
        mapped = np.frombuffer(section.mapped(), numpy_dtype(port.dtype)).reshape(shape)
        parts = views(mapped, mesh, layout)
        if parts is not None:
            return [parts[rank] for rank in ranks]
    stored = Stored(section.path, port.dtype, shape, section.offset)
    with OpenFile(section.path) as file:
        return [stored.shard(file, mesh, layout, rank) for rank in ranks]
