"""The exchange of two layouts on gpus: kernels copy what is kept, and pack and unpack messages where
they do not lie back to back; NCCL sends them.

Every rank does the same with other numbers. Its copies are a table in device memory, which one launch
does; what the host has to know of them, and of the messages, is a table of the host.

host table: for each rank the word where its section begins. A section: for each of KEPT, PACKED and
UNPACKED (first byte of its copies in the block of constants, how many, units of the largest); where
in the staging buffer messages leave from and come to (-1: in the source, in the target); then for
each member bytes to send, where they begin, bytes to receive, where they begin.
device table: copies of 3 + 3 * levels words: first byte in the source, in the target, units in all;
then of each level its count and its steps in source and target, the first fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshweave.device import GpuTable
from meshweave.fast_paths import BIT_EXACT
from meshweave.lowering.copies import INNER, LEVELS, MEMBER, NBYTES, OUTER, RUN, SOURCE, TARGET
from meshweave.lowering.exchange import (
    BODY,
    MESSAGES,
    PACKS,
    PIECES,
    RECEIVED_AT,
    SENDS,
    UNPACKS,
    Level,
)
from meshweave.lowering.gpu.builder import GLOBAL, Builder, Parameter, Value
from meshweave.lowering.gpu.calls import HostFunction
from meshweave.lowering.gpu.kernel import DeviceKernel

KEPT, PACKED, UNPACKED = 0, 3, 6  # words of a section: where the three lists are
OUTBOX, INBOX, MEMBERS = 9, 10, 11
UNITS = (16, 8, 4, 2, 1)  # bytes that a thread moves at once
_TYPES = {16: "vector<4xi32>", 8: "i64", 4: "i32", 2: "i16", 1: "i8"}
_THREADS = 256
_MOST_BLOCKS = 1024  # of a copy; each thread then moves several units
_MOST_ROWS = 65535  # of a grid
_FIXED = 3
_PTR = "!llvm.ptr"


class Copy(NamedTuple):
    """Runs of bytes: offsets of the first in both buffers, and levels, the first fastest, each of
    them (count, step in the source, step in the target).
    """

    source: int
    target: int
    run: int
    levels: tuple[Level, ...]


class Part(NamedTuple):
    """What one rank does: the three lists of copies, where messages are, four numbers a member."""

    kept: list[Copy]
    packed: list[Copy]
    unpacked: list[Copy]
    boxes: tuple[int, int]
    members: list[int]


def parts_of(data: bytes, members: Sequence[int]) -> list[Part]:
    """What each rank does by the data of `lowering/exchange.py`. members: of each rank its own number
    in its group.
    """
    words = np.frombuffer(data, np.int64).tolist()
    return [_part(words, words[rank], own) for rank, own in enumerate(members)]


def _part(words: list[int], head: int, own: int) -> Part:
    kept, unpacked, packed = [], [], []
    at, arrived, left = words[head + BODY], 0, 0
    messages, unpacks = words[head + MESSAGES], words[head + UNPACKS]
    for _ in range(words[head + PIECES]):
        piece = words[at:]
        if not messages or piece[MEMBER] == own:
            kept.append(_copy(piece))
        else:
            unpacked.append(_dense(_copy(piece), arrived, side=0))
            arrived += piece[NBYTES]
        at += LEVELS + 3 * (INNER + piece[OUTER])
    numbers: list[int] = []
    if messages:
        lists = head + words[head + SENDS]
        for place in words[lists + 1 : lists + 1 + words[lists]]:
            packed.append(_dense(_copy(words[place:]), left, side=1))
            left += words[place + NBYTES]
        numbers = words[head + messages : head + words[head + SENDS]]
    packs = words[head + PACKS]
    boxes = (0 if packs else -1, words[head + RECEIVED_AT] if unpacks else -1)
    return Part(kept, packed if packs else [], unpacked if unpacks else [], boxes, numbers)


def _copy(piece: list[int]) -> Copy:
    flat = piece[LEVELS : LEVELS + 3 * (INNER + piece[OUTER])]
    levels = tuple(zip(flat[::3], flat[1::3], flat[2::3]))
    return Copy(piece[SOURCE], piece[TARGET], piece[RUN], tuple(x for x in levels if x[0] != 1))


def _dense(copy: Copy, start: int, side: int) -> Copy:
    """The copy with its source (0) or target (1) from `start` on, one run after the other."""
    step, levels = copy.run, []
    for count, *steps in copy.levels:
        steps[side] = step
        levels.append((count, steps[0], steps[1]))
        step *= count
    ends = (start, copy.target) if side == 0 else (copy.source, start)
    return Copy(*ends, copy.run, tuple(levels))


def unit_of(parts: Sequence[Part], alignment: int) -> int:
    """The bytes that a thread can move at once, both buffers being aligned to `alignment`."""
    numbers = [alignment]
    for part in parts:
        for copy in (*part.kept, *part.packed, *part.unpacked):
            numbers += [copy.source, copy.target, copy.run]
            numbers += [step for _, *steps in copy.levels for step in steps]
    common = math.gcd(*numbers)
    return next(unit for unit in UNITS if common % unit == 0)


def depth_of(parts: Sequence[Part]) -> int:
    """Levels of every copy in the tables, units of a run included."""
    copies = [c for part in parts for c in (*part.kept, *part.packed, *part.unpacked)]
    return 1 + max((len(copy.levels) for copy in copies), default=0)


def table_of(parts: Sequence[Part], unit: int, depth: int, put: Callable[[bytes], int]) -> bytes:
    """The table of the host. put: keeps bytes in the block of constants, and says where."""
    starts, sections = [], []
    end = len(parts)
    for part in parts:
        section = []
        for copies in (part.kept, part.packed, part.unpacked):
            rows = [_row(copy, unit, depth) for copy in copies]
            place = put(np.array(rows, np.int64).tobytes()) if rows else 0
            section += [place, len(rows), max((row[2] for row in rows), default=0)]
        section += [*part.boxes, *part.members]
        starts.append(end)
        sections += section
        end += len(section)
    return np.array([*starts, *sections], np.int64).tobytes()


def _row(copy: Copy, unit: int, depth: int) -> list[int]:
    """A copy as words."""
    levels = [(copy.run // unit, unit, unit), *copy.levels]
    levels += [(1, 0, 0)] * (depth - len(levels))
    total = math.prod(count for count, _, _ in levels)
    return [copy.source, copy.target, total, *(number for level in levels for number in level)]


def copies_kernel(unit: int) -> DeviceKernel:
    """The kernel that does the copies of a table: p0 the target, p1 the source, p2 the table; s0 how
    many there are, s1 their levels, s2 threads of a row of the grid, s3 rows.
    """
    name = f"copies_of_{unit}"
    pointers = [Parameter("p0", GLOBAL, unit), Parameter("p1", GLOBAL, unit, readonly=True)]
    pointers.append(Parameter("p2", GLOBAL, 8, readonly=True))
    scalars = [Parameter(f"s{k}", "i64") for k in range(4)]
    b = Builder(name, [*pointers, *scalars], _THREADS)
    row_bytes = (b["s1"] + 1) * (_FIXED * 8)
    first = b.wide(b.block()) * _THREADS + b.wide(b.thread())

    def word(row: Value, index: Value | int) -> Value:
        place = index * 8
        return b.load(b.offset(row, place), "i64")

    def copy(number: Value, _: list[Value]) -> None:
        row = b.offset(b["p2"], number * row_bytes)
        source, target = word(row, 0), word(row, 1)

        def move(index: Value, _: list[Value]) -> None:
            def level(which: Value, carried: list[Value]) -> list[Value]:
                rest, s, t = carried
                at = which * 3 + _FIXED
                count, step, stride = word(row, at), word(row, at + 1), word(row, at + 2)
                digit = rest % count
                return [rest // count, s + digit * step, t + digit * stride]

            _, s, t = b.for_(0, b["s1"], 1, [index, source, target], level, "i64")
            value = b.load(b.offset(b["p1"], s), _TYPES[unit], unit)
            b.store(value, b.offset(b["p0"], t), unit)

        b.for_(first, word(row, 2), b["s2"], [], move, "i64")

    b.for_(b.wide(b.block("y")), b["s0"], b["s3"], [], copy, "i64")
    parameters = ("ptr", "ptr", "ptr", "i64", "i64", "i64", "i64")
    block = (_THREADS, 1, 1)
    return DeviceKernel(name, b.text(), (1, 1, 1), block, 0, parameters, "copies", BIT_EXACT)


# Host code.

COPIES = "mw_copies"
_COPIES = [("%to", _PTR), ("%from", _PTR), ("%table", _PTR), ("%count", "i64"), ("%levels", "i64")]
_COPIES += [("%largest", "i64"), ("%function", "i64")]


def copies_function() -> HostFunction:
    """`mw_copies`: launch the kernel at slot %function on a table of copies; of none, nothing."""
    f = HostFunction(COPIES, _COPIES)
    with f.when(f.let(f'llvm.icmp "ne" %count, {f.number(0)} : i64')):
        per_block, most = f.number(_THREADS), f.number(_MOST_BLOCKS)
        up = f.let(f"llvm.add %largest, {f.number(_THREADS - 1)} : i64")
        blocks = _least(f, f.let(f"llvm.udiv {up}, {per_block} : i64"), most)
        rows = _least(f, "%count", f.number(_MOST_ROWS))
        span = f.let(f"llvm.mul {blocks}, {per_block} : i64")
        given = ["%to", "%from", "%table", "%count", "%levels", span, rows]
        cells = f.stack(f"!llvm.array<{len(given)} x ptr>")
        for k, value in enumerate(given):
            cell = f.stack("i64")
            f.store(value, _PTR if k < 3 else "i64", cell)
            f.store(cell, _PTR, f.at(cells, k))
        grid = [f.let(f"llvm.trunc {n} : i64 to i32") for n in (blocks, rows)]
        shape = [*grid, *(f.number(n, "i32") for n in (1, _THREADS, 1, 1, 0))]
        function, stream = f.table("%function"), f.table(GpuTable.COMPUTE)
        f.call("cuLaunchKernel", function, *shape, stream, cells, f.let(f"llvm.mlir.zero : {_PTR}"))
    return f


def _least(f: HostFunction, a: str, b: str) -> str:
    less = f.let(f'llvm.icmp "ult" {a}, {b} : i64')
    return f.let(f"llvm.select {less}, {a}, {b} : i1, i64")
