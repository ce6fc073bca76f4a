"""Compile time: Python passes on 10,000 ops, propagation of 48 layers beside Shardy, the whole compile beside XLA."""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import loops
from benchmarks.common import ROOT, jax_peer, jax_training, milliseconds, show, table
from benchmarks.transformer_text import Size, transformer
from meshweave.api.program import build
from meshweave.api.verify import certificate
from meshweave.dialects import context
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.ir.pipeline_text import GLOBAL_PASSES
from meshweave.pipeline import all_passes, run_pipeline
from meshweave.verification.answer import Answer
from meshweave.verification.buffers.check import Reference

DEEP = Size(48, batch=4, seq=128, width=256, heads=8, ffn=1024)
CHAIN = 10_000


def chain(ops: int) -> str:
    """A program of `ops` ops in a row on a 2x2 mesh: products, sums and transposes, resharded now and then."""
    t = "tensor<64x64xf32>"
    lines = [f"%e = tensor.empty() : {t}"]
    last = "%a"
    for i in range(ops):
        new = f"%v{i}"
        if i % 3 == 0:
            lines.append(f"{new} = linalg.matmul ins({last}, %b : {t}, {t}) outs(%z : {t}) -> {t}")
        elif i % 3 == 1:
            lines.append(f"{new} = linalg.add ins({last}, %a : {t}, {t}) outs(%e : {t}) -> {t}")
        else:
            lines.append(
                f"{new} = linalg.transpose ins({last} : {t}) outs(%e : {t}) permutation = [1, 0]"
            )
        last = new
    body = "\n  ".join(lines)
    return (
        '"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()\n'
        f'func.func public @main(%a: {t} {{dist.layout = #dist.layout<"[x, _]">}}, '
        f'%b: {t} {{dist.layout = #dist.layout<"[_, y]">}}) -> {t} {{\n'
        f"  %c0 = arith.constant 0.0 : f32\n  %ze = tensor.empty() : {t}\n"
        f"  %z = linalg.fill ins(%c0 : f32) outs(%ze : {t}) -> {t}\n  {body}\n  return {last} : {t}\n}}\n"
    )


def pass_seconds(text: str) -> dict[str, float]:
    """Seconds of each of our passes (and of reading) on a program."""
    seconds: dict[str, float] = {}
    ctx = context(unregistered=True)
    with ctx:
        began = time.perf_counter()
        module = load_module(text, ctx)
        seconds["read"] = time.perf_counter() - began
        whole = load_module(text, ctx)
        for name in GLOBAL_PASSES:
            # What repeats is outlined in a copy: the other passes are shown every op.
            target = module if name == "outline-repeats" else whole
            began = time.perf_counter()
            run_pipeline(target, name, verify=False)
            if name in all_passes():
                seconds[name] = time.perf_counter() - began
    return seconds


class Stopwatch:
    """Add up the processor seconds of functions that are wrapped."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()  # the check of buffers runs beside LLVM
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - began

        return timed


def check_seconds(text: str) -> tuple[float, float, float]:
    """Processor seconds of a compile, of the check of the program of one rank, and of that of its buffers."""
    tensors, buffers = Stopwatch(), Stopwatch()
    of = classmethod(buffers.around(vars(Reference)["of"].__func__))
    later = Reference.later

    def timed(reference: Reference, module: ir.Module) -> Callable[[], Answer]:
        return buffers.around(buffers.around(later)(reference, module))

    with (
        patch("meshweave.api.verify.certificate", tensors.around(certificate)),
        patch.object(Reference, "of", of),
        patch.object(Reference, "later", timed),
    ):
        start = time.process_time()
        build(text)
        return time.process_time() - start, tensors.seconds, buffers.seconds


def by_turns(text: str, runs: int) -> tuple[float, float, float]:
    """Seconds of a compile with the checks and of one without, the least of each, and the median ratio of both.

    They go by turns, and each first in half of the pairs: what else the machine does falls on both.
    """
    pairs = []
    for run in range(runs):
        seconds = {}
        for verify in (run % 2 == 0, run % 2 == 1):
            began = time.perf_counter()
            build(text, verify=verify)
            seconds[verify] = time.perf_counter() - began
        pairs.append((seconds[True], seconds[False]))
    checked, plain = map(min, zip(*pairs, strict=True))
    return checked, plain, median(one / other for one, other in pairs)


def checks(options: argparse.Namespace) -> None:
    """Print what the check takes: processor seconds, and what a compile takes longer with it than without."""
    examples = {n: (ROOT / "examples" / n / f"{n}.mlir").read_text() for n in ("block", "gpt2l")}
    small = ",4,64,64,4,128"
    texts: dict[str, str | None] = {
        **examples,
        **{f"{n} layers": transformer(replace(DEEP, layers=n)) for n in (12, 48)},
        **{
            f"training, {n} layers": jax_training(f"{n}{small}", options.jax_python)
            for n in (24, 100)
        },
    } | loops.texts()
    made = table(
        "the check of the program of one rank",
        *("program", "compile", "check", "of buffers", "both, of the rest"),
        *("with", "without", "longer"),
    )
    check_seconds(examples["block"])  # what a first compile starts is not counted
    for name, text in texts.items():
        if text is None:
            continue
        runs = [check_seconds(text) for _ in range(2 if "100 layers" in name else 5)]
        whole, check, buffers = [min(column) for column in zip(*runs, strict=True)]
        share = f"{100 * (check + buffers) / (whole - check - buffers):.1f} %"
        turns = 3 if "100 layers" in name else max(15, min(60, int(3 / whole)))
        checked, plain, ratio = by_turns(text, turns)
        made.add_row(
            name, *map(milliseconds, (whole, check, buffers)), share,
            *map(milliseconds, (checked, plain)), f"{100 * (ratio - 1):.1f} %",
        )  # fmt: skip
    show(made)


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    build(chain(3))  # what a first compile starts is not counted
    text = transformer(DEEP)
    began = time.perf_counter()
    build(text)
    whole = time.perf_counter() - began
    made = table(f"our passes on {CHAIN:,} ops", "pass", "time")
    for name, seconds in pass_seconds(chain(CHAIN)).items():
        made.add_row(name, milliseconds(seconds))
    show(made)
    size = f"{DEEP.layers},{DEEP.batch},{DEEP.seq},{DEEP.width},{DEEP.heads},{DEEP.ffn}"
    runs = [pass_seconds(text) for _ in range(3)]
    peer = jax_peer("transformer", "--size", size, "--no-run", python=options.jax_python) or {}
    made = table(
        f"a {DEEP.layers}-layer transformer, {text.count('stablehlo.'):,} StableHLO ops, for 4 ranks",
        "what", "meshweave", "JAX",
    )  # fmt: skip
    propagate = min(r["dist-propagate"] for r in runs)
    made.add_row(
        "propagation (JAX: Shardy)", milliseconds(propagate), milliseconds(peer.get("propagate"))
    )
    made.add_row(
        "from StableHLO to machine code", milliseconds(whole), milliseconds(peer.get("compile"))
    )
    theirs = peer["lower"] + peer["compile"] if peer else None
    made.add_row("from the Python function (trace, lower, compile)", "-", milliseconds(theirs))
    show(made)
    checks(options)
