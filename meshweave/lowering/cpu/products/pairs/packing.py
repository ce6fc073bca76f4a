"""Pack a matrix of 16-bit numbers into blocks of 16 lines by 32 steps of depth, as the processor takes them.

A block has 1 KiB. Two neighbouring steps of depth are one word of 32 bits; numbers of 8 bits become 16. The left matrix
is packed line by line, 16 words each; the right one word by word, 16 lines each: one is the other turned over. What a
block has beyond the matrix is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshweave.lowering.cpu import tiles
from meshweave.lowering.nests.bind import Access
from meshweave.lowering.writer import Value, Writer

LINES = 16  # of a block
DEPTH = 32  # steps of a block
BLOCK = 1024  # bytes of a block
ROW = 64  # bytes of a line of 16 words
MOST_RUNS = 4  # in memory, of the lines of a block


@dataclass(frozen=True)
class PackedSide:
    """Describe a matrix in loops: those over its lines, those over its depth, outermost first, and its steps.

    by_line: whether it is packed line by line. element: i16, or i8, which has a sign.
    """

    sizes: tuple[int, ...]
    lines: tuple[int, ...]
    depth: tuple[int, ...]
    access: Access
    by_line: bool
    element: str = "i16"

    @property
    def align(self) -> int:
        """Return the bytes of an element."""
        return int(self.element[1:]) // 8

    @property
    def line_step(self) -> int:
        """Return the step from line to line of a block."""
        return self.access.strides[self.lines[-1]]

    @property
    def depth_step(self) -> int:
        """Return the step along the depth of a block."""
        return self.access.strides[self.depth[-1]]

    @property
    def is_even(self) -> bool:
        """Tell whether one step leads from line to line of each block."""
        return is_even(self.sizes, self.lines, LINES)

    @property
    def fits(self) -> bool:
        """Tell whether blocks can be packed: the words of a line lie side by side, or its lines do, in few runs."""
        return self.lies_by_line or (self.line_step == 1 and self.runs <= MOST_RUNS)

    @property
    def is_evenly_deep(self) -> bool:
        """Tell whether one step leads along the depth of each block."""
        return is_even(self.sizes, self.depth, DEPTH)

    @property
    def runs(self) -> int:
        """Return in how many runs of the innermost loop the lines of a block lie at most."""
        size = self.sizes[self.lines[-1]]
        return 1 if self.is_even else (LINES + size - 2) // size + 1

    @property
    def lies_by_line(self) -> bool:
        """Tell whether the words of a line lie side by side."""
        walk = self.is_evenly_deep or is_one_walk(self.sizes, self.depth, self.access)
        return self.depth_step == 1 and walk

    @property
    def cost(self) -> float:
        """Estimate the cycles that packing an element takes."""
        if self.lies_by_line:
            return 0.06 if self.by_line else 0.25
        more = 0.06 * (self.runs - 1) + (0 if self.is_evenly_deep else 0.15)
        return (0.35 if self.by_line else 0.15) + more


def is_one_walk(sizes: Sequence[int], loops: Sequence[int], access: Access) -> bool:
    """Tell whether loops walk memory as one, forwards."""
    step = access.strides[loops[-1]]
    for d in reversed(loops):
        if access.strides[d] != step or step < 1:
            return False
        step *= sizes[d]
    return True


def is_even(sizes: Sequence[int], loops: Sequence[int], block: int) -> bool:
    """Tell whether the innermost of some loops alone counts within blocks of their iterations."""
    return len(loops) == 1 or sizes[loops[-1]] % block == 0


class _Run(NamedTuple):
    """Name lines of a block that follow each other in memory: where line 0 would be, and which lines they are."""

    place: Value
    mask: Value


class BlockPacker:
    """Write the code that packs parts of one side."""

    def __init__(self, writer: Writer, side: PackedSide, pointer: Value) -> None:
        """pointer: of element 0 of the matrix."""
        self.writer, self.side, self.pointer = writer, side, pointer

    def pack(
        self, first: Value, lines: Value, start: Value, depth: Value, into: Value, apart: int
    ) -> None:
        """Pack `lines` lines from `first` on, over `depth` steps from `start` on.

        into: where blocks go, one row of blocks after the other; apart: blocks of a row.
        """
        writer, s = self.writer, self.side
        line = writer.open(lines, LINES)
        begin, left = writer.plus(first, line), lines - line
        one_by_one = s.lies_by_line and not s.is_even
        places = [self._line(begin, k, left) for k in range(LINES)] if one_by_one else []
        runs = self._runs(begin, left) if s.runs > 1 and not places else []
        step = writer.open(depth, DEPTH)
        row = writer.times(writer.plus(writer.times(line // LINES, apart), step // DEPTH), BLOCK)
        target = writer.offset(into, row)
        deep, rest = writer.plus(start, step), depth - step
        whole = writer.compare("sge", rest, DEPTH)
        if not (places or runs):
            whole = writer.compare("sge", left, LINES) & whole

        def all_of_it() -> None:
            if places:
                rows = [self._moved(place, s.depth, deep) for place in places]
                self._stored([self._line_words(r) for r in rows], target)
            elif runs:
                self._stored_from(runs, deep, None, target)
            else:
                source = self._moved(self.pointer, s.lines, begin)
                self._stored([self._words(source, deep, k) for k in range(LINES)], target)

        def part_of_it() -> None:
            if s.lies_by_line:
                rows = places or [self._line(begin, k, left) for k in range(LINES)]
                rows = [self._some(self._moved(r, s.depth, deep), DEPTH, rest) for r in rows]
                self._stored([self._as_words(r) for r in rows], target)
            elif runs:
                self._stored_from(runs, deep, rest, target)
            else:
                source = self._moved(self.pointer, s.lines, begin)
                words = [self._some_words(source, deep, k, left, rest) for k in range(LINES)]
                self._stored(words, target)

        writer.if_(whole, all_of_it, part_of_it)
        writer.close()
        writer.close()

    def _runs(self, begin: Value, left: Value) -> list[_Run]:
        """Return the runs that the lines of a block lie in, each as if its first lines stood before it in memory."""
        writer, s = self.writer, self.side
        size, kind = s.sizes[s.lines[-1]], "vector<16xi32>"
        order = writer.literal(str(list(range(LINES))), kind)

        def before(number: Value) -> Value:
            wide = writer.spread(writer.convert("arith.trunci", number, "i32"), LINES)
            text = f"arith.cmpi slt, {order.name}, {wide.name} : {kind}"
            return writer.let(text, f"vector<{LINES}xi1>")

        found, low = [], writer.constant(0, "i64")
        whole, ended = before(left), before(low)
        for k in range(s.runs):
            end = writer.times(writer.plus(begin // size, k + 1), size)
            place = self._moved(self.pointer, s.lines, begin + low)
            back = (writer.constant(0, "i64") - low).name
            text = f"llvm.getelementptr {place.name}[{back}] : ({place.type}, i64) -> {place.type}, {s.element}"
            place, low = writer.let(text, place.type), end - begin
            reached = before(low)
            found.append(_Run(place, (reached ^ ended) & whole))
            ended = reached
        return found

    def _deeper(self, place: Value, deep: Value, step: int) -> Value:
        """Return a place some steps of depth further than `deep`."""
        s, writer = self.side, self.writer
        if s.is_evenly_deep:
            return writer.offset(self._moved(place, s.depth, deep), step * s.depth_step, s.element)
        return self._moved(place, s.depth, writer.plus(deep, step))

    def _stored_from(
        self, runs: Sequence[_Run], deep: Value, depth: Value | None, target: Value
    ) -> None:
        """Store a block whose lines lie in runs. depth: how many of its steps there are, None for all."""
        words = []
        for step in range(0, DEPTH, 2):
            pair = [self._step(runs, deep, step + k, depth) for k in range(2)]
            words.append(self._paired(*pair))
        self._stored(words, target)

    def _step(self, runs: Sequence[_Run], deep: Value, step: int, depth: Value | None) -> Value:
        """Load one step of depth of 16 lines; what there is not is zero."""
        writer, s = self.writer, self.side
        value = writer.constant(0, f"vector<{LINES}x{s.element}>")
        for run in runs:
            mask = run.mask
            if depth is not None:
                mask = mask & writer.spread(writer.compare("sgt", depth, step), LINES)
            place = self._deeper(run.place, deep, step)
            text = f"llvm.intr.masked.load {place.name}, {mask.name}, {value.name} {{alignment = {s.align} : i32}}"
            types = f"({place.type}, {mask.type}, {value.type}) -> {value.type}"
            value = writer.let(f"{text} : {types}", value.type)
        return self._widened(value, LINES)

    def _line(self, begin: Value, number: Value | int, left: Value) -> Value:
        """Return where a line of a block begins; where there is none, where the last one does: nobody reads it."""
        writer = self.writer
        number = writer.as_value(number, "i64")
        held = writer.let(f"arith.minsi {number.name}, {(left - 1).name} : i64", "i64")
        return self._moved(self.pointer, self.side.lines, writer.plus(begin, held))

    def _moved(self, place: Value, loops: Sequence[int], number: Value) -> Value:
        """Return the place in iteration `number` of some loops, given that in their first."""
        s, writer = self.side, self.writer
        for d, index in digits(s.sizes, loops, number).items():
            if s.access.strides[d]:
                place = writer.offset(place, writer.times(index, s.access.strides[d]), s.element)
        return place

    def _stored(self, rows: Sequence[Value], target: Value) -> None:
        """Store a whole block, whose words have been loaded line by line where they lie so."""
        writer, s = self.writer, self.side
        if s.lies_by_line != s.by_line:
            rows = tiles.turn(writer, rows)
        for k, row in enumerate(rows):
            writer.store(row, writer.offset(target, k * ROW), 64)

    def _words(self, source: Value, deep: Value, number: int) -> Value:
        """Load 16 words: of a line where those lie side by side, else one of 16 lines."""
        writer, s = self.writer, self.side
        if s.lies_by_line:
            place = writer.offset(
                self._moved(source, s.depth, deep), number * s.line_step, s.element
            )
            return self._line_words(place)
        places = [self._deeper(source, deep, 2 * number + k) for k in range(2)]
        return self._paired(*(self._loaded(place, LINES) for place in places))

    def _loaded(self, place: Value, lanes: int) -> Value:
        """Load neighbours, as numbers of 16 bits."""
        kind = f"vector<{lanes}x{self.side.element}>"
        return self._widened(self.writer.load(place, kind, self.side.align), lanes)

    def _widened(self, value: Value, lanes: int) -> Value:
        """Return numbers of the matrix as numbers of 16 bits."""
        if self.side.element == "i16":
            return value
        return self.writer.convert("arith.extsi", value, f"vector<{lanes}xi16>")

    def _line_words(self, place: Value) -> Value:
        """Load the 16 words of a line that lie side by side."""
        return self._as_words(self._loaded(place, DEPTH))

    def _as_words(self, line: Value) -> Value:
        return self.writer.convert("llvm.bitcast", line, "vector<16xi32>")

    def _some_words(
        self, source: Value, deep: Value, number: int, lines: Value, depth: Value
    ) -> Value:
        """Load one word of up to 16 lines, as far as there are lines, and depth."""
        writer, found = self.writer, []
        for step in (2 * number, 2 * number + 1):
            place = self._deeper(source, deep, step)
            none = writer.constant(0, "i64")
            count = writer.select(writer.compare("sgt", depth, step), lines, none)
            found.append(self._some(place, LINES, count))
        return self._paired(*found)

    def _paired(self, first: Value, second: Value) -> Value:
        """Return words of two steps of depth, of 16 lines."""
        mixed = self.writer.shuffle(first, second, [k // 2 + k % 2 * 16 for k in range(32)])
        return self.writer.convert("llvm.bitcast", mixed, "vector<16xi32>")

    def _some(self, place: Value, lanes: int, count: Value) -> Value:
        """Load the first elements of a vector, as many as there are; the others are zero, and not touched."""
        writer, s = self.writer, self.side
        kind = f"vector<{lanes}x{s.element}>"
        wide = writer.spread(writer.convert("arith.trunci", count, "i32"), lanes)
        order = writer.literal(str(list(range(lanes))), wide.type)
        inside = f"vector<{lanes}xi1>"
        mask = writer.let(f"arith.cmpi slt, {order.name}, {wide.name} : {wide.type}", inside)
        zero = writer.constant(0, kind)
        read = f"llvm.intr.masked.load {place.name}, {mask.name}, {zero.name}"
        text = f"{read} {{alignment = {s.align} : i32}}"
        types = f"({place.type}, {inside}, {kind}) -> {kind}"
        return self._widened(writer.let(f"{text} : {types}", kind), lanes)


def digits(sizes: Sequence[int], loops: Sequence[int], number: Value) -> dict[int, Value]:
    """Return the index of each loop in iteration `number` of all of them."""
    indices: dict[int, Value] = {}
    for d in reversed(loops[1:]):
        indices[d] = number % sizes[d]
        number = number // sizes[d]
    return indices | dict.fromkeys(loops[:1], number)
