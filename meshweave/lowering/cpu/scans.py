"""Write scans: nests whose reduction loop runs in order, and that store what is combined by then in each iteration."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Apply
from meshweave.lowering.cpu.loops import NestLoops
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.writer import Value

ROWS = 8  # that are scanned side by side: each step waits for the one before it in its row alone
NARROW = 16  # rows of fewer elements are no vectors


def is_scan(nest: LoopNest) -> bool:
    """Tell whether a result lies along a loop that reduces."""
    return any(s.access.strides[d] for s in nest.stores for d in nest.reductions)


class ScanLoops(NestLoops):
    """Write a nest that scans: row by row in registers, or rows of results as vectors."""

    def __init__(self, writer: FunctionWriter, nest: LoopNest, rows: Sequence[Value]) -> None:
        super().__init__(writer, nest, rows)
        (self.along,) = nest.reductions
        self.held = [k for k, s in enumerate(nest.stores) if not s.access.strides[self.along]]
        self.stored = [k for k in range(len(nest.stores)) if k not in self.held]

    def write(self) -> None:
        """Write the nest; nothing is combined in another order."""
        others = [d for d in self.order if d != self.along]
        if others and self.order[-1] != self.along and self.nest.sizes[others[-1]] >= NARROW:
            self._memory([*others[:-1], self.along, others[-1]])
            return
        if not others:
            self._side_by_side([{}])
            return
        *outer, last = others
        self._loops(outer, lambda: self._rows(last))

    def _setting(self, node: Apply, key: str, attr: ir.Attribute) -> str:
        return str(attr)

    def _rows(self, dim: int) -> None:
        """Write the loop over rows `dim`, in groups that are scanned side by side, and the rest."""
        size = self.nest.sizes[dim]
        whole = size - size % ROWS
        if whole:
            base = self.writer.open(whole, ROWS)
            self._side_by_side([{dim: self.writer.plus(base, k)} for k in range(ROWS)])
            self.writer.close()
        if whole < size:
            self._side_by_side([{dim: self.writer.number(k)} for k in range(whole, size)])

    def _side_by_side(self, places: Sequence[dict[int, Value]]) -> None:
        """Scan rows at these places in one loop."""
        rows = [self._row(place) for place in places]
        starts = [row._start(self.nest.stores[k]) for row in rows for k in self.held]
        loop = self.writer.open_loop(0, self.nest.sizes[self.along], 1, starts)
        count, made = len(self.held), list[Value]()
        for number, row in enumerate(rows):
            row.place[self.along] = loop.counter
            row._emit()
            row._hold(zip(self.held, loop.carried[number * count :]))
            made += row._steps()
        self.writer.close(made)
        for number, row in enumerate(rows):
            row.place[self.along] = None
            for k, value in zip(self.held, loop.results[number * count :]):
                row.store(self.nest.stores[k], value)

    def _row(self, place: dict[int, Value]) -> ScanLoops:
        """Return what writes one row, with what is computed outside of it."""
        row = ScanLoops(self.writer, self.nest, ())
        row.place = [place.get(d, known) for d, known in enumerate(self.place)]
        row.values = dict(self.values)
        row._emit()
        return row

    def _steps(self) -> list[Value]:
        """Store the results of an iteration; return what is combined by then."""
        stores = self.nest.stores
        for k in self.stored:
            self.store(stores[k], self.values[stores[k].value])
        return [self.values[stores[k].value] for k in self.held]
