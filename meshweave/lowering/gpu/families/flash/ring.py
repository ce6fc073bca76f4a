"""Hand tiles of K and V over from the warpgroup that copies them to those that multiply them.

Turn number t needs the keys of tile t and the values of the tile before: they come together, in stage t mod stages.
Each stage and warpgroup has two barriers: `full` when copies have arrived, `empty` when they have been multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.lowering.gpu.families.gemm.warpgroup import GROUP
from meshweave.lowering.gpu.writer import DeviceWriter
from meshweave.lowering.writer import Value

PAIR = 2 * GROUP  # threads of a barrier: those that copy, and a warpgroup that multiplies


@dataclass(frozen=True)
class TileRing:
    """Write what the two sides of a ring of stages do.

    start: of its shared memory; key_bytes, value_bytes: of a stage; groups: warpgroups that multiply.
    """

    writer: DeviceWriter
    start: int
    key_bytes: int
    value_bytes: int
    stages: int
    groups: int

    @property
    def nbytes(self) -> int:
        """Return its shared memory."""
        return self.stages * (self.key_bytes + self.value_bytes)

    def keys(self, turn: Value) -> Value:
        """Return where the keys of a turn lie."""
        return self._place(self.start, self.key_bytes, turn)

    def values(self, turn: Value) -> Value:
        """Return where the values of a turn lie."""
        return self._place(self.start + self.stages * self.key_bytes, self.value_bytes, turn)

    def _place(self, start: int, nbytes: int, turn: Value) -> Value:
        writer = self.writer
        return writer.offset(writer.shared(start), (turn % self.stages) * nbytes)

    def _full(self, turn: Value, group: Value | int) -> Value:
        return turn % self.stages + self._of(group) + 1

    def _empty(self, turn: Value, group: Value | int) -> Value:
        return self._full(turn, group) + self.groups * self.stages

    def _of(self, group: Value | int) -> Value:
        return self.writer.as_value(group, "i32") * self.stages

    @property
    def barriers(self) -> int:
        """Return the number of the first barrier that is free."""
        return 2 * self.groups * self.stages + 1

    # The side that copies.

    def await_room(self, turn: Value) -> None:
        """Wait until what a turn's copies overwrite has been multiplied."""

        def wait() -> None:
            for group in range(self.groups):
                self.writer.barrier(self._empty(turn, group), PAIR)

        self.writer.if_(self.writer.compare("sge", turn, self.stages), wait)

    def hand_over(self, turn: Value) -> None:
        """Say that a turn's copies, which have been waited for, are there."""
        self.writer.show_copies()
        for group in range(self.groups):
            self.writer.arrive(self._full(turn, group), PAIR)

    # The side that multiplies.

    def await_copies(self, turn: Value, group: Value) -> None:
        """Wait until a turn's copies are there."""
        self.writer.barrier(self._full(turn, group), PAIR)

    def give_back(self, turn: Value, group: Value, last: Value) -> None:
        """Say that a turn's copies have been multiplied, if a turn up to `last` overwrites them."""
        writer = self.writer
        again = writer.compare("sle", turn + self.stages, last)
        writer.if_(again, lambda: writer.arrive(self._empty(turn, group), PAIR))
