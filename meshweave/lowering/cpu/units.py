"""Write the function of a unit: its nests one after the other, each by what suits it."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.sorting import SWITCH
from meshweave.lowering.cpu.dots import RowDots
from meshweave.lowering.cpu.held import with_fast_types
from meshweave.lowering.cpu.loops import NestLoops, ShortRows, short
from meshweave.lowering.cpu.products.blocks import blocks_of, blocks_text
from meshweave.lowering.cpu.products.depthwise import DepthwiseRows, row_of
from meshweave.lowering.cpu.reuse import ReusingLoops, reads_once, shape_of, turned
from meshweave.lowering.cpu.scans import ScanLoops, is_scan
from meshweave.lowering.cpu.short_sums import ShortReductions
from meshweave.lowering.cpu.sorting import order_text
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value


def unit_text(name: str, unit: KernelUnit) -> str:
    """Write the function `name` that does what the unit does."""
    if len(unit.nests) == 1 and SWITCH in unit.nests[0].switches:
        return order_text(name, unit)
    if len(unit.nests) == 1 and not reads_once(unit.nests[0]):
        product = blocks_of(unit.nests[0])
        if product is not None:
            return blocks_text(name, unit, product)
    writer = FunctionWriter(unit)
    rows = [writer.open(writer.end(unit.nests[0], d)) for d in range(unit.rows)]
    for nest in unit.nests:
        _loops_of(writer, nest if rows else turned(writer, nest), rows).write()
    for _ in rows:
        writer.close()
    return writer.text(name)


def _loops_of(writer: FunctionWriter, nest: LoopNest, rows: Sequence[Value]) -> NestLoops:
    """Return what writes a nest inside loops `rows`, which are open."""
    if is_scan(nest):
        return ScanLoops(writer, nest, rows)
    if short(nest, len(rows)):
        return ShortRows(writer, nest, rows)
    if row_of(nest, len(rows)) is not None and not nest.limits:
        return DepthwiseRows(writer, nest, rows)
    nest = with_fast_types(nest)
    short_sums = ShortReductions(writer, nest, rows)
    if short_sums.fits:
        return short_sums
    shape = shape_of(nest, len(rows))
    limited = any(d >= len(rows) for d, _ in nest.limits)
    if shape is None or (limited and (rows or not reads_once(nest))):
        return NestLoops(writer, nest, rows)
    dots = RowDots(writer, nest, rows, shape)
    return dots if dots.fits else ReusingLoops(writer, nest, rows, shape)
