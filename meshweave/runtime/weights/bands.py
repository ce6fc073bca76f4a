"""Give the elements of a laid-out array in the order of its dims, some rows at a time: what a file of it holds."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from meshweave.bundle import numpy_dtype
from meshweave.layout.digits import dim_indices, from_allocation
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.elements import narrow
from meshweave.runtime.job import current
from meshweave.runtime.memory import Values
from meshweave.runtime.weights.boxes import at, raw_bytes

BAND = 16 << 20  # bytes that are put together at a time


def bands(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of the value, row-major, in parts. Pending reductions are done first, of the whole."""
    if array.layout.partial or not array.shape:
        yield raw_bytes(np.ascontiguousarray(narrow(array.numpy(), array.dtype_name)))
        return
    row = prod(array.shape[1:]) * numpy_dtype(array.dtype_name).itemsize
    step = max(1, BAND // max(1, row))
    if array.kind.rank is not None:
        yield from _of_a_job(array, array.kind.rank, step)
        return
    parts = [_RankPart(array, rank, array.shards[rank]) for rank in _owners(array)]
    for begin in range(0, array.shape[0], step):
        end = min(begin + step, array.shape[0])
        band: Values = np.empty((end - begin, *array.shape[1:]), numpy_dtype(array.dtype_name))
        for part in parts:
            part.put(band, begin, end)
        yield raw_bytes(band)


def _of_a_job(array: Array, own: int, step: int) -> Iterator[memoryview]:
    """Yield the bytes on rank 0 of a job, to which the others send their parts of a band; every rank iterates."""
    job = current.current()
    assert job is not None
    part, owners = _RankPart(array, own, array.here[0]), _owners(array)
    for begin in range(0, array.shape[0], step):
        end = min(begin + step, array.shape[0])
        pieces = job.to_first(part.piece(begin, end) if own in owners else None)
        if own == 0:
            shape = (end - begin, *array.shape[1:])
            band: Values = np.empty(shape, numpy_dtype(array.dtype_name))
            for piece in pieces:
                if piece is not None:
                    band[at(piece[0])] = piece[1]
            yield raw_bytes(band)


def _owners(array: Array) -> list[int]:
    """Return the ranks that hold the value together: of replicas the first."""
    unread = [axis for axis in array.mesh.names if axis not in array.layout.used_axes]
    return [r for r in range(array.mesh.nranks) if array.mesh.group_index(unread, r) == 0]


class _RankPart:
    """Hold what a rank has of an array: its elements, and their indices along each dim."""

    def __init__(self, array: Array, rank: int, shard: Values) -> None:
        self._local = from_allocation(np.asarray(shard), array.layout, array.mesh, array.shape)
        self._indices = [
            dim_indices(array.layout, array.mesh, array.shape, dim, rank)
            for dim in range(len(array.shape))
        ]
        self._places: list[Any] = [np.flatnonzero(index >= 0) for index in self._indices]

    def put(self, band: Values, begin: int, end: int) -> None:
        """Copy what lies in rows `begin` to `end` into a band of them."""
        found = self.piece(begin, end)
        if found is not None:
            band[at(found[0])] = found[1]

    def piece(self, begin: int, end: int) -> tuple[list[Any], Values] | None:
        """Return where what lies in rows `begin` to `end` goes in a band of them, and its elements, if there is any."""
        rows = self._indices[0]
        first = np.flatnonzero((rows >= begin) & (rows < end))
        places = [first, *self._places[1:]]
        if not all(map(len, places)):
            return None
        targets = [rows[first] - begin]
        targets += [i[p] for i, p in zip(self._indices[1:], places[1:])]
        return targets, np.ascontiguousarray(self._local[at(places)])
