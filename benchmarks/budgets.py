"""What a budget on memory costs in time: a step of Adam on a transformer, whose values are computed again to keep it.

    python -m benchmarks budgets [--quick] [--repeat N] [--limit SECONDS] [--json ROWS.json] [--svg OUT.svg]

Budgets are shares of what the step takes without one. Bytes are planned, and are what a run takes; times are predicted
beside processor times, the least of so many steps. Each budget has a process of its own, which ends at the limit. Its
row is printed, and written to ROWS.json, before the next one begins; one that is there is not measured again, unless
the limit is larger now. The last budget cannot be kept: what it is refused with is the least that there is, and is
taken. `--quick` takes the small model.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, milliseconds, show, table

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True)
class Budget:
    """A program within a budget: bytes asked for and planned, ops that run again, predicted and measured seconds."""

    asked: int
    planned: int
    again: int
    predicted: float
    seconds: float


def within(case: str, nbytes: int | None, repeat: int) -> Budget:
    """Compile the step of a case within a budget, None: without one, and run it."""
    import jax
    import numpy as np

    import meshweave as mw
    from benchmarks.training_models import adam, jax_model

    model = jax_model(case)
    program = mw.jax.jit(adam(model.loss), donate_argnums=(0, 1, 2), peak_bytes=nbytes)
    zeros = [jax.tree.map(np.zeros_like, model.params) for _ in range(2)]
    state: list[Any] = [model.params, *zeros, np.float32(0)]
    seconds = float("inf")
    for _ in range(repeat + 1):  # the first one compiles
        began = time.process_time()
        _, *state[:] = program(*state, *model.batch)
        seconds = min(seconds, time.process_time() - began)
    report = program.explain().report
    said = "".join({r.reason for r in report.ledger if r.hint.startswith("peak_bytes")})
    found = re.search(r"(\d+) ops run again .* ([\d.e-]+) ms predicted", said)
    again, predicted = (int(found[1]), float(found[2]) / 1000) if found else (0, 0.0)
    planned = report.regions[0].intermediate_bytes if report.regions else report.arena_bytes
    return Budget(nbytes or planned, planned, again, predicted, seconds)


def alone(case: str, nbytes: int | None, repeat: int) -> dict[str, Any]:
    """Return the row of a budget, or the line that refuses it."""
    from meshweave.errors import CompileError

    try:
        return asdict(within(case, nbytes, repeat))
    except CompileError as refused:
        return {"refused": refused.message}


class Rows:
    """Hold what is known of the budgets of a case, in a file too, where there is one."""

    def __init__(self, case: str, options: argparse.Namespace) -> None:
        self.case, self.repeat, self.limit = case, options.repeat, options.limit
        self.path = Path(options.json) if options.json else None
        self.every: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.exists():
            self.every = json.loads(self.path.read_text())

    def row(self, nbytes: int | None) -> dict[str, Any]:
        """Return the row of a budget, measured unless it is known."""
        name = f"{self.case}, {nbytes or 'no'} bytes"
        known = self.every.get(name)
        if known is None or known.get("over", self.limit) < self.limit:
            self.every[name] = self._measured(nbytes)
            if self.path is not None:
                self.path.write_text(json.dumps(self.every, indent=1))
        print(f"{name}: {json.dumps(self.every[name])}", flush=True)
        return self.every[name]

    def _measured(self, nbytes: int | None) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.budgets"]
        given = [self.case, str(nbytes or 0), str(self.repeat)]
        try:
            done = subprocess.run(
                [*command, *given], capture_output=True, text=True, cwd=ROOT, timeout=self.limit
            )
        except subprocess.TimeoutExpired:
            return {"over": self.limit}
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or ["nothing"])[-1]}
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def budgets(rows: Rows) -> list[Budget]:
    """Return the budgets of a case that can be kept within the limit, the least one last."""
    whole = rows.row(None)
    found = [whole]
    for share in SHARES[1:] if "planned" in whole else ():
        row = rows.row(int(whole["planned"] * share))
        if "refused" in row:
            least = re.search(r"allow (\d+) bytes", row["refused"])
            assert least is not None, row["refused"]
            found.append(rows.row(int(least[1])))
            break
        found.append(row)
    return [Budget(**row) for row in found if "planned" in row]


def main(options: argparse.Namespace) -> None:
    """Print a table, and draw it where asked for."""
    from benchmarks.training_models import SIZES

    case = "GPT-2:quick" if options.quick else "GPT-2"
    rows = budgets(Rows(case, options))
    made = table(f"{case}: {SIZES[case]}", "budget", "planned", "ops again", "predicted", "step")
    for row in rows:
        planned = f"{row.planned:,}"
        made.add_row(
            *(f"{row.asked:,}", planned, str(row.again), milliseconds(row.predicted)),
            milliseconds(row.seconds),
        )
    show(made)
    if options.svg:
        Path(options.svg).write_text(drawn(case, rows))


def drawn(case: str, rows: list[Budget]) -> str:
    """Draw planned bytes over the predicted time of what runs again."""
    from meshweave.tools.chart import line_chart

    x = [round(1e6 * row.predicted) for row in rows]
    title = f"Intermediate bytes of a step of Adam over predicted time of what runs again: {case}"
    label = "microseconds of what runs again, predicted"
    return line_chart(title, x, [row.planned for row in rows], label, "us")


if __name__ == "__main__":
    named, asked, times = sys.argv[1:]
    print(json.dumps(alone(named, int(asked) or None, int(times))))
