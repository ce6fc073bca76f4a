"""Define `meshweave check`: hold a program to a budget."""

import argparse
import json

from meshweave.api.program import Progress, lowered
from meshweave.report import Report, human_bytes
from meshweave.see.account import report_of_bundle, spent_by, why
from meshweave.see.budget import Spent, read_budget
from meshweave.tools.run import (
    ProgramFile,
    StageDisplay,
    ended_by_signals,
    open_program,
    read_goal,
    read_mesh,
)


def check_command(options: argparse.Namespace) -> int:
    """Run the command `check`; return the exit status."""
    budget = read_budget(options.budget)
    with (
        StageDisplay(options.file, options.stage, quiet=options.json) as progress,
        ended_by_signals(),
    ):
        source = open_program(options.file)
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
    with lowered(*where, verify=options.verify, reasons=()) as (module, program):
        from meshweave.lowering.report import report_of

        return report_of(module, program)


def _words(spent: Spent) -> str:
    counts = ", ".join(f"{n} x {op}" for op, n in sorted(spent.collectives.items()))
    return (
        f"{human_bytes(spent.nbytes)} received ({counts or 'no collectives'}), "
        f"peak {human_bytes(spent.peak_bytes)}"
    )
