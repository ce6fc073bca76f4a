"""Write the kernel of an attention: tiles of keys run past a tile of queries, whose weights never leave registers.

    for each tile of 64 keys:  S = Q K^T;  m' = max(m, S);  P = exp(S - m');  O = O exp(m - m') + P V;  l likewise

A block of 4 warps makes the rows of a tile of queries. Q stays in registers, K and V come through two stages of shared
memory: while one is multiplied the next is under way. Scores and sums are f32; P is rounded as it becomes an operand of
the second product. Tiles that a mask leaves nothing of are never read, and only those that it goes through are masked.

Of few queries each warp has all, and 16 keys of every tile; blocks share the keys. What each warp has seen goes to
scratch memory, and a second kernel (`join.py`) puts the parts together, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.attention import (
    NBYTES,
    AttentionKernel,
    AttentionTiles,
    Seen,
)
from meshweave.lowering.gpu.families.flash.masks import KEYS
from meshweave.lowering.gpu.families.flash.nest import AttentionNest
from meshweave.lowering.gpu.families.gemm.fragments import STEP
from meshweave.lowering.gpu.families.gemm.tiles import DEPTH, OperandTile
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

THREADS = 128
WARPS = THREADS // 32
STAGES = 2
WIDE = 64  # columns above which a warp has room for 16 rows only
HALF = 128  # columns of a tile of V, at most; elements of depth that a thread has room for as fragments of Q
_WIDTHS = (16, 32, 64, HALF, 2 * HALF)  # of the columns, a tile or two of V


class PartLayout(NamedTuple):
    """Say how parts of an attention lie in scratch memory: all sums, then the largest score and sum of weights of each.

    each: parts of a row; width: columns of a part; sums: bytes of all sums; nbytes: of everything.
    """

    each: int
    width: int
    sums: int
    nbytes: int

    @staticmethod
    def of(attention: AttentionNest, pieces: int) -> PartLayout:
        """Return the layout of parts of so many pieces, one for each warp."""
        values = attention.values
        width = next(width for width in _WIDTHS if width >= values.n.count)
        parts = values.batch.count * values.m.count * pieces * WARPS
        return PartLayout(pieces * WARPS, width, parts * width * 4, parts * (width * 4 + 8))


class FlashKernel(AttentionKernel):
    """Write the kernel of an attention."""

    def __init__(
        self, unit: KernelUnit, attention: AttentionNest, facts: Facts, pieces: int = 0
    ) -> None:
        """pieces: see `AttentionTiles`."""
        columns = attention.values.n.count
        width = next(width for width in _WIDTHS if width >= columns)
        self.inner = attention.scores.depth
        wide = max(width, self.inner) > WIDE
        warp_rows = 16 if wide or pieces else 32
        rows = warp_rows * (1 if pieces else WARPS)
        warp_keys = KEYS // WARPS if pieces else KEYS
        tiles = AttentionTiles(THREADS, width, rows, KEYS, warp_rows, warp_keys, pieces)
        super().__init__(unit, attention, facts, tiles)
        zero = self.writer.constant(0)
        self.first_row = zero if pieces else self.warp * warp_rows
        self.first_key = self.warp * warp_keys if pieces else zero
        self.panels = -(-self.inner // KEYS)
        self.q_tile = self.tile_of(0, rows, self.first_m)
        half = min(width, HALF)
        self.v_tiles = [self.tile_of(2, half, start) for start in range(0, width, half)]
        self.k_bytes = KEYS * DEPTH  # of a panel of K
        self.stages = self.panels * self.q_tile.nbytes  # where they begin
        self.stage = self.panels * self.k_bytes + sum(tile.nbytes for tile in self.v_tiles)
        self.shared_bytes = max(self.stages + STAGES * self.stage, rows * self.pitch)

    def write(self) -> None:
        """Write the whole kernel."""
        writer = self.writer
        first, last = self._limits()
        for panel in range(self.panels):
            place = writer.shared(panel * self.q_tile.nbytes)
            self.q_tile.copy(writer.constant(panel), place)
        writer.commit_copies()
        certain = not self.attention.bounds and not self.tiles.pieces
        there = None if certain else writer.compare("slt", first, last)
        writer.where(there, lambda: self._copy(first, writer.constant(0)))
        writer.commit_copies()
        writer.wait_copies(1)
        writer.barrier()
        held_queries = self.inner <= HALF
        steps = range(-(-self.inner * NBYTES // STEP))
        queries = [self._queries(step) if held_queries else None for step in steps]

        def step(number: Value, held: list[Value]) -> list[Value]:
            return self._step(number, first, last, queries, held)

        sums, seen = self.parted(writer.for_(first, last, 1, self.begun(), step))
        if self.tiles.pieces:
            self._store_part(sums, seen)
        else:
            self.store(self.divided(sums, seen))

    def _limits(self) -> tuple[Value, Value]:
        """Return the first tile of keys of this block, and the one behind the last."""
        writer = self.writer
        first, last = self.masks.limits()
        if self.tiles.pieces:
            tiles = -(-self.attention.keys // KEYS)
            each = -(-tiles // self.tiles.pieces)
            first = writer.most(first, self.piece * each)
            last = writer.least(last, (self.piece + 1) * each)
        return first, last

    # One tile of keys.

    def _copy(self, number: Value, stage: Value) -> None:
        """Begin to copy a tile of K and of V into a stage."""
        writer = self.writer
        place = writer.offset(writer.shared(self.stages), stage * self.stage)
        tile = self.tile_of(1, KEYS, number * KEYS)
        for panel in range(self.panels):
            tile.copy(writer.constant(panel), writer.offset(place, panel * self.k_bytes))
        for tile, at in self._values(place):
            tile.copy(number, at)

    def _values(self, stage: Value) -> list[tuple[OperandTile, Value]]:
        """Return the tiles of V of a stage, and where each lies."""
        first, tiles = self.panels * self.k_bytes, self.v_tiles
        return [
            (tile, self.writer.offset(stage, first + k * tile.nbytes))
            for k, tile in enumerate(tiles)
        ]

    def _queries(self, step: int) -> list[list[Value]]:
        """Return the fragments of Q for a step of depth."""
        panel, rest = divmod(step, DEPTH // STEP)
        place = self.writer.shared(panel * self.q_tile.nbytes)
        return self.lanes.rows(self.q_tile, place, self.first_row, self.tiles.warp_rows, rest)

    def _step(
        self, number: Value, first: Value, last: Value, queries: Sequence[list[list[Value]] | None],
        held: Sequence[Value],
    ) -> list[Value]:  # fmt: skip
        writer = self.writer
        writer.wait_copies(0)
        writer.barrier()
        at, later = number - first, number + 1
        more = writer.compare("slt", later, last)
        writer.if_(more, lambda: self._copy(later, (at + 1) & 1))
        writer.commit_copies()
        place = writer.offset(writer.shared(self.stages), (at & 1) * self.stage)
        sums, seen = self.parted(held)
        weights, seen, shrinks = self.softmax(self._scores(number, place, queries), seen)
        sums = self._weighted(weights, place, self.shrunk(sums, shrinks))
        return [*sums, *seen.most, *seen.total]

    def _scores(
        self, number: Value, place: Value, queries: Sequence[list[list[Value]] | None]
    ) -> list[Value]:
        """Return this lane's scores of a tile of keys: 4 for each 16 rows and 8 keys."""
        writer = self.writer
        tile = self.tile_of(1, KEYS, 0)
        sums = [writer.constant(0.0, "f32")] * (
            self.tiles.warp_rows // 16 * self.tiles.warp_keys // 8 * 4
        )
        for step, known in enumerate(queries):
            rows = self._queries(step) if known is None else known
            panel, rest = divmod(step, DEPTH // STEP)
            from_ = writer.offset(place, panel * self.k_bytes)
            columns = self.lanes.columns(tile, from_, self.first_key, self.tiles.warp_keys, rest)
            sums = self.lanes.multiply(rows, columns, sums)
        return self.masked(number, sums)

    def _weighted(self, weights: Sequence[Value], place: Value, sums: list[Value]) -> list[Value]:
        """Add the products of weights and rows of V."""
        lanes, tiles = self.lanes, self.tiles.warp_keys // 8
        for step in range(self.tiles.warp_keys * NBYTES // STEP):
            rows = []
            for down in range(self.tiles.warp_rows // 16):
                at = (down * tiles + 2 * step) * 4
                parts = [weights[at + 2 * n : at + 2 * n + 2] for n in range(4)]
                rows.append([lanes.packed(*part) for part in parts])
            depth = self.warp if self.tiles.pieces else step  # with pieces a warp has one step
            found: list[Value] = []
            for tile, where in self._values(place):
                columns = lanes.columns(tile, where, self.writer.constant(0), tile.rows, depth)
                some = sums[len(found) :][: len(sums) // len(self.v_tiles)]
                found += lanes.multiply(rows, columns, some)
            sums = found
        return sums

    # Results.

    def _store_part(self, sums: Sequence[Value], seen: Seen) -> None:
        """Store what this warp has seen of its keys: sums, largest scores and sums of weights, of each row."""
        writer, product = self.writer, self.attention.values
        parts = PartLayout.of(self.attention, self.tiles.pieces)
        column, scratch = (self.lane & 3) << 1, self.frame.pointers[-1]
        for pair in range(self.pairs):
            row = (self.lane >> 2) + pair * 8
            total = seen.total[pair]
            for distance in (1, 2):
                total = total + writer.shuffle_xor(total, distance)
            number = (writer.wide(self.batch) * product.m.count + writer.wide(row)) * parts.each
            number = number + writer.wide(self.piece * WARPS + self.warp)
            row_sums = [sums[k] for k in self.of_row(pair, self.tiles.columns)]
            store = partial(self._store_row, number, column, row_sums, [seen.most[pair], total])
            writer.where(
                writer.compare("slt", row, product.m.count), partial(store, parts, scratch)
            )

    def _store_row(
        self, number: Value, column: Value, sums: Sequence[Value], weights: Sequence[Value],
        parts: PartLayout, scratch: Value,
    ) -> None:  # fmt: skip
        """Store what a lane has of a row of part `number`. weights: the largest score, and the sum of weights."""
        writer = self.writer
        place = writer.offset(scratch, number * (parts.width * 4))
        place = writer.offset(place, column * 4)
        for k in range(0, len(sums), 2):
            writer.store(writer.vector(sums[k : k + 2]), writer.offset(place, k // 2 * 32), 8)
        beside = writer.offset(writer.offset(scratch, parts.sums), number * 8)
        writer.if_(
            writer.compare("eq", column, 0),
            lambda: writer.store(writer.vector(weights), beside, 8),
        )

    def kernel(self) -> DeviceKernel:
        """Write the kernel, and return it."""
        self.write()
        if not self.tiles.pieces:
            return self.finished(DETERMINISTIC)
        blocks = self.attention.values.batch.count * self.tiles.pieces
        return DeviceKernel.of(self.writer, blocks, "flash", DETERMINISTIC, self.shared_bytes)
