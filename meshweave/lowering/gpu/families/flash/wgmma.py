"""Write the kernel of an attention for the tensor cores of Hopper (wgmma, sm_90a alone).

Two warpgroups of a block make 64 rows each; a third one copies K and V for them by cp.async, through a ring of
stages (`ring.py`). The tensor cores read Q, K and V from shared memory, the weights P from the registers that they are
made in. A turn begins the scores of the next tile and then the products of this one's weights; while these are under
way the next weights are made:

    S' = Q K'^T begins;  O = O + P V begins;  wait for S';  P' = exp(S' - m');  wait for O;  O = O exp(m - m')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.flash.attention import (
    NBYTES,
    AttentionKernel,
    AttentionTiles,
    Seen,
    Weighed,
    sources_of,
)
from meshweave.lowering.gpu.families.flash.nest import AttentionNest
from meshweave.lowering.gpu.families.flash.ring import TileRing
from meshweave.lowering.gpu.families.gemm.tiles import CHUNK, DEPTH, OperandTile
from meshweave.lowering.gpu.families.gemm.warpgroup import (
    GROUP,
    ROWS,
    STEP,
    WarpgroupProducts,
)
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

GROUPS, KEYS, STAGES = 2, 128, 3  # warpgroups that make rows, keys of a tile, stages of the ring
# Registers of a thread that makes rows, and of one that copies: three warpgroups begin with 168 each, and more
# than these have together would be waited for without end.
MANY, FEW = 232, 40
DEEP = DEPTH // NBYTES  # elements of a tile along its depth
WIDTHS = (64, 128)  # of a head, padded


class _Carried(NamedTuple):
    """Hold what goes from turn to turn: sums that are under way, and the weights that come next."""

    sums: list[Value]
    weighed: Weighed

    def flat(self) -> list[Value]:
        """Return all values."""
        weights, seen, shrinks = self.weighed
        return [*self.sums, *weights, *seen.most, *seen.total, *shrinks]

    def with_values(self, values: Sequence[Value]) -> _Carried:
        """Return the same with other values, in the order of `flat`."""
        left = iter(values)
        sums, weights, most, total, shrinks = (
            [next(left) for _ in each]
            for each in (self.sums, self.weighed.weights, *self.weighed.seen, self.weighed.shrinks)
        )
        return _Carried(sums, Weighed(weights, Seen(most, total), shrinks))


def suits(attention: AttentionNest, target: Target, facts: Facts) -> bool:
    """Tell whether the chip has these tensor cores, tiles are mostly full, and lines begin at multiples of 16 bytes."""
    widths = attention.scores.depth, attention.values.n.count
    if target.chip != "sm_90a" or attention.values.m.count <= ROWS:
        return False
    if min(widths) <= WIDTHS[0] // 2 or max(widths) > WIDTHS[-1]:
        return False
    return all(source.piece == CHUNK for source in sources_of(attention, facts))


class WgmmaAttention(AttentionKernel):
    """Write the kernel of an attention that `suits`."""

    chains = 4

    def __init__(self, unit: KernelUnit, attention: AttentionNest, facts: Facts) -> None:
        columns, inner = (
            next(width for width in WIDTHS if width >= count)
            for count in (attention.values.n.count, attention.scores.depth)
        )
        rows, threads = GROUPS * ROWS, GROUPS * GROUP
        tiles = AttentionTiles(threads, columns, rows, KEYS, 16, KEYS, copiers=GROUP)
        super().__init__(unit, attention, facts, tiles)
        writer = self.writer
        self.group = writer.of_warp(self.warp // 4)
        self.first_row, self.first_key = self.warp * 16, writer.constant(0)
        self.products = WarpgroupProducts(writer, attention.values.dtype)
        self.panels = inner // DEEP
        self.parts = KEYS // DEEP  # tiles of V of a stage
        self.q_tile, self.k_tile, self.v_tile = self._layouts()
        start = self.panels * self.q_tile.nbytes
        stage = self.panels * self.k_tile.nbytes, self.parts * self.v_tile.nbytes
        self.ring = TileRing(writer, start, *stage, STAGES, GROUPS)
        self.shared_bytes = max(start + self.ring.nbytes, rows * self.pitch)

    def _layouts(self) -> tuple[OperandTile, OperandTile, OperandTile]:
        """Return the tiles of Q, of K and of V, the first ones."""
        return (
            self.tile_of(0, self.tiles.rows, self.first_m, panels=True),
            self.tile_of(1, KEYS, 0, panels=True),
            self.tile_of(2, self.tiles.columns, 0, panels=True, group=self.parts),
        )

    def kernel(self) -> DeviceKernel:
        """Write the kernel, and return it."""
        writer = self.writer
        first, turns = self._range()
        makes = writer.compare("ult", self.group, GROUPS)
        writer.if_(makes, lambda: self._make(first, turns), lambda: self._copy(first, turns))
        return self.finished(DETERMINISTIC)

    def _range(self) -> tuple[Value, Value]:
        """Return the first tile of keys of this block, and how many there are: one at least."""
        writer = self.writer
        first, last = self.masks.limits()
        if self.attention.bounds:
            first = writer.least(first, -(-self.attention.keys // KEYS) - 1)
            last = writer.most(last, first + 1)
        return first, writer.of_warp(last - first)

    def meet(self) -> None:
        """Wait for all threads that make rows."""
        self.writer.barrier(self.ring.barriers, self.tiles.threads)

    # The warpgroup that copies.

    def _copy(self, first: Value, turns: Value) -> None:
        """Copy what turn after turn needs."""
        writer, ring, zero = self.writer, self.ring, self.writer.constant(0)
        writer.set_registers(FEW, more=False)
        q_tile, _, v_tile = self._layouts()  # written in this branch
        for panel in range(self.panels):
            q_tile.copy(writer.constant(panel), writer.shared(panel * q_tile.nbytes))
        self._copy_keys(first, zero)
        writer.commit_copies()

        def turn(number: Value, _: Sequence[Value]) -> None:
            ring.await_room(number)
            writer.if_(
                writer.compare("slt", number, turns),
                lambda: self._copy_keys(first + number, number),
            )
            place, values = ring.values(number), first + number - 1
            for part in range(self.parts):
                at = writer.offset(place, part * v_tile.nbytes)
                v_tile.copy(values * self.parts + part, at)
            writer.commit_copies()
            writer.wait_copies(1)
            ring.hand_over(number - 1)

        writer.for_(1, turns + 1, 1, [], turn)
        writer.wait_copies(0)
        ring.hand_over(turns)

    def _copy_keys(self, number: Value, turn: Value) -> None:
        """Begin to copy a tile of keys."""
        writer, place = self.writer, self.ring.keys(turn)
        tile = self.tile_of(1, KEYS, number * KEYS, panels=True)
        for panel in range(self.panels):
            tile.copy(writer.constant(panel), writer.offset(place, panel * tile.nbytes))

    # The warpgroups that multiply.

    def _make(self, first: Value, turns: Value) -> None:
        """Make the results, of what the other warpgroup copies."""
        writer = self.writer
        writer.set_registers(MANY, more=True)
        begin = self._first(first)

        def turn(number: Value, held: list[Value]) -> list[Value]:
            return self._turn(first, number, turns, begin.with_values(held)).flat()

        held = begin.with_values(writer.for_(1, turns, 1, begin.flat(), turn))
        sums = self._last(turns, held)
        self.store(self.divided(sums, held.weighed.seen))

    def _first(self, number: Value) -> _Carried:
        """Return what is carried as the turns begin: the first tile's weights, and no sums."""
        products, zero = self.products, self.writer.constant(0)
        self.ring.await_copies(zero, self.group)
        products.begin()
        scores = self._begin_scores(zero)
        products.wait(0)
        sums, seen = self.parted(self.begun())
        return _Carried(sums, self.softmax(self.masked(number, self._pinned(scores)), seen))

    def _turn(self, first: Value, number: Value, turns: Value, held: _Carried) -> _Carried:
        """Weigh the next tile of keys, and begin to add what this one's weights are multiplied with."""
        products, ring = self.products, self.ring
        sums, weights = self._ready(held)
        ring.give_back(number - 1, self.group, turns)
        ring.await_copies(number, self.group)
        ready = self._pinned([*sums, *weights])
        products.begin()
        scores = self._begin_scores(number)
        sums = self._begin_sums(number, ready[len(sums) :], ready[: len(sums)])
        products.wait(1)
        scores = self.masked(first + number, self._pinned(scores))
        return _Carried(sums, self.softmax(scores, held.weighed.seen))

    def _last(self, turns: Value, held: _Carried) -> list[Value]:
        """Return the sums, with what the last tile's weights are multiplied with."""
        products = self.products
        sums, weights = self._ready(held)
        self.ring.await_copies(turns, self.group)
        ready = self._pinned([*sums, *weights])
        products.begin()
        sums = self._begin_sums(turns, ready[len(sums) :], ready[: len(sums)])
        products.wait(0)
        return self._pinned(sums)

    def _ready(self, held: _Carried) -> tuple[list[Value], list[Value]]:
        """Wait for the sums, and shrink them; return them and the weights as the products take them."""
        self.products.wait(0)
        count, weighed = len(held.sums), held.weighed
        ready = self._pinned([*held.sums, *weighed.weights])
        return self.shrunk(ready[:count], weighed.shrinks), self._packed(ready[count:])

    def _pinned(self, values: Sequence[Value]) -> list[Value]:
        """Return numbers that are in registers from here on, neither computed later nor used before."""
        struct = self.writer.held(values)
        return [self.writer.field(struct, k, value.type) for k, value in enumerate(values)]

    def _begin_scores(self, turn: Value) -> list[Value]:
        """Begin to multiply this warpgroup's queries and a tile of keys."""
        writer, products = self.writer, self.products
        kinds = ", ".join(["f32"] * (KEYS // 2))
        kind = f"!llvm.struct<({kinds})>"
        sums = writer.let(f"llvm.mlir.undef : {kind}", kind)
        rows = products.row_bytes(self.q_tile, self.group * ROWS)
        a = products.descriptor(self.q_tile, writer.offset(writer.shared(), rows))
        b = products.descriptor(self.k_tile, self.ring.keys(turn))
        for step in range(-(-self.attention.scores.depth // STEP)):
            panel, rest = divmod(step, DEEP // STEP)
            left = products.at_step(self.q_tile, a + (panel * self.q_tile.nbytes >> 4), rest)
            right = products.at_step(self.k_tile, b + (panel * self.k_tile.nbytes >> 4), rest)
            sums = products.multiply(
                (self.q_tile, left), (self.k_tile, right), sums, KEYS, fresh=step == 0
            )
        products.commit()
        return [writer.field(sums, k, "f32") for k in range(KEYS // 2)]

    def _begin_sums(
        self, turn: Value, weights: Sequence[Value], sums: Sequence[Value]
    ) -> list[Value]:
        """Begin to add the products of weights and a tile of values."""
        products, tile, found = self.products, self.v_tile, list(sums)
        b = products.descriptor(tile, self.ring.values(turn))
        for step in range(KEYS // STEP):
            part, rest = divmod(step, DEEP // STEP)
            right = products.at_step(tile, b + (part * tile.nbytes >> 4), rest)
            rows = weights[4 * step : 4 * step + 4]
            found = products.multiply_held(rows, (tile, right), found)
        products.commit()
        return found

    def _packed(self, weights: Sequence[Value]) -> list[Value]:
        """Return weights as the rows of products, four i32 for each 16 keys."""
        pairs = [self.lanes.packed(*weights[k : k + 2]) for k in range(0, len(weights), 2)]
        if self.attention.values.dtype == "bf16":
            return pairs
        return [self.writer.convert("llvm.bitcast", pair, "i32") for pair in pairs]
