"""Hold what the kernels of products have in common: a block makes a tile of C, of one product of the batch."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm.results import Results
from meshweave.lowering.gpu.families.launch import frame_for
from meshweave.lowering.gpu.families.products import Contraction, ProductOperand
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value


class ProductKernel:
    """Write a kernel whose blocks make tiles of C."""

    batch: Value  # the number of the product that this block works on
    shared_bytes: int  # dynamic shared memory of a block

    def __init__(
        self, family: str, unit: KernelUnit, product: Contraction, facts: Facts,
        threads: int, tile: tuple[int, int],
    ) -> None:  # fmt: skip
        """Begin the kernel. tile: rows and columns of a tile."""
        self.family, self.product = family, product
        self.frame = frame_for(
            family, unit, facts, threads, index="i64", dynamic_shared=True, min_blocks=1
        )
        self.writer = self.frame.writer
        self.tile_m, self.tile_n = tile
        self.grid_m = -(-product.m.count // self.tile_m)
        self.grid_n = -(-product.n.count // self.tile_n)
        self.results = Results(self.frame, unit, product, facts)

    def tile_number(self) -> Value:
        """Return which tile of its product this block makes; set `batch`."""
        writer, tiles = self.writer, self.grid_m * self.grid_n
        block, several = writer.block(), self.product.batch.count > 1
        self.batch = block // tiles if several else writer.constant(0)
        return block % tiles if several else block

    def base(self, operand: ProductOperand, nbytes: int) -> Value:
        """Return the address of an operand's first element for this block's product."""
        writer, batch, access = self.writer, self.product.batch, operand.access
        base = writer[f"p{access.pointer}"]
        digits = self.frame.digits(writer.wide(self.batch), batch.sizes)
        for digit, stride in zip(digits, batch.strides(access)):
            base = writer.offset(base, digit * (stride * nbytes))
        return base

    def store_sums(
        self,
        threads: int,
        pitch: int,
        sizes: tuple[int, int],
        row: Value,
        column: Value | None = None,
    ) -> None:
        """Read the tile's sums from shared memory by rows, a few columns a thread; finish and store them.

        threads: of a block. pitch: bytes from row to row there. sizes: rows and columns. row, column: of the result,
        where they begin; None: 0.
        """
        writer, (rows, columns) = self.writer, sizes
        wide = 16 // self.results.nbytes
        across = columns // wide
        thread = writer.thread()
        down, right = thread // across, (thread % across) * wide
        start = writer.offset(writer.shared(), down * pitch + right * 4)

        def some(number: Value, _: Sequence[Value]) -> None:
            at = row + down + number
            place = writer.offset(start, number * pitch)

            def write() -> None:
                parts = [
                    writer.load(writer.offset(place, 16 * k), "vector<4xf32>", 16)
                    for k in range(wide // 4)
                ]
                totals = [writer.lane(part, k) for part in parts for k in range(4)]
                here = right if column is None else column + right
                self.results.row(self.batch, at, here, totals, columns)

            writer.where(writer.inside(at, self.product.m.count, rows), write)

        writer.for_(0, rows, threads // across, [], some)

    def finished(self, numerics: str) -> DeviceKernel:
        """Return what has been written."""
        blocks = self.product.batch.count * self.grid_m * self.grid_n
        return DeviceKernel.of(self.writer, blocks, self.family, numerics, self.shared_bytes)
