"""Allocate memory that compiled code can work in, and keep what arrays leave for those that come next.

The system hands out memory in pages that it fills with zeros when they are first touched, which takes many times as
long as an elementwise op on them. So the memory of an array that nothing sees any more is kept, up to a limit, and the
next array of that size lies in it: in the one that was left last, which a cache may still hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshweave.abi import ALIGNMENT
from meshweave.errors import MeshweaveError

Values = npt.NDArray[Any]

LEAST = 1 << 16  # bytes of what is kept: smaller pieces the C library keeps by itself
MOST = 32  # pieces that are kept
LIMIT = 128 << 20  # bytes of all that are kept


def aligned(nbytes: int) -> Values:
    """Allocate bytes that begin at a multiple of ALIGNMENT, not initialised. Raises MeshweaveError without memory."""
    try:
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):
        raise MeshweaveError(f"no memory for a buffer of {nbytes} bytes") from None
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + nbytes]


def aligned_array(shape: Sequence[int], dtype: np.dtype[Any]) -> Values:
    """Allocate an array of a shape and dtype that code can work in, not initialised."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = aligned(nbytes) if nbytes < LEAST else np.asarray(_Lent(_taken(nbytes)))
    return memory.view(dtype).reshape(shape)


_left: list[Values] = []  # the last to be left comes last


class _Lent:
    """Hold memory for as long as an array sees it: NumPy keeps this object as the base of all views."""

    __slots__ = ("__array_interface__", "_keep", "_memory")

    def __init__(self, memory: Values) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory, self._keep = memory, _keep  # at exit, the module's names go first

    def __del__(self) -> None:
        self._keep(self._memory)


def _taken(nbytes: int) -> Values:
    """Return memory of `nbytes` that was left, or new one.

    Threads may take and leave at any moment, so that the list may change between any two steps.
    """
    for number in reversed(range(len(_left))):
        try:
            memory = _left.pop(number)
        except IndexError:
            continue
        if memory.nbytes == nbytes:
            return memory
        _left.insert(number, memory)
    return aligned(nbytes)


def _keep(memory: Values) -> None:
    """Keep memory that no array sees any more; what was left first goes."""
    if memory.nbytes <= LIMIT:
        _left.append(memory)
    while len(_left) > MOST or sum([m.nbytes for m in _left]) > LIMIT:
        try:
            _left.pop(0)
        except IndexError:
            return
