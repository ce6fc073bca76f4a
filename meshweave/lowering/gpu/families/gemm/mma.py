"""Compute products on tensor cores (mma.sync, sm_80 and later): f16 and bf16, and f32 rounded to tf32; sums in f32.

A block of 4 warps makes a tile of C. Tiles of A and B come through a ring of stages in shared
memory: while one is multiplied, the copies of the next ones are under way. Then the sums go through
shared memory once more, so that rows of C are finished and written side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.device import CHIPS, Chip
from meshweave.hints.fast_paths import DETERMINISTIC, TOL
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm.fragments import STEP, Fragments
from meshweave.lowering.gpu.families.gemm.kernel import ProductKernel
from meshweave.lowering.gpu.families.gemm.tiles import OperandSource, OperandTile, source_of
from meshweave.lowering.gpu.families.products import Contraction
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

THREADS = 128
STAGES = 3


@dataclass(frozen=True)
class MmaShape:
    """Hold rows and columns of a block's tile of C, and of a warp's part of it."""

    m: int
    n: int
    warp_m: int
    warp_n: int


SHAPES = (
    MmaShape(128, 128, 64, 64),
    MmaShape(128, 64, 64, 32),
    MmaShape(64, 128, 32, 64),
    MmaShape(64, 64, 32, 32),
    MmaShape(128, 32, 32, 32),
    MmaShape(32, 128, 32, 32),
    MmaShape(32, 32, 16, 16),
)


def shape_for(product: Contraction, chip: Chip, sources: Sequence[OperandSource]) -> MmaShape:
    """Return the tile with the least work on the busiest multiprocessor, of those that its shared memory has room for.

    Work is what is multiplied, ragged edges included, and what is copied for it. Ties go to the
    largest. Where elements come one by one, through registers, a large tile leaves too few of these.
    """
    gathered = any(not source.piece for source in sources)

    def price(shape: MmaShape) -> float:
        rows, columns = -(-product.m.count // shape.m), -(-product.n.count // shape.n)
        rounds = -(-rows * columns * product.batch.count // chip.processors)
        return rounds * (shape.m * shape.n + 48.0 * (shape.m + shape.n))

    roomy = [s for s in SHAPES if shared_bytes(s, sources) <= chip.shared_bytes]
    fitting = [s for s in roomy if not gathered or s.warp_m * s.warp_n <= 32 * 32]
    return min(fitting or roomy, key=price)


def shared_bytes(shape: MmaShape, sources: Sequence[OperandSource]) -> int:
    """Return the shared memory of a block: for the stages of both operands, then for its sums."""
    stage = sum(source.tile(rows) for source, rows in zip(sources, (shape.m, shape.n)))
    return max(STAGES * stage, shape.m * pitch_of_sums(shape))


def pitch_of_sums(shape: MmaShape) -> int:
    """Return the bytes of a row of sums; 32 more than they take: the next rows lie in other banks."""
    return shape.n * 4 + 32


def build(unit: KernelUnit, product: Contraction, target: Target, facts: Facts) -> DeviceKernel:
    """Return the kernel of a product of f16, bf16 or (where the target allows tf32) f32."""
    rounded = product.dtype == "f32"
    family, nbytes = ("gemm_tf32", 4) if rounded else ("gemm_mma", 2)
    sources = [
        source_of(product, each, facts.alignments, nbytes) for each in (product.a, product.b)
    ]
    shape = shape_for(product, CHIPS[target.chip], sources)
    kernel = _MmaKernel(family, unit, product, facts, shape, sources)
    kernel.write()
    return kernel.finished(TOL if rounded else DETERMINISTIC)


class _MmaKernel(ProductKernel):
    def __init__(
        self,
        family: str,
        unit: KernelUnit,
        product: Contraction,
        facts: Facts,
        shape: MmaShape,
        sources: Sequence[OperandSource],
    ) -> None:
        super().__init__(family, unit, product, facts, THREADS, (shape.m, shape.n))
        self.shape, self.nbytes = shape, sources[0].nbytes
        thread = self.writer.thread()
        self.lane, warp = thread & 31, thread >> 5
        across = shape.m // shape.warp_m
        self.warp_m, self.warp_n = (warp % across) * shape.warp_m, (warp // across) * shape.warp_n
        self.first_m, self.first_n = self.tile_place()
        self.a, self.b = (
            OperandTile(
                self.frame, source, rows, THREADS, self.base(source.operand, self.nbytes), first
            )
            for source, rows, first in zip(
                sources, (shape.m, shape.n), (self.first_m, self.first_n)
            )
        )
        self.stage = self.a.nbytes + self.b.nbytes
        self.pitch = pitch_of_sums(shape)
        self.shared_bytes = shared_bytes(shape, sources)

    def write(self) -> None:
        """Write the whole kernel."""
        writer, shape = self.writer, self.shape
        inner = -(-self.product.k[-1] // self.a.depth)
        tiles = inner * (self.product.depth // self.product.k[-1])
        for k in range(STAGES - 1):
            if k < tiles:
                self._copy(writer.constant(k), writer.shared(k * self.stage))
            writer.commit_copies()
        count = (shape.warp_m // 16) * (shape.warp_n // 8) * 4
        zeros = [writer.constant(0.0, "f32")] * count
        sums = writer.for_(0, tiles, 1, zeros, lambda k, held: self._step(k, tiles, held))
        writer.barrier()
        self._keep(sums)
        writer.barrier()
        self._finish()

    def _copy(self, number: Value, stage: Value) -> None:
        self.a.copy(number, stage)
        self.b.copy(number, self.writer.offset(stage, self.a.nbytes))

    def _step(self, number: Value, tiles: int, sums: list[Value]) -> list[Value]:
        """Wait for a stage, begin the copies of the one STAGES - 1 later, multiply."""
        writer = self.writer
        writer.wait_copies(STAGES - 2)
        writer.barrier()
        later = number + (STAGES - 1)
        writer.if_(
            writer.compare("ult", later, tiles),
            lambda: self._copy(
                later, writer.offset(writer.shared(), (later % STAGES) * self.stage)
            ),
        )
        writer.commit_copies()
        lanes = Fragments(writer, self.lane, self.product.dtype)
        stage = writer.offset(writer.shared(), (number % STAGES) * self.stage)
        second = writer.offset(stage, self.a.nbytes)
        for k in range(self.a.depth * self.nbytes // STEP):
            rows = lanes.rows(self.a, stage, self.warp_m, self.shape.warp_m, k)
            columns = lanes.columns(self.b, second, self.warp_n, self.shape.warp_n, k)
            sums = lanes.multiply(rows, columns, sums)
        return sums

    # Results.

    def _keep(self, sums: Sequence[Value]) -> None:
        """Put the sums of this thread into shared memory, row by row."""
        row, column = self.warp_m + (self.lane >> 2), self.warp_n + ((self.lane & 3) << 1)
        self.keep_sums(sums, row, column, self.pitch, self.shape.warp_n // 8)

    def _finish(self) -> None:
        """Finish the sums and store them."""
        shape = self.shape
        self.store_sums(THREADS, self.pitch, (shape.m, shape.n), self.first_m, self.first_n)
