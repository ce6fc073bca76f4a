"""Transposed operands: a square of them is turned over in a small local buffer before it is used.

A loop that walks one operand along its rows and another along its columns touches a new cache line for every element
of the latter. In tiles of TILE x TILE the latter is read along its own rows, 8 vectors of 8 at a time are transposed in
registers, and the loop reads the local copy with step 1.
"""

from __future__ import annotations

from collections.abc import Callable

from meshweave.lowering.bind import Access, Nest
from meshweave.lowering.text import Text

TILE = 32
WIDE = 8  # lanes of a vector, rows of a block
Address = Callable[[dict[int, str]], str]


def transposed(nest: Nest, order: list[int]) -> tuple[int, list[int]] | None:
    """The loop that walks with step 1 what the innermost of `order` does not, and the loads
    (numbers in the code) that it walks so. None when there is none, or the loops are short.
    """
    if nest.reductions or not order or nest.sizes[order[-1]] < WIDE:
        return None
    inner = order[-1]
    for dim in order[:-1]:
        loads = [
            number
            for number, node in enumerate(nest.code)
            if node[0] == "load" and _turned(node[1], inner, dim)
        ]
        if loads and nest.sizes[dim] >= WIDE:
            return dim, loads
    return None


def _turned(access: Access, inner: int, dim: int) -> bool:
    return access.strides[dim] == 1 and access.strides[inner] not in (-1, 0, 1)


def buffer(text: Text, nbytes: int) -> str:
    """A local buffer for a tile of elements of `nbytes`, made once where the function begins."""
    name = text.fresh()
    count = text.constant(str(TILE * TILE), "i32")
    kind = f"i{8 * nbytes}"
    text.head.append(
        f"{name} = llvm.alloca {count} x {kind} {{alignment = 64 : i64}} : (i32) -> !llvm.ptr"
    )
    return name


def stage(
    text: Text, tile: str, nbytes: int, extents: tuple[str, str], whole: bool, address: Address
) -> None:
    """Copy a tile: element (row, column) of the local buffer is the one at `address({0: row, 1: column})`, rows being
    those that memory holds apart. extents: rows and columns; whole: both are multiples of WIDE.
    """
    step = WIDE if whole else 1
    # Along memory's rows in the inner loop: 8 of them fit in the cache in any case.
    column, row = text.open(extents[1], step), text.open(extents[0], step)
    kind = f"i{8 * nbytes}" if not whole else f"vector<{WIDE}xi{8 * nbytes}>"
    values = []
    for k in range(step):
        pointer = address({0: row, 1: text.plus(column, k)})
        values.append(
            text.let(f"llvm.load {pointer} {{alignment = {nbytes} : i64}} : !llvm.ptr -> {kind}")
        )
    if whole:
        values = turn(text, values, kind)
    for k, value in enumerate(values):
        pointer = element(text, tile, nbytes, text.plus(row, k), column)
        text.add(
            f"llvm.store {value}, {pointer} {{alignment = {nbytes} : i64}} : {kind}, !llvm.ptr"
        )
    text.close(2)


def element(text: Text, tile: str, nbytes: int, row: str, column: str) -> str:
    """The address of an element of a local buffer."""
    start = text.let(f"arith.muli {row}, {text.constant(str(TILE))} overflow<nsw> : i64")
    place = text.let(f"arith.addi {start}, {column} overflow<nsw> : i64")
    return text.let(
        f"llvm.getelementptr inbounds {tile}[{place}] : (!llvm.ptr, i64) -> !llvm.ptr, i{8 * nbytes}"
    )


def turn(text: Text, rows: list[str], kind: str) -> list[str]:
    """The columns of a block whose rows are these vectors: blocks of 4, 2 and 1 are exchanged in turn."""
    rows = list(rows)
    lanes = range(WIDE)
    for distance in (4, 2, 1):
        low = [k if not k & distance else WIDE + k - distance for k in lanes]
        high = [k + distance if not k & distance else WIDE + k for k in lanes]
        for k in lanes:
            if not k & distance:
                pair = f"{rows[k]}, {rows[k + distance]}"
                first = text.let(f"llvm.shufflevector {pair} {low} : {kind}")
                rows[k + distance] = text.let(f"llvm.shufflevector {pair} {high} : {kind}")
                rows[k] = first
    return rows


def minimum(text: Text, start: str, size: int) -> str:
    """How many of `size` iterations the tile that begins at `start` has."""
    if size % TILE == 0:
        return text.constant(str(TILE))
    left = text.let(f"arith.subi {text.constant(str(size))}, {start} : i64")
    return text.let(f"arith.minsi {left}, {text.constant(str(TILE))} : i64")
