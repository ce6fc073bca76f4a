"""Loops, branches and random numbers."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case, Split, added, dp

FAMILY = "control"


def _layers(jax: Any, x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda c, a: (jax.numpy.tanh(c @ a / 16), None), x, w)[0]


def _layers_torch(torch: Any, x: Any, w: Any) -> Any:
    for a in w:
        x = torch.tanh(x @ a / 16)
    return x


def _newton(jax: Any, x: Any) -> Any:
    def step(state: Any) -> Any:
        i, y = state
        return i + 1, 0.5 * (y + x / y)

    return jax.lax.while_loop(lambda s: s[0] < 20, step, (0, x))[1]


def _newton_torch(torch: Any, x: Any) -> Any:
    y = x
    for _ in range(20):
        y = 0.5 * (y + x / y)
    return y


LAYERS = ("f32[64,256]", "f32[8,256,256]")

CASES = (
    Case(
        FAMILY,
        "scan of layers",
        LAYERS,
        _layers,
        _layers_torch,
        dp=dp(LAYERS, (1,)),
        tp=Split((None, None)),
    ),
    Case(
        FAMILY,
        "scan of layers, gradient",
        (*LAYERS, "f32[64,256]"),
        _layers,
        _layers_torch,
        gradient=(0, 1),
        dp=dp((*LAYERS, "f32[64,256]"), (1,), added("f32[8,256,256]")),
    ),
    Case(
        FAMILY,
        "while of Newton's steps",
        ("f32[100000]+",),
        _newton,
        _newton_torch,
        dp=dp(("f32[100000]+",)),
    ),
    Case(
        FAMILY,
        "branch by a flag",
        ("bool[]", "f32[512,1024]"),
        jax=lambda jax, p, x: jax.lax.cond(p, lambda v: v * 2, lambda v: v + 1, x),
        torch=lambda torch, p, x: x * 2 if p else x + 1,
        dp=dp(("bool[]", "f32[512,1024]"), (0,)),
    ),
    Case(
        FAMILY,
        "uniform numbers",
        ("i32[]",),
        jax=lambda jax, s: jax.random.uniform(jax.random.key(s), (512, 1024), "float32"),
        torch=lambda torch, s: torch.rand(512, 1024),
    ),
    Case(
        FAMILY,
        "normal numbers",
        ("i32[]",),
        jax=lambda jax, s: jax.random.normal(jax.random.key(s), (512, 1024), "float32"),
        torch=lambda torch, s: torch.randn(512, 1024),
    ),
    Case(
        FAMILY,
        "recurrence of a long row",
        ("f32[2048,64]",),
        jax=lambda jax, x: jax.lax.scan(
            lambda c, v: ((c * 0.9 + v),) * 2, jax.numpy.zeros(64, "float32"), x
        )[1],
    ),
)
