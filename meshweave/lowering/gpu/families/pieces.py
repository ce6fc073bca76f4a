"""Reduce in two kernels where the results are too few to keep a device busy: whole arrays, tall columns, long rows.

The first kernel reduces pieces of what each result reads and leaves what it finds in scratch memory; the second joins
those in a fixed order, in the kernel of rows or columns that such a reduction has. How many pieces there are follows
from sizes alone, so that the bits are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Accumulator, Apply, Index, Load, needed, renumber
from meshweave.lowering.buffers.steps import Root, element_bytes
from meshweave.lowering.gpu.facts import MOST, Facts
from meshweave.lowering.gpu.families.groups import Group, shared_bytes
from meshweave.lowering.gpu.families.lanes import Lanes, piece
from meshweave.lowering.gpu.families.launch import MOST_BLOCKS, frame_for
from meshweave.lowering.gpu.families.reduction import Combiner, combiners, loop, tree
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.nodes import DeviceFrame
from meshweave.lowering.gpu.writer import both
from meshweave.lowering.nests.bind import (
    Access,
    LoopNest,
    NestNode,
    Pointed,
    Pointers,
    Store,
    restrided,
)
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

SCRATCH = "scratch"  # kind of a root: memory of the stream, between two launches
BLOCKS = 528  # of the first kernel, about: four for each multiprocessor
FEW = 132  # blocks below which a reduction is done in pieces
SHORTEST = 4096  # elements of a piece that reads along memory
THREADS = 256
_APART = 256  # bytes that the parts of each result begin at multiples of


@dataclass
class PieceUnit(KernelUnit):
    """Hold a reduction that is done in `pieces` for each result, each part stored in scratch memory.

    Its last pointers are those of the parts, one for each result. inner: the parallel loop along which parts lie side
    by side, piece behind piece; -1 where the parts of one result do.
    """

    pieces: int
    inner: int

    @property
    def key(self) -> tuple[object, ...]:
        """Return a value that is equal for units with the same code."""
        return (*super().key, self.pieces, self.inner)

    @property
    def parallel(self) -> list[int]:
        """List the parallel loops, the one of the parts last."""
        return parallel_of(self.nests[0], self.inner)


class Parts(NamedTuple):
    """Hold the two units of a reduction in pieces, and what is known of their memory."""

    first: PieceUnit
    second: KernelUnit
    facts: Facts


def parallel_of(nest: LoopNest, inner: int) -> list[int]:
    """List the parallel loops of a nest, `inner` last."""
    return [*(d for d in nest.parallel if d != inner), *([inner] if inner >= 0 else [])]


def number_along(results: int, elements: int) -> int:
    """Return the pieces in which each of so many results reduces so many elements that lie side by side."""
    if results >= FEW:
        return 1
    return min(-(-BLOCKS // max(results, 1)), elements // SHORTEST)


def parts_of(unit: KernelUnit, facts: Facts, pieces: int, inner: int = -1) -> Parts:
    """Return the two units of a reduction: one that stores `pieces` parts of each result, one that joins them."""
    (nest,) = unit.nests
    joined = combiners(nest)
    assert joined is not None, "only a plain combination of values is done in parts"
    count = math.prod(nest.sizes[d] for d in nest.parallel) * pieces
    roots, end = list[Root](), 0
    for number, combiner in enumerate(joined):
        width = element_bytes(ir.Type.parse(combiner.type))
        some_value = unit.pointers.places[0].root.value  # scratch memory is no value of the program
        roots.append(Root(SCRATCH, number, count * width, some_value, end))
        end += -(-count * width // _APART) * _APART
    places = list(unit.pointers.places)
    start, scalars = len(places), list(unit.pointers.scalars)
    for root in roots:
        places.append(Pointed(root, Linear(0), root.nbytes // count))
    parts = set(range(start, len(places)))
    first = PieceUnit(
        [nest], 0, Pointers(list(places), parts, scalars), unit.steps, pieces, inner
    )  # fmt: skip
    second = _joining(nest, joined, start, pieces, inner)
    written = set(unit.pointers.written)
    last = KernelUnit([second], 0, Pointers(places, written, list(scalars)), unit.steps)
    return Parts(first, last, Facts((*facts.alignments, *[MOST] * len(roots))))


def _joining(
    nest: LoopNest, joined: Sequence[Combiner], start: int, pieces: int, inner: int
) -> LoopNest:
    """Return the nest that joins the parts behind pointer `start` with what each result begins with."""
    keep = parallel_of(nest, inner)
    sizes = tuple(nest.sizes[d] for d in keep)
    outside = restrided(nest, sizes, frozenset(), keep)
    numbers: dict[int, int] = {}
    code: list[NestNode] = []
    for old in sorted(needed(nest.code, nest.started)):
        numbers[old] = len(code)
        node = outside.code[old]
        if isinstance(node, Load):
            node = Load(Access(node.access.pointer, (*node.access.strides, 0)), node.type)
        elif isinstance(node, Index):
            node = replace(node, form=node.form._replace(strides=(*node.form.strides, 0)))
        code.append(renumber(node, [numbers.get(k, -1) for k in range(len(nest.code))]))
    strides = part_strides(sizes, pieces, inner)
    stores = list[Store]()
    for k, (combiner, store) in enumerate(zip(joined, outside.stores)):
        op = nest.code[store.value]
        assert isinstance(op, Apply)
        at = len(code)
        code.append(Accumulator(k, store.type))
        code.append(Load(Access(start + k, strides), ir.Type.parse(combiner.type)))
        code.append(Apply(op.name, op.attributes, (at, at + 1), op.type))
        access = store.access._replace(strides=(*store.access.strides, 0))
        initial = None if store.initial is None else numbers[store.initial]
        stores.append(replace(store, access=access, value=at + 2, initial=initial))
    return LoopNest(
        (*sizes, pieces), frozenset({len(sizes)}), tuple(code), tuple(stores),
        switches=nest.switches,
    )  # fmt: skip


def part_strides(sizes: Sequence[int], pieces: int, inner: int) -> tuple[int, ...]:
    """Return how parts lie: elements from one to the next along each parallel loop, then from piece to piece."""
    if inner < 0:
        return (*(math.prod(sizes[k + 1 :]) * pieces for k in range(len(sizes))), 1)
    rows = math.prod(sizes[:-1])
    columns = sizes[-1]
    outer = [math.prod(sizes[k + 1 : -1]) * pieces * columns for k in range(len(sizes) - 1)]
    assert len(outer) == len(sizes) - 1 and rows >= 1
    return (*outer, 1, columns)


def store_parts(
    frame: DeviceFrame, unit: PieceUnit, lanes: Lanes, where: Sequence[Value], parts: list[Value]
) -> None:
    """Store the parts of all results, lane by lane. where: indices of the parallel loops, then of the piece."""
    nest, writer = unit.nests[0], frame.writer
    sizes = [nest.sizes[d] for d in unit.parallel]
    strides = part_strides(sizes, unit.pieces, unit.inner)
    start = len(unit.pointers.places) - len(nest.stores)
    offset = frame.linear(0, strides, where)
    for k in range(len(nest.stores)):
        mine = [frame.in_memory(v) for v in parts[k * lanes.count : (k + 1) * lanes.count]]
        nbytes = unit.pointers.places[start + k].nbytes
        place = writer.offset(frame.pointers[start + k], offset, mine[0].type)
        most = max(1, min(len(mine), MOST // nbytes))
        for at in range(0, len(mine), most):
            group = mine[at : at + most]
            here = writer.offset(place, at * nbytes)
            if len(group) > 1:
                writer.store(writer.vector(group), here, len(group) * nbytes)
            else:
                writer.store(group[0], here)


def build_along(unit: PieceUnit, facts: Facts) -> DeviceKernel:
    """Return the kernel that reduces pieces whose elements lie side by side: a block for each."""
    (nest,) = unit.nests
    joined = combiners(nest)
    assert joined is not None
    blocks = math.prod(nest.sizes[d] for d in nest.parallel) * unit.pieces
    assert blocks <= MOST_BLOCKS
    shared = shared_bytes(THREADS, len(joined))
    frame = frame_for("rows", unit, facts, THREADS, shared_bytes=shared)
    _AlongCode(frame, unit, joined).write()
    return DeviceKernel.of(frame.writer, blocks, "rows", DETERMINISTIC)


class _AlongCode:
    """Write the first kernel of rows: the threads of a block take turns at groups of neighbouring elements."""

    def __init__(self, frame: DeviceFrame, unit: PieceUnit, joined: list[Combiner]) -> None:
        self.frame, self.unit, self.joined = frame, unit, joined
        self.nest = unit.nests[0]
        self.inner = sorted(self.nest.reductions)
        self.sizes = [self.nest.sizes[d] for d in self.inner]
        self.lanes = self._widest()
        writer = frame.writer
        self.member = writer.thread()
        block = frame.as_index(writer.block())
        self.piece = block % unit.pieces
        self.row = frame.digits(
            block // unit.pieces, [self.nest.sizes[d] for d in self.nest.parallel]
        )

    def _widest(self) -> int:
        """Return the neighbouring elements of a thread; those left over only where one loop is all there is."""
        last = self.inner[-1]
        count = max(piece(self.frame.alignments, load, last) for load in self.nest.loads)
        while len(self.inner) > 1 and self.nest.sizes[last] % count:
            count //= 2
        return count

    def write(self) -> None:
        """Reduce the piece of this block, and store what comes out."""
        frame, writer, lanes = self.frame, self.frame.writer, self.lanes
        chunks = math.prod(self.sizes) // lanes
        each = -(-chunks // self.unit.pieces)
        joined = [c for c in self.joined for _ in range(lanes)]
        first = self.piece * each
        end = writer.least(first + each, chunks)

        def body(chunk: Value, carried: list[Value]) -> list[Value]:
            given = self._given(chunk, lanes)
            return [c.join(frame, a, v) for c, a, v in zip(joined, carried, given)]

        starts = [c.start(frame) for c in joined]
        member = frame.as_index(self.member)
        parts = loop(frame, joined, starts, first + member, end, THREADS, body, most=each)
        parts = [
            tree(frame, c, parts[k * lanes : (k + 1) * lanes]) for k, c in enumerate(self.joined)
        ]
        left = math.prod(self.sizes) - chunks * lanes
        if left:
            parts = self._rest(parts, chunks * lanes, left)
        group = Group(frame, THREADS, len(self.joined), self.member)
        totals = group.reduce(self.joined, parts)
        one = Lanes(frame, self.nest, self._index(None), 0, 1)

        def store() -> None:
            store_parts(frame, self.unit, one, [*self.row, self.piece], totals)

        writer.if_(writer.compare("eq", self.member, 0), store)

    def _rest(self, parts: list[Value], start: int, count: int) -> list[Value]:
        """Join the elements that fill no group, which the first threads of the last block of each result have."""
        frame, writer = self.frame, self.frame.writer
        last = writer.compare("eq", self.piece, self.unit.pieces - 1)
        guard = both(last, writer.compare("ult", self.member, count))
        assert guard is not None
        values = self._given(frame.as_index(self.member) + frame.constant(start), 1, guard)
        return [
            c.join(frame, part, writer.select(guard, value, c.start(frame)))
            for c, part, value in zip(self.joined, parts, values)
        ]

    def _index(self, inner: Sequence[Value] | None) -> list[Value | None]:
        index: list[Value | None] = [None] * len(self.nest.sizes)
        for d, value in zip(self.nest.parallel, self.row):
            index[d] = value
        for d, value in zip(self.inner, inner or ()):
            index[d] = value
        return index

    def _given(self, chunk: Value, lanes: int, guard: Value | None = None) -> list[Value]:
        """Return what a group of elements gives to each result, lane by lane."""
        frame = self.frame
        digits = frame.digits(chunk, [*self.sizes[:-1], self.sizes[-1] // lanes])
        index = self._index([*digits[:-1], digits[-1] * lanes])
        group = Lanes(frame, self.nest, index, self.inner[-1], lanes, guard)
        found = group.compute([c.value for c in self.joined])
        return [c.given(frame, v) for c, values in zip(self.joined, found) for v in values]
