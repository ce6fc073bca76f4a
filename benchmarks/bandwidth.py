"""How fast collectives move bytes, beside memcpy on as many threads as ranks.

    python -m benchmarks bandwidth [--torch-python PYTHON]

Two ranks, a matrix of 8192 x 8192 f32 (256 MiB). Counted is what has to be read and written, as for
memcpy, which reads and writes each byte once: of all_gather, all_to_all and exchange every element of
a rank's result once each; of reduce_scatter an element of each rank's operand read, and one of the
result written; of all_reduce as many elements read as the result has (every rank reduces its part),
and all of the result written. Packing counts for nothing, so who packs is slower. GB are 10^9 bytes.

Each program and memcpy run by turns, on the same number of threads; the fastest run of either counts.
`mpi` goes through the shared window of the ranks of one host, `mpi, library` by the MPI library. Torch
with gloo runs the same moves, packing included, in two processes with one thread each.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import ROOT, show, table
from meshweave.bundle import Bundle
from meshweave.dialects import context
from meshweave.errors import MeshweaveError
from meshweave.ir.bindings import ir
from meshweave.layout import Layout, Mesh
from meshweave.lowering import compile_local
from meshweave.runtime.local.engine import LocalEngine
from meshweave.runtime.mpi.engine import MpiEngine

N = 8192  # of the whole matrix, N x N of f32
RANKS = 2
MESH = Mesh(x=RANKS)


@dataclass(frozen=True)
class Move:
    """One collective: its op with attributes, and the shapes on a rank. read: elements of the
    operands that a rank has to read for one of its result.
    """

    name: str
    op: str
    given: tuple[int, int]
    made: tuple[int, int]
    read: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes read and written by all ranks."""
        return 4 * RANKS * math.prod(self.made) * (1 + self.read)


def exchange(source: str, target: str) -> Move:
    """The exchange between two layouts of the matrix."""
    ends = [Layout.parse(text) for text in (source, target)]
    shapes = [end.allocation_shape(MESH, (N, N)) for end in ends]
    layouts = [f'#dist.layout<"{end}">' for end in ends]
    op = (
        f'exchange"(%a) {{axes = ["x"], source = {layouts[0]}, target = {layouts[1]}, '
        f"shape = array<i64: {N}, {N}>}}"
    )
    (a, b), (c, d) = shapes
    return Move(f"exchange {source} to {target}", op, (a, b), (c, d))


def moves() -> list[Move]:
    """What is measured."""
    half, x = N // RANKS, 'axes = ["x"]'
    return [
        Move("all_gather, rows", f'all_gather"(%a) {{{x}, dim = 0}}', (half // 2, N), (half, N)),
        Move("all_gather, columns", f'all_gather"(%a) {{{x}, dim = 1}}', (N, half // 2), (N, half)),
        Move(
            "all_to_all [x, _] to [_, x]",
            f'all_to_all"(%a) {{{x}, split_dim = 1, concat_dim = 0}}',
            (half, N), (N, half),
        ),
        Move(
            "all_to_all [_, x] to [x, _]",
            f'all_to_all"(%a) {{{x}, split_dim = 0, concat_dim = 1}}',
            (N, half), (half, N),
        ),
        Move(
            "reduce_scatter, rows", f'reduce_scatter"(%a) {{{x}, dim = 0, kind = "sum"}}',
            (half, N), (half // RANKS, N), RANKS,
        ),
        Move(
            "reduce_scatter, columns", f'reduce_scatter"(%a) {{{x}, dim = 1, kind = "sum"}}',
            (N, half), (N, half // RANKS), RANKS,
        ),
        Move("all_reduce", f'all_reduce"(%a) {{{x}, kind = "sum"}}', (half, N), (half, N)),
        exchange("[x, _]", "[_, x]"),
        exchange("[x, _]", "[_*x, _]"),
        exchange("[x, _]", "[_, x] order(1, 0)"),
    ]  # fmt: skip


def compiled(move: Move, engine: str) -> Bundle:
    """The program of one collective."""
    given, made = (f"tensor<{rows}x{columns}xf32>" for rows, columns in (move.given, move.made))
    text = (
        f'"dist.mesh"() {{sym_name = "mesh", axes = "{MESH}"}} : () -> ()\n'
        f"func.func @main(%a: {given}) -> {made} {{\n"
        f'  %0 = "dist.{move.op} : ({given}) -> {made}\n  return %0 : {made}\n}}\n'
    )
    with context(), ir.Location.unknown():
        return compile_local(ir.Module.parse(text), engine)


class Copies:
    """memcpy of half the matrix on each of RANKS threads."""

    def __init__(self) -> None:
        self._copy = ctypes.CDLL(None).memcpy
        self._copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        count = N * N // RANKS
        self._pairs = [[np.ones(count, np.float32) for _ in range(2)] for _ in range(RANKS)]
        self.nbytes = 2 * 4 * count * RANKS

    def __call__(self) -> None:
        """Copy; returns when all have."""
        threads = [threading.Thread(target=self._one, args=pair) for pair in self._pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, to: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        self._copy(to.ctypes.data, source.ctypes.data, source.nbytes)


def seconds(action: Callable[[], Any]) -> float:
    """What one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def rate(move: Move, engine: Any, copies: Copies, repeat: int) -> tuple[float, float]:
    """Bytes per second of a collective on an engine, and of memcpy in the same run."""
    bundle = compiled(move, engine.name)
    with closing(engine.load(bundle)) as executable:
        call = executable.bind([[np.ones(move.given, np.float32)] for _ in range(RANKS)])
        call()
        copies()
        times = [(seconds(call), seconds(copies)) for _ in range(repeat)]
    ours, theirs = (min(column) for column in zip(*times))
    return move.nbytes / ours, copies.nbytes / theirs


def engines() -> Iterator[tuple[str, Any]]:
    """Those to measure, each closed after use."""
    with closing(LocalEngine()) as local:
        yield "local", local
    for name, window in (("mpi", True), ("mpi, library", False)):
        with closing(MpiEngine(window=window)) as mpi:
            yield name, mpi


def torch_rates(python: str | None, repeat: int) -> dict[str, float] | str:
    """Seconds of each move in torch with gloo, by name; or why there are none."""
    if python is None:
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        python = sys.executable
    command = [python, "-m", "benchmarks.peers.gloo", str(N), str(RANKS), str(repeat)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return f"torch does not run: {lines[-1]}"
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(options: argparse.Namespace) -> None:
    """Measure, and print GB/s and in parentheses the ratio to memcpy."""
    copies, repeat = Copies(), max(options.repeat, 5)
    columns: dict[str, dict[str, str]] = {}
    for name, engine in engines():
        columns[name] = {}
        for move in moves():
            try:
                ours, theirs = rate(move, engine, copies, repeat)
                columns[name][move.name] = f"{ours / 1e9:.1f} ({ours / theirs:.2f})"
            except MeshweaveError as error:
                columns[name][move.name] = "-"
                print(f"{move.name} on {name}: {error}", file=sys.stderr)
    torch = torch_rates(getattr(options, "torch_python", None), repeat)
    if isinstance(torch, str):
        print(f"no column for torch: {torch}")
    else:
        theirs = copies.nbytes / min(seconds(copies) for _ in range(repeat))
        columns["torch gloo"] = {
            move.name: f"{move.nbytes / torch[move.name] / 1e9:.1f} "
            f"({move.nbytes / torch[move.name] / theirs:.2f})"
            for move in moves() if move.name in torch
        }  # fmt: skip
    title = f"GB/s read and written, {RANKS} ranks, 256 MiB (ratio to memcpy on {RANKS} threads)"
    made = table(title, "move", *columns)
    for move in moves():
        made.add_row(
            move.name.replace("[", "\\["),
            *(column.get(move.name, "-") for column in columns.values()),
        )
    show(made)
