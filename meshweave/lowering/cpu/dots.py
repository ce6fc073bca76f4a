"""Write products of few rows whose weights lie along the depth, as in `x @ w.T`: sums of vectors along the depth.

A few rows times a few columns of sums stay in registers over a part of the depth, for which the rows are put together
first, in the type of the sums. While a few columns are done the weights of the next ones are on their way from memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.expressions import Apply, Load
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.loops import Counters
from meshweave.lowering.cpu.products.blocks import WIDTHS
from meshweave.lowering.cpu.reuse import CACHE_LINE, FEW, PER_LANE, ColumnBlock, ReusingLoops
from meshweave.lowering.writer import Value
from meshweave.plan.machine import vectors

COLUMNS = 256  # of a panel
BESIDE = 4  # columns, of which each row has a sum
CHAINS = 4  # sums of one row and column: a processor adds to so many before the first is there
LEFT_BYTES = 1 << 15  # of rows that are put together: the first cache keeps them


class RowDots(ReusingLoops):
    """Write one nest of a shape inside loops `rows`, which are open."""

    @property
    def fits(self) -> bool:
        """Tell whether this is a sum of products of few rows whose weights lie along the depth."""
        nest, last, store = self.nest, self.shape.depth[-1], self.nest.stores[0]
        nodes = [nest.code[k] for k in self._of_columns]
        return (
            self.along
            and self.count <= FEW
            and len(nest.stores) == 1
            and self._sums(0, store)
            and self.left is not None
            and {n.access.strides[last] for n in nodes if isinstance(n, Load)} == {1}
            and all(isinstance(n, Load) or (isinstance(n, Apply) and n.name in PER_LANE) for n in nodes)
        )  # fmt: skip

    def _sums_of_rows(self) -> None:
        """Write results whose addends lie side by side."""
        self._measure()
        writer, size = self.writer, self.nest.sizes[self.shape.column]
        start = writer.open(size, self.panel)
        panel = ColumnBlock(start, tiles.minimum(writer, start, size, self.panel))
        number = writer.open(self.count * self.panel)
        writer.store(self.zero, writer.offset(self.sums, number, self.kind))
        writer.close()
        *outer, last = self.shape.depth
        with self.at({d: writer.open(self.nest.sizes[d]) for d in outer}):
            at = writer.open(self.nest.sizes[last], self.tile)
            length = tiles.minimum(writer, at, self.nest.sizes[last], self.tile)
            self._copy_rows(at, length)
            self._columns(panel, at, length)
            writer.close()
        for _ in outer:
            writer.close()
        self._finish(panel)
        writer.close()

    def _measure(self) -> None:
        """Choose the sizes of parts, and reserve buffers."""
        machine, writer, nest = vectors(), self.writer, self.nest
        self.mask: Value | None = None  # of lanes that are within the depth, where some are not
        self.kind = self.types[nest.stores[0].value]
        self.zero = writer.constant(0.0, self.kind)
        self.lanes = machine.nbytes // WIDTHS[self.kind]  # lanes
        nodes = [nest.code[k] for k in self._of_columns]
        read = min(element_bytes(n.type) for n in nodes if isinstance(n, Load))
        self.unrolled = max(1, CACHE_LINE // (self.lanes * read))
        self.beside = BESIDE if machine.registers >= 32 else BESIDE // 2
        self.chains, self.held = 1, self.kind
        self.totals = f"vector<{self.lanes}x{self.kind}>"
        if self.pairs is not None:
            self.lanes, self.unrolled, self.held = 2 * self.lanes, 1, "i16"
        # One line of memory comes after the other, without being asked for.
        if self.count == 1:
            self.beside, self.unrolled, self.chains = 1, CHAINS, CHAINS
        depth, step = nest.sizes[self.shape.depth[-1]], self.lanes * self.unrolled
        parts = max(1, -(-depth * self.count * WIDTHS[self.kind] // LEFT_BYTES))
        self.tile = -(-depth // (parts * step)) * step
        self.panel = min(nest.sizes[self.shape.column], COLUMNS)
        # No power of two, as lines of one place in the cache would be.
        self.spacing = self.tile + self.lanes
        self.lines = writer.local_buffer(self.count * self.spacing, self.held)
        self.sums = writer.local_buffer(self.count * self.panel, self.kind)

    def _copy_rows(self, at: Value, length: Value) -> None:
        """Copy a part of the depth of all rows, with zeros behind it to whole vectors."""
        writer, last = self.writer, self.shape.depth[-1]
        for row in self._rows():
            line = self._line(row)
            step = writer.open(length)
            with self.at({**row, last: writer.plus(at, step)}):
                writer.store(self._number(), writer.offset(line, step, self.held))
            writer.close()
            step = writer.open_loop(length, writer.plus(length, self.lanes), 1).counter
            zero = writer.constant(0, self.held)
            writer.store(zero, writer.offset(line, step, self.held))
            writer.close()

    def _number(self) -> Value:
        """Return the number of a row here: of pairs of bf16 its bits."""
        if self.pairs is not None:
            return self._bits_of_row()
        assert self.left is not None
        return self.values[self.left]

    def _columns(self, panel: ColumnBlock, at: Value, length: Value) -> None:
        """Add a part of the depth to all sums of a panel, a few columns after the other."""
        writer = self.writer
        whole = writer.times(panel.width // self.beside, self.beside)
        for first, end, count in ((0, whole, self.beside), (whole, panel.width, 1)):
            start = writer.open_loop(first, end, count).counter
            numbers = [writer.plus(start, k) for k in range(count)]
            for group in self._groups():
                self._block(group, numbers, panel, at, length)
            writer.close()

    def _block(
        self,
        rows: Sequence[Counters],
        numbers: Sequence[Value],
        panel: ColumnBlock,
        at: Value,
        length: Value,
    ) -> None:
        """Add a part of the depth to the sums of a few rows and columns."""
        writer, step = self.writer, self.lanes * self.unrolled
        zero = writer.constant(0.0, self.totals)
        count = len(rows) * len(numbers)
        whole = writer.times(length // step, step)
        loop = writer.open_loop(0, whole, step, [zero] * (count * self.chains))
        sums = loop.carried
        if self.count > 1:
            self._prefetch_next(numbers, panel, writer.plus(at, loop.counter))
        for k in range(self.unrolled):
            here = writer.plus(loop.counter, k * self.lanes)
            added = self._added(rows, numbers, panel, (at, here), sums[:count])
            sums = [*sums[count:], *added]
        writer.close(sums)
        sums = loop.results
        while len(sums) > count:
            both = [a + b for a, b in zip(sums[:count], sums[count : 2 * count])]
            sums = [*both, *sums[2 * count :]]
        if self.nest.sizes[self.shape.depth[-1]] % step:
            loop = writer.open_loop(whole, length, self.lanes, sums)
            rest = length - loop.counter
            writer.close(self._added(rows, numbers, panel, (at, loop.counter), loop.carried, rest))
            sums = loop.results
        for k, (row, number) in enumerate((r, n) for r in rows for n in numbers):
            place = self._place_of(row, number)
            writer.store(writer.load(place, self.kind) + writer.total(sums[k]), place)

    def _added(
        self,
        rows: Sequence[Counters],
        numbers: Sequence[Value],
        panel: ColumnBlock,
        place: tuple[Value, Value],
        sums: Sequence[Value],
        rest: Value | None = None,
    ) -> list[Value]:
        """Return sums with a vector of the depth added. place: where the part begins, and the vector in it.

        rest: how many steps of depth there are from there on, where the vector may be longer.
        """
        writer, (at, here), last = self.writer, place, self.shape.depth[-1]
        lines = [writer.offset(self._line(row), here, self.held) for row in rows]
        type_ = f"vector<{self.lanes}x{self.held}>"
        given = [writer.load(line, type_, 2) for line in lines]
        self.mask = None if rest is None else writer.first_lanes(rest, self.lanes)
        made = list(sums)
        for c, number in enumerate(numbers):
            shared: dict[int, Value] = {}
            column = {self.shape.column: writer.plus(panel.start, number)}
            for r, row in enumerate(rows):
                k = r * len(numbers) + c
                with self._placed({**row, **column, last: writer.plus(at, here)}):
                    made[k] = self._with(given[r], shared, made[k])
        self.mask = None
        return made

    def _with(self, row: Value, shared: dict[int, Value], held: Value) -> Value:
        """Return a sum with a vector of a row times one of weights added. shared: as for `_wide`."""
        if self.pairs is None:
            assert self.left is not None
            after = self._wide({**self.values, self.left: row}, shared, held)
            return after if self.mask is None else self.writer.select(self.mask, after, held)
        if not shared:
            place = self.frame.address(self.pairs[1].access, "i16", self.place)
            shared[0] = self._lanes_at(place, row.type, 2)
        return self.writer.add_pairs(row, shared[0], held)

    def _lanes_at(self, place: Value, type_: str, nbytes: int) -> Value:
        """Load lanes, but for those behind the end of the depth."""
        if self.mask is None:
            return super()._lanes_at(place, type_, nbytes)
        return self.writer.load_masked(place, type_, self.mask, nbytes)

    def _prefetch_next(self, numbers: Sequence[Value], panel: ColumnBlock, at: Value) -> None:
        """Ask for what the next columns read at this place of the depth."""
        column, writer = self.shape.column, self.writer
        last = self.nest.sizes[column] - 1
        for number in numbers:
            later = writer.plus(writer.plus(panel.start, number), len(numbers))
            there = {column: writer.least(later, last), self.shape.depth[-1]: at}
            for place in self._weights_at(there):
                writer.prefetch(place)

    def _finish(self, panel: ColumnBlock) -> None:
        """Store the results of a panel."""
        (store,) = self.nest.stores
        for row in self._rows():
            number = self.writer.open(panel.width)
            with self.at({**row, **self._column(panel, number)}):
                found = self.writer.load(self._place_of(row, number), self.kind)
                self.store(store, self._start(store) + found)
            self.writer.close()

    def _line(self, row: Counters) -> Value:
        """Return where the part of a row begins that was put together."""
        place = self.writer.times(self._number_in(row), self.spacing)
        return self.writer.offset(self.lines, place, self.held)

    def _place_of(self, row: Counters, number: Value) -> Value:
        """Return where the sum of a row and a column of the panel is."""
        line = self.writer.times(self._number_in(row), self.panel)
        place = self.writer.plus(line, number)
        return self.writer.offset(self.sums, place, self.kind)

    def _number_in(self, row: Counters) -> Value:
        """Return the number of a row."""
        return next(iter(row.values()), self.writer.number(0))
