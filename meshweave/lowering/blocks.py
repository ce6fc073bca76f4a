"""Contractions by register blocks: what the library's GEMM is too coarse for is done here, in vectors.

A block of rows times a block of columns of the result stays in registers over the depth, each step of which reads one
row of B as vectors and one element of A for each row. Of B a panel, all its depth and one block of columns, is
used for all rows before the next; where B lies transposed, the panel is turned over first, into a local buffer. Depth
is cut where a panel would not stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshweave.lowering import tiles
from meshweave.lowering.bind import Access, Nest
from meshweave.lowering.blas import Gemm, product_of
from meshweave.lowering.payload import EXACT
from meshweave.lowering.rows import Unit
from meshweave.lowering.text import Text
from meshweave.machine import Vectors, vectors

PANEL_BYTES = 1 << 16  # of a panel of B at most
FEWEST = 4  # columns
WIDTHS = {"f32": 4, "f64": 8}


def blocks_of(nest: Nest) -> Gemm | None:
    """The product that a contraction is, where blocks suit it; None where plain loops or the library do it."""
    if nest.library or any(node[0] == "op" and _is_exact(node) for node in nest.code):
        return None
    gemm = product_of(nest)
    if gemm is None or gemm.m < 0 or gemm.n < 0 or nest.reductions != {gemm.k}:
        return None  # of several depths, a convolution's, the sums would not stay in registers
    return gemm if gemm.size(gemm.n) >= FEWEST and gemm.size(gemm.m) > 1 else None


def _is_exact(node: tuple[Any, ...]) -> bool:
    return any(key == EXACT for key, _ in node[2])


def blocks_text(name: str, unit: Unit, gemm: Gemm) -> str:
    """The function `name` that does the product."""
    text = Text()
    outer = [d for d in range(len(gemm.nest.sizes)) if d not in (gemm.m, gemm.n, gemm.k)]
    ivs = {d: text.open(gemm.nest.sizes[d]) for d in outer}
    _Blocks(text, gemm, ivs, vectors()).write()
    text.close(len(outer))
    return text.function(name, unit)


class _Blocks:
    """Writes one product inside loops `ivs` that are open."""

    def __init__(self, text: Text, gemm: Gemm, ivs: dict[int, str], machine: Vectors) -> None:
        self.text, self.gemm, self.ivs = text, gemm, ivs
        self.dtype, self.width = gemm.dtype, WIDTHS[gemm.dtype]
        self.rows, self.most = 6, 4 if machine.registers >= 32 else 2
        self.lanes = machine.nbytes // self.width
        self.m, self.n, self.k = (gemm.size(d) for d in (gemm.m, gemm.n, gemm.k))
        self.columns = self.most * self.lanes
        self.depth = min(self.k, max(1, PANEL_BYTES // (self.columns * self.width)))
        self.turned = gemm.b.strides[gemm.n] != 1
        self.starts = gemm.nest.stores[0].initial is not None

    def write(self) -> None:
        """The panels: those of all columns, then the columns that are left."""
        if self.turned:
            self.panel = self._buffer()
        whole = self.n // self.columns * self.columns
        if whole:
            column = self.text.open(whole, self.columns)
            self._panel(column, self.columns)
            self.text.close()
        if rest := self.n - whole:
            self._panel(self.text.constant(str(whole)), rest)

    def _buffer(self) -> str:
        name = self.text.fresh()
        count = self.text.constant(str(self.depth * self.columns), "i32")
        self.text.head.append(
            f"{name} = llvm.alloca {count} x {self.dtype} {{alignment = 64 : i64}} : (i32) -> !llvm.ptr"
        )
        return name

    def _panel(self, column: str, width: int) -> None:
        """All rows of some columns, depth after depth."""
        whole = self.k // self.depth * self.depth
        self._depth(column, width, self.text.constant("0"), self.depth, self.starts)
        if whole > self.depth:
            start = self.text.open(whole, self.depth, self.depth)
            self._depth(column, width, start, self.depth, False)
            self.text.close()
        if rest := self.k - whole:
            self._depth(column, width, self.text.constant(str(whole)), rest, False)

    def _depth(self, column: str, width: int, start: str, depth: int, first: bool) -> None:
        if self.turned:
            self._turn(column, width, start, depth)
        for size, low, high in self._row_blocks():
            row = self.text.open(high, size, low)
            self._block(row, size, column, width, start, depth, first)
            self.text.close()

    def _row_blocks(self) -> Iterator[tuple[int, int, int]]:
        """(rows of a block, from, to): blocks of one size, then what is left."""
        whole = self.m // self.rows * self.rows
        if whole:
            yield self.rows, 0, whole
        if self.m - whole:
            yield self.m - whole, whole, self.m

    def _block(
        self, row: str, rows: int, column: str, width: int, start: str, depth: int, first: bool
    ) -> None:
        """One block: its sums in registers over a piece of the depth."""
        text, g = self.text, self.gemm
        parts = list(parts_of(width, self.lanes))
        here = [text.plus(row, r) for r in range(rows)]
        into = [self._pointer(g.c, {g.m: i, g.n: column}) for i in here]
        left = [self._pointer(g.a, {g.m: i, g.k: start}) for i in here]
        right, step = self._right(column, start)
        if first:
            sums = [text.constant("dense<0.0>", self._type(n)) for _ in here for _, n in parts]
        else:
            sums = [self._load(p, at, n) for p in into for at, n in parts]
        types = [self._type(n) for _ in here for _, n in parts]
        k, inner, totals = text.open_carrying(depth, sums, types)
        at_k = self._offset(right, k, step)
        vectors_ = [self._load(at_k, at, n) for at, n in parts]
        made = []
        for r, pointer in enumerate(left):
            place = self._offset(pointer, k, g.a.strides[g.k])
            number = text.let(f"llvm.load {place} : !llvm.ptr -> {self.dtype}")
            wide = {
                n: spread(text, number, self._type(n), n)
                for n in dict.fromkeys(n for _, n in parts)
            }
            for v, (_, n) in enumerate(parts):
                old = inner[r * len(parts) + v]
                made.append(text.let(f"math.fma {wide[n]}, {vectors_[v]}, {old} : {self._type(n)}"))
        text.close_carrying(made, types)
        for r, pointer in enumerate(into):
            for v, (at, n) in enumerate(parts):
                self._store(totals[r * len(parts) + v], pointer, at, n)

    def _right(self, column: str, start: str) -> tuple[str, int]:
        """Where a panel of B begins, and the step from row to row of it."""
        g = self.gemm
        if self.turned:
            return self.panel, self.columns
        return self._pointer(g.b, {g.n: column, g.k: start}), g.b.strides[g.k]

    def _turn(self, column: str, width: int, start: str, depth: int) -> None:
        """Copy a panel of B, whose columns lie apart, to the local buffer, rows of step 1."""
        g, text = self.gemm, self.text
        square = tiles.WIDE if width % tiles.WIDE == 0 and depth % tiles.WIDE == 0 else 1
        kind = f"vector<{square}xi{8 * self.width}>" if square > 1 else f"i{8 * self.width}"
        j = text.open(width, square)
        k = text.open(depth, square)
        at_k = text.let(f"arith.addi {start}, {k} : i64")
        rows = []
        for r in range(square):
            at_n = text.let(f"arith.addi {column}, {text.plus(j, r)} : i64")
            pointer = self._pointer(g.b, {g.n: at_n, g.k: at_k})
            rows.append(
                text.let(
                    f"llvm.load {pointer} {{alignment = {self.width} : i64}} : !llvm.ptr -> {kind}"
                )
            )
        for r, value in enumerate(tiles.turn(text, rows, kind) if square > 1 else rows):
            line = self._offset(self.panel, text.plus(k, r), self.columns)
            place = self._offset(line, j, 1)
            text.add(
                f"llvm.store {value}, {place} {{alignment = {self.width} : i64}} : {kind}, !llvm.ptr"
            )
        text.close(2)

    # Places and vectors

    def _type(self, lanes: int) -> str:
        return f"vector<{lanes}x{self.dtype}>"

    def _pointer(self, access: Access, more: dict[int, str]) -> str:
        """Where an access is with these loops at these numbers, all others as they are."""
        pointer = f"%p{access.pointer}"
        if access.const:
            pointer = self._offset(pointer, self.text.constant("1"), access.const)
        for dim, iv in {**self.ivs, **more}.items():
            if access.strides[dim]:
                pointer = self._offset(pointer, iv, access.strides[dim])
        return pointer

    def _offset(self, pointer: str, count: str, step: int) -> str:
        text = self.text
        if step != 1:
            count = text.let(f"arith.muli {count}, {text.constant(str(step))} overflow<nsw> : i64")
        return text.let(
            f"llvm.getelementptr inbounds {pointer}[{count}] : (!llvm.ptr, i64) -> !llvm.ptr, {self.dtype}"
        )

    def _load(self, pointer: str, at: int, lanes: int) -> str:
        place = self._offset(pointer, self.text.constant(str(at)), 1) if at else pointer
        return self.text.let(
            f"llvm.load {place} {{alignment = {self.width} : i64}} : !llvm.ptr -> {self._type(lanes)}"
        )

    def _store(self, value: str, pointer: str, at: int, lanes: int) -> None:
        place = self._offset(pointer, self.text.constant(str(at)), 1) if at else pointer
        self.text.add(
            f"llvm.store {value}, {place} {{alignment = {self.width} : i64}} : {self._type(lanes)}, !llvm.ptr"
        )


def spread(text: Text, number: str, kind: str, lanes: int) -> str:
    """A vector of one number."""
    none = text.let(f"llvm.mlir.poison : {kind}")
    zero = text.constant("0", "i32")
    first = text.let(f"llvm.insertelement {number}, {none}[{zero} : i32] : {kind}")
    return text.let(f"llvm.shufflevector {first}, {none} {[0] * lanes} : {kind}")


def parts_of(width: int, lanes: int) -> Iterator[tuple[int, int]]:
    """(first column, lanes) of the vectors of a row: whole ones, then powers of two."""
    at = 0
    while at < width:
        while lanes > width - at:
            lanes //= 2
        yield at, lanes
        at += lanes
