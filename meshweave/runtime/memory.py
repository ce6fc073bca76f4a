"""Allocate memory that compiled code can work in, and keep what arrays leave for those that come next.

The system hands out memory in pages that it fills with zeros when they are first touched, which takes many times as
long as an elementwise op on them. So the memory of an array that nothing sees any more is kept, up to a limit, and the
next array of that size lies in it: in the one that was left last, which a cache may still hold.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from meshweave.abi import ALIGNMENT
from meshweave.errors import MeshweaveError

Values = npt.NDArray[Any]

LEAST = 1 << 16  # bytes of what is kept: smaller pieces the C library keeps by itself
LIMIT = 128 << 20  # bytes of all that are kept


def aligned(nbytes: int) -> Values:
    """Allocate bytes that begin at a multiple of ALIGNMENT, not initialised. Raises MeshweaveError without memory."""
    try:
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):
        raise MeshweaveError(f"no memory for a buffer of {nbytes} bytes") from None
    start = -address_of(whole) % ALIGNMENT
    return whole[start : start + nbytes]


def address_of(array: Values) -> int:
    """Return the address of an array's first element, mostly in a third of the time that `array.ctypes` takes."""
    try:
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(cast(Any, array)))
    except (TypeError, ValueError, BufferError):  # read-only, empty, not contiguous, or of bf16
        return int(array.ctypes.data)


NOTHING = aligned(0)
"""Stands for memory that each call brings."""


def aligned_array(shape: Sequence[int], dtype: np.dtype[Any]) -> Values:
    """Allocate an array of a shape and dtype that code can work in, not initialised."""
    return addressed_array(shape, dtype, math.prod(shape) * dtype.itemsize)[0]


def addressed_array(shape: Sequence[int], dtype: np.dtype[Any], nbytes: int) -> tuple[Values, int]:
    """Allocate such an array, of as many bytes; return it with its address."""
    if nbytes < LEAST:
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
        address = address_of(whole)
        start = -address % ALIGNMENT
        return np.ndarray(shape, dtype, whole, start), address + start
    piece = _taken(nbytes)
    lent = _Lent(shape, dtype, memoryview(piece))
    lent.piece = piece
    array: Values = lent.view(np.ndarray)
    return array, ctypes.addressof(piece)


class _Lent(np.ndarray):
    """Hold a piece of memory for as long as an array sees it: the first array is the base of all views.

    NumPy looks for the base of a view as far as arrays of one class go, and so no further than here: what is below is
    no array. A view of this class itself, which has no piece, leaves nothing.
    """

    piece: Piece | None = None

    def __del__(self) -> None:
        if self.piece is not None and _left is not None:  # at exit, the module's names become None
            _keep(self.piece)


Piece = ctypes.Array[ctypes.c_ubyte]

_left: dict[int, list[Piece]] = {}
"""What was left, by its bytes: of one size the last to be left comes last, of the sizes that of which it was one."""


def _taken(nbytes: int) -> Piece:
    """Return memory of `nbytes` that was left, or new one.

    Threads may take and leave at any moment, so that what is left may change between any two steps.
    """
    alike = _left.pop(nbytes, None)  # no other thread has these now
    if not alike:
        return (ctypes.c_ubyte * nbytes).from_buffer(aligned(nbytes).data)
    piece = alike.pop()
    if alike:
        _left[nbytes] = alike
    return piece


def _keep(piece: Piece) -> None:
    """Keep memory that no array sees any more; of the sizes that were left longest ago some goes."""
    nbytes = len(piece)
    if nbytes > LIMIT:
        return
    alike = _left.pop(nbytes, [])
    alike.append(piece)
    _left[nbytes] = alike  # the last of the sizes now
    while sum([n * len(pieces) for n, pieces in list(_left.items())]) > LIMIT:
        oldest = next(iter(list(_left)), nbytes)
        try:
            _left[oldest].pop(0)
        except (KeyError, IndexError):
            _left.pop(oldest, None)
