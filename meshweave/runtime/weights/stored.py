"""A tensor in a file: its dtype, its shape, where its elements are, and what a rank of a mesh holds of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.bundle import numpy_dtype
from meshweave.layout import Layout, Mesh
from meshweave.layout.digits import dim_indices, neutral, padding, to_allocation
from meshweave.layout.places import step_of
from meshweave.runtime.memory import Values, aligned_array
from meshweave.runtime.weights.boxes import OpenFile, at

_BLOCK_BYTES = 16 << 20  # of numbers that blocks are turned into at a time


@dataclass(frozen=True)
class Packing:
    """Describe numbers of the last dim that are packed in blocks.

    extent: numbers of a block. nbytes: its bytes. unpack: turns blocks `[.., nbytes]` (uint8) into numbers
    `[.., extent]`.
    """

    extent: int
    nbytes: int
    unpack: Callable[[Values], Values]


@dataclass(frozen=True)
class Stored:
    """Describe a tensor in a file.

    dtype:   of the elements, by our name. offset: where they begin, in bytes.
    dims:    of the tensor as they lie in the file, major first; None: in order.
    packing: where the file has blocks in place of elements.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    dims: tuple[int, ...] | None = None
    packing: Packing | None = None

    @property
    def nbytes(self) -> int:
        """Return how many bytes of the file it takes."""
        if self.packing is not None:
            return prod(self.shape) // self.packing.extent * self.packing.nbytes
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize

    def shard(self, file: OpenFile, mesh: Mesh, layout: Layout, rank: int) -> Values:
        """Return what a rank of a mesh holds, in memory that compiled code can use; only that is read.

        Of a partial layout the first rank of each group holds the value and the others the neutral element, as in
        `Array.from_numpy`. Raises MeshweaveError where the file is cut short, LayoutError for a layout that does not
        fit.
        """
        layout.check(mesh, self.shape)
        memory, local = _new(layout, mesh, self.shape, numpy_dtype(self.dtype))
        indices = [dim_indices(layout, mesh, self.shape, d, rank) for d in range(len(self.shape))]
        positions = [np.flatnonzero(index >= 0) for index in indices]
        if any(len(p) < len(index) for p, index in zip(positions, indices)):
            local[...] = padding(local.dtype)
        kind = _left_out(layout, mesh, rank)
        if kind is not None:
            local[at(positions)] = _neutral(kind, self.dtype)
        else:
            self._read_at(file, local, at(positions), [index[index >= 0] for index in indices])
        if memory is None:
            memory = _new_memory(layout, mesh, self.shape, local.dtype)
            memory[...] = to_allocation(local, layout, mesh, self.shape)
        return memory

    def _read_at(self, file: OpenFile, local: Values, place: Any, wanted: Sequence[Any]) -> None:
        """Read the product of the `wanted` indices into a place of `local`."""
        if place is ... or all(isinstance(part, slice) for part in place):
            self._read(file, local[place], wanted)
        else:
            part = np.empty([len(w) for w in wanted], local.dtype)
            self._read(file, part, wanted)
            local[place] = part

    def _read(self, file: OpenFile, out: Values, wanted: Sequence[Any]) -> None:
        if self.packing is not None:
            self._unpack(file, out, wanted, self.packing)
            return
        dims = range(len(self.shape)) if self.dims is None else self.dims
        turned = out.transpose(dims)
        file.fill(turned, self.offset, [self.shape[d] for d in dims], [wanted[d] for d in dims])

    def _unpack(self, file: OpenFile, out: Values, wanted: Sequence[Any], packing: Packing) -> None:
        """Read blocks, and turn them into numbers, some rows at a time."""
        *outer, last = wanted
        blocks, inside = np.unique(last // packing.extent), last
        extents = [*self.shape[:-1], self.shape[-1] // packing.extent]
        place = np.searchsorted(blocks, inside // packing.extent) * packing.extent
        place = place + inside % packing.extent
        row = out.itemsize * packing.extent * len(blocks) * prod(len(w) for w in outer[1:])
        step = max(1, _BLOCK_BYTES // max(1, row)) if outer else 1
        for begin in range(0, len(outer[0]) if outer else 1, step):
            some = [outer[0][begin : begin + step], *outer[1:]] if outer else []
            raw = np.empty([*map(len, some), len(blocks)], f"V{packing.nbytes}")
            file.fill(raw, self.offset, extents, [*some, blocks])
            packed = raw.view(np.uint8).reshape(*raw.shape, packing.nbytes)
            numbers = packing.unpack(packed).reshape(*raw.shape[:-1], -1)
            (out[begin : begin + step] if outer else out)[...] = numbers[..., place]


def _left_out(layout: Layout, mesh: Mesh, rank: int) -> str | None:
    """Return the reduction whose neutral element a rank holds, where it does not hold the value."""
    for partial in layout.partial:
        if partial.kind != "avg" and mesh.group_index(partial.axes, rank) != 0:
            return partial.kind
    return None


def _neutral(kind: str, dtype: str) -> Any:
    if dtype != "bf16":
        return neutral(kind, numpy_dtype(dtype))
    wide = np.array(neutral(kind, np.dtype(np.float32)), np.float32)  # 0, 1 or infinite
    return (wide.view(np.uint32) >> 16).astype(np.uint16)


def _new_memory(layout: Layout, mesh: Mesh, shape: Sequence[int], dtype: np.dtype[Any]) -> Values:
    allocation = layout.allocation_shape(mesh, shape)
    return aligned_array(allocation, dtype)


def _new(
    layout: Layout, mesh: Mesh, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[Values | None, Values]:
    """Return new memory of a rank, and its view of local shape; None and an array if there is no such view."""
    local_shape = layout.local_shape(mesh, shape)
    if layout.order is not None:
        steps = [step_of(layout, mesh, shape, dim) for dim in range(len(shape))]
        if None in steps:
            return None, np.empty(local_shape, dtype)
        memory = _new_memory(layout, mesh, shape, dtype)
        strides = [dtype.itemsize * (step or 0) for step in steps]
        return memory, np.ndarray(local_shape, dtype, memory, 0, strides)
    memory = _new_memory(layout, mesh, shape, dtype)
    return memory, memory.reshape(local_shape)
