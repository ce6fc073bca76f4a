"""Maps that read some operands across the way they lie: each thread has a square of iterations, so
that it can read such an operand and write its results in 16 bytes each; the square is turned in
registers. Neighbouring threads have neighbouring squares, so that each 32 bytes of memory are moved
by one instruction.

Where sizes or strides do not allow that, a tile goes through shared memory, element by element, its
rows one element longer than a power of 2 so that columns lie in different banks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.fast_paths import BIT_EXACT
from meshweave.lowering.bind import Nest
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.gpu.facts import Facts, parameter_types, parameters_of
from meshweave.lowering.gpu.groups import word_bytes
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.lanes import WIDEST, Lanes, aligned_piece
from meshweave.lowering.gpu.launch import MOST_BLOCKS, as_index, entry_name, index_type
from meshweave.lowering.gpu.nodes import (
    Frame,
    Iteration,
    frame_of,
    guarded_load,
    needed,
    results,
    stored,
    width,
)
from meshweave.lowering.rows import Unit

LEAST = 4  # iterations of both loops, below which nothing is gained
DOWN, ALONG = 8, 4  # squares of a warp: along the loop read, along the loop written
WARPS = 8  # of a block
SECTOR = 32  # bytes that memory moves at least; a warp writes no fewer side by side
TILE, HIGH = 32, 8  # side of a tile in shared memory; rows of threads
MOST_OPS = 2000  # ops of a thread


@dataclass(frozen=True)
class Turn:
    """A map whose results lie along its last loop, some loads (numbers in the code) along `dim`."""

    nest: Nest
    dim: int
    loads: tuple[int, ...]

    @property
    def last(self) -> int:
        """The loop along which results lie."""
        return len(self.nest.sizes) - 1

    @property
    def outer(self) -> list[int]:
        """All other loops."""
        return [d for d in range(self.last) if d != self.dim]


def build(unit: Unit, target: Target, facts: Facts) -> DeviceKernel | None:
    """A kernel for a map that turns an operand; None for any other unit."""
    turn = _turn_of(unit)
    if turn is None:
        return None
    side = _side(turn, facts)
    narrow = min(width(store.type) for store in turn.nest.stores)
    if side > 1 and side * narrow * ALONG >= SECTOR:
        return _kernel(unit, facts, _Squares(turn, side))
    return _kernel(unit, facts, _Tiles(turn))


def _turn_of(unit: Unit) -> Turn | None:
    nest = unit.nests[0]
    if len(unit.nests) > 1 or nest.reductions or len(nest.sizes) < 2 or 0 in nest.sizes:
        return None
    last = len(nest.sizes) - 1
    codes = {node[0] for node in nest.code}
    if "acc" in codes or any(s.access.strides[last] != 1 for s in nest.stores):
        return None
    wanted = sorted(needed(nest, results(nest)))
    loads = [(k, nest.code[k][1]) for k in wanted if nest.code[k][0] == "load"]
    across = [(k, a) for k, a in loads if a.strides[last] not in (0, 1)]
    for dim in range(last):
        turned = tuple(k for k, a in across if a.strides[dim] == 1)
        if turned and min(nest.sizes[dim], nest.sizes[last]) >= LEAST:
            return Turn(nest, dim, turned)
    return None


def _side(turn: Turn, facts: Facts) -> int:
    """Iterations of both loops in a square whose rows and columns can be moved at once."""
    nest, side = turn.nest, WIDEST
    accesses = [(s.access, s.type, turn.last) for s in nest.stores]
    accesses += [(nest.code[k][1], nest.code[k][2], turn.dim) for k in turn.loads]
    for access, type_, along in accesses:
        steps = [access.const, *(s for d, s in enumerate(access.strides) if d != along)]
        nbytes, alignment = width(type_), facts.alignments[access.pointer]
        side = min(side, aligned_piece(alignment, steps, nbytes, min(8, WIDEST // nbytes)))
    ops = len(needed(nest, results(nest)))
    while side > 1 and (
        nest.sizes[turn.dim] % side or nest.sizes[turn.last] % side or ops * side * side > MOST_OPS
    ):
        side //= 2
    return side


def _kernel(unit: Unit, facts: Facts, code: _Squares | _Tiles) -> DeviceKernel | None:
    if code.blocks > MOST_BLOCKS:
        return None
    name = entry_name("transpose", unit)
    builder = Builder(
        name, parameters_of(unit, facts, code.phases), code.threads, shared_bytes=code.shared_bytes
    )
    code.write(frame_of(builder, unit, index_type(unit)))
    return DeviceKernel(
        entry=name,
        text=builder.text(),
        grid=(code.blocks, 1, 1),
        block=(code.threads, 1, 1),
        shared_bytes=0,
        parameters=parameter_types(unit),
        family="transpose",
        numerics=BIT_EXACT,
    )


class _Squares:
    """A square of side x side iterations for each thread."""

    phases, shared_bytes, threads = 1, 0, 32 * WARPS

    def __init__(self, turn: Turn, side: int) -> None:
        self.turn, self.side = turn, side
        sizes = turn.nest.sizes
        self.high, self.wide = sizes[turn.dim] // side, sizes[turn.last] // side
        # A block has DOWN x (ALONG * WARPS) squares.
        self.grid = [-(-self.high // DOWN), -(-self.wide // (ALONG * WARPS))]
        self.blocks = math.prod(sizes[d] for d in turn.outer) * math.prod(self.grid)

    def write(self, frame: Frame) -> None:
        """The kernel."""
        builder, turn, kind = frame.builder, self.turn, frame.index
        thread = builder.thread()
        outer_sizes = [turn.nest.sizes[d] for d in turn.outer]
        block = as_index(builder, builder.block(), kind)
        *outer, down, along = frame.digits(block, [*outer_sizes, *self.grid])
        row = down * DOWN + as_index(builder, thread % DOWN, kind)
        column = along * (ALONG * WARPS) + as_index(builder, thread // DOWN, kind)
        index: list[Value | None] = [None] * len(turn.nest.sizes)
        for d, value in zip(turn.outer, outer):
            index[d] = value
        index[turn.dim], index[turn.last] = row * self.side, column * self.side
        guard = None
        if self.high % DOWN:
            guard = builder.compare("ult", row, self.high)
        if self.wide % (ALONG * WARPS):
            inside = builder.compare("ult", column, self.wide)
            guard = inside if guard is None else guard & inside
        if guard is None:
            self._square(frame, index)
        else:
            builder.if_(guard, lambda: self._square(frame, index))

    def _square(self, frame: Frame, index: Sequence[Value | None]) -> None:
        nest, side = self.turn.nest, self.side
        turned: dict[int, list[list[Value]]] = {}
        for number in self.turn.loads:
            columns = []
            for k in range(side):
                here = self._moved(frame, index, self.turn.last, k)
                lanes = Lanes(frame, nest, here, self.turn.dim, side)
                columns.append(lanes.load(nest.code[number][1], nest.code[number][2], side))
            turned[number] = columns
        for k in range(side):
            here = self._moved(frame, index, self.turn.dim, k)
            lanes = Lanes(frame, nest, here, self.turn.last, side)
            known = {n: [column[k] for column in columns] for n, columns in turned.items()}
            found = lanes.compute([s.value for s in nest.stores], known)
            for store, values in zip(nest.stores, found):
                lanes.store(store, values)

    def _moved(
        self, frame: Frame, index: Sequence[Value | None], dim: int, count: int
    ) -> list[Value | None]:
        """`count` iterations further along a loop."""
        moved = list(index)
        first = moved[dim]
        assert first is not None
        moved[dim] = first + frame.constant(count) if count else first
        return moved


class _Tiles:
    """Tiles of TILE x TILE iterations, whose turned operands are copied to shared memory first."""

    phases, threads = 1, TILE * HIGH

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        sizes = turn.nest.sizes
        self.grid = [-(-sizes[turn.dim] // TILE), -(-sizes[turn.last] // TILE)]
        self.blocks = math.prod(sizes[d] for d in turn.outer) * math.prod(self.grid)
        self.starts = [0]
        for number in turn.loads:
            nbytes = word_bytes(_raw(turn.nest, number))
            self.starts.append(self.starts[-1] + TILE * (TILE + 1) * nbytes)
        self.shared_bytes = self.starts.pop()

    def write(self, frame: Frame) -> None:
        """The kernel."""
        builder, turn, kind = frame.builder, self.turn, frame.index
        thread = builder.thread()
        x, y = thread % TILE, thread // TILE
        outer_sizes = [turn.nest.sizes[d] for d in turn.outer]
        block = as_index(builder, builder.block(), kind)
        *outer, down, along = frame.digits(block, [*outer_sizes, *self.grid])
        first: list[Value | None] = [None] * len(turn.nest.sizes)
        for d, value in zip(turn.outer, outer):
            first[d] = value
        first[turn.dim], first[turn.last] = down * TILE, along * TILE
        for k in range(0, TILE, HIGH):
            self._read(frame, first, x, y + k)
        builder.barrier()
        for k in range(0, TILE, HIGH):
            self._write(frame, first, y + k, x)

    def _at(
        self, frame: Frame, first: Sequence[Value | None], down: Value, along: Value
    ) -> tuple[list[Value | None], Value]:
        """An iteration of the tile, and whether it exists."""
        builder, turn, index = frame.builder, self.turn, list(first)
        inside = []
        for dim, more in ((turn.dim, down), (turn.last, along)):
            start = index[dim]
            assert start is not None
            place = start + as_index(builder, more, frame.index)
            index[dim] = place
            inside.append(builder.compare("ult", place, turn.nest.sizes[dim]))
        return index, inside[0] & inside[1]

    def _place(self, frame: Frame, number: int, down: Value, along: Value) -> Value:
        """Where an element of a turned operand is in shared memory."""
        turn, builder = self.turn, frame.builder
        nbytes = word_bytes(_raw(turn.nest, number))
        tile = builder.shared(self.starts[turn.loads.index(number)])
        return builder.offset(tile, (along * (TILE + 1) + down) * nbytes)

    def _read(self, frame: Frame, first: Sequence[Value | None], down: Value, along: Value) -> None:
        index, inside = self._at(frame, first, down, along)
        for number in self.turn.loads:
            _, access, type_ = self.turn.nest.code[number]
            address = frame.address(access, str(type_), index)
            value = guarded_load(frame.builder, inside, address, stored(str(type_)))
            frame.builder.store(value, self._place(frame, number, down, along))

    def _write(
        self, frame: Frame, first: Sequence[Value | None], down: Value, along: Value
    ) -> None:
        nest, builder = self.turn.nest, frame.builder
        index, inside = self._at(frame, first, down, along)

        def body() -> None:
            known = {}
            for number in self.turn.loads:
                place = self._place(frame, number, down, along)
                raw = builder.load(place, _raw(nest, number))
                known[number] = frame.loaded(raw, str(nest.code[number][2]))
            here = Iteration(frame, nest, index, known)
            for store, value in zip(nest.stores, here.compute([s.value for s in nest.stores])):
                here.store(store, value)

        builder.if_(inside, body)


def _raw(nest: Nest, number: int) -> str:
    """The type in memory of what a load gives."""
    return stored(str(nest.code[number][2]))
