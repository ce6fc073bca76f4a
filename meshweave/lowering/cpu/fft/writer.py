"""Write the function of an `mw.fft`: Stockham's transform, which needs no reordering, on vectors.

A length is a product of radices. Stage by stage, numbers that lie a radix-th of the whole apart are transformed,
turned, and written side by side [Van Loan, Computational Frameworks for the Fast Fourier Transform, section 1.7].
Transforms of columns run side by side in the lanes of vectors; one of a row takes its numbers in order, and once a
stage has written as many side by side as a vector has, these. A length with a long prime is a convolution with a chirp
[Bluestein 1970]; one of real numbers is one of half as many complex ones. Transforms back swap both parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshweave.ir.fft import Transform, convolved, half, is_long
from meshweave.lowering.cpu.fft.butterflies import Pair, negative, transform
from meshweave.lowering.cpu.fft.factors import Numbers, chirp, chirp_transform, radices, roots
from meshweave.lowering.cpu.fft.places import ComplexConstants, ComplexRows, ViewElement
from meshweave.lowering.cpu.products.blocks import parts_of
from meshweave.lowering.writer import Value, Writer
from meshweave.plan.machine import vectors

_POINTER = "!llvm.ptr"


class TransformWriter(Writer):
    """Write the function of a transform: its parameters are the operands, the results, and scratch memory."""

    def __init__(self, call: Transform) -> None:
        """Begin the function. declared: the constants that it reads."""
        super().__init__()
        self.call, self.element = call, call.element
        self.declared: set[str] = set()
        self.width = int(call.element[1:]) // 8
        self.most = vectors().nbytes // self.width
        count = call.given + call.made + 1
        self._given = [Value(self, f"%p{k}", _POINTER) for k in range(count)]
        self._tables: dict[bytes, ComplexConstants] = {}
        self._name, self.columns = "", 1

    def text(self, name: str) -> str:
        """Return the function `name`."""
        self._name = name
        if self.call.length and self.call.after:
            batch = self.open(self.call.before)
            self._columns(batch)
            self.close()
        parameters = ", ".join(f"{v.name}: {v.type}" for v in self._given)
        head = f"func.func @{name}({parameters}) {{"
        return "\n".join([head, *self.head, *self.lines, "return", "}", ""])

    def _columns(self, batch: Value) -> None:
        """Compute the transforms of one batch, so many columns at a time; the last ones may be some of those before."""
        columns, after = self.call.columns, self.call.after
        self.columns = columns
        first = self.times(self.open(-(-after // columns)), columns)
        last = self.constant(after - columns, "i64")
        self._chunk(batch, self.op("arith.minsi", "", [first, last], "i64"))
        self.close()

    def _chunk(self, batch: Value, column: Value) -> None:
        source, sink = self._source(batch, column), self._sink(batch, column)
        scratch = [self._scratch(0), self._scratch(1)]
        steps = {"rfft": self._rfft, "irfft": self._irfft}
        compute = steps.get(self.call.kind, self._core)
        compute(source, sink, scratch)

    # Where numbers lie.

    def _source(self, batch: Value, column: Value) -> ComplexRows:
        call = self.call
        rows = half(call.length) if call.kind == "irfft" else call.length
        view = self._outside(self._given[: call.given], batch, column, rows, call.kind == "rfft")
        return view.swapped() if call.kind == "ifft" else view

    def _sink(self, batch: Value, column: Value) -> ComplexRows:
        call = self.call
        rows = half(call.length) if call.kind == "rfft" else call.length
        pointers = self._given[call.given : call.given + call.made]
        view = self._outside(pointers, batch, column, rows, call.kind == "irfft")
        if call.kind == "ifft":
            return view.swapped().scaled(1.0 / call.length)
        return view

    def _outside(
        self, pointers: Sequence[Value], batch: Value, column: Value, rows: int, real: bool
    ) -> ComplexRows:
        """Return the columns of an operand or result. real: it holds real numbers."""
        after = self.call.after
        first = self.plus(self.times(batch, rows * after), column)
        if len(pointers) == 2 or real:
            places = [self.offset(p, first, self.element) for p in pointers]
            if real and self.call.halved:  # one after the other is a complex number
                if after == 1:
                    return ComplexRows(places[0], None, 1, True)
                return ComplexRows(
                    places[0], self.offset(places[0], after, self.element), 2 * after
                )
            return ComplexRows(places[0], places[1] if len(places) == 2 else None, after)
        at = self.offset(pointers[0], self.times(first, 2), self.element)
        return ComplexRows(at, None, after, True)

    def _scratch(self, number: int) -> ComplexRows:
        """Return one of both pieces of scratch memory."""
        pieces = [
            self.offset(self._given[-1], (2 * number + k) * self.call.piece, self.element)
            for k in (0, 1)
        ]
        return ComplexRows(pieces[0], pieces[1], self.columns)

    # Numbers of a view.

    def type_of(self, lanes: int) -> str:
        """Return the type of so many numbers."""
        return self.element if lanes == 1 else f"vector<{lanes}x{self.element}>"

    def _address(self, view: ComplexRows, place: ViewElement, pointer: Value) -> Value:
        at = self.times(place.row, view.step)
        if place.column is not None:
            at = self.plus(at, place.column)
        return self.offset(pointer, self.times(at, 2) if view.woven else at, self.element)

    def get(self, view: ComplexRows, place: ViewElement) -> Pair:
        """Load numbers at a place."""
        type_, lanes = self.type_of(place.lanes), place.lanes
        at = self._address(view, place, view.re)
        one = self.load(at, type_, self.width)
        if view.woven:
            other = self.load(self.offset(at, lanes, self.element), type_, self.width)
            if lanes > 1:
                evens = list(range(0, 2 * lanes, 2))
                odds = [k + 1 for k in evens]
                one, other = self.shuffle(one, other, evens), self.shuffle(one, other, odds)
        elif view.im is None:
            other = self.constant(0.0, type_)
        else:
            other = self.load(self._address(view, place, view.im), type_, self.width)
        return Pair(other, one) if view.swaps else Pair(one, other)

    def put(self, view: ComplexRows, place: ViewElement, pair: Pair) -> None:
        """Store numbers at a place."""
        pair = pair.scaled(view.scale)
        one, other = (pair.im, pair.re) if view.swaps else pair
        at = self._address(view, place, view.re)
        if view.woven:
            lanes = place.lanes
            if lanes > 1:
                one, other = self._woven(one, other, lanes)
            self.store(one, at, self.width)
            self.store(other, self.offset(at, lanes, self.element), self.width)
            return
        self.store(one, at, self.width)
        if view.im is not None:
            self.store(other, self._address(view, place, view.im), self.width)

    def _woven(self, one: Value, other: Value, lanes: int) -> tuple[Value, Value]:
        """Return the lanes of two vectors in turn, as two vectors."""
        pairs = [lane for k in range(lanes) for lane in (k, lanes + k)]
        return self.shuffle(one, other, pairs[:lanes]), self.shuffle(one, other, pairs[lanes:])

    def reversed(self, pair: Pair, lanes: int) -> Pair:
        """Return the lanes of vectors, the last first."""
        if lanes == 1:
            return pair
        order = list(range(lanes))[::-1]
        return Pair(*(self.shuffle(v, v, order) for v in pair))

    # Tables.

    def table(self, numbers: Numbers) -> ComplexConstants:
        """Return where constant numbers lie."""
        flat = numbers.ravel()
        kind = "<f4" if self.element == "f32" else "<f8"
        data = np.concatenate([flat.real, flat.imag]).astype(kind).tobytes()
        if data in self._tables:
            return self._tables[data]
        name, size = f"{self._name}_table_{len(self._tables)}", 2 * flat.size
        self.declared.add(
            f'llvm.mlir.global internal constant @{name}(dense<"0x{data.hex()}"> : tensor<{size}x{self.element}>) '
            f"{{addr_space = 0 : i32, alignment = 64 : i64}} : !llvm.array<{size} x {self.element}>\n"
        )
        at = self.let_first(f"llvm.mlir.addressof @{name} : {_POINTER}", _POINTER)
        self._tables[data] = ComplexConstants(at, flat.size)
        return self._tables[data]

    def entry(self, table: ComplexConstants, index: Value, lanes: int, spread: bool) -> Pair:
        """Load entries of a table. spread: one entry, in all lanes."""
        at = self.offset(table.pointer, index, self.element)
        later = self.offset(at, table.size, self.element)
        type_ = self.element if spread else self.type_of(lanes)
        found = [self.load(p, type_, self.width) for p in (at, later)]
        if spread and lanes > 1:
            found = [self.spread(v, lanes) for v in found]
        return Pair(*found)

    # Loops.

    def spans(self, start: int, end: int, most: int, body: Callable[[Value, int], None]) -> None:
        """Write `body` for vectors from `start` to `end`: a loop of whole ones, then shorter ones."""
        count = end - start
        if count <= 0:
            return
        lanes = most
        while lanes > count:
            lanes //= 2
        whole = count - count % lanes
        if whole > lanes:
            body(self.open(start + whole, lanes, start), lanes)
            self.close()
        else:
            body(self.constant(start, "i64"), lanes)
        for at, few in parts_of(count - whole, lanes):
            body(self.constant(start + whole + at, "i64"), few)

    def rows(self, start: int, end: int, body: Callable[[ViewElement], None]) -> None:
        """Write `body` for all numbers of some rows: of one column, vectors of rows."""
        if self.columns == 1:
            self.spans(start, end, self.most, lambda k, lanes: body(ViewElement(k, None, lanes)))
            return
        row = self.open(end, 1, start)
        self.spans(0, self.columns, self.most, lambda c, lanes: body(ViewElement(row, c, lanes)))
        self.close()

    def turn(self, pair: Pair, table: ComplexConstants, place: ViewElement) -> Pair:
        """Multiply the numbers of rows with the entries of these rows."""
        return pair.times(self.entry(table, place.row, place.lanes, self.columns > 1))

    # Transforms.

    def _core(self, source: ComplexRows, sink: ComplexRows, scratch: Sequence[ComplexRows]) -> None:
        """Transform complex numbers."""
        if is_long(self.call.core):
            self._convolution(source, sink, scratch)
        else:
            self.stages(self.call.core, source, sink, scratch)

    def stages(
        self, length: int, source: ComplexRows, sink: ComplexRows, scratch: Sequence[ComplexRows]
    ) -> None:
        """Transform a length with short primes. scratch: in turns; the first one may be the source."""
        factors = radices(length) or [1]
        done, other = 1, int(source is scratch[0])
        for number, radix in enumerate(factors):
            last = number == len(factors) - 1
            target = sink if last else scratch[other]
            self._stage(length, done, radix, source, target)
            source, other, done = target, 1 - other, done * radix

    def _last(self, length: int) -> int:
        """Return which piece of scratch memory the stage before the last one does not write."""
        return (len(radices(length) or [1]) + 1) % 2

    def _stage(
        self, length: int, done: int, radix: int, source: ComplexRows, target: ComplexRows
    ) -> None:
        """Transform each group of `radix` numbers, of which the lanes before have `done` in a row."""
        groups = length // (done * radix)
        table = None
        if groups > 1:
            p, j = np.arange(groups), np.arange(1, radix)
            powers = roots(groups * radix, p[None, :] * j[:, None])
            along = self.columns == 1 and done == 1
            table = self.table(powers if along else powers.T)
        if self.columns == 1 and done == 1 and groups > 1:
            self._first(groups, radix, source, target, table)
            return
        group = self.open(groups) if groups > 1 else self.constant(0, "i64")
        self._group(group, groups, done, radix, (source, target), table)
        if groups > 1:
            self.close()

    def _group(
        self, group: Value, groups: int, done: int, radix: int,
        views: tuple[ComplexRows, ComplexRows], table: ComplexConstants | None,
    ) -> None:  # fmt: skip
        """Transform one group of all that is done, whose numbers turn alike."""
        source, target = views
        first = self.times(group, done)
        after = self.times(group, done * radix)
        entries = []
        if table is not None:
            at = self.times(group, radix - 1)
            entries = [self.plus(at, j) for j in range(radix - 1)]

        def compute(row: Value | None, column: Value, lanes: int) -> None:
            taken = [
                self.get(source, _moved(self, first, row, column, done * groups * k, lanes))
                for k in range(radix)
            ]
            made = transform(taken)
            for j, pair in enumerate(made):
                if table is not None and j:
                    pair = pair.times(self.entry(table, entries[j - 1], lanes, True))
                self.put(target, _moved(self, after, row, column, done * j, lanes), pair)

        if all(view.step == self.columns for view in views):  # rows lie one behind the other
            self.spans(
                0, done * self.columns, self.most, lambda at, lanes: compute(None, at, lanes)
            )
            return
        row = self.open(done)
        self.spans(0, self.columns, self.most, lambda at, lanes: compute(row, at, lanes))
        self.close()

    def _first(
        self,
        groups: int,
        radix: int,
        source: ComplexRows,
        target: ComplexRows,
        table: ComplexConstants | None,
    ) -> None:
        """Transform the groups of a row: their numbers are in order, and what they make is to be woven."""
        assert table is not None

        def compute(group: Value, lanes: int) -> None:
            taken = [
                self.get(source, ViewElement(self.plus(group, groups * k), None, lanes))
                for k in range(radix)
            ]
            made = transform(taken)
            for j in range(1, radix):
                at = self.plus(group, groups * (j - 1))
                made[j] = made[j].times(self.entry(table, at, lanes, False))
            self._weave(target, self.times(group, radix), made, lanes)

        self.spans(0, groups, self.most, compute)

    def _weave(self, target: ComplexRows, row: Value, made: list[Pair], lanes: int) -> None:
        """Store the numbers of each lane side by side."""
        count = len(made)
        if lanes == 1 or count & (count - 1):
            for lane in range(lanes):
                for j, pair in enumerate(made):
                    one = Pair(*(self.lane(v, lane) for v in pair)) if lanes > 1 else pair
                    self.put(target, ViewElement(self.plus(row, lane * count + j), None, 1), one)
            return
        for _ in range(count.bit_length() - 1):
            woven = []
            for one, other in zip(made[: count // 2], made[count // 2 :]):
                re, im = (self._woven(a, b, lanes) for a, b in zip(one, other))
                woven += [Pair(re[0], im[0]), Pair(re[1], im[1])]
            made = woven
        for j, pair in enumerate(made):
            self.put(target, ViewElement(self.plus(row, j * lanes), None, lanes), pair)

    def _convolution(
        self, source: ComplexRows, sink: ComplexRows, scratch: Sequence[ComplexRows]
    ) -> None:
        """Transform a length with a long prime: turn by a chirp, convolve with it, turn again."""
        length, size = self.call.core, convolved(self.call.core)
        turns, spectrum = self.table(chirp(length)), self.table(chirp_transform(length))
        one, other = scratch
        zero = self.constant(0.0, self.element)

        def turned(place: ViewElement) -> None:
            self.put(one, place, self.turn(self.get(source, place), turns, place))

        def nothing(place: ViewElement) -> None:
            empty = self.constant(0.0, self.type_of(place.lanes)) if place.lanes > 1 else zero
            self.put(one, place, Pair(empty, empty))

        def multiplied(place: ViewElement) -> None:
            found = self.turn(self.get(end, place), spectrum, place)
            self.put(begin.swapped(), place, found)

        def turned_again(place: ViewElement) -> None:
            self.put(sink, place, self.turn(self.get(last.swapped(), place), turns, place))

        self.rows(0, length, turned)
        self.rows(length, size, nothing)
        end = self._stages_inside(size, one, other)
        begin = end
        self.rows(0, size, multiplied)
        last = self._stages_inside(size, begin, one if begin is other else other)
        self.rows(0, length, turned_again)

    def _stages_inside(self, length: int, source: ComplexRows, other: ComplexRows) -> ComplexRows:
        """Transform in scratch memory; return the piece that holds the result."""
        count = len(radices(length))
        sink = other if count % 2 else source
        self.stages(length, source, sink, [source, other])
        return sink

    # Transforms of real numbers.

    def _rfft(self, source: ComplexRows, sink: ComplexRows, scratch: Sequence[ComplexRows]) -> None:
        """Transform real numbers, two of them as one; then tell apart what both made."""
        made = scratch[0] if is_long(self.call.core) else scratch[self._last(self.call.core)]
        if not self.call.halved:
            self._core(source, made, scratch)
            self.rows(0, half(self.call.length), lambda p: self.put(sink, p, self.get(made, p)))
            return
        self._core(source, made, scratch)
        middle = self.call.core
        turns = self.table(roots(2 * middle, np.arange(middle)))

        def apart(place: ViewElement) -> None:
            a, b = self.get(made, place), self._mirrored(made, place, middle)
            even = Pair(a.re + b.re, a.im - b.im).scaled(0.5)
            odd = Pair(a.im + b.im, b.re - a.re).scaled(0.5)
            self.put(sink, place, even + self.turn(odd, turns, place))

        self._ends(made, sink, middle)
        self.rows(1, middle, apart)

    def _irfft(
        self, source: ComplexRows, sink: ComplexRows, scratch: Sequence[ComplexRows]
    ) -> None:
        """Undo `_rfft`; imaginary parts of numbers that are their own mirror image do not count."""
        begin, factor = scratch[0].swapped(), 1.0 / self.call.length
        if not self.call.halved:
            self._unfold(source, begin)
            self._core(scratch[0], sink.swapped().scaled(factor), scratch)
            return
        middle = self.call.core
        turns = self.table(roots(2 * middle, -np.arange(middle)))

        def together(place: ViewElement) -> None:
            a, b = self.get(source, place), self._mirrored(source, place, middle)
            even = Pair(a.re + b.re, a.im - b.im)
            odd = self.turn(Pair(a.re - b.re, a.im + b.im), turns, place)
            self.put(begin, place, Pair(even.re - odd.im, even.im + odd.re))

        self._begin(source, begin, middle)
        self.rows(1, middle, together)
        self._core(scratch[0], sink.swapped().scaled(factor), scratch)

    def _mirrored(self, view: ComplexRows, place: ViewElement, middle: int) -> Pair:
        """Load the numbers of the rows that mirror these."""
        if place.column is not None:
            return self.get(
                view,
                ViewElement(self.constant(middle, "i64") - place.row, place.column, place.lanes),
            )
        last = self.constant(middle - place.lanes + 1, "i64") - place.row
        return self.reversed(self.get(view, ViewElement(last, None, place.lanes)), place.lanes)

    def _of_row(self, row: int, body: Callable[[ViewElement], None]) -> None:
        """Write `body` for the numbers of a row."""
        at = self.constant(row, "i64")
        if self.columns == 1:
            body(ViewElement(at, None, 1))
        else:
            self.spans(0, self.columns, self.most, lambda c, lanes: body(ViewElement(at, c, lanes)))

    def _ends(self, made: ComplexRows, sink: ComplexRows, middle: int) -> None:
        """Write the first and the last number of a transform of real ones: sums without turns."""

        def both(place: ViewElement) -> None:
            a = self.get(made, place)
            none = self.constant(0.0, a.re.type)
            end = ViewElement(self.constant(middle, "i64"), place.column, place.lanes)
            self.put(sink, place, Pair(a.re + a.im, none))
            self.put(sink, end, Pair(a.re - a.im, none))

        self._of_row(0, both)

    def _begin(self, source: ComplexRows, begin: ComplexRows, middle: int) -> None:
        """Write what begins a transform back to real numbers, of the first and the last number."""

        def first(place: ViewElement) -> None:
            end = ViewElement(self.constant(middle, "i64"), place.column, place.lanes)
            a, b = self.get(source, place), self.get(source, end)
            self.put(begin, place, Pair(a.re + b.re, a.re - b.re))

        self._of_row(0, first)

    def _unfold(self, source: ComplexRows, begin: ComplexRows) -> None:
        """Write all numbers of which a half is given: the others are their mirror images."""
        length = self.call.length

        def first(place: ViewElement) -> None:
            a = self.get(source, place)
            self.put(begin, place, Pair(a.re, self.constant(0.0, a.re.type)))

        def given(place: ViewElement) -> None:
            self.put(begin, place, self.get(source, place))

        def mirrored(place: ViewElement) -> None:
            a = self._mirrored(source, place, length)
            self.put(begin, place, Pair(a.re, negative(a.im)))

        self._of_row(0, first)
        self.rows(1, half(length), given)
        self.rows(half(length), length, mirrored)


def _moved(
    w: Writer, first: Value, row: Value | None, column: Value, by: int, lanes: int
) -> ViewElement:
    """Return the place some rows further than `first`, at a row of a group or within all of them."""
    at = w.plus(first, by)
    return ViewElement(at if row is None else w.plus(at, row), column, lanes)
