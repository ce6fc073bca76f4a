"""Read boxes of a tensor out of a file: the runs that are asked for, and between them no gap longer than a page.

Files are read, not mapped: what is mapped counts as memory of the process, and ends it when the file is cut short.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.errors import MeshweaveError
from meshweave.runtime.memory import Values

BAND = 4 << 20  # bytes that are read at a time where not all of them are wanted
GAP = 4096  # bytes between runs that are read too: a disk gives whole pages
_MOST = 1 << 30  # bytes of one read


class OpenFile:
    """Hold a regular file open for reading; close it (or leave its `with`). A file cut short is an error, no crash."""

    def __init__(self, path: Path) -> None:
        """Open. Raises MeshweaveError, which names the file, unless it is a regular file that can be read."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        status = os.fstat(self._handle)
        self.nbytes = status.st_size
        if not stat.S_ISREG(status.st_mode):
            os.close(self._handle)
            raise MeshweaveError(f"{path}: no regular file")
        self._scratch = memoryview(bytearray(0))

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file. Raises MeshweaveError where it has not as many."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise MeshweaveError(
                f"{self.path}: bytes {offset} to {offset + nbytes} of a file of {self.nbytes}"
            )
        found = bytearray(nbytes)
        self._read_into(memoryview(found), offset)
        return bytes(found)

    def fill(self, out: Values, offset: int, extents: Sequence[int], wanted: Sequence[Any]) -> None:
        """Fill `out` with the product of the `wanted` indices of a tensor of `extents`, which begins at `offset`.

        The tensor lies in the file dim after dim, and its elements are as wide as those of `out`. Indices ascend.
        """
        if not out.size:
            return
        width = out.itemsize
        strides = [width * prod(extents[dim + 1 :]) for dim in range(len(extents))]
        first = offset + sum(int(w[0]) * s for w, s in zip(wanted, strides))
        span = width + sum(int(w[-1] - w[0]) * s for w, s in zip(wanted, strides))
        if span == out.nbytes and out.flags.c_contiguous:
            self._read_into(raw_bytes(out), first)
        elif span <= BAND and span - out.nbytes <= GAP * _runs(extents, wanted):
            self._pick(out, first, span, strides, wanted)
        else:
            for part, chosen in _parts(out, span, strides, wanted):
                self.fill(part, offset, extents, chosen)

    def _pick(
        self, out: Values, first: int, span: int, strides: Sequence[int], wanted: Sequence[Any]
    ) -> None:
        """Read a span, and copy what is wanted of it."""
        if len(self._scratch) < span:
            self._scratch = memoryview(bytearray(BAND))
        self._read_into(self._scratch[:span], first)
        shape = [int(w[-1] - w[0]) + 1 for w in wanted]
        box: Values = np.ndarray(shape, out.dtype, self._scratch, 0, list(strides))
        out[...] = box[at([w - w[0] for w in wanted])]

    def _read_into(self, memory: memoryview, offset: int) -> None:
        done = 0
        while done < len(memory):
            try:
                count = os.preadv(self._handle, [memory[done : done + _MOST]], offset + done)
            except OSError as error:
                raise self._unreadable(error) from None
            if not count:
                raise MeshweaveError(f"{self.path}: cut short at {offset + done} bytes")
            done += count

    def _unreadable(self, error: Exception) -> MeshweaveError:
        return MeshweaveError(
            f"{self.path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        )


def raw_bytes(values: Values) -> memoryview:
    """Return the bytes of a contiguous array, as they lie in memory."""
    whole: Any = values.reshape(-1).view(np.uint8)
    return memoryview(whole)


def at(positions: Sequence[Any]) -> Any:
    """Return an index for the product of these ascending positions: slices where all are evenly spaced."""
    found = [as_slice(p) for p in positions]
    if any(part is None for part in found):
        return np.ix_(*positions)
    return tuple(found) or ...  # NumPy gives a number, no view, for ()


def as_slice(positions: Any) -> slice | None:
    """Return evenly spaced positions as a slice; None for others."""
    if not len(positions):
        return slice(0, 0)
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    if (np.diff(positions) != step).any():
        return None
    return slice(int(positions[0]), int(positions[-1]) + 1, step)


def _runs(extents: Sequence[int], wanted: Sequence[Any]) -> int:
    """Count the pieces of a file that hold the product of these indices."""
    runs = 1
    whole = True  # of the dims behind this one
    for extent, indices in zip(reversed(extents), reversed(wanted)):
        pieces = 1 + int((np.diff(indices) != 1).sum())
        runs *= pieces if whole else len(indices)
        whole = whole and len(indices) == extent
    return runs


def _parts(
    out: Values, span: int, strides: Sequence[int], wanted: Sequence[Any]
) -> Iterator[tuple[Values, list[Any]]]:
    """Cut a box along its first dim of several indices: to bands where it is long, else at gaps, else to rows."""
    dim = next(k for k, indices in enumerate(wanted) if len(indices) > 1)
    indices = wanted[dim]
    if span > BAND:
        row = (indices - indices[0]) // max(1, BAND // strides[dim])
        cuts = np.flatnonzero(np.diff(row)) + 1
    else:
        cuts = np.flatnonzero(np.diff(indices) != 1) + 1
        if not len(cuts):
            cuts = np.arange(1, len(indices))
    ends = [0, *cuts.tolist(), len(indices)]
    for begin, end in pairwise(ends):
        here = (slice(None),) * dim + (slice(begin, end),)
        yield out[here], [*wanted[:dim], indices[begin:end], *wanted[dim + 1 :]]
