"""Pack a matrix of bf16 into blocks of 16 lines by 32 steps of depth, 1 KiB each, as the processor takes them.

Two neighbouring steps of depth are one word of 32 bits. The left matrix is packed line by line, 16 words each; the
right one word by word, 16 lines each: one is the other turned over. What a block has beyond the matrix is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.lowering.cpu import tiles
from meshweave.lowering.nests.bind import Access
from meshweave.lowering.writer import Value, Writer

LINES = 16  # of a block
DEPTH = 32  # steps of a block
BLOCK = 1024  # bytes of a block
ROW = 64  # bytes of a line of 16 words


@dataclass(frozen=True)
class PackedSide:
    """Describe a matrix in loops: those over its lines, those over its depth, outermost first, and its steps.

    by_line: whether it is packed line by line.
    """

    sizes: tuple[int, ...]
    lines: tuple[int, ...]
    depth: tuple[int, ...]
    access: Access
    by_line: bool

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
        """Tell whether blocks can be packed: one step leads along their depth, and lines or their words lie in rows."""
        by_words = self.depth_step == 1 or (self.is_even and self.line_step == 1)
        return by_words and is_even(self.sizes, self.depth, DEPTH)

    @property
    def lies_by_line(self) -> bool:
        """Tell whether the words of a line lie side by side."""
        return self.depth_step == 1

    @property
    def cost(self) -> float:
        """Estimate the cycles that packing an element takes."""
        if self.lies_by_line:
            return 0.06 if self.by_line else 0.25
        return 0.35 if self.by_line else 0.15


def is_even(sizes: Sequence[int], loops: Sequence[int], block: int) -> bool:
    """Tell whether the innermost of some loops alone counts within blocks of their iterations."""
    return len(loops) == 1 or sizes[loops[-1]] % block == 0


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
        places = [] if s.is_even else [self._line(begin, k, left) for k in range(LINES)]
        step = writer.open(depth, DEPTH)
        row = writer.times(writer.plus(writer.times(line // LINES, apart), step // DEPTH), BLOCK)
        target = writer.offset(into, row)
        deep, rest = writer.plus(start, step), depth - step
        whole = writer.compare("sge", rest, DEPTH)
        if s.is_even:
            whole = writer.compare("sge", left, LINES) & whole

        def all_of_it() -> None:
            if places:
                rows = [self._moved(place, s.depth, deep) for place in places]
                self._stored([writer.load(r, "vector<16xi32>", 2) for r in rows], target)
            else:
                source = self._moved(self._moved(self.pointer, s.lines, begin), s.depth, deep)
                self._stored([self._words(source, k) for k in range(LINES)], target)

        def part_of_it() -> None:
            if s.lies_by_line:
                rows = places or [self._line(begin, k, left) for k in range(LINES)]
                rows = [self._some(self._moved(r, s.depth, deep), DEPTH, rest) for r in rows]
                self._stored(
                    [writer.convert("llvm.bitcast", r, "vector<16xi32>") for r in rows], target
                )
            else:
                source = self._moved(self._moved(self.pointer, s.lines, begin), s.depth, deep)
                self._stored(
                    [self._some_words(source, k, left, rest) for k in range(LINES)], target
                )

        writer.if_(whole, all_of_it, part_of_it)
        writer.close()
        writer.close()

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
                place = writer.offset(place, writer.times(index, s.access.strides[d]), "i16")
        return place

    def _stored(self, rows: Sequence[Value], target: Value) -> None:
        """Store a whole block, whose words have been loaded line by line where they lie so."""
        writer, s = self.writer, self.side
        if s.lies_by_line != s.by_line:
            rows = tiles.turn(writer, rows)
        for k, row in enumerate(rows):
            writer.store(row, writer.offset(target, k * ROW), 64)

    def _words(self, source: Value, number: int) -> Value:
        """Load 16 words: of a line where those lie side by side, else one of 16 lines."""
        writer, s = self.writer, self.side
        if s.lies_by_line:
            place = writer.offset(source, number * s.line_step, "i16")
            return writer.load(place, "vector<16xi32>", 2)
        places = [writer.offset(source, (2 * number + k) * s.depth_step, "i16") for k in range(2)]
        return self._paired(*(writer.load(place, "vector<16xi16>", 2) for place in places))

    def _some_words(self, source: Value, number: int, lines: Value, depth: Value) -> Value:
        """Load one word of up to 16 lines, as far as there are lines, and depth."""
        writer, found = self.writer, []
        for step in (2 * number, 2 * number + 1):
            place = writer.offset(source, step * self.side.depth_step, "i16")
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
        writer, kind = self.writer, f"vector<{lanes}xi16>"
        wide = writer.spread(writer.convert("arith.trunci", count, "i32"), lanes)
        order = writer.literal(str(list(range(lanes))), wide.type)
        inside = f"vector<{lanes}xi1>"
        mask = writer.let(f"arith.cmpi slt, {order.name}, {wide.name} : {wide.type}", inside)
        zero = writer.constant(0, kind)
        text = (
            f"llvm.intr.masked.load {place.name}, {mask.name}, {zero.name} {{alignment = 2 : i32}}"
        )
        return writer.let(f"{text} : ({place.type}, {inside}, {kind}) -> {kind}", kind)


def digits(sizes: Sequence[int], loops: Sequence[int], number: Value) -> dict[int, Value]:
    """Return the index of each loop in iteration `number` of all of them."""
    indices: dict[int, Value] = {}
    for d in reversed(loops[1:]):
        indices[d] = number % sizes[d]
        number = number // sizes[d]
    return indices | dict.fromkeys(loops[:1], number)
