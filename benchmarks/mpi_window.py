"""Collectives between processes of one host: through the shared window, and by MPI's own, in turn, in one run."""

import argparse

import numpy as np

from benchmarks.common import show, table
from meshweave.bundle import Bundle, Manifest, OpInfo, Port, slots
from meshweave.layout import Layout
from meshweave.lowering.cpu.collectives.objects import collectives_object, compile_text, runtime_of
from meshweave.runtime import engine

RANKS = (2, 4)
SMALL, SIZES = 1 << 10, (1 << 20, 16 << 20)  # bytes of the larger of a rank's two buffers
OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "permute")


def step_text(manifest: Manifest, symbol: str, number: int, repeat: int) -> str:
    """A step that makes one call `repeat` times, from the first input to the first output.

    A permute is between members 0 and 1.
    """
    at = slots(manifest)
    given = ", %number, %other, %other" if symbol == "mw_permute" else ", %number"
    types = "!llvm.ptr, i64, !llvm.ptr, !llvm.ptr" + ", i64" * given.count(",")
    return f"""module {{
llvm.func @{symbol}({types}) -> i32
llvm.func @step(%ctx: !llvm.ptr) -> i32 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %ok = llvm.mlir.constant(0 : i32) : i32
  %op = llvm.mlir.constant({1 << 16} : i32) : i32
  %repeat = llvm.mlir.constant({repeat} : i64) : i64
  %number = llvm.mlir.constant({number} : i64) : i64
  %member_at = llvm.getelementptr %ctx[{at.member(0)}] : (!llvm.ptr) -> !llvm.ptr, i64
  %member = llvm.load %member_at : !llvm.ptr -> i64
  %other = llvm.xor %member, %one : i64
  %src_at = llvm.getelementptr %ctx[{at.input(0)}] : (!llvm.ptr) -> !llvm.ptr, i64
  %dst_at = llvm.getelementptr %ctx[{at.output(0)}] : (!llvm.ptr) -> !llvm.ptr, i64
  %src = llvm.load %src_at : !llvm.ptr -> !llvm.ptr
  %dst = llvm.load %dst_at : !llvm.ptr -> !llvm.ptr
  llvm.br ^head(%zero : i64)
^head(%i: i64):
  %more = llvm.icmp "slt" %i, %repeat : i64
  llvm.cond_br %more, ^body, ^done
^body:
  %rc = llvm.call @{symbol}(%ctx, %zero, %src, %dst{given}) : ({types}) -> i32
  %fine = llvm.icmp "eq" %rc, %ok : i32
  %next = llvm.add %i, %one : i64
  llvm.cond_br %fine, ^head(%next : i64), ^failed
^failed:
  %code = llvm.or %rc, %op : i32
  llvm.return %code : i32
^done:
  llvm.return %ok : i32
}}
{manifest.constant}}}"""


def bundle(op: str, nbytes: int, ranks: int, repeat: int) -> Bundle:
    """A program of `repeat` equal collectives over all ranks; its larger buffer has `nbytes`."""
    count = nbytes // 4
    part = count // ranks
    src = part if op == "all_gather" else count
    dst = part if op == "reduce_scatter" else count
    ports = [
        (Port(name, "f32", (n,), (n,), str(Layout.replicated(1))),)
        for name, n in (("x", src), ("y", dst))
    ]
    reduces = op in ("all_reduce", "reduce_scatter")
    symbol = f"mw_{op}_sum_f32" if reduces else f"mw_{op}"
    number = dst if reduces else (nbytes if op == "permute" else part * 4)
    manifest = Manifest(
        mesh=f"x={ranks}", engine="mpi", inputs=ports[0], outputs=ports[1], arena_bytes=0,
        groups=(("x",),), ops=(OpInfo(1, op, "benchmark:1:1"),), libraries=runtime_of("mpi").libraries,
    )  # fmt: skip
    step = compile_text(step_text(manifest, symbol, number, repeat), [symbol])
    return Bundle(manifest, (step, collectives_object("mpi", [symbol])))


def repeats(nbytes: int) -> int:
    """Calls within one run: enough that starting the run does not show."""
    return max(8, min(2000, (32 << 20) // nbytes))


def seconds(
    op: str, nbytes: int, ranks: int, engines: dict[str, object], runs: int
) -> dict[str, float]:
    """Least seconds per call on each engine, the engines taking turns."""
    repeat = repeats(nbytes)
    program = bundle(op, nbytes, ranks, repeat)
    inputs = [[np.ones(program.manifest.inputs[0].local_shape, "f4")] for _ in range(ranks)]
    loaded = {name: started.load(program) for name, started in engines.items()}
    calls = {name: executable.bind(inputs) for name, executable in loaded.items()}
    found = dict.fromkeys(engines, float("inf"))
    for _ in range(runs + 1):
        for name, call in calls.items():
            call()
            found[name] = min(found[name], max(call.seconds) / repeat)
    for executable in loaded.values():
        executable.close()
    return found


def main(options: argparse.Namespace) -> None:
    """Print the table."""
    made = table(
        "collectives between processes of one host (us per call)",
        "op", "ranks", "bytes", "window", "MPI's own", "times faster",
    )  # fmt: skip
    for ranks in RANKS:
        engines = {name: engine("mpi", window=name == "window") for name in ("window", "MPI")}
        for op in OPS:
            for nbytes in (SMALL, *SIZES):
                found = seconds(op, nbytes, ranks, engines, options.repeat)
                mine, theirs = found["window"] * 1e6, found["MPI"] * 1e6
                made.add_row(
                    op, str(ranks), f"{nbytes:,}", f"{mine:,.1f}", f"{theirs:,.1f}", f"{theirs / mine:.1f}"
                )  # fmt: skip
        for started in engines.values():
            started.close()
    show(made)
