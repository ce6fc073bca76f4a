"""Draw what ranks do over time: as the planner prices it, above what a trace has measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any

from meshweave.errors import UsageError
from meshweave.layout import Mesh
from meshweave.plan.cost import SHARED_MEMORY, link_of, seconds
from meshweave.plan.propagation.propagate import WORK
from meshweave.report import OpRow, RegionRow, Report

_WIDTH, _ROW, _LEFT = 1100, 16, 130
MOST_BARS = 4000  # that are drawn
KINDS = ("kernel", "copy", "collective", "wait")


@dataclass(frozen=True)
class Bar:
    """Hold a slice of a row. kind: one of KINDS. start, end: in microseconds."""

    kind: str
    name: str
    start: float
    end: float


def predicted(report: Report, mesh: Mesh) -> list[Bar]:
    """Return what a rank does in the planner's model of costs, one op after the other; all ranks do alike.

    The ops of a region of hints come slice by slice, as the region runs them.
    """
    bars: list[Bar] = []
    at = 0.0
    for row, part in in_slices(in_order(report.ops), report.regions):
        if len(bars) >= MOST_BARS:
            return bars
        took = WORK * row.work * SHARED_MEMORY.link.beta * 1e6
        if row.reason is not None:
            took = sum(_moves(report.reasons[row.reason].steps, mesh))
        took *= row.rounds / part.count
        if took:
            kind = "kernel" if row.reason is None else "collective"
            often = f", {row.rounds} rounds" if row.rounds > 1 else ""
            bars.append(Bar(kind, f"{row.op} {row.tensor}{often}{part}", at, at + took))
        at += took
    return bars


@dataclass(frozen=True)
class SlicePart:
    """Say which slice of an op it is, from 0, and of how many."""

    number: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f", slice {self.number + 1} of {self.count}" if self.count > 1 else ""


def in_slices(
    ops: Iterable[OpRow], regions: Sequence[RegionRow]
) -> Iterator[tuple[OpRow, SlicePart]]:
    """Yield ops with the slice that runs: depth first all ops of a slice, breadth first all slices of an op.

    ops: in the order in which they stand.
    """
    for rows in _runs(ops):
        settled = regions[rows[0].region] if 0 <= rows[0].region < len(regions) else None
        parts = [SlicePart(n, settled.slices) for n in range(settled.slices)] if settled else []
        if settled is None or len(parts) < 2:
            yield from ((row, SlicePart()) for row in rows)
        elif settled.order == "bfs":
            yield from ((row, part) for row in rows for part in parts)
        else:
            yield from ((row, part) for part in parts for row in rows)


def _runs(ops: Iterable[OpRow]) -> Iterator[list[OpRow]]:
    """Yield the ops of each run of a region, and those between. A function that is called again begins another run."""
    run: list[OpRow] = []
    for row in ops:
        if run and (row.region != run[0].region or row is run[0]):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def in_order(ops: Sequence[OpRow]) -> Iterator[OpRow]:
    """Yield ops in the order in which a step runs them, those of a function in place of each call of it."""
    functions: dict[str, list[OpRow]] = {}
    for row in ops:
        functions.setdefault(row.function, []).append(row)

    def inside(name: str) -> Iterator[OpRow]:
        for row in functions.get(name, ()):
            yield from inside(row.calls) if row.calls else (row,)

    return inside(ops[0].function) if ops else iter(())


def _moves(steps: Sequence[tuple[str, tuple[str, ...], int]], mesh: Mesh) -> list[float]:
    """Return the microseconds of each step of a plan."""
    found = []
    for op, axes, nbytes in steps:
        ranks = prod(mesh.axis_count([name]) for name in axes)
        found.append(1e6 * seconds(op, nbytes, ranks, link_of(mesh, axes)) if nbytes else 0.0)
    return found


def measured(trace: Mapping[str, Any], name: str) -> dict[str, list[Bar]]:
    """Return the rows of the last call in a file of trace events. Raises UsageError, which names it, for others."""
    try:
        events = trace["traceEvents"]
        names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        complete = [e for e in events if e.get("ph") == "X"]
        last = max((e["args"]["call"] for e in complete), default=0)
        rows: dict[str, list[Bar]] = {str(names[tid]): [] for tid in sorted(names)}
        chosen = [e for e in complete if e["args"]["call"] == last]
        first = min((float(e["ts"]) for e in chosen), default=0.0)
        for e in chosen[:MOST_BARS]:
            start = float(e["ts"]) - first
            bar = Bar(str(e["cat"]), str(e["name"]), start, start + float(e["dur"]))
            rows[str(names[e["tid"]])].append(bar)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{name}: no trace that meshweave has written") from None
    return rows


def draw(planned: Sequence[Bar], rows: Mapping[str, Sequence[Bar]]) -> str:
    """Return both as SVG, each on its own scale."""
    parts: list[str] = []
    top = 14
    if planned:
        parts.append(_axis(top, planned[-1].end, "predicted"))
        parts += _row("every rank", planned, planned[-1].end, top + 6)
        top += _ROW + 30
    end = max((bar.end for bars in rows.values() for bar in bars), default=0.0)
    if rows:
        parts.append(_axis(top, end, "measured, the last call"))
        for number, (name, bars) in enumerate(rows.items()):
            parts += _row(name, bars, end, top + 6 + number * (_ROW + 4))
        top += 6 + len(rows) * (_ROW + 4)
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH + _LEFT} {top + 10}" width="{_WIDTH + _LEFT}" role="img" '
        f'aria-label="what each rank does over time">{"".join(parts)}</svg></div>'
    )


def _axis(top: int, end: float, name: str) -> str:
    return (
        f'<text x="0" y="{top}">{escape(name)}</text>'
        f'<text class="faint" x="{_LEFT}" y="{top}">0</text>'
        f'<text class="faint" x="{_LEFT + _WIDTH}" y="{top}" text-anchor="end">{end:,.1f} us</text>'
    )


def _row(name: str, bars: Sequence[Bar], end: float, top: float) -> list[str]:
    scale = _WIDTH / end if end else 0.0
    parts = [f'<text class="faint" x="0" y="{top + 12}">{escape(name)}</text>']
    for bar in bars:
        kind = bar.kind if bar.kind in KINDS else "other"
        width = max((bar.end - bar.start) * scale, 0.4)
        low = _ROW / 2 if kind == "wait" else 0.0  # a wait lies within its collective
        said = escape(f"{bar.name}: {bar.end - bar.start:,.2f} us from {bar.start:,.2f} us on")
        parts.append(
            f'<rect class="{kind}" x="{_LEFT + bar.start * scale:.2f}" y="{top + low}" width="{width:.2f}" '
            f'height="{_ROW - low}"><title>{said}</title></rect>'
        )
    return parts
