"""Define `meshweave check`, which holds a program to a budget, and `meshweave view`, the page about a program."""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshweave.api.compiling.rank_program import Progress
from meshweave.api.program import lowered
from meshweave.errors import UsageError
from meshweave.files.whole import write_text
from meshweave.layout import Mesh
from meshweave.report import Report, human_bytes
from meshweave.see.account import report_of_bundle, spent_by, why
from meshweave.see.budget import Spent, read_budget
from meshweave.see.exports import model_graphs, node_data
from meshweave.see.page import Page
from meshweave.tools.run import (
    ProgramFile,
    StageDisplay,
    ended_by_signals,
    open_program,
    read_aim,
    read_goal,
    read_hints,
    read_machine,
    read_mesh,
)


def check_command(options: argparse.Namespace) -> int:
    """Run the command `check`; return the exit status."""
    budget = read_budget(options.budget)
    with (
        StageDisplay(options.file, options.stage, quiet=options.json) as progress,
        ended_by_signals(),
    ):
        source = open_program(options.file, options.dim)
        report = reasoned(source, options, progress)
    spent = spent_by(report, compiles=0 if source.bundle is not None else 1)
    found = budget.exceeded(spent)
    lines = [line for excess in found for line in why(excess, [report])]
    if options.json:
        print(json.dumps({"within": not found, "spent": spent.as_dict(), "reasons": lines}))
    else:
        print("\n".join(lines) if found else f"{source.name}: within the budget: {_words(spent)}")
    return 1 if found else 0


def reasoned(source: ProgramFile, options: argparse.Namespace, progress: Progress) -> Report:
    """Return the report of a program, with the reasons of its collectives unless it is compiled already."""
    if source.bundle is not None:
        return report_of_bundle(source.bundle)
    where = (source.text, source.name, read_mesh(options), read_goal(options).engine, progress)
    made = lowered(
        *where, verify=options.verify, reasons=(), machine=read_machine(options), hints=read_hints(options),
        auto=read_aim(options),
    )  # fmt: skip
    with made as (module, program):
        from meshweave.lowering.report import report_of

        return report_of(module, program, read_goal(options).chip)


def _words(spent: Spent) -> str:
    counts = ", ".join(f"{n} x {op}" for op, n in sorted(spent.collectives.items()))
    return (
        f"{human_bytes(spent.nbytes)} received ({counts or 'no collectives'}), "
        f"peak {human_bytes(spent.peak_bytes)}"
    )


def view_command(options: argparse.Namespace) -> int:
    """Run the command `view`; return the exit status."""
    output = (
        options.output or f"{Path(options.file).stem if options.file != '-' else 'program'}.html"
    )
    trace = None if options.trace is None else _json(options.trace)
    budget = None if options.budget is None else read_budget(options.budget)
    with (
        StageDisplay(options.file, options.stage, quiet=False) as progress,
        ended_by_signals(),
    ):
        source = open_program(options.file, options.dim)
        page = _page(source, options, progress)
        if options.diff is not None or options.diff_mesh is not None:
            there = argparse.Namespace(
                **{**vars(options), "mesh": options.diff_mesh or options.mesh}
            )
            other = source if options.diff is None else open_program(options.diff, options.dim)
            page = page.against(_page(other, there, progress))
    text = replace(page, trace=trace, trace_name=options.trace or "", budget=budget).html
    write_text(output, text)
    print(f"{output}: {len(text.encode()):,} bytes")
    if options.explorer is not None:
        for name, value in explorer_files(options.explorer, page.report):
            write_text(name, json.dumps(value) + "\n")
            print(name)
    return 0


def explorer_files(path: str, report: Report) -> list[tuple[str, Any]]:
    """Return what to write for Model Explorer, by the names of the files: graphs, and node data for them."""
    return [
        (path, model_graphs(report)),
        (f"{path.removesuffix('.json')}.bytes.json", node_data(report)),
    ]


def _page(source: ProgramFile, options: argparse.Namespace, progress: Progress) -> Page:
    """Return the page about a program, without what it is compared with."""
    title = os.path.basename(source.name)
    if source.bundle is not None:
        manifest = source.bundle.manifest
        mesh = Mesh.parse(manifest.mesh) if manifest.mesh else Mesh()
        ports = (*manifest.inputs, *manifest.outputs)
        return Page(title, mesh, manifest.engine, reasoned(source, options, progress), ports)
    from meshweave.lowering.report import report_of

    engine = read_goal(options).engine
    where = (source.text, source.name, read_mesh(options), engine, progress)
    made = lowered(
        *where, verify=options.verify, reasons=(), machine=read_machine(options), hints=read_hints(options),
        auto=read_aim(options),
    )  # fmt: skip
    with made as (module, program):
        report = report_of(module, program, read_goal(options).chip)
        mesh = Mesh.parse(program.mesh) if program.mesh else Mesh()
        ports = (*program.inputs, *program.outputs)
    before: Report | None = None
    if report.regions:
        with lowered(*where, verify=False, strip=True) as (module, program):
            before = report_of(module, program, read_goal(options).chip)
    return Page(title, mesh, engine, report, ports, before=before)


def _json(path: str) -> Any:
    """Read a file of JSON. Raises UsageError where it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--trace {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"--trace {path}: no trace that meshweave has written") from None
