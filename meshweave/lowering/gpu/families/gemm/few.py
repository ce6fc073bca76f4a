"""Compute products with few rows (or columns): each weight is read once, 16 bytes at a time, for all of the rows.

The larger operand, the weights, lies side by side along the depth, or across it. Along: a warp has a few lines of the
weights, its threads neighbouring parts of each, and adds up what they have by shuffles. Across: a thread has
neighbouring lines, the warps of a block take turns at the depth, and meet in shared memory. Where that makes too few
blocks the depth is cut in pieces; a second kernel adds the sums of pieces, in order, and goes on with the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.buffers.steps import Root
from meshweave.lowering.gpu.facts import MOST, Facts
from meshweave.lowering.gpu.families.gemm.results import Results
from meshweave.lowering.gpu.families.groups import shuffled
from meshweave.lowering.gpu.families.launch import (
    MOST_BLOCKS,
    frame_for,
    global_thread,
    threads_for,
)
from meshweave.lowering.gpu.families.pieces import SCRATCH
from meshweave.lowering.gpu.families.products import Contraction, ProductOperand
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.nests.bind import Pointed, Pointers
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

FAMILY = "gemm_rows"
FEW = 8  # rows, or columns, below which a product is one of few
MANY, DEEP = 32, 64  # lines of the weights, and their length, from which this pays
BLOCKS = 264  # of the grid, about: two for each multiprocessor
MOST_PIECES = 64
SHORTEST = 64  # depth of a piece, at least
WARPS_ALONG, WARPS_ACROSS = 4, 8
# Elements of the depth that a thread reads before it adds, and those with more rows than 4.
DEPTH_ACROSS, DEPTH_OF_MORE = 16, 4
_WIDTH = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


class Sides(NamedTuple):
    """Hold the operands of a product: that of few rows, and the weights."""

    few: ProductOperand
    weights: ProductOperand

    @property
    def along(self) -> bool:
        """Tell whether the weights lie side by side along the depth."""
        return self.weights.steps[-1] == 1


class FewShape(NamedTuple):
    """Say how the work is given to threads.

    lanes: elements of the weights that one access reads; per: lines of a warp (along) or steps of depth that a thread
    does at once (across); tiles: blocks side by side; groups: turns that there are along the depth; pieces: of it.
    """

    lanes: int
    per: int
    tiles: int
    groups: int
    pieces: int


@dataclass
class SplitProduct(KernelUnit):
    """Hold a product whose depth is cut in `pieces`: the launch that adds up pieces, or the one that `joins` them.

    Its last pointer is that of the sums, in scratch memory: by piece, product of the batch, row of the few, line.
    """

    pieces: int
    joins: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Return a value that is equal for units with the same code."""
        return (*super().key, self.pieces, self.joins)


def sides(product: Contraction) -> Sides | None:
    """Return the operands of a product of few rows or columns; None for any other."""
    a, b = product.a, product.b
    few, weights = (a, b) if a.rows.count <= b.rows.count else (b, a)
    if few.rows.count >= FEW or weights.rows.count < MANY or product.depth < DEEP:
        return None
    if weights.steps[-1] != 1 and (not weights.strides or weights.strides[-1] != 1):
        return None
    return Sides(few, weights)


def shape_of(product: Contraction, found: Sides, facts: Facts) -> FewShape | None:
    """Return how threads share the work; None where there are more blocks than a grid has."""
    weights, nbytes = found.weights, _WIDTH[product.dtype]
    batch = product.batch.count
    lines = weights.rows.count
    if found.along:
        lanes = _lanes(product, weights, facts, product.k[-1], True)
        groups, per = product.depth // lanes, 4
        while per > 1 and batch * -(-lines // (per * WARPS_ALONG)) < BLOCKS:
            per //= 2
        tiles = -(-lines // (per * WARPS_ALONG))
        least = SHORTEST * 32 // 8 // lanes  # groups: a few turns of a warp
    else:
        lanes = _lanes(product, weights, facts, weights.rows.sizes[-1], False)
        per = DEPTH_ACROSS if found.few.rows.count <= 4 else DEPTH_OF_MORE
        while product.k[-1] % per:
            per //= 2
        groups, tiles = product.depth // per, -(-lines // (32 * lanes))
        least = -(-SHORTEST // per)
    blocks = batch * tiles
    pieces = max(1, min(-(-BLOCKS // blocks), groups // max(least, 1), MOST_PIECES))
    each = -(-groups // pieces)
    pieces = -(-groups // each)
    assert nbytes * lanes <= MOST
    return FewShape(lanes, per, tiles, groups, pieces) if blocks * pieces <= MOST_BLOCKS else None


def _lanes(
    product: Contraction, operand: ProductOperand, facts: Facts, size: int, along: bool
) -> int:
    """Return the neighbouring elements that one access reads: along the depth, or across it. size: of their loop."""
    nbytes, access = _WIDTH[product.dtype], operand.access
    batch, lines, steps = product.batch.strides(access), operand.strides, operand.steps
    apart = [*batch, *(lines if along else lines[:-1]), *(steps[:-1] if along else steps)]
    count = MOST // nbytes
    while count > 1 and (
        size % count
        or facts.alignments[access.pointer] % (count * nbytes)
        or any(stride % count for stride in apart)
    ):
        count //= 2
    return count


def parts_of(
    unit: KernelUnit, product: Contraction, facts: Facts
) -> list[tuple[KernelUnit, Facts]] | None:
    """Return the two launches of a product whose depth is cut; None for one that is done at once."""
    found = sides(product)
    shape = None if found is None else shape_of(product, found, facts)
    if shape is None or shape.pieces == 1:
        return None
    width = 8 if product.dtype == "f64" else 4
    nbytes = width * shape.pieces * product.batch.count * product.m.count * product.n.count
    some_value = unit.pointers.places[0].root.value  # scratch memory is no value of the program
    places = [
        *unit.pointers.places,
        Pointed(Root(SCRATCH, 0, nbytes, some_value), Linear(0), width),
    ]
    scalars, last = list(unit.pointers.scalars), len(places) - 1
    known = Facts((*facts.alignments, MOST), facts.dead)
    halves = list[tuple[KernelUnit, Facts]]()
    for joins in (False, True):
        written = set(unit.pointers.written) if joins else {last}
        pointers = Pointers(list(places), written, scalars)
        half = SplitProduct(unit.nests, unit.rows, pointers, unit.steps, shape.pieces, joins)
        halves.append((half, known))
    return halves


def build(
    unit: KernelUnit, product: Contraction, target: Target, facts: Facts
) -> DeviceKernel | None:
    """Return the kernel of a product of few rows, or of one of its halves."""
    found = sides(product)
    assert found is not None, "a family is asked for what it computes"
    if isinstance(unit, SplitProduct) and unit.joins:
        return _join(unit, product, facts)
    shape = shape_of(product, found, facts)
    if shape is None:
        return None
    if not isinstance(unit, SplitProduct):
        shape = shape._replace(pieces=1)
    code = (_Along if found.along else _Across)(unit, product, found, shape, facts)
    code.write()
    blocks = product.batch.count * shape.tiles * shape.pieces
    return DeviceKernel.of(code.writer, blocks, FAMILY, DETERMINISTIC)


def _join(unit: SplitProduct, product: Contraction, facts: Facts) -> DeviceKernel | None:
    """Return the kernel that adds the sums of pieces: a thread for each element of the result."""
    total = product.batch.count * product.m.count * product.n.count
    threads = threads_for(total)
    blocks = -(-total // threads)
    if blocks > MOST_BLOCKS:
        return None
    frame = frame_for(FAMILY, unit, facts, threads, index="i64")
    writer, results = frame.writer, Results(frame, unit, product, facts)
    found = sides(product)
    assert found is not None
    number = global_thread(frame)
    kind = "f64" if product.dtype == "f64" else "f32"
    width = _WIDTH[kind]

    def element() -> None:
        place = writer.offset(frame.pointers[-1], number * width)

        def add(k: Value, sums: list[Value]) -> list[Value]:
            return [sums[0] + writer.load(writer.offset(place, k * (total * width)), kind)]

        (value,) = writer.for_(0, unit.pieces, 1, [writer.constant(0.0, kind)], add, "i64")
        lines, few = found.weights.rows, found.few.rows
        line, row = number % lines.count, number // lines.count
        batch = row // few.count
        results.element(_index(frame, product, found, batch, row % few.count, line), value)

    writer.where(
        writer.compare("ult", number, total) if blocks * threads != total else None, element
    )
    return DeviceKernel.of(writer, blocks, FAMILY, DETERMINISTIC)


def _index(
    frame: DeviceFrame, product: Contraction, found: Sides, batch: Value, row: Value, line: Value
) -> list[Value | None]:
    """Return the indices of an element of the result: of the loops of the contraction."""
    index: list[Value | None] = [None] * len(product.nest.sizes)
    groups = (product.batch, found.few.rows, found.weights.rows)
    for loops, number in zip(groups, (batch, row, line)):
        for dim, digit in zip(loops.dims, frame.digits(number, loops.sizes)):
            index[dim] = digit
    return index


class _FewKernel:
    """Write the kernel that reads the weights."""

    warps: int

    def __init__(
        self, unit: KernelUnit, product: Contraction, found: Sides, shape: FewShape, facts: Facts
    ) -> None:
        self.unit, self.product, self.shape, self.sides = unit, product, shape, found
        self.rows, self.lines = found.few.rows.count, found.weights.rows.count
        self.kind = "f64" if product.dtype == "f64" else "f32"
        self.nbytes = _WIDTH[product.dtype]
        self.frame = frame_for(
            FAMILY, unit, facts, 32 * self.warps, index="i64", shared_bytes=self.shared_bytes()
        )
        self.writer = writer = self.frame.writer
        self.results = Results(self.frame, unit, product, facts)
        thread = writer.thread()
        self.thread = writer.wide(thread)
        self.lane, self.warp = writer.wide(thread % 32), writer.wide(thread // 32)
        block = writer.wide(writer.block())
        self.piece, block = block % shape.pieces, block // shape.pieces
        self.tile, self.batch = block % shape.tiles, block // shape.tiles
        each = -(-shape.groups // shape.pieces)
        self.first = self.piece * each
        self.end = writer.least(self.first + each, shape.groups)
        few = found.few.access
        self.aligned = math.gcd(
            facts.alignments[few.pointer] // self.nbytes or 1,
            *product.batch.strides(few), *found.few.strides, *found.few.steps[:-1],
        )  # fmt: skip

    def shared_bytes(self) -> int:
        """Return the bytes of shared memory of a block."""
        raise NotImplementedError

    def write(self) -> None:
        """Write the whole kernel."""
        raise NotImplementedError

    def start(self, operand: ProductOperand) -> Value:
        """Return the address of an operand's first element for this product of the batch."""
        base = self.frame.pointers[operand.access.pointer]
        batch = self.product.batch
        strides = batch.strides(operand.access)
        offset = self.frame.bytes_to(self.batch, batch.sizes, strides, self.nbytes)
        return self.writer.offset(base, offset) if batch.dims else base

    def row_starts(self) -> list[Value]:
        """Return the address where each of the few rows begins."""
        operand, start = self.sides.few, self.start(self.sides.few)
        found = []
        for row in range(self.rows):
            offset, rest = 0, row
            for size, stride in zip(reversed(operand.rows.sizes), reversed(operand.strides)):
                offset, rest = offset + rest % size * stride, rest // size
            found.append(self.writer.offset(start, offset * self.nbytes))
        return found

    def down(self, group: Value, count: int, operand: ProductOperand) -> Value:
        """Return the bytes to group `group` of `count` steps of depth."""
        sizes = [*self.product.k[:-1], self.product.k[-1] // count]
        steps = [*operand.steps[:-1], operand.steps[-1] * count]
        return self.frame.bytes_to(group, sizes, steps, self.nbytes)

    def read(self, place: Value, count: int, step: int, most: int) -> list[Value]:
        """Load `count` elements, `step` apart, as they are multiplied. most: neighbours that one access may read."""
        writer, kind, found = self.writer, self.product.dtype, list[Value]()
        size = math.gcd(count, most) if step == 1 else 1
        for k in range(0, count, size):
            here = writer.offset(place, k * step * self.nbytes)
            if size == 1:
                found.append(writer.load(here, kind))
            else:
                whole = writer.load(here, f"vector<{size}x{kind}>", size * self.nbytes)
                found += [writer.lane(whole, lane) for lane in range(size)]
        return [self.frame.widened(v) for v in found]

    def read_row(self, place: Value, count: int) -> list[Value]:
        """Load `count` neighbours along the depth of one of the few rows."""
        most = math.gcd(self.aligned, MOST // self.nbytes)
        return self.read(place, count, self.sides.few.steps[-1], most)

    def finish(self, row: Value, line: Value, total: Value) -> None:
        """Leave the sum of one element: in scratch memory, or with all that is done to it in the result."""
        writer, product = self.writer, self.product
        if not isinstance(self.unit, SplitProduct):
            index = _index(self.frame, product, self.sides, self.batch, row, line)
            self.results.element(index, total)
            return
        before = self.piece * product.batch.count + self.batch
        number = (before * self.rows + row) * self.lines + line
        writer.store(total, writer.offset(self.frame.pointers[-1], number, self.kind))


class _Along(_FewKernel):
    """The weights lie side by side along the depth: a warp has `per` lines of them."""

    warps = WARPS_ALONG

    def shared_bytes(self) -> int:
        """Return 0: threads of a warp shuffle."""
        return 0

    def write(self) -> None:
        """Add up the parts of each thread, then those of the warp."""
        writer, shape, per = self.writer, self.shape, self.shape.per
        weights, lanes = self.sides.weights, shape.lanes
        first = (self.tile * self.warps + self.warp) * per
        start, lines = self.start(weights), list[Value]()
        for k in range(per):
            line = writer.least(first + k, self.lines - 1)  # what is beyond is not stored
            offset = self.frame.bytes_to(line, weights.rows.sizes, weights.strides, self.nbytes)
            lines.append(writer.offset(start, offset))
        rows = self.row_starts()

        def turn(group: Value, sums: list[Value]) -> list[Value]:
            there = self.down(group, lanes, weights)
            right = [self.read(writer.offset(line, there), lanes, 1, lanes) for line in lines]
            here = self.down(group, lanes, self.sides.few)
            left = [self.read_row(writer.offset(row, here), lanes) for row in rows]
            sums = list(sums)
            for lane in range(lanes):
                for i in range(self.rows):
                    for j in range(per):
                        at = i * per + j
                        sums[at] = writer.fma(left[i][lane], right[j][lane], sums[at])
            return sums

        zeros = [writer.constant(0.0, self.kind)] * (self.rows * per)

        def twice(group: Value, carried: list[Value]) -> list[Value]:
            return [carried[0] + 64, *turn(group + 32, turn(group, carried[1:]))]

        begin, most = self.first + self.lane, self.end - 32
        begin, *sums = writer.for_(begin, most, 64, [begin, *zeros], twice, "i64")
        sums = writer.for_(begin, self.end, 32, sums, turn, "i64")
        distance = 16
        while distance:
            sums = [v + shuffled(writer, v, distance, 32) for v in sums]
            distance //= 2
        mine = sums[0]
        for k, value in enumerate(sums[1:], 1):
            mine = writer.select(writer.compare("eq", self.lane, k), value, mine)
        row, line = self.lane // per, first + self.lane % per
        exists = writer.compare("ult", self.lane, len(sums))
        exists = exists & writer.compare("ult", line, self.lines)
        writer.if_(exists, lambda: self.finish(row, line, mine))


class _Across(_FewKernel):
    """The weights lie side by side across the depth: a thread has `lanes` neighbouring lines of them."""

    warps = WARPS_ACROSS

    def shared_bytes(self) -> int:
        """Return the bytes in which the warps meet, row by row."""
        return self.warps * 32 * self.shape.lanes * _WIDTH[self.kind]

    def write(self) -> None:
        """Add up the parts of each warp, then those of the block."""
        writer, shape, per = self.writer, self.shape, self.shape.per
        weights, lanes = self.sides.weights, shape.lanes
        groups = self.lines // lanes
        column = writer.least(self.tile * 32 + self.lane, groups - 1) * lanes
        offset = self.frame.bytes_to(column, weights.rows.sizes, weights.strides, self.nbytes)
        lines, rows = writer.offset(self.start(weights), offset), self.row_starts()
        step = weights.steps[-1] * self.nbytes

        def turn(group: Value, sums: list[Value]) -> list[Value]:
            there = writer.offset(lines, self.down(group, per, weights))
            right = [self.read(writer.offset(there, k * step), lanes, 1, lanes) for k in range(per)]
            here = self.down(group, per, self.sides.few)
            left = [self.read_row(writer.offset(row, here), per) for row in rows]
            sums = list(sums)
            for k in range(per):
                for i in range(self.rows):
                    for lane in range(lanes):
                        at = i * lanes + lane
                        sums[at] = writer.fma(left[i][k], right[k][lane], sums[at])
            return sums

        zeros = [writer.constant(0.0, self.kind)] * (self.rows * lanes)
        sums = writer.for_(self.first + self.warp, self.end, self.warps, zeros, turn, "i64")
        for row in range(self.rows):
            self._meet(row, sums[row * lanes : (row + 1) * lanes])

    def _meet(self, row: int, sums: Sequence[Value]) -> None:
        """Add what the warps have of one row, each thread for lines of its own, and leave it."""
        writer, lanes, width = self.writer, self.shape.lanes, _WIDTH[self.kind]
        line_bytes = 32 * lanes * width
        if row:
            writer.barrier()
        place = writer.offset(writer.shared(), self.warp * line_bytes + self.lane * (lanes * width))
        most = min(lanes, MOST // width)
        for k in range(0, lanes, most):
            here = writer.offset(place, k * width)
            if most > 1:
                writer.store(writer.vector(list(sums[k : k + most])), here, most * width)
            else:
                writer.store(sums[k], here)
        writer.barrier()
        count, threads = 32 * lanes, 32 * self.warps

        def add() -> None:
            start = writer.offset(writer.shared(), self.thread * width)
            total = writer.load(start, self.kind)
            for warp in range(1, self.warps):
                total = total + writer.load(writer.offset(start, warp * line_bytes), self.kind)
            line = self.tile * count + self.thread
            number = writer.constant(row, "i64")
            writer.where(
                writer.inside(line, self.lines, count), lambda: self.finish(number, line, total)
            )

        writer.where(writer.inside(self.thread, count, threads), add)
