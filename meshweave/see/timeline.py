"""Draw what ranks do over time, as the planner prices it above what a trace has measured, and the bytes they hold."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from meshweave.errors import UsageError
from meshweave.plan.cost import SHARED_MEMORY
from meshweave.plan.propagation.propagate import WORK
from meshweave.report import Moment, OpRow, RegionRow, Report, human_bytes

_WIDTH, _ROW, _LEFT = 1100, 16, 130
MOST_BARS = 4000  # that are drawn
_HIGH = 150  # of the curve of live bytes
_MOST_NAMED = 500  # moments that say what they are when one points at them
KINDS = ("kernel", "copy", "collective", "wait")


@dataclass(frozen=True)
class Bar:
    """Hold a slice of a row.

    kind: one of KINDS. start, end: in microseconds. where: its place, in the user's words. aside: beside others.
    """

    kind: str
    name: str
    start: float
    end: float
    where: str = ""
    aside: bool = False


def predicted(report: Report) -> list[Bar]:
    """Return what a rank does in the planner's model of costs, one op after the other; all ranks do alike.

    The ops of a region of hints come slice by slice, as the region runs them. Collectives that run ahead are beside the
    ops of the next slice; a rank waits for them where it has nothing else to do.
    """
    bars: list[Bar] = []
    at = beside = 0.0
    ready: dict[
        tuple[int, int], float
    ] = {}  # of a slice of a region, when what it receives is there
    ahead = _running_ahead(report)
    for row, part in in_slices(in_order(report.ops), report.regions, ahead):
        if len(bars) >= MOST_BARS:
            break
        took = WORK * row.work * SHARED_MEMORY.link.beta * 1e6
        if row.reason is not None:
            took = report.reasons[row.reason].microseconds
        took *= row.rounds / part.count
        kind = "kernel" if row.reason is None else "collective"
        often = f", {row.rounds} rounds" if row.rounds > 1 else ""
        name = f"{row.op} {row.tensor}{often}{part}"
        where = f"{row.layer or row.code} {os.path.basename(row.where)}".strip()
        here = row.region, part.number
        if row.region in ahead and row.reason is not None:
            began = max(at, beside)
            ready[here] = beside = began + took
            bars.append(Bar(kind, name, began, beside, where, aside=True))
            continue
        until = ready.pop(here, 0.0) if row.region in ahead else max(ready.values(), default=0.0)
        if until > at:
            bars.append(Bar("wait", "wait for what runs beside", at, until))
            at = until
        if took:
            bars.append(Bar(kind, name, at, at + took, where))
        at += took
    return bars


def _running_ahead(report: Report) -> frozenset[int]:
    """Return the regions whose collectives run ahead, beside the ops of the next slice."""
    places = {
        row.location
        for row in report.ledger
        if row.hint.startswith("overlap=") and row.outcome == "honoured"
    }
    return frozenset(row.region for row in report.ops if row.region >= 0 and row.where in places)


@dataclass(frozen=True)
class SlicePart:
    """Say which slice of an op it is, from 0, and of how many."""

    number: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f", slice {self.number + 1} of {self.count}" if self.count > 1 else ""


def in_slices(
    ops: Iterable[OpRow], regions: Sequence[RegionRow], ahead: Container[int] = ()
) -> Iterator[tuple[OpRow, SlicePart]]:
    """Yield ops with the slice that runs: depth first all ops of a slice, breadth first all slices of an op.

    ops: in the order in which they stand. ahead: regions in which a slice begins before the one before goes on behind
    its last collective.
    """
    for rows in _runs(ops):
        settled = regions[rows[0].region] if 0 <= rows[0].region < len(regions) else None
        parts = [SlicePart(n, settled.slices) for n in range(settled.slices)] if settled else []
        if settled is None or len(parts) < 2:
            yield from ((row, SlicePart()) for row in rows)
        elif settled.order == "bfs":
            yield from ((row, part) for row in rows for part in parts)
        elif rows[0].region in ahead:
            behind = 1 + max(
                (k for k, row in enumerate(rows) if row.reason is not None), default=-1
            )
            for part, before in zip([*parts, None], [None, *parts]):
                yield from ((row, part) for row in rows[:behind] if part is not None)
                yield from ((row, before) for row in rows[behind:] if before is not None)
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
            where = os.path.basename(str(e["args"].get("where", "")))
            bar = Bar(str(e["cat"]), str(e["name"]), start, start + float(e["dur"]), where)
            rows[str(names[e["tid"]])].append(bar)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{name}: no trace that meshweave has written") from None
    return rows


def draw(planned: Sequence[Bar], rows: Mapping[str, Sequence[Bar]]) -> str:
    """Return both as SVG, each on its own scale."""
    parts: list[str] = []
    top = 14
    if planned:
        end = end_of(planned)
        parts.append(_axis(top, end, "predicted"))
        parts += _row("every rank", [bar for bar in planned if not bar.aside], end, top + 6)
        if aside := [bar for bar in planned if bar.aside]:
            top += _ROW + 4
            parts += _row("beside", aside, end, top + 6)
        top += _ROW + 30
    end = end_of([bar for bars in rows.values() for bar in bars])
    if rows:
        parts.append(_axis(top, end, "measured, the last call"))
        for number, (name, bars) in enumerate(rows.items()):
            parts += _row(name, bars, end, top + 6 + number * (_ROW + 4))
        top += 6 + len(rows) * (_ROW + 4)
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH + _LEFT} {top + 10}" width="{_WIDTH + _LEFT}" role="img" '
        f'aria-label="what each rank does over time">{"".join(parts)}</svg></div>'
    )


def end_of(bars: Iterable[Bar]) -> float:
    """Return when the last of some bars ends."""
    return max((bar.end for bar in bars), default=0.0)


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
        low = _ROW / 2 if kind == "wait" else 0.0  # a wait may lie within its collective
        what = f"{bar.name}, {bar.where}" if bar.where else bar.name
        said = escape(f"{what}: {bar.end - bar.start:,.2f} us from {bar.start:,.2f} us on")
        parts.append(
            f'<rect class="{kind}" x="{_LEFT + bar.start * scale:.2f}" y="{top + low}" width="{width:.2f}" '
            f'height="{_ROW - low}"><title>{said}</title></rect>'
        )
    return parts


def draw_live(moments: Sequence[Moment], before: Sequence[Moment], limit: int | None) -> str:
    """Return the live bytes of a step as SVG, op by op, with a mark at the peak.

    before: those without hints. limit: of bytes, drawn as a line.
    """
    top = max(*(m.nbytes for m in (*moments, *before)), limit or 0) or 1
    wide = 1000 / len(moments)
    peak = max(range(len(moments)), key=lambda k: moments[k].nbytes)
    parts = [f'<path class="live" d="{_steps(moments, top)}"/>']
    parts.append(f'<path class="peak" d="M{wide * (peak + 0.5):.1f} 0V160"/>')
    if before:
        parts.append(f'<path class="other" d="{_steps(before, top)}"/>')
    if limit is not None:
        parts.append(f'<path class="limit" d="M0 {160 - _HIGH * limit / top:.1f}H1000"/>')
    if len(moments) <= _MOST_NAMED:
        parts += [
            f'<rect class="over" x="{wide * k:.1f}" y="0" width="{wide:.1f}" height="160"><title>'
            f"{escape(f'{m.op} at {os.path.basename(m.where)}: {human_bytes(m.nbytes)} live')}</title></rect>"
            for k, m in enumerate(moments)
        ]
    return (
        f'<div class="chart"><span class="faint">{human_bytes(top)}</span>'
        '<svg viewBox="0 0 1000 160" role="img" aria-label="live bytes op by op" preserveAspectRatio="none">'
        f'{"".join(parts)}</svg><span class="faint">0 B</span>'
        f'<span class="faint">op 1 to {len(moments):,}, in the order in which they run</span></div>'
    )


def _steps(moments: Sequence[Moment], top: int) -> str:
    """Return the path of a curve with a step for each moment."""
    wide = 1000 / len(moments)
    heights = [f"{160 - _HIGH * m.nbytes / top:.1f}" for m in moments]
    steps = "".join(f"V{height}H{wide * (k + 1):.1f}" for k, height in enumerate(heights))
    return f"M0 160{steps}V160Z"
