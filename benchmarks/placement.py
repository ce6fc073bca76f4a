"""Chosen plans beside those that people write: predicted and measured times, and what choosing takes.

    python -m benchmarks placement [--repeat N]

The examples of the repository at larger sizes, on 2 and 4 ranks: with the layouts that the examples state (Megatron's),
with rows over all ranks, with weights cut over all ranks too (as FSDP stores them), and chosen. All plans of a program
run by turns, and the fastest run of each counts. The prediction of a written plan is the optimum with its arguments and
results where they are said to lie. Then: how long dist-place takes for 1 to 48 layers, and for up to 65,536 ranks.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import meshweave as mw
from benchmarks.common import ROOT, milliseconds, show, table
from benchmarks.transformer_text import Size, transformer
from meshweave.dialects import context
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.layout import Mesh
from meshweave.pipeline import run_pipeline
from meshweave.transforms.base import set_mesh

FREE: dict[str, Any] = {"layouts": "auto"}


@dataclass(frozen=True)
class Program:
    """A function, its arguments, and plans by name: what `mw.jit` is told besides the mesh."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)


def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """Two layers, as in examples/native/mlp.py."""
    return mw.relu(x @ w1 + b1) @ w2 + b2


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention, as in examples/native/attention.py."""
    scores = mw.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    return mw.softmax(scores) @ v


def programs() -> list[Program]:
    """The programs with their plans."""
    sys.path.insert(0, str(ROOT / "examples/native"))
    import block as blocks  # the example

    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return 0.1 * rng.standard_normal(shape).astype(np.float32)

    rows, every, whole = "[dp, _]", "[dp*tp, _]", "[_, _]"
    layers = (drawn(1024, 512), drawn(512, 2048), drawn(2048), drawn(2048, 512), drawn(512))
    heads = mw.P("dp", "tp", None, None)
    batch = mw.P(("dp", "tp"), None, None, None)
    parameters = [blocks.random_block(rng, 256) for _ in range(2)]
    tokens = rng.integers(0, 1024, (8, 128)).astype(np.int32)
    whole_block = blocks.Block(*["[_]"] * 4, *[whole] * 4)
    cut_block = blocks.Block(*["[dp*tp]"] * 4, *[every] * 4)

    def gpt2l(tokens: Any, words: Any, places: Any, given: Any) -> Any:
        x = mw.take(words, tokens, axis=0) + places
        for each in given:
            x = blocks.apply(x, each)
        return x @ words.T

    def gpt(tokens: str, words: str, blocks_: Any, out: str) -> dict[str, Any]:
        return {"in_layouts": (tokens, words, whole, [blocks_] * 2), "out_layouts": out}

    return [
        Program("mlp", mlp, layers, {
            "Megatron": {"in_layouts": (rows, "[_, tp]", "[tp]", "[tp, _]", "[_]"), "out_layouts": rows},
            "rows": {"in_layouts": (every, whole, "[_]", whole, "[_]"), "out_layouts": every},
            "FSDP": {"in_layouts": (every, every, "[dp*tp]", every, "[dp*tp]"), "out_layouts": every},
        }),
        Program("attention", attention, tuple(drawn(4, 8, 256, 64) for _ in range(3)), {
            "heads": {"in_layouts": heads, "out_layouts": heads},
            "rows": {"in_layouts": batch, "out_layouts": batch},
        }),
        Program("gpt2l", gpt2l, (tokens, drawn(1024, 256), drawn(128, 256), parameters), {
            "Megatron": gpt(rows, whole, blocks.LAYOUTS, "[dp, _, tp]"),
            "rows": gpt(every, whole, whole_block, "[dp*tp, _, _]"),
            "FSDP": gpt(every, every, cut_block, "[dp*tp, _, _]"),
        }),
    ]  # fmt: skip


def predicted(program: Program, mesh: str, plan: dict[str, Any]) -> float:
    """Seconds that are predicted with these layouts."""
    placed = mw.jit(program.function, mesh=mesh, **{**plan, **FREE})
    found = placed.lower(*program.arguments).report().placement
    assert found is not None and found.gap == 0
    return found.seconds


def measured(program: Program, mesh: str, repeat: int) -> dict[str, float]:
    """The fastest run of each plan, all by turns, with the arguments laid out before."""
    plans = {**program.plans, "chosen": FREE}
    made = {n: mw.jit(program.function, mesh=mesh, **plan) for n, plan in plans.items()}
    runs = {}
    for name, function in made.items():
        compiled = function.lower(*program.arguments).compile()
        leaves = _leaves(program.arguments)
        arrays = [
            mw.Array.from_numpy(np.asarray(v), mesh=mesh, layout=port.layout)
            for v, port in zip(leaves, compiled.program.inputs)
        ]
        runs[name] = (compiled, arrays)
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(repeat + 1):
        for name, (compiled, arrays) in runs.items():
            began = time.perf_counter()
            compiled.call(arrays)
            if turn:
                best[name] = min(best[name], time.perf_counter() - began)
    for compiled, _ in runs.values():
        compiled.close()
    return best


def _leaves(arguments: Any) -> list[Any]:
    if isinstance(arguments, tuple | list):
        return [leaf for each in arguments for leaf in _leaves(each)]
    return [arguments]


def pass_seconds(text: str, mesh: str) -> tuple[float, float, float]:
    """Processor seconds of dist-place: the first time in a process, and again; and the gap."""
    found, gap = [], 0.0
    for _ in range(3):
        ctx = context(unregistered=True)
        with ctx, ir.Location.unknown():
            module = load_module(text, ctx, "transformer")
            run_pipeline(module, "hint-apply,outline-repeats,dist-donate")
            set_mesh(module, Mesh.parse(mesh))
            began = time.process_time()
            run_pipeline(module, "dist-place", verify=False)
            found.append(time.process_time() - began)
            gap = module.operation.attributes["dist.placement"]["gap"].value
    return found[0], min(found[1:]), gap


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    shown = table("plans", "program, mesh", "plan", "predicted", "measured")
    for program in programs():
        for mesh in ("dp=2, tp=1", "dp=2, tp=2"):
            seconds = measured(program, mesh, options.repeat)
            for name, taken in seconds.items():
                guess = predicted(program, mesh, program.plans.get(name, {}))
                row = f"{program.name} ({mesh})"
                shown.add_row(row, name, milliseconds(guess), milliseconds(taken))
    show(shown)
    shown = table("dist-place, a transformer", "layers", "mesh", "first", "again", "gap")
    for layers in (1, 12, 48):
        text = transformer(Size(layers, batch=4, seq=128, width=256, heads=8, ffn=1024))
        free = re.sub(r" \{sdy\.sharding = #sdy\.sharding<@mesh, \[[^\]]*\]>\}", "", text)
        for mesh in ("dp=2, tp=2", "dp=4, tp=2", "dp=256, tp=256")[: 3 if layers == 48 else 2]:
            first, again, gap = pass_seconds(free, mesh)
            shown.add_row(f"{layers}", mesh, milliseconds(first), milliseconds(again), f"{gap}")
    show(shown)
