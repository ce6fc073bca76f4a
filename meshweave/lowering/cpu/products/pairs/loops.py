"""Write products of bf16, added up in f32, and of short integers, in int32: parts are packed, blocks of sums added to.

A part of the right matrix, as much as the second cache has room for, is packed and used for all rows; of the left one
a block of rows. Which of the two matrices is the right one is decided by what packing takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.hints.fast_paths import BF16
from meshweave.ir.expressions import Apply
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.products.blas import (
    by_class,
    classes_of,
    extent,
    side,
    starts_at_zero,
)
from meshweave.lowering.cpu.products.pairs.packing import (
    BLOCK,
    DEPTH,
    LINES,
    BlockPacker,
    PackedSide,
    digits,
    is_even,
    is_one_walk,
)
from meshweave.lowering.cpu.products.pairs.units import (
    ROWS_TOGETHER,
    DotUnit,
    PairUnit,
    SumBlock,
    TileUnit,
)
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import Access, LoopNest, merged
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value
from meshweave.plan.machine import bf16_unit, integer_unit
from meshweave.processor import AMX

PANEL = 1 << 18  # bytes of the right matrix that are packed at a time: they are on the stack
DEEP = 512  # steps of depth at a time
FEWEST = 8  # rows, columns and steps of depth, below which other loops are faster
LEAST_USED = 0.2  # part of blocks, below which products of the type of sums are faster
RATE = 64  # multiplications a cycle
APART = 1.0  # cycles to write a result whose neighbours in a row lie apart


@dataclass(frozen=True)
class PairProduct:
    """Describe a product in loops: result[rows, columns] is the sum of left[rows, depth] right[depth, columns].

    outer: all other loops. unit: what multiplies, "tiles" or "dots".
    """

    nest: LoopNest
    outer: tuple[int, ...]
    left: PackedSide
    right: PackedSide
    result: Access
    unit: str

    @property
    def sums(self) -> str:
        """Return the type of the sums."""
        return str(self.nest.stores[0].type)

    def size(self, loops: tuple[int, ...]) -> int:
        """Count the iterations of some loops."""
        return math.prod(self.nest.sizes[d] for d in loops)

    @property
    def rows(self) -> int:
        """Count the rows."""
        return self.size(self.left.lines)

    @property
    def columns(self) -> int:
        """Count the columns."""
        return self.size(self.right.lines)

    @property
    def depth(self) -> int:
        """Count the steps of depth."""
        return self.size(self.left.depth)

    @property
    def step(self) -> int:
        """Return the distance of neighbouring columns in the result."""
        return self.result.strides[self.right.lines[-1]]

    @property
    def cycles(self) -> float:
        """Estimate the time."""
        panels = -(-self.columns // _width(self))
        packing = self.rows * panels * self.left.cost + self.columns * self.right.cost
        writing = self.rows * self.columns * (1 / LINES if self.step == 1 else APART)
        multiplying = self.rows * self.columns * self.depth / self.used / RATE
        return packing * self.depth + writing * -(-self.depth // DEEP) + multiplying

    @property
    def used(self) -> float:
        """Return which part of what vectors multiply belongs to the product: blocks are filled up."""
        block = (ROWS_TOGETHER, DotUnit.columns * LINES, DEPTH)
        sizes = (self.rows, self.columns, self.depth)
        return math.prod(n / (-(-n // b) * b) for n, b in zip(sizes, block))


def product_of(nest: LoopNest) -> PairProduct | None:
    """Return the product that a contraction is, with the matrices arranged so that it takes the least time.

    Return None where this processor has no instructions for it, or other loops serve it better.
    """
    if not _unit_of(nest):
        return None
    nest = merged(by_class(nest))
    names = classes_of(nest)
    if "?" in names:
        return None
    a, b, c = nest.accesses
    found = []
    for order in _orders(nest, [d for d, name in enumerate(names) if name == "k"]):
        found.append(_product(nest, names, "mn", (a, b, c), order))
        found.append(_product(nest, names, "nm", (b, a, c), order))
    return min((p for p in found if p is not None), key=lambda p: p.cycles, default=None)


def _orders(nest: LoopNest, depth: Sequence[int]) -> list[tuple[int, ...]]:
    """List orders of the loops over the depth: an even one innermost, or as one of the operands lies."""
    left, right = (access.strides for access in nest.accesses[:2])

    def even(d: int) -> tuple[bool, int]:
        return nest.sizes[d] % DEPTH == 0, (left[d] == 1) + (right[d] == 1)

    orders = [sorted(depth, key=even)]
    orders += [sorted(depth, key=lambda d: -steps[d]) for steps in (left, right)]
    return [order for order in dict.fromkeys(map(tuple, orders)) if not side(nest, order)[0]]


def _unit_of(nest: LoopNest) -> str:
    """Return what multiplies the pairs of a nest that adds up products of two loads; "" where nothing does."""
    if not nest.contraction or len(nest.loads) != 2 or not starts_at_zero(nest):
        return ""
    sums, kinds = str(nest.stores[0].type), {str(load.type) for load in nest.loads}
    applied = [node for node in nest.code if isinstance(node, Apply)]
    if any(node.is_exact or str(node.type) != sums for node in applied):
        return ""
    if sums == "f32" and kinds == {"bf16"}:
        return bf16_unit() if BF16 in nest.switches else ""
    signed = sorted(node.name for node in applied) == _OF_INTEGERS
    return integer_unit() if sums == "i32" and kinds <= {"i8", "i16"} and signed else ""


_OF_INTEGERS = ["arith.addi", "arith.extsi", "arith.extsi", "arith.muli"]


def _product(
    nest: LoopNest,
    names: list[str],
    sides: str,
    accesses: tuple[Access, Access, Access],
    depth: tuple[int, ...],
) -> PairProduct | None:
    """Return the product whose rows and columns are loops of these classes; None where it does not fit blocks."""
    left, right, result = accesses
    sizes = nest.sizes

    def loops(name: str) -> tuple[int, ...]:
        return tuple(d for d, found in enumerate(names) if found == name)

    (_, rows), (_, columns) = (side(nest, loops(name)) for name in sides)
    taken = {*rows, *columns, *depth}
    outer = tuple(d for d in range(len(names)) if d not in taken)
    if not rows or not columns or not depth or not is_one_walk(sizes, columns, result):
        return None
    product = PairProduct(
        nest,
        outer,
        PackedSide(sizes, rows, depth, left, True, _element(nest, left)),
        PackedSide(sizes, columns, depth, right, False, _element(nest, right)),
        result,
        _unit_of(nest),
    )
    few = min(product.rows, product.columns, product.depth) < FEWEST
    if few or (product.unit == "dots" and product.used < LEAST_USED):
        return None
    return product if product.left.fits and product.right.fits else None


def _element(nest: LoopNest, access: Access) -> str:
    """Return the type in which an operand is packed: bits of bf16 are integers."""
    (kind,) = {str(load.type) for load in nest.loads if load.access == access}
    return "i16" if kind == "bf16" else kind


def _deep(product: PairProduct) -> int:
    """Return how many steps of depth are packed at a time."""
    return min(DEEP, -(-product.depth // DEPTH) * DEPTH)


def _width(product: PairProduct) -> int:
    """Return how many columns are packed at a time."""
    block = 4 * LINES
    most = PANEL // (2 * _deep(product)) // block * block
    return min(most, -(-product.columns // block) * block)


def product_text(name: str, unit: KernelUnit, product: PairProduct) -> str:
    """Write the function `name` that does the product."""
    writer = FunctionWriter(unit)
    machine = _unit(product)
    machine.begin(writer)
    counters = {d: writer.open(writer.end(product.nest, d)) for d in product.outer}
    _Loops(writer, product, counters, machine).write()
    for _ in product.outer:
        writer.close()
    machine.end(writer)
    return writer.text(name)


def features_of(product: PairProduct) -> frozenset[str]:
    """Return the features of the processor that the function of a product asks for by name."""
    return AMX if isinstance(_unit(product), TileUnit) else frozenset()


def _unit(product: PairProduct) -> PairUnit:
    """Return what multiplies on this machine."""
    if product.unit == "tiles":
        return TileUnit(1 if product.rows <= LINES else 2)
    return DotUnit(product.sums)


@dataclass(frozen=True)
class _PackedPart:
    """Describe a part of the right matrix that is packed: its first column and step of depth, and how many."""

    column: Value
    columns: Value
    start: Value
    depth: Value


class _Loops:
    """Write one product inside loops `counters` that are open."""

    def __init__(
        self,
        writer: FunctionWriter,
        product: PairProduct,
        counters: dict[int, Value],
        machine: PairUnit,
    ) -> None:
        self.writer, self.product, self.machine = writer, product, machine
        self.rows, self.columns = machine.rows * LINES, machine.columns * LINES
        self.deep, self.width = _deep(product), _width(product)
        self.blocks = self.deep // DEPTH  # of a line of blocks
        p, pointers = product, writer.frame.pointers
        self.left, self.right = (
            BlockPacker(
                writer,
                side,
                self._placed(pointers[side.access.pointer], side.access, counters, side.element),
            )
            for side in (p.left, p.right)
        )
        self.result = self._placed(pointers[p.result.pointer], p.result, counters, p.sums)
        self.panel = writer.local_buffer(self.deep * self.width, "i16")
        self.lines = writer.local_buffer(self.deep * self.rows, "i16")
        self.sums = writer.local_buffer(self.rows * self.columns, p.sums)
        self.starts = p.nest.stores[0].initial is not None

    def write(self) -> None:
        """Write the parts of the right matrix, in them all rows."""
        writer, p = self.writer, self.product
        rows, columns = (extent(writer, p.nest, of.lines) for of in (p.left, p.right))
        depth = extent(writer, p.nest, p.left.depth)
        # Sums of nothing are written too.
        least = writer.greatest(depth, 1) if isinstance(depth, Value) else depth
        start = writer.open(least, self.deep)
        column = writer.open(columns, self.width)
        part = _PackedPart(
            column,
            tiles.minimum(writer, column, columns, self.width),
            start,
            tiles.minimum(writer, start, depth, self.deep),
        )
        self.right.pack(column, part.columns, start, part.depth, self.panel, self.blocks)
        row = writer.open(rows, self.rows)
        self._rows(row, tiles.minimum(writer, row, rows, self.rows), part)
        for _ in range(3):
            writer.close()

    def _rows(self, row: Value, rows: Value, part: _PackedPart) -> None:
        """Write a few rows of a part."""
        writer = self.writer
        self.left.pack(row, rows, part.start, part.depth, self.lines, self.blocks)
        column = writer.open(part.columns, self.columns)
        columns = writer.let(
            f"arith.minsi {(part.columns - column).name}, "
            f"{writer.constant(self.columns, 'i64').name} : i64",
            "i64",
        )
        at = writer.times(writer.times(column // LINES, self.blocks), BLOCK)
        right = writer.offset(self.panel, at)
        self._block(row, rows, writer.plus(part.column, column), columns, right, part)
        writer.close()

    def _block(
        self,
        row: Value,
        rows: Value,
        column: Value,
        columns: Value,
        right: Value,
        part: _PackedPart,
    ) -> None:
        """Write one block of sums: where it lies, or in a local buffer of which a part is added to the result."""
        writer, p = self.writer, self.product
        begins = self._begins(part)
        depth = writer.plus(part.depth, DEPTH - 1) // DEPTH
        apart = self.blocks * BLOCK
        step = writer.constant(4 * self.columns, "i64")
        beside = SumBlock(self.lines, right, apart, depth, self.sums, step, True, rows)

        def through() -> None:
            self.machine.add(writer, beside)
            self._copy(row, rows, column, columns, begins)

        apart_alike = is_even(p.nest.sizes, p.left.lines, self.rows) or is_one_walk(
            p.nest.sizes, p.left.lines, p.result
        )
        if p.step != 1 or not apart_alike:
            through()
            return
        last = p.result.strides[p.left.lines[-1]]
        place = self._row(row)
        place = writer.offset(place, column, p.sums)
        there = SumBlock(
            self.lines,
            right,
            apart,
            depth,
            place,
            writer.constant(4 * last, "i64"),
            begins,
            self.rows,
        )
        if not p.nest.limits and p.rows % self.rows == 0 and p.columns % self.columns == 0:
            self.machine.add(writer, there)
            return
        whole = writer.compare("eq", rows, self.rows) & writer.compare("eq", columns, self.columns)
        writer.if_(whole, lambda: self.machine.add(writer, there), through)

    def _begins(self, part: _PackedPart) -> Value | bool:
        """Tell whether the sums of a part begin at zero."""
        if not self.starts or self.product.depth <= self.deep:
            return self.starts
        return self.writer.compare("eq", part.start, 0)

    def _copy(
        self, row: Value, rows: Value, column: Value, columns: Value, begins: Value | bool
    ) -> None:
        """Write sums of the local buffer to the result, or add them to it."""
        writer, p = self.writer, self.product
        r = writer.open(rows)
        line = writer.offset(self.sums, writer.times(r, self.columns), p.sums)
        place = self._row(writer.plus(row, r))
        place = writer.offset(place, writer.times(column, p.step), p.sums)
        c = writer.open(columns)
        value = writer.load(writer.offset(line, c, p.sums), p.sums)
        into = writer.offset(place, writer.times(c, p.step), p.sums)
        if begins is not True:
            both = writer.load(into, p.sums) + value
            value = both if begins is False else writer.select(begins, value, both)
        writer.store(value, into)
        writer.close()
        writer.close()

    def _row(self, row: Value) -> Value:
        """Return where a row of the result begins."""
        p = self.product
        indices = digits(p.nest.sizes, p.left.lines, row)
        return self._placed(self.result, p.result, indices, p.sums)

    def _placed(
        self, pointer: Value, access: Access, indices: dict[int, Value], kind: str
    ) -> Value:
        """Return the place that is reached from a pointer with these loops at these numbers."""
        writer = self.writer
        for d, number in indices.items():
            if access.strides[d]:
                pointer = writer.offset(pointer, writer.times(number, access.strides[d]), kind)
        return pointer
