"""A Llama-like language model in JAX: rotary embeddings, grouped queries, SwiGLU, and a cache that each token updates.

`forward` takes any number of new tokens: all of a prompt (prefill), or one of each sequence (decode). The cache is two
arrays for each layer, of a fixed length, and comes back with the new keys and values in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
Cache = list[dict[str, Any]]
Keep = Callable[[dict[str, Any], Any, Any], tuple[dict[str, Any], Any, Any]]


@dataclass(frozen=True)
class Config:
    """Sizes of a model. length: of the cache, the most tokens that a sequence has."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    groups: int = 4
    hidden: int = 704
    vocabulary: int = 1000
    length: int = 64

    @property
    def head(self) -> int:
        """Return the width of a head."""
        return self.width // self.heads


def parameters(config: Config, seed: int = 0, dtype: Any = np.float32) -> Params:
    """Return random parameters as NumPy arrays."""
    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns), np.float32) / np.sqrt(rows)).astype(dtype)

    ones = np.ones(config.width, dtype)
    kv = config.groups * config.head
    layers = [
        {
            "norm1": ones, "norm2": ones,
            "q": normal(config.width, config.width), "k": normal(config.width, kv),
            "v": normal(config.width, kv), "o": normal(config.width, config.width),
            "gate": normal(config.width, config.hidden), "up": normal(config.width, config.hidden),
            "down": normal(config.hidden, config.width),
        }
        for _ in range(config.layers)
    ]  # fmt: skip
    table = normal(config.vocabulary, config.width)
    head = normal(config.width, config.vocabulary)
    return {"table": table, "norm": ones, "head": head, "layers": layers}


def empty_cache(config: Config, batch: int, dtype: Any = np.float32) -> Cache:
    """Return a cache without tokens, as NumPy arrays."""
    shape = (batch, config.groups, config.length, config.head)
    return [
        {"k": np.zeros(shape, dtype), "v": np.zeros(shape, dtype)} for _ in range(config.layers)
    ]


def forward(
    config: Config, params: Params, cache: Cache, tokens: Any, start: Any, keep: Keep | None = None
) -> Any:
    """Return (cache, logits of the last token) after tokens, int32 of (batch, count).

    start: the place of the first of them, of all sequences, or int32 of (batch) with that of each.
    keep:  writes new keys and values of a layer, (batch, groups, count, size), into its part of the cache; returns that
           part, and the keys and values that the tokens attend to, those of place 0 first. Without it the cache has a
           row for each sequence.
    """
    keep = keep or (lambda kept, k, v: _put(kept, k, v, start))
    places = jnp.asarray(start)[..., None] + jnp.arange(tokens.shape[1])
    x = params["table"][tokens]
    cosine, sine = _rotation(config, places)
    if places.ndim == 2:  # a dim for heads, as in all that these meet
        cosine, sine, places = cosine[:, None], sine[:, None], places[:, None, None]
    new = []
    for layer, kept in zip(params["layers"], cache):
        h = _normal(x, layer["norm1"])
        q, k, v = (_heads(_times(h, layer[name]), config.head) for name in "qkv")
        whole, keys, values = keep(kept, _rotated(k, cosine, sine), v)
        new.append(whole)
        seen = jnp.arange(keys.shape[2]) <= places[..., None]
        x = x + _times(_attention(_rotated(q, cosine, sine), keys, values, seen), layer["o"])
        h = _normal(x, layer["norm2"])
        x = x + _times(
            jax.nn.silu(_times(h, layer["gate"])) * _times(h, layer["up"]), layer["down"]
        )
    return new, _times(_normal(x[:, -1], params["norm"]), params["head"])


def _times(x: Any, weight: Any) -> Any:
    """Multiply by a matrix, or by one of few bits: numbers of int8, and the scale of each column."""
    if not isinstance(weight, dict):
        return x @ weight
    product = x.astype(jnp.float32) @ weight["values"].astype(jnp.float32)
    return (product * weight["scales"]).astype(x.dtype)


def _put(kept: dict[str, Any], k: Any, v: Any, start: Any) -> tuple[dict[str, Any], Any, Any]:
    """Write new keys and values into the part of a layer from place `start` on; they attend to all of it."""
    whole = {
        name: jax.lax.dynamic_update_slice(kept[name], new, (0, 0, start, 0))
        for name, new in (("k", k), ("v", v))
    }
    return whole, whole["k"], whole["v"]


def _normal(x: Any, gain: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return wide.astype(x.dtype) * gain


def _heads(x: Any, size: int) -> Any:
    """Return (batch, count, heads * size) as (batch, heads, count, size)."""
    batch, count, width = x.shape
    return x.reshape(batch, count, width // size, size).transpose(0, 2, 1, 3)


def _rotation(config: Config, places: Any) -> tuple[Any, Any]:
    frequencies = 10000.0 ** (-jnp.arange(0, config.head, 2) / config.head)
    angles = places[:, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    """Rotate pairs of each head by an angle that depends on the place."""
    half = x.shape[-1] // 2
    one, other = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([one * cosine - other * sine, other * cosine + one * sine], axis=-1)
    return turned.astype(x.dtype)


def _attention(q: Any, keys: Any, values: Any, seen: Any) -> Any:
    """Attend to all places that are seen; several heads of q share those of a group."""
    batch, heads, count, size = q.shape
    groups = keys.shape[1]
    q = q.reshape(batch, groups, heads // groups * count, size)
    scores = jnp.einsum("bgqd,bgkd->bgqk", q, keys).astype(jnp.float32) / np.sqrt(size)
    scores = scores.reshape(batch, groups, heads // groups, count, -1)
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(q.dtype)
    weights = weights.reshape(batch, groups, heads // groups * count, -1)
    mixed = jnp.einsum("bgqk,bgkd->bgqd", weights, values)
    mixed = mixed.reshape(batch, heads, count, size).transpose(0, 2, 1, 3)
    return mixed.reshape(batch, count, heads * size)
