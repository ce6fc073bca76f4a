"""Write contractions in register blocks of vectors, where the library's GEMM is too coarse.

A block of rows times a block of columns of the result stays in registers over the depth, each step of which reads one
row of B as vectors and one element of A for each row. Of B a panel, all its depth and one block of columns, is
used for all rows before the next; where B lies transposed, the panel is turned over first, into a local buffer. Depth
is cut where a panel would not stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshweave.ir.expressions import Apply
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.products.blas import SMALLEST, Gemm, product_of
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import Access, LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value
from meshweave.plan.machine import Vectors, vectors

PANEL_BYTES = 1 << 16  # of a panel of B at most
FEWEST = 4  # columns
SMALL = 1 << 14  # multiplications of each of a batch below which calls of the library take longer
MOST_ROWS = 8  # of a block
WIDTHS = {"f32": 4, "f64": 8}


def blocks_of(nest: LoopNest) -> Gemm | None:
    """Return the product that a contraction is, where blocks suit it; None where plain loops or the library do it."""
    if any(isinstance(n, Apply) and n.is_exact for n in nest.code):
        return None
    gemm = product_of(nest)
    if gemm is None or nest.limits or (nest.library and not _is_small(gemm)):
        return None
    if gemm.m < 0 or gemm.n < 0 or nest.reductions != {gemm.k}:
        return None  # of several depths, a convolution's, the sums would not stay in registers
    return gemm if gemm.size(gemm.n) >= FEWEST and gemm.size(gemm.m) > 1 else None


def _is_small(gemm: Gemm) -> bool:
    """Tell whether a product is one of a batch, each so small that a call of the library costs more than it saves."""
    return bool(gemm.outer) and SMALLEST <= gemm.work <= SMALL


def blocks_text(name: str, unit: KernelUnit, gemm: Gemm) -> str:
    """Write the function `name` that does the product."""
    writer = FunctionWriter(unit)
    counters = {d: writer.open(gemm.nest.sizes[d]) for d in gemm.outer}
    _Blocks(writer, gemm, counters, vectors()).write()
    for _ in gemm.outer:
        writer.close()
    return writer.text(name)


class RightBlock(NamedTuple):
    """Describe a part of B that is used for all rows: first column, columns, start and length of its depth."""

    column: Value
    width: int
    start: Value
    depth: int


class _Blocks:
    """Write one product inside loops `counters` that are open."""

    def __init__(
        self, writer: FunctionWriter, gemm: Gemm, counters: dict[int, Value], machine: Vectors
    ) -> None:
        self.writer, self.gemm, self.counters = writer, gemm, counters
        self.dtype, self.width = gemm.dtype, WIDTHS[gemm.dtype]
        self.registers, self.most = machine.registers, 4 if machine.registers >= 32 else 2
        self.lanes = machine.nbytes // self.width
        self.m, self.n, self.k = (gemm.size(d) for d in (gemm.m, gemm.n, gemm.k))
        self.columns = self.most * self.lanes
        self.depth = min(self.k, max(1, PANEL_BYTES // (self.columns * self.width)))
        self.starts = gemm.nest.stores[0].initial is not None
        self.turned: Value | None = None  # the local buffer, where panels are turned over
        if gemm.b.strides[gemm.n] != 1:
            self.turned = writer.local_buffer(self.depth * self.columns, self.dtype)

    def write(self) -> None:
        """Write the panels: those of all columns, then the columns that are left."""
        whole = self.n // self.columns * self.columns
        if whole:
            self._panels(self.writer.open(whole, self.columns), self.columns)
            self.writer.close()
        if rest := self.n - whole:
            self._panels(self.writer.number(whole), rest)

    def _panels(self, column: Value, width: int) -> None:
        """Write all rows of some columns, depth after depth."""
        whole = self.k // self.depth * self.depth
        self._panel(RightBlock(column, width, self.writer.number(0), self.depth), self.starts)
        if whole > self.depth:
            start = self.writer.open(whole, self.depth, self.depth)
            self._panel(RightBlock(column, width, start, self.depth), False)
            self.writer.close()
        if rest := self.k - whole:
            self._panel(RightBlock(column, width, self.writer.number(whole), rest), False)

    def _panel(self, panel: RightBlock, first: bool) -> None:
        """Write all rows for one panel. first: the sums begin here."""
        if self.turned is not None:
            self._turn(panel, self.turned)
        for size, low, high in self._row_blocks(panel.width):
            row = self.writer.open(high, size, low)
            self._block(row, size, panel, first)
            self.writer.close()

    def _row_blocks(self, width: int) -> Iterator[tuple[int, int, int]]:
        """Yield (rows of a block, from, to): blocks of one size, then what is left.

        The sums of a block of so many columns take three of four registers at most.
        """
        count = len(list(parts_of(width, self.lanes)))
        most = max(1, min(MOST_ROWS, self.registers * 3 // 4 // count))
        rows = -(-self.m // -(-self.m // most))
        whole = self.m // rows * rows
        if whole:
            yield rows, 0, whole
        if self.m - whole:
            yield self.m - whole, whole, self.m

    def _block(self, row: Value, rows: int, panel: RightBlock, first: bool) -> None:
        """Write one block: its sums stay in registers over the depth of the panel."""
        writer, g = self.writer, self.gemm
        parts = list(parts_of(panel.width, self.lanes))
        here = [writer.plus(row, r) for r in range(rows)]
        into = [self._pointer(g.c, {g.m: i, g.n: panel.column}) for i in here]
        left = [self._pointer(g.a, {g.m: i, g.k: panel.start}) for i in here]
        right, step = self._right(panel)
        if first:
            sums = [writer.constant(0.0, self._type(n)) for _ in here for _, n in parts]
        else:
            sums = [self._load(p, at, n) for p in into for at, n in parts]
        loop = writer.open_loop(0, panel.depth, 1, sums)
        line = self._offset(right, loop.counter, step)
        columns = [self._load(line, at, n) for at, n in parts]
        made = []
        for r, pointer in enumerate(left):
            place = self._offset(pointer, loop.counter, g.a.strides[g.k])
            number = writer.load(place, self.dtype)
            wide = {n: writer.spread(number, n) for n in dict.fromkeys(n for _, n in parts)}
            for v, (_, n) in enumerate(parts):
                made.append(writer.fma(wide[n], columns[v], loop.carried[r * len(parts) + v]))
        writer.close(made)
        for r, pointer in enumerate(into):
            for v, (at, _) in enumerate(parts):
                place = writer.offset(pointer, at, self.dtype)
                writer.store(loop.results[r * len(parts) + v], place, self.width)

    def _right(self, panel: RightBlock) -> tuple[Value, int]:
        """Return where a panel of B begins, and the step from row to row of it."""
        g = self.gemm
        if self.turned is not None:
            return self.turned, self.columns
        return self._pointer(g.b, {g.n: panel.column, g.k: panel.start}), g.b.strides[g.k]

    def _turn(self, panel: RightBlock, buffer: Value) -> None:
        """Copy a panel of B, whose columns lie apart, to the local buffer, rows of step 1."""
        g, writer = self.gemm, self.writer
        squares = panel.width % tiles.WIDE == 0 and panel.depth % tiles.WIDE == 0
        square, kind = 1, f"i{8 * self.width}"
        if squares:
            square, kind = tiles.WIDE, f"vector<{tiles.WIDE}x{kind}>"
        j, k = writer.open(panel.width, square), writer.open(panel.depth, square)
        at_k = panel.start + k
        rows = []
        for r in range(square):
            at_n = panel.column + writer.plus(j, r)
            pointer = self._pointer(g.b, {g.n: at_n, g.k: at_k})
            rows.append(writer.load(pointer, kind, self.width))
        for r, value in enumerate(tiles.turn(writer, rows) if squares else rows):
            line = self._offset(buffer, writer.plus(k, r), self.columns)
            writer.store(value, self._offset(line, j, 1), self.width)
        writer.close()
        writer.close()

    # Places and vectors

    def _type(self, lanes: int) -> str:
        return f"vector<{lanes}x{self.dtype}>"

    def _pointer(self, access: Access, more: dict[int, Value]) -> Value:
        """Return where an access is with these loops at these numbers, all others as they are."""
        pointer = self.writer.frame.pointers[access.pointer]
        for dim, number in {**self.counters, **more}.items():
            if access.strides[dim]:
                pointer = self._offset(pointer, number, access.strides[dim])
        return pointer

    def _offset(self, pointer: Value, count: Value, step: int) -> Value:
        return self.writer.offset(pointer, self.writer.times(count, step), self.dtype)

    def _load(self, pointer: Value, at: int, lanes: int) -> Value:
        place = self.writer.offset(pointer, at, self.dtype)
        return self.writer.load(place, self._type(lanes), self.width)


def parts_of(width: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield (first column, lanes) for the vectors of a row: whole ones, then powers of two."""
    at = 0
    while at < width:
        while lanes > width - at:
            lanes //= 2
        yield at, lanes
        at += lanes
