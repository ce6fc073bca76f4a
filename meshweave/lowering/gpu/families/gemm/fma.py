"""Compute products in f32 and f64 by multiply-adds, one after another along the depth, each rounded once.

A block of 16 by 16 threads makes a tile of C, each thread `per` by `per` elements of it. The next
tiles of A and B are on their way in registers while those in shared memory are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm.kernel import ProductKernel
from meshweave.lowering.gpu.families.products import Contraction, ProductOperand
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.writer import both
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

SIDE = 16  # threads along rows and along columns
THREADS = SIDE * SIDE
DEPTH = 16  # of a tile
GROUP = 4  # neighbours in a tile that one thread has


def build(unit: KernelUnit, product: Contraction, target: Target, facts: Facts) -> DeviceKernel:
    """Return the kernel of a product of f32 or f64."""
    kernel = _FmaKernel(unit, product, facts)
    kernel.write()
    return kernel.finished(DETERMINISTIC)


def per_thread(product: Contraction) -> int:
    """Return the rows and columns of a thread: more make fewer reads, fewer make more blocks."""
    large = product.m.count * product.n.count * product.batch.count >= 1 << 21
    return 8 if product.dtype == "f32" and large else 4


class _FmaKernel(ProductKernel):
    def __init__(self, unit: KernelUnit, product: Contraction, facts: Facts) -> None:
        self.per = per_thread(product)
        self.tile = SIDE * self.per
        super().__init__("gemm_fma", unit, product, facts, THREADS, (self.tile, self.tile))
        self.kind = product.dtype
        self.nbytes = 8 if self.kind == "f64" else 4
        self.pitch = (self.tile + GROUP) * self.nbytes  # of a step of depth in shared memory
        self.half = DEPTH * self.pitch  # bytes of one operand's tile
        self.shared_bytes = 4 * self.half  # two operands, twice
        thread = self.writer.thread()
        self.down, self.across = thread // SIDE, thread % SIDE
        number = self.tile_number()
        self.first_m = (number % self.grid_m) * self.tile
        self.first_n = (number // self.grid_m) * self.tile
        self.a = _OperandTile(self, product.a, self.first_m)
        self.b = _OperandTile(self, product.b, self.first_n)

    def write(self) -> None:
        """Write the whole kernel."""
        writer, per = self.writer, self.per
        tiles = -(-self.product.depth // DEPTH)
        self._put(self._fetch(writer.constant(0)), writer.constant(0))
        writer.barrier()

        def step(number: Value, sums: list[Value]) -> list[Value]:
            later = number + 1
            more = writer.compare("ult", later, tiles)
            zeros = [writer.constant(0.0, self.kind)] * (2 * self.a.count)
            fetched = writer.if_(
                more, lambda: self._fetch(later), lambda: zeros, [self.kind] * len(zeros)
            )
            sums = self._multiply(number % 2, sums)
            writer.if_(more, lambda: self._put(fetched, later % 2))
            writer.barrier()
            return sums

        zeros = [writer.constant(0.0, self.kind)] * (per * per)
        self._store(writer.for_(0, tiles, 1, zeros, step))

    def _fetch(self, number: Value) -> list[Value]:
        return self.a.fetch(number) + self.b.fetch(number)

    def _put(self, values: Sequence[Value], which: Value) -> None:
        start = self.writer.offset(self.writer.shared(), which * (2 * self.half))
        self.a.put(values[: self.a.count], start)
        self.b.put(values[self.a.count :], self.writer.offset(start, self.half))

    def _multiply(self, which: Value, sums: list[Value]) -> list[Value]:
        writer, per, sums = self.writer, self.per, list(sums)
        start = writer.offset(writer.shared(), which * (2 * self.half))
        rows = writer.offset(start, self.down * (GROUP * self.nbytes))
        columns = writer.offset(
            writer.offset(start, self.half), self.across * (GROUP * self.nbytes)
        )
        for k in range(DEPTH):
            left, right = self._read(rows, k), self._read(columns, k)
            for i in range(per):
                for j in range(per):
                    at = i * per + j
                    sums[at] = writer.fma(left[i], right[j], sums[at])
        return sums

    def _read(self, start: Value, k: int) -> list[Value]:
        """Return a thread's elements of a step of depth: groups, SIDE groups apart."""
        writer, found = self.writer, []
        for group in range(self.per // GROUP):
            place = k * self.pitch + group * SIDE * GROUP * self.nbytes
            for part in range(0, GROUP, 16 // self.nbytes):
                wide = min(GROUP, 16 // self.nbytes)
                pointer = writer.offset(start, place + part * self.nbytes)
                words = writer.load(pointer, f"vector<{wide}x{self.kind}>", 16)
                found += [writer.lane(words, lane) for lane in range(wide)]
        return found

    def _store(self, sums: Sequence[Value]) -> None:
        writer, per, product = self.writer, self.per, self.product
        for i in range(per):
            row = self.first_m + self.down * GROUP + (i // GROUP * SIDE * GROUP + i % GROUP)

            def write(row: Value = row, i: int = i) -> None:
                for j in range(0, per, GROUP):
                    column = self.first_n + self.across * GROUP + j * SIDE
                    totals = sums[i * per + j : i * per + j + GROUP]
                    self.results.row(self.batch, row, column, totals, self.tile)

            writer.where(writer.inside(row, product.m.count, self.tile), write)


class _OperandTile:
    """Fetch tiles of an operand: elements that are neighbours in memory go to neighbouring threads."""

    def __init__(self, kernel: _FmaKernel, operand: ProductOperand, first: Value) -> None:
        self.kernel, self.operand, self.first = kernel, operand, first
        self.count = kernel.tile * DEPTH // THREADS  # elements of a thread
        thread = kernel.writer.thread()
        by_depth = operand.steps[-1] == 1
        size = DEPTH if by_depth else kernel.tile
        near, far = thread % size, thread // size
        self.row, self.k = (far, near) if by_depth else (near, far)
        self.apart = (THREADS // size, 0) if by_depth else (0, THREADS // size)
        self.base = kernel.base(operand, kernel.nbytes)

    def fetch(self, number: Value) -> list[Value]:
        """Return this thread's elements of the tile of depth `number`; what is outside is zero."""
        kernel, operand, found = self.kernel, self.operand, list[Value]()
        writer, frame, nbytes = kernel.writer, kernel.frame, kernel.nbytes
        rows, depth = operand.rows, kernel.product.k
        for issue in range(self.count):
            row = self.first + self.row + issue * self.apart[0]
            k = number * DEPTH + self.k + issue * self.apart[1]

            def read(row: Value = row, k: Value = k) -> list[Value]:
                offset = frame.bytes_to(row, rows.sizes, operand.strides, nbytes)
                offset = offset + frame.bytes_to(k, depth, operand.steps, nbytes)
                return [writer.load(writer.offset(self.base, offset), kernel.kind)]

            inside = both(
                writer.inside(row, rows.count, kernel.tile),
                writer.inside(k, kernel.product.depth, DEPTH),
            )
            found += writer.guarded(inside, read, [kernel.kind])
        return found

    def put(self, values: Sequence[Value], start: Value) -> None:
        """Lay the elements down, rows side by side for each step of depth."""
        writer, kernel = self.kernel.writer, self.kernel
        place = writer.offset(start, self.k * kernel.pitch + self.row * kernel.nbytes)
        for issue, value in enumerate(values):
            down = issue * self.apart[1] * kernel.pitch + issue * self.apart[0] * kernel.nbytes
            writer.store(value, writer.offset(place, down))
