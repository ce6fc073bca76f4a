"""The programs that the benchmark of GPUs times, by group: what PyTorch and meshweave both can run.

Sizes are those of real jobs, larger than the cache of an H100; `by` divides them, for a trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.programs import Case, Function, attention, block, gelu, norm, softmax

AIMS = {
    "memory": 0.90, "whole device": 0.80, "moves": 0.80, "few rows": 0.85,
    "products": 0.98, "own products": 0.55, "attention": 1.0, "block": 1.0,
}  # fmt: skip
"""Of a copy's bytes a second in the first four groups, of PyTorch's speed in the others."""
OF_COPY = ("memory", "whole device", "moves", "few rows")
LINKS = 32


@dataclass(frozen=True)
class Timed:
    """A program to time. kernels: as for meshweave.compile; peer: whether PyTorch is timed, too."""

    group: str
    case: Case
    dtype: str
    kernels: str | None = None
    peer: bool = True

    @property
    def name(self) -> str:
        """In tables; the peer has the same."""
        return f"{self.case.name} {self.dtype}"

    @property
    def flops(self) -> int:
        """Of products, two for each term; 0 in other groups."""
        if "products" not in self.group:
            return 0
        (m, k), (_, n) = self.case.shapes
        return 2 * m * n * k


def timed(by: int) -> list[Timed]:
    """All programs, in the order of what a first look at a device should see."""
    found = [
        Timed(group, Case(name, function, tuple(shapes)), dtype)
        for group, programs, dtypes in (
            ("memory", memory(by), ("f32", "bf16")),
            ("whole device", whole_device(by), ("f32", "bf16")),
            ("few rows", few_rows(by), ("bf16",)),
            ("moves", moves(by), ("bf16",)),
            ("attention", attentions(by), ("bf16",)),
            ("block", [("block", block, block_shapes(by))], ("bf16",)),
            ("products", products(by), ("bf16", "f32")),
        )
        for name, function, shapes in programs
        for dtype in dtypes
    ]
    own = [
        Timed("own products", each.case, "bf16", "-cublaslt", peer=False)
        for each in found
        if each.group == "products" and each.dtype == "bf16"
    ]
    return [*found, *own]


Programs = list[tuple[str, Function, list[tuple[int, ...]]]]


def memory(by: int) -> Programs:
    """Kernels that no arithmetic bounds, with a block for each of many rows."""
    n = 8192 // by
    return [
        ("gelu", lambda xp, x, y: gelu(xp, x) + y, [(n, n)] * 2),
        ("softmax", softmax, [(n, n)]),
        ("norm", norm, [(n, n), (n,), (n,)]),
        ("sum_rows", lambda xp, x: xp.sum(x, axis=1), [(n, n)]),
        ("sum_columns", lambda xp, x: xp.sum(x, axis=0), [(n, n)]),
        ("transpose", lambda xp, x: xp.permute_dims(x, (1, 0)) + 0, [(n, n)]),
        ("softmax_odd", softmax, [(4096 // by, 50257 // by)]),
    ]


def whole_device(by: int) -> Programs:
    """Reductions with few results, each of many numbers."""
    n = 8192 // by
    return [
        ("sum_all", lambda xp, x: xp.sum(x), [(n, n)]),
        ("max_all", lambda xp, x: xp.max(x), [(n, n)]),
        ("tall_columns", lambda xp, x: xp.sum(x, axis=0), [(n * n // 64, 64)]),
        ("batch_variance", variance, [(128 // by, 256, 56, 56)]),
        ("long_rows", softmax, [(8, n * n // 8)]),
    ]


def few_rows(by: int) -> Programs:
    """Products of few rows, as in a decode step: bound by the weights' bytes."""
    n = 8192 // by
    return [
        *((f"rows_{m}", lambda xp, x, w: x @ w, [(m, n), (n, n)]) for m in (1, 4, 16)),
        ("rows_4_turned", lambda xp, x, w: x @ xp.permute_dims(w, (1, 0)), [(4, n), (n, n)]),
        ("rows_1_gelu", lambda xp, x, w, b: gelu(xp, x @ w / 64 + b), [(1, n), (n, n), (n,)]),
        ("deep", lambda xp, x, w: x @ w, [(128, 65536 * 4 // by), (65536 * 4 // by, 128)]),
    ]


def moves(by: int) -> Programs:
    """Elements that change their places, and next to no arithmetic."""
    n, positions = 8192 // by, 2048 // by
    return [
        ("concat", lambda xp, *parts: xp.concat(parts, axis=1), [(n, n // 4)] * 4),
        ("every_second", lambda xp, x: x[:, ::2] + 0, [(n, 2 * n)]),
        ("rope", rope, [(16, positions, 32, 128), (positions, 1, 64), (positions, 1, 64)]),
        ("heads", lambda xp, x: xp.permute_dims(x, (0, 2, 1, 3)) + 0, [(16, positions, 32, 128)]),
    ]


def attentions(by: int) -> Programs:
    """Attention by itself: of 128 heads, causal, and of one query for each of 256 heads."""
    n, many = 2048 // by, 8192 // by
    return [
        ("attention_2048", attention, [(128, n, 128)] * 3),
        ("attention_causal", causal, [(128, n, 128)] * 3),
        ("attention_decode", attention, [(256, 1, 128), (256, many, 128), (256, many, 128)]),
    ]


def products(by: int) -> Programs:
    """Square products."""
    return [(f"product_{n}", lambda xp, a, b: a @ b, [(n // by, n // by)] * 2) for n in SQUARES]


SQUARES = (2048, 4096, 8192)


def block_shapes(by: int) -> list[tuple[int, ...]]:
    """Return those of a transformer block's arguments: batch x positions x width, its parameters."""
    width, positions = 4096 // by, 2048 // by
    return [(4, positions, width), (width,), (width,), (width,), (width,), (width, 3 * width),
            (width, width), (width, 4 * width), (4 * width, width)]  # fmt: skip


def variance(xp: Any, x: Any) -> Any:
    """Of each channel of batch x channels x height x width."""
    apart = x - xp.mean(x, axis=(0, 2, 3), keepdims=True)
    return xp.mean(apart * apart, axis=(0, 2, 3))


def rope(xp: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """Turn the two halves of each head."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return xp.concat((a * cosine - b * sine, b * cosine + a * sine), axis=-1)


def causal(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention to what came before."""
    n = q.shape[1]
    scores = q @ xp.permute_dims(k, (0, 2, 1)) / q.shape[-1] ** 0.5
    places = xp.arange(n)
    seen = xp.reshape(places, (n, 1)) >= places
    return softmax(xp, xp.where(seen, scores, -math.inf)) @ v


def chain(xp: Any, x: Any) -> Any:
    """Sums that nothing fuses: a kernel for each, of next to no work."""
    for _ in range(LINKS):
        x = x + xp.sum(x, axis=0) / x.shape[0]
    return x
