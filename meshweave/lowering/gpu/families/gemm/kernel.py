"""Hold what the kernels of products have in common: a block makes a tile of C, of one product of the batch."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm.results import Results
from meshweave.lowering.gpu.families.launch import frame_for
from meshweave.lowering.gpu.families.products import Contraction, ProductOperand
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import Guard
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

BAND = 8  # rows of tiles that go together


class ProductKernel:
    """Write a kernel whose blocks make tiles of C."""

    batch: Value  # the number of the product that this block works on
    shared_bytes: int  # dynamic shared memory of a block

    def __init__(
        self, family: str, unit: KernelUnit, product: Contraction, facts: Facts,
        threads: int, tile: tuple[int, int], min_blocks: int = 1,
    ) -> None:  # fmt: skip
        """Begin the kernel. tile: rows and columns of a tile; min_blocks: see `DeviceWriter`."""
        self.family, self.product = family, product
        self.frame = frame_for(
            family, unit, facts, threads, index="i64", dynamic_shared=True, min_blocks=min_blocks
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

    def tile_place(self) -> tuple[Value, Value]:
        """Return the first row and the first column of the tile that this block makes; set `batch`.

        Blocks that follow each other go down a band of rows and then to the next columns, so that
        what they read is still in the cache.
        """
        tile, area = self.tile_number(), BAND * self.grid_n
        band, place = tile // area, tile % area
        height: Value | int = min(BAND, self.grid_m)
        if self.grid_m > BAND and self.grid_m % BAND:  # the last band is lower
            height = self.writer.least(self.writer.constant(self.grid_m) - band * BAND, BAND)
        down, across = band * BAND + place % height, place // height
        return down * self.tile_m, across * self.tile_n

    def base(self, operand: ProductOperand, nbytes: int) -> Value:
        """Return the address of an operand's first element for this block's product."""
        writer, batch, access = self.writer, self.product.batch, operand.access
        base = writer[f"p{access.pointer}"]
        digits = self.frame.digits(writer.wide(self.batch), batch.sizes)
        for digit, stride in zip(digits, batch.strides(access)):
            base = writer.offset(base, digit * (stride * nbytes))
        return base

    def keep_sums(
        self, sums: Sequence[Value], row: Value, column: Value, pitch: int, across: int
    ) -> None:
        """Put what a thread has of C into shared memory, row by row.

        row, column: of its first sum. pitch: bytes from row to row. across: fragments of 8 columns side by side.
        """
        writer = self.writer
        place = writer.offset(writer.shared(), row * pitch + column * 4)
        for number in range(0, len(sums), 2):
            fragment, half = divmod(number // 2, 2)
            down, right = divmod(fragment, across)
            where = writer.offset(place, (down * 16 + half * 8) * pitch + right * 32)
            writer.store(writer.vector(sums[number : number + 2]), where, 8)

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
        # Of 8 neighbouring threads 4 begin with their second 16 bytes: else half of the banks would be met twice.
        turned = writer.compare("ne", thread & 4, 0) if wide == 8 else None

        def some(number: Value, _: Sequence[Value]) -> None:
            at = row + down + number
            place = writer.offset(start, number * pitch)

            def write() -> None:
                parts = self._parts(place, wide // 4, turned)
                totals = [writer.lane(part, k) for part in parts for k in range(4)]
                here = right if column is None else column + right
                self.results.row(self.batch, at, here, totals, columns)

            writer.where(writer.inside(at, self.product.m.count, rows), write)

        writer.for_(0, rows, threads // across, [], some)

    def _parts(self, place: Value, count: int, turned: Guard) -> list[Value]:
        """Load a thread's sums, 16 bytes at a time; the second ones first where `turned` holds."""
        writer = self.writer
        places = [writer.offset(place, 16 * k) for k in range(count)]
        if turned is not None:
            places = [writer.select(turned, *pair) for pair in (places[::-1], places)]
        parts = [writer.load(each, "vector<4xf32>", 16) for each in places]
        if turned is not None:
            parts = [writer.select(turned, *pair) for pair in (parts[::-1], parts)]
        return parts

    def finished(self, numerics: str) -> DeviceKernel:
        """Return what has been written."""
        blocks = self.product.batch.count * self.grid_m * self.grid_n
        return DeviceKernel.of(self.writer, blocks, self.family, numerics, self.shared_bytes)
