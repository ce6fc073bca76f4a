"""Compute maps that read some operands across the way they lie.

Each thread has a square of iterations, so that it can read such an operand and write its results in
16 bytes each; the square is turned in registers. Neighbouring threads have neighbouring squares, so
that each 32 bytes of memory are moved by one instruction.

Where sizes or strides do not allow that, a tile goes through shared memory, element by element, its
rows one element longer than a power of 2 so that columns lie in different banks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshweave.hints.fast_paths import BIT_EXACT
from meshweave.ir.expressions import Load, needed
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.groups import word_bytes
from meshweave.lowering.gpu.families.lanes import Lanes, piece
from meshweave.lowering.gpu.families.launch import MOST_BLOCKS, frame_for
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import DeviceFrame, DeviceIteration, guarded_load
from meshweave.lowering.gpu.writer import both
from meshweave.lowering.nests.bind import Access, LoopNest
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

LEAST = 4  # iterations of both loops, below which nothing is gained
DOWN, ALONG = 8, 4  # squares of a warp: along the loop read, along the loop written
WARPS = 8  # of a block
SECTOR = 32  # bytes that memory moves at least; a warp writes no fewer side by side
TILE, HIGH = 32, 8  # side of a tile in shared memory; rows of threads
MOST_OPS = 2000  # ops of a thread


@dataclass(frozen=True)
class Turn:
    """Describe a map whose results lie along its last loop, some loads (by number in the code) along `dim`."""

    nest: LoopNest
    dim: int
    loads: dict[int, Load[Access]]

    @property
    def last(self) -> int:
        """Return the loop along which results lie."""
        return len(self.nest.sizes) - 1

    @property
    def outer(self) -> list[int]:
        """List all other loops."""
        return [d for d in range(self.last) if d != self.dim]


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return a kernel for a map that turns an operand; None for any other unit."""
    turn = _turn_of(unit)
    if turn is None:
        return None
    side = _side(turn, facts)
    narrow = min(element_bytes(store.type) for store in turn.nest.stores)
    wide = side > 1 and side * narrow * ALONG >= SECTOR
    code = _Squares(turn, side) if wide else _Tiles(turn)
    if code.blocks > MOST_BLOCKS:
        return None
    frame = frame_for("transpose", unit, facts, code.threads, shared_bytes=code.shared_bytes)
    code.frame = frame
    code.write()
    return DeviceKernel.of(frame.writer, code.blocks, "transpose", BIT_EXACT)


def _turn_of(unit: KernelUnit) -> Turn | None:
    nest = unit.nests[0]
    if len(unit.nests) > 1 or nest.reductions or len(nest.sizes) < 2 or 0 in nest.sizes:
        return None
    last = len(nest.sizes) - 1
    if nest.accumulates or any(s.access.strides[last] != 1 for s in nest.stores):
        return None
    wanted = [(k, nest.code[k]) for k in sorted(needed(nest.code, nest.results))]
    loads = [(k, node) for k, node in wanted if isinstance(node, Load)]
    across = [(k, n) for k, n in loads if n.access.strides[last] not in (0, 1)]
    for dim in range(last):
        turned = {k: n for k, n in across if n.access.strides[dim] == 1}
        if turned and min(nest.sizes[dim], nest.sizes[last]) >= LEAST:
            return Turn(nest, dim, turned)
    return None


def _side(turn: Turn, facts: Facts) -> int:
    """Return the iterations of both loops in a square whose rows and columns can be moved at once."""
    nest = turn.nest
    side = min(
        *(piece(facts.alignments, store, turn.last, 8) for store in nest.stores),
        *(piece(facts.alignments, load, turn.dim, 8) for load in turn.loads.values()),
    )
    ops = len(needed(nest.code, nest.results))
    while side > 1 and (
        nest.sizes[turn.dim] % side or nest.sizes[turn.last] % side or ops * side * side > MOST_OPS
    ):
        side //= 2
    return side


class _BlockGrid:
    """Give each block of threads `high` by `wide` iterations of the two loops, in one iteration of the others."""

    frame: DeviceFrame
    shared_bytes = 0

    def __init__(self, turn: Turn, high: int, wide: int) -> None:
        self.turn, sizes = turn, turn.nest.sizes
        outer = [sizes[d] for d in turn.outer]
        self.grid = [*outer, -(-sizes[turn.dim] // high), -(-sizes[turn.last] // wide)]
        self.blocks = math.prod(self.grid)

    def begin(self) -> tuple[list[Value | None], Value, Value]:
        """Return the indices of the outer loops, and which block this is along the two."""
        block = self.frame.as_index(self.frame.writer.block())
        *outer, down, along = self.frame.digits(block, self.grid)
        index: list[Value | None] = [None] * len(self.turn.nest.sizes)
        for d, value in zip(self.turn.outer, outer):
            index[d] = value
        return index, down, along


class _Squares(_BlockGrid):
    """Write a square of side x side iterations for each thread."""

    threads = 32 * WARPS

    def __init__(self, turn: Turn, side: int) -> None:
        # A block has DOWN x (ALONG * WARPS) squares.
        super().__init__(turn, side * DOWN, side * ALONG * WARPS)
        self.side = side

    def write(self) -> None:
        """Write the kernel."""
        frame, turn, sizes = self.frame, self.turn, self.turn.nest.sizes
        writer = frame.writer
        thread = writer.thread()
        index, down, along = self.begin()
        row = down * DOWN + frame.as_index(thread % DOWN)
        column = along * (ALONG * WARPS) + frame.as_index(thread // DOWN)
        index[turn.dim], index[turn.last] = first = row * self.side, column * self.side
        guard = both(
            writer.inside(row, sizes[turn.dim] // self.side, DOWN),
            writer.inside(column, sizes[turn.last] // self.side, ALONG * WARPS),
        )
        writer.where(guard, lambda: self._square(index, *first))

    def _square(self, index: list[Value | None], row: Value, column: Value) -> None:
        frame, turn, side = self.frame, self.turn, self.side

        def lanes(dim: int, first: Value, count: int, along: int) -> Lanes:
            """Return the iterations along a loop, `count` further on in the other one."""
            here = list(index)
            here[dim] = first + frame.constant(count) if count else first
            return Lanes(frame, turn.nest, here, along, side)

        turned = {
            number: [lanes(turn.last, column, k, turn.dim).load(load, side) for k in range(side)]
            for number, load in turn.loads.items()
        }
        stores = turn.nest.stores
        for k in range(side):
            line = lanes(turn.dim, row, k, turn.last)
            known = {n: [values[k] for values in columns] for n, columns in turned.items()}
            for store, found in zip(stores, line.compute([s.value for s in stores], known)):
                line.store(store, found)


class _Tiles(_BlockGrid):
    """Write tiles of TILE x TILE iterations, whose turned operands are copied to shared memory first."""

    threads = TILE * HIGH

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn, TILE, TILE)
        self.starts: dict[int, int] = {}
        for number, load in turn.loads.items():
            self.starts[number] = self.shared_bytes
            self.shared_bytes += TILE * (TILE + 1) * word_bytes(_raw(load))

    def write(self) -> None:
        """Write the kernel."""
        writer, turn = self.frame.writer, self.turn
        thread = writer.thread()
        x, y = thread % TILE, thread // TILE
        first, down, along = self.begin()
        first[turn.dim], first[turn.last] = start = down * TILE, along * TILE

        def at(down: Value, along: Value) -> tuple[list[Value | None], Value]:
            """Return an iteration of the tile, and whether it exists."""
            index, inside = list(first), []
            for dim, begin, more in zip((turn.dim, turn.last), start, (down, along)):
                index[dim] = place = begin + self.frame.as_index(more)
                inside.append(writer.compare("ult", place, turn.nest.sizes[dim]))
            return index, inside[0] & inside[1]

        for k in range(0, TILE, HIGH):
            down, along = x, y + k
            self._read(*at(down, along), down, along)
        writer.barrier()
        for k in range(0, TILE, HIGH):
            down, along = y + k, x
            self._write(*at(down, along), down, along)

    def _place(self, number: int, down: Value, along: Value) -> Value:
        """Return where an element of a turned operand is in shared memory."""
        writer = self.frame.writer
        nbytes = word_bytes(_raw(self.turn.loads[number]))
        tile = writer.shared(self.starts[number])
        return writer.offset(tile, (along * (TILE + 1) + down) * nbytes)

    def _read(self, index: list[Value | None], inside: Value, down: Value, along: Value) -> None:
        frame = self.frame
        for number, load in self.turn.loads.items():
            address = frame.address(load.access, str(load.type), index)
            value = guarded_load(frame.writer, inside, address, _raw(load))
            frame.writer.store(value, self._place(number, down, along))

    def _write(self, index: list[Value | None], inside: Value, down: Value, along: Value) -> None:
        nest, frame = self.turn.nest, self.frame

        def body() -> None:
            known = {}
            for number, load in self.turn.loads.items():
                raw = frame.writer.load(self._place(number, down, along), _raw(load))
                known[number] = frame.loaded(raw, str(load.type))
            here = DeviceIteration(frame, nest, index, known)
            for store, value in zip(nest.stores, here.compute([s.value for s in nest.stores])):
                here.store(store, value)

        frame.writer.if_(inside, body)


def _raw(load: Load[Access]) -> str:
    """Return the type in memory of what a load reads."""
    return stored(str(load.type))
