"""Whole training steps, forward, backward and update, on meshes and with uneven sizes: what JAX gives on one device."""

from typing import Any

import numpy as np
import pytest
from depth import deep, sampled, some

import meshweave as mw

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
RNG = np.random.default_rng(3)
TOLERANCE = 5e-5  # relative to the largest element
MESH = "dp=2, tp=2"


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(function: Any, *args: Any, in_shardings: Any, mesh: str = MESH) -> None:
    wanted = jax.jit(function)(*args)
    with mw.from_jax(function, *args, in_shardings=in_shardings, mesh=mesh) as compiled:
        got = compiled(*args)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


def descend(loss: Any) -> Any:
    """A step of gradient descent in the first argument of `loss`."""

    def step(parameters: Any, *batch: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(parameters, *batch)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, slopes)

    return step


def mlp(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]


def attention(p: Any, x: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, p[name]) for name in "qkv")
    scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / 2
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    return jnp.einsum("bhst,bhtk,hkd->bsd", weights, v, p["o"])


def norm(x: Any, scale: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    return apart * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def block(p: Any, x: Any) -> Any:
    x = x + attention(p, norm(x, p["g1"]))
    return x + mlp(p, norm(x, p["g2"]))


def parameters() -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a block, and where they lie."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", (8, 2, 4))
    shapes |= {"o": (2, 4, 8), "g1": (8,), "g2": (8,), "w1": (8, 12), "b1": (12,), "w2": (12, 8)}
    layouts: dict[str, Any] = dict.fromkeys("qkv", "[_, tp, _]")
    layouts |= {"o": "[tp, _, _]", "g1": None, "g2": None}
    layouts |= {"w1": "[_, tp]", "b1": "[tp]", "w2": "[tp, _]"}
    return {name: values(*shape) for name, shape in shapes.items()}, layouts


@pytest.mark.parametrize("batch", some([3, 4], 2))
def test_block(batch: int) -> None:
    step = descend(lambda p, x: jnp.mean(block(p, x) ** 2))
    given, layouts = parameters()
    agree(step, given, values(batch, 5, 8), in_shardings=(layouts, "[dp, _, _]"))


@deep
@pytest.mark.parametrize("layer", [block, jax.checkpoint(block)], ids=["kept", "computed_again"])
def test_scan_over_layers(layer: Any) -> None:
    def loss(stacked: Any, x: Any) -> Any:
        return jnp.mean(lax.scan(lambda h, p: (layer(p, h), None), x, stacked)[0] ** 2)

    given, layouts = parameters()
    stacked = jax.tree.map(lambda p: np.stack([p, p * 0.5, p * 0.3]), given)
    deeper = {name: text and text.replace("[", "[_, ") for name, text in layouts.items()}
    agree(descend(loss), stacked, values(3, 5, 8), in_shardings=(deeper, "[dp, _, _]"))


@sampled(2)
@pytest.mark.parametrize("table", ["[_, tp]", "[tp, _]"])
def test_language_model_with_dropout_and_adam(table: str) -> None:
    def loss(words: Any, tokens: Any, key: Any) -> Any:
        hidden = words[tokens]
        hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape) / 0.9
        scores = jax.nn.log_softmax(hidden @ words.T)
        return -jnp.mean(jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], -1))

    def step(words: Any, mean: Any, square: Any, tokens: Any, key: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(words, tokens, key)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope * slope
        return value, words - 0.1 * mean / (jnp.sqrt(square) + 1e-6), mean, square

    zero = np.zeros((11, 8), np.float32)
    tokens, key = RNG.integers(0, 11, (4, 7)).astype(np.int32), jax.random.PRNGKey(0)
    shardings = (table, table, table, "[dp, _]", None)
    agree(step, values(11, 8), zero, zero, tokens, key, in_shardings=shardings)


@sampled(2)
@pytest.mark.parametrize(("mesh", "images"), [("x=2", "[x, _, _, _]"), ("x=3", "[_, _, _, x]")])
def test_convolutions_and_pooling(mesh: str, images: str) -> None:
    def loss(p: Any, x: Any, labels: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        h = lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=dims)
        window, strides = (1, 3, 2, 1), (1, 2, 2, 1)
        h = lax.reduce_window(jax.nn.relu(h), -jnp.inf, lax.max, window, strides, "SAME")
        scores = jax.nn.log_softmax(h.reshape(len(labels), -1) @ p["out"])
        return -jnp.mean(scores[jnp.arange(len(labels)), labels])

    given = {"kernel": values(3, 3, 2, 4), "out": values(3 * 4 * 4, 5)}
    labels = np.array([0, 1, 2, 4], np.int32)
    shardings = (None, images, None)
    agree(descend(loss), given, values(4, 6, 7, 2), labels, in_shardings=shardings, mesh=mesh)
