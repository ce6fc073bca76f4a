"""Write kernels that put the codes of a row in order: all of them, or those that come first.

A record is a code above its place, one integer: records of equal codes keep their order, and no two are equal. Few are
put where the number of smaller ones says, many are dealt out digit by digit, the lowest first [Knuth, The Art of
Computer Programming, volume 3, section 5.2.5]. Where few of a row are wanted, only those are kept that come before the
last one wanted so far; when they have become many, they are put in order. Both take time linear in the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshweave.ir.sorting import BUCKETS, DIGIT
from meshweave.lowering.cpu.loops import NestLoops
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.cpu.tiles import minimum
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value, Writer

FEW = {32: 128, 64: 32}  # records, by the bits of a code, of which the smaller ones are counted
BLOCK = 64  # elements that are looked at together
SAMPLE = 256  # elements of a row at least that are put in order first
POINTER = "!llvm.ptr"


def order_text(name: str, unit: KernelUnit) -> str:
    """Write the function `name` that does what the unit, a single order, does, and one that it calls."""
    writer, (nest,) = FunctionWriter(unit), unit.nests
    width = int(str(nest.stores[1].type)[1:])
    OrderLoops(writer, nest, f"{name}_sort", width).write()
    return _Sort(width).text(f"{name}_sort") + writer.text(name)


class OrderLoops(NestLoops):
    """Write the rows of an order."""

    def __init__(self, writer: FunctionWriter, nest: LoopNest, sort: str, width: int) -> None:
        """Begin a nest. sort: the function that sorts records. width: bits of a code."""
        super().__init__(writer, nest, ())
        self.sort, self.width, self.record = sort, width, f"i{2 * width}"
        self.places, self.codes = nest.stores
        (self.along,) = nest.reductions
        self.kth = [d for d in nest.parallel if self.codes.access.strides[d]]
        self.size, self.count = nest.sizes[self.along], 1
        for d in self.kth:
            self.count = nest.sizes[d]
        room = (self.size + 8) * self.width // 4
        scratch = self.frame.pointers[self.codes.access.pointer]
        # Named once, where the function begins: rows share them.
        self.buffers = [writer.offset(scratch, k * room) for k in range(3)]

    def write(self) -> None:
        """Write the loops over rows, and what is done with each."""
        rows = [d for d in self.nest.parallel if d not in self.kth]
        self._loops(rows, self._row)

    def _row(self) -> None:
        chunk = BLOCK * -(-max(SAMPLE, 2 * self.count) // BLOCK)
        most = 2 * chunk  # records that are kept before they are put in order
        first = chunk if most + BLOCK <= self.size else self.size
        index = self.writer.open(first)
        record = self._record(self._code(index), index)
        self.writer.store(record, self._at_place(self.buffers[0], index))
        self.writer.close()
        found = self._sorted(self.buffers[0], self.writer.number(first))
        self._store_places(found if first == self.size else self._selected(found, first, most))

    def _selected(self, found: Value, first: int, most: int) -> Value:
        """Go through the elements from `first` on, block by block; return the records in order."""
        writer = self.writer
        state = [found, writer.number(self.count), self._last(found)]
        loop = writer.open_loop(first, self.size, BLOCK, state)
        end = writer.plus(loop.counter, minimum(writer, loop.counter, self.size, BLOCK))
        held = writer.if_(
            self._any_before(loop.counter, end, loop.carried[2]),
            lambda: self._kept(loop.counter, end, loop.carried, most),
            lambda: loop.carried,
            [v.type for v in state],
        )
        writer.close(held)
        return self._sorted(*loop.results[:2])

    def _last(self, records: Value) -> Value:
        """Return the code of the last record wanted."""
        record = self.writer.load(
            self._at_place(records, self.writer.number(self.count - 1)), self.record
        )
        return self.writer.convert("arith.trunci", record >> self.width, f"i{self.width}")

    def _any_before(self, start: Value, end: Value, last: Value) -> Value:
        """Tell whether an element of a block comes before `last`; later ones of the same code do not."""
        writer = self.writer
        loop = writer.open_loop(start, end, 1, [writer.constant(0)])
        comes = writer.compare("ult", self._code(loop.counter), last)
        writer.close([loop.carried[0] | writer.convert("arith.extui", comes, "i32")])
        return writer.compare("ne", loop.results[0], 0)

    def _kept(self, start: Value, end: Value, state: Sequence[Value], most: int) -> list[Value]:
        """Keep those of a block that come before the last one wanted; put all in order where they have become many.

        state: where the records are, how many there are, and the code of the last one wanted.
        """
        (records, count, last), writer = state, self.writer
        loop = writer.open_loop(start, end, 1, [count])
        code = self._code(loop.counter)
        record = self._record(code, loop.counter)
        writer.store(record, self._at_place(records, loop.carried[0]))
        comes = writer.convert("arith.extui", writer.compare("ult", code, last), "i64")
        writer.close([writer.plus(loop.carried[0], comes)])
        (count,) = loop.results

        def again() -> list[Value]:
            found = self._sorted(records, count)
            return [found, writer.number(self.count), self._last(found)]

        many = writer.compare("ugt", count, most)
        return writer.if_(many, again, lambda: [records, count, last], [v.type for v in state])

    def _code(self, index: Value) -> Value:
        """Compute the code of an element."""
        kept, self.values = self.values, dict(self.values)
        self.place[self.along] = index
        self._emit()
        code = self.values[self.codes.value]
        self.values, self.place[self.along] = kept, None
        return code

    def _record(self, code: Value, index: Value) -> Value:
        """Return the record of an element."""
        high = self.writer.convert("arith.extui", code, self.record)
        low = index if self.width == 32 else self.writer.convert("arith.extui", index, self.record)
        return (high << self.width) | low

    def _at_place(self, records: Value, index: Value) -> Value:
        return self.writer.offset(records, index, self.record)

    def _sorted(self, records: Value, count: Value) -> Value:
        """Sort records, which are in one of two buffers; return where they are then."""
        writer, (a, b, counters) = self.writer, self.buffers
        if records is a:
            spare = b
        else:
            is_a = writer.let(f'llvm.icmp "eq" {records.name}, {a.name} : {POINTER}', "i1")
            text = f"llvm.select {is_a.name}, {b.name}, {a.name} : i1, {POINTER}"
            spare = writer.let(text, POINTER)
        given = [records, spare, counters, count]
        names, types = (", ".join(x) for x in zip(*[(v.name, v.type) for v in given]))
        return writer.let(f"func.call @{self.sort}({names}) : ({types}) -> {POINTER}", POINTER)

    def _store_places(self, records: Value) -> None:
        index = self.writer.open(self.count)
        for d in self.kth:
            self.place[d] = index
        record = self.writer.load(self._at_place(records, index), self.record)
        self.store(self.places, self.writer.convert("arith.trunci", record, "i32"))
        for d in self.kth:
            self.place[d] = None
        self.writer.close()


class _Sort(Writer):
    """Write the function that sorts records: it is given them, as much room, counters, and how many there are."""

    def __init__(self, width: int) -> None:
        """Begin the function. width: bits of a code."""
        super().__init__()
        self.width, self.record, self.digits = width, f"i{2 * width}", width // DIGIT
        self.given = [Value(self, f"%{n}", POINTER) for n in ("records", "spare", "counters")]
        self.count = Value(self, "%count", "i64")

    def text(self, name: str) -> str:
        """Return the function `name`."""
        few = self.compare("ule", self.count, FEW[self.width])
        (found,) = self.if_(few, self._by_counting, self._by_digits, [POINTER])
        parameters = ", ".join(f"{v.name}: {v.type}" for v in (*self.given, self.count))
        head = f"func.func @{name}({parameters}) -> {POINTER}"
        end = f"return {found.name} : {POINTER}"
        return "\n".join([head + " {", *self.head, *self.lines, end, "}", ""])

    def _read(self, records: Value, index: Value | int) -> Value:
        at = index if isinstance(index, Value) else self.constant(index, "i64")
        return self.load(self.offset(records, at, self.record), self.record)

    def _by_counting(self) -> list[Value]:
        """Put each record where the number of smaller ones says."""
        records, spare, _ = self.given
        outer = self.open(self.count)
        own = self._read(records, outer)
        inner = self.open_loop(0, self.count, 1, [self.constant(0, "i64")])
        smaller = self.compare("ult", self._read(records, inner.counter), own)
        self.close([self.plus(inner.carried[0], self.convert("arith.extui", smaller, "i64"))])
        self.store(own, self.offset(spare, inner.results[0], self.record))
        self.close()
        return [spare]

    def _by_digits(self) -> list[Value]:
        """Deal the records out by each digit of their codes; one that all have in common is left out."""
        records, spare, _ = self.given
        self._count_digits()
        first, total = self._read(records, 0), self.convert("arith.trunci", self.count, "i32")
        held = [records, spare]
        for digit in range(self.digits):
            common = self.load(self._counter(first, digit), "i32")
            same = self.compare("eq", common, total)
            source, target = held
            dealt = partial(self._dealt, source, target, digit)
            held = self.if_(same, held.copy, dealt, [POINTER, POINTER])
        return held[:1]

    def _count_digits(self) -> None:
        """Count for each digit how often it has each value."""
        index = self.open(self.digits * BUCKETS)
        self.store(self.constant(0, "i32"), self.offset(self.given[2], index, "i32"))
        self.close()
        index = self.open(self.count)
        record = self._read(self.given[0], index)
        for digit in range(self.digits):
            place = self._counter(record, digit)
            self.store(self.load(place, "i32") + 1, place)
        self.close()

    def _counter(self, record: Value, digit: int) -> Value:
        """Return where the counter of a digit of a record is."""
        value = (record >> (self.width + digit * DIGIT)) & (BUCKETS - 1)
        if self.record != "i64":
            value = self.convert("arith.trunci", value, "i64")
        return self.offset(self.given[2], self.plus(value, digit * BUCKETS), "i32")

    def _dealt(self, source: Value, target: Value, digit: int) -> list[Value]:
        """Write the records in the order of a digit to `target`."""
        loop = self.open_loop(0, BUCKETS, 1, [self.constant(0, "i32")])
        at = self.plus(loop.counter, digit * BUCKETS)
        place = self.offset(self.given[2], at, "i32")
        count = self.load(place, "i32")
        self.store(loop.carried[0], place)
        self.close([loop.carried[0] + count])
        index = self.open(self.count)
        record = self._read(source, index)
        place = self._counter(record, digit)
        to = self.load(place, "i32")
        self.store(record, self.offset(target, self.wide(to), self.record))
        self.store(to + 1, place)
        self.close()
        return [target, source]
