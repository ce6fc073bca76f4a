"""What slices in flight cost and bring: attention of 64 heads, 1024 x 64 in f32, one slice a head.

    python -m benchmarks slices [--svg OUT.svg]

Each width w keeps w heads in flight: 1 is depth-first, 64 breadth-first. Intermediate bytes are planned, and are what a
run takes. Times are of one rank; all programs run by turns, the fastest run of each counts. The last row leaves the
number of slices open. `flash`, which makes no scores at all, is off.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import show, table
from meshweave.api.program import Program, lowered
from meshweave.errors import MeshweaveError
from meshweave.lowering.buffers.memory import region_bytes
from meshweave.lowering.cpu.target import bundle_of
from meshweave.runtime.local.engine import LocalEngine
from meshweave.tools.chart import line_chart
from meshweave.transforms.slicing.ledger import read_ledger

HEADS, LENGTH, SIZE = 64, 1024, 64
WIDTHS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Row:
    """A program as it was compiled, and its fastest run."""

    what: str
    slices: int
    width: int
    nbytes: int
    seconds: float


def attention(hints: str) -> str:
    """Q K^T, its softmax, times V, for all heads, in a region with `hints`."""
    given, scores = f"tensor<{HEADS}x{LENGTH}x{SIZE}xf32>", f"tensor<{HEADS}x{LENGTH}x{LENGTH}xf32>"
    turned = f"tensor<{HEADS}x{SIZE}x{LENGTH}xf32>"
    return f"""func.func @main(%q: {given}, %k: {turned}, %v: {given}) -> {given} {{
  %zero = arith.constant 0.0 : f32
  %r = "hint.region"() ({{
    %0 = tensor.empty() : {scores}
    %1 = linalg.fill ins(%zero : f32) outs(%0 : {scores}) -> {scores}
    %s = linalg.batch_matmul ins(%q, %k : {given}, {turned}) outs(%1 : {scores}) -> {scores}
    %2 = tensor.empty() : {scores}
    %p = linalg.softmax dimension(2) ins(%s : {scores}) outs(%2 : {scores}) -> {scores}
    %3 = tensor.empty() : {given}
    %4 = linalg.fill ins(%zero : f32) outs(%3 : {given}) -> {given}
    %o = linalg.batch_matmul ins(%p, %v : {scores}, {given}) outs(%4 : {given}) -> {given}
    "hint.yield"(%o) : ({given}) -> ()
  }}) {{hints = {{{hints}, kernels = "-flash"}}}} : () -> {given}
  return %r : {given}
}}
"""


def measured(hints: dict[str, str], repeat: int) -> list[Row]:
    """A row for each program. Raises MeshweaveError where results are not the same to the bit."""
    rng = np.random.default_rng(0)
    q, v = (rng.standard_normal((HEADS, LENGTH, SIZE), np.float32) for _ in range(2))
    k = rng.standard_normal((HEADS, SIZE, LENGTH), np.float32) * np.float32(SIZE**-0.5)
    programs, plans, seconds = [], [], dict.fromkeys(hints, float("inf"))
    for text in hints.values():
        with lowered(attention(text), "attention", None) as (module, program):
            region = read_ledger(module).regions[0]
            plans.append((region.slices, region.width, region_bytes(program)[0]))
            programs.append(Program(bundle_of(program), LocalEngine()))
    first = None
    for _ in range(repeat + 1):
        for what, program in zip(hints, programs):
            (result,) = program(q, k, v)
            seconds[what] = min(seconds[what], program.seconds["run"])
            if first is None:
                first = result
            if not np.array_equal(first, result):
                raise MeshweaveError(f"slices: {what} gives other bits than {next(iter(hints))}")
    for program in programs:
        program.close()
    return [Row(what, *plan, seconds[what]) for what, plan in zip(hints, plans)]


def main(options: argparse.Namespace) -> None:
    """Measure, print the table, draw the picture."""
    hints = {f"width {w}": f'slice = "t={HEADS}", width = {w}' for w in WIDTHS}
    hints["no count"] = 'order = "dfs"'
    rows = measured(hints, options.repeat)
    title = f"Attention, {HEADS} heads of {LENGTH} x {SIZE}, f32, one rank"
    made = table(title, "", "slices", "in flight", "intermediate bytes", "MiB", "ms")
    for row in rows:
        made.add_row(
            *(row.what, f"{row.slices}", f"{row.width}", f"{row.nbytes:,}"),
            *(f"{row.nbytes / (1 << 20):.2f}", f"{row.seconds * 1e3:,.0f}"),
        )
    show(made)
    widths = [row for row in rows if row.what != "no count"]
    if options.svg is not None:
        x, y = [row.width for row in widths], [row.nbytes for row in widths]
        drawn = line_chart(
            f"Intermediate bytes of attention, {HEADS} heads", x, y, "slices in flight", "slices"
        )
        Path(options.svg).write_text(drawn)
