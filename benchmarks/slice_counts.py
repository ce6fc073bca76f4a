"""How many slices are best: programs cut along heads, batch and rows, with every number of slices timed.

    python -m benchmarks slice_counts [--repeat N]

Each program runs depth-first with each count, all by turns on one rank; the fastest run of each counts. The row "left
open" is what `order = "dfs"` without a count takes; the last column is its time to that of the best count. `flash` is
off: it needs no slices.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import show, table
from meshweave.api.program import Program, lowered
from meshweave.lowering.buffers.memory import region_bytes
from meshweave.lowering.cpu.target import bundle_of
from meshweave.runtime.local.engine import LocalEngine
from meshweave.transforms.slicing.ledger import read_ledger


@dataclass(frozen=True)
class Case:
    """A program that says how it is cut: text with `HINTS`, shapes of what it reads, and counts to try."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]


def _type(*shape: int) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def _product(name: str, left: str, right: str, types: tuple[str, str, str], op: str) -> str:
    a, b, c = types
    return f"""    %{name}e = tensor.empty() : {c}
    %{name}z = linalg.fill ins(%zero : f32) outs(%{name}e : {c}) -> {c}
    %{name} = linalg.{op} ins(%{left}, %{right} : {a}, {b}) outs(%{name}z : {c}) -> {c}
"""


def _program(arguments: str, body: str, out: str) -> str:
    return f"""func.func @main({arguments}) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %r = "hint.region"() ({{
{body}    "hint.yield"(%o) : ({out}) -> ()
  }}) {{hints = {{HINTS, kernels = "-flash"}}}} : () -> {out}
  return %r : {out}
}}
"""


def attention(heads: int, queries: int, keys: int, size: int) -> tuple[str, tuple[Any, ...]]:
    """softmax(q k) v; of one head without the dim of heads: it is then cut along queries."""
    many = (heads,) if heads > 1 else ()
    q, k, v = (*many, queries, size), (*many, size, keys), (*many, keys, size)
    scores, op = _type(*many, queries, keys), "batch_matmul" if many else "matmul"
    body = _product("s", "q", "k", (_type(*q), _type(*k), scores), op)
    body += f"""    %pe = tensor.empty() : {scores}
    %p = linalg.softmax dimension({len(many) + 1}) ins(%s : {scores}) outs(%pe : {scores}) -> {scores}
"""
    body += _product("o", "p", "v", (scores, _type(*v), _type(*q)), op)
    arguments = f"%q: {_type(*q)}, %k: {_type(*k)}, %v: {_type(*v)}"
    return _program(arguments, body, _type(*q)), (q, k, v)


def layers(rows: int, size: int, hidden: int, batch: int = 1) -> tuple[str, tuple[Any, ...]]:
    """tanh(x w) u, cut along rows, or along the batch where there is one."""
    many = (batch,) if batch > 1 else ()
    x, w, u = (*many, rows, size), (*many, size, hidden), (*many, hidden, size)
    inner, op = _type(*many, rows, hidden), "batch_matmul" if many else "matmul"
    body = _product("h", "x", "w", (_type(*x), _type(*w), inner), op)
    body += f"    %t = math.tanh %h : {inner}\n"
    body += _product("o", "t", "u", (inner, _type(*u), _type(*x)), op)
    arguments = f"%x: {_type(*x)}, %w: {_type(*w)}, %u: {_type(*u)}"
    return _program(arguments, body, _type(*x)), (x, w, u)


def cases() -> list[Case]:
    """Cuts along heads, queries, rows and batch."""
    powers = tuple(1 << k for k in range(8))
    return [
        Case("attention, along 64 heads of 512 x 64", *attention(64, 512, 512, 64), powers[:7]),
        Case("attention, along 4096 queries, 1024 keys", *attention(1, 4096, 1024, 64), powers),
        Case("layers 256 -> 1024 -> 256, along 8192 rows", *layers(8192, 256, 1024), powers),
        Case("layers 64 -> 512 -> 64, along a batch of 64", *layers(256, 64, 512, 64), powers[:7]),
    ]


@dataclass
class Run:
    """A count of slices, its intermediate bytes, and its fastest run."""

    what: str
    slices: int
    nbytes: int
    program: Program
    seconds: float = float("inf")


def runs_of(case: Case, repeat: int) -> list[Run]:
    """A run of each count, and last the one that is left open."""
    hints = {f"{n}": f'slice = "t={n}", order = "dfs"' for n in case.counts}
    hints["left open"] = 'order = "dfs"'
    runs = []
    for what, text in hints.items():
        with lowered(case.text.replace("HINTS", text), "slices", None) as (module, program):
            region = read_ledger(module).regions[0]
            engine = Program(bundle_of(program), LocalEngine())
            runs.append(Run(what, region.slices, region_bytes(program)[0], engine))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) * np.float32(s[-2] ** -0.5) for s in case.shapes]
    for turn in range(repeat + 1):
        for run in runs:
            began = time.process_time()
            run.program(*arrays)
            if turn:
                run.seconds = min(run.seconds, time.process_time() - began)
    for run in runs:
        run.program.close()
    return runs


def main(options: argparse.Namespace) -> None:
    """Time all cases and print a table of each."""
    for case in cases():
        runs = runs_of(case, options.repeat)
        best = min(run.seconds for run in runs)
        made = table(case.name, "", "slices", "intermediate bytes", "ms", "/ best")
        for run in runs:
            ratio = f"{run.seconds / best:.2f}"
            made.add_row(
                run.what,
                f"{run.slices}",
                f"{run.nbytes:,}",
                f"{run.seconds * 1e3:,.2f}",
                ratio,
            )
        show(made)
