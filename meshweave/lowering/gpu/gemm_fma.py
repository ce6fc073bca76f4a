"""Products in f32 and f64 by multiply-adds, one after another along the depth, each rounded once.

A block of 16 by 16 threads makes a tile of C, each thread `per` by `per` elements of it. The next
tiles of A and B are on their way in registers while those in shared memory are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.fast_paths import DETERMINISTIC
from meshweave.lowering.bind import Access
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.gemm_results import Results
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.launch import entry_name
from meshweave.lowering.gpu.nodes import frame_of
from meshweave.lowering.gpu.products import Loops, Product
from meshweave.lowering.rows import Unit

SIDE = 16  # threads along rows and along columns
THREADS = SIDE * SIDE
DEPTH = 16  # of a tile
GROUP = 4  # neighbours in a tile that one thread has


def build(unit: Unit, product: Product, target: Target, facts: Facts) -> DeviceKernel:
    """The kernel of a product of f32 or f64."""
    name = entry_name("gemm_fma", unit)
    builder = Builder(name, parameters_of(unit, facts), THREADS, dynamic_shared=True, min_blocks=1)
    kernel = _Kernel(builder, unit, product, facts)
    kernel.write()
    return DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(product.batch.count * kernel.grid_m * kernel.grid_n, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=kernel.shared_bytes,
        parameters=parameter_types(unit),
        family="gemm_fma",
        numerics=DETERMINISTIC,
    )


def per_thread(product: Product) -> int:
    """Rows and columns of a thread: more make fewer reads, fewer make more blocks."""
    large = product.m.count * product.n.count * product.batch.count >= 1 << 21
    return 8 if product.dtype == "f32" and large else 4


class _Kernel:
    def __init__(self, builder: Builder, unit: Unit, product: Product, facts: Facts) -> None:
        self.builder, self.product = builder, product
        self.per = per_thread(product)
        self.tile = SIDE * self.per
        self.kind = product.dtype
        self.nbytes = 8 if self.kind == "f64" else 4
        self.pitch = (self.tile + GROUP) * self.nbytes  # of a step of depth in shared memory
        self.half = DEPTH * self.pitch  # bytes of one operand's tile
        self.shared_bytes = 4 * self.half  # two operands, twice
        self.grid_m = -(-product.m.count // self.tile)
        self.grid_n = -(-product.n.count // self.tile)
        self.frame = frame_of(builder, unit, "i64")
        self.results = Results(self.frame, unit, product, facts)
        thread = builder.thread()
        self.down, self.across = thread // SIDE, thread % SIDE
        block, tiles = builder.block(), self.grid_m * self.grid_n
        several = product.batch.count > 1
        self.batch = block // tiles if several else builder.constant(0)
        number = block % tiles if several else block
        self.first_m = (number % self.grid_m) * self.tile
        self.first_n = (number // self.grid_m) * self.tile
        p = product
        self.a = _Operand(self, p.a, p.m, p.a_depth, self.first_m)
        self.b = _Operand(self, p.b, p.n, p.b_depth, self.first_n)

    def write(self) -> None:
        """The whole kernel."""
        builder, per = self.builder, self.per
        tiles = -(-self.product.depth // DEPTH)
        self._put(self._fetch(builder.constant(0)), builder.constant(0))
        builder.barrier()

        def step(number: Value, sums: list[Value]) -> list[Value]:
            later = number + 1
            more = builder.compare("ult", later, tiles)
            zeros = [builder.constant(0.0, self.kind)] * (2 * self.a.count)
            fetched = builder.if_(
                more, lambda: self._fetch(later), lambda: zeros, [self.kind] * len(zeros)
            )
            sums = self._multiply(number % 2, sums)
            builder.if_(more, lambda: self._put(fetched, later % 2))
            builder.barrier()
            return sums

        zeros = [builder.constant(0.0, self.kind)] * (per * per)
        self._store(builder.for_(0, tiles, 1, zeros, step))

    def _fetch(self, number: Value) -> list[Value]:
        return self.a.fetch(number) + self.b.fetch(number)

    def _put(self, values: Sequence[Value], which: Value) -> None:
        start = self.builder.offset(self.builder.shared(), which * (2 * self.half))
        self.a.put(values[: self.a.count], start)
        self.b.put(values[self.a.count :], self.builder.offset(start, self.half))

    def _multiply(self, which: Value, sums: list[Value]) -> list[Value]:
        builder, per, sums = self.builder, self.per, list(sums)
        start = builder.offset(builder.shared(), which * (2 * self.half))
        rows = builder.offset(start, self.down * (GROUP * self.nbytes))
        columns = builder.offset(
            builder.offset(start, self.half), self.across * (GROUP * self.nbytes)
        )
        for k in range(DEPTH):
            left, right = self._read(rows, k), self._read(columns, k)
            for i in range(per):
                for j in range(per):
                    at = i * per + j
                    sums[at] = builder.fma(left[i], right[j], sums[at])
        return sums

    def _read(self, start: Value, k: int) -> list[Value]:
        """A thread's elements of a step of depth: groups, SIDE groups apart."""
        builder, found = self.builder, []
        for group in range(self.per // GROUP):
            place = k * self.pitch + group * SIDE * GROUP * self.nbytes
            for part in range(0, GROUP, 16 // self.nbytes):
                wide = min(GROUP, 16 // self.nbytes)
                pointer = builder.offset(start, place + part * self.nbytes)
                words = builder.load(pointer, f"vector<{wide}x{self.kind}>", 16)
                found += [builder.lane(words, lane) for lane in range(wide)]
        return found

    def _store(self, sums: Sequence[Value]) -> None:
        builder, per, product = self.builder, self.per, self.product
        for i in range(per):
            row = self.first_m + self.down * GROUP + (i // GROUP * SIDE * GROUP + i % GROUP)

            def write(row: Value = row, i: int = i) -> None:
                for j in range(0, per, GROUP):
                    column = self.first_n + self.across * GROUP + j * SIDE
                    totals = sums[i * per + j : i * per + j + GROUP]
                    self.results.row(self.batch, row, column, totals, self.tile)

            if product.m.count % self.tile:
                builder.if_(builder.compare("ult", row, product.m.count), write)
            else:
                write()


class _Operand:
    """Fetches tiles of an operand: elements that are neighbours in memory go to neighbouring
    threads.
    """

    def __init__(
        self, kernel: _Kernel, access: Access, rows: Loops, steps: tuple[int, ...], first: Value
    ) -> None:
        self.kernel, self.rows, self.steps, self.depth = kernel, rows, steps, kernel.product.k
        self.strides, self.access = rows.strides(access), access
        self.count = kernel.tile * DEPTH // THREADS  # elements of a thread
        builder, product = kernel.builder, kernel.product
        thread = builder.thread()
        by_depth = steps[-1] == 1
        size = DEPTH if by_depth else kernel.tile
        near, far = thread % size, thread // size
        self.row, self.k = (far, near) if by_depth else (near, far)
        self.apart = (THREADS // size, 0) if by_depth else (0, THREADS // size)
        self.first = first
        base = builder.offset(builder[f"p{access.pointer}"], access.const * kernel.nbytes)
        digits = kernel.frame.digits(builder.wide(kernel.batch), product.batch.sizes)
        for digit, stride in zip(digits, product.batch.strides(access)):
            base = builder.offset(base, digit * (stride * kernel.nbytes))
        self.base = base

    def fetch(self, number: Value) -> list[Value]:
        """This thread's elements of the tile of depth `number`; what is outside is zero."""
        builder, kernel, found = self.kernel.builder, self.kernel, []
        zero = builder.constant(0.0, kernel.kind)
        for issue in range(self.count):
            row = self.first + self.row + issue * self.apart[0]
            k = number * DEPTH + self.k + issue * self.apart[1]

            def read(row: Value = row, k: Value = k) -> list[Value]:
                offset = self._offset(row, self.rows.sizes, self.strides)
                offset = offset + self._offset(k, self.depth, self.steps)
                return [builder.load(builder.offset(self.base, offset), kernel.kind)]

            inside = self._inside(row, k)
            found += (
                read()
                if inside is None
                else builder.if_(inside, read, lambda: [zero], [kernel.kind])
            )
        return found

    def _inside(self, row: Value, k: Value) -> Value | None:
        """Whether an element exists; None: all do."""
        builder, kernel, found = self.kernel.builder, self.kernel, []
        if self.rows.count % kernel.tile:
            found.append(builder.compare("ult", row, self.rows.count))
        if kernel.product.depth % DEPTH:
            found.append(builder.compare("ult", k, kernel.product.depth))
        return found[0] & found[-1] if len(found) == 2 else (found[0] if found else None)

    def _offset(self, number: Value, sizes: Sequence[int], strides: Sequence[int]) -> Value:
        """Bytes to iteration `number` of loops."""
        builder, total = self.kernel.builder, self.kernel.builder.constant(0, "i64")
        for digit, stride in zip(self.kernel.frame.digits(number, sizes), strides):
            total = builder.wide(digit) * (stride * self.kernel.nbytes) + total
        return total

    def put(self, values: Sequence[Value], start: Value) -> None:
        """Lay the elements down, rows side by side for each step of depth."""
        builder, kernel = self.kernel.builder, self.kernel
        place = builder.offset(start, self.k * kernel.pitch + self.row * kernel.nbytes)
        for issue, value in enumerate(values):
            down = issue * self.apart[1] * kernel.pitch + issue * self.apart[0] * kernel.nbytes
            builder.store(value, builder.offset(place, down))
