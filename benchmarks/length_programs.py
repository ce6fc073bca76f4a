"""The programs that `python -m benchmarks lengths` compiles for one size, and for any size up to a bound.

Each is made by a function of a length, a number or an `mw.Dim`. What that returns takes what `Case.arguments` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshweave as mw

WIDTH, HEADS, BOUND, WORDS = 256, 4, 1024, 1000
Length = int | mw.Dim
Made = Callable[..., Any]


class Case(NamedTuple):
    """Hold a program's name, what compiles it for a length, and the arguments of a call of n rows."""

    name: str
    make: Callable[[Length], Made]
    arguments: Callable[[int], tuple[Any, ...]]


def drawn(*shape: int) -> np.ndarray:
    """Return numbers whose products with rows of variance 1 have a variance of about 1."""
    fan = shape[0] if len(shape) > 1 else 1
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) / fan**0.5


def _rows(n: int) -> tuple[Any, ...]:
    return (np.random.default_rng(n).standard_normal((n, WIDTH), np.float32),)


def _tokens(n: int) -> tuple[Any, ...]:
    return (np.random.default_rng(n).integers(0, WORDS, n).astype(np.int32),)


def _python(function: Made, kind: str = "f32", *rest: int) -> Callable[[Length], Made]:
    """Return what compiles a function of meshweave's of one argument, whose first dim has the length."""

    def make(n: Length) -> Made:
        jitted = mw.jit(function)
        jitted.lower(mw.ShapeDtype((n, *rest), kind)).compile()
        return jitted

    return make


# In meshweave's own functions.


def _mlp() -> Made:
    up, down = drawn(WIDTH, 1024), drawn(1024, WIDTH)
    return lambda x: mw.maximum(x @ up, 0.0) @ down


def normed(x: Any) -> Any:
    """Return rows of mean 0 and variance 1."""
    mean = mw.mean(x, axis=-1, keepdims=True)
    return (x - mean) / mw.sqrt(mw.var(x, axis=-1, keepdims=True) + 1e-5)


def block(x: Any, w: dict[str, Any]) -> Any:
    """Compute a transformer block with causal attention."""
    rows, h = x.shape[0], normed(x)
    q, k, v = (
        mw.permute_dims((h @ w[name]).reshape(rows, HEADS, WIDTH // HEADS), (1, 0, 2))
        for name in "qkv"
    )
    place = mw.arange(rows)
    scores = q @ mw.permute_dims(k, (0, 2, 1)) * (WIDTH // HEADS) ** -0.5
    scores = mw.where(place[:, None] >= place[None, :], scores, -1e9)
    mixed = mw.permute_dims(mw.softmax(scores, axis=-1) @ v, (1, 0, 2)).reshape(rows, WIDTH)
    x = x + mixed @ w["o"]
    return x + mw.maximum(normed(x) @ w["up"], 0.0) @ w["down"]


SHAPES = {
    **dict.fromkeys("qkvo", (WIDTH, WIDTH)), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH),
}  # fmt: skip


def _block() -> Made:
    weights = {name: drawn(*shape) for name, shape in SHAPES.items()}
    return lambda x: block(x, weights)


def _reductions(x: Any) -> Any:
    shares = mw.softmax(x, axis=-1)
    return shares, mw.sum(x, axis=0), mw.max(x, axis=0), mw.var(x, axis=0), mw.argmax(x, axis=-1)


def _cross_entropy() -> Made:
    table, out = drawn(WORDS, 64), drawn(64, WORDS)

    def loss(tokens: Any) -> Any:
        scores = mw.take(table, tokens, axis=0) @ out
        scores = scores - mw.max(scores, axis=-1, keepdims=True)
        shares = scores - mw.log(mw.sum(mw.exp(scores), axis=-1, keepdims=True))
        return -mw.mean(mw.take_along_axis(shares, tokens[:, None], axis=-1))

    return loss


# In PyTorch.


def _torch(module: Callable[[], Any], arguments: Callable[[int], tuple[Any, ...]], dim: int):
    """Return what compiles a module of one argument, whose dim `dim` has the length."""

    def make(n: Length) -> Made:
        import torch

        torch.manual_seed(0)
        made = module().eval()
        if isinstance(n, int):
            return mw.from_torch(made, arguments(n))
        size = torch.export.Dim(n.name, max=n.max)
        exported = torch.export.export(made, arguments(7), dynamic_shapes=({dim: size},))
        return mw.from_torch(exported)

    return make


def _torch_tokens(n: int) -> tuple[Any, ...]:
    import torch

    return (torch.from_numpy(np.random.default_rng(n).integers(0, WORDS, (1, n))),)


def _torch_channels(n: int) -> tuple[Any, ...]:
    import torch

    return (torch.from_numpy(np.random.default_rng(n).standard_normal((1, 64, n), np.float32)),)


def _torch_sequences(n: int) -> tuple[Any, ...]:
    import torch

    return (torch.from_numpy(np.random.default_rng(n).standard_normal((n, 8, 64), np.float32)),)


def _language_model(family: str) -> Callable[[], Any]:
    """Return what makes a model of transformers of two layers, 256 wide, whose call gives logits or rows."""

    def make() -> Any:
        import torch
        import transformers as t

        sizes = {"vocab_size": WORDS, "use_cache": False}
        if family == "GPT-2":
            config = t.GPT2Config(n_layer=2, n_embd=WIDTH, n_head=HEADS, n_positions=BOUND, **sizes)
            model = t.GPT2LMHeadModel(config)
        else:
            sizes |= {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
            sizes |= {"intermediate_size": 1024, "max_position_embeddings": BOUND}
            if family == "Llama":
                model = t.LlamaForCausalLM(t.LlamaConfig(**sizes))
            else:
                model = t.BertModel(t.BertConfig(**sizes))

        class Rows(torch.nn.Module):  # type: ignore[name-defined,misc]
            """Give the tensor of a call alone."""

            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, tokens: Any) -> Any:
                return self.model(tokens)[0]

        return Rows()

    return make


def _convolutions() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv1d(64, 128, 3, padding=1), nn.GELU(), nn.Conv1d(128, 64, 5, padding=2)
    )


def _recurrent(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        class Rows(torch.nn.Module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = getattr(torch.nn, kind)(64, 128, batch_first=True)

            def forward(self, x: Any) -> Any:
                return self.model(x)[0]

        return Rows()

    return make


# In JAX.


def _jax(n: Length) -> Made:
    """Compile a gated layer with norms of JAX, exported with a symbolic size for any length."""
    import jax
    import jax.numpy as jnp

    gate, up, down = drawn(WIDTH, 1024), drawn(WIDTH, 1024) * 2, drawn(1024, WIDTH)

    def layer(x: Any) -> Any:
        h = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        return x + (jax.nn.silu(h @ gate) * (h @ up)) @ down - jnp.mean(x, axis=0)

    if isinstance(n, int):
        return mw.from_jax(layer, mw.ShapeDtype((n, WIDTH), "f32"))
    (size,) = jax.export.symbolic_shape(n.name)
    exported = jax.export.export(jax.jit(layer))(jax.ShapeDtypeStruct((size, WIDTH), "float32"))
    return mw.from_jax(exported.call, mw.ShapeDtype((n, WIDTH), "f32"))


CASES = (
    Case("MLP", lambda n: _python(_mlp(), "f32", WIDTH)(n), _rows),
    Case("block", lambda n: _python(_block(), "f32", WIDTH)(n), _rows),
    Case("GPT-2", _torch(_language_model("GPT-2"), _torch_tokens, 1), _torch_tokens),
    Case("Llama", _torch(_language_model("Llama"), _torch_tokens, 1), _torch_tokens),
    Case("BERT", _torch(_language_model("BERT"), _torch_tokens, 1), _torch_tokens),
    Case("JAX layer", _jax, _rows),
    Case("GRU", _torch(_recurrent("GRU"), _torch_sequences, 0), _torch_sequences),
    Case("LSTM", _torch(_recurrent("LSTM"), _torch_sequences, 0), _torch_sequences),
    Case("conv1d", _torch(_convolutions, _torch_channels, 2), _torch_channels),
    Case("reductions", _python(_reductions, "f32", WIDTH), _rows),
    Case("cross entropy", lambda n: _python(_cross_entropy(), "i32")(n), _tokens),
)
