"""Predicted times beside measured ones, for plans of the twelve programs on 1 and 2 ranks, and how plans are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from benchmarks.common import milliseconds, show, table
from benchmarks.placing.measured import Runner, measured, report, text_of
from benchmarks.placing.programs import BOTH, HERE, Program, programs
from meshweave.plan.placement.prices import MachinePrices
from meshweave.see.profile import prices_text

NEAR = 0.05  # plans whose measured times differ by less are not told apart


def compared(program: Program, machine: MachinePrices) -> dict[str, tuple[float, float]]:
    """Predicted and measured seconds of each plan, and of the program on one rank."""
    values = program.drawn()
    plans = {"one rank": ("dp=1, tp=1", None)}
    plans |= {n: (p.mesh(2), p) for n, p in program.plans.items() if p.axes != BOTH}
    predicted, runners = {}, {}
    for name, (mesh, plan) in plans.items():
        text = text_of(program, mesh, plan)
        placement = report(text, machine).placement
        assert placement is not None
        predicted[name] = placement.seconds + machine.call
        runners[name] = Runner.of(text, values, machine, auto=True)
    measured(list(runners.values()))
    for runner in runners.values():
        runner.program.close()
    return {name: (predicted[name], runner.best) for name, runner in runners.items()}


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's: the correlation of ranks. Plans that take NEAR as long as the best of a rank share it."""
    first, second = (_ranks(list(side)) for side in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return float(len(set(first)) == len(set(second)))
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: list[float]) -> list[float]:
    """The rank of each value, of equal ones the mean."""
    groups: list[list[float]] = []
    for value in sorted(values):
        if groups and value <= groups[-1][0] * (1 + NEAR):
            groups[-1].append(value)
        else:
            groups.append([value])
    rank, found = 0, {}
    for group in groups:
        found |= dict.fromkeys(group, rank + (len(group) - 1) / 2)
        rank += len(group)
    return [found[value] for value in values]


def in_order(pairs: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Pairs of plans that measurably differ: how many are predicted in that order, and how many there are."""
    good = every = 0
    for i, (p, m) in enumerate(pairs):
        for q, n in pairs[:i]:
            if abs(m - n) > NEAR * min(m, n):
                every += 1
                good += (p < q) == (m < n)
    return good, every


def main(machine: MachinePrices, about: str, only: Sequence[str] = ()) -> None:
    """Print the table."""
    print(prices_text(machine, about))
    print("measured: processor time of a rank, the least of turns by turns")
    shown = table("predictions", "program", "plan", "predicted", "measured", "error")
    summary = table("programs", "program", "median error", "rank correlation", "pairs in order")
    errors, ranks, good, every = [], [], 0, 0
    for program in programs(HERE):
        if only and program.name not in only:
            continue
        found = compared(program, machine)
        own = [abs(p - m) / m for p, m in found.values()]
        for (name, (p, m)), error in zip(found.items(), own, strict=True):
            shown.add_row(
                program.name, name, milliseconds(p), milliseconds(m), f"{100 * error:.0f} %"
            )
        pairs = list(found.values())
        here, there = in_order(pairs)
        errors += own
        ranks.append(rank_correlation(pairs))
        good, every = good + here, every + there
        summary.add_row(
            program.name, f"{100 * median(own):.0f} %", f"{ranks[-1]:.2f}", f"{here} of {there}"
        )
    show(shown)
    summary.add_row(
        "all", f"{100 * median(errors):.0f} %", f"{median(ranks):.2f}", f"{good} of {every}"
    )
    show(summary)
