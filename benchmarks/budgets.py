"""What a budget on memory costs in time: a step of Adam on a transformer, whose values are computed again to keep it.

    python -m benchmarks budgets [--quick] [--repeat N] [--svg OUT.svg]

Budgets are shares of what the step takes without one. Bytes are planned, and are what a run takes; times are predicted
beside processor times, the least of so many steps, all programs by turns. The last budget cannot be kept: what it is
refused with is the least that there is, and is taken. `--quick` takes the small model.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import milliseconds, show, table
from benchmarks.training_models import SIZES, adam, jax_model
from meshweave.errors import CompileError
from meshweave.tools.chart import line_chart

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass
class Budget:
    """A program within a budget: bytes asked for and planned, ops that run again, predicted and measured seconds."""

    asked: int
    planned: int
    again: int
    predicted: float
    step: Callable[[], None]
    seconds: list[float] = field(default_factory=list)


def within(case: str, nbytes: int | None) -> Budget:
    """Compile the step of a case within a budget; None: without one."""
    import jax

    import meshweave as mw

    model = jax_model(case)
    program = mw.jax.jit(adam(model.loss), donate_argnums=(0, 1, 2), peak_bytes=nbytes)
    zeros = [jax.tree.map(np.zeros_like, model.params) for _ in range(2)]
    state: list[Any] = [model.params, *zeros, np.float32(0)]

    def step() -> None:
        _, *state[:] = program(*state, *model.batch)

    step()
    report = program.explain().report
    said = "".join({r.reason for r in report.ledger if r.hint.startswith("peak_bytes")})
    found = re.search(r"(\d+) ops run again .* ([\d.e-]+) ms predicted", said)
    again, predicted = (int(found[1]), float(found[2]) / 1000) if found else (0, 0.0)
    planned = report.regions[0].intermediate_bytes if report.regions else report.arena_bytes
    return Budget(nbytes or planned, planned, again, predicted, step)


def main(options: argparse.Namespace) -> None:
    """Print a table, and draw it where asked for."""
    case = "GPT-2:quick" if options.quick else "GPT-2"
    whole = within(case, None)
    rows = [whole]
    for share in SHARES[1:]:
        try:
            rows.append(within(case, int(whole.planned * share)))
        except CompileError as refused:
            least = re.search(r"allow (\d+) bytes", refused.message)
            assert least is not None, refused.message
            rows.append(within(case, int(least[1])))
            break
    for _ in range(options.repeat):
        for row in rows:
            began = time.process_time()
            row.step()
            row.seconds.append(time.process_time() - began)
    made = table(f"{case}: {SIZES[case]}", "budget", "planned", "ops again", "predicted", "step")
    for row in rows:
        planned = f"{row.planned:,}"
        made.add_row(
            *(f"{row.asked:,}", planned, str(row.again), milliseconds(row.predicted)),
            milliseconds(min(row.seconds)),
        )
    show(made)
    if options.svg:
        x = [round(1e6 * row.predicted) for row in rows]
        title = (
            f"Intermediate bytes of a step of Adam over predicted time of what runs again: {case}"
        )
        chart = line_chart(
            title,
            x,
            [row.planned for row in rows],
            "microseconds of what runs again, predicted",
            "us",
        )
        Path(options.svg).write_text(chart)
