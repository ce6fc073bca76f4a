"""Products on tensor cores (mma.sync, sm_80 and later): f16 and bf16, and f32 rounded to tf32; sums
in f32.

A block of 4 warps makes a tile of C. Tiles of A and B come through a ring of stages in shared
memory: while one is multiplied, the copies of the next ones are under way. Then the sums go through
shared memory once more, so that rows of C are finished and written side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.fast_paths import DETERMINISTIC, TOL
from meshweave.lowering.bind import Access
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.gemm_results import Results
from meshweave.lowering.gpu.gemm_tiles import Source, Tile, source_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.launch import entry_name
from meshweave.lowering.gpu.nodes import frame_of
from meshweave.lowering.gpu.products import Product
from meshweave.lowering.rows import Unit

THREADS = 128
STAGES = 3
BAND = 8  # rows of tiles that go together
STEP = 32  # bytes of depth that one mma takes
_SUMS = "!llvm.struct<(f32, f32, f32, f32)>"


@dataclass(frozen=True)
class Shape:
    """Rows and columns of a block's tile of C, and of a warp's part of it."""

    m: int
    n: int
    warp_m: int
    warp_n: int


SHAPES = (
    Shape(128, 128, 64, 64),
    Shape(128, 64, 64, 32),
    Shape(64, 128, 32, 64),
    Shape(64, 64, 32, 32),
    Shape(128, 32, 32, 32),
    Shape(32, 128, 32, 32),
    Shape(32, 32, 16, 16),
)
PROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_90a": 132}


def shape_for(product: Product, chip: str, gathered: bool) -> Shape:
    """The tile with the least work on the busiest multiprocessor: what is multiplied, ragged edges
    too, and what is copied for it. Ties go to the largest. gathered: elements come one by one,
    through registers, of which a large tile leaves too few.
    """

    def price(shape: Shape) -> float:
        rows, columns = -(-product.m.count // shape.m), -(-product.n.count // shape.n)
        rounds = -(-rows * columns * product.batch.count // PROCESSORS[chip])
        return rounds * (shape.m * shape.n + 48.0 * (shape.m + shape.n))

    fitting = [s for s in SHAPES if not gathered or s.warp_m * s.warp_n <= 32 * 32]
    return min(fitting or SHAPES, key=price)


def build(unit: Unit, product: Product, target: Target, facts: Facts) -> DeviceKernel:
    """The kernel of a product of f16, bf16 or (where the target allows tf32) f32."""
    rounded = product.dtype == "f32"
    family, nbytes = ("gemm_tf32", 4) if rounded else ("gemm_mma", 2)
    sources = [source_of(product, which, facts.alignments, nbytes) for which in "ab"]
    shape = shape_for(product, target.chip, any(not source.piece for source in sources))
    name = entry_name(family, unit)
    builder = Builder(name, parameters_of(unit, facts), THREADS, dynamic_shared=True, min_blocks=1)
    kernel = _Kernel(builder, unit, product, facts, shape, sources)
    kernel.write()
    blocks = product.batch.count * kernel.grid_m * kernel.grid_n
    return DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(blocks, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=kernel.shared_bytes,
        parameters=parameter_types(unit),
        family=family,
        numerics=TOL if rounded else DETERMINISTIC,
    )


class _Kernel:
    def __init__(
        self,
        builder: Builder,
        unit: Unit,
        product: Product,
        facts: Facts,
        shape: Shape,
        sources: Sequence[Source],
    ) -> None:
        self.builder, self.product, self.shape = builder, product, shape
        self.nbytes = sources[0].nbytes
        self.grid_m = -(-product.m.count // shape.m)
        self.grid_n = -(-product.n.count // shape.n)
        self.frame = frame_of(builder, unit, "i64")
        self.results = Results(self.frame, unit, product, facts)
        thread = builder.thread()
        self.lane, warp = thread & 31, thread >> 5
        across = shape.m // shape.warp_m
        self.warp_m, self.warp_n = (warp % across) * shape.warp_m, (warp // across) * shape.warp_n
        self._place()
        self.a = self._tile(sources[0], product.a, shape.m, self.first_m)
        self.b = self._tile(sources[1], product.b, shape.n, self.first_n)
        self.stage = self.a.nbytes + self.b.nbytes
        self.pitch = shape.n * 4 + 32  # of a row of sums; 32: the next rows lie in other banks
        self.shared_bytes = max(STAGES * self.stage, shape.m * self.pitch)

    def _place(self) -> None:
        """Which tile this block makes. Blocks that follow each other go down a band of rows and
        then to the next columns, so that what they read is still in the cache.
        """
        builder, tiles = self.builder, self.grid_m * self.grid_n
        block, several = builder.block(), self.product.batch.count > 1
        self.batch = block // tiles if several else builder.constant(0)
        tile = block % tiles if several else block
        if self.grid_m % BAND:
            down, across = tile % self.grid_m, tile // self.grid_m
        else:
            band, place = tile // (BAND * self.grid_n), tile % (BAND * self.grid_n)
            down, across = band * BAND + place % BAND, place // BAND
        self.first_m, self.first_n = down * self.shape.m, across * self.shape.n

    def _tile(self, source: Source, access: Access, rows: int, first: Value) -> Tile:
        product, builder = self.product, self.builder
        base = builder.offset(builder[f"p{source.pointer}"], source.const * self.nbytes)
        digits = self.frame.digits(builder.wide(self.batch), product.batch.sizes)
        for digit, stride in zip(digits, product.batch.strides(access)):
            base = builder.offset(base, digit * (stride * self.nbytes))
        return Tile(builder, source, rows, THREADS, base, first)

    def write(self) -> None:
        """The whole kernel."""
        builder, shape = self.builder, self.shape
        inner = -(-self.product.k[-1] // self.a.depth)
        tiles = inner * (self.product.depth // self.product.k[-1])
        for k in range(STAGES - 1):
            if k < tiles:
                self._copy(builder.constant(k), builder.shared(k * self.stage))
            builder.commit_copies()
        count = (shape.warp_m // 16) * (shape.warp_n // 8) * 4
        zeros = [builder.constant(0.0, "f32")] * count
        sums = builder.for_(0, tiles, 1, zeros, lambda k, held: self._step(k, tiles, held))
        builder.barrier()
        self._keep(sums)
        builder.barrier()
        self._finish()

    def _copy(self, number: Value, stage: Value) -> None:
        self.a.copy(number, stage)
        self.b.copy(number, self.builder.offset(stage, self.a.nbytes))

    def _step(self, number: Value, tiles: int, sums: list[Value]) -> list[Value]:
        """Wait for a stage, begin the copies of the one STAGES - 1 later, multiply."""
        builder = self.builder
        builder.wait_copies(STAGES - 2)
        builder.barrier()
        later = number + (STAGES - 1)
        builder.if_(
            builder.compare("ult", later, tiles),
            lambda: self._copy(
                later, builder.offset(builder.shared(), (later % STAGES) * self.stage)
            ),
        )
        builder.commit_copies()
        stage = builder.offset(builder.shared(), (number % STAGES) * self.stage)
        second = builder.offset(stage, self.a.nbytes)
        for k in range(self.a.depth * self.nbytes // STEP):
            rows = self._fragments_a(stage, k)
            columns = self._fragments_b(second, k)
            sums = self._multiply(rows, columns, sums)
        return sums

    def _multiply(
        self, rows: Sequence[Sequence[Value]], columns: Sequence[Sequence[Value]], sums: list[Value]
    ) -> list[Value]:
        """All tiles of 16 by 8, in an order in which neighbours share a fragment."""
        sums, count = list(sums), len(columns)
        for i, row in enumerate(rows):
            for j in range(count) if i % 2 == 0 else reversed(range(count)):
                at = (i * count + j) * 4
                sums[at : at + 4] = self._mma(row, columns[j], sums[at : at + 4])
        return sums

    def _mma(self, a: Sequence[Value], b: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        kind = {"f32": "tf32"}.get(self.product.dtype, self.product.dtype)
        parts = [", ".join(v.name for v in values) for values in (a, b, sums)]
        settings = (
            "layoutA = #nvvm.mma_layout<row>, layoutB = #nvvm.mma_layout<col>, "
            f"shape = #nvvm.shape<m = 16, n = 8, k = {STEP // self.nbytes}>, "
            f"multiplicandAPtxType = #nvvm.mma_type<{kind}>, "
            f"multiplicandBPtxType = #nvvm.mma_type<{kind}>"
        )
        made = self.builder.let(
            f"nvvm.mma.sync A[{parts[0]}] B[{parts[1]}] C[{parts[2]}] {{{settings}}} : "
            f"({a[0].type}, {b[0].type}, f32) -> {_SUMS}",
            _SUMS,
        )
        return [self.builder.field(made, k, "f32") for k in range(4)]

    # Fragments: what each lane holds of a tile of 16 rows (or 8 columns) by one step of depth.

    def _fragments_a(self, stage: Value, step: int) -> list[list[Value]]:
        """Four registers for each 16 rows: rows 0-7 and 8-15 of the first half of the step, then of
        the second half.
        """
        lane, tile, found = self.lane, self.a, []
        for i in range(self.shape.warp_m // 16):
            first = self.warp_m + i * 16
            if tile.padded:
                found.append(
                    self._single(stage, tile, first, step, ((0, 0), (8, 0), (0, 4), (8, 4)))
                )
            elif tile.source.by_depth:
                line = first + (lane & 15)
                found.append(self._matrices(stage, tile, line, (lane >> 4) + 2 * step, False))
            else:
                line = (lane & 7) + ((lane >> 4) << 3) + 16 * step
                chunk = ((lane >> 3) & 1) + (first >> 3)
                found.append(self._matrices(stage, tile, line, chunk, True))
        return found

    def _fragments_b(self, stage: Value, step: int) -> list[list[Value]]:
        """Two registers for each 8 columns: the first and the second half of the step."""
        lane, tile, found = self.lane, self.b, []
        for j in range(self.shape.warp_n // 16):
            first = self.warp_n + j * 16
            if tile.padded:
                for more in (0, 8):
                    places = ((more, 0), (more, 4))
                    found.append(self._single(stage, tile, first, step, places))
                continue
            if tile.source.by_depth:
                line = (lane & 7) + ((lane >> 4) << 3) + first
                chunk = ((lane >> 3) & 1) + 2 * step
            else:
                line, chunk = (lane & 15) + 16 * step, (lane >> 4) + (first >> 3)
            four = self._matrices(stage, tile, line, chunk, not tile.source.by_depth)
            found += [four[:2], four[2:]]
        return found

    def _matrices(
        self, stage: Value, tile: Tile, line: Value, chunk: Value, transpose: bool
    ) -> list[Value]:
        builder = self.builder
        place = line * tile.pitch + (tile.swizzled(chunk, line) << 4)
        words = builder.load_matrices(builder.offset(stage, place), transpose)
        return [self._operand(word) for word in words]

    def _single(
        self, stage: Value, tile: Tile, first: Value, step: int, places: Sequence[tuple[int, int]]
    ) -> list[Value]:
        """Elements of 4 bytes one by one. places: row and depth beyond those of the lane."""
        builder, lane = self.builder, self.lane
        start = (lane & 3) * tile.pitch + (first + (lane >> 2)) * 4
        pointer = builder.offset(stage, start)
        return [
            self._operand(
                builder.load(builder.offset(pointer, (8 * step + k) * tile.pitch + row * 4), "i32")
            )
            for row, k in places
        ]

    def _operand(self, word: Value) -> Value:
        """A register as mma takes it; f32 rounded to tf32."""
        builder, dtype = self.builder, self.product.dtype
        if dtype == "f16":
            return builder.convert("llvm.bitcast", word, "vector<2xf16>")
        if dtype == "f32":
            number = builder.convert("llvm.bitcast", word, "f32")
            return builder.let(
                f"nvvm.convert.float.to.tf32 {number.name} {{rnd = #nvvm.fp_rnd_mode<rna>}}",
                "i32",
            )
        return word

    # Results.

    def _keep(self, sums: Sequence[Value]) -> None:
        """Put the sums of this thread into shared memory, row by row."""
        builder, shape = self.builder, self.shape
        row, column = self.warp_m + (self.lane >> 2), self.warp_n + ((self.lane & 3) << 1)
        place = builder.offset(builder.shared(), row * self.pitch + column * 4)
        count = shape.warp_n // 8
        for number in range(0, len(sums), 2):
            tile, half = number // 4, number // 2 % 2
            down = tile // count * 16 + half * 8
            where = builder.offset(place, down * self.pitch + tile % count * 32)
            builder.store(builder.vector(sums[number : number + 2]), where, 8)

    def _finish(self) -> None:
        """Read the sums by rows, a few columns a thread; finish and store them."""
        builder, shape, product = self.builder, self.shape, self.product
        wide = 16 // self.results.nbytes
        apart = THREADS * wide // shape.n  # rows that are done at once
        thread = builder.thread()
        row, column = thread // (shape.n // wide), (thread % (shape.n // wide)) * wide
        start = builder.offset(builder.shared(), row * self.pitch + column * 4)

        def some(number: Value, _: Sequence[Value]) -> None:
            at = self.first_m + row + number
            place = builder.offset(start, number * self.pitch)

            def write() -> None:
                parts = [builder.load(builder.offset(place, 16 * k), "vector<4xf32>", 16)
                         for k in range(wide // 4)]  # fmt: skip
                totals = [builder.lane(part, k) for part in parts for k in range(4)]
                self._row(at, self.first_n + column, totals)

            if product.m.count % shape.m:
                builder.if_(builder.compare("ult", at, product.m.count), write)
            else:
                write()

        builder.for_(0, shape.m, apart, [], some)

    def _row(self, row: Value, column: Value, totals: Sequence[Value]) -> None:
        """Elements side by side in a row of C."""
        self.results.row(self.batch, row, column, totals, self.shape.n)
