"""A step of training with Adam: its time and its memory, beside JAX on as many devices, PyTorch, DDP and FSDP on gloo.

Each contestant has a process of its own (DDP and FSDP one a rank), and they take turns. Memory is the most that its
processes hold in a turn beyond what they hold once all is imported: arguments and what compiling left count too.
Planned is the arena of all our ranks, or XLA's temporary bytes. Moved is what the busiest of our ranks receives; under
dp the gradients have to move, as many bytes as the parameters have on two ranks, unless rows of the batch are fewer.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from typing import Any

from benchmarks.common import ROOT, milliseconds, show, table
from benchmarks.peers.training import CONTESTANTS
from benchmarks.training_models import SIZES


class Contestant:
    """A process that takes a turn when it is asked to."""

    def __init__(self, case: str, name: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.peers.training", case, name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.known: dict[str, Any] = {}
        self.seconds, self.losses = [float("inf")], list[float]()

    def ready(self) -> None:
        """Wait until it is ready: what it then says is known of its memory, {} where it has failed."""
        self.known = self.answer()

    def answer(self) -> dict[str, Any]:
        """Return its next line; {} once it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    def turn(self) -> None:
        """Let it take a step."""
        assert self.process.stdin is not None
        if not self.known:
            return
        print(file=self.process.stdin, flush=True)
        said = self.answer()
        self.seconds.append(said["seconds"])
        self.losses.append(said["loss"])

    def close(self) -> int:
        """End it; return the most bytes that it held."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        peak = self.answer().get("peak", 0) if self.known else 0
        self.process.wait()
        return int(peak)


def contestants(case: str) -> list[str]:
    """Return who takes part in a case, of what is installed."""
    split = [n for n in CONTESTANTS if not (n.endswith("tp=2") and case.startswith("ResNet"))]
    needs = {"JAX": "jax", "meshweave": "jax"}
    packages = {name: needs.get(name.split(" ")[0], "torch") for name in split}
    return [name for name in split if importlib.util.find_spec(packages[name]) is not None]


def main(options: argparse.Namespace) -> None:
    """Print a table for each case."""
    for case in [c for c in SIZES if c.endswith(":quick") == options.quick]:
        if options.only and case.split(":")[0] not in options.only:
            continue
        made = table(
            f"{case}: a step of Adam",
            "contestant", "step", "to the best", "memory", "planned", "moved", "parameters", "last loss",
        )  # fmt: skip
        for ranks in (1, 2):  # one group after the other: all at once take too much memory
            group = [Contestant(case, n) for n in contestants(case) if CONTESTANTS[n] == ranks]
            for one in group:
                one.ready()
            for _ in range(options.repeat):
                for one in group:
                    one.turn()
            best = min((min(one.seconds) for one in group), default=0.0)
            for one in group:
                _row(made, one, best)
        show(made)


def _row(made: Any, one: Contestant, best: float) -> None:
    peak = one.close()
    if not one.known:
        made.add_row(one.name, *["does not run"], *["-"] * 5)
        return
    figures = (one.known.get(key) for key in ("arena", "moved", "parameters"))
    made.add_row(
        one.name, milliseconds(min(one.seconds)), f"{min(one.seconds) / best:.2f}",
        *("-" if n is None else f"{n / 2**20:,.2f} MiB" for n in (peak, *figures)), f"{one.losses[-1]:.4g}",
    )  # fmt: skip
