"""The four models of examples/, written in JAX, compiled by from_jax: the results that are kept with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshweave as mw

jax = pytest.importorskip("jax")
jnp = jax.numpy
EXAMPLES = Path(__file__).parents[2] / "examples"
TOLERANCE = 2e-4  # relative to the largest element
HEADS = 8


def data(name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Arguments and expected result."""
    folder = EXAMPLES / name
    count = len(list(folder.glob("in*.npy")))
    return [np.load(folder / f"in{i}.npy") for i in range(count)], np.load(folder / "out0.npy")


def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def norm(x: Any, scale: Any, bias: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    return apart / jnp.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5) * scale + bias


def causal(x: Any, p: dict[str, Any]) -> Any:
    batch, positions, width = x.shape
    parts = (x @ p["qkv"]).reshape(batch, positions, 3, HEADS, width // HEADS)
    q, k, v = (parts[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.mT / (width // HEADS) ** 0.5
    seen = jnp.tril(jnp.ones((positions, positions), bool))
    mixed = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]


def block(x: Any, p: dict[str, Any]) -> Any:
    x = x + causal(norm(x, p["g1"], p["b1"]), p)
    return x + jax.nn.gelu(norm(x, p["g2"], p["b2"]) @ p["up"]) @ p["down"]


def gpt2l(tokens: Any, words: Any, places: Any, blocks: Any) -> Any:
    x = words[tokens] + places
    for parameters in blocks:
        x = block(x, parameters)
    return x @ words.T


NAMES = ("b1", "b2", "g1", "g2", "down", "up", "out", "qkv")
LAYOUTS = {"down": "[tp, _]", "up": "[_, tp]", "out": "[tp, _]", "qkv": "[_, tp]"}
SHARDINGS = {name: LAYOUTS.get(name) for name in NAMES}


def check(function: Any, args: Any, right: np.ndarray, in_shardings: Any) -> Any:
    """Compiled on a mesh and on one rank, it gives what JAX gave on one device."""
    for options in ({}, {"mesh": "dp=2, tp=2", "in_shardings": in_shardings}):
        with mw.from_jax(function, *args, **options) as compiled:
            y = compiled(*args)
            assert np.abs(y.numpy() - right).max() <= TOLERANCE * np.abs(right).max()
    return y


def test_mlp() -> None:
    args, right = data("mlp")
    shardings = ("[dp, _]", "[_, tp]", "[tp]", "[tp, _]", None)
    check(mlp, tuple(args), right, shardings)


def test_attention() -> None:
    args, right = data("attention")
    y = check(attention, tuple(args), right, mw.P("dp", "tp"))
    assert str(y.layout) == "[dp, tp, _, _]"


def test_block() -> None:
    (x, *parameters), right = data("block")
    args = (x, dict(zip(NAMES, parameters)))
    check(block, args, right, (mw.P("dp"), SHARDINGS))


def test_gpt2l() -> None:
    (tokens, words, places, *rest), right = data("gpt2l")
    blocks = [dict(zip(NAMES, rest[:8])), dict(zip(NAMES, rest[8:]))]
    check(gpt2l, (tokens, words, places, blocks), right, (mw.P("dp"), None, None, [SHARDINGS] * 2))
