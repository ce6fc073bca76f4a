"""The programs of these tests: `check` compares what they give with what float64 gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.programs import Case, attention, cases, gelu, mlp, norm, softmax

TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
"""Of the largest element: a few roundings of each type."""


def check(case: Case, result: np.ndarray, dtype: str) -> None:
    """Compare a result with what float64 gives."""
    wanted = case.expected(dtype)
    limit = TOLERANCE[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=0, atol=limit)


def scores(xp: Any, q: Any, k: Any) -> Any:
    """Of heads x positions x width."""
    return q @ xp.permute_dims(k, (0, 2, 1)) / q.shape[-1] ** 0.5


def masked(keep: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Attention of the keys that stay: keep(query, key), the last query at the last key."""

    def program(xp: Any, q: Any, k: Any, v: Any) -> Any:
        rows, keys = q.shape[1], k.shape[1]
        i, j = xp.arange(rows)[:, None] + (keys - rows), xp.arange(keys)[None, :]
        return softmax(xp, xp.where(keep(i, j), scores(xp, q, k), -np.inf)) @ v

    return program


causal = masked(lambda i, j: j <= i)
window = masked(lambda i, j: (j <= i) & (j > i - 40))


def shared(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """Several heads share keys and values."""
    heads, groups = q.shape[0], k.shape[0]
    many = [
        xp.reshape(
            xp.broadcast_to(x[:, None], (groups, heads // groups, *x.shape[1:])),
            (heads, *x.shape[1:]),
        )
        for x in (k, v)
    ]
    return attention(xp, q, *many)


KERNELS = cases(
    (
        ("gelu", lambda xp, x, y: gelu(xp, x) + y, [(70, 1000)] * 2),
        ("broadcast", lambda xp, x, y: x * y + 1, [(33, 4, 129), (129,)]),
        ("softmax", softmax, [(130, 1000)]),
        ("softmax_short", softmax, [(515, 7)]),
        ("softmax_odd", softmax, [(130, 1001)]),
        ("softmax_vocabulary", softmax, [(5, 50257)]),
        ("norm", norm, [(67, 768), (768,), (768,)]),
        ("sum_rows", lambda xp, x: xp.sum(x, axis=1), [(67, 1025)]),
        ("sum_columns", lambda xp, x: xp.sum(x, axis=0), [(300, 130)]),
        ("maximum", lambda xp, x: xp.max(x, axis=(0, 1)), [(90, 130)]),
        ("sum_all", lambda xp, x: xp.sum(x), [(700, 1001)]),
        ("sum_tall", lambda xp, x: xp.sum(x, axis=0), [(20001, 64)]),
        ("sum_tall_odd", lambda xp, x: xp.sum(x, axis=0), [(9001, 3)]),
        ("statistics", lambda xp, x: xp.sum(x, axis=(0, 2, 3)), [(16, 24, 33, 36)]),
        ("sum_long_rows", lambda xp, x: xp.sum(x, axis=1), [(3, 50001)]),
        ("maximum_long_rows", lambda xp, x: xp.max(x, axis=1), [(5, 40000)]),
        ("transpose", lambda xp, x: xp.permute_dims(x, (1, 0)) * 2, [(130, 200)]),
        ("permute", lambda xp, x: xp.permute_dims(x, (2, 0, 1)) - 1, [(9, 33, 65)]),
        ("product", lambda xp, a, b: a @ b, [(130, 200), (200, 136)]),
        ("product_turned", lambda xp, a, b: xp.permute_dims(a, (1, 0)) @ b, [(64, 96), (64, 128)]),
        ("product_batch", lambda xp, a, b: a @ b, [(3, 64, 80), (3, 80, 48)]),
        ("product_few", lambda xp, a, b: a @ b, [(4, 520), (520, 264)]),
        ("product_few_odd", lambda xp, a, b: a @ b, [(3, 333), (333, 257)]),
        (
            "product_few_turned",
            lambda xp, a, b: a @ xp.permute_dims(b, (1, 0)),
            [(4, 520), (264, 520)],
        ),
        (
            "product_few_bias",
            lambda xp, a, b, c: gelu(xp, a @ b / 8 + c),
            [(4, 520), (520, 264), (264,)],
        ),
        ("product_one", lambda xp, a, b, c: a @ b * 2 + c, [(1, 520), (520, 264), (264,)]),
        ("product_bias", lambda xp, a, b, c: gelu(xp, a @ b / 8 + c), [(96, 64), (64, 72), (72,)]),
        ("attention", attention, [(2, 64, 32)] * 3),
        ("attention_wide", attention, [(2, 150, 128), (2, 200, 128), (2, 200, 128)]),
        ("attention_causal", causal, [(3, 200, 64), (3, 260, 64), (3, 260, 64)]),
        ("attention_window", window, [(2, 200, 32), (2, 200, 32), (2, 200, 32)]),
        ("attention_shared", shared, [(4, 70, 48), (2, 130, 48), (2, 130, 48)]),
        ("attention_decode", attention, [(4, 1, 128), (4, 1000, 128), (4, 1000, 128)]),
        ("attention_decode_shared", shared, [(8, 1, 64), (2, 700, 64), (2, 700, 64)]),
        ("attention_odd", attention, [(1, 33, 33), (1, 77, 33), (1, 77, 17)]),
    )
)
"""A program for each family of kernels, ragged sizes among them."""

RANKS = {
    case.name: case
    for case in (
        Case("tensor_parallel", mlp, ((48, 64), (64, 96), (96, 40)), "x=2",
             ("[_, _]", "[_, x]", "[x, _]"), "[_, _]"),
        Case("data_parallel", mlp, ((48, 64), (64, 96), (96, 40)), "x=2",
             ("[x, _]", "[_, _]", "[_, _]"), "[x, _]"),
        Case("scattered", mlp, ((48, 64), (64, 96), (96, 40)), "x=2",
             ("[_, _]", "[_, x]", "[x, _]"), "[x, _]"),
        Case("turned", lambda xp, x: gelu(xp, x), ((48, 64),), "x=2", ("[x, _]",), "[_, x]"),
        Case("cyclic", lambda xp, x: gelu(xp, x), ((48, 64),), "x=2", ("[_*x, _]",), "[_, _*x]"),
        Case("two_axes", mlp, ((48, 64), (64, 96), (96, 40)), "x=2, y=2",
             ("[x, _]", "[_, y]", "[y, _]"), "[x, _]"),
    )
}  # fmt: skip
"""Programs of several ranks: every collective."""
