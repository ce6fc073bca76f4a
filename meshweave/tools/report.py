"""Define `meshweave report`: what compiling a program decides, as tables, JSON, and a picture of memory."""

import argparse
import json
import os
import sys
from dataclasses import replace

from meshweave.api.compiling.rank_program import Progress
from meshweave.api.program import lowered
from meshweave.files.whole import write_text
from meshweave.report import Moment, Report, human_bytes
from meshweave.targets import CHIP
from meshweave.tools.chart import Curve, memory_chart
from meshweave.tools.run import (
    ProgramFile,
    StageDisplay,
    ended_by_signals,
    read_aim,
    read_goal,
    read_hints,
    read_machine,
    read_mesh,
    read_text,
)


def report_command(options: argparse.Namespace) -> int:
    """Run the command `report`; return the exit status."""
    with (
        StageDisplay(options.file, options.stage, quiet=options.json) as progress,
        ended_by_signals(),
    ):
        source = read_text(options.file, options.dim)
        report = _report(source, options, progress, strip=False)
        if options.svg is not None:
            before = _report(source, options, progress, strip=True)
            write_text(options.svg, picture(source.name, before, report))
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        _print(source.name, report, options)
    return 0


def _report(
    source: ProgramFile, options: argparse.Namespace, progress: Progress, strip: bool
) -> Report:
    where = (source.text, source.name, read_mesh(options), read_goal(options).engine, progress)
    made = lowered(
        *where, strip=strip, verify=options.verify, machine=read_machine(options),
        auto=read_aim(options),
        hints=read_hints(options),
    )  # fmt: skip
    with made as (module, program):
        from meshweave.lowering.report import report_of

        report = report_of(module, program, options.chip or "")
        if program.target != "gpu" or strip:
            return report
        from meshweave.lowering.gpu.roofline import launch_rows

        return replace(report, launches=launch_rows(program, options.chip or CHIP))


def picture(name: str, before: Report, after: Report) -> str:
    """Draw the live bytes of a step, op by op, as SVG: without the hints, and as compiled."""
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
    console.print(Text(f"  {report.certificate}"))
    for table in report.tables():
        console.print(table)
    if options.svg is not None:
        console.print(Text(f"written: {options.svg}"))
