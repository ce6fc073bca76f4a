"""Whole programs and those of a rank, as functions are traced: steps of training, updates, random bits, open sizes."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

import meshweave as mw
import meshweave.pipeline
from meshweave import cache
from meshweave.ir.bindings import ir

TWO = "dp=2, tp=2"
ROWS = {"mesh": "x=2", "in_layouts": ("[x, _]",)}


def loss(w: Any, x: Any, y: Any) -> Any:
    return mw.mean((mw.tanh(x @ w["up"]) @ w["down"] - y) ** 2)


def labelled(w: Any, x: Any, labels: Any) -> Any:
    """Cross entropy, as it is written out."""
    scores = x @ w
    scores = scores - mw.max(scores, axis=1, keepdims=True)
    logs = scores - mw.log(mw.sum(mw.exp(scores), axis=1, keepdims=True))
    return -mw.mean(mw.take_along_axis(logs, labels[:, None], axis=1))


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T
    shares = mw.exp(scores - mw.max(scores, axis=1, keepdims=True))
    return mw.sum((shares / mw.sum(shares, axis=1, keepdims=True)) @ v)


def descent(w: Any, x: Any, y: Any) -> Any:
    value, slopes = mw.value_and_grad(loss)(w, x, y)
    return {name: w[name] - 0.1 * slopes[name] for name in w}, value


def layers(w: Any, x: Any) -> Any:
    return mw.sum(mw.scan(lambda s, a: (mw.tanh(s @ a), mw.sum(s)), x, w)[0])


def smoothed(u: Any) -> Any:
    for _ in range(2):
        inner = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u = u.at[1:-1, 1:-1].set(inner * 0.25)
    return u


def ones(*shape: int, dtype: str = "f4") -> Any:
    return np.ones(shape, dtype)


Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
Cases = dict[str, Case]


def cases() -> Cases:
    """Functions, their arguments, and how they are compiled."""
    w = {"up": ones(6, 8), "down": ones(8, 4)}
    cut = {"up": "[_, tp]", "down": "[tp, _]"}
    batch = {"mesh": TWO, "in_layouts": (cut, "[dp, _]", "[dp, _]")}
    rows, grid = {**ROWS, "out_layouts": "[x, _]"}, {"mesh": "x=2, y=2"}
    n = mw.Dim("n", max=8)
    return {
        "step": (descent, (w, ones(6, 6), ones(6, 4)), {**batch, "donate": (0,)}),
        "step, uneven": (
            descent, (w, ones(5, 6), ones(5, 4)), {"mesh": "x=3", "in_layouts": (None, "[x, _]", "[x, _]")},
        ),
        "step, placed": (descent, (w, ones(8, 6), ones(8, 4)), {"mesh": TWO, "layouts": "auto"}),
        "labels": (
            mw.value_and_grad(labelled), (ones(6, 5), ones(8, 6), ones(8, dtype="i4")),
            {"mesh": "dp=2", "in_layouts": (None, "[dp, _]", "[dp]")},
        ),
        "attention": (
            mw.grad(attention), (ones(6, 4), ones(8, 4), ones(8, 4)),
            {"mesh": "x=2", "in_layouts": ("[_, _]", "[x, _]", "[x, _]")},
        ),
        "layers": (
            mw.grad(layers), (ones(3, 4, 4), ones(6, 4)),
            {"mesh": TWO, "in_layouts": ("[_, _, tp]", "[dp, _]")},
        ),
        "updates": (smoothed, (ones(8, 9),), {**grid, "in_layouts": ("[x, y]",), "out_layouts": "[x, y]"}),
        "updated row": (lambda a, b: a.at[2].add(b), (ones(6, 5), ones(5)), {**rows, "in_layouts": ("[x, _]", None)}),
        "updated rows": (
            lambda a, k, b: a.at[k].add(b), (ones(6, 5), ones(4, dtype="i4"), ones(4, 5)),
            {**rows, "in_layouts": ("[x, _]", None, "[x, _]")},
        ),
        "updated columns": (
            lambda a: a.at[:, 1::2].multiply(3.0), (ones(6, 7),), {"mesh": "x=2", "in_layouts": ("[_, x]",)},
        ),
        "bits": (
            lambda k: mw.constrain(mw.random.uniform(mw.random.fold_in(k, 3), (8, 6)), "[x, _]"),
            (mw.random.key(1),), {"mesh": "x=2", "out_layouts": "[x, _]"},
        ),
        "dropout": (
            lambda k, a: mw.where(mw.random.bernoulli(k, 0.5, a.shape), a * 2.0, 0.0) @ a.T,
            (mw.random.key(1), ones(6, 4)), {"mesh": "x=2", "in_layouts": (None, "[_, x]")},
        ),
        "turned": (lambda a: mw.abs(mw.exp(a * 1j)) + mw.real(a @ mw.conj(a).T), (ones(6, 6, dtype="c8"),), rows),
        "any length": (
            lambda x, w: mw.sum(mw.tanh(x @ w), axis=0) / x.shape[0],
            (mw.ShapeDtype((n, 6), "f32"), mw.ShapeDtype((6, 4), "f32")),
            {"mesh": "x=2", "in_layouts": ("[x, _]", None)},
        ),
        "softmax of any length": (
            lambda x: mw.nn.softmax(x, axis=0), (mw.ShapeDtype((n, 5), "f32"),), ROWS,
        ),
    }  # fmt: skip


def lowered(case: Case) -> tuple[str, str]:
    """The whole program, and that of a rank."""
    f, given, options = case
    made = mw.jit(f, **options).lower(*given)
    return made.as_text(), made.as_text("local")


def traced() -> dict[str, tuple[str, str]]:
    """Programs by name."""
    found = {name: lowered(case) for name, case in cases().items()}
    if importlib.util.find_spec("torch") is not None:
        found |= {f"torch {name}": pair for name, pair in of_torch().items()}
    return found


def of_torch() -> dict[str, tuple[str, str]]:
    """Steps of training of PyTorch, as they are compiled."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm, self.down = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            return self.down(F.gelu(self.norm(self.up(x))))

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    placements = {"x": "[dp, _]", "up.weight": "[tp, _]", "down.weight": "[_, tp]"}
    found = {}
    pictures, labels = torch.ones(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)
    for name, inner in (
        ("pool", [nn.ReLU(), nn.MaxPool2d(2)]),
        ("pool, overlapping", [nn.MaxPool2d(3, 2, 1)]),
        ("norm", [nn.BatchNorm2d(2), nn.AvgPool2d(2)]),
    ):
        network = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), *inner, nn.Flatten(), nn.Linear(8, 5)
        )
        given = network, torch.optim.SGD(network.parameters(), lr=0.1), pictures, labels
        found[name] = recorded(
            lambda given=given: mw.from_torch(
                step, given, mesh="x=2", placements={"x": "[x, _, _, _]"}
            )
        )
    for name, make in (("sgd", torch.optim.SGD), ("adam", torch.optim.AdamW)):
        model = Small()
        given = (
            model,
            make(model.parameters(), lr=0.1),
            torch.ones(6, 6),
            torch.zeros(6, dtype=torch.int64),
        )
        found[name] = recorded(
            lambda given=given: mw.from_torch(step, given, mesh=TWO, placements=placements)
        )
    return found


def recorded(compile_: Callable[[], Any]) -> tuple[str, str]:
    """The program that is cut for ranks while something is compiled, before and after."""
    run, found = meshweave.pipeline.run_pipeline, list[tuple[str, str]]()

    def noted(module: ir.Module, text: str, *args: Any, **options: Any) -> Any:
        whole = str(module)
        made = run(module, text, *args, **options)
        if "dist-partition" in text or "dist-pipeline" in text:
            found.append((whole, str(module)))
        return made

    meshweave.pipeline.run_pipeline = noted  # type: ignore[assignment]
    try:
        # what is kept on the disk is not cut again
        with patch.dict(os.environ, {cache.VARIABLE: "off"}), compile_():
            return found[-1]
    finally:
        meshweave.pipeline.run_pipeline = run
