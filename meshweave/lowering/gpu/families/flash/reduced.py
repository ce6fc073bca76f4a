"""Write the kernel of sums of what is made of scores: tiles of turns run past a tile of rows, as in `kernel.py`.

    for each tile of 64 turns:  S = X Y^T for each product;  W = f(S);  O = O + W Z, or a row's sum or maximum of W

The gradient of a query is such a sum over the keys, those of keys and values are sums over the queries: each block
makes rows of one gradient, alone and in order, so nothing is added up by blocks that race. X stays in shared memory, Y
and Z come through two stages; where Z is what a Y is, it comes once. What f needs of a turn alone, such as the sum of
its weights, is computed by one thread of the block for all rows, and lies beside the stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.hoists import Hoist, ScoreIteration, computed, hoists_of
from meshweave.lowering.gpu.families.flash.masks import KEYS, TileMasks
from meshweave.lowering.gpu.families.flash.sums import ScoreSums
from meshweave.lowering.gpu.families.gemm.fragments import STEP, Fragments
from meshweave.lowering.gpu.families.gemm.kernel import ProductKernel
from meshweave.lowering.gpu.families.gemm.tiles import (
    DEPTH,
    OperandSource,
    OperandTile,
    source_of,
)
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import both
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

WARPS = 4
THREADS = 32 * WARPS
STAGES = 2
WIDE = 64  # columns above which a warp has room for 16 rows of two products only
NBYTES = 2  # of an element of an operand
_WIDTHS = (16, 32, 64, 128)  # of the columns


class SumsShape(NamedTuple):
    """Hold the rows of a warp, and the turns that it computes at a time, of the 64 of a tile."""

    warp_rows: int
    turns: int


def shape_for(sums: ScoreSums, width: int) -> SumsShape:
    """Return the shape, with as many rows as a thread has registers for: they share the fragments of turns."""
    deepest = max(width, *(product.depth for product in sums.scores.values()))
    wide = deepest > WIDE and len(sums.scores) > 1
    return SumsShape(16, 64) if wide else SumsShape(32, 32)


class _LaidOutProduct(NamedTuple):
    """Hold how a product is read: its rows, its turns, panels of depth, and where these begin in shared memory."""

    node: int
    rows: OperandSource
    turns: OperandSource
    inner: int
    panels: int
    rows_at: int
    turns_at: int


class SumsKernel(ProductKernel):
    """Write the kernel of a reduction of what is made of scores."""

    def __init__(self, unit: KernelUnit, sums: ScoreSums, facts: Facts) -> None:
        self.width = next(width for width in _WIDTHS if width >= sums.result.n.count)
        self.warp_rows, self.at_once = shape_for(sums, self.width)
        self.tile_rows = WARPS * self.warp_rows
        super().__init__("flash", unit, sums.result, facts, THREADS, (self.tile_rows, self.width))
        self.sums = sums
        writer, thread = self.writer, self.writer.thread()
        self.lane, self.warp = thread & 31, thread >> 5
        self.first_row = self.warp * self.warp_rows
        self.lanes = Fragments(writer, self.lane, sums.result.dtype)
        number = self.tile_number()
        if any(upper for upper, _, _ in sums.bounds):  # the longest first
            number = writer.constant(self.grid_m - 1) - number
        self.first_m = number * self.tile_rows
        self.masks = TileMasks(writer, sums.bounds, sums.turns, self.first_m, self.tile_rows)
        self.low = sums.kind != "addf"
        self.neutral = writer.constant(-math.inf if self.low else 0.0, "f32")
        self._lay_out(facts)
        nest, rows = sums.nest, sums.result.m.dims
        batch, turns = sums.result.batch.dims, (sums.turn, *sums.heads.dims)
        self.hoists = hoists_of(
            nest, {sums.value, sums.inside}, sums.scores, (*batch, *rows), (*batch, *turns)
        )
        self.pitch = self.width * 4 + 32  # of a row of sums; 32: the next rows lie in other banks
        self.beside = self.stages + STAGES * self.stage  # numbers of turns
        nbytes = self.beside + STAGES * len(self.hoists.turns) * KEYS * 4
        self.shared_bytes = max(nbytes, self.tile_rows * self.pitch if sums.weighted else 0)

    def _lay_out(self, facts: Facts) -> None:
        """Say where in shared memory the operands lie: rows of all products, then two stages of turns."""
        self.parts: list[_LaidOutProduct] = []
        rows_at = turns_at = 0
        for node, product in self.sums.scores.items():
            rows, turns = (
                source_of(product, each, facts.alignments, NBYTES)
                for each in (product.a, product.b)
            )
            panels = -(-product.depth * NBYTES // DEPTH)
            self.parts.append(
                _LaidOutProduct(node, rows, turns, product.depth, panels, rows_at, turns_at)
            )
            rows_at += panels * rows.tile(self.tile_rows)
            turns_at += panels * turns.tile(KEYS)
        self.bases = {
            source: self.base(source.operand, NBYTES)
            for part in self.parts
            for source in (part.rows, part.turns)
        }
        self.stages = rows_at
        self.z_at, self.z_tiles, self.z_width = -1, 0, min(self.width, KEYS)
        if self.sums.weighted:
            result = self.sums.result
            self.z = source_of(result, result.b, facts.alignments, NBYTES)
            self.z_tiles = -(-self.width // KEYS)
            same = [part for part in self.parts if self._is_same(part)]
            self.copies_z = not same
            if same:
                self.z_at, self.z_width = same[0].turns_at, KEYS
            else:
                self.z_at = turns_at
                turns_at += self.z_tiles * self.z.tile(self.z_width)
            self.bases[self.z] = self.base(self.z.operand, NBYTES)
        self.stage = turns_at

    def _is_same(self, part: _LaidOutProduct) -> bool:
        """Tell whether the matrix that is multiplied last is the turns of a product: then their tiles are the same."""
        mine, other = part.turns, self.z
        strides = mine.operand.strides[-1], mine.operand.steps[-1]
        return (
            (mine.operand.access.pointer, *strides)
            == (other.operand.access.pointer, other.operand.steps[-1], other.operand.strides[-1])
            and part.inner == self.sums.result.n.count
            and mine.piece == other.piece > 0
            and mine.by_depth != other.by_depth
            and all(
                loops.strides(mine.operand.access) == loops.strides(other.operand.access)
                for loops in (self.sums.result.batch, self.sums.heads)
            )
        )

    def _tile(
        self, source: OperandSource, rows: int, first: Value, head: Value | None
    ) -> OperandTile:
        """Return a tile of an operand. head: number of the head, of those that are added up."""
        base, heads = self.bases[source], self.sums.heads
        if head is not None:
            strides = heads.strides(source.operand.access)
            base = self.writer.offset(base, self.frame.bytes_to(head, heads.sizes, strides, NBYTES))
        return OperandTile(self.frame, source, rows, THREADS, base, first)

    def kernel(self) -> DeviceKernel:
        """Write the kernel, and return it."""
        self._write()
        return self.finished(DETERMINISTIC)

    def _write(self) -> None:
        writer = self.writer
        self.first, last = self.masks.limits()
        self.count = last - self.first
        total = self.count
        if self.sums.heads.dims:
            self.count = writer.most(self.count, 0)
            total = self.count * self.sums.heads.count
        zero = writer.constant(0)

        def begin() -> None:
            for part in self.parts:
                tile = self._tile(part.rows, self.tile_rows, self.first_m, None)
                for panel in range(part.panels):
                    place = writer.shared(part.rows_at + panel * tile.nbytes)
                    tile.copy(writer.constant(panel), place)
            self._copy(zero, zero)
            self._keep_turns(self._turns(zero), zero)

        there = writer.compare("slt", zero, total) if self.sums.bounds else None
        writer.where(there, begin)
        writer.commit_copies()
        self.rows_known = self._rows()
        count = (
            self.warp_rows // 16 * self.width // 8 * 4
            if self.sums.weighted
            else self.warp_rows // 8
        )
        held = writer.for_(
            0, total, 1, [self.neutral] * count, lambda k, held: self._step(k, total, list(held))
        )
        if self.sums.weighted:
            writer.barrier()
            self._keep(held)
            writer.barrier()
            self.store_sums(THREADS, self.pitch, (self.tile_rows, self.width), self.first_m)
        else:
            self._store_rows(held)

    # One tile of turns.

    def _place(self, number: Value) -> tuple[Value, Value | None]:
        """Return the first turn of tile `number` of this block, and its head."""
        if not self.sums.heads.dims:
            return (self.first + number) * KEYS, None
        head, tile = number // self.count, number % self.count
        return (self.first + tile) * KEYS, head

    def _copy(self, number: Value, stage: Value) -> None:
        """Begin to copy a tile of all turns into a stage."""
        writer = self.writer
        turn, head = self._place(number)
        place = writer.offset(writer.shared(self.stages), stage * self.stage)
        for part in self.parts:
            tile = self._tile(part.turns, KEYS, turn, head)
            for panel in range(part.panels):
                to = writer.offset(place, part.turns_at + panel * tile.nbytes)
                tile.copy(writer.constant(panel), to)
        if self.sums.weighted and self.copies_z:
            for k in range(self.z_tiles):
                tile = self._z_tile(k, head)
                to = writer.offset(place, self.z_at + k * tile.nbytes)
                tile.copy(turn // KEYS, to)

    def _z_tile(self, k: int, head: Value | None) -> OperandTile:
        return self._tile(self.z, self.z_width, self.writer.constant(k * KEYS), head)

    def _index(
        self, row: Value | None, turn: Value | None, head: Value | None
    ) -> list[Value | None]:
        """Return the index of each loop of the nest at a row and a turn."""
        sums, writer = self.sums, self.writer
        index: list[Value | None] = [None] * len(sums.nest.sizes)
        groups = ((sums.result.batch, self.batch), (sums.result.m, row), (sums.heads, head))
        for loops, number in groups:
            if number is not None:
                digits = self.frame.digits(writer.wide(number), loops.sizes)
                for dim, digit in zip(loops.dims, digits):
                    index[dim] = digit
        index[sums.turn] = None if turn is None else writer.wide(turn)
        return index

    def _rows(self) -> list[dict[Hoist, Value]]:
        """Return what is computed once of each of this lane's rows."""
        writer, count = self.writer, self.sums.result.m.count
        found = []
        for pair in range(self.warp_rows // 8):
            row = self.first_m + self.first_row + (self.lane >> 2) + pair * 8
            guard = writer.inside(row, count, self.tile_rows)
            place, hoists = self._index(row, None, None), self.hoists.rows
            values = computed(self.frame, self.sums.nest, place, hoists, guard)
            found.append(dict(zip(hoists, values)))
        return found

    def _turns(self, number: Value) -> list[Value]:
        """Return what is computed once of the turn of a tile that this thread has: two have the same."""
        if not self.hoists.turns:
            return []
        first, head = self._place(number)
        turn = first + self.writer.thread() % KEYS
        guard = self.writer.inside(turn, self.sums.turns, KEYS)
        place = self._index(None, turn, head)
        return computed(self.frame, self.sums.nest, place, self.hoists.turns, guard)

    def _beside(self, stage: Value) -> Value:
        nbytes = len(self.hoists.turns) * KEYS * 4
        return self.writer.offset(self.writer.shared(self.beside), stage * nbytes)

    def _keep_turns(self, values: Sequence[Value], stage: Value) -> None:
        """Put what was computed of turns beside a stage."""
        if not values:
            return
        writer = self.writer
        thread = writer.thread()

        def store() -> None:
            place = writer.offset(self._beside(stage), thread * 4)
            for k, value in enumerate(values):
                writer.store(value, writer.offset(place, k * KEYS * 4))

        writer.if_(writer.compare("slt", thread, KEYS), store)

    def _step(self, number: Value, total: Value, held: list[Value]) -> list[Value]:
        writer = self.writer
        writer.wait_copies(0)
        writer.barrier()
        later = number + 1
        stage, other = number & 1, later & 1
        more = writer.compare("slt", later, total)
        writer.if_(more, lambda: self._copy(later, other))
        writer.commit_copies()
        ahead = self._turns(writer.select(more, later, number))
        place = writer.offset(writer.shared(self.stages), stage * self.stage)
        for begin in range(0, KEYS, self.at_once):
            scores = [self._scores(part, place, begin) for part in self.parts]
            weights = self._weights(number, stage, begin, scores)
            held = self._added(weights, place, begin, held)
        self._keep_turns(ahead, other)
        return held

    def _scores(self, part: _LaidOutProduct, stage: Value, begin: int) -> list[Value]:
        """Return this lane's sums of a product, of turns from `begin` on: 4 for each 16 rows and 8 turns."""
        writer, zero = self.writer, self.writer.constant(0)
        rows_tile = self._tile(part.rows, self.tile_rows, zero, None)
        turns_tile = self._tile(part.turns, KEYS, zero, None)
        sums = [writer.constant(0.0, "f32")] * (self.warp_rows // 16 * self.at_once // 8 * 4)
        for step in range(-(-part.inner * NBYTES // STEP)):
            panel, rest = divmod(step, DEPTH // STEP)
            from_ = writer.shared(part.rows_at + panel * rows_tile.nbytes)
            rows = self.lanes.rows(rows_tile, from_, self.first_row, self.warp_rows, rest)
            from_ = writer.offset(stage, part.turns_at + panel * turns_tile.nbytes)
            here = writer.constant(begin)
            columns = self.lanes.columns(turns_tile, from_, here, self.at_once, rest)
            sums = self.lanes.multiply(rows, columns, sums)
        return sums

    def _weights(
        self, number: Value, stage: Value, begin: int, scores: Sequence[Sequence[Value]]
    ) -> list[Value]:
        """Return what is made of the sums of a tile, of turns from `begin` on."""
        sums, writer = self.sums, self.writer
        turn, head = self._place(number)
        cut = self.masks.cut(turn // KEYS)
        known, turn = self._columns(stage, begin), turn + begin
        if cut is None:
            return self._made(sums.value, turn, head, known, scores, masked=False)
        return writer.if_(
            cut,
            lambda: self._made(sums.value, turn, head, known, scores, masked=True),
            lambda: self._made(sums.inside, turn, head, known, scores, masked=False),
            ["f32"] * len(scores[0]),
        )

    def _columns(self, stage: Value, begin: int) -> list[list[dict[Hoist, Value]]]:
        """Return what was computed once of the turns of each 8 that this lane has two of."""
        writer, hoists = self.writer, self.hoists.turns
        found: list[list[dict[Hoist, Value]]] = []
        if not hoists:
            return [[{}, {}]] * (self.at_once // 8)
        place = writer.offset(self._beside(stage), (self.lane & 3) * 8 + begin * 4)
        for across in range(self.at_once // 8):
            pairs = [
                writer.load(writer.offset(place, (k * KEYS + across * 8) * 4), "vector<2xf32>", 8)
                for k in range(len(hoists))
            ]
            found.append([{h: writer.lane(p, e) for h, p in zip(hoists, pairs)} for e in (0, 1)])
        return found

    def _made(
        self, node: int, turn: Value, head: Value | None,
        known: Sequence[Sequence[dict[Hoist, Value]]], scores: Sequence[Sequence[Value]], masked: bool,
    ) -> list[Value]:  # fmt: skip
        """Return what is made of sums: `node`, and what changes nothing where there is no turn."""
        sums, writer = self.sums, self.writer
        row = self.first_m + self.first_row + (self.lane >> 2)
        first = turn + ((self.lane & 3) << 1)
        found = []
        for k, values in enumerate(zip(*scores)):
            tile, part = divmod(k, 4)
            down, across = divmod(tile, self.at_once // 8)
            at = first + (across * 8 + part % 2)
            mine = row + (down * 16 + part // 2 * 8)
            there = None
            if masked and sums.turns % KEYS:
                there = writer.compare("slt", at, sums.turns)
            guard = both(there, writer.inside(mine, sums.result.m.count, self.tile_rows))
            once = {**self.rows_known[2 * down + part // 2], **known[across][part % 2]}
            raw = dict(zip(sums.scores, values))
            here = ScoreIteration(
                self.frame, sums.nest, self._index(mine, at, head), raw, once, guard
            )
            value = here.value(node)
            found.append(value if there is None else writer.select(there, value, self.neutral))
        return found

    def _added(
        self, weights: Sequence[Value], stage: Value, begin: int, held: list[Value]
    ) -> list[Value]:
        """Add what turns of a tile give, from `begin` on."""
        if not self.sums.weighted:
            for pair in range(self.warp_rows // 8):
                for k in _of_row(pair, self.at_once):
                    one, other = held[pair], weights[k]
                    held[pair] = self.writer.larger(one, other) if self.low else one + other
            return held
        lanes, tiles = self.lanes, self.at_once // 8
        zero, before = self.writer.constant(0), begin * NBYTES // STEP
        for step in range(self.at_once * NBYTES // STEP):
            rows = []
            for down in range(self.warp_rows // 16):
                at = (down * tiles + 2 * step) * 4
                parts = [weights[at + 2 * n : at + 2 * n + 2] for n in range(4)]
                rows.append([lanes.packed(*part) for part in parts])
            for k in range(self.z_tiles):
                tile = self._tile(self.z, self.z_width, zero, None)
                place = self.writer.offset(stage, self.z_at + k * tile.nbytes)
                wide = min(self.width, KEYS)
                columns = lanes.columns(tile, place, zero, wide, before + step)
                mine = self._of_tile(k)
                for at, total in zip(mine, lanes.multiply(rows, columns, [held[n] for n in mine])):
                    held[at] = total
        return held

    def _of_tile(self, number: int) -> list[int]:
        """Return which of a lane's sums lie in the columns of a tile of the last matrix."""
        across, each = self.width // 8, min(self.width, KEYS) // 8
        return [
            (down * across + number * each + n) * 4 + part
            for down in range(self.warp_rows // 16)
            for n in range(each)
            for part in range(4)
        ]

    # Results.

    def _keep(self, sums: Sequence[Value]) -> None:
        """Put the sums of this thread into shared memory, row by row."""
        row, column = self.first_row + (self.lane >> 2), (self.lane & 3) << 1
        self.keep_sums(sums, row, column, self.pitch, self.width // 8)

    def _store_rows(self, held: Sequence[Value]) -> None:
        """Join what the four lanes of a row have, and store it."""
        writer, count = self.writer, self.sums.result.m.count
        for pair, value in enumerate(held):
            for distance in (1, 2):
                other = writer.shuffle_xor(value, distance)
                value = writer.larger(value, other) if self.low else value + other
            row = self.first_m + self.first_row + (self.lane >> 2) + pair * 8
            index = self._index(row, None, None)
            index[self.sums.result.n.dims[0]] = writer.constant(0, "i64")
            mine = writer.compare("eq", self.lane & 3, 0)
            inside = writer.inside(row, count, self.tile_rows)
            guard = mine if inside is None else mine & inside
            writer.if_(guard, partial(self.results.element, index, value))


def _of_row(pair: int, columns: int) -> list[int]:
    """Return which of a lane's numbers lie in its row number `pair`, of tiles with so many columns."""
    down, half = divmod(pair, 2)
    tiles = columns // 8
    return [(down * tiles + n) * 4 + 2 * half + e for n in range(tiles) for e in (0, 1)]
