"""Copy tiles of the operands of a product from global to shared memory, a few steps ahead of their use.

A tile holds `rows` rows of C (or columns) and 128 bytes of depth. Memory is read in chunks of 16
bytes along whichever of the two has step 1, so a tile lies in shared memory

    by depth: a row of the tile after another, each 8 chunks of depth
    by rows:  a step of depth after another, each the chunks of all rows, or of a panel of 128 bytes of
              them: then panel after panel (which is what `wgmma` reads)

Chunks are swizzled (their number XOR the line's), so that 8 threads that read the same chunk of 8
lines touch all banks once. Elements of 4 bytes that lie by rows are read one by one: their lines are
padded by 32 bytes instead.

A chunk is copied as one piece of 16 bytes, in pieces of 8 or 4 bytes where the lines of memory do
not start at multiples of 16, or element by element where nothing else fits. What lies outside of the
matrix is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from meshweave.lowering.gpu.families.products import Contraction, ProductOperand
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import GLOBAL
from meshweave.lowering.writer import Value

CHUNK = 16  # bytes
DEPTH = 128  # bytes of depth in a tile
PANEL = 128  # bytes of rows in a panel


@dataclass(frozen=True)
class OperandSource:
    """Say how an operand of a product is read: A by rows and depth, B by columns and depth.

    depth: sizes of the depth loops; nbytes: of an element; piece: bytes that are copied at once (16,
    8, 4; 0: element by element); by_depth: how its tiles lie.
    """

    operand: ProductOperand
    depth: tuple[int, ...]
    nbytes: int
    piece: int
    by_depth: bool

    @property
    def is_padded(self) -> bool:
        """Tell whether elements are read one by one, from lines that are padded."""
        return not self.by_depth and self.nbytes == 4

    def lines(self, rows: int) -> int:
        """Return the lines of a tile of so many rows in shared memory."""
        return rows if self.by_depth else DEPTH // self.nbytes

    def chunks(self, rows: int) -> int:
        """Return the chunks of a line of such a tile."""
        return 8 if self.by_depth else rows // (CHUNK // self.nbytes)

    def pitch(self, rows: int) -> int:
        """Return the bytes from a line to the next."""
        return self.chunks(rows) * CHUNK + (32 if self.is_padded else 0)

    def tile(self, rows: int) -> int:
        """Return the shared memory of a tile of so many rows."""
        return self.lines(rows) * self.pitch(rows)


def source_of(
    product: Contraction, operand: ProductOperand, alignments: Sequence[int], nbytes: int
) -> OperandSource:
    """Return how an operand is read. alignments: of each pointer, in bytes; nbytes: of an element."""
    sizes, strides, steps = operand.rows.sizes, operand.strides, operand.steps
    batch = product.batch.strides(operand.access)

    def piece(*apart: int) -> int:
        """Return the bytes of the widest copy where starts are multiples of these numbers of elements."""
        known = alignments[operand.access.pointer]
        common = math.gcd(CHUNK, known, *(step * nbytes for step in apart))
        return common if common >= 4 else 0

    by_depth, wide = True, 0
    if steps[-1] == 1:
        wide = piece(*strides, *steps[:-1], *batch)
    elif strides[-1] == 1 and (len(sizes) == 1 or sizes[-1] % (CHUNK // nbytes) == 0):
        wide = piece(*strides[:-1], *steps, *batch)
        by_depth = not wide
    return OperandSource(operand, product.k, nbytes, wide, by_depth)


class OperandTile:
    """Write the copies of one operand's tiles, and tell where in shared memory they lie."""

    def __init__(
        self,
        frame: DeviceFrame,
        source: OperandSource,
        rows: int,
        threads: int,
        base: Value,
        first: Value,
        panels: bool = False,
        group: int = 1,
        thread: Value | None = None,
    ) -> None:
        """Prepare the copies.

        rows: of a tile. base: the operand's first element for this batch. first: number of the
        tile's first row. panels: a tile by rows lies as panels of 128 bytes of rows, one after another. group: tiles of
        depth that are copied together, the last of which may lie outside. thread: its number of those that
        copy; None: that in its block.
        """
        self.frame, self.writer, self.source, self.rows = frame, frame.writer, source, rows
        self.elements = CHUNK // source.nbytes  # of a chunk
        self.depth = DEPTH // source.nbytes
        self.together = group * self.depth
        self.lines, self.chunks = source.lines(rows), source.chunks(rows)
        self.padded = source.is_padded
        self.panel = self.lines * PANEL if panels and not source.by_depth else 0  # bytes; 0: none
        self.pitch = PANEL if self.panel else source.pitch(rows)
        self.each = threads // self.chunks  # lines that all threads together copy at once
        assert threads % self.chunks == 0 and self.lines % self.each == 0
        assert self.padded or self.each % 8 == 0, "a thread's swizzle must not change"
        self.first, self.thread = first, thread or self.writer.thread()
        self._prepare(base)

    @property
    def nbytes(self) -> int:
        """Return the shared memory of a tile."""
        return self.source.tile(self.rows)

    def swizzled(self, chunk: Value, line: Value) -> Value:
        """Return where in its line a chunk lies."""
        if self.padded:
            return chunk
        if self.chunks >= 8:
            return chunk ^ (line & 7)
        shift = {4: 1, 2: 2}[self.chunks]
        return chunk ^ ((line >> shift) & (self.chunks - 1))

    def _prepare(self, base: Value) -> None:
        """Compute what does not change from tile to tile."""
        source = self.source
        self.line, self.chunk = self.thread // self.chunks, self.thread % self.chunks
        self.place = self.line * self.pitch + self._column()
        self.base = base
        if source.by_depth:
            self.starts = self._row_starts()
        else:
            row = self.first + self.chunk * self.elements
            self.starts = [self._pointer(base, self._row_offset(row))]
            self.left = self._left(row, source.operand.rows.count)

    def _column(self) -> Value:
        """Return where in its line this thread's chunk lies, from the first panel on."""
        if not self.panel:
            return self.swizzled(self.chunk, self.line) << 4
        across = PANEL // CHUNK
        inside = (self.chunk ^ self.line) & (across - 1)
        return (self.chunk // across) * self.panel + (inside << 4)

    def _row_starts(self) -> list[Value]:
        """Return where this thread's rows begin; one for all that follow at equal steps."""
        source, row = self.source, self.first + self.line
        if len(source.operand.rows.sizes) == 1:
            return [self._pointer(self.base, self._row_offset(row))]
        issues = self.lines // self.each
        return [
            self._pointer(self.base, self._row_offset(row + k * self.each)) for k in range(issues)
        ]

    def _row_offset(self, row: Value) -> Value:
        """Return the bytes from the operand's first row to this one."""
        operand = self.source.operand
        return self._offset(row, operand.rows.sizes, operand.strides)

    def _offset(self, number: Value, sizes: Sequence[int], strides: Sequence[int]) -> Value:
        """Return the bytes to iteration `number` of loops."""
        return self.frame.bytes_to(number, sizes, strides, self.source.nbytes)

    def _pointer(self, pointer: Value, nbytes: Value | int) -> Value:
        """Return an address that may lie outside of the matrix, as long as nothing is read there."""
        writer = self.writer
        offset = nbytes if isinstance(nbytes, Value) else writer.constant(nbytes, "i64")
        return writer.let(
            f"llvm.getelementptr {pointer.name}[{offset.name}] : ({GLOBAL}, i64) -> {GLOBAL}, i8",
            GLOBAL,
        )

    def _left(self, start: Value, count: int) -> Value | None:
        """Return the bytes of the chunk at element `start` that are inside of `count`; None for all."""
        writer = self.writer
        along = self.together if self.source.by_depth else self.rows  # of a tile
        if count % self.elements == 0 and count % along == 0:
            return None
        return self._clamped(writer.constant(count) - start, self.elements) * self.source.nbytes

    def _clamped(self, number: Value, most: int) -> Value:
        """Return a number that is at least 0 and at most `most`."""
        for op, bound in (("maxsi", 0), ("minsi", most)):
            text = f"arith.{op} {number.name}, {self.writer.constant(bound).name} : i32"
            number = self.writer.let(text, "i32")
        return number

    # One tile.

    def copy(self, number: Value, target: Value) -> None:
        """Begin to copy the tile of depth `number`, into shared memory from `target` on."""
        writer, source = self.writer, self.source
        inner = source.depth[-1]
        tiles = -(-inner // self.depth)
        outer = number // tiles if len(source.depth) > 1 else None
        step = (number % tiles if outer is not None else number) * self.depth
        steps = source.operand.steps
        along = self._offset(step, (inner,), steps[-1:])
        if outer is not None:
            along = along + self._offset(outer, source.depth[:-1], steps[:-1])
        place = writer.offset(target, self.place)
        if source.by_depth:
            self._copy_rows(step, along, place)
        else:
            self._copy_steps(step, along, place)

    def _copy_rows(self, step: Value, along: Value, place: Value) -> None:
        source, operand, writer = self.source, self.source.operand, self.writer
        at = step + self.chunk * self.elements
        left = self._left(at, source.depth[-1])
        across = self.elements * operand.steps[-1] * source.nbytes
        along = along + writer.wide(self.chunk) * across
        moved = [self._pointer(start, along) for start in self.starts]
        for k in range(self.lines // self.each):
            apart = 0 if len(moved) > 1 else k * self.each * operand.strides[-1] * source.nbytes
            start = moved[k if len(moved) > 1 else 0]
            pointer = self._pointer(start, apart) if apart else start
            row = self.first + self.line + k * self.each
            inside = writer.inside(row, operand.rows.count, self.rows)
            self._chunk(writer.offset(place, k * self.each * self.pitch), pointer, left, inside)

    def _copy_steps(self, step: Value, along: Value, place: Value) -> None:
        source, writer = self.source, self.writer
        down = source.operand.steps[-1] * source.nbytes
        start = self._pointer(self.starts[0], along)
        start = self._pointer(start, writer.wide(self.line) * down)
        for k in range(self.lines // self.each):
            pointer = self._pointer(start, k * self.each * down) if k else start
            line = step + self.line + k * self.each
            inside = writer.inside(line, source.depth[-1], self.together)
            self._chunk(
                writer.offset(place, k * self.each * self.pitch), pointer, self.left, inside
            )

    def _chunk(
        self, target: Value, pointer: Value, left: Value | None, inside: Value | None
    ) -> None:
        """Copy one chunk. left: its bytes inside of the matrix; inside: whether its line is."""
        writer = self.writer
        if inside is not None:
            whole = left if left is not None else writer.constant(CHUNK)
            left = writer.select(inside, whole, writer.constant(0))
        if not self.source.piece:
            self._gather(target, pointer, left)
            return
        for start in range(0, CHUNK, self.source.piece):
            some, piece = left, self.source.piece
            if left is not None and piece < CHUNK:
                some = self._clamped(left - start, piece)
            source = self._pointer(pointer, start) if start else pointer
            writer.copy_async(writer.offset(target, start), source, piece, some)

    def _gather(self, target: Value, pointer: Value, left: Value | None) -> None:
        """Copy element by element, through registers; nothing outside is read."""
        writer, nbytes = self.writer, self.source.nbytes
        kind, values = f"i{8 * nbytes}", list[Value]()
        for k in range(self.elements):
            apart = k * self.source.operand.steps[-1] * nbytes
            source = self._pointer(pointer, apart) if k else pointer
            there = None if left is None else writer.compare("sgt", left, k * nbytes)
            values += writer.guarded(there, partial(self._one, source), [kind])
        writer.store(writer.vector(values), target, CHUNK)

    def _one(self, source: Value) -> list[Value]:
        """Load one element, as bits."""
        nbytes = self.source.nbytes
        return [self.writer.load(source, f"i{8 * nbytes}", nbytes)]
