"""`meshweave report`: what compiling a program decides, as tables, JSON, and a picture of memory over a step."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from meshweave.api import lowered
from meshweave.errors import UsageError
from meshweave.files import replacing
from meshweave.report import CollectiveRow, KernelRow, LedgerRow, Moment, RegionRow, Report
from meshweave.tools.chart import Curve, human_bytes, memory_chart
from meshweave.tools.run import Progress, Source, ended_by_signals, read_mesh, read_text

_MOST_ROWS = 40  # of a table on the terminal; JSON has all


def report_command(options: argparse.Namespace) -> int:
    """The command `report`; returns the exit status."""
    with Progress(options.file, options.stage, quiet=options.json) as progress, ended_by_signals():
        source = read_text(options.file)
        report = _report(source, options, progress, strip=False)
        if options.svg is not None:
            before = _report(source, options, progress, strip=True)
            write_text(options.svg, picture(source.name, before, report))
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        _print(source.name, report, options)
    return 0


def _report(source: Source, options: argparse.Namespace, progress: Progress, strip: bool) -> Report:
    where = (source.text, source.name, read_mesh(options), options.engine or "local", progress)
    with lowered(*where, strip=strip) as (module, program):
        return report_of(module, program)


def report_of(module: Any, program: Any) -> Report:
    """The report of a compilation.

    module: the local view, with its ledger. program: what lowering made of it (lowering.cpu.Program).
    """
    from meshweave.lowering.memory import moments, region_bytes
    from meshweave.transforms.hint_ledger import read_ledger

    ledger = read_ledger(module)
    nbytes = region_bytes(program)
    ports = (*program.inputs, *program.outputs)
    arena = program.schedule.arena_bytes
    return Report(
        peak_bytes=arena + sum(port.nbytes for port in ports),
        arena_bytes=arena,
        regions=tuple(
            RegionRow(
                *(ledger.name(r.number), r.slices, r.order, r.width),
                *(nbytes.get(r.number, 0), r.where),
            )
            for r in ledger.regions
        ),
        ledger=tuple(
            LedgerRow(f"{e.key}={e.value}", e.op, e.op_location, e.outcome, e.reason)
            for e in ledger.entries()
        ),
        kernels=_kernels(module, program),
        collectives=tuple(
            CollectiveRow(info.op, tuple(info.axes), info.bytes)
            for info in program.collectives.infos
            if info.op != "relayout"
        ),
        moments=moments(program),
    )


def _kernels(module: Any, program: Any) -> tuple[KernelRow, ...]:
    """What select-kernels chose; the code that each op gets where it has not run."""
    from meshweave.lowering.memory import unit_kernels
    from meshweave.transforms.select_kernels import kernel_rows

    rows = []
    for row in kernel_rows(module):
        op, _, where = row["op"].partition(" at ")
        rows.append(KernelRow(op, row["kernel"], row["why"], where))
    return tuple(rows) or unit_kernels(program)


def write_text(path: str, text: str) -> None:
    """Write a file whole. UsageError, with the reason, when that cannot be."""
    try:
        with replacing(path) as out:
            out.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def picture(name: str, before: Report, after: Report) -> str:
    """The live bytes of a step, op by op, as SVG: without the hints, and as compiled."""
    curves = [_curve("as compiled", after)]
    if after.regions:
        curves.append(_curve("without hints", before))
    return memory_chart(f"{os.path.basename(name)}: live bytes of the arena", curves)


def _curve(name: str, report: Report) -> Curve:
    moments = report.moments
    lines = [m.where.split(":")[-2] if m.where.count(":") > 1 else "" for m in moments]
    ticks = [f"line {line}" if line and len(lines) < 16 else line for line in lines]
    return Curve(name, [m.nbytes for m in moments], [_label(m) for m in moments], ticks)


def _label(moment: Moment) -> str:
    return f"{moment.op}, {os.path.basename(moment.where)}"


def _print(name: str, report: Report, options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    ports = report.peak_bytes - report.arena_bytes
    console.print(Text(f"{name}: {report.peak_bytes:,} bytes on a rank at most"))
    console.print(
        Text(
            f"  inputs and results {human_bytes(ports)}, arena of all between "
            f"{human_bytes(report.arena_bytes)}"
        )
    )
    if report.moments:
        peak = max(report.moments, key=lambda m: m.nbytes)
        console.print(
            Text(f"  most of the arena is live in {_label(peak)}: {human_bytes(peak.nbytes)}")
        )
    for table in _tables(report):
        console.print(table)
    if options.svg is not None:
        console.print(Text(f"written: {options.svg}"))


def _tables(report: Report) -> list[Any]:
    """A table of each kind of which there are rows."""
    regions = [
        (r.name, r.where, f"{r.slices}", r.order, f"{r.width}", human_bytes(r.intermediate_bytes))
        for r in report.regions
    ]
    ledger = [(r.hint, r.op, r.location, r.outcome, r.reason) for r in report.ledger]
    kernels = [(k.op, k.where, k.kernel, k.why) for k in report.kernels]
    moved = [(c.op, ", ".join(c.axes), human_bytes(c.nbytes)) for c in report.collectives]
    return [
        _table(title, columns, rows)
        for title, columns, rows in (
            ("regions", "name,place,slices,order,width,intermediate", regions),
            ("ledger", "hint,op,place,outcome,reason", ledger),
            ("kernels", "op,place,kernel,why", kernels),
            ("collectives", "op,axes,received", moved),
        )
        if rows
    ]


def _table(title: str, columns: str, rows: Sequence[Iterable[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    left = len(rows) - _MOST_ROWS
    more = f" ({left} more in --json)" if left > 0 else ""
    table = Table(title=f"{title}{more}", title_justify="left")
    for column in columns.split(","):
        table.add_column(column, overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*map(Text, row))
    return table
