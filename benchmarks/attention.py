"""Attention of 64 heads, 1024 x 64 in f32, on one core: as written, in slices, and by `flash`, beside torch and JAX.

    python -m benchmarks attention [--jax-python P] [--torch-python P] [--repeat N]

The floor is the two products of every head done by the library, and nothing else, in the same run. Programs and peers
run by turns; the fastest run of each counts. A run is from arrays to an array, as a call of `mw.jit` is: what NumPy's
copy of a result takes is not in it. Seconds are the processor's, which other work on the machine disturbs less than a
clock does. MiB are planned bytes between inputs and results, which are what a run takes.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from benchmarks.common import ROOT, show, table
from meshweave.api.program import Program, build
from meshweave.runtime.arrays.array import place
from meshweave.runtime.libraries import openblas
from meshweave.runtime.local.engine import LocalEngine
from meshweave.runtime.memory import aligned

HEADS, LENGTH, SIZE = 64, 1024, 64
MIB = 1 << 20


def text(hints: str = "", causal: bool = False) -> str:
    """softmax(q k^T / 8) v of all heads, in a region with `hints` where there are any."""
    given = f"tensor<{HEADS}x{LENGTH}x{SIZE}xf32>"
    turned = f"tensor<{HEADS}x{SIZE}x{LENGTH}xf32>"
    scores = f"tensor<{HEADS}x{LENGTH}x{LENGTH}xf32>"
    keep = """%row = linalg.index 1 : index
      %column = linalg.index 2 : index
      %seen = arith.cmpi sge, %row, %column : index
      %masked = arith.select %seen, %scaled, %low : f32"""
    body = f"""%0 = tensor.empty() : {scores}
    %1 = linalg.fill ins(%zero : f32) outs(%0 : {scores}) -> {scores}
    %t0 = tensor.empty() : {turned}
    %t = linalg.transpose ins(%k : {given}) outs(%t0 : {turned}) permutation = [0, 2, 1]
    %raw = linalg.batch_matmul ins(%q, %t : {given}, {turned}) outs(%1 : {scores}) -> {scores}
    %s = linalg.generic {{indexing_maps = [affine_map<(h, i, j) -> (h, i, j)>, affine_map<(h, i, j) -> (h, i, j)>],
        iterator_types = ["parallel", "parallel", "parallel"]}} ins(%raw : {scores}) outs(%0 : {scores}) {{
      ^bb0(%x: f32, %y: f32):
      %scaled = arith.mulf %x, %scale : f32
      {keep if causal else ""}
      linalg.yield {"%masked" if causal else "%scaled"} : f32
    }} -> {scores}
    %2 = tensor.empty() : {scores}
    %p = linalg.softmax dimension(2) ins(%s : {scores}) outs(%2 : {scores}) -> {scores}
    %3 = tensor.empty() : {given}
    %4 = linalg.fill ins(%zero : f32) outs(%3 : {given}) -> {given}
    %o = linalg.batch_matmul ins(%p, %v : {scores}, {given}) outs(%4 : {given}) -> {given}"""
    if hints:
        body = f"""%r = "hint.region"() ({{
    {body}
    "hint.yield"(%o) : ({given}) -> ()
    }}) {{hints = {{{hints}}}}} : () -> {given}"""
    return f"""func.func @main(%q: {given}, %k: {given}, %v: {given}) -> {given} {{
    %zero = arith.constant 0.0 : f32
    %scale = arith.constant {SIZE**-0.5} : f32
    %low = arith.constant 0xFF800000 : f32
    {body}
    return %{"r" if hints else "o"} : {given}
}}"""


PROGRAMS = {
    "reference, unsliced": ("", False, "reference"),
    "our loops and the library, unsliced": ("", False, "-flash"),
    "64 slices, breadth-first": ('slice = "t=64", order = "bfs"', False, "-flash"),
    "64 slices, depth-first": ('slice = "t=64", order = "dfs"', False, "-flash"),
    "flash": ("", False, None),
    "flash, causal": ("", True, None),
}


def floor() -> Callable[[], None]:
    """The two products of every head by the library."""
    library = openblas()
    gemm = library.scipy_cblas_sgemm
    a, scores = np.ones((LENGTH, SIZE), np.float32), np.ones((LENGTH, LENGTH), np.float32)
    integer, number, pointer = ctypes.c_int, ctypes.c_float, ctypes.c_void_p

    def product(turned: int, n: int, k: int, left: Any, right: Any, into: Any) -> None:
        sizes = (integer(LENGTH), integer(n), integer(k))
        gemm(
            integer(101), integer(111), integer(turned), *sizes, number(1.0),
            pointer(left.ctypes.data), integer(k), pointer(right.ctypes.data),
            integer(right.shape[1]), number(0.0), pointer(into.ctypes.data), integer(n),
        )  # fmt: skip

    out = np.empty_like(a)

    def run() -> None:
        for _ in range(HEADS):
            product(112, LENGTH, SIZE, a, a, scores)
            product(111, SIZE, LENGTH, scores, a, out)

    return run


class Peer:
    """A package's attention in a process of its own, which runs when it is asked to."""

    def __init__(self, package: str, python: str | None) -> None:
        """python: an interpreter that has the package; None: this one."""
        self.package, self.process = package, None
        if python is None and importlib.util.find_spec(package) is None:
            print(f"no rows for {package}: it is not installed", file=sys.stderr)
            return
        sizes = [str(n) for n in (HEADS, LENGTH, SIZE)]
        command = [python or sys.executable, "-m", "benchmarks.peers.attention", package, *sizes]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        except OSError as error:
            print(f"no rows for {package}: {python}: {error.strerror}", file=sys.stderr)

    def seconds(self) -> dict[str, float]:
        """Of one run of everything; nothing where the process is not there, or has ended with what it said."""
        if self.process is None or self.process.poll() is not None:
            return {}
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.communicate(timeout=60)


@contextmanager
def one_core() -> Iterator[None]:
    """This process on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _seconds(action: Callable[[], Any]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def measured(repeat: int, peers: Sequence[Peer]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds of the floor, of each program and of each peer, and arena bytes of each program."""
    rng = np.random.default_rng(0)
    shape = (HEADS, LENGTH, SIZE)
    arrays = [aligned(4 * prod(shape)).view(np.float32).reshape(shape) for _ in range(3)]
    for array in arrays:
        array[...] = rng.standard_normal(shape)
    least, arena = {}, {}
    programs: dict[str, Program] = {}
    library = floor()

    def timed(name: str, seconds: float) -> None:
        least[name] = min(least.get(name, seconds), seconds)

    with one_core():
        for name, (hints, causal, kernels) in PROGRAMS.items():
            bundle = build(text(hints, causal), name=name, kernels=kernels)
            arena[name] = bundle.manifest.arena_bytes
            programs[name] = Program(bundle, LocalEngine())
        try:
            for turn in range(repeat + 1):
                timed("floor", _seconds(library))
                for name, program in programs.items():
                    if turn > 2 and name == "reference, unsliced":
                        continue  # two runs of that one are enough to wait for
                    executable = program.executable
                    seconds = _seconds(partial(executable.run, place(executable, arrays)))
                    if turn:
                        timed(name, seconds)
                for peer in peers:
                    for name, seconds in peer.seconds().items():
                        if turn:
                            timed(name, seconds)
        finally:
            for program in programs.values():
                program.close()
    return least, arena


def main(options: argparse.Namespace) -> None:
    """Print the table."""
    peers = [Peer(p, getattr(options, f"{p}_python", None)) for p in ("torch", "jax")]
    try:
        seconds, arena = measured(options.repeat, peers)
    finally:
        for peer in peers:
            peer.close()
    base = seconds["floor"]
    made = table(
        f"attention, {HEADS} x {LENGTH} x {SIZE} f32, one core", "", "ms", "/ floor", "MiB"
    )
    for name, value in seconds.items():
        mib = f"{arena[name] / MIB:,.2f}" if name in arena else "-"
        label = "the products alone, by the library" if name == "floor" else name
        made.add_row(label, f"{value * 1e3:,.1f}", f"{value / base:.2f}", mib)
    show(made)
