"""Write convolutions whose groups have one channel each: vectors of results stay in registers over the window.

Nothing is shared between their results as in a product, but neighbours in a row are vectors, and what is the same for
all of a row, such as a number of the window, is read once for several rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshweave.hints.fast_paths import PANELS
from meshweave.ir.expressions import Accumulator, Load, needed, type_text
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.loops import ShortRows, fits_vectors
from meshweave.lowering.cpu.products.blocks import WIDTHS, parts_of
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.writer import Value
from meshweave.plan.machine import vectors

HELD = 8  # vectors of results, enough for additions that do not wait for each other
NEAR = (0, 1, 2)  # steps between the elements of a vector


def row_of(nest: LoopNest, rows: int) -> int | None:
    """Return the loop that a depthwise convolution's rows of results run along; None for any other nest."""
    if PANELS not in nest.switches or len(nest.stores) != 1 or not nest.reductions:
        return None
    types = {type_text(each) for each in nest.code} | {str(store.type) for store in nest.stores}
    if len(types) != 1 or not types <= WIDTHS.keys() or not all(map(fits_vectors, nest.code)):
        return None
    result = nest.stores[0].access.strides
    along = [d for d in nest.parallel if d >= rows and result[d] == 1]
    if len(along) != 1 or any(load.access.strides[along[0]] not in NEAR for load in nest.loads):
        return None
    return along[0]


class ResultVector(NamedTuple):
    """Describe a vector of results: in which of the rows that are held, where in it, and how many."""

    row: Value | None
    start: Value
    lanes: int


class DepthwiseRows(ShortRows):
    """Write a depthwise convolution inside loops `rows`, which are open."""

    def write(self) -> None:
        """Write the parallel loops, the last of them in steps of as many rows as are held."""
        row = row_of(self.nest, len(self.nest.sizes) - len(self.order))
        assert row is not None
        self.row, self.kind = row, str(self.nest.stores[0].type)
        self.lanes = vectors().nbytes // WIDTHS[self.kind]
        self.depth = [d for d in self.order if d in self.nest.reductions]
        self.width = min(HELD * self.lanes, self.nest.sizes[row])
        others = [d for d in self.order if d not in (row, *self.depth)]
        most = HELD // len(list(parts_of(self.width, self.lanes)))
        beside = self.nest.sizes[others[-1]] if others else 1
        self.beside = max((k for k in range(1, most + 1) if beside % k == 0), default=1)
        self.other = others[-1] if self.beside > 1 else None
        self._loops(others[:-1] if self.beside > 1 else others, self._rows)

    def _rows(self) -> None:
        """Write some rows side by side, part by part."""
        writer, size = self.writer, self.nest.sizes[self.row]
        rows: list[Value | None] = [None]
        if self.other is not None:
            first = writer.open(self.nest.sizes[self.other], self.beside)
            rows = [writer.plus(first, k) for k in range(self.beside)]
        whole = size // self.width * self.width
        self._part(rows, writer.open(whole, self.width), self.width)
        writer.close()
        if whole < size:
            self._part(rows, writer.number(whole), size - whole)
        if self.other is not None:
            writer.close()

    def _part(self, rows: Sequence[Value | None], start: Value, width: int) -> None:
        """Write so many columns of some rows: their sums are carried through the loops that reduce."""
        kept, (store,) = dict(self.values), self.nest.stores
        parts = [
            ResultVector(row, self.writer.plus(start, at), lanes)
            for row in rows
            for at, lanes in parts_of(width, self.lanes)
        ]
        current, opened = [self._start_of(part) for part in parts], []
        for d in self.depth:
            loop = self.writer.open_loop(0, self.nest.sizes[d], 1, current)
            self.place[d], current = loop.counter, loop.carried
            opened.append(loop.results)
            self._emit()
        sums = [self._after(part, value) for part, value in zip(parts, current)]
        sums = self._close(sums, opened)
        for d in self.depth:
            self.place[d] = None
        self.values = kept
        for part, value in zip(parts, sums):
            self._go_to(part)
            place = self.frame.address(store.access, self.kind, self.place)
            self.writer.store(value, place, WIDTHS[self.kind])
        self._leave()

    def _go_to(self, part: ResultVector) -> None:
        self.place[self.row] = part.start
        if self.other is not None:
            self.place[self.other] = part.row

    def _leave(self) -> None:
        self.place[self.row] = None
        if self.other is not None:
            self.place[self.other] = None

    def _start_of(self, part: ResultVector) -> Value:
        """Return what a vector of sums starts from."""
        (store,) = self.nest.stores
        self._go_to(part)
        if store.initial is None:
            place = self.frame.address(store.access, self.kind, self.place)
            made = self._elements(place, 1, part.lanes)
        else:
            made = self._computed_to(store.initial, part.lanes, {})
        self._leave()
        return made

    def _after(self, part: ResultVector, value: Value) -> Value:
        """Return a vector of sums after one step of the loops that reduce."""
        code = self.nest.code
        held = {k: value for k, node in enumerate(code) if isinstance(node, Accumulator)}
        self._go_to(part)
        made = self._computed_to(self.nest.stores[0].value, part.lanes, held)
        self._leave()
        return made

    def _computed_to(self, number: int, lanes: int, made: dict[int, Value]) -> Value:
        """Compute a node as a vector, with all that it needs and is not in `made`."""
        for k in sorted(needed(self.nest.code, [number], made)):
            made[k] = self._vector(k, made, self.kind, lanes)
        return made[number]

    def _vector(self, number: int, made: dict[int, Value], kind: str, count: int) -> Value:
        """Compute a node as a vector of `count` elements, which may lie 0, 1 or 2 apart."""
        node = self.nest.code[number]
        if number in self.values or not isinstance(node, Load):
            return super()._vector(number, made, kind, count)
        place = self.frame.address(node.access, kind, self.place)
        return self._elements(place, node.access.strides[self.row], count)

    def _elements(self, place: Value, step: int, lanes: int) -> Value:
        """Load elements that lie so many apart."""
        writer, nbytes, type_ = self.writer, WIDTHS[self.kind], f"vector<{lanes}x{self.kind}>"
        if step == 0:
            return writer.spread(writer.load(place, self.kind, nbytes), lanes)
        if step == 1 or lanes == 1:
            return writer.load(place, type_, nbytes)
        later = writer.offset(place, lanes - 1, self.kind)
        first, second = (writer.load(at, type_, nbytes) for at in (place, later))
        return tiles.every_second(writer, first, second, lanes)
