"""Write the kernel of an attention: tiles of keys run past a tile of queries, whose weights never leave registers.

    for each tile of 64 keys:  S = Q K^T;  m' = max(m, S);  P = exp(S - m');  O = O exp(m - m') + P V;  l likewise

A block of 4 warps makes the rows of a tile of queries. Q stays in registers, K and V come through two stages of shared
memory: while one is multiplied the next is under way. Scores and sums are f32; P is rounded as it becomes an operand of
the second product. Tiles that a mask leaves nothing of are never read, and only those that it goes through are masked.

Of few queries each warp has all, and 16 keys of every tile; blocks share the keys. What each warp has seen goes to
scratch memory, and a second kernel (`join.py`) puts the parts together, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.masks import KEYS, TileMasks
from meshweave.lowering.gpu.families.flash.nest import AttentionNest
from meshweave.lowering.gpu.families.gemm.fragments import STEP, Fragments
from meshweave.lowering.gpu.families.gemm.kernel import ProductKernel
from meshweave.lowering.gpu.families.gemm.tiles import DEPTH, OperandTile, source_of
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.nodes import DeviceIteration
from meshweave.lowering.gpu.writer import Guard, both
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

THREADS = 128
WARPS = THREADS // 32
STAGES = 2
NBYTES = 2  # of an element of Q, K, V
WIDE = 64  # columns above which a warp has room for 16 rows only
HALF = 128  # columns of a tile of V, at most; elements of depth that a thread has room for as fragments of Q
_WIDTHS = (16, 32, 64, HALF, 2 * HALF)  # of the columns, a tile or two of V
LOG2E = math.log2(math.e)


class _RunningSums(NamedTuple):
    """Hold what goes from tile to tile: the sums O; the maximum and the sum of weights of each of this lane's rows."""

    sums: list[Value]
    most: list[Value]
    total: list[Value]

    def flat(self) -> list[Value]:
        return [*self.sums, *self.most, *self.total]


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


class FlashKernel(ProductKernel):
    """Write the kernel of an attention."""

    def __init__(
        self, unit: KernelUnit, attention: AttentionNest, facts: Facts, pieces: int = 0
    ) -> None:
        """pieces: of the keys, a block for each, for few queries; 0: all keys for a tile of queries."""
        columns = attention.values.n.count
        self.width = next(width for width in _WIDTHS if width >= columns)
        self.inner = attention.scores.depth
        wide = max(self.width, self.inner) > WIDE
        self.warp_rows = 16 if wide or pieces else 32
        self.warp_keys = KEYS // WARPS if pieces else KEYS
        rows = self.warp_rows * (1 if pieces else WARPS)
        super().__init__("flash", unit, attention.values, facts, THREADS, (rows, self.width))
        self.attention, self.tile_rows, self.pieces = attention, rows, pieces
        writer = self.writer
        thread = writer.thread()
        self.lane, self.warp, zero = thread & 31, thread >> 5, writer.constant(0)
        self.first_row = zero if pieces else self.warp * self.warp_rows
        self.first_key = self.warp * self.warp_keys if pieces else zero
        self.lanes = Fragments(writer, self.lane, attention.values.dtype)
        self.piece = zero
        if pieces:
            block = writer.block()
            self.piece, self.batch = block % pieces, block // pieces
            number = zero
        else:
            number = self.tile_number()
        if any(upper for upper, _, _ in attention.bounds):  # the longest first
            number = writer.constant(self.grid_m - 1) - number
        self.first_m = number * rows
        self.masks = TileMasks(writer, attention.bounds, attention.keys, self.first_m, rows)
        products = attention.scores, attention.values
        self.q, self.k = (
            source_of(products[0], each, facts.alignments, NBYTES)
            for each in (products[0].a, products[0].b)
        )
        self.v = source_of(products[1], products[1].b, facts.alignments, NBYTES)
        self.bases = [self.base(source.operand, NBYTES) for source in (self.q, self.k, self.v)]
        self.panels = -(-self.inner // KEYS)
        self.q_tile = self._tile(0, rows, self.first_m)
        half = min(self.width, HALF)
        self.v_tiles = [
            self._tile(2, half, writer.constant(start)) for start in range(0, self.width, half)
        ]
        self.k_bytes = KEYS * DEPTH  # of a panel of K
        self.stages = self.panels * self.q_tile.nbytes  # where they begin
        self.stage = self.panels * self.k_bytes + sum(tile.nbytes for tile in self.v_tiles)
        self.pitch = self.width * 4 + 32  # of a row of sums; 32: the next rows lie in other banks
        self.shared_bytes = max(self.stages + STAGES * self.stage, rows * self.pitch)
        self.pairs = self.warp_rows // 8  # rows of each lane

    def _tile(self, which: int, rows: int, first: Value) -> OperandTile:
        source = (self.q, self.k, self.v)[which]
        return OperandTile(self.frame, source, rows, THREADS, self.bases[which], first)

    def write(self) -> None:
        """Write the whole kernel."""
        writer, rows = self.writer, self.warp_rows
        first, last = self._limits()
        for panel in range(self.panels):
            place = writer.shared(panel * self.q_tile.nbytes)
            self.q_tile.copy(writer.constant(panel), place)
        writer.commit_copies()
        certain = not self.attention.bounds and not self.pieces
        there = None if certain else writer.compare("slt", first, last)
        writer.where(there, lambda: self._copy(first, writer.constant(0)))
        writer.commit_copies()
        writer.wait_copies(1)
        writer.barrier()
        held_queries = self.inner <= HALF
        steps = range(-(-self.inner * NBYTES // STEP))
        queries = [self._queries(step) if held_queries else None for step in steps]
        zero, low = writer.constant(0.0, "f32"), writer.constant(-math.inf, "f32")
        begin = _RunningSums(
            [zero] * (rows // 16 * self.width // 8 * 4), [low] * self.pairs, [zero] * self.pairs
        )

        def step(number: Value, held: list[Value]) -> list[Value]:
            return self._step(number, first, last, queries, self._carried(held)).flat()

        held = self._carried(writer.for_(first, last, 1, begin.flat(), step))
        if self.pieces:
            self._store_part(held)
            return
        sums = self._finished(held)
        writer.barrier()
        self._keep(sums)
        writer.barrier()
        self._store()

    def _carried(self, held: Sequence[Value]) -> _RunningSums:
        count = len(held) - 2 * self.pairs
        return _RunningSums(
            list(held[:count]), list(held[count : count + self.pairs]), list(held[count + self.pairs :])
        )  # fmt: skip

    def _limits(self) -> tuple[Value, Value]:
        """Return the first tile of keys of this block, and the one behind the last."""
        writer = self.writer
        first, last = self.masks.limits()
        if self.pieces:
            tiles = -(-self.attention.keys // KEYS)
            each = -(-tiles // self.pieces)
            first = writer.most(first, self.piece * each)
            last = writer.least(last, (self.piece + 1) * each)
        return first, last

    # One tile of keys.

    def _copy(self, number: Value, stage: Value) -> None:
        """Begin to copy a tile of K and of V into a stage."""
        writer = self.writer
        place = writer.offset(writer.shared(self.stages), stage * self.stage)
        tile = self._tile(1, KEYS, number * KEYS)
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
        return self.lanes.rows(self.q_tile, place, self.first_row, self.warp_rows, rest)

    def _step(
        self, number: Value, first: Value, last: Value, queries: Sequence[list[list[Value]] | None],
        held: _RunningSums,
    ) -> _RunningSums:  # fmt: skip
        writer = self.writer
        writer.wait_copies(0)
        writer.barrier()
        at, later = number - first, number + 1
        more = writer.compare("slt", later, last)
        writer.if_(more, lambda: self._copy(later, (at + 1) & 1))
        writer.commit_copies()
        place = writer.offset(writer.shared(self.stages), (at & 1) * self.stage)
        scores = self._scores(number, place, queries)
        weights, held = self._softmax(scores, held)
        return held._replace(sums=self._weighted(weights, place, held.sums))

    def _scores(
        self, number: Value, place: Value, queries: Sequence[list[list[Value]] | None]
    ) -> list[Value]:
        """Return this lane's scores of a tile of keys: 4 for each 16 rows and 8 keys."""
        writer = self.writer
        tile = self._tile(1, KEYS, writer.constant(0))
        sums = [writer.constant(0.0, "f32")] * (self.warp_rows // 16 * self.warp_keys // 8 * 4)
        for step, known in enumerate(queries):
            rows = self._queries(step) if known is None else known
            panel, rest = divmod(step, DEPTH // STEP)
            from_ = writer.offset(place, panel * self.k_bytes)
            columns = self.lanes.columns(tile, from_, self.first_key, self.warp_keys, rest)
            sums = self.lanes.multiply(rows, columns, sums)
        cut, attention = self.masks.cut(number), self.attention
        if cut is None:
            return self._made(number, sums, attention.score, masked=False)
        return writer.if_(
            cut,
            lambda: self._made(number, sums, attention.score, masked=True),
            lambda: self._made(number, sums, attention.inside, masked=False),
            ["f32"] * len(sums),
        )

    def _made(self, number: Value, sums: Sequence[Value], node: int, masked: bool) -> list[Value]:
        """Return what is made of sums: `node`, and -inf where there is no key."""
        attention, writer = self.attention, self.writer
        if node == attention.scaled and not (masked and attention.keys % KEYS):
            return list(sums)
        row = self.first_m + self.first_row + (self.lane >> 2)
        key = number * KEYS + self.first_key + ((self.lane & 3) << 1)
        low = writer.constant(-math.inf, "f32")
        found = []
        for k, value in enumerate(sums):
            tile, part = divmod(k, 4)
            down, across = divmod(tile, self.warp_keys // 8)
            at = key + (across * 8 + part % 2)
            there = None
            if masked and attention.keys % KEYS:
                there = writer.compare("slt", at, attention.keys)
            if node != attention.scaled:
                value = self._score(node, value, row + (down * 16 + part // 2 * 8), at, there)
            found.append(value if there is None else writer.select(there, value, low))
        return found

    def _score(self, node: int, value: Value, row: Value, key: Value, there: Guard) -> Value:
        attention, writer = self.attention, self.writer
        product = attention.values
        index: list[Value | None] = [None] * len(attention.nest.sizes)
        groups = ((product.batch, self.batch), (product.m, row), (attention.scores.n, key))
        for loops, number in groups:
            for dim, digit in zip(loops.dims, self.frame.digits(writer.wide(number), loops.sizes)):
                index[dim] = digit
        guard = both(there, writer.inside(row, product.m.count, self.tile_rows))
        here = DeviceIteration(self.frame, attention.nest, index, {attention.scaled: value}, guard)
        (made,) = here.compute([node])
        return made

    def _softmax(self, scores: list[Value], held: _RunningSums) -> tuple[list[Value], _RunningSums]:
        """Return the weights of a tile's scores, and what is carried on but for the products."""
        writer = self.writer
        by = writer.constant(self.attention.factor * LOG2E, "f32")
        low, zero = writer.constant(-math.inf, "f32"), writer.constant(0.0, "f32")
        weights, sums = list(scores), list(held.sums)
        most, total = list(held.most), list(held.total)
        for pair in range(self.pairs):
            here = self._of_row(pair, self.warp_keys)
            new = most[pair]
            for k in here:
                new = writer.larger(new, scores[k])
            for distance in (1, 2):
                new = writer.larger(new, writer.shuffle_xor(new, distance))
            none = writer.compare("oeq", new, low)
            taken = writer.select(none, zero, writer.negative(new * by))
            shrink = writer.exp2(writer.fma(most[pair], by, taken))
            added = total[pair] * shrink
            for k in here:
                weights[k] = writer.exp2(writer.fma(scores[k], by, taken))
                added = added + weights[k]
            most[pair], total[pair] = new, added
            for k in self._of_row(pair, self.width):
                sums[k] = sums[k] * shrink
        return weights, _RunningSums(sums, most, total)

    def _of_row(self, pair: int, columns: int) -> list[int]:
        """Return which of a lane's numbers lie in its row number `pair`, of tiles with so many columns."""
        down, half = divmod(pair, 2)
        tiles = columns // 8
        return [(down * tiles + n) * 4 + 2 * half + e for n in range(tiles) for e in (0, 1)]

    def _weighted(self, weights: Sequence[Value], place: Value, sums: list[Value]) -> list[Value]:
        """Add the products of weights and rows of V."""
        lanes, tiles = self.lanes, self.warp_keys // 8
        for step in range(self.warp_keys * NBYTES // STEP):
            rows = []
            for down in range(self.warp_rows // 16):
                at = (down * tiles + 2 * step) * 4
                parts = [weights[at + 2 * n : at + 2 * n + 2] for n in range(4)]
                rows.append([lanes.packed(*part) for part in parts])
            depth = self.warp if self.pieces else step  # with pieces a warp has one step
            found: list[Value] = []
            for tile, where in self._values(place):
                columns = lanes.columns(tile, where, self.writer.constant(0), tile.rows, depth)
                some = sums[len(found) :][: len(sums) // len(self.v_tiles)]
                found += lanes.multiply(rows, columns, some)
            sums = found
        return sums

    # Results.

    def _finished(self, held: _RunningSums) -> list[Value]:
        """Return the sums divided by the sums of their weights."""
        writer, sums = self.writer, list(held.sums)
        one, zero = writer.constant(1.0, "f32"), writer.constant(0.0, "f32")
        for pair, total in enumerate(held.total):
            for distance in (1, 2):
                total = total + writer.shuffle_xor(total, distance)
            inverse = one / total
            if self.attention.zeros:
                inverse = writer.select(writer.compare("oeq", total, zero), zero, inverse)
            for k in self._of_row(pair, self.width):
                sums[k] = sums[k] * inverse
        return sums

    def _keep(self, sums: Sequence[Value]) -> None:
        """Put the sums of this thread into shared memory, row by row."""
        row, column = self.first_row + (self.lane >> 2), (self.lane & 3) << 1
        self.keep_sums(sums, row, column, self.pitch, self.width // 8)

    def _store(self) -> None:
        """Finish the sums and store them."""
        self.store_sums(THREADS, self.pitch, (self.tile_rows, self.width), self.first_m)

    def _store_part(self, held: _RunningSums) -> None:
        """Store what this warp has seen of its keys: sums, largest scores and sums of weights, of each row."""
        writer, product = self.writer, self.attention.values
        parts = PartLayout.of(self.attention, self.pieces)
        column, scratch = (self.lane & 3) << 1, self.frame.pointers[-1]
        for pair in range(self.pairs):
            row = (self.lane >> 2) + pair * 8
            total = held.total[pair]
            for distance in (1, 2):
                total = total + writer.shuffle_xor(total, distance)
            number = (writer.wide(self.batch) * product.m.count + writer.wide(row)) * parts.each
            number = number + writer.wide(self.piece * WARPS + self.warp)
            sums = [held.sums[k] for k in self._of_row(pair, self.width)]
            store = partial(self._store_row, number, column, sums, [held.most[pair], total])
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
        if not self.pieces:
            return self.finished(DETERMINISTIC)
        blocks = self.attention.values.batch.count * self.pieces
        return DeviceKernel.of(self.writer, blocks, "flash", DETERMINISTIC, self.shared_bytes)
