"""Twelve programs at three sizes, and the plans that people write for them.

A plan is written for axes `dp` and `tp`: Megatron's, rows over all ranks (data parallelism), weights cut over all ranks
too (FSDP), dims of weights over both axes (as guides to JAX write them), and for each program what suits its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import meshweave as mw
from benchmarks.placing import models
from benchmarks.placing.models import mapped, near_square, weights

SMALL, HERE, LARGE = 0, 1, 2
"""Sizes: for tests, for measurements on this machine, and for thousands of ranks."""

BOTH, DP, TP = "both", "dp", "tp"
"""Over which axes of the mesh a plan puts its ranks."""


@dataclass(frozen=True)
class Plan:
    """Layouts of the arguments and results, and the axes that have the ranks."""

    inputs: Any
    outputs: Any
    axes: str = BOTH

    def mesh(self, ranks: int) -> str:
        """The mesh of so many ranks."""
        dp, tp = {BOTH: near_square(ranks), DP: (ranks, 1), TP: (1, ranks)}[self.axes]
        return f"dp={dp}, tp={tp}"


@dataclass(frozen=True)
class Program:
    """A function, the shapes of its arguments (integers are below `below`), and plans by name."""

    name: str
    function: Callable[..., Any]
    kinds: tuple[Any, ...]
    plans: dict[str, Plan]
    below: int = 1

    def drawn(self, seed: int = 0) -> tuple[Any, ...]:
        """Arguments of these shapes."""
        rng = np.random.default_rng(seed)

        def value(kind: mw.ShapeDtype) -> Any:
            if kind.dtype == "i32":
                return rng.integers(0, self.below, kind.shape).astype(np.int32)
            return (0.1 * rng.random(kind.shape) + 0.01).astype(np.float32)

        return tuple(mapped(value, each) for each in self.kinds)


def f32(*shape: int) -> mw.ShapeDtype:
    """An array of floats."""
    return mw.ShapeDtype(shape, "f32")


def i32(*shape: int) -> mw.ShapeDtype:
    """An array of integers."""
    return mw.ShapeDtype(shape, "i32")


def laid(tree: Any, text: Callable[[int], str]) -> Any:
    """The layout that `text` gives to a number of dims, for each array of a tree."""
    return mapped(lambda kind: text(len(kind.shape)), tree)


def whole(ndim: int) -> str:
    """On each rank whole."""
    return "[" + ", ".join(["_"] * ndim) + "]"


def first(axes: str) -> Callable[[int], str]:
    """The first dim over axes."""
    return lambda ndim: "[" + ", ".join([axes, *["_"] * (ndim - 1)]) + "]" if ndim else "[]"


def crossed(ndim: int) -> str:
    """Two dims over both axes, one over the second."""
    return {1: "[_]", 2: "[dp, tp]"}.get(ndim, whole(ndim))


EVERY = "dp*tp"
MEGATRON = {
    "g1": "[_]", "g2": "[_]", "qkv": "[_, tp]", "out": "[tp, _]", "up": "[_, tp]", "down": "[tp, _]",
}  # fmt: skip
TURNED = MEGATRON | {"qkv": "[dp, tp]", "out": "[tp, dp]", "up": "[dp, tp]", "down": "[tp, dp]"}
"""Megatron's with the other dim over `dp`: FSDP and tensor parallelism in one, as guides to JAX write it."""


def stack(width: int, layers: int) -> list[Any]:
    """The parameters of some blocks."""
    return [{k: f32(*shape) for k, shape in weights(width).items()} for _ in range(layers)]


def programs(size: int = HERE) -> list[Program]:
    """All twelve."""
    return [make(size) for make in MAKERS]


def _mlp(size: int) -> Program:
    n, d, h = ((24, 16, 32), (512, 512, 2048), (65536, 8192, 32768))[size]
    kinds = (f32(n, d), f32(d, h), f32(h), f32(h, d), f32(d))
    rows = first(EVERY)
    free = laid(kinds, whole)
    return Program("mlp", models.mlp, kinds, {
        "Megatron": Plan(("[dp, _]", "[_, tp]", "[tp]", "[tp, _]", "[_]"), "[dp, _]"),
        "Megatron, tp": Plan(("[_, _]", "[_, tp]", "[tp]", "[tp, _]", "[_]"), "[_, _]", TP),
        "rows": Plan((rows(2), *free[1:]), rows(2), DP),
        "FSDP": Plan(laid(kinds, rows), rows(2), DP),
        "2D": Plan(("[dp, tp]", "[dp, tp]", "[tp]", "[tp, dp]", "[_]"), "[dp, tp]"),
        "columns": Plan(("[_, tp]", "[tp, _]", "[_]", "[_, tp]", "[tp]"), "[_, tp]", TP),
    })  # fmt: skip


def _attention(size: int) -> Program:
    b, h, n, d = ((2, 4, 16, 8), (4, 8, 256, 64), (512, 64, 2048, 128))[size]
    kinds = (f32(b, h, n, d),) * 3
    return Program("attention", models.attention, kinds, {
        "heads": Plan(("[dp, tp, _, _]",) * 3, "[dp, tp, _, _]"),
        "heads alone": Plan(("[_, tp, _, _]",) * 3, "[_, tp, _, _]", TP),
        "rows": Plan(("[dp*tp, _, _, _]",) * 3, "[dp*tp, _, _, _]", DP),
        "places": Plan(("[_, _, tp, _]",) * 3, "[_, _, tp, _]", TP),
        "queries": Plan(("[_, _, tp, _]", *["[_, _, _, _]"] * 2), "[_, _, tp, _]", TP),
        "width": Plan(("[_, _, _, tp]",) * 3, "[_, _, _, tp]", TP),
    })  # fmt: skip


def _blocks(
    name: str, function: Any, kinds: tuple[Any, ...], at: int, x: int, out: int, below: int = 1
) -> Program:
    """A program of transformer blocks. at: which argument they are; x, out: dims of the first argument, the result."""

    def plan(given: str, weights: Any, others: Callable[[int], str], axes: str = BOTH) -> Plan:
        rest = laid(kinds, others)
        inputs = [first(given)(x), *rest[1:]]
        inputs[at] = [weights] * len(kinds[at]) if isinstance(kinds[at], list) else weights
        return Plan(tuple(inputs), first(given)(out), axes)

    one = kinds[at][0] if isinstance(kinds[at], list) else kinds[at]
    return Program(name, function, kinds, {
        "Megatron": plan("dp", MEGATRON, whole),
        "Megatron, tp": plan("_", MEGATRON, whole, TP),
        "rows": plan(EVERY, laid(one, whole), whole, DP),
        "FSDP": plan(EVERY, laid(one, first(EVERY)), first(EVERY), DP),
        "FSDP and tp": plan("dp", TURNED, whole),
        "whole": plan("_", laid(one, whole), whole, TP),
    }, below)  # fmt: skip


def _block(size: int) -> Program:
    b, n, d = ((4, 8, 16), (4, 128, 256), (256, 2048, 8192))[size]
    return _blocks("block", models.block, (f32(b, n, d), stack(d, 1)[0]), 1, 3, 3)


def _gpt(name: str, size: int, layers: int, sizes: tuple[tuple[int, ...], ...]) -> Program:
    b, n, d, words = sizes[size]
    kinds = (i32(b, n), f32(words, d), f32(n, d), stack(d, layers))
    return _blocks(name, models.gpt, kinds, 3, 2, 3, words)


def _gpt2l(size: int) -> Program:
    return _gpt("gpt2l", size, 2, ((4, 8, 16, 32), (4, 128, 256, 1024), (256, 2048, 4096, 32768)))


def _gpt12(size: int) -> Program:
    sizes = ((4, 8, 16, 32), (4, 64, 256, 1024), (4096, 1024, 8192, 32768))
    return _gpt("gpt12", size, (3, 12, 12)[size], sizes)


def _decode(size: int) -> Program:
    b, n, d, words = ((4, 8, 16, 32), (8, 256, 256, 1024), (4096, 4096, 8192, 32768))[size]
    layers = (2, 12, 12)[size]
    caches = [f32(2, b, models.HEADS, n, d // models.HEADS)] * layers
    kinds = (i32(b), f32(words, d), stack(d, layers), caches)

    def plan(given: str, one: Any, words: str, cache: str, axes: str = BOTH) -> Plan:
        made = "[_, dp, tp, _]" if axes == BOTH else cache.replace(", _, _]", ", _]")
        inputs = (f"[{given}]", words, [one] * layers, [cache] * layers)
        return Plan(inputs, (f"[{given}, _]", [made] * layers), axes)

    shapes = kinds[2][0]
    return Program("decode", models.decode, kinds, {
        "Megatron": plan("dp", MEGATRON, "[_, _]", "[_, dp, tp, _, _]"),
        "Megatron, tp": plan("_", MEGATRON, "[_, _]", "[_, _, tp, _, _]", TP),
        "Megatron, words": plan("_", MEGATRON, "[tp, _]", "[_, _, tp, _, _]", TP),
        "rows": plan("dp", laid(shapes, whole), "[_, _]", "[_, dp, _, _, _]", DP),
        "FSDP": plan("dp", laid(shapes, first("dp")), "[dp, _]", "[_, dp, _, _, _]", DP),
        "whole": plan("_", laid(shapes, whole), "[_, _]", "[_, _, _, _, _]", TP),
    }, words)  # fmt: skip


def _train(size: int) -> Program:
    return training(size, (1, 2, 12)[size])


def training(size: int, layers: int) -> Program:
    """A training step of so many layers."""
    sizes = ((4, 8, 16, 32), (4, 64, 256, 1024), (1024, 1024, 8192, 32768))
    b, n, d, words = sizes[size]
    model = [f32(words, d), f32(n, d), stack(d, layers)]
    kinds = (model, model, model, i32(b, n), i32(b, n))

    def plan(rows: str, p: Any, axes: str = BOTH, state: Any = None) -> Plan:
        state = state or p
        return Plan(
            (p, state, state, f"[{rows}, _]", f"[{rows}, _]"), (p, state, state, "[]"), axes
        )

    def placed(one: Any, words: str, places: str) -> Any:
        return [words, places, [one] * len(model[2])]

    every, cut = laid(model, whole), laid(model, first(EVERY))
    tensors = placed(MEGATRON, "[_, _]", "[_, _]")
    return Program("train", models.train, kinds, {
        "Megatron": plan("dp", tensors),
        "Megatron, tp": plan("_", tensors, TP),
        "rows": plan(EVERY, every, DP),
        "FSDP": plan(EVERY, cut, DP),
        "ZeRO-1": plan(EVERY, every, DP, cut),
        "FSDP and tp": plan("dp", placed(TURNED, "[tp, dp]", "[_, dp]")),
    }, words)  # fmt: skip


def _vit(size: int) -> Program:
    b, side, d, layers = ((4, 8, 16, 1), (8, 32, 192, 4), (4096, 128, 4096, 12))[size]
    count = (side // models.PATCH) ** 2
    deep = 3 * models.PATCH**2
    kinds = (f32(b, side, side, 3), f32(deep, d), f32(count, d), stack(d, layers), f32(d, 1024))
    return _blocks("vit", models.vit, kinds, 3, 4, 2)


def _resnet(size: int) -> Program:
    b, side, c = ((4, 8, 4), (4, 32, 16), (4096, 128, 64))[size]
    channels = [c, c, 2 * c, 2 * c, 4 * c, 4 * c, 8 * c, 8 * c]
    stages = []
    for before, after in zip([c, *channels], channels):
        p = {"one": f32(3, 3, before, after), "two": f32(3, 3, after, after)}
        stages.append(p | ({"past": f32(1, 1, before, after)} if before != after else {}))
    kinds = (f32(b, side, side, 3), f32(3, 3, 3, c), stages, f32(8 * c, 1000))

    def features(ndim: int) -> str:
        return "[" + ", ".join([*["_"] * (ndim - 1), "tp"]) + "]"

    free = laid(kinds, whole)
    return Program("resnet", models.resnet, kinds, {
        "rows": Plan(("[dp*tp, _, _, _]", *free[1:]), "[dp*tp, _]", DP),
        "FSDP": Plan(("[dp*tp, _, _, _]", *laid(kinds[1:], features)), "[dp*tp, _]", DP),
        "features": Plan((free[0], *laid(kinds[1:], features)), "[_, tp]", TP),
        "rows and features": Plan(("[dp, _, _, _]", *laid(kinds[1:], features)), "[dp, tp]"),
        "height": Plan(("[_, tp, _, _]", *free[1:]), "[_, _]", TP),
        "whole": Plan(free, "[_, _]", TP),
    })  # fmt: skip


def _moe(size: int) -> Program:
    g, t, d, h, e = ((4, 16, 8, 16, 4), (4, 128, 128, 512, 8), (4096, 1024, 4096, 16384, 128))[size]
    kinds = (f32(g, t, d), f32(d, e), f32(e, d, h), f32(e, h, d))
    rows = ("[dp*tp, _, _]", "[_, _]")
    return Program("moe", models.moe, kinds, {
        "experts": Plan((*rows, *["[dp*tp, _, _]"] * 2), rows[0], DP),
        "rows": Plan((*rows, *["[_, _, _]"] * 2), rows[0], DP),
        "inner": Plan(("[_, _, _]", "[_, _]", "[_, _, tp]", "[_, tp, _]"), "[_, _, _]", TP),
        "experts alone": Plan(("[_, _, _]", "[_, _]", *["[tp, _, _]"] * 2), "[_, _, _]", TP),
        "rows and inner": Plan(("[dp, _, _]", "[_, _]", "[_, _, tp]", "[_, tp, _]"), "[dp, _, _]"),
        "FSDP": Plan((*rows, *["[_, dp*tp, _]"] * 2), rows[0], DP),
    })  # fmt: skip


def _jacobi(size: int) -> Program:
    n = (32, 512, 65536)[size]
    layouts = {
        "rows": ("[dp*tp, _]", DP), "columns": ("[_, tp]", TP), "both": ("[dp, tp]", BOTH),
        "whole": ("[_, _]", TP), "cyclic": ("[_*tp*4, _]", TP),
    }  # fmt: skip
    plans = {name: Plan((text,), text, axes) for name, (text, axes) in layouts.items()}
    return Program("jacobi", models.jacobi, (f32(n, n),), plans)


def _pagerank(size: int) -> Program:
    n = (32, 1024, 65536)[size]
    layouts = {
        "cyclic rows": ("[_*tp, _]", "[_*tp]", TP), "rows": ("[dp, _]", "[dp]", DP),
        "columns": ("[_, tp]", "[_]", TP), "both": ("[dp, tp]", "[dp]", BOTH),
        "whole": ("[_, _]", "[_]", TP),
    }  # fmt: skip
    plans = {name: Plan((text,), out, axes) for name, (text, out, axes) in layouts.items()}
    return Program("pagerank", models.pagerank, (f32(n, n),), plans)


MAKERS = (
    _mlp, _attention, _block, _gpt2l, _gpt12, _decode, _train, _vit, _resnet, _moe, _jacobi, _pagerank,
)  # fmt: skip
