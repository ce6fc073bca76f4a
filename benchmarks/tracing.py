"""What a trace costs: calls from 5 us on, and programs of small kernels, with a trace, without one, and without marks.

The three take turns, `CALLS` calls at a time, and the least of all turns counts: so other work on the machine is seen
little. Code without marks is the same program, compiled by an emitter that writes none; it is there for programs of
engine `local`. In a job of `mw.init` each rank traces itself.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

import meshweave as mw
from benchmarks.common import ROOT, show, table
from meshweave.cache import VARIABLE
from meshweave.lowering.cpu.emitter import CpuEmitter
from meshweave.runtime.mpi.engine import mpiexec

CALLS = 10
SIZES = {1: (16, 64, 128, 192), 2: (16, 96, 160, 256)}  # of square matrices: 5, 10, 50, 150 us
SMALL = ((20, 8), (100, 8), (100, 64), (100, 128))
"""Kernels of programs, and their rows and columns."""
ROUNDS = 100  # of the loop of small kernels
Case = tuple[str, Callable[..., Any], list[Any]]


def numbers(*shape: int) -> np.ndarray:
    """The same numbers each time."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def product(size: int, ranks: int, mesh: mw.Mesh | None) -> Case:
    """tanh(a @ b); on several ranks rows of a, and the result gathered."""
    layouts = ("[x, _]", "[_, _]") if mesh else ("[_, _]", "[_, _]")
    call = mw.jit(lambda a, b: mw.tanh(a @ b), mesh=mesh, in_layouts=layouts, out_layouts="[_, _]")
    given = [numbers(size, size) for _ in "ab"]
    if mesh:
        given = [mw.Array.from_numpy(v, mesh=mesh, layout=laid) for v, laid in zip(given, layouts)]
    return f"{ranks} rank{'s' * (ranks > 1)}, {size} x {size}", call, given


def small_kernels(count: int, size: int) -> Case:
    """Half as many sums of columns as kernels, each of which waits for the one before."""

    def chain(x: mw.Array) -> mw.Array:
        for _ in range(count // 2):
            x = (x + mw.sum(x, axis=0, keepdims=True)) * 0.01
        return x

    return f"{count} kernels of {size} x {size}", mw.jit(chain), [numbers(size, size)]


def loop() -> Case:
    """A loop of `ROUNDS` rounds of a product of 8 x 8."""

    def rounds(x: mw.Array) -> mw.Array:
        start = (mw.asarray(0), x)
        return mw.while_loop(
            lambda c: c[0] < ROUNDS, lambda c: (c[0] + 1, mw.tanh(c[1] @ x)), start
        )[1]

    return f"a loop of {ROUNDS} rounds, 8 x 8", mw.jit(rounds), [numbers(8, 8)]


def cases() -> Iterator[Case]:
    """Yield the programs of engine local."""
    for ranks, sizes in SIZES.items():
        mesh = mw.Mesh(x=ranks) if ranks > 1 else None
        yield from (product(size, ranks, mesh) for size in sizes)
    yield from (small_kernels(*each) for each in SMALL)
    yield loop()


def least(
    turns: dict[str, tuple[Callable[..., Any], Callable[[], AbstractContextManager[Any]]]],
    given: list[Any],
    rounds: int,
) -> dict[str, float]:
    """The least microseconds of a call in each of the turns."""
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(rounds):
        for name, (call, around) in turns.items():
            with around():
                for _ in range(CALLS):
                    call(*given)
                began = time.perf_counter_ns()
                for _ in range(CALLS):
                    call(*given)
                best[name] = min(best[name], (time.perf_counter_ns() - began) / CALLS / 1e3)
    return best


def without_marks(call: Any, given: list[Any]) -> None:
    """Compile a program whose code has no marks."""
    with (
        patch.object(CpuEmitter, "_mark", lambda self, what: None),
        patch.dict(os.environ, {VARIABLE: "off"}),
    ):
        call(*given)


def job(rounds: int) -> None:
    """Print what a rank of a job measures, as JSON from rank 0."""
    mw.init()
    found = {}
    for size in SIZES[2]:
        _, call, given = product(size, 2, mw.Mesh(x=2))
        turns = {"untraced": (call, nullcontext), "traced": (call, mw.trace)}
        found[f"a job of 2 ranks, {size} x {size}"] = least(turns, given, rounds)
    if mw.rank() == 0:
        print(json.dumps(found))


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    rounds, found = 20 * max(5, options.repeat), {}
    for (name, call, given), (_, bare, _) in zip(cases(), cases()):
        without_marks(bare, given)
        turns = {
            "no marks": (bare, nullcontext), "untraced": (call, nullcontext), "traced": (call, mw.trace),
        }  # fmt: skip
        found[name] = least(turns, given, rounds)
    command = [mpiexec(), "-n", "2", sys.executable, "-m", "benchmarks.tracing", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found |= json.loads(done.stdout.strip().splitlines()[-1])
    made = table(
        f"microseconds a call, the least of {rounds} turns of {CALLS}",
        *("program", "no marks", "untraced", "traced", "a trace takes", "marks that rest take"),
    )
    for name, times in found.items():
        bare, plain, traced = (times.get(k) for k in ("no marks", "untraced", "traced"))
        cells = ["-" if t is None else f"{t:.2f}" for t in (bare, plain, traced)]
        rests = "-" if bare is None else f"{100 * (plain / bare - 1):+.1f} %"
        made.add_row(name, *cells, f"{100 * (traced / plain - 1):+.1f} %", rests)
    show(made)


if __name__ == "__main__":
    job(int(sys.argv[1]))
