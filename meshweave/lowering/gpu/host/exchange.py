"""Write the exchange of two layouts on gpus: kernels copy, pack and unpack, NCCL sends.

Kernels copy what is kept, and pack and unpack messages where they do not lie back to back. Every
rank does the same with other numbers. Its copies are a table in device memory, which one launch
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

from meshweave.hints.fast_paths import BIT_EXACT
from meshweave.layout.mesh import Mesh
from meshweave.lowering.communication.calls import Call
from meshweave.lowering.communication.exchange import Level
from meshweave.lowering.communication.tables import INNER, PieceWords, SectionWords
from meshweave.lowering.gpu.host.calls import HostFunction
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import GLOBAL, DeviceWriter, Parameter
from meshweave.lowering.writer import Value

KEPT, PACKED, UNPACKED = 0, 3, 6  # words of a section: where the three lists are
OUTBOX, INBOX, MEMBERS = 9, 10, 11
UNITS = (16, 8, 4, 2, 1)  # bytes that a thread moves at once
_TYPES = {16: "vector<4xi32>", 8: "i64", 4: "i32", 2: "i16", 1: "i8"}
_THREADS = 256
_MOST_BLOCKS = 1024  # of a copy; each thread then moves several units
_MOST_ROWS = 65535  # of a grid
_FIXED = 3
_EXCHANGE = "mw_exchange"
_PTR = "!llvm.ptr"


class Copy(NamedTuple):
    """Describe runs of bytes that are copied.

    source, target: offsets of the first in both buffers. levels, the first fastest: each of them
    (count, step in the source, step in the target).
    """

    source: int
    target: int
    run: int
    levels: tuple[Level, ...]


class RankCopies(NamedTuple):
    """Say what one rank does: three lists of copies, where messages are, four numbers for each member."""

    kept: list[Copy]
    packed: list[Copy]
    unpacked: list[Copy]
    boxes: tuple[int, int]
    members: list[int]

    @property
    def copies(self) -> list[Copy]:
        """List the copies of all three lists."""
        return [*self.kept, *self.packed, *self.unpacked]


def exchange_parts(call: Call, groups: Sequence[Sequence[str]], mesh: Mesh) -> list[RankCopies]:
    """Return what each rank does in a call of an exchange or a relayout. groups: the mesh axes of each group.

    The call's data are those of `lowering/communication/exchange.py`.
    """
    axes = groups[call.group] if call.symbol == _EXCHANGE else ()
    words = np.frombuffer(call.data, np.int64).tolist()
    return [
        _part(words, words[rank], mesh.group(axes, rank).index(rank) if axes else 0)
        for rank in range(mesh.nranks)
    ]


def _part(words: list[int], head: int, own: int) -> RankCopies:
    kept, unpacked, packed = [], [], []
    at, arrived, left = words[head + SectionWords.BODY], 0, 0
    messages, unpacks = words[head + SectionWords.MESSAGES], words[head + SectionWords.UNPACKS]
    for _ in range(words[head + SectionWords.PIECES]):
        piece = words[at:]
        if not messages or piece[PieceWords.MEMBER] == own:
            kept.append(_copy(piece))
        else:
            unpacked.append(_dense(_copy(piece), arrived, side=0))
            arrived += piece[PieceWords.NBYTES]
        at += PieceWords.LEVELS + 3 * (INNER + piece[PieceWords.OUTER])
    numbers: list[int] = []
    if messages:
        lists = head + words[head + SectionWords.SENDS]
        for place in words[lists + 1 : lists + 1 + words[lists]]:
            packed.append(_dense(_copy(words[place:]), left, side=1))
            left += words[place + PieceWords.NBYTES]
        numbers = words[head + messages : head + words[head + SectionWords.SENDS]]
    packs = words[head + SectionWords.PACKS]
    boxes = (0 if packs else -1, words[head + SectionWords.RECEIVED_AT] if unpacks else -1)
    return RankCopies(kept, packed if packs else [], unpacked if unpacks else [], boxes, numbers)


def _copy(piece: list[int]) -> Copy:
    flat = piece[PieceWords.LEVELS : PieceWords.LEVELS + 3 * (INNER + piece[PieceWords.OUTER])]
    levels = tuple(zip(flat[::3], flat[1::3], flat[2::3]))
    source, target, run = piece[PieceWords.SOURCE : PieceWords.RUN + 1]
    return Copy(source, target, run, tuple(x for x in levels if x[0] != 1))


def _dense(copy: Copy, start: int, side: int) -> Copy:
    """Return the copy with its source (0) or target (1) from `start` on, one run after the other."""
    step, levels = copy.run, []
    for count, *steps in copy.levels:
        steps[side] = step
        levels.append((count, steps[0], steps[1]))
        step *= count
    ends = (start, copy.target) if side == 0 else (copy.source, start)
    return Copy(*ends, copy.run, tuple(levels))


def unit_of(parts: Sequence[RankCopies], alignment: int) -> int:
    """Return the bytes that a thread can move at once, both buffers being aligned to `alignment`."""
    numbers = [alignment]
    for copy in (copy for part in parts for copy in part.copies):
        numbers += [copy.source, copy.target, copy.run]
        numbers += [step for _, *steps in copy.levels for step in steps]
    common = math.gcd(*numbers)
    return next(unit for unit in UNITS if common % unit == 0)


def depth_of(parts: Sequence[RankCopies]) -> int:
    """Count the levels of every copy in the tables, units of a run included."""
    return 1 + max((len(copy.levels) for part in parts for copy in part.copies), default=0)


def table_of(
    parts: Sequence[RankCopies], unit: int, depth: int, put: Callable[[bytes], int]
) -> bytes:
    """Return the table of the host. put: keeps bytes in the block of constants, and says where."""
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
    """Return a copy as words."""
    levels = [(copy.run // unit, unit, unit), *copy.levels]
    levels += [(1, 0, 0)] * (depth - len(levels))
    total = math.prod(count for count, _, _ in levels)
    return [copy.source, copy.target, total, *(number for level in levels for number in level)]


def copies_kernel(unit: int) -> DeviceKernel:
    """Return the kernel that does the copies of a table, `unit` bytes at a time.

    p0 is the target, p1 the source, p2 the table; s0 how many copies there are, s1 their levels, s2
    threads of a row of the grid, s3 rows.
    """
    pointers = [Parameter("p0", GLOBAL, unit), Parameter("p1", GLOBAL, unit, readonly=True)]
    pointers.append(Parameter("p2", GLOBAL, 8, readonly=True))
    scalars = [Parameter(f"s{k}", "i64") for k in range(4)]
    b = DeviceWriter(f"copies_of_{unit}", [*pointers, *scalars], _THREADS)
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

            _rest, s, t = b.for_(0, b["s1"], 1, [index, source, target], level, "i64")
            value = b.load(b.offset(b["p1"], s), _TYPES[unit], unit)
            b.store(value, b.offset(b["p0"], t), unit)

        b.for_(first, word(row, 2), b["s2"], [], move, "i64")

    b.for_(b.wide(b.block("y")), b["s0"], b["s3"], [], copy, "i64")
    return DeviceKernel.of(b, 1, "copies", BIT_EXACT)


# Host code.

COPIES = "mw_copies"
_COPIES = [("%to", _PTR), ("%from", _PTR), ("%table", _PTR), ("%count", "i64"), ("%levels", "i64")]
_COPIES += [("%largest", "i64"), ("%function", "i64")]


def copies_function() -> HostFunction:
    """Return `mw_copies`: it launches the kernel at slot %function on a table of copies, if there are any."""
    f = HostFunction(COPIES, _COPIES)
    with f.when(f.let(f'llvm.icmp "ne" %count, {f.number(0)} : i64')):
        per_block, most = f.number(_THREADS), f.number(_MOST_BLOCKS)
        up = f.let(f"llvm.add %largest, {f.number(_THREADS - 1)} : i64")
        blocks = _least(f, f.let(f"llvm.udiv {up}, {per_block} : i64"), most)
        rows = _least(f, "%count", f.number(_MOST_ROWS))
        span = f.let(f"llvm.mul {blocks}, {per_block} : i64")
        given = ["%to", "%from", "%table", "%count", "%levels", span, rows]
        cells = f.cells([(value, _PTR if k < 3 else "i64") for k, value in enumerate(given)])
        grid = [f.let(f"llvm.trunc {n} : i64 to i32") for n in (blocks, rows)]
        shape = [*grid, *(f.number(n, "i32") for n in (1, _THREADS, 1, 1, 0))]
        f.launch("%function", shape, cells)
    return f


def _least(f: HostFunction, a: str, b: str) -> str:
    less = f.let(f'llvm.icmp "ult" {a}, {b} : i64')
    return f.let(f"llvm.select {less}, {a}, {b} : i1, i64")
