"""The models that `python -m benchmarks training` trains: each in JAX and in PyTorch, of the same sizes.

An MLP, a transformer that predicts tokens (as GPT-2), one that classifies images (ViT), and ResNet-18. Numbers are f32.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

SIZES: Mapping[str, Mapping[str, int]] = {
    "MLP": {"layers": 8, "width": 1024, "batch": 64},
    "MLP:quick": {"layers": 4, "width": 128, "batch": 16},
    "GPT-2": {"layers": 12, "width": 512, "heads": 8, "batch": 2, "seq": 128, "vocab": 4096},
    "GPT-2:quick": {"layers": 2, "width": 64, "heads": 2, "batch": 2, "seq": 32, "vocab": 128},
    "ViT": {"layers": 12, "width": 384, "heads": 6, "batch": 4, "image": 224, "patch": 16},
    "ViT:quick": {"layers": 2, "width": 64, "heads": 2, "batch": 2, "image": 32, "patch": 8},
    "ResNet-18": {"batch": 4, "image": 128, "planes": 64},
    "ResNet-18:quick": {"batch": 2, "image": 32, "planes": 8},
}
"""Sizes of each case: that of the table, and one that takes seconds."""
CLASSES = 1000


class JaxModel(NamedTuple):
    """Hold parameters, their shardings under tp, arguments of a step, and the loss of both."""

    params: Any
    specs: Any
    batch: tuple[Any, ...]
    loss: Callable[..., Any]


def adam(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step of Adam: (params, m, v, t, *batch) to (loss, params, m, v, t)."""
    import jax
    import jax.numpy as jnp

    def step(params: Any, m: Any, v: Any, t: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradients)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradients)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, m, v)
        return value, params, m, v, t

    return step


def jax_model(case: str) -> JaxModel:
    """Return a case in JAX."""
    size = SIZES[case]
    make = {"MLP": _jax_mlp, "GPT-2": _jax_gpt, "ViT": _jax_vit, "ResNet-18": _jax_resnet}
    return make[case.split(":")[0]](dict(size), np.random.default_rng(0))


def _drawn(rng: Any, *shape: int) -> Any:
    fan = np.prod(shape[:-1]) if len(shape) > 1 else 1
    return (rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _jax_mlp(size: dict[str, int], rng: Any) -> JaxModel:
    import jax
    from jax.sharding import PartitionSpec as P

    e = size["width"]
    params = [(_drawn(rng, e, e), _zeros(e)) for _ in range(size["layers"])]
    specs = [
        (P(None, "tp"), P("tp")) if k % 2 == 0 else (P("tp", None), P())
        for k in range(size["layers"])
    ]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in params:
            x = jax.nn.relu(x @ w + b)
        return ((x - y) ** 2).mean()

    return JaxModel(
        params, specs, (_drawn(rng, size["batch"], e), _drawn(rng, size["batch"], e)), loss
    )


def _jax_blocks(size: dict[str, int], rng: Any, causal: bool) -> tuple[Any, Any, Any]:
    """Return the parameters of the layers of a transformer, their shardings, and the function of a layer."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    e, h = size["width"], size["heads"]
    d = e // h
    params = [
        (
            _ones(e), _zeros(e), *(_drawn(rng, e, h, d) for _ in range(3)), _drawn(rng, h, d, e), _zeros(e),
            _ones(e), _zeros(e), _drawn(rng, e, 4 * e), _zeros(4 * e), _drawn(rng, 4 * e, e), _zeros(e),
        )
        for _ in range(size["layers"])
    ]  # fmt: skip
    heads, rest = P(None, "tp", None), P()
    spec = (
        rest, rest, heads, heads, heads, P("tp", None, None), rest,
        rest, rest, P(None, "tp"), P("tp"), P("tp", None), rest,
    )  # fmt: skip

    def norm(x: Any, gain: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * gain
            + bias
        )

    def layer(x: Any, p: Any) -> Any:
        g1, c1, wq, wk, wv, wo, bo, g2, c2, w1, b1, w2, b2 = p
        y = norm(x, g1, c1)
        q, k, v = (jnp.einsum("bse,ehd->bhsd", y, w) for w in (wq, wk, wv))
        scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * d**-0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((scores.shape[-1],) * 2, bool)), scores, -1e9)
        mixed = jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores, -1), v)
        x = x + jnp.einsum("bhsd,hde->bse", mixed, wo) + bo
        return x + jax.nn.gelu(norm(x, g2, c2) @ w1 + b1) @ w2 + b2

    return params, [spec] * size["layers"], layer


def _cross_entropy(logits: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    chosen = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * chosen, -1))


def _jax_gpt(size: dict[str, int], rng: Any) -> JaxModel:
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    e, n, s = size["width"], size["vocab"], size["seq"]
    layers, specs, layer = _jax_blocks(size, rng, True)
    params = (_drawn(rng, n, e), _drawn(rng, s, e), layers)
    tokens = rng.integers(0, n, (size["batch"], s)).astype(np.int32)

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        table, places, layers = params
        x = table[tokens] + places
        for p in layers:
            x = layer(x, p)
        return _cross_entropy(jnp.einsum("bse,ne->bsn", x, table), labels)

    return JaxModel(params, (P(), P(), specs), (tokens, np.roll(tokens, -1, 1)), loss)


def _jax_vit(size: dict[str, int], rng: Any) -> JaxModel:
    from jax.sharding import PartitionSpec as P

    e, p, n = size["width"], size["patch"], size["image"] // size["patch"]
    layers, specs, layer = _jax_blocks(size, rng, False)
    params = (_drawn(rng, 3 * p * p, e), _drawn(rng, n * n, e), _drawn(rng, e, CLASSES), layers)
    images = _drawn(rng, size["batch"], 3, n * p, n * p)
    labels = rng.integers(0, CLASSES, size["batch"]).astype(np.int32)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        w, places, head, layers = params
        cut = images.reshape(-1, 3, n, p, n, p).transpose(0, 2, 4, 1, 3, 5)
        x = cut.reshape(-1, n * n, 3 * p * p) @ w + places
        for one in layers:
            x = layer(x, one)
        return _cross_entropy(x.mean(1) @ head, labels)

    return JaxModel(params, (P(), P(), P(), specs), (images, labels), loss)


STAGES = ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1))
"""Of each block of ResNet-18, its channels in planes and its stride."""


def _jax_resnet(size: dict[str, int], rng: Any) -> JaxModel:
    import jax
    from jax.sharding import PartitionSpec as P

    c = size["planes"]

    def kernel(n: int, m: int, k: int) -> Any:
        w = rng.standard_normal((n, m, k, k)) / np.sqrt(m * k * k / 2)
        return w.astype(np.float32), _ones(n), _zeros(n)

    params: list[Any] = [kernel(c, 3, 7)]
    now = c
    for planes, stride in STAGES:
        n = planes * c
        short = kernel(n, now, 1) if stride > 1 or now != n else ()
        params.append((kernel(n, now, 3), kernel(n, n, 3), short))
        now = n
    params.append(_drawn(rng, now, CLASSES))

    def conv(x: Any, p: Any, stride: int) -> Any:
        w, gain, bias = p
        k = w.shape[-1] // 2
        x = jax.lax.conv_general_dilated(x, w, (stride, stride), [(k, k), (k, k)])
        mean = x.mean((0, 2, 3), keepdims=True)
        variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
        x = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
        return x * gain[:, None, None] + bias[:, None, None]

    def loss(params: Any, images: Any, labels: Any) -> Any:
        first, *blocks, head = params
        x = jax.nn.relu(conv(images, first, 2))
        x = jax.lax.reduce_window(
            x, -np.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)]
        )
        for (one, two, short), (_, stride) in zip(blocks, STAGES):
            y = conv(jax.nn.relu(conv(x, one, stride)), two, 1)
            x = jax.nn.relu(y + (conv(x, short, stride) if short else x))
        return _cross_entropy(x.mean((2, 3)) @ head, labels)

    images = _drawn(rng, size["batch"], 3, size["image"], size["image"])
    labels = rng.integers(0, CLASSES, size["batch"]).astype(np.int32)
    specs = jax.tree.map(lambda _: P(), params)
    return JaxModel(params, specs, (images, labels), loss)


def torch_model(case: str) -> tuple[Any, Callable[..., Any], list[Any]]:
    """Return a case in PyTorch: the module, the loss of it and a batch, the batch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    size, kind = SIZES[case], case.split(":")[0]
    rng = np.random.default_rng(0)
    batch = [torch.from_numpy(np.asarray(b)) for b in _torch_batch(kind, size, rng)]
    if kind == "MLP":
        e = size["width"]
        rows = [m for _ in range(size["layers"]) for m in (nn.Linear(e, e), nn.ReLU())]
        return nn.Sequential(*rows), lambda module, x, y: F.mse_loss(module(x), y), batch

    class Block(nn.Module):
        def __init__(self, causal: bool) -> None:
            super().__init__()
            e = size["width"]
            self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
            self.qkv, self.out = nn.Linear(e, 3 * e, bias=False), nn.Linear(e, e)
            self.up, self.down, self.causal = nn.Linear(e, 4 * e), nn.Linear(4 * e, e), causal

        def forward(self, x: Any) -> Any:
            b, s, e = x.shape
            parts = self.qkv(self.norm1(x)).view(b, s, 3, size["heads"], -1).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, s, e))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(size["vocab"], size["width"])
            nn.init.normal_(self.table.weight, std=size["vocab"] ** -0.5)
            self.places = nn.Parameter(torch.randn(size["seq"], size["width"]) * 0.02)
            self.blocks = nn.Sequential(*(Block(True) for _ in range(size["layers"])))

        def forward(self, tokens: Any) -> Any:
            return self.blocks(self.table(tokens) + self.places) @ self.table.weight.T

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            p, e, n = size["patch"], size["width"], size["image"] // size["patch"]
            self.cut = nn.Conv2d(3, e, p, p, bias=False)
            self.places = nn.Parameter(torch.randn(n * n, e) * 0.02)
            self.blocks = nn.Sequential(*(Block(False) for _ in range(size["layers"])))
            self.head = nn.Linear(e, CLASSES, bias=False)

        def forward(self, images: Any) -> Any:
            x = self.cut(images).flatten(2).transpose(1, 2) + self.places
            return self.head(self.blocks(x).mean(1))

    def conv(n: int, m: int, k: int, stride: int) -> Any:
        return nn.Sequential(nn.Conv2d(n, m, k, stride, k // 2, bias=False), nn.BatchNorm2d(m))

    class Residual(nn.Module):
        def __init__(self, n: int, m: int, stride: int) -> None:
            super().__init__()
            self.one, self.two = conv(n, m, 3, stride), conv(m, m, 3, 1)
            self.short = conv(n, m, 1, stride) if stride > 1 or n != m else nn.Identity()

        def forward(self, x: Any) -> Any:
            return F.relu(self.two(F.relu(self.one(x))) + self.short(x))

    def resnet() -> Any:
        c = size["planes"]
        rows: list[Any] = [conv(3, c, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        now = c
        for planes, stride in STAGES:
            rows.append(Residual(now, planes * c, stride))
            now = planes * c
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, CLASSES, bias=False))
        return nn.Sequential(*rows, *head)

    def loss(module: Any, x: Any, labels: Any) -> Any:
        return F.cross_entropy(module(x).flatten(0, -2), labels.flatten())

    module = {"GPT-2": Gpt, "ViT": Vit, "ResNet-18": resnet}[kind]()
    return module, loss, batch


def _torch_batch(kind: str, size: Mapping[str, int], rng: Any) -> tuple[Any, Any]:
    if kind == "MLP":
        shape = size["batch"], size["width"]
        return _drawn(rng, *shape), _drawn(rng, *shape)
    if kind == "GPT-2":
        tokens = rng.integers(0, size["vocab"], (size["batch"], size["seq"]))
        return tokens, np.roll(tokens, -1, 1)
    shape = size["batch"], 3, size["image"], size["image"]
    return _drawn(rng, *shape), rng.integers(0, CLASSES, size["batch"])
