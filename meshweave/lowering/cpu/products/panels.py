"""Write products whose rows, columns and depth are each several loops, such as convolutions, by panels.

A convolution is a product of matrices of which one, the windows of the image, lies nowhere: its element is found by
adding up a stride for each loop. A panel of it, some columns over a part of the depth, is put together in a local
buffer that fits the first cache, and used for all rows. Blocks of the result stay in registers over the panel's
depth, each step of which reads a row of the panel as vectors, and a number of the other matrix for each row, where it
lies. Which of the two matrices gives the columns is decided by an estimate of what panels and results cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshweave.hints.fast_paths import NO_PANELS, PANELS
from meshweave.ir.expressions import Apply
from meshweave.lowering.cpu import tiles
from meshweave.lowering.cpu.products.blas import (
    SMALLEST,
    by_class,
    classes_of,
    extent,
    product_of,
    side,
    starts_at_zero,
)
from meshweave.lowering.cpu.products.blocks import WIDTHS, parts_of
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import Access, LoopNest, merged
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value
from meshweave.plan.machine import Vectors, vectors

PANEL_BYTES = 1 << 15  # of a panel at most
MOST_ROWS = 8  # of a block: each takes an address register
NEAR = (1, 2)  # steps between elements that a vector is loaded of
WIDENED = {"f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Product:
    """Describe a product in loops: result[rows, columns] is the sum of left[rows, depth] right[depth, columns].

    rows, columns, depth: loop numbers, outermost first; the columns follow each other in the result. outer: all other
    loops. kinds: element types of left, right and result.
    """

    nest: LoopNest
    outer: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    left: Access
    right: Access
    result: Access
    kinds: tuple[str, str, str]

    def size(self, loops: Iterable[int]) -> int:
        """Count the iterations of some loops."""
        return math.prod(self.nest.sizes[d] for d in loops)

    @property
    def step(self) -> int:
        """Return the distance of neighbouring columns in the result."""
        return self.result.strides[self.columns[-1]]

    @property
    def runs_on(self) -> bool:
        """Tell whether columns are computed behind where a call says that they end."""
        return any(self.nest.limit(d) is not None for d in self.columns)


def panels_of(nest: LoopNest) -> Product | None:
    """Return the product that a contraction is, with rows and columns chosen so that it takes the least time.

    Return None where panels may not compute it, or loops serve it better.
    """
    if not (PANELS in nest.switches or _beyond_the_library(nest)):
        return None
    ends = any(d in nest.reductions for d, _ in nest.limits)
    if (ends and len(nest.reductions) > 1) or not _suits(nest):
        return None
    nest = merged(by_class(nest))
    names = classes_of(nest)
    if "?" in names:
        return None
    a, b, c = nest.accesses
    kind, kinds = str(nest.stores[0].type), [str(load.type) for load in nest.loads]
    both = (
        _product(nest, names, ("m", "n"), (a, b, c), (kinds[0], kinds[1], kind)),
        _product(nest, names, ("n", "m"), (b, a, c), (kinds[1], kinds[0], kind)),
    )
    found = [product for product in both if product is not None]
    return min(found, key=lambda p: (p.runs_on, _cycles(p, vectors())), default=None)


def _beyond_the_library(nest: LoopNest) -> bool:
    """Tell whether a product is the library's but for how its operands lie, such as `x[:, ::2]`."""
    if not nest.library or NO_PANELS in nest.switches or product_of(nest) is not None:
        return False
    return math.prod(nest.sizes) >= SMALLEST


def _suits(nest: LoopNest) -> bool:
    """Tell whether a nest adds up products of two loads in f32 or f64, which may be narrower."""
    kind = str(nest.stores[0].type)
    if not nest.contraction or len(nest.loads) != 2 or not starts_at_zero(nest):
        return False
    if kind not in WIDTHS or any(str(load.type) not in (kind, *WIDENED) for load in nest.loads):
        return False
    applied = [node for node in nest.code if isinstance(node, Apply)]
    return not any(node.is_exact or str(node.type) != kind for node in applied)


def _product(
    nest: LoopNest,
    names: Sequence[str],
    classes: tuple[str, str],
    accesses: tuple[Access, Access, Access],
    kinds: tuple[str, str, str],
) -> Product | None:
    """Return the product whose rows and columns are loops of these classes; None where there are too few."""
    result = accesses[2]

    def loops(name: str) -> list[int]:
        return [d for d, found in enumerate(names) if found == name]

    columns = _neighbours(sorted(loops(classes[1]), key=lambda d: -result.strides[d]), nest, result)
    (_, rows), depth = side(nest, loops(classes[0])), loops("k")
    taken = {*rows, *columns, *depth}
    outer = tuple(d for d in range(len(names)) if d not in taken)
    product = Product(nest, outer, rows, tuple(columns), tuple(depth), *accesses, kinds)
    return product if depth and product.size(columns) > 1 and product.size(rows) > 1 else None


def _neighbours(loops: Sequence[int], nest: LoopNest, access: Access) -> list[int]:
    """Return the last of these loops that walk memory as one."""
    found: list[int] = []
    for d in reversed(loops):
        if not found:
            step = access.strides[d]
        if access.strides[d] != step or step < 1:
            break
        step *= nest.sizes[d]
        found.insert(0, d)
    return found


class PanelSizes(NamedTuple):
    """Describe how a product is cut: panels of so many columns and so much depth, blocks of so many rows.

    lines: how many runs of the innermost column loop lie in one panel.
    """

    lanes: int
    width: int
    lines: int
    depth: int
    rows: int

    @staticmethod
    def of(product: Product, machine: Vectors) -> PanelSizes:
        """Return the shape for a machine: sums, a row of the panel and a number fill its registers."""
        nbytes = WIDTHS[product.kinds[2]]
        lanes, n = machine.nbytes // nbytes, product.size(product.columns)
        most = 4 if machine.registers >= 32 else 2
        width = min(most, -(-n // lanes)) * lanes
        inner = product.nest.sizes[product.columns[-1]]
        lines = max(1, min(n // inner, width // inner))
        used = -(-min(width, lines * inner) // lanes)
        rows = min(MOST_ROWS, (machine.registers * 3 // 4) // used)
        blocks = -(-product.size(product.rows) // rows)
        rows = -(-product.size(product.rows) // blocks)
        return PanelSizes(lanes, width, lines, max(1, PANEL_BYTES // (width * nbytes)), rows)

    def vectors(self, columns: int) -> int:
        """Count the vectors that so many columns of a panel take."""
        return -(-columns // self.lanes)


def _cycles(product: Product, machine: Vectors) -> float:
    """Estimate the time of a product: multiply-adds, putting panels together, reading and writing results."""
    shape = PanelSizes.of(product, machine)
    m, n, k = (product.size(loops) for loops in (product.rows, product.columns, product.depth))
    inner = product.nest.sizes[product.columns[-1]]
    wide = sum(
        count * shape.vectors(width) for count, width in _panel_sizes(n // inner, inner, shape)
    )
    move = 1 / shape.lanes if product.right.strides[product.columns[-1]] in NEAR else 2
    write = 1 / shape.lanes if product.step == 1 else 2
    once = m * k * wide / 2 + k * n * move + -(-k // shape.depth) * m * n * write
    return once * product.size(product.outer)


def _panel_sizes(lines: int, inner: int, shape: PanelSizes) -> Iterator[tuple[int, int]]:
    """Yield (how many panels, columns of each)."""
    if shape.lines > 1:
        yield lines // shape.lines, shape.lines * inner
        yield 1, lines % shape.lines * inner
    else:
        yield lines * (inner // shape.width), shape.width
        yield lines, inner % shape.width


def panels_text(name: str, unit: KernelUnit, product: Product) -> str:
    """Write the function `name` that does the product."""
    writer = FunctionWriter(unit)
    counters = {d: writer.open(writer.end(product.nest, d)) for d in product.outer}
    _Panels(writer, product, counters, PanelSizes.of(product, vectors())).write()
    for _ in product.outer:
        writer.close()
    return writer.text(name)


class Run(NamedTuple):
    """Describe lanes of a panel that the innermost column loop walks: the first, how many, where they are in right."""

    lane: int
    lanes: int
    start: Value


class Panel(NamedTuple):
    """Describe a panel's columns: how many, the number of the first, and what they are read from."""

    width: int
    first: Value
    runs: tuple[Run, ...]


class DepthLoop(NamedTuple):
    """Describe a loop over a part of the depth: its length, and the steps in left, in right and in the panel."""

    length: Value | int
    left: int
    right: int
    row: int


class DepthPart(NamedTuple):
    """Describe a part of the depth: its loops, where it begins in left and right, and whether the sums begin there."""

    spans: tuple[DepthLoop, ...]
    left: Value
    right: Value
    begins: Value | bool


class OpenLoops(NamedTuple):
    """Hold loops over a part of the depth that are open: offsets, the row of the panel, and what is carried."""

    left: Value
    right: Value
    row: Value
    carried: list[Value]
    opened: list[list[Value]]


class _Panels:
    """Write one product inside loops `counters` that are open."""

    def __init__(
        self,
        writer: FunctionWriter,
        product: Product,
        counters: dict[int, Value],
        shape: PanelSizes,
    ) -> None:
        self.writer, self.product, self.shape = writer, product, shape
        self.left_kind, self.right_kind, self.kind = product.kinds
        self.nbytes = WIDTHS[self.kind]
        accesses = (product.left, product.right, product.result)
        self.left, self.right, self.result = (
            self._placed(writer.frame.pointers[access.pointer], access, kind, counters)
            for access, kind in zip(accesses, product.kinds)
        )
        self.starts = product.nest.stores[0].initial is not None
        self.panel = writer.local_buffer(shape.depth * shape.width, self.kind)
        self.widened: Value | None = None  # a local buffer for the rows of a block
        if self.left_kind != self.kind:
            self.widened = writer.local_buffer(shape.rows * shape.depth, self.kind)
        self.sums: Value | None = None  # a local buffer for a row of sums
        if product.step != 1 or any(
            width % shape.lanes for count, width in self._sizes() if count and width
        ):
            self.sums = writer.local_buffer(shape.width, self.kind)

    def _sizes(self) -> Iterator[tuple[int, int]]:
        inner = self.product.nest.sizes[self.product.columns[-1]]
        return _panel_sizes(self.product.size(self.product.columns) // inner, inner, self.shape)

    def write(self) -> None:
        """Write the panels of all columns."""
        writer, p, shape = self.writer, self.product, self.shape
        inner = p.nest.sizes[p.columns[-1]]
        lines = p.size(p.columns[:-1])
        if shape.lines == 1:
            line = writer.open(lines) if lines > 1 else writer.number(0)
            whole = inner // shape.width * shape.width
            if whole:
                self._lines(line, 1, writer.open(whole, shape.width), shape.width)
                writer.close()
            if rest := inner - whole:
                self._lines(line, 1, writer.number(whole), rest)
            if lines > 1:
                writer.close()
            return
        whole = lines // shape.lines * shape.lines
        self._lines(writer.open(whole, shape.lines), shape.lines, writer.number(0), inner)
        writer.close()
        if rest := lines - whole:
            self._lines(writer.number(whole), rest, writer.number(0), inner)

    def _lines(self, line: Value, lines: int, column: Value, width: int) -> None:
        """Write the panel of some columns of some lines."""
        writer, p = self.writer, self.product
        *outside, last = p.columns
        runs = []
        for k in range(lines):
            indices = self._digits(outside, writer.plus(line, k)) | {last: column}
            start = self._steps(p.right, indices)
            runs.append(Run(k * width, width, start))
        first = writer.plus(writer.times(line, p.nest.sizes[last]), column)
        panel = Panel(lines * width, first, tuple(runs))
        for part in self._parts():
            self._fill(panel, part)
            for rows, low, high in self._row_blocks():
                self._block(writer.open(high, rows, low), rows, panel, part)
                writer.close()

    def _row_blocks(self) -> Iterator[tuple[int, int, Value | int]]:
        """Yield (rows of a block, from, to): blocks of one size, then what is left.

        Where a call says how many rows there are, the last block may run on.
        """
        rows, m = self.shape.rows, self.product.size(self.product.rows)
        whole, end = m // rows * rows, extent(self.writer, self.product.nest, self.product.rows)
        if isinstance(end, Value):
            yield rows, 0, self.writer.least(end, whole)
        else:
            yield rows, 0, whole
        if m - whole:
            yield m - whole, whole, end

    # Depth

    def _parts(self) -> Iterator[DepthPart]:
        """Open the loops over parts of the depth, yield the part that they are at, and close them."""
        writer, p = self.writer, self.product
        sizes = [p.nest.sizes[d] for d in p.depth]
        at, step = cut(sizes, self.shape.depth)
        left = right = writer.number(0)
        begins: Value | bool = self.starts
        spans, opened = [], 0
        for k, d in enumerate(p.depth):
            steps = p.left.strides[d], p.right.strides[d]
            length = end = writer.end(p.nest, d)
            if k < at or (k == at and step < sizes[k]):
                opened += 1
                # Sums of nothing are written too.
                least = writer.greatest(end, 1) if isinstance(end, Value) else end
                counter = writer.open(least, step if k == at else 1)
                left, right = (
                    writer.plus(start, writer.times(counter, by))
                    for start, by in zip((left, right), steps)
                )
                if self.starts:
                    here = writer.compare("eq", counter, 0)
                    begins = here & begins if isinstance(begins, Value) else here
                if isinstance(end, Value) or sizes[k] % step or k < at:
                    length = tiles.minimum(writer, counter, end, step)
                else:
                    length = step
            if k >= at:
                spans.append(DepthLoop(length, *steps, math.prod(sizes[k + 1 :])))
        yield DepthPart(tuple(spans), left, right, begins)
        for _ in range(opened):
            writer.close()

    def _open(self, spans: Sequence[DepthLoop], carried: Sequence[Value] = ()) -> OpenLoops:
        """Open loops over a part of the depth."""
        writer = self.writer
        left = right = row = writer.number(0)
        current, opened = list(carried), []
        for span in spans:
            loop = writer.open_loop(0, span.length, 1, current)
            opened.append(loop.results)
            current, counter = loop.carried, loop.counter
            left = writer.plus(left, writer.times(counter, span.left))
            right = writer.plus(right, writer.times(counter, span.right))
            row = writer.plus(row, writer.times(counter, span.row))
        return OpenLoops(left, right, row, current, opened)

    # Panels

    def _fill(self, panel: Panel, part: DepthPart) -> None:
        """Put a panel together."""
        writer, p = self.writer, self.product
        step = p.right.strides[p.columns[-1]]
        walk = self._open(joined(part.spans, lambda span: span.right))
        source = writer.plus(part.right, walk.right)
        target = self._at(self.panel, walk.row, self.shape.width, self.kind)
        if used := panel.width % self.shape.lanes:
            # Lanes that nothing fills are multiplied, too: what the stack holds is slow where it is denormal.
            zero = writer.constant(0.0, self._type(self.shape.lanes))
            writer.store(zero, writer.offset(target, panel.width - used, self.kind), self.nbytes)
        for run in panel.runs:
            start = self._at(self.right, writer.plus(source, run.start), 1, self.right_kind)
            for at, lanes in parts_of(run.lanes, self.shape.lanes if step in NEAR else 1):
                place = writer.offset(start, at * step, self.right_kind)
                value = self._elements(place, step, lanes)
                into = writer.offset(target, run.lane + at, self.kind)
                writer.store(value, into, self.nbytes)
        for _ in walk.opened:
            writer.close()

    def _elements(self, place: Value, step: int, lanes: int) -> Value:
        """Load elements of right, `step` apart."""
        if lanes == 1 or step == 1:
            return self._load(place, self.right_kind, lanes)
        later = self.writer.offset(place, lanes - 1, self.right_kind)
        first, second = (self._load(at, self.right_kind, lanes) for at in (place, later))
        return tiles.every_second(self.writer, first, second, lanes)

    # Blocks

    def _block(self, row: Value, rows: int, panel: Panel, part: DepthPart) -> None:
        """Write one block: its sums stay in registers over a part of the depth."""
        writer, p = self.writer, self.product
        lefts, results = self._rows(row, rows, panel)
        lefts = [self._at(place, part.left, 1, self.left_kind) for place in lefts]
        if self.widened is not None:
            lefts = self._widen(lefts, part, self.widened)
        count = self.shape.vectors(panel.width)
        whole = p.step == 1 and panel.width % self.shape.lanes == 0
        sums = [s for place in results for s in self._first(place, count, whole, part.begins)]
        walk = self._open(joined(part.spans, lambda span: span.left), sums)
        line = self._at(self.panel, walk.row, self.shape.width, self.kind)
        columns = [self._vector(line, v) for v in range(count)]
        made = []
        for r, place in enumerate(lefts):
            number = self._number(place, walk)
            wide = writer.spread(number, self.shape.lanes)
            for v in range(count):
                made.append(writer.fma(wide, columns[v], walk.carried[r * count + v]))
        for opened in reversed(walk.opened):
            writer.close(made)
            made = opened
        for r, place in enumerate(results):
            self._finish(place, made[r * count : (r + 1) * count], panel.width, part.begins)

    def _widen(self, lefts: Sequence[Value], part: DepthPart, buffer: Value) -> list[Value]:
        """Copy the rows of a block, in the type that they are added up in; return where each begins."""
        writer = self.writer
        rows = [writer.offset(buffer, r * self.shape.depth, self.kind) for r in range(len(lefts))]
        walk = self._open(joined(part.spans, lambda span: span.left))
        for place, row in zip(lefts, rows):
            number = self._load(self._at(place, walk.left, 1, self.left_kind), self.left_kind, 1)
            writer.store(number, self._at(row, walk.row, 1, self.kind), self.nbytes)
        for _ in walk.opened:
            writer.close()
        return rows

    def _number(self, row: Value, walk: OpenLoops) -> Value:
        """Return the number of a row of left at a step of the depth."""
        if self.widened is not None:
            return self._load(self._at(row, walk.row, 1, self.kind), self.kind, 1)
        return self._load(self._at(row, walk.left, 1, self.left_kind), self.left_kind, 1)

    def _rows(self, row: Value, rows: int, panel: Panel) -> tuple[list[Value], list[Value]]:
        """Return for each row of a block where it is in left, and where its columns are in the result."""
        writer, p = self.writer, self.product
        lefts, results = [], []
        first = self._at(self.result, panel.first, p.step, self.kind)
        for r in range(rows):
            indices = self._digits(p.rows, writer.plus(row, r))
            lefts.append(self._placed(self.left, p.left, self.left_kind, indices))
            results.append(self._placed(first, p.result, self.kind, indices))
        return lefts, results

    def _first(self, place: Value, count: int, whole: bool, begins: Value | bool) -> list[Value]:
        """Return what the sums of a row start from; where vectors do not fit the row, it is added in the end."""
        writer = self.writer
        zero = writer.constant(0.0, self._type(self.shape.lanes))
        if begins is True or not whole:
            return [zero] * count
        held = [self._vector(place, v) for v in range(count)]
        if begins is False:
            return held
        return [writer.select(begins, zero, value) for value in held]

    def _finish(
        self, place: Value, sums: Sequence[Value], width: int, begins: Value | bool
    ) -> None:
        """Store the sums of a row."""
        writer, p, lanes = self.writer, self.product, self.shape.lanes
        whole = p.step == 1 and width % lanes == 0
        into = place if whole else self.sums
        assert into is not None
        for v, value in enumerate(sums):
            writer.store(value, writer.offset(into, v * lanes, self.kind), self.nbytes)
        if whole:
            return
        for at, count in parts_of(width, lanes if p.step == 1 else 1):
            value = self._load(writer.offset(into, at, self.kind), self.kind, count)
            target = writer.offset(place, at * p.step, self.kind)
            if begins is not True:
                both = self._load(target, self.kind, count) + value
                value = both if begins is False else writer.select(begins, value, both)
            writer.store(value, target, self.nbytes)

    # Places and vectors

    def _digits(self, loops: Sequence[int], number: Value) -> dict[int, Value]:
        """Return the index of each loop in iteration `number` of all of them."""
        indices: dict[int, Value] = {}
        for d in reversed(loops[1:]):
            indices[d] = number % self.product.nest.sizes[d]
            number = number // self.product.nest.sizes[d]
        return indices | dict.fromkeys(loops[:1], number)

    def _placed(
        self, pointer: Value, access: Access, kind: str, indices: Mapping[int, Value]
    ) -> Value:
        """Return the place that is reached from a pointer with these loops at these numbers."""
        return self._at(pointer, self._steps(access, indices), 1, kind)

    def _steps(self, access: Access, indices: Mapping[int, Value]) -> Value:
        total = self.writer.number(0)
        for d, number in indices.items():
            if access.strides[d]:
                step = self.writer.times(number, access.strides[d])
                total = self.writer.plus(step, total)
        return total

    def _at(self, pointer: Value, count: Value, step: int, kind: str) -> Value:
        return self.writer.offset(pointer, self.writer.times(count, step), kind)

    def _type(self, lanes: int) -> str:
        return f"vector<{lanes}x{self.kind}>"

    def _vector(self, place: Value, number: int) -> Value:
        """Load one of the vectors that begin at a place."""
        at = self.writer.offset(place, number * self.shape.lanes, self.kind)
        return self.writer.load(at, self._type(self.shape.lanes), self.nbytes)

    def _load(self, place: Value, kind: str, lanes: int) -> Value:
        """Load elements, as many as one or a vector, in the type that they are added up in."""
        wide = self.kind if lanes == 1 else self._type(lanes)
        type_ = kind if lanes == 1 else f"vector<{lanes}x{kind}>"
        value = self.writer.load(place, type_, (WIDTHS | WIDENED)[kind])
        return value if kind == self.kind else self.writer.convert("arith.extf", value, wide)


def cut(sizes: Sequence[int], most: int) -> tuple[int, int]:
    """Cut loops so that the inner ones run `most` times at most: return the loop that is cut, and its step."""
    run, at = 1, len(sizes) - 1
    while at > 0 and run * sizes[at] <= most:
        run *= sizes[at]
        at -= 1
    parts = -(-sizes[at] // max(1, most // run))
    return at, -(-sizes[at] // parts)


def joined(spans: Sequence[DepthLoop], step: Callable[[DepthLoop], int]) -> list[DepthLoop]:
    """Join loops that walk memory as one."""
    made = [spans[-1]]
    for span in reversed(spans[:-1]):
        inner = made[0]
        if isinstance(inner.length, int) and step(span) == step(inner) * inner.length:
            made[0] = inner._replace(length=span.length * inner.length)
        else:
            made.insert(0, span)
    return made
