"""Say where in a whole dim the elements of a rank lie, as ops of the rank's program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder
from meshweave.layout.layout import Layout
from meshweave.layout.places import Digit, Indices, digits, irregular, is_nested, is_run, run_at
from meshweave.transforms.partitioning.local import Local, axis_index


@dataclass(frozen=True)
class CutDim:
    """Hold the layout of a dim alone, and the size of the whole dim."""

    layout: Layout
    whole: int

    @classmethod
    def of(cls, layout: Layout, dim: int, whole: int) -> CutDim:
        """Return dim number `dim` of a tensor in `layout`."""
        return cls(Layout((layout.dims[dim],), uneven=layout.uneven), whole)

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes that it lies on, major first."""
        return self.layout.axes_of(0)


@dataclass(frozen=True)
class _Term:
    """Describe a local digit, index / weight % extent (None: no %), which counts `stride` in the whole dim."""

    weight: int
    extent: int | None
    stride: int


@dataclass(frozen=True)
class _NestedPieces:
    """Know the pieces of a dim in nested sizes that are no run of places: each digit cuts what the one before left.

    extents, values: of the digits, major first; the value of a local digit is None. See `places.indices_at`.
    """

    extents: tuple[int, ...]
    values: tuple[ir.Value | None, ...]
    whole: int

    @classmethod
    def of(cls, b: OpBuilder, row: Sequence[Digit], whole: int) -> _NestedPieces:
        """Read this rank's coordinates, outside of what asks for places."""
        values = [None if d.axis is None else axis_index(b, [d.axis]) for d in row]
        return cls(tuple([d.extent for d in row]), tuple(values), whole)

    def place(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Return where the element at a local index lies in the whole dim; its size for padding."""
        start, left, weight = b.index(0), b.index(self.whole), self._count
        for extent, value in zip(self.extents, self.values, strict=True):
            if value is None:
                weight //= extent
                value = b.binary(
                    "remui", b.binary("divui", index, b.index(weight)), b.index(extent)
                )
            start, left = self._cut(b, value, extent, start, left)
        some = b.compare(arith.CmpIPredicate.ugt, left, b.index(0))
        return b.select(some, start, b.index(self.whole))

    def local(self, b: OpBuilder, place: ir.Value) -> ir.Value:
        """Return the local index that a place has on the rank that holds it."""
        start, left, total, weight = b.index(0), b.index(self.whole), b.index(0), self._count
        for extent, own in zip(self.extents, self.values, strict=True):
            piece = b.binary("maxui", b.binary("ceildivui", left, b.index(extent)), b.index(1))
            value = b.binary("divui", b.binary("subi", place, start), piece)
            if own is None:
                weight //= extent
                total = b.binary("addi", total, b.times(value, weight))
            start, left = self._cut(b, value, extent, start, left)
        return total

    @property
    def _count(self) -> int:
        return prod(n for n, value in zip(self.extents, self.values, strict=True) if value is None)

    @staticmethod
    def _cut(
        b: OpBuilder, value: ir.Value, extent: int, start: ir.Value, left: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Return where a piece of what is left begins, and how long it is."""
        piece = b.binary("ceildivui", left, b.index(extent))
        begin = b.binary("minui", b.binary("muli", value, piece), left)
        rest = b.binary("minui", piece, b.binary("subi", left, begin))
        return b.binary("addi", start, begin), rest


@dataclass(frozen=True)
class GlobalIndex:
    """Know where each local index is in the whole dim, which ends at `end`: at `offset` plus what its digits add.

    pieces: what says so instead, in nested sizes that are no run.
    """

    offset: ir.Value
    terms: tuple[_Term, ...]
    end: ir.Value
    pieces: _NestedPieces | None = None

    @classmethod
    def of(cls, b: OpBuilder, cut: CutDim, local: Local) -> GlobalIndex:
        """Make what does not depend on the local index."""
        shape, mesh = (cut.whole,), local.mesh
        if irregular(cut.layout, 0) or is_nested(cut.layout, mesh, shape, 0):
            if not is_run(cut.layout, mesh, shape, 0):
                pieces = _NestedPieces.of(b, digits(cut.layout, mesh, shape)[0], cut.whole)
                return cls(b.index(0), (), b.index(cut.whole), pieces)
            number = axis_index(b, cut.axes)
            begins, ends = run_at(cut.layout, mesh, shape, 0, _ranks(local, cut.axes))
            return cls(_entry(b, begins, number), (_Term(1, None, 1),), _entry(b, ends, number))
        row, window = digits(cut.layout, mesh, shape)[0], cut.layout.window(0)
        offset = _offset(b, row)
        if window is not None and window[1]:
            offset = b.binary("addi", offset, b.index(window[1]))
        return cls(offset, _terms(row), b.index(cut.whole))

    def whole(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Return where the element at a local index lies in the whole dim."""
        if self.pieces is not None:
            return self.pieces.place(b, index)
        total = self.offset
        for term in self.terms:
            part = index if term.weight == 1 else b.binary("divui", index, b.index(term.weight))
            if term.extent is not None:
                part = b.binary("remui", part, b.index(term.extent))
            part = part if term.stride == 1 else b.binary("muli", part, b.index(term.stride))
            total = b.binary("addi", part, total)
        return total

    def inside(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Compare the place of a local index with the end: an i1, true where it holds no padding."""
        return b.compare(arith.CmpIPredicate.ult, self.whole(b, index), self.end)


@dataclass(frozen=True)
class PlaceFinder:
    """Know which places of a whole dim a rank has, and where.

    row: the digits of a place, major first; empty where the rank has `count` places side by side.
    """

    index: GlobalIndex
    row: tuple[Digit, ...]
    count: ir.Value

    @classmethod
    def of(cls, b: OpBuilder, cut: CutDim, size: int, local: Local) -> PlaceFinder:
        """Make what does not depend on the place. size: of the rank's part, with its padding."""
        index, shape = GlobalIndex.of(b, cut, local), (cut.whole,)
        if irregular(cut.layout, 0) or is_nested(cut.layout, local.mesh, shape, 0):
            return cls(index, (), b.binary("subi", index.end, index.offset))
        row = digits(cut.layout, local.mesh, shape)[0]
        on_ranks = [digit.axis is not None for digit in row if digit.extent != 1]
        run = on_ranks == sorted(on_ranks, reverse=True)
        return cls(index, () if run else row, b.index(size))

    def find(self, b: OpBuilder, place: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return whether the rank has a place, and where, 0 if it does not."""
        pieces = self.index.pieces
        if self.row or pieces is not None:
            here = self._local(b, place) if pieces is None else pieces.local(b, place)
            mine = b.compare(arith.CmpIPredicate.eq, self.index.whole(b, here), place)
        else:
            here = b.binary("subi", place, self.index.offset)
            mine = b.compare(arith.CmpIPredicate.ult, here, self.count)
        return mine, b.select(mine, here, b.index(0))

    def _local(self, b: OpBuilder, place: ir.Value) -> ir.Value:
        """Return the local digits of a place as a local index."""
        total, weight, kept = b.index(0), 1, [digit for digit in self.row if digit.extent != 1]
        for digit in reversed(kept):
            if digit.axis is not None:
                continue
            part = place if digit.stride == 1 else b.binary("divui", place, b.index(digit.stride))
            if digit is not kept[0]:
                part = b.binary("remui", part, b.index(digit.extent))
            total = b.binary("addi", total, b.times(part, weight))
            weight *= digit.extent
        return total


def _ranks(local: Local, axes: Sequence[str]) -> Indices:
    """Return the first rank at each position along `axes`."""
    ranks: Indices = np.zeros((), np.int64)
    for name in axes:
        steps = np.arange(local.mesh.size(name)) * local.mesh.stride(name)
        ranks = (ranks[..., None] + steps).reshape(-1)
    return ranks


def _entry(b: OpBuilder, numbers: Indices, at: ir.Value) -> ir.Value:
    """Return the number at a computed place of a table."""
    index = ir.IndexType.get()
    type_ = ir.RankedTensorType.get([len(numbers)], index)
    return b.element(b.constant(ir.DenseElementsAttr.get(numbers, type=index), type_), [at])


def _offset(b: OpBuilder, row: Sequence[Digit]) -> ir.Value:
    """Return what the digits of ranks count in the whole dim: neighbours are one digit."""
    total: ir.Value | None = None
    for on_ranks, group in groupby(row, lambda digit: digit.axis is not None):
        if on_ranks:
            members = list(group)
            axes = [digit.axis for digit in members if digit.axis is not None]
            part = b.binary("muli", axis_index(b, axes), b.index(members[-1].stride))
            total = part if total is None else b.binary("addi", total, part)
    assert total is not None, "the dim is cut"
    return total


def _terms(row: Sequence[Digit]) -> tuple[_Term, ...]:
    found: list[_Term] = []
    weight = 1
    kept = [digit for digit in row if digit.axis is None and digit.extent != 1]
    for digit in reversed(kept):
        found.append(_Term(weight, None if digit is kept[0] else digit.extent, digit.stride))
        weight *= digit.extent
    return tuple(reversed(found))
