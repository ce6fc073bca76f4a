"""What `overlap = "auto"` brings where ranks are late in turn: sums over two ranks, slice by slice.

    python -m benchmarks overlap

Slice k computes longer on rank k mod 2, by a number of products of 256 x 256 in f32; then the ranks add up what they
have. Without overlap each sum waits for whoever is late; with it the next slice is computed meanwhile, so that only
what the ranks take in all counts. The even row has no late rank: there is no time to hide, only copies to pay for. Runs
of both programs by turns, the fastest of each counts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.common import milliseconds, show, table
from meshweave.api.program import Program
from meshweave.dialects import context
from meshweave.errors import MeshweaveError
from meshweave.ir.bindings import ir
from meshweave.lowering import compile_local
from meshweave.pipeline import run_pipeline
from meshweave.runtime import engine

SLICES, SIZE = 16, 256
# Products of a slice: on the rank that is early, and on the late one.
WORK = ((4, 4), (1, 7), (0, 8))
PASSES = {"none": "canonicalize,cse", "auto": "dist-overlap{everywhere=true},canonicalize,cse"}


def program_text(early: int, late: int) -> str:
    """The local view: products in a loop whose length depends on slice and rank, a sum, the result of the slice."""
    one, all_ = f"tensor<{SIZE}x{SIZE}xf32>", f"tensor<{SLICES}x{SIZE}x{SIZE}xf32>"
    ports = f'{{dist.global = {one}, dist.layout = #dist.layout<"[_, _]">}}'
    out = f'{{dist.global = {all_}, dist.layout = #dist.layout<"[_, _, _]">}}'
    return f"""
"dist.mesh"() {{sym_name = "mesh", axes = "x=2"}} : () -> ()
func.func @main(%as: {all_} {out}, %b: {one} {ports}) -> ({all_} {out}) {{
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %n = arith.constant {SLICES} : index
  %early = arith.constant {early} : index
  %late = arith.constant {late} : index
  %me = "dist.axis_index"() {{axes = ["x"]}} : () -> index
  %empty = tensor.empty() : {all_}
  %r = scf.for %k = %c0 to %n step %c1 iter_args(%into = %empty) -> ({all_}) {{
    %turn = arith.addi %k, %me : index
    %odd = arith.remui %turn, %c2 : index
    %is_late = arith.cmpi eq, %odd, %c0 : index
    %work = arith.select %is_late, %late, %early : index
    %a = tensor.extract_slice %as[%k, 0, 0] [1, {SIZE}, {SIZE}] [1, 1, 1] : {all_} to {one}
    %0 = tensor.empty() : {one}
    %start = linalg.fill ins(%zero : f32) outs(%0 : {one}) -> {one}
    %p = scf.for %i = %c0 to %work step %c1 iter_args(%sum = %start) -> ({one}) {{
      %q = linalg.matmul ins(%a, %b : {one}, {one}) outs(%sum : {one}) -> {one}
      scf.yield %q : {one}
    }}
    %s = "dist.all_reduce"(%p) {{axes = ["x"], kind = "sum"}} : ({one}) -> {one}
    %row = tensor.insert_slice %s into %into[%k, 0, 0] [1, {SIZE}, {SIZE}] [1, 1, 1] : {one} into {all_}
    scf.yield %row : {all_}
  }}
  return %r : {all_}
}}
"""


def loaded(early: int, late: int, passes: str, running: Any) -> Program:
    """The program behind `passes`, on an engine."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(program_text(early, late))
        run_pipeline(module, passes)
        return Program(compile_local(module, running.name), running)


def measured(early: int, late: int, running: Any, repeat: int) -> dict[str, float]:
    """Seconds without and with overlap. MeshweaveError where results differ."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((SLICES, SIZE, SIZE), np.float32)
    b = rng.standard_normal((SIZE, SIZE), np.float32)
    programs = {what: loaded(early, late, passes, running) for what, passes in PASSES.items()}
    seconds = dict.fromkeys(programs, float("inf"))
    first = None
    for _ in range(2 * repeat + 1):
        for what, program in programs.items():
            (result,) = (np.asarray(r) for r in program(a, b))
            seconds[what] = min(seconds[what], program.seconds["run"])
            first = result if first is None else first
            if not np.array_equal(first, result):
                raise MeshweaveError("overlap: the results differ")
    for program in programs.values():
        program.close()
    return seconds


def main(options: argparse.Namespace) -> None:
    """Measure and print the table."""
    title = f"A sum of {SIZE} x {SIZE} f32 in each of {SLICES} slices, 2 ranks"
    made = table(title, "engine", "products, early", "late", "none", "auto", "auto to none")
    for name in ("local", "mpi"):
        running = engine(name)
        for early, late in WORK:
            found = measured(early, late, running, options.repeat)
            none, auto = found["none"], found["auto"]
            made.add_row(
                *(name, f"{early}", f"{late}", milliseconds(none), milliseconds(auto)),
                f"{auto / none:.2f}",
            )
        running.close()
    show(made)
