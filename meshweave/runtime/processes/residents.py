"""Let Arrays lie in the memory that ranks in other processes read, so that calls copy nothing of them.

The inputs of a call have their places in memory that the ranks share with this process. An Array that comes a second
time in a row stays in its place; so does a result that takes the place of an input. When something else comes to a
place, the Array there moves out first. One whose memory others may see cannot move: then the call is bound anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from meshweave.runtime.arrays.array import Array, copied
from meshweave.runtime.memory import Values


class Residents:
    """Hold which Array lies in the place of each input, and which came last."""

    def __init__(self, inputs: Sequence[Sequence[Values]]) -> None:
        """Begin with none there. inputs: the places, `[rank][index]`."""
        self._columns = list(zip(*inputs))
        self._there: dict[int, weakref.ref[Array]] = {}
        self._last: dict[int, weakref.ref[Array]] = {}

    def blocked(self, arrays: Sequence[Array]) -> bool:
        """Tell whether some of these inputs needs a place whose Array cannot move out."""
        found = [self._resident(k) for k, array in enumerate(arrays) if not self.holds(k, array)]
        return any(one is not None and not one.is_alone for one in found)

    def holds(self, index: int, array: Array) -> bool:
        """Tell whether an Array lies in the place of an input."""
        return _lies_in(array, self._columns[index])

    def take(self, index: int, array: Array, stays: bool) -> None:
        """Bring an Array to the place of an input. stays: it may lie there from the first time on."""
        if self.holds(index, array):
            return
        column, resident = self._columns[index], self._resident(index)
        if resident is not None:
            resident.moved_to([copied(shard) for shard in resident.held])
        for place, shard in zip(column, array.held, strict=True):
            place[...] = shard
        last = self._last.get(index)
        if array.is_alone and (stays or (last is not None and last() is array)):
            array.moved_to(column)
            self._there[index] = weakref.ref(array)
        self._last[index] = weakref.ref(array)

    def settle(self, index: int, result: Array) -> None:
        """Note that a result lies in the place of an input, whose Array was donated."""
        self._there[index] = self._last[index] = weakref.ref(result)

    def any(self) -> bool:
        """Tell whether some Array lies in a place."""
        return any(self._resident(index) is not None for index in self._there)

    def _resident(self, index: int) -> Array | None:
        """Return the Array in a place, if it is still there."""
        ref = self._there.get(index)
        found = None if ref is None else ref()
        if found is None or found.is_donated or not self.holds(index, found):
            return None
        return found


def _lies_in(array: Array, column: Sequence[Values]) -> bool:
    return all(shard is place for shard, place in zip(array.held, column, strict=True))
