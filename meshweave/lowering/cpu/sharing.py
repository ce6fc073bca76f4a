"""Write kernels in pieces: a function that has the pieces done by the rank's cores, and one that does a piece."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshweave.lowering.cpu.collectives.cores import SHARE
from meshweave.lowering.cpu.pieces import Pieces
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value, Writer, passed

POINTER = "!llvm.ptr"
DECLARATION = f"func.func private @{SHARE}({POINTER}, {POINTER}, {POINTER}, i64)\n"
_PIECE = f"({POINTER}, i64, {POINTER}) -> ()"


def shared_text(name: str, unit: KernelUnit, pieces: Pieces, parts: Sequence[str]) -> str:
    """Write the function `name` that does what the unit does, given the rank's `CoresBlock` behind its own arguments.

    parts: the functions of a whole piece and, where there is one, of the rest.
    """
    scalars = [passed(str(s.type)) for s in unit.pointers.scalars]
    types = [POINTER] * len(unit.pointers.places) + scalars
    return _share_text(name, types, pieces.count) + _piece_text(
        f"{name}_piece", types, pieces, parts
    )


def _share_text(name: str, types: Sequence[str], count: int) -> str:
    """Write the function that puts its arguments in memory and has the pieces done."""
    writer = Writer()
    given = [Value(writer, f"%a{k}", type_) for k, type_ in enumerate(types)]
    cells = writer.local_buffer(max(1, len(types)), "i64")
    for k, value in enumerate(given):
        if value.type == "index":
            value = writer.convert("arith.index_cast", value, "i64")
        writer.store(value, writer.offset(cells, k, "i64"))
    function = writer.let(f"func.constant @{name}_piece : {_PIECE}", _PIECE)
    piece = writer.convert("builtin.unrealized_conversion_cast", function, POINTER)
    names = f"%cores, {piece.name}, {cells.name}, {writer.constant(count, 'i64').name}"
    writer.add(f"func.call @{SHARE}({names}) : ({POINTER}, {POINTER}, {POINTER}, i64) -> ()")
    parameters = [f"{value.name}: {value.type}" for value in given]
    return _function(name, [*parameters, f"%cores: {POINTER}"], writer)


def _piece_text(name: str, types: Sequence[str], pieces: Pieces, parts: Sequence[str]) -> str:
    """Write the function that does piece `%number`: it moves pointers to where the piece begins."""
    writer = Writer()
    cells = Value(writer, "%cells", POINTER)
    number = Value(writer, "%number", "i64")
    given = [_argument(writer, cells, k, type_) for k, type_ in enumerate(types)]
    scalars = [value for value in given if value.type != POINTER]
    if pieces.limit is None:
        begin = writer.times(number, pieces.step)
    else:
        begin, length = _share_of(writer, number, scalars[pieces.limit], pieces)
        scalars.append(length)
    moved = [
        writer.offset(given[move.pointer], writer.times(begin, move.nbytes))
        if move.nbytes
        else given[move.pointer]
        for move in pieces.moves
    ]
    if pieces.counts:
        scalars.append(writer.convert("arith.index_cast", begin, "index"))
    values = [*moved, *scalars]
    if len(parts) == 1:
        _call(writer, parts[0], values)
    else:
        writer.if_(
            writer.compare("slt", number, pieces.count - 1),
            partial(_call, writer, parts[0], values),
            partial(_call, writer, parts[1], values),
        )
    return _function(name, [f"%cells: {POINTER}", "%number: i64", f"%scratch: {POINTER}"], writer)


def _share_of(writer: Writer, number: Value, limit: Value, pieces: Pieces) -> tuple[Value, Value]:
    """Return where piece `number` of a loop that ends at a limit begins, and how many iterations it has."""
    end = writer.convert("arith.index_cast", limit, "i64")
    count = writer.constant(1, "i64")
    for first, more in pieces.fewer:
        count = writer.select(
            writer.compare("sge", end, first), writer.constant(more, "i64"), count
        )
    step = (writer.plus(end, count) - 1) // count
    step = writer.times(_rounded_up(writer, step, pieces.multiple), pieces.multiple)
    step = writer.least(step, pieces.step)
    begin = writer.least(writer.times(number, step), end)
    length = writer.least(end - begin, step)
    return begin, writer.convert("arith.index_cast", length, "index")


def _rounded_up(writer: Writer, value: Value, by: int) -> Value:
    """Return an i64 divided by a number, rounded up."""
    return value if by == 1 else writer.plus(value, by - 1) // by


def _call(writer: Writer, name: str, values: Sequence[Value]) -> None:
    names, types = (", ".join(x) for x in zip(*((v.name, v.type) for v in values)))
    writer.add(f"func.call @{name}({names}) : ({types}) -> ()")


def _argument(writer: Writer, cells: Value, number: int, type_: str) -> Value:
    """Load an argument of the kernel from memory."""
    at = writer.offset(cells, number, "i64")
    if type_ == "index":
        return writer.convert("arith.index_cast", writer.load(at, "i64"), "index")
    return writer.load(at, type_)


def _function(name: str, parameters: Sequence[str], writer: Writer) -> str:
    head = f"func.func @{name}({', '.join(parameters)})"
    return "\n".join([head + " {", *writer.head, *writer.lines, "return", "}", ""])
