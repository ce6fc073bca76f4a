"""Give account of a program in lines: which collectives it has, where, and why."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshweave.bundle import Bundle, CollectiveInfo, port_bytes
from meshweave.report import Moment, Report, TransferRow, human_bytes
from meshweave.see.budget import Excess, Spent

MOST_SHOWN = 5  # collectives of a program in a message
_LONGEST = 72  # characters of a line of the source


def report_of_bundle(bundle: Bundle) -> Report:
    """Return what a bundle that was read from the disk knows of itself: no reasons.

    Of ops that are alike in all but their place, each is taken to run equally often.
    """
    manifest, rows = bundle.manifest, []
    times, seen = Counter(manifest.collectives), Counter[CollectiveInfo]()
    for info in manifest.collectives:
        alike = [
            op for op in manifest.ops
            if (op.axes, op.bytes) == (info.axes, info.bytes) and op.name.startswith(info.op)
        ]  # fmt: skip
        place = ("", "")
        if alike:
            op = alike[seen[info] * len(alike) // times[info]]
            place = (op.tensor, op.location)
        seen[info] += 1
        rows.append(TransferRow(info.op, info.axes, info.bytes, *place))
    ports = (*manifest.inputs, *manifest.outputs)
    return Report(
        manifest.arena_bytes + port_bytes(ports),
        manifest.arena_bytes,
        collectives=tuple(rows),
        certificate=manifest.certificate,
    )


def known_of(bundle: Bundle) -> Report:
    """Return the report of a program: with reasons where its source is at hand, which is compiled again then."""
    if bundle.origin is None:
        return report_of_bundle(bundle)
    report: Report = bundle.origin()
    # The certificate was given when the bundle was made.
    return replace(report, certificate=bundle.manifest.certificate)


def before_hints(bundle: Bundle) -> Report | None:
    """Return the report of a program without its hints, which is compiled for that; None without its source."""
    report: Report | None = None if bundle.origin is None else bundle.origin(strip=True)
    return report


def spent_by(report: Report, times: int = 1, compiles: int = 0) -> Spent:
    """Return what `times` calls of a program take."""
    counts: Counter[str] = Counter()
    for row in report.collectives:
        counts[row.op] += times
    nbytes = times * sum(row.nbytes for row in report.collectives)
    return Spent(nbytes, report.peak_bytes, compiles, counts)


def why(excess: Excess, reports: Sequence[Report]) -> list[str]:
    """Return the lines that say what a limit was exceeded by, and why that is so."""
    lines = [excess.line]
    if excess.ops is not None:
        for report in reports:
            lines += [f"  {line}" for line in transfers(report, excess.ops)]
    elif excess.what == "peak":
        most = max(reports, key=lambda r: r.peak_bytes, default=None)
        lines += [f"  {line}" for line in _peak(most)] if most is not None else []
    return lines


def transfers(report: Report, ops: Sequence[str]) -> Iterator[str]:
    """Yield lines about the collectives of these ops, those of most bytes first, each with its reasons."""
    counts = Counter(row for row in report.collectives if row.op in ops)
    rows = sorted(counts, key=lambda row: -row.nbytes * counts[row])
    for row in rows[:MOST_SHOWN]:
        n = counts[row]
        size = human_bytes(n * row.nbytes)
        yield f"{row.op} over {', '.join(row.axes)}: {n} x, {size}, at {place(row.where)}"
        if not row.reasons and report.ops:
            yield "  the op itself makes it: it works along a dim that is cut"
        for number in row.reasons:
            yield from (f"  {line}" for line in report.reasons[number].lines())
    if len(rows) > MOST_SHOWN:
        yield f"and {len(rows) - MOST_SHOWN} more places"


def _peak(report: Report) -> Iterator[str]:
    ports = report.peak_bytes - report.arena_bytes
    yield (
        f"inputs and results {human_bytes(ports)}, all between {human_bytes(report.arena_bytes)}"
    )
    if report.moments:
        most: Moment = max(report.moments, key=lambda m: m.nbytes)
        op = report.named(most.op, most.where)
        yield f"most is live in {op} at {place(most.where)}: {human_bytes(most.nbytes)}"


def place(where: str) -> str:
    """Return a place in the source, shortened to its file's name, with the line that stands there."""
    code = source_line(where)
    return f"{os.path.basename(where)}{f'  `{code}`' if code else ''}"


def source_line(where: str) -> str:
    """Return the line of the source at a place, where the file is still there; else nothing."""
    file, _, rest = where.partition(":") if where.count(":") < 2 else _split(where)
    number = rest.split(":")[0]
    line = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} .."


def _split(where: str) -> tuple[str, str, str]:
    file, line, column = where.rsplit(":", 2)
    return file, ":", f"{line}:{column}"
