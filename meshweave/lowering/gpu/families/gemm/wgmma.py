"""Compute products of f16 and bf16 with the tensor cores of Hopper (wgmma, sm_90a alone); sums in f32.

Two warpgroups of 128 threads make a tile of C, each one half of its rows. Their tensor cores read A and B from shared
memory by themselves, while the threads go on: tiles come by cp.async through a ring of stages, and while one is
multiplied the next one is waited for. What they read of another *proxy* than ordinary accesses: a fence stands between
a copy and the barrier after which it is multiplied. The sums go through shared memory once more, as those of `mma`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.device import CHIPS, Chip
from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm.kernel import ProductKernel
from meshweave.lowering.gpu.families.gemm.tiles import CHUNK, OperandSource, OperandTile, source_of
from meshweave.lowering.gpu.families.gemm.warpgroup import (
    GROUP,
    NBYTES,
    ROWS,
    STEP,
    WarpgroupProducts,
)
from meshweave.lowering.gpu.families.products import Contraction
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import SMALL
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

FAMILY = "gemm_wgmma"
GROUPS = 2  # warpgroups of a block
THREADS = GROUPS * GROUP


@dataclass(frozen=True)
class WgmmaShape:
    """Hold rows and columns of a block's tile of C, and the stages of its ring.

    blocks: that a multiprocessor has at a time. alone, together: nanoseconds that one of them, or all, take for a step
    of depth, as measured on an H200.
    """

    m: int
    n: int
    stages: int
    blocks: int
    alone: float
    together: float

    def tiles(self, product: Contraction) -> int:
        """Count the tiles of a product."""
        rows, columns = -(-product.m.count // self.m), -(-product.n.count // self.n)
        return rows * columns * product.batch.count


SHAPES = (
    WgmmaShape(128, 256, 4, 1, 12.3, 12.3),
    WgmmaShape(256, 128, 4, 1, 12.7, 12.7),
    WgmmaShape(128, 128, 3, 2, 9.7, 13.9),
    WgmmaShape(128, 64, 4, 2, 5.7, 8.5),
)
ENOUGH = 64  # smallest tiles of a product, below which `mma` has more and is faster


def shape_for(product: Contraction, chip: Chip) -> WgmmaShape:
    """Return the tile with which a product takes the least time."""

    def price(shape: WgmmaShape) -> float:
        full, rest = divmod(shape.tiles(product), chip.processors * shape.blocks)
        last = shape.alone if rest <= chip.processors else shape.together
        return full * shape.together + (last if rest else 0.0)

    return min(SHAPES, key=price)


def sources_of(product: Contraction, facts: Facts) -> list[OperandSource]:
    """Return how A and B are read."""
    return [source_of(product, x, facts.alignments, NBYTES) for x in (product.a, product.b)]


def suits(product: Contraction, target: Target, facts: Facts) -> bool:
    """Tell whether the chip has these tensor cores, the product is large, and lines begin at multiples of 16 bytes."""
    if target.chip != "sm_90a" or FAMILY in target.disabled or product.dtype not in SMALL:
        return False
    if min(product.m.count, product.n.count) < ROWS or SHAPES[-1].tiles(product) < ENOUGH:
        return False
    return all(x.piece == CHUNK for x in sources_of(product, facts))


def build(unit: KernelUnit, product: Contraction, target: Target, facts: Facts) -> DeviceKernel:
    """Return the kernel of a product that `suits`."""
    shape = shape_for(product, CHIPS[target.chip])
    kernel = _WgmmaKernel(unit, product, facts, shape, sources_of(product, facts))
    kernel.write()
    return kernel.finished(DETERMINISTIC)


class _WgmmaKernel(ProductKernel):
    def __init__(
        self,
        unit: KernelUnit,
        product: Contraction,
        facts: Facts,
        shape: WgmmaShape,
        sources: Sequence[OperandSource],
    ) -> None:
        tile = (shape.m, shape.n)
        super().__init__(FAMILY, unit, product, facts, THREADS, tile, shape.blocks)
        self.shape = shape
        thread = self.writer.thread()
        self.lane, self.warp, self.group = thread & 31, (thread >> 5) & 3, thread // GROUP
        self.down = shape.m // (GROUPS * ROWS)  # products of a warpgroup, one below another
        self.first_m, self.first_n = self.tile_place()
        self.a, self.b = (
            OperandTile(
                self.frame, source, rows, THREADS, self.base(source.operand, NBYTES), first, True
            )
            for source, rows, first in zip(sources, tile, (self.first_m, self.first_n))
        )
        self.stage = self.a.nbytes + self.b.nbytes
        self.pitch = shape.n * 4 + 32  # of a row of sums: the next rows lie in other banks
        self.shared_bytes = max(shape.stages * self.stage, shape.m * self.pitch)
        self.products = WarpgroupProducts(self.writer, product.dtype)

    def write(self) -> None:
        """Write the whole kernel."""
        writer, ahead = self.writer, self.shape.stages - 2
        inner = -(-self.product.k[-1] // self.a.depth)
        tiles = inner * (self.product.depth // self.product.k[-1])
        for k in range(ahead):
            if k < tiles:
                self._copy(writer.constant(k), writer.shared(k * self.stage))
            writer.commit_copies()
        zero = [writer.constant(0.0, "f32")] * (self.shape.n // 2)
        zeros = [writer.held(zero) for _ in range(self.down)]
        sums = writer.for_(0, tiles, 1, zeros, lambda k, held: self._step(k, tiles, held))
        self.products.wait(0)
        writer.barrier()
        self._keep(sums)
        writer.barrier()
        self.store_sums(
            THREADS, self.pitch, (self.shape.m, self.shape.n), self.first_m, self.first_n
        )

    def _copy(self, number: Value, stage: Value) -> None:
        self.a.copy(number, stage)
        self.b.copy(number, self.writer.offset(stage, self.a.nbytes))

    def _stage(self, number: Value) -> Value:
        writer = self.writer
        return writer.offset(writer.shared(), (number % self.shape.stages) * self.stage)

    def _step(self, number: Value, tiles: int, sums: list[Value]) -> list[Value]:
        """Wait for a stage, begin the copies of a later one, and begin to multiply.

        When all have come to the barrier, nobody still reads what was multiplied two steps ago: the copies go there.
        """
        writer, ahead = self.writer, self.shape.stages - 2
        writer.wait_copies(ahead - 1)
        writer.show_copies()
        writer.barrier()
        later = number + ahead
        writer.if_(
            writer.compare("ult", later, tiles), lambda: self._copy(later, self._stage(later))
        )
        writer.commit_copies()
        stage = self._stage(number)
        sums = self._multiply(stage, sums)
        self.products.wait(1)
        return sums

    # Products.

    def _multiply(self, stage: Value, sums: list[Value]) -> list[Value]:
        """Begin to add the products of the tiles at `stage`."""
        writer, products, sums = self.writer, self.products, list(sums)
        rows = self.group * (self.down * ROWS)
        place = writer.offset(stage, products.row_bytes(self.a, rows))
        first = [
            products.descriptor(self.a, writer.offset(place, self._down_bytes(k)))
            for k in range(self.down)
        ]
        second = products.descriptor(self.b, writer.offset(stage, self.a.nbytes))
        products.begin()
        for step in range(self.a.depth // STEP):
            b = self.b, products.at_step(self.b, second, step)
            for k in range(self.down):
                a = self.a, products.at_step(self.a, first[k], step)
                sums[k] = products.multiply(a, b, sums[k], self.shape.n)
        products.commit()
        return sums

    def _down_bytes(self, number: int) -> int:
        """Return the bytes from a warpgroup's first 64 rows of A to its next ones."""
        return number * (ROWS * self.a.pitch if self.a.source.by_depth else self.a.panel)

    # Results.

    def _keep(self, sums: Sequence[Value]) -> None:
        """Put the sums of this thread into shared memory, row by row."""
        writer = self.writer
        row = self.group * (self.down * ROWS) + self.warp * 16 + (self.lane >> 2)
        place = writer.offset(writer.shared(), row * self.pitch + ((self.lane & 3) << 3))
        for k, struct in enumerate(sums):
            values = [writer.field(struct, i, "f32") for i in range(self.shape.n // 2)]
            for number in range(0, len(values), 2):
                down = k * ROWS + number // 2 % 2 * 8
                where = writer.offset(place, down * self.pitch + number // 4 * 32)
                writer.store(writer.vector(values[number : number + 2]), where, 8)
