"""The sweep of operators: each case beside torch and JAX in one run, on one rank and on two.

    python -m benchmarks operators [--quick] [--only FAMILY ..] [--json OUT] [--svg OUT] [--markdown OUT]

Three ratios of each case: our time on one rank to that of the best peer, all on one core; our time on two ranks to that
on one; and the bytes that the busiest of two ranks receives, beside the least that any partition of the operator needs.
--quick measures every tenth case on one rank, in about a minute.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, show, table
from benchmarks.operators.case import Case
from benchmarks.operators.families import CASES
from benchmarks.operators.results import (
    COLUMNS,
    FAMILY_COLUMNS,
    Row,
    cells,
    markdown,
    picture,
    row_of,
    summary,
    worst_first,
)

LIMIT, QUICK_LIMIT = 60.0, 15.0  # seconds for a case
BUDGET, QUICK_BUDGET = 0.2, 0.05  # seconds of turns of each of ours and the peers
EVERY = 10
WORST = 40


class Measurer:
    """The process that measures cases; another one is started where it ends or takes too long."""

    def __init__(self, quick: bool) -> None:
        """quick: whether cases run on one rank alone, for a short time."""
        self.limit = QUICK_LIMIT if quick else LIMIT
        words = ["one" if quick else "ranks", str(QUICK_BUDGET if quick else BUDGET)]
        self.command = [sys.executable, "-m", "benchmarks.operators.worker", *words]
        self.process: subprocess.Popen[str] | None = None

    def answer(self, number: int) -> dict[str, Any]:
        """Measure the case of this number."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], self.limit)
        line = self.process.stdout.readline() if ready else ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        said = (
            f"ended by status {self.process.poll()}" if ready else f"took over {self.limit:.0f} s"
        )
        self.close()
        return {"fault": said}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def chosen(quick: bool, only: Sequence[str]) -> list[tuple[int, Case]]:
    """Return the cases to measure, with their numbers. Raises ValueError for a family that there is not."""
    families = {case.family for case in CASES}
    unknown = set(only) - families
    if unknown:
        raise ValueError(
            f"no family {', '.join(sorted(unknown))}; there are {', '.join(sorted(families))}"
        )
    found = [(n, case) for n, case in enumerate(CASES) if not only or case.family in only]
    return found[::EVERY] if quick else found


def measured(cases: Sequence[tuple[int, Case]], quick: bool) -> Iterator[Row]:
    """Measure cases."""
    measurer = Measurer(quick)
    try:
        for number, case in cases:
            yield row_of(case, measurer.answer(number))
    finally:
        measurer.close()


def main(options: argparse.Namespace) -> None:
    """Measure, print the tables, and write what was asked for."""
    from rich.progress import track

    try:
        cases = chosen(options.quick, options.only)
    except ValueError as error:
        raise SystemExit(f"operators: {error}") from None
    rows = list(
        track(measured(cases, options.quick), "operators", total=len(cases), transient=True)
    )
    made = table("operators, one core beside the best of torch and JAX", *COLUMNS)
    for row in worst_first(rows):
        made.add_row(*cells(row))
    show(made)
    made = table("families", *FAMILY_COLUMNS)
    for each in summary(rows):
        made.add_row(*each)
    show(made)
    for row in rows:
        if row.said:
            print(f"{row.family}: {row.name}: {row.said}")
    written = (
        (options.json, lambda: json.dumps([row.as_dict() for row in rows], indent=1)),
        (options.svg, lambda: picture(rows)),
        (options.markdown, lambda: markdown(rows, WORST)),
    )
    for path, text in written:
        if path:
            Path(path).write_text(text())
