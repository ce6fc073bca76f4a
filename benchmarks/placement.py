"""Chosen plans beside those that people write, predictions beside measured times, and what choosing takes.

    python -m benchmarks placement [--predictions] [--only PROGRAM ..] [--machine PROFILE.toml] [--ranks N ..]

Twelve programs (benchmarks/placing/programs.py). On 2 ranks all plans run, as they are written, beside the chosen one;
on more they are predicted for the machine (by default the H100 that comes along), with what a plan leaves open placed
at the optimum. With --predictions: predicted beside measured times on 1 and 2 ranks, for this machine, which is
measured first unless --machine says what it takes. Without --only, also how long dist-place takes for 1 to 48 layers.
"""

from __future__ import annotations

import argparse
import re
import time

from benchmarks.common import milliseconds, show, table
from benchmarks.placing import measured, predictions, simulated
from benchmarks.placing.measured import Runner
from benchmarks.placing.programs import BOTH, HERE, LARGE, Program, programs, training
from benchmarks.transformer_text import Size, transformer
from meshweave.api.compiling.rank_program import collector_paused
from meshweave.dialects import context
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.pipeline import run_pipeline
from meshweave.plan.placement.prices import MachinePrices
from meshweave.see import profile
from meshweave.transforms.base import set_mesh

MESHES = ("dp=4", "dp=2, tp=2", "dp=2, tp=2, pp=2", "dp=16, tp=16", "dp=65536")
"""Meshes on which the time of the pass is measured."""

SLACK = 1.05  # of the best written plan: what a chosen one may take


def this_machine(file: str | None) -> tuple[MachinePrices, str]:
    """What the machine takes that runs the programs, and how that is known."""
    if file is not None:
        return profile.read_prices(file), file
    prices, about, _ = profile.measured()
    return prices, about


def measured_rows(program: Program, machine: MachinePrices) -> list[tuple[str, str, float]]:
    """(plan, mesh, seconds) of the chosen plan and of each written one, on two ranks by turns."""
    values = program.drawn()
    runners = {}
    for name, plan in program.plans.items():
        if plan.axes != BOTH:
            text = measured.text_of(program, plan.mesh(2), plan)
            runners[name, plan.mesh(2)] = Runner.of(text, values, machine, auto=False)
    text = measured.text_of(program, "dp=2, tp=1", None)
    runners["chosen", "dp=2, tp=1"] = Runner.of(text, values, machine, auto=True)
    measured.measured(list(runners.values()))
    for runner in runners.values():
        runner.program.close()
    return [(*key, runner.best) for key, runner in runners.items()]


def on_two_ranks(machine: MachinePrices, only: list[str]) -> None:
    """Print measured plans."""
    shown = table("on 2 ranks, measured: processor time of a rank, the least of turns by turns",
                  "program", "plan", "mesh", "measured", "chosen over it")  # fmt: skip
    for program in programs(HERE):
        if only and program.name not in only:
            continue
        rows = measured_rows(program, machine)
        own = rows[-1][2]
        for name, mesh, seconds in rows:
            over = "" if name == "chosen" else f"{own / seconds:.3f}"
            shown.add_row(program.name, name, mesh, milliseconds(seconds), over)
    show(shown)


def on_many_ranks(machine: MachinePrices, counts: list[int], only: list[str]) -> None:
    """Print the chosen plan beside the best written one, by the model."""
    shown = table(
        "by the model", "program, ranks", "chosen on", "chosen", "receives", "gap",
        "best written", "takes", "receives", "within 5 %",
    )  # fmt: skip
    for program in programs(LARGE):
        if only and program.name not in only:
            continue
        for ranks in counts:
            own, mesh, written = simulated.compared(program, ranks, machine)
            name = min(written, key=lambda one: written[one].seconds)
            other = written[name]
            shown.add_row(
                f"{program.name}, {ranks}", mesh, milliseconds(own.seconds), f"{own.nbytes / 1e6:,.1f} MB",
                f"{own.gap:.2f}", name, milliseconds(other.seconds), f"{other.nbytes / 1e6:,.1f} MB",
                "yes" if own.seconds <= SLACK * other.seconds else "no",
            )  # fmt: skip
    show(shown)


def pass_seconds(text: str, mesh: str) -> tuple[float, float, float]:
    """Processor seconds of dist-place, as it is compiled: the first time in a process, and again; and the gap."""
    found, gap = [], 0.0
    for _ in range(3):
        ctx = context(unregistered=True)
        with ctx, ir.Location.unknown():
            module = load_module(text, ctx, "transformer")
            run_pipeline(module, "hint-apply,outline-repeats,dist-donate")
            set_mesh(module, Mesh.parse(mesh))
            with collector_paused():
                began = time.process_time()
                run_pipeline(module, "dist-place", verify=False)
                found.append(time.process_time() - began)
            gap = module.operation.attributes["dist.placement"]["gap"].value
    return found[0], min(found[1:]), gap


def layers_placed() -> None:
    """Print how long the pass takes."""
    shown = table("dist-place, a transformer", "layers", "mesh", "first", "again", "gap")
    for layers in (1, 12, 48):
        text = transformer(Size(layers, batch=4, seq=128, width=256, heads=8, ffn=1024))
        free = re.sub(r" \{sdy\.sharding = #sdy\.sharding<@mesh, \[[^\]]*\]>\}", "", text)
        for mesh in MESHES:
            first, again, gap = pass_seconds(free, mesh)
            shown.add_row(f"{layers}", mesh, milliseconds(first), milliseconds(again), f"{gap:.4f}")
    for layers in (2, 12, 48):
        text = measured.text_of(training(HERE, layers), MESHES[0], None)
        for mesh in MESHES:
            first, again, gap = pass_seconds(text, mesh)
            shown.add_row(
                f"{layers}, a training step", mesh,
                milliseconds(first), milliseconds(again), f"{gap:.4f}",
            )  # fmt: skip
    show(shown)


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    only = list(options.only)
    if options.predictions:
        predictions.main(*this_machine(options.machine), only)
        return
    counts = options.ranks or [2, 4, 64, 512, 4096]
    if 2 in counts:
        on_two_ranks(MachinePrices(), only)
    if many := [ranks for ranks in counts if ranks != 2]:
        on_many_ranks(profile.read_prices(options.machine or "h100", "nccl"), many, only)
    if not only:
        layers_placed()
