"""Tell which tiles masks leave anything of, and which they go through."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.lowering.gpu.families.flash.nest import Bound
from meshweave.lowering.gpu.families.gemm.tiles import DEPTH
from meshweave.lowering.gpu.writer import DeviceWriter, Guard
from meshweave.lowering.writer import Value

KEYS = DEPTH // 2  # of a tile, of elements of two bytes


class TileMasks:
    """Write the limits that masks are to the tiles of keys that run past a tile of queries.

    bounds: see `AttentionForm`; keys: of all tiles; first: query of the tile of `rows`; tile_keys: of a tile.
    """

    def __init__(
        self,
        writer: DeviceWriter,
        bounds: Sequence[Bound],
        keys: int,
        first: Value,
        rows: int,
        tile_keys: int = KEYS,
    ) -> None:
        self.writer, self.bounds, self.keys = writer, bounds, keys
        self.first, self.rows, self.tile_keys = first, rows, tile_keys

    def limits(self) -> tuple[Value, Value]:
        """Return the first tile of keys, and the one behind the last, that masks leave anything of."""
        writer = self.writer
        first, last = writer.constant(0), writer.constant(-(-self.keys // self.tile_keys))
        for bound in self.bounds:
            edge = self._clamped(self._edge(bound, most=bound[0]) + int(bound[0]))
            if bound[0]:
                last = writer.least(last, (edge + (self.tile_keys - 1)) // self.tile_keys)
            else:
                first = writer.most(first, edge // self.tile_keys)
        return first, last

    def _edge(self, bound: Bound, most: bool) -> Value:
        """Return the largest (or smallest) key of a bound over this block's queries."""
        _, slope, offset = bound
        last = self.rows - 1 if (slope > 0) == most else 0
        return (self.first + last) * slope + offset

    def _clamped(self, key: Value) -> Value:
        """Return a number of keys that is at least 0 and at most all."""
        writer = self.writer
        return writer.least(writer.most(key, 0), self.keys)

    def cut(self, number: Value) -> Guard:
        """Return whether some scores of a tile of keys are masked or do not exist; None for never."""
        writer, cut = self.writer, None
        if self.keys % self.tile_keys:
            cut = writer.compare("eq", number, self.keys // self.tile_keys)
        for bound in self.bounds:
            edge = self._edge(bound, most=not bound[0])
            start = number * self.tile_keys
            if bound[0]:
                beyond = writer.compare("sgt", start + (self.tile_keys - 1), edge)
            else:
                beyond = writer.compare("slt", start, edge)
            cut = beyond if cut is None else cut | beyond
        return cut
