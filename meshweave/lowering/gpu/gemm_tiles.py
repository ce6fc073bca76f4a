"""Tiles of the operands of a product: from global to shared memory, a few steps ahead of their use.

A tile holds `rows` rows of C (or columns) and 128 bytes of depth. Memory is read in chunks of 16
bytes along whichever of the two has step 1, so a tile lies in shared memory

    by depth: a row of the tile after another, each 8 chunks of depth
    by rows:  a step of depth after another, each the chunks of all rows

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

from meshweave.lowering.bind import Access
from meshweave.lowering.gpu.builder import GLOBAL, SHARED, Builder, Value
from meshweave.lowering.gpu.products import Loops, Product

CHUNK = 16  # bytes
DEPTH = 128  # bytes of depth in a tile


@dataclass(frozen=True)
class Source:
    """An operand of a product in memory: `rows` (of A, or columns of B) and depth.

    strides: of the rows' loops; depth, steps: sizes and strides of the depth loops; piece: bytes
    that are copied at once (16, 8, 4; 0: element by element); by_depth: how its tiles lie.
    """

    pointer: int
    const: int
    rows: Loops
    strides: tuple[int, ...]
    depth: tuple[int, ...]
    steps: tuple[int, ...]
    nbytes: int
    piece: int
    by_depth: bool


def source_of(product: Product, which: str, alignments: Sequence[int], nbytes: int) -> Source:
    """How operand "a" or "b" is read. alignments: of each pointer, in bytes; nbytes: of an element."""
    first = which == "a"
    access = product.a if first else product.b
    rows, steps = (
        (product.m if first else product.n),
        (product.a_depth if first else product.b_depth),
    )
    strides = rows.strides(access)
    by_depth, piece = _reading(product, access, rows, steps, alignments, nbytes)
    return Source(
        access.pointer, access.const, rows, strides, product.k, steps, nbytes, piece, by_depth
    )


def _reading(
    product: Product,
    access: Access,
    rows: Loops,
    steps: tuple[int, ...],
    alignments: Sequence[int],
    nbytes: int,
) -> tuple[bool, int]:
    """Whether tiles lie by depth, and the bytes that may be copied at once."""
    strides, per = rows.strides(access), CHUNK // nbytes
    batch = product.batch.strides(access)
    known = math.gcd(alignments[access.pointer], access.const * nbytes)
    if steps[-1] == 1:
        apart = (*strides, *steps[:-1], *batch)
        return True, _piece([known, *(s * nbytes for s in apart)])
    whole = len(rows.sizes) == 1 or rows.sizes[-1] % per == 0
    if strides[-1] == 1 and whole:
        apart = (*strides[:-1], *steps, *batch)
        piece = _piece([known, *(s * nbytes for s in apart)])
        return (False, piece) if piece else (True, 0)
    return True, 0


def _piece(distances: Sequence[int]) -> int:
    """Bytes of the widest copy for starts at multiples of these distances."""
    common = math.gcd(CHUNK, *distances)
    return common if common >= 4 else 0


class Tile:
    """Writes the copies of one operand's tiles, and tells where in shared memory they lie."""

    def __init__(
        self, builder: Builder, source: Source, rows: int, threads: int, base: Value, first: Value
    ) -> None:
        """rows: of a tile. base: the operand's first element for this batch. first: number of the
        tile's first row.
        """
        self.builder, self.source, self.rows, self.threads = builder, source, rows, threads
        self.elements = CHUNK // source.nbytes  # of a chunk
        self.depth = DEPTH // source.nbytes
        self.lines = rows if source.by_depth else self.depth
        self.chunks = 8 if source.by_depth else rows // self.elements
        self.padded = not source.by_depth and source.nbytes == 4
        self.pitch = self.chunks * CHUNK + (32 if self.padded else 0)
        self.each = threads // self.chunks  # lines that all threads together copy at once
        assert threads % self.chunks == 0 and self.lines % self.each == 0
        assert self.padded or self.each % 8 == 0, "a thread's swizzle must not change"
        self.first = first
        self._prepare(base)

    @property
    def nbytes(self) -> int:
        """Shared memory of a tile."""
        return self.lines * self.pitch

    def swizzled(self, chunk: Value, line: Value) -> Value:
        """Where in its line a chunk lies."""
        if self.padded:
            return chunk
        if self.chunks >= 8:
            return chunk ^ (line & 7)
        shift = {4: 1, 2: 2}[self.chunks]
        return chunk ^ ((line >> shift) & (self.chunks - 1))

    def _prepare(self, base: Value) -> None:
        """What does not change from tile to tile."""
        builder, source = self.builder, self.source
        thread = builder.thread()
        self.line, self.chunk = thread // self.chunks, thread % self.chunks
        place = self.swizzled(self.chunk, self.line) << 4
        self.place = self.line * self.pitch + place
        self.base = base
        if source.by_depth:
            self.starts = self._row_starts()
        else:
            row = self.first + self.chunk * self.elements
            self.starts = [self._pointer(base, self._row_offset(row))]
            self.left = self._left(row, source.rows.count)

    def _row_starts(self) -> list[Value]:
        """Where this thread's rows begin; one for all that follow at equal steps."""
        source, row = self.source, self.first + self.line
        if len(source.rows.sizes) == 1:
            return [self._pointer(self.base, self._row_offset(row))]
        issues = self.lines // self.each
        return [
            self._pointer(self.base, self._row_offset(row + k * self.each)) for k in range(issues)
        ]

    def _row_offset(self, row: Value) -> Value:
        """Bytes from the operand's first row to this one."""
        return self._offset(row, self.source.rows.sizes, self.source.strides)

    def _offset(self, number: Value, sizes: Sequence[int], strides: Sequence[int]) -> Value:
        """Bytes to iteration `number` of loops."""
        builder, nbytes = self.builder, self.source.nbytes
        total = builder.constant(0, "i64")
        for k in reversed(range(len(sizes))):
            digit = number if k == 0 else number % sizes[k]
            number = number if k == 0 else number // sizes[k]
            total = builder.wide(digit) * (strides[k] * nbytes) + total
        return total

    def _pointer(self, pointer: Value, nbytes: Value | int) -> Value:
        """An address that may lie outside of the matrix, as long as nothing is read there."""
        builder = self.builder
        offset = nbytes if isinstance(nbytes, Value) else builder.constant(nbytes, "i64")
        return builder.let(
            f"llvm.getelementptr {pointer.name}[{offset.name}] : ({GLOBAL}, i64) -> {GLOBAL}, i8",
            GLOBAL,
        )

    def _left(self, start: Value, count: int) -> Value | None:
        """Bytes of the chunk at element `start` that are inside of `count`; None: all."""
        builder = self.builder
        if count % self.elements == 0 and self._whole(count):
            return None
        left = builder.constant(count) - start
        for op, bound in (("maxsi", 0), ("minsi", self.elements)):
            text = f"arith.{op} {left.name}, {builder.constant(bound).name} : i32"
            left = builder.let(text, "i32")
        return left * self.source.nbytes

    def _whole(self, count: int) -> bool:
        """Whether tiles cover `count` without rest, along chunks."""
        return count % (self.depth if self.source.by_depth else self.rows) == 0

    # One tile.

    def copy(self, number: Value, target: Value) -> None:
        """Begin to copy the tile of depth `number`, into shared memory from `target` on."""
        builder, source = self.builder, self.source
        inner = source.depth[-1]
        tiles = -(-inner // self.depth)
        outer = number // tiles if len(source.depth) > 1 else None
        step = (number % tiles if outer is not None else number) * self.depth
        along = self._offset(step, (inner,), source.steps[-1:])
        if outer is not None:
            along = along + self._offset(outer, source.depth[:-1], source.steps[:-1])
        place = builder.offset(target, self.place)
        if source.by_depth:
            self._copy_rows(step, along, place)
        else:
            self._copy_steps(step, along, place)

    def _copy_rows(self, step: Value, along: Value, place: Value) -> None:
        source, builder = self.source, self.builder
        at = step + self.chunk * self.elements
        left = self._left(at, source.depth[-1])
        ragged = source.rows.count % self.rows != 0
        along = along + builder.wide(self.chunk) * (
            self.elements * source.steps[-1] * source.nbytes
        )
        moved = [self._pointer(start, along) for start in self.starts]
        for k in range(self.lines // self.each):
            apart = 0 if len(moved) > 1 else k * self.each * source.strides[-1] * source.nbytes
            start = moved[k if len(moved) > 1 else 0]
            pointer = self._pointer(start, apart) if apart else start
            row = self.first + self.line + k * self.each
            inside = builder.compare("ult", row, source.rows.count) if ragged else None
            self._chunk(builder.offset(place, k * self.each * self.pitch), pointer, left, inside)

    def _copy_steps(self, step: Value, along: Value, place: Value) -> None:
        source, builder = self.source, self.builder
        down = source.steps[-1] * source.nbytes
        start = self._pointer(self.starts[0], along)
        start = self._pointer(start, builder.wide(self.line) * down)
        ragged = source.depth[-1] % self.depth != 0
        for k in range(self.lines // self.each):
            pointer = self._pointer(start, k * self.each * down) if k else start
            line = step + self.line + k * self.each
            inside = builder.compare("ult", line, source.depth[-1]) if ragged else None
            self._chunk(
                builder.offset(place, k * self.each * self.pitch), pointer, self.left, inside
            )

    def _chunk(
        self, target: Value, pointer: Value, left: Value | None, inside: Value | None
    ) -> None:
        """One chunk. left: its bytes inside of the matrix; inside: whether its line is."""
        builder = self.builder
        if inside is not None:
            whole = left if left is not None else builder.constant(CHUNK)
            left = builder.select(inside, whole, builder.constant(0))
        if not self.source.piece:
            self._gather(target, pointer, left)
            return
        for start in range(0, CHUNK, self.source.piece):
            some = None if left is None else self._part(left, start)
            source = self._pointer(pointer, start) if start else pointer
            copy_async(builder, builder.offset(target, start), source, self.source.piece, some)

    def _part(self, left: Value, start: int) -> Value:
        """Bytes of the piece at `start` that are inside."""
        builder, piece = self.builder, self.source.piece
        if piece == CHUNK:
            return left
        part = left - start
        for op, bound in (("maxsi", 0), ("minsi", piece)):
            text = f"arith.{op} {part.name}, {builder.constant(bound).name} : i32"
            part = builder.let(text, "i32")
        return part

    def _gather(self, target: Value, pointer: Value, left: Value | None) -> None:
        """Element by element, through registers; what is outside is read nowhere."""
        builder, nbytes = self.builder, self.source.nbytes
        kind = f"i{8 * nbytes}"
        zero, values = builder.constant(0, kind), []
        for k in range(self.elements):
            source = self._pointer(pointer, k * self.source.steps[-1] * nbytes) if k else pointer
            if left is None:
                values += self._one(source)
                continue
            there = builder.compare("sgt", left, k * nbytes)
            values += builder.if_(there, partial(self._one, source), lambda: [zero], [kind])
        builder.store(builder.vector(values), target, CHUNK)

    def _one(self, source: Value) -> list[Value]:
        """One element, as bits."""
        nbytes = self.source.nbytes
        return [self.builder.load(source, f"i{8 * nbytes}", nbytes)]


def copy_async(
    builder: Builder, target: Value, source: Value, nbytes: int, some: Value | None
) -> None:
    """Begin to copy `nbytes` (4, 8, 16) to shared memory, of which `some` are read, the rest zero."""
    cache = "cg" if nbytes == CHUNK else "ca"
    tail, kinds = (f", {some.name}", ", i32") if some is not None else ("", "")
    builder.add(
        f"nvvm.cp.async.shared.global {target.name}, {source.name}, {nbytes}, cache = {cache}{tail}"
        f" : {SHARED}, {GLOBAL}{kinds}"
    )
