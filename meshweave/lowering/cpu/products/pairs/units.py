"""Write products of packed blocks: a block of sums is loaded, added to and stored.

On a processor with AMX the sums of bf16 are in its tiles, four of 16x16; else sums are in vectors of 16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from meshweave.lowering.cpu.products.pairs.packing import BLOCK, LINES, ROW
from meshweave.lowering.writer import Value, Writer

ROWS_TOGETHER = 8  # of sums in vectors: two of them each take half of the registers


@dataclass(frozen=True)
class SumBlock:
    """Name a block of sums and what is added to it.

    left, right: packed blocks of the first 16 rows and columns; `apart` bytes on are the next 16. depth: how many
    blocks are added up. sums: where the sums are, of 32 bits, rows `step` bytes apart. begins: whether they begin at
    zero. rows: how many are wanted; more may be made.
    """

    left: Value
    right: Value
    apart: int
    depth: Value
    sums: Value
    step: Value
    begins: Value | bool
    rows: Value | int


class PairUnit(Protocol):
    """Write products of packed blocks, `rows` by `columns` blocks of sums."""

    rows: int
    columns: int

    def begin(self, writer: Writer) -> None:
        """Write what comes before all products of a function."""

    def end(self, writer: Writer) -> None:
        """Write what comes after them."""

    def add(self, writer: Writer, block: SumBlock) -> None:
        """Write one product."""


class TileUnit:
    """Multiply in the tiles of AMX: four hold sums, the other four what is multiplied."""

    def __init__(self, rows: int) -> None:
        """rows: blocks of rows of sums, 1 or 2."""
        self.rows, self.columns = rows, 4 // rows

    def begin(self, writer: Writer) -> None:
        """Configure the tiles: palette 1, 16 rows of 64 bytes each."""
        words = {0: 1, 2: 0x0040004000400040, 3: 0x0040004000400040, 6: 0x1010101010101010}
        config = writer.local_buffer(8, "i64")
        for k in range(8):
            word = writer.constant(words.get(k, 0), "i64")
            writer.store(word, writer.offset(config, 8 * k))
        self._op(writer, "ldtilecfg", config)

    def end(self, writer: Writer) -> None:
        """Give the tiles back."""
        self._op(writer, "tilerelease")

    def add(self, writer: Writer, block: SumBlock) -> None:
        """Add the products of blocks to four tiles of sums."""
        numbers = [writer.constant(k, "i8") for k in range(8)]
        places = [(r, c) for r in range(self.rows) for c in range(self.columns)]
        sums = {place: numbers[k] for k, place in enumerate(places)}
        lefts, rights = numbers[4 : 4 + self.rows], numbers[4 + self.rows :]

        def zero() -> None:
            for number in sums.values():
                self._op(writer, "tilezero", number)

        def load() -> None:
            for at, number in sums.items():
                self._op(writer, "tileloadd64", number, _sums(writer, block, *at), block.step)

        _started(writer, block, zero, load)
        row = writer.constant(ROW, "i64")
        begin = writer.times(writer.open(block.depth), BLOCK)
        for r, number in enumerate(lefts):
            start = writer.offset(writer.offset(block.left, begin), r * block.apart)
            self._op(writer, "tileloadd64", number, start, row)
        for c in range(self.columns):
            number = rights[c % len(rights)]
            start = writer.offset(writer.offset(block.right, begin), c * block.apart)
            self._op(writer, "tileloadd64", number, start, row)
            for r, left in enumerate(lefts):
                self._op(writer, "tdpbf16ps", sums[r, c], left, number)
        writer.close()
        for at, number in sums.items():
            self._op(writer, "tilestored64", number, _sums(writer, block, *at), block.step)

    @staticmethod
    def _op(writer: Writer, name: str, *operands: Value) -> None:
        names, types = (
            ", ".join(x) for x in ([v.name for v in operands], [v.type for v in operands])
        )
        writer.add(f'llvm.call_intrinsic "llvm.x86.{name}"({names}) : ({types}) -> ()')


class DotUnit:
    """Multiply in vectors: each lane adds the products of two pairs."""

    rows = columns = 2

    def __init__(self, sums: str) -> None:
        """Multiply pairs of bf16 where `sums`, the type of the sums, is f32; of integers where it is i32."""
        self.sums = sums

    def begin(self, writer: Writer) -> None:
        """Write nothing."""

    def end(self, writer: Writer) -> None:
        """Write nothing."""

    def add(self, writer: Writer, block: SumBlock) -> None:
        """Add the products of blocks to 8 rows of sums after the other."""
        group = writer.open(block.rows, ROWS_TOGETHER)
        half, line = group // LINES, group % LINES
        left = writer.offset(block.left, writer.times(half, block.apart))
        left = writer.offset(left, writer.times(line, ROW))
        first = writer.offset(block.sums, writer.times(group, block.step))
        places = [
            writer.offset(writer.offset(first, writer.times(block.step, r)), c * ROW)
            for r in range(ROWS_TOGETHER)
            for c in range(self.columns)
        ]
        kind = f"vector<{LINES}x{self.sums}>"
        zero = writer.constant(0.0 if self.sums == "f32" else 0, kind)
        sums = [zero for _ in places]
        if block.begins is False:
            sums = [writer.load(place, kind, 4) for place in places]
        elif isinstance(block.begins, Value):
            held = [writer.load(place, kind, 4) for place in places]
            sums = [writer.select(block.begins, zero, value) for value in held]
        outer = writer.open_loop(0, block.depth, 1, sums)
        at = writer.times(outer.counter, BLOCK)
        inner = writer.open_loop(0, LINES, 1, outer.carried)
        made = self._word(writer, block, left, at, inner.counter, inner.carried)
        writer.close(made)
        writer.close(inner.results)
        for place, value in zip(places, outer.results):
            writer.store(value, place, 4)
        writer.close()

    def _word(
        self,
        writer: Writer,
        block: SumBlock,
        left: Value,
        at: Value,
        word: Value,
        sums: list[Value],
    ) -> list[Value]:
        """Add the products of one word of depth."""
        kind = f"vector<{2 * LINES}xi16>"
        line = writer.offset(writer.offset(block.right, at), writer.times(word, ROW))
        columns = [
            writer.load(writer.offset(line, c * block.apart), kind, ROW)
            for c in range(self.columns)
        ]
        made: list[Value] = []
        for r in range(ROWS_TOGETHER):
            place = writer.offset(writer.offset(left, at), r * ROW)
            pair = writer.load(writer.offset(place, word, "i32"), "i32")
            wide = writer.convert("llvm.bitcast", writer.spread(pair, LINES), kind)
            for column in columns:
                made.append(writer.add_pairs(wide, column, sums[len(made)]))
        return made


def _sums(writer: Writer, block: SumBlock, row: int, column: int) -> Value:
    """Return where a block of 16x16 sums is."""
    place = writer.offset(block.sums, column * ROW)
    return writer.offset(place, writer.times(block.step, row * LINES)) if row else place


def _started(
    writer: Writer, block: SumBlock, zero: Callable[[], None], load: Callable[[], None]
) -> None:
    """Write what sums start from."""
    if isinstance(block.begins, Value):
        writer.if_(block.begins, zero, load)
    else:
        (zero if block.begins else load)()
