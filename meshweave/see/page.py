"""Write the page about a program: one HTML file that needs nothing else, and says everything without its script."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from meshweave.bundle import Port
from meshweave.files.whole import write_text
from meshweave.layout import Layout, Mesh
from meshweave.report import Cause, KernelRow, OpRow, Report, TransferRow, human_bytes
from meshweave.see.account import place, source_line, spent_by
from meshweave.see.budget import Budget
from meshweave.see.difference import CompileDifference, compare
from meshweave.see.folding import repeats, starts, unnumbered
from meshweave.see.tiles import HEIGHT, WIDTH, drawing, held, tile
from meshweave.see.timeline import KINDS, draw, draw_live, measured, predicted
from meshweave.see.trace import RankTrace

_HERE = Path(__file__).parent
_MOST_MOMENTS = 4000  # ops of a step whose live bytes are drawn
_MOST_CHANGES = 200  # rows of a difference
MOST_NAMED = 64  # repeated layers that the filter knows by name
_TOP = 3  # collectives that are open at first, and that the head of the page names as avoidable


@dataclass(frozen=True)
class Page:
    """Hold what a page is about. In a notebook it shows itself; `save` writes it.

    title: of the page. names: of the arguments, then of the results. before: the same program without its hints.
    trace: trace events that were measured, and the name of their file. other: what it is compared with. budget: limits
    to show beside what is taken.
    """

    title: str
    mesh: Mesh
    engine: str
    report: Report
    ports: tuple[Port, ...] = ()
    names: tuple[str, ...] = ()
    before: Report | None = None
    trace: Mapping[str, Any] | None = field(default=None, repr=False)
    trace_name: str = ""
    other: Page | None = field(default=None, repr=False)
    budget: Budget | None = None

    @property
    def html(self) -> str:
        """Return the page as HTML."""
        return _Writer(self).text()

    @property
    def difference(self) -> CompileDifference | None:
        """Return what the other compile does otherwise, None where there is none."""
        if self.other is None:
            return None
        return compare(self.report, self.other.report, self.mesh, self.other.mesh)

    def against(self, other: Page) -> Page:
        """Return the page with what another compile does otherwise."""
        return replace(self, other=replace(other, other=None, trace=None))

    def beside(self, trace: RankTrace | None) -> Page:
        """Return the page with what was measured beside the prediction; None: the page as it is."""
        return self if trace is None else replace(self, trace=trace.as_dict())

    def save(self, path: str) -> None:
        """Write the page to a file. Raises UsageError where it cannot be written."""
        write_text(path, self.html)

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame of its own."""
        return (
            f'<iframe title="{escape(self.title)}" style="width:100%;height:42rem;border:1px solid #8888" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<page about {self.title}: save(path) writes it>"


class _Writer:
    """Write the parts of a page; each layout that is shown gets a number."""

    def __init__(self, page: Page) -> None:
        self.page, self.report, self.mesh = page, page.report, page.mesh
        self.layouts: dict[tuple[str, tuple[int, ...]], int] = {}
        self.held = cache(lambda text, shape: held(Layout.parse(text), self.mesh, shape))
        self.kernels: dict[str, list[str]] = defaultdict(list)  # by place, and what became of hints
        self.outcomes: dict[str, list[str]] = defaultdict(list)
        self._by = (self.kernels, self.outcomes)
        for kernel in self.report.kernels:
            self.kernels[kernel.where].append(_chosen(kernel))
        for entry in self.report.ledger:
            self.outcomes[entry.location].append(f"{entry.hint} {entry.outcome}")

    def text(self) -> str:
        """Return the whole page."""
        parts = {
            "moves": ("What moves, and why", self.moves()),
            "program": ("Program", self.program()),
            "time": ("Time", self.time()),
            "memory": ("Memory", self.memory()),
            "hints": ("Hints", self.hints()),
            "difference": ("Difference", self.difference()),
        }
        parts["layouts"] = ("Layouts", self.drawn())  # last, when all are known
        shown = {key: part for key, part in parts.items() if part[1]}
        nav = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, (name, _) in shown.items())
        sections = "".join(
            f'<section id="{key}" aria-labelledby="{key}-h"><h2 id="{key}-h">{escape(name)}</h2>{text}</section>'
            for key, (name, text) in shown.items()
        )
        style, script = ((_HERE / f"page.{kind}").read_text() for kind in ("css", "js"))
        data = json.dumps(self._data(), separators=(",", ":")).replace("<", "\\u003c")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.page.title)}</title><style>{style}</style></head><body>"
            f"<header><h1>{escape(self.page.title)}</h1>{self.figures()}{self.budgets()}{self.avoidable()}"
            f"<nav>{nav}</nav></header>"
            f"<main>{sections}</main>{self.symbols()}"
            f'<script type="application/json" id="layout-data">{data}</script><script>{script}</script>'
            "</body></html>\n"
        )

    def figures(self) -> str:
        """Return the figures at the head of the page."""
        report, counts = self.report, Counter(row.op for row in self.report.collectives)
        moved = sum(row.nbytes for row in report.collectives)
        said = ", ".join(f"{n} x {op}" for op, n in sorted(counts.items())) or "none"
        rows = (
            ("mesh", str(self.mesh) or "one rank"),
            ("engine", self.page.engine),
            ("received by the busiest rank", human_bytes(moved)),
            ("collectives", said),
            ("peak of a rank", human_bytes(report.peak_bytes)),
        )
        items = "".join(f"<li>{escape(k)} <b>{escape(v)}</b></li>" for k, v in rows)
        proof = f'<p class="faint">{escape(str(report.certificate))}</p>'
        return f'<ul class="figures">{items}</ul>{proof}'

    # What moves.

    def avoidable(self) -> str:
        """Return the collectives that one would write otherwise to be without, those of most bytes first."""
        reasons, lines = self.report.reasons, list[str]()
        for row, count in self._counted():
            said = [n for n in row.reasons if reasons[n].remedy]
            if said and len(lines) < _TOP:
                cause = self._reason_cause(said[0])
                lines.append(
                    f"<li>{_move_head(row, count)}<br>{cause}: {escape(reasons[said[0]].remedy)}</li>"
                )
        return f"<h2>To move less</h2><ul>{''.join(lines)}</ul>" if lines else ""

    def _counted(self) -> list[tuple[TransferRow, int]]:
        """Return the collectives and how often each runs, those of most bytes first.

        Those of a line that are there for alike reasons, as in each layer of a model, are one.
        """
        alike: dict[object, list[TransferRow]] = defaultdict(list)
        for row in self.report.collectives:
            causes = [self._reason_cause(number) for number in row.reasons]
            key = (*(row.op, row.axes, row.nbytes, row.where), unnumbered("; ".join(causes)))
            alike[key].append(row)
        counted = [(rows[0], len(rows)) for rows in alike.values()]
        return sorted(counted, key=lambda item: -item[0].nbytes * item[1])

    def _reason_cause(self, number: int) -> str:
        reason = self.report.reasons[number]
        return self._cause(reason.given, reason.wanted)

    def moves(self) -> str:
        """Return each collective with its reasons, those of most bytes first."""
        rows = self._counted()
        if not rows:
            return "<p>Nothing: no rank receives anything from another.</p>"
        return "".join(self._move(row, count, n < _TOP) for n, (row, count) in enumerate(rows))

    def _move(self, row: TransferRow, count: int, is_open: bool) -> str:
        cause = "; ".join(map(self._reason_cause, row.reasons))
        inside = "".join(self._reason(number) for number in row.reasons)
        if not inside:
            known = "The op itself makes it: it works along a dim that is cut."
            unknown = "The program's source is not at hand: no reasons are known."
            inside = f'<div class="inside">{known if self.report.ops else unknown}</div>'
        head = _move_head(row, count) + (f'<br><span class="faint">{cause}</span>' if cause else "")
        return (
            f'<details{" open" * is_open} class="move"><summary>{head}</summary>{inside}</details>'
        )

    def _cause(self, given: Sequence[Cause], wanted: Sequence[Cause]) -> str:
        return ", but ".join(escape(chain[-1].text) for chain in (given, wanted) if chain)

    def _reason(self, number: int) -> str:
        reason = self.report.reasons[number]
        shape = tuple(map(int, reason.tensor.split("x")[:-1]))
        ends = " to ".join(self.layout(text, shape) for text in (reason.source, reason.target))
        steps = ", ".join(
            f"{op} over {', '.join(axes)} ({human_bytes(n)})" for op, axes, n in reason.steps if n
        )
        rows = [
            ("why it lies so", self._chain(reason.given)),
            ("why it is wanted so", self._chain(reason.wanted)),
            ("the plan", f"{escape(steps)}: {reason.microseconds:,.1f} us as planned"),
            ("bytes received", f"{reason.nbytes:,}: {reason.least}"),
            ("next best plan", escape(reason.following) or "none is known"),
            ("to move less", escape(reason.remedy) or "nothing simple is known"),
        ]
        body = "".join(f'<tr><th scope="row">{k}</th><td>{v}</td></tr>' for k, v in rows)
        head = f"<div><code>{escape(reason.tensor)}</code> from {ends}</div>"
        return f'<div class="inside">{head}<table>{body}</table></div>'

    def _chain(self, chain: Sequence[Cause]) -> str:
        lines = []
        for cause in chain:
            at = f" <code>{escape(place(cause.where))}</code>" if cause.where else ""
            lines.append(f"<li>{escape(cause.text)}{at}</li>")
        return f"<ol>{''.join(lines)}</ol>" if lines else "not known"

    # The program.

    def program(self) -> str:
        """Return the arguments and results, then the ops, by function and line."""
        parts = [self._ports()]
        if self.report.ops:
            parts.append(
                '<p><label>Filter <input id="filter" placeholder="all_gather, f32, a file.."></label> '
                '<span id="found" role="status" class="faint"></span></p>'
            )
        for function, rows in groupby(self.report.ops, key=lambda row: row.function):
            parts.append(self._function(function, list(rows)))
        if not self.report.ops:
            parts.append(
                '<input id="filter" type="hidden"><span id="found"></span>'
                '<p class="faint">The program\'s source is not at hand: its ops are not known.</p>'
            )
        return "".join(parts)

    def _ports(self) -> str:
        rows = []
        names = [*self.page.names, *(port.name for port in self.page.ports)][: len(self.page.ports)]
        for name, port in zip(names, self.page.ports):
            sizes = "x".join(map(str, (*port.global_shape, port.dtype)))
            layout = self.layout(port.layout, tuple(port.global_shape))
            cells = f"<td>{escape(name)}</td><td><code>{sizes}</code></td><td>{layout}</td>"
            rows.append(f'<tr>{cells}<td class="n">{human_bytes(port.nbytes)}</td></tr>')
        table = _table(("argument or result", "global", "layout", "#on a rank"), rows)
        return f"<details open><summary>Arguments and results</summary>{table}</details>"

    def _function(self, function: str, rows: list[OpRow]) -> str:
        times = rows[0].times
        what = (
            "the program" if function == "main" else f"{function}, a layer that runs {times} times"
        )
        by_line = groupby(rows, key=lambda row: (row.layer, row.where.rsplit(":", 1)[0]))
        lines = [list(ops) for _, ops in by_line]
        inside = ""
        begins = starts([line[0].layer for line in lines])
        for start, period, count in repeats([self._key(line) for line in lines], begins):
            layers = [lines[start + k * period] for k in range(count)]
            also = " ".join(dict.fromkeys(line[0].layer for line in layers[1:MOST_NAMED]))
            shown = "".join(self._line(line, also) for line in lines[start : start + period])
            if count > 1:
                first, last = (f"<code>{escape(self._spot(layers[k][0]))}</code>" for k in (0, -1))
                said = f"<b>{count} times</b> the same {period} line{'s' * (period > 1)}, from {first} to {last}"
                shown = f"<details open><summary>{said}</summary>{shown}</details>"
            inside += shown
        return f"<details open><summary><b>{escape(what)}</b> ({len(rows)} ops)</summary>{inside}</details>"

    def _key(self, rows: list[OpRow]) -> object:
        """Return what lines of repeated layers have in common."""
        steps = [() if r.reason is None else self.report.reasons[r.reason].steps for r in rows]
        about = [
            (r.op, r.tensor, r.layout, r.work, r.rounds, *(tuple(by[r.where]) for by in self._by))
            for r in rows
        ]
        said = f"{rows[0].layer} {source_line(rows[0].where)}"
        return unnumbered(said), tuple(steps), tuple(about)

    def _spot(self, row: OpRow) -> str:
        """Return the layer of an op, or its place."""
        return row.layer or os.path.basename(row.where)

    def _line(self, rows: list[OpRow], also: str = "") -> str:
        """Return the ops of a line. also: further layers that they are found by."""
        last = rows[-1]
        layer = f"<b>{escape(last.layer)}</b> " if last.layer else ""
        head = f"{layer}<code>{escape(place(last.where))}</code> {self.layout(last.layout, last.shape)}"
        titles = ("op", "result", "layout", "kernel", "hints", "#work")
        table = _table(titles, [self._op(row, also) for row in rows])
        return f"<details><summary>{head}</summary>{table}</details>"

    def _op(self, row: OpRow, also: str) -> str:
        kernel = "; ".join(dict.fromkeys(self.kernels[row.where])) if row.work else ""
        hints = "; ".join(dict.fromkeys(self.outcomes[row.where]))
        cost = f"{row.work:,}" if row.work else ""
        if row.reason is not None:
            cost = human_bytes(self.report.reasons[row.reason].nbytes)
        code = f" <code>{escape(row.code)}</code>" if row.code else ""
        words = f"{row.op} {row.code} {row.layer} {row.tensor} {row.layout} {row.where} {kernel} {hints} {also}"
        if row.reason is not None:
            words += " ".join(op for op, _, _ in self.report.reasons[row.reason].steps)
        cells = (
            f"<td>{escape(row.op)}{code}</td><td><code>{escape(row.tensor)}</code></td>"
            f"<td>{self.layout(row.layout, row.shape)}</td><td>{escape(kernel)}</td><td>{escape(hints)}</td>"
        )
        return f'<tr data-op="{escape(words.lower())}">{cells}<td class="n">{cost}</td></tr>'

    # Layouts.

    def layout(self, text: str, shape: tuple[int, ...]) -> str:
        """Return a layout with its tile, a link to its drawing."""
        number = self.layouts.setdefault((text, shape), len(self.layouts))
        drawn = f'<svg class="tile" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true"><use href="#t{number}"/></svg>'
        return f'<a href="#layout{number}">{drawn}<code>{escape(text)}</code></a>'

    def symbols(self) -> str:
        """Return the tiles of all layouts, which the page shows by their numbers."""
        found = "".join(
            f'<g id="t{number}">{tile(Layout.parse(text), self.mesh, shape)}</g>'
            for (text, shape), number in self.layouts.items()
        )
        return f'<svg width="0" height="0" aria-hidden="true"><defs>{found}</defs></svg>'

    def drawn(self) -> str:
        """Return the drawing of each layout that the page shows."""
        parts = []
        for (text, shape), number in self.layouts.items():
            layout = Layout.parse(text)
            sizes = "x".join(map(str, shape)) or "a number"
            ask = ""
            if shape and self.held(text, shape) is not None:
                box = (
                    f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true"'
                )
                ask = (
                    f'<svg class="map" data-layout="{number}" {box}><use href="#t{number}"/></svg>'
                    f'<p><label>Who holds element <input data-layout="{number}" aria-describedby="held{number}" '
                    f'placeholder="{", ".join("0" for _ in shape)}"></label> '
                    f'<span id="held{number}" role="status"></span></p>'
                )
            parts.append(
                f'<details id="layout{number}"><summary><code>{escape(text)}</code> of {sizes}</summary>'
                f'<div class="inside">{drawing(layout, self.mesh, shape)}{ask}</div></details>'
            )
        return "".join(parts)

    def _data(self) -> list[Any]:
        return [
            self.held(text, shape) or {"shape": list(shape), "held": []}
            for text, shape in self.layouts
        ]

    # Time and memory.

    def time(self) -> str:
        """Return what the planner predicts above what was measured."""
        planned = predicted(self.report)
        rows = {} if self.page.trace is None else measured(self.page.trace, self.page.trace_name)
        if not planned and not rows:
            return ""
        note = (
            "Predicted: the planner's model of costs, one op after the other, slices in the order of their region, "
            "collectives that run ahead beside them. "
            + (
                ""
                if rows
                else "Nothing was measured: give a file of <code>meshweave run --trace</code>. "
            )
            + "Point at a slice for its name and time."
        )
        legend = "".join(
            f'<svg class="tile" width="14" height="14" aria-hidden="true"><rect class="{kind}" width="14" '
            f'height="14"/></svg>{kind} '
            for kind in KINDS
        )
        return f'<p class="faint">{note}</p><p>{legend}</p>{draw(planned, rows)}'

    def memory(self) -> str:
        """Return the live bytes over a step, with and without hints."""
        report, moments = self.report, self.report.moments[:_MOST_MOMENTS]
        if not moments:
            return ""
        most = max(moments, key=lambda m: m.nbytes)
        before = self.page.before.moments[:_MOST_MOMENTS] if self.page.before is not None else ()
        limit = self._arena_limit()
        note = "; the line: without hints" if before else ""
        if limit is not None:
            note += f"; the dashed line: {human_bytes(limit)}, which the budget leaves"
        peak, arena = report.peak_bytes, report.arena_bytes
        return (
            f"<p>A rank holds {human_bytes(peak)} at most: {human_bytes(peak - arena)} of arguments and results, "
            f"{human_bytes(arena)} for all between. Most is live in <b>{escape(report.named(most.op, most.where))}</b> "
            f"at <code>{escape(place(most.where))}</code>: {human_bytes(most.nbytes)}, the mark{note}.</p>"
            + draw_live(moments, before, limit)
        )

    def _arena_limit(self) -> int | None:
        """Return the bytes that a budget leaves between arguments and results, None without one."""
        bound = None if self.page.budget is None else self.page.budget.peak
        if bound is None:
            return None
        return max(0, bound.bound - (self.report.peak_bytes - self.report.arena_bytes))

    def hints(self) -> str:
        """Return what became of each hint."""
        rows = Counter(self.report.ledger)
        if not rows:
            return ""
        cells = []
        for row, n in rows.items():
            named = self.report.named(row.op, row.location)
            texts = (f"<code>{escape(row.hint)}</code>", f"{escape(named)} ({n} x)")
            where = f"<code>{escape(place(row.location))}</code>"
            columns = (*texts, where, escape(row.outcome), escape(row.reason))
            cells.append(f"<tr>{''.join(f'<td>{column}</td>' for column in columns)}</tr>")
        return _table(("hint", "op", "place", "outcome", "reason"), cells)

    def difference(self) -> str:
        """Return what another compile does otherwise."""
        found = self.page.difference
        if found is None or self.page.other is None:
            return ""
        there = escape(self.page.other.title)
        if self.page.other.mesh != self.mesh:
            there += f" on {escape(str(self.page.other.mesh) or 'one rank')}"
        figures = [
            f'<tr><th scope="row">{escape(f.what)}</th>'
            + "".join(
                f'<td class="n">{n}</td>'
                for n in (f"{f.here:,}", f"{f.there:,}", f"{f.there - f.here:+,}")
            )
            + "</tr>"
            for f in found.figures
        ]
        moves = [
            f"<tr><td><code>{escape(place(m.where))}</code></td><td>{escape(m.here) or 'nothing'}</td>"
            f"<td>{escape(m.there) or 'nothing'}</td>"
            f'<td class="n">{m.nbytes_there - m.nbytes_here:+,}</td><td>{escape(m.cause)}</td></tr>'
            for m in found.moves[:_MOST_CHANGES]
        ]
        ops = [
            f"<tr><td>{escape(o.what)}</td><td>{escape(o.op)}</td><td><code>{escape(place(o.where))}</code></td>"
            f"<td><code>{escape(o.here)}</code></td><td><code>{escape(o.there)}</code></td></tr>"
            for o in found.ops[:_MOST_CHANGES]
        ]
        parts = [_table(("", "#here", f"#{there}", "#more there"), figures)]
        if moves:
            titles = ("collectives at", "here", "there", "#more bytes there", "since")
            parts.append(_table(titles, moves))
        else:
            parts.append("<p>The same collectives.</p>")
        if ops:
            parts.append(_table(("otherwise", "op", "place", "here", "there"), ops))
        left = sum(max(0, len(rows) - _MOST_CHANGES) for rows in (found.moves, found.ops))
        return "".join(parts) + (f'<p class="faint">and {left:,} more</p>' if left else "")

    def budgets(self) -> str:
        """Return what is not within the budget, or that all is."""
        if self.page.budget is None:
            return ""
        found = self.page.budget.exceeded(spent_by(self.report))
        lines = "".join(f'<li class="more">{escape(each.line)}</li>' for each in found)
        return f"<ul>{lines}</ul>" if found else "<p>Within the budget.</p>"


def _move_head(row: TransferRow, count: int) -> str:
    """Return what a collective is, what it costs and where it is."""
    return (
        f"<b>{escape(row.op)}</b> over {escape(', '.join(row.axes))}: {count} x, "
        f"{human_bytes(count * row.nbytes)} <code>{escape(place(row.where))}</code>"
    )


def _chosen(row: KernelRow) -> str:
    """Return a kernel, and why it was chosen."""
    why = row.why.removeprefix(f"{row.kernel} is ")
    return f"{row.kernel}: {why}" if why else row.kernel


def _table(titles: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table; titles that begin with # are those of numbers."""
    head = "".join(
        f'<th scope="col" class="n">{t[1:]}</th>'
        if t.startswith("#")
        else f'<th scope="col">{t}</th>'
        for t in titles
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
