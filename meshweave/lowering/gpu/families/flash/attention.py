"""Hold what kernels of attention have in common: what is made of scores, the weights so far, and the results.

    m' = max(m, S);  P = exp(S - m');  O = O exp(m - m') + P V;  l likewise

A lane has its numbers as the tensor cores leave them: of 8 columns two of its row, and two of the row 8 below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.masks import TileMasks
from meshweave.lowering.gpu.families.flash.nest import AttentionNest
from meshweave.lowering.gpu.families.gemm.fragments import Fragments
from meshweave.lowering.gpu.families.gemm.kernel import ProductKernel
from meshweave.lowering.gpu.families.gemm.tiles import OperandSource, OperandTile, source_of
from meshweave.lowering.gpu.nodes import DeviceIteration
from meshweave.lowering.gpu.writer import Guard, both
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

NBYTES = 2  # of an element of Q, K, V
LOG2E = math.log2(math.e)


class Seen(NamedTuple):
    """Hold what is known of each of a lane's rows: its largest score so far, and the sum of its weights."""

    most: list[Value]
    total: list[Value]


class Weighed(NamedTuple):
    """Hold the weights of a tile's scores, what is known after it, and what the sums before it are to shrink by."""

    weights: list[Value]
    seen: Seen
    shrinks: list[Value]


def sources_of(attention: AttentionNest, facts: Facts) -> tuple[OperandSource, ...]:
    """Return how Q, K and V are read."""
    products = attention.scores, attention.values
    operands = (
        (products[0], products[0].a),
        (products[0], products[0].b),
        (products[1], products[1].b),
    )
    return tuple([source_of(product, each, facts.alignments, NBYTES) for product, each in operands])


@dataclass(frozen=True)
class AttentionTiles:
    """Hold the sizes of tiles.

    threads: of a block that make rows; columns: of the result, some behind its own; rows: queries of a block; keys: of
    the tiles that run past them; warp_rows, warp_keys: what a warp has of both; pieces: of the keys, a block for each,
    for few queries; 0: all keys for a tile of queries; copiers: threads behind the others that copy; 0: all do.
    """

    threads: int
    columns: int
    rows: int
    keys: int
    warp_rows: int
    warp_keys: int
    pieces: int = 0
    copiers: int = 0


class AttentionKernel(ProductKernel):
    """Write a kernel of an attention."""

    chains: ClassVar[int] = 1  # of maxima and sums of weights, side by side
    first_row: Value  # of the tile of queries, and of keys, that this warp has
    first_key: Value

    def __init__(
        self,
        unit: KernelUnit,
        attention: AttentionNest,
        facts: Facts,
        tiles: AttentionTiles,
    ) -> None:
        tile = (tiles.rows, tiles.columns)
        threads = tiles.threads + tiles.copiers
        super().__init__("flash", unit, attention.values, facts, threads, tile)
        self.attention, self.tiles = attention, tiles
        writer = self.writer
        thread = writer.thread()
        self.lane, self.warp = thread & 31, thread >> 5
        self.lanes = Fragments(writer, self.lane, attention.values.dtype)
        self.piece, number = writer.constant(0), writer.constant(0)
        if tiles.pieces:
            block = writer.block()
            self.piece, self.batch = block % tiles.pieces, block // tiles.pieces
        else:
            number = self.tile_number()
        if any(upper for upper, _, _ in attention.bounds):  # the longest first
            number = writer.constant(self.grid_m - 1) - number
        self.first_m = number * tiles.rows
        self.masks = TileMasks(
            writer, attention.bounds, attention.keys, self.first_m, tiles.rows, tiles.keys
        )
        self.q, self.k, self.v = sources_of(attention, facts)
        self.bases = [self.base(source.operand, NBYTES) for source in (self.q, self.k, self.v)]
        self.pitch = (
            tiles.columns * 4 + 32
        )  # of a row of sums; 32: the next rows lie in other banks
        self.pairs = tiles.warp_rows // 8  # rows of each lane

    def tile_of(
        self, which: int, rows: int, first: Value | int, panels: bool = False, group: int = 1
    ) -> OperandTile:
        """Return the tiles of Q, K or V: `rows` of its rows (columns of V) from `first` on; see `OperandTile`."""
        writer, tiles, source = self.writer, self.tiles, (self.q, self.k, self.v)[which]
        thread, threads = writer.thread(), tiles.copiers or tiles.threads
        if tiles.copiers:
            thread = thread - tiles.threads
        start, base = writer.as_value(first, "i32"), self.bases[which]
        return OperandTile(self.frame, source, rows, threads, base, start, panels, group, thread)

    def meet(self) -> None:
        """Wait for all threads that make rows."""
        self.writer.barrier()

    def begun(self) -> list[Value]:
        """Return what is carried from tile to tile as it begins: sums, largest scores, sums of weights."""
        zero, low = self.writer.constant(0.0, "f32"), self.writer.constant(-math.inf, "f32")
        sums = self.tiles.warp_rows // 16 * self.tiles.columns // 8 * 4
        return [*[zero] * sums, *[low] * self.pairs, *[zero] * self.pairs]

    def parted(self, held: Sequence[Value]) -> tuple[list[Value], Seen]:
        """Return the sums of what is carried, and what is known of the rows."""
        count = len(held) - 2 * self.pairs
        most, total = held[count : count + self.pairs], held[count + self.pairs :]
        return list(held[:count]), Seen(list(most), list(total))

    def masked(self, number: Value, sums: list[Value]) -> list[Value]:
        """Return this lane's scores of a tile of keys, made of the sums of products."""
        writer, cut, attention = self.writer, self.masks.cut(number), self.attention
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
        if node == attention.scaled and not (masked and attention.keys % self.tiles.keys):
            return list(sums)
        row = self.first_m + self.first_row + (self.lane >> 2)
        key = number * self.tiles.keys + self.first_key + ((self.lane & 3) << 1)
        low = writer.constant(-math.inf, "f32")
        found = []
        for k, value in enumerate(sums):
            tile, part = divmod(k, 4)
            down, across = divmod(tile, self.tiles.warp_keys // 8)
            at = key + (across * 8 + part % 2)
            there = None
            if masked and attention.keys % self.tiles.keys:
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
        guard = both(there, writer.inside(row, product.m.count, self.tiles.rows))
        here = DeviceIteration(self.frame, attention.nest, index, {attention.scaled: value}, guard)
        (made,) = here.compute([node])
        return made

    def softmax(self, scores: Sequence[Value], seen: Seen) -> Weighed:
        """Return the weights of a tile's scores."""
        writer = self.writer
        by = writer.constant(self.attention.factor * LOG2E, "f32")
        low, zero = writer.constant(-math.inf, "f32"), writer.constant(0.0, "f32")
        weights, shrinks = list(scores), list[Value]()
        most, total = list(seen.most), list(seen.total)
        for pair in range(self.pairs):
            here = self.of_row(pair, self.tiles.warp_keys)
            new = _together(writer.larger, most[pair], [scores[k] for k in here], self.chains)
            for distance in (1, 2):
                new = writer.larger(new, writer.shuffle_xor(new, distance))
            none = writer.compare("oeq", new, low)
            taken = writer.select(none, zero, writer.negative(new * by))
            shrinks.append(writer.exp2(writer.fma(most[pair], by, taken)))
            for k in here:
                weights[k] = writer.exp2(writer.fma(scores[k], by, taken))
            before = total[pair] * shrinks[pair]
            added = [weights[k] for k in here]
            total[pair] = _together(Value.__add__, before, added, self.chains)
            most[pair] = new
        return Weighed(weights, Seen(most, total), shrinks)

    def shrunk(self, sums: Sequence[Value], shrinks: Sequence[Value]) -> list[Value]:
        """Return sums of weights as they are beside the largest scores so far."""
        found = list(sums)
        for pair, shrink in enumerate(shrinks):
            for k in self.of_row(pair, self.tiles.columns):
                found[k] = found[k] * shrink
        return found

    def of_row(self, pair: int, columns: int) -> list[int]:
        """Return which of a lane's numbers lie in its row number `pair`, of tiles with so many columns."""
        down, half = divmod(pair, 2)
        tiles = columns // 8
        return [(down * tiles + n) * 4 + 2 * half + e for n in range(tiles) for e in (0, 1)]

    def divided(self, sums: Sequence[Value], seen: Seen) -> list[Value]:
        """Return the sums divided by the sums of their weights."""
        writer, inverses = self.writer, list[Value]()
        one, zero = writer.constant(1.0, "f32"), writer.constant(0.0, "f32")
        for total in seen.total:
            for distance in (1, 2):
                total = total + writer.shuffle_xor(total, distance)
            inverse = one / total
            if self.attention.zeros:
                inverse = writer.select(writer.compare("oeq", total, zero), zero, inverse)
            inverses.append(inverse)
        return self.shrunk(sums, inverses)

    def store(self, sums: Sequence[Value]) -> None:
        """Finish the sums and store them, by way of shared memory, which nobody needs any more."""
        tiles = self.tiles
        self.meet()
        row, column = self.first_row + (self.lane >> 2), (self.lane & 3) << 1
        self.keep_sums(sums, row, column, self.pitch, tiles.columns // 8)
        self.meet()
        self.store_sums(tiles.threads, self.pitch, (tiles.rows, tiles.columns), self.first_m)


def _together(
    join: Callable[[Value, Value], Value], first: Value, others: Sequence[Value], chains: int
) -> Value:
    """Join numbers in so many chains, a power of two: one alone waits for each of its steps."""
    parts = [first, *others[: chains - 1]]
    for k, value in enumerate(others[chains - 1 :]):
        parts[k % chains] = join(parts[k % chains], value)
    while len(parts) > 1:
        parts = [join(*parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return parts[0]
