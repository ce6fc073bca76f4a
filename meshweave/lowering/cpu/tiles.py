"""Read transposed operands in tiles that are transposed in a small local buffer.

A loop that walks one operand along its rows and another along its columns touches a new cache line for every element
of the latter. In tiles of TILE x TILE the latter is read along its own rows, 8 vectors of 8 at a time are transposed in
registers, and the loop reads the local copy with step 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshweave.ir.expressions import Load
from meshweave.lowering.nests.bind import Access, LoopNest
from meshweave.lowering.writer import Value, Writer

TILE = 32
WIDE = 8  # lanes of a vector, rows of a block
Address = Callable[[Value, Value], Value]
Part = tuple[tuple[Value | int, Value | int], tuple[Value | int, Value | int]]


def transposed(nest: LoopNest, order: list[int]) -> tuple[int, list[int]] | None:
    """Return the loop and the loads (numbers in the code) that run across the innermost loop of `order`.

    The loads walk that loop with step 1, and not the innermost one. None when there are none, or
    the loops are short.
    """
    if nest.reductions or not order or nest.sizes[order[-1]] < WIDE:
        return None
    inner = order[-1]
    for dim in order[:-1]:
        loads = [
            number
            for number, node in enumerate(nest.code)
            if isinstance(node, Load) and _turned(node.access, inner, dim)
        ]
        if loads and nest.sizes[dim] >= WIDE:
            return dim, loads
    return None


def _turned(access: Access, inner: int, dim: int) -> bool:
    return access.strides[dim] == 1 and access.strides[inner] not in (-1, 0, 1)


def buffer(writer: Writer, nbytes: int) -> Value:
    """Reserve a local buffer for a tile of elements of `nbytes`, once for the function."""
    return writer.local_buffer(TILE * TILE, f"i{8 * nbytes}")


def stage(
    writer: Writer,
    tile: Value,
    nbytes: int,
    extents: Sequence[Value],
    whole: bool,
    address: Address,
) -> None:
    """Copy a tile: element (row, column) of the local buffer is the one at `address(row, column)`.

    Rows are what memory holds apart. extents: rows and columns; whole: both are multiples of WIDE.
    """
    rows, columns = extents if whole else [writer.times(extent // WIDE, WIDE) for extent in extents]
    _blocks(writer, tile, nbytes, ((0, rows), (0, columns)), WIDE, address)
    if not whole:
        _blocks(writer, tile, nbytes, ((rows, extents[0]), (0, columns)), 1, address)
        _blocks(writer, tile, nbytes, ((0, extents[0]), (columns, extents[1])), 1, address)


def _blocks(
    writer: Writer, tile: Value, nbytes: int, part: Part, step: int, address: Address
) -> None:
    """Copy a part of a tile in blocks of `step` by `step` elements.

    part: its first row and the row behind it, then columns alike.
    """
    (first, last), (left, right) = part
    # Along memory's rows in the inner loop: 8 of them fit in the cache in any case.
    column, row = writer.open(right, step, left), writer.open(last, step, first)
    kind = f"vector<{step}xi{8 * nbytes}>" if step > 1 else f"i{8 * nbytes}"
    values = [writer.load(address(row, writer.plus(column, k)), kind, nbytes) for k in range(step)]
    for k, value in enumerate(turn(writer, values)):
        writer.store(value, element(writer, tile, nbytes, writer.plus(row, k), column), nbytes)
    writer.close()
    writer.close()


def element(writer: Writer, tile: Value, nbytes: int, row: Value, column: Value) -> Value:
    """Return the address of an element of a local buffer."""
    return writer.offset(tile, writer.plus(writer.times(row, TILE), column), f"i{8 * nbytes}")


def turn(writer: Writer, rows: Sequence[Value]) -> list[Value]:
    """Return the columns of a block whose rows are these vectors: blocks of a half, a quarter .. are exchanged in turn.

    It has as many rows as columns, a power of two.
    """
    rows, count = list(rows), len(rows)
    lanes, distance = range(count), count
    while (distance := distance // 2) > 0:
        low = [k if not k & distance else count + k - distance for k in lanes]
        high = [k + distance if not k & distance else count + k for k in lanes]
        for k in lanes:
            if not k & distance:
                one, other = rows[k], rows[k + distance]
                rows[k] = writer.shuffle(one, other, low)
                rows[k + distance] = writer.shuffle(one, other, high)
    return rows


def every_second(writer: Writer, first: Value, second: Value, lanes: int) -> Value:
    """Return every second of 2 * lanes - 1 elements in a row: one vector has the first of them, another the last."""
    return writer.shuffle(first, second, [k + (k >= lanes) for k in range(0, 2 * lanes, 2)])


def minimum(writer: Writer, start: Value, size: Value | int, step: int = TILE) -> Value:
    """Return how many of `size` iterations the tile of `step` that begins at `start` has."""
    whole = writer.constant(step, "i64")
    if not isinstance(size, Value) and size % step == 0:
        return whole
    left = writer.as_value(size, "i64") - start
    return writer.let(f"arith.minsi {left.name}, {whole.name} : i64", "i64")
