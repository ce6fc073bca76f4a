"""Write scans: nests whose reduction loop runs in order, and that store what is combined by then in each iteration."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Accumulator, Apply, gathered, inputs, needed, type_text
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.loops import Counters, NestLoops
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.writer import Value

ROWS = 8  # that are scanned side by side: each step waits for the one before it in its row alone
NARROW = 16  # rows of fewer elements are no vectors; LLVM would write them out, and shuffle what lies apart
CHUNK = 256  # elements of a row that are computed before they are scanned


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
        self.before = self._before()
        self.buffers: dict[int, Value] = {}  # of a chunk of each of these, for each row

    def write(self) -> None:
        """Write the nest; nothing is combined in another order."""
        others = [d for d in self.order if d != self.along]
        if others and self.order[-1] != self.along and self.nest.sizes[others[-1]] >= NARROW:
            self._memory([*others[:-1], self.along, others[-1]])
            return
        rows = min(ROWS, self.nest.sizes[others[-1]]) if others else 1
        for number in self.before:
            kind = stored(type_text(self.nest.code[number]))
            self.buffers[number] = self.writer.local_buffer(rows * CHUNK, kind)
        if not others:
            self._side_by_side([{}])
            return
        *outer, last = others
        self._loops(outer, lambda: self._rows(last))

    def _before(self) -> list[int]:
        """Return what each element is combined from, where to compute that is work that vectors do better."""
        code = self.nest.code
        late = gathered(code, lambda node: [True] if isinstance(node, Accumulator) else [])
        early = {k for k in self.wanted if not late[k] and self.along in self.needs[k]}
        read = {at for k in self.wanted if k not in early for at in inputs(code[k])}
        read |= {store.value for store in self.nest.stores}
        ends = sorted(early & read)
        work = sum([isinstance(code[k], Apply) for k in needed(code, ends) & early])
        return ends if work and self.nest.sizes[self.along] >= CHUNK // 4 else []

    def _setting(self, node: Apply, key: str, attr: ir.Attribute) -> str:
        return str(attr)

    def _rows(self, dim: int) -> None:
        """Write the loop over rows `dim`, in groups that are scanned side by side, and the rest."""
        size = self.nest.sizes[dim]
        if self.nest.limit(dim) is not None:
            self._side_by_side([{dim: self.writer.open(self.end(dim))}])
            self.writer.close()
            return
        whole = size - size % ROWS
        if whole:
            base = self.writer.open(whole, ROWS)
            self._side_by_side([{dim: self.writer.plus(base, k)} for k in range(ROWS)])
            self.writer.close()
        if whole < size:
            self._side_by_side([{dim: self.writer.number(k)} for k in range(whole, size)])

    def _side_by_side(self, places: Sequence[Counters]) -> None:
        """Scan rows at these places in one loop, in chunks where what does not wait is computed before."""
        rows = [self._row(place) for place in places]
        current = [row._start(self.nest.stores[k]) for row in rows for k in self.held]
        size, chunks = self.end(self.along), None
        if self.before:
            chunks = self.writer.open_loop(0, size, CHUNK, current)
            current = chunks.carried
            length = tiles.minimum(self.writer, chunks.counter, size, CHUNK)
            self._compute_before(places, chunks.counter, length)
        loop = self.writer.open_loop(0, length if chunks else size, 1, current)
        count, made = len(self.held), list[Value]()
        for number, row in enumerate(rows):
            row.place[self.along] = loop.counter
            if chunks:
                row.place[self.along] = self.writer.plus(chunks.counter, loop.counter)
                at = self.writer.plus(loop.counter, number * CHUNK)
                row.staged = {k: self._element(k, at) for k in self.before}
            row._emit()
            row._hold(zip(self.held, loop.carried[number * count :]))
            made += row._steps()
        self.writer.close(made, as_written=self.nest.sizes[self.along] < NARROW)
        results = loop.results
        if chunks:
            self.writer.close(results)
            results = chunks.results
        for number, row in enumerate(rows):
            row.place[self.along] = None
            for k, value in zip(self.held, results[number * count :]):
                row.store(self.nest.stores[k], value)

    def _compute_before(self, places: Sequence[Counters], begin: Value, length: Value) -> None:
        """Compute a chunk of what waits for no element before it, of each of these rows, in vectors."""
        first = self.writer.open(len(places))
        at = {d: self.writer.plus(counter, first) for d, counter in places[0].items()}
        row = self._row(at)
        row.wanted = needed(self.nest.code, self.before)
        row._emit()
        counter = self.writer.open(length)
        row.place[self.along] = self.writer.plus(begin, counter)
        row._emit()
        place = self.writer.plus(self.writer.times(first, CHUNK), counter)
        for number in self.before:
            value = self.frame.in_memory(row.values[number])
            self.writer.store(value, self._element(number, place))
        self.writer.close()
        self.writer.close()

    def _element(self, number: int, place: Value) -> Value:
        """Return the address of an element of a node in its local buffer."""
        return self.writer.offset(
            self.buffers[number], place, stored(type_text(self.nest.code[number]))
        )

    def _row(self, place: Counters) -> ScanLoops:
        """Return what writes one row, with what is computed outside of it."""
        row = ScanLoops(self.writer, self.nest, ())
        row.place = [place.get(d, known) for d, known in enumerate(self.place)]
        row.values = dict(self.values)
        if self.before:
            late = needed(self.nest.code, self.nest.results, self.before)
            row.wanted = late | set(self.before)
        row._emit()
        return row

    def _steps(self) -> list[Value]:
        """Store the results of an iteration; return what is combined by then."""
        stores = self.nest.stores
        for k in self.stored:
            self.store(stores[k], self.values[stores[k].value])
        return [self.values[stores[k].value] for k in self.held]
