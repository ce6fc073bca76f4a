"""The functions of the twelve programs, in plain `mw`: each takes its sizes from its arguments."""

from __future__ import annotations

import math
from typing import Any

import meshweave as mw

HEADS, PATCH, RATE = 8, 4, 1e-3
ROUNDS = 20  # of Jacobi's method and of PageRank


def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """Two layers."""
    return mw.relu(x @ w1 + b1) @ w2 + b2


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention of [batch, heads, places, width]."""
    scores = mw.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    return mw.softmax(scores) @ v


def block(x: Any, p: dict[str, Any], causal: bool = True) -> Any:
    """A transformer block of [batch, places, width]."""
    batch, places, width = x.shape
    parts = mw.reshape(norm(x, p["g1"]) @ p["qkv"], (batch, places, 3, HEADS, width // HEADS))
    q, k, v = mw.unstack(mw.permute_dims(parts, (2, 0, 3, 1, 4)))
    scores = q @ k.mT / (width // HEADS) ** 0.5
    if causal:
        seen = mw.tril(mw.ones((places, places), dtype=mw.bool))
        scores = mw.where(seen, scores, -1e9)
    mixed = mw.permute_dims(mw.softmax(scores) @ v, (0, 2, 1, 3))
    x = x + mw.reshape(mixed, x.shape) @ p["out"]
    return x + mw.nn.gelu(norm(x, p["g2"]) @ p["up"]) @ p["down"]


def norm(x: Any, scale: Any) -> Any:
    """Root-mean-square normalisation over the last dim."""
    return x * mw.rsqrt(mw.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def gpt(tokens: Any, words: Any, places: Any, layers: Any) -> Any:
    """Logits of a GPT."""
    x = mw.take(words, tokens, axis=0) + places
    for p in layers:
        x = block(x, p)
    return x @ words.T


def decode(tokens: Any, words: Any, layers: Any, caches: Any) -> Any:
    """One token of each sequence: logits, and keys and values to keep, as [2, batch, heads, places, width]."""
    x, made = mw.take(words, tokens, axis=0), []
    batch, width = x.shape
    for p, cache in zip(layers, caches):
        parts = mw.reshape(norm(x, p["g1"]) @ p["qkv"], (batch, 3, HEADS, width // HEADS))
        q, k, v = mw.unstack(parts, axis=1)
        scores = mw.einsum("bhd,bhpd->bhp", q, cache[0]) / (width // HEADS) ** 0.5
        mixed = mw.einsum("bhp,bhpd->bhd", mw.softmax(scores), cache[1])
        x = x + mw.reshape(mixed, x.shape) @ p["out"]
        x = x + mw.nn.gelu(norm(x, p["g2"]) @ p["up"]) @ p["down"]
        made.append(mw.stack((k, v)))
    return x @ words.T, made


def train(p: Any, means: Any, squares: Any, tokens: Any, wanted: Any) -> Any:
    """A step of Adam on a GPT: parameters, running means and squares; and the loss. p: (words, places, layers)."""

    def loss(p: Any) -> Any:
        logits = mw.log_softmax(gpt(tokens, *p), axis=-1)
        return -mw.mean(mw.sum(logits * mw.nn.one_hot(wanted, logits.shape[-1]), axis=-1))

    value, slopes = mw.value_and_grad(loss)(p)
    means = mapped(lambda m, g: 0.9 * m + 0.1 * g, means, slopes)
    squares = mapped(lambda s, g: 0.999 * s + 0.001 * g * g, squares, slopes)
    p = mapped(lambda w, m, s: w - RATE * m / (mw.sqrt(s) + 1e-8), p, means, squares)
    return p, means, squares, value


def vit(images: Any, patch: Any, places: Any, layers: Any, head: Any) -> Any:
    """Scores of classes of images [batch, height, width, 3]."""
    n, height, width, channels = images.shape
    cut = mw.reshape(images, (n, height // PATCH, PATCH, width // PATCH, PATCH, channels))
    x = mw.reshape(mw.permute_dims(cut, (0, 1, 3, 2, 4, 5)), (n, places.shape[0], -1)) @ patch
    x = x + places
    for p in layers:
        x = block(x, p, causal=False)
    return mw.mean(x, axis=1) @ head


def resnet(images: Any, first: Any, stages: Any, head: Any) -> Any:
    """A residual network; each block has two convolutions, and one of 1x1 where it makes more channels."""
    x = mw.relu(mw.nn.conv(images, first, padding="SAME"))
    for p in stages:
        stride = 2 if "past" in p else 1
        y = mw.relu(mw.nn.conv(x, p["one"], stride=stride, padding="SAME"))
        y = mw.nn.conv(y, p["two"], padding="SAME")
        x = mw.relu(y + (mw.nn.conv(x, p["past"], stride=2, padding="SAME") if "past" in p else x))
    return mw.mean(x, axis=(1, 2)) @ head


def moe(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """Experts, one for each token, as GShard dispatches: x [groups, tokens, width], up [experts, width, inner]."""
    tokens, experts = x.shape[1], gate.shape[1]
    room = 2 * tokens // experts
    chances = mw.softmax(x @ gate)
    chosen = mw.nn.one_hot(mw.argmax(chances, axis=-1), experts)
    turn = mw.cumulative_sum(chosen, axis=1) * chosen - 1.0
    kept = mw.nn.one_hot(mw.astype(turn, mw.int32), room) * chosen[..., None]
    sent = mw.einsum("gtec,gtm->egcm", kept, x)
    made = mw.einsum("egch,ehm->egcm", mw.relu(mw.einsum("egcm,emh->egch", sent, up)), down)
    return mw.einsum("gtec,egcm->gtm", kept * mw.sum(chances * chosen, -1)[..., None, None], made)


def jacobi(plate: Any) -> Any:
    """Heat on a plate: each inner element becomes the mean of its neighbours, and that many times."""

    def step(now: Any, _: Any) -> Any:
        inner = (now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]) / 4
        return now.at[1:-1, 1:-1].set(inner), None

    return mw.scan(step, plate, length=ROUNDS)[0]


def pagerank(links: Any) -> Any:
    """Rank pages by the links to them [to, from]."""
    pages = links.shape[0]

    def step(rank: Any, _: Any) -> Any:
        new = 0.85 * (links @ rank)
        return new + (1 - mw.sum(new)) / pages, None

    return mw.scan(step, mw.full((pages,), 1 / pages), length=ROUNDS)[0]


def mapped(f: Any, *trees: Any) -> Any:
    """`f` of the leaves of trees of one structure."""
    if isinstance(trees[0], dict):
        return {k: mapped(f, *[t[k] for t in trees]) for k in trees[0]}
    if isinstance(trees[0], list | tuple):
        return [mapped(f, *each) for each in zip(*trees, strict=True)]
    return f(*trees)


def weights(width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a block's parameters."""
    return {
        "g1": (width,), "g2": (width,), "qkv": (width, 3 * width), "out": (width, width),
        "up": (width, 4 * width), "down": (4 * width, width),
    }  # fmt: skip


def near_square(ranks: int, most: int = 8) -> tuple[int, int]:
    """Two factors of a number of ranks, a power of two; the second is `most` at most, as the GPUs of a node."""
    second = min(most, 1 << (int(math.log2(ranks)) // 2))
    return ranks // second, second
