"""Compare two compiles of a program, for other meshes, hints or versions: what moves, and what that costs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from meshweave.layout import Mesh
from meshweave.report import OpRow, Report, TransferRow
from meshweave.see.account import place, source_line
from meshweave.see.timeline import end_of, in_order, predicted

_MOST_OPS = 6000  # of a program whose ops are told apart one by one


@dataclass(frozen=True)
class Figure:
    """Hold a figure of both compiles. what: it counts, with its unit."""

    what: str
    here: int
    there: int


@dataclass(frozen=True)
class MoveChange:
    """Say which collectives a line of the source has. here, there: `2 x all_gather`; nbytes_*: what they receive.

    cause: why there are more of them on the side that has more bytes; "" where that is not known.
    """

    where: str
    here: str
    there: str
    nbytes_here: int
    nbytes_there: int
    cause: str


@dataclass(frozen=True)
class OpChange:
    """Say what is otherwise about an op: its layout, its kernel, or what became of a hint; "" for nothing."""

    what: str
    op: str
    where: str
    here: str
    there: str


@dataclass(frozen=True)
class CompileDifference:
    """Hold what two compiles do otherwise. moves: places by how much the bytes differ; it prints as text."""

    figures: tuple[Figure, ...]
    moves: tuple[MoveChange, ...]
    ops: tuple[OpChange, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {name: [vars(row) for row in rows] for name, rows in vars(self).items()}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        for f in self.figures:
            yield f"{f.what}: {f.here:,} here, {f.there:,} there ({f.there - f.here:+,})"
        for m in self.moves:
            yield f"at {place(m.where)}"
            yield f"  here {m.here or 'nothing'}, {m.nbytes_here:,} bytes"
            yield f"  there {m.there or 'nothing'}, {m.nbytes_there:,} bytes"
            if m.cause:
                yield f"  {m.cause}"
        for o in self.ops:
            yield f"{o.what} of {o.op} at {place(o.where)}: {o.here or 'none'} here, {o.there or 'none'} there"


def compare(here: Report, there: Report, mesh: Mesh, other_mesh: Mesh) -> CompileDifference:
    """Return what two compiles do otherwise. Lines of the source are told by their text: they may have moved."""
    return CompileDifference(
        tuple(_figures(here, there, mesh, other_mesh)),
        tuple(_moves(here, there)),
        (*_layouts(here.ops, there.ops), *_kernels(here, there), *_hints(here, there)),
    )


def _figures(here: Report, there: Report, mesh: Mesh, other_mesh: Mesh) -> Iterator[Figure]:
    def both(what: str, of: Callable[[Report], int]) -> Figure:
        return Figure(what, of(here), of(there))

    yield both("bytes received by the busiest rank", _received)
    yield both("collectives", lambda r: len(r.collectives))
    yield both("peak bytes of a rank", lambda r: r.peak_bytes)
    if here.ops and there.ops:
        yield both("iterations of loops on a rank", lambda r: sum(o.work for o in in_order(r.ops)))
        times = [predicted(report) for report in (here, there)]
        ends = [round(1e3 * end_of(bars)) for bars in times]
        yield Figure("predicted nanoseconds", *ends)


def _received(report: Report) -> int:
    return sum(row.nbytes for row in report.collectives)


def _line_of(where: str) -> str:
    """Return what a place is told by: the text of its line, else its file's name and line."""
    return source_line(where) or os.path.basename(where).rsplit(":", 1)[0]


def _moves(here: Report, there: Report) -> list[MoveChange]:
    sides = []
    for report in (here, there):
        rows: dict[str, list[TransferRow]] = {}
        for row in report.collectives:
            rows.setdefault(_line_of(row.where), []).append(row)
        sides.append(rows)
    found = []
    for line in dict.fromkeys((*sides[0], *sides[1])):
        own, other = (rows.get(line, []) for rows in sides)
        if Counter(map(_kind, own)) == Counter(map(_kind, other)):
            continue
        a, b = (sum(row.nbytes for row in rows) for rows in (own, other))
        cause = _cause(there, other) if b > a else _cause(here, own)
        where = (own or other)[0].where
        found.append(MoveChange(where, _counted(own), _counted(other), a, b, cause))
    return sorted(found, key=lambda m: -abs(m.nbytes_there - m.nbytes_here))


def _kind(row: TransferRow) -> tuple[str, tuple[str, ...], int]:
    return row.op, row.axes, row.nbytes


def _counted(rows: Sequence[TransferRow]) -> str:
    counts = Counter(f"{row.op} over {', '.join(row.axes)}" for row in rows)
    return " and ".join(f"{n} x {what}" for what, n in counts.items())


def _cause(report: Report, rows: Sequence[TransferRow]) -> str:
    """Return the cause of the most bytes among collectives."""
    for row in sorted(rows, key=lambda row: -row.nbytes):
        for number in row.reasons:
            reason = report.reasons[number]
            ends = [chain[-1].text for chain in (reason.given, reason.wanted) if chain]
            return ", but ".join(ends)
    return ""


def _layouts(here: Sequence[OpRow], there: Sequence[OpRow]) -> Iterator[OpChange]:
    """Yield the ops of both that lie otherwise; those that only one has are left to the figures."""
    own, other = ([r for r in rows if r.op != "redistribute"] for rows in (here, there))
    if max(len(own), len(other)) > _MOST_OPS:
        return
    first, second = (
        [(r.op, r.layer, r.code, r.tensor, _line_of(r.where)) for r in rows]
        for rows in (own, other)
    )
    for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        for a, b in zip(own[block.a :][: block.size], other[block.b :][: block.size]):
            if a.layout != b.layout:
                what = f"{a.named} {a.tensor}"
                yield OpChange("layout", what, a.where, a.layout, b.layout)


def _kernels(here: Report, there: Report) -> Iterator[OpChange]:
    sides = [{(r.op, _line_of(r.where)): r for r in report.kernels} for report in (here, there)]
    for key, row in sides[0].items():
        other = sides[1].get(key)
        if other is not None and other.kernel != row.kernel:
            named = here.named(row.op, row.where)
            yield OpChange("kernel", named, row.where, row.kernel, other.kernel)


def _hints(here: Report, there: Report) -> Iterator[OpChange]:
    sides = [
        {(r.hint, r.op, _line_of(r.location)): r for r in report.ledger} for report in (here, there)
    ]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        own, other = (side.get(key) for side in sides)
        ends = tuple("" if row is None else row.outcome for row in (own, other))
        if ends[0] != ends[1]:
            row, report = (own, here) if own is not None else (other, there)
            assert row is not None
            named = report.named(row.op, row.location)
            yield OpChange(f"hint {row.hint}", named, row.location, *ends)
