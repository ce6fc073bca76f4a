"""Find the loops whose rounds do nothing behind the size that a call chooses: they may end there.

So are the rounds of a scatter: each asks a tensor of flags, false behind the end, whether there is anything to put. And
so are rounds that put blocks into a tensor, side by side, where nobody reads what lies behind the end: the tiles of
queries of an attention.
"""

from __future__ import annotations

from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.ir.build import DYNAMIC, static_offsets, static_sizes, static_strides
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.lowering.nests.ends.behind import Behind
from meshweave.lowering.nests.ends.limits import Limit
from meshweave.transforms.base import walk

_PURE = ("arith.", "tensor.", "scf.", "mw.launch")  # ranks meet in none of these


def idle_rounds(main: ir.Operation, behind: Behind) -> dict[ir.Operation, Limit]:
    """Return where loops from 0 on in steps of 1 may end, by the loop."""
    found = {}
    for op in walk(main):
        if op.name != "scf.for" or rounds_of(op) is None:
            continue
        limit = next((one for one in _limits(op, behind) if _is_idle(op, one, behind)), None)
        if limit is not None:
            found[op] = limit
    return found


def rounds_of(op: ir.Operation) -> int | None:
    """Return the number of rounds of an `scf.for` that begins at 0 and counts in ones; None for any other."""
    begin, end, step = (_number(value) for value in list(op.operands)[:3])
    return end if (begin, step) == (0, 1) else None


class BlockRow(NamedTuple):
    """Say that round k of a loop writes a tensor from place `size` * k of dim `dim` on, and before the next round."""

    dim: int
    size: int


def block_rows(main: ir.Operation) -> dict[ir.Operation, list[frozenset[BlockRow]]]:
    """Return the ways in which each result of a loop is put together of blocks, of loops that do nothing else."""
    found = {}
    for op in walk(main):
        if op.name != "scf.for" or rounds_of(op) is None:
            continue
        if all(inner == op or inner.name.startswith(_PURE) for inner in walk(op)):
            count, *carried = body_of(op).arguments
            ends = terminator(body_of(op)).operands
            rows = [
                _rows(end, one, count) or frozenset()
                for end, one in zip(ends, carried, strict=True)
            ]
            if rows and all(rows):
                found[op] = rows
    return found


def _rows(value: ir.Value, before: ir.Value, count: ir.Value) -> frozenset[BlockRow] | None:
    """Return the ways in which what makes `value` of `before` are blocks of a round; None where nothing is put."""
    if value == before:
        return None
    made, own = producer(value), frozenset[BlockRow]()
    if made is None or len(list(before.uses)) != 1:
        return own  # somebody else reads what earlier rounds have put there
    into = made.operands[1] if made.name == "tensor.insert_slice" else None
    if into is not None:
        own = frozenset(_blocks_of(made, count))
    elif made.name == "scf.for":
        number, inner = list(made.results).index(value), body_of(made)
        into = made.operands[3 + number]
        end, argument = terminator(inner).operands[number], inner.arguments[1 + number]
        own = _rows(end, argument, count) or own
    rest = None if into is None else _rows(into, before, count)
    return own if rest is None else own & rest


def _blocks_of(op: ir.Operation, count: ir.Value) -> list[BlockRow]:
    """Return the dims along which an insertion begins at a multiple of `count`, and is no longer than that."""
    given, found = iter(list(op.operands)[2:]), []
    places = zip(static_offsets(op), static_sizes(op), static_strides(op))
    for dim, (offset, extent, step) in enumerate(places):
        size = multiple_of(next(given), count) if offset == DYNAMIC else None
        if size is not None and 0 < extent <= size and step == 1:
            found.append(BlockRow(dim, size))
    return found


def multiple_of(value: ir.Value, count: ir.Value) -> int | None:
    """Return the number by which `count` is multiplied to give a value; None for any other value."""
    if value == count:
        return 1
    op = producer(value)
    if op is None or op.name != "arith.muli" or count not in list(op.operands):
        return None
    return next((n for n in map(_number, op.operands) if n is not None), None)


def _number(value: ir.Value) -> int | None:
    op = producer(value)
    return op.attributes["value"].value if op is not None and op.name == "arith.constant" else None


def _limits(op: ir.Operation, behind: Behind) -> list[Limit]:
    """Return the limits that flags of the rounds of a loop have, if no ranks meet in it."""
    count, flags = body_of(op).arguments[0], dict[Limit, None]()
    for inner in walk(op):
        if inner != op and not inner.name.startswith(_PURE):
            return []
        if inner.name == "tensor.extract" and list(inner.operands)[1:] == [count]:
            flags |= dict.fromkeys(behind.off(inner.operands[0]))
    return list(flags)


def _is_idle(op: ir.Operation, limit: Limit, behind: Behind) -> bool:
    """Tell whether each round behind a limit leaves what the loop carries as it is."""
    count, *carried = body_of(op).arguments

    def is_off(value: ir.Value) -> bool:
        made = producer(value)
        if made is None:
            return False
        if made.name == "arith.andi":
            return any(is_off(operand) for operand in made.operands)
        flags = made.name == "tensor.extract" and list(made.operands)[1:] == [count]
        return flags and limit in behind.off(made.operands[0])

    def is_kept(value: ir.Value, before: ir.Value) -> bool:
        made = producer(value)
        if value == before or made is None:
            return bool(value == before)
        number = list(made.results).index(value)
        if made.name == "scf.if" and is_off(made.operands[0]):
            return is_kept(terminator(body_of(made, 1)).operands[number], before)
        if made.name != "scf.for" or not is_kept(made.operands[3 + number], before):
            return False
        inner = body_of(made)
        return is_kept(terminator(inner).operands[number], inner.arguments[1 + number])

    ends = terminator(body_of(op)).operands
    return all(is_kept(end, before) for end, before in zip(ends, carried, strict=True))
