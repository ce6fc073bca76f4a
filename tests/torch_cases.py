"""What models use at inference, one small function or module a case: `CASES` by name. Layers and models are here,
plain ops in torch_cases_ops.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """A module (or function) and arguments; `make` builds both anew, with the random numbers of a fixed seed."""

    make: Callable[[], tuple[Any, tuple[Any, ...]]]


CASES: dict[str, Case] = {}


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def add(name: str, module: Any, *args: Any) -> None:
    """A case; module and each argument may be a function without arguments that makes them."""
    assert name not in CASES, name

    def make() -> tuple[Any, tuple[Any, ...]]:
        torch.manual_seed(0)
        made = module() if isinstance(module, type) or _is_maker(module) else Function(module)
        return made.eval(), tuple(
            a() if callable(a) and not isinstance(a, Tensor) else a for a in args
        )

    CASES[name] = Case(make)


def _is_maker(module: Any) -> bool:
    return getattr(module, "makes", False)


def of(module: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Marks a function that makes a module."""
    module.makes = True  # type: ignore[attr-defined]
    return module


def rand(*shape: int, dtype: Any = torch.float32) -> Callable[[], Tensor]:
    """Makes normal random numbers."""
    return lambda: torch.randn(*shape).to(dtype)


def ints(high: int, *shape: int, dtype: Any = torch.int64) -> Callable[[], Tensor]:
    """Makes random integers from 0 to high - 1."""
    return lambda: torch.randint(0, high, shape).to(dtype)


X = rand(4, 6, 8)
M = rand(8, 6)

# Layers

add("linear", of(lambda: nn.Linear(8, 5)), X)
add("linear_no_bias", of(lambda: nn.Linear(8, 5, bias=False)), X)
add("bilinear", of(lambda: nn.Bilinear(8, 6, 5)), rand(4, 8), rand(4, 6))
add("conv1d", of(lambda: nn.Conv1d(6, 4, 3, padding=1)), X)
add("conv1d_stride", of(lambda: nn.Conv1d(6, 4, 3, stride=2)), X)
add("conv1d_causal", of(lambda: nn.Conv1d(6, 6, 3, padding=2, groups=6)), X)
add("conv2d", of(lambda: nn.Conv2d(4, 6, 3)), rand(2, 4, 8, 9))
add("conv2d_stride_padding", of(lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1)), rand(2, 4, 8, 9))
add("conv2d_groups", of(lambda: nn.Conv2d(4, 6, 3, groups=2)), rand(2, 4, 8, 8))
add("conv2d_depthwise", of(lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1)), rand(2, 4, 8, 8))
add("conv2d_dilation", of(lambda: nn.Conv2d(4, 6, 3, dilation=2)), rand(2, 4, 8, 8))
add("conv2d_same", of(lambda: nn.Conv2d(4, 6, 3, padding="same")), rand(2, 4, 8, 8))
add(
    "conv2d_reflect",
    of(lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")),
    rand(2, 4, 8, 8),
)
add("conv2d_1x1", of(lambda: nn.Conv2d(4, 6, 1)), rand(2, 4, 8, 8))
add("conv3d", of(lambda: nn.Conv3d(2, 3, 2)), rand(2, 2, 4, 4, 4))
add("conv_transpose1d", of(lambda: nn.ConvTranspose1d(6, 4, 3, stride=2)), X)
add("conv_transpose2d", of(lambda: nn.ConvTranspose2d(4, 3, 2, stride=2)), rand(2, 4, 4, 4))
add("unfold", of(lambda: nn.Unfold(2, stride=2)), rand(2, 3, 4, 4))
add("fold", of(lambda: nn.Fold((4, 4), 2, stride=2)), rand(2, 12, 4))
add("patches", of(lambda: nn.Conv2d(3, 8, 4, stride=4)), rand(2, 3, 8, 8))
add("max_pool1d", of(lambda: nn.MaxPool1d(2)), X)
add("max_pool2d", of(lambda: nn.MaxPool2d(3, stride=2, padding=1)), rand(2, 4, 8, 8))
add("max_pool2d_ceil", of(lambda: nn.MaxPool2d(3, stride=2, ceil_mode=True)), rand(2, 4, 8, 8))
add("max_pool2d_indices", of(lambda: nn.MaxPool2d(2, return_indices=True)), rand(2, 4, 8, 8))
add("avg_pool1d", of(lambda: nn.AvgPool1d(2)), X)
add("avg_pool2d", of(lambda: nn.AvgPool2d(3, stride=2, padding=1)), rand(2, 4, 8, 8))
add(
    "avg_pool2d_no_count",
    of(lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    rand(2, 4, 8, 8),
)
add("adaptive_avg_pool1d", of(lambda: nn.AdaptiveAvgPool1d(4)), X)
add("adaptive_avg_pool2d", of(lambda: nn.AdaptiveAvgPool2d((1, 1))), rand(2, 4, 8, 8))
add("adaptive_avg_pool2d_uneven", of(lambda: nn.AdaptiveAvgPool2d((3, 5))), rand(2, 4, 8, 8))
add("adaptive_max_pool2d", of(lambda: nn.AdaptiveMaxPool2d((2, 2))), rand(2, 4, 8, 8))
add("adaptive_max_pool1d_uneven", of(lambda: nn.AdaptiveMaxPool1d(5)), torch.arange(12.0)[None])
add("adaptive_max_pool1d_more", of(lambda: nn.AdaptiveMaxPool1d(7)), rand(2, 4, 12))
add(
    "adaptive_max_pool2d_uneven",
    of(lambda: nn.AdaptiveMaxPool2d((3, 5), return_indices=True)),
    rand(2, 4, 8, 8),
)
add("lp_pool", of(lambda: nn.LPPool1d(2, 2)), X)
add("embedding", of(lambda: nn.Embedding(11, 8)), ints(11, 4, 6))
add("embedding_padding", of(lambda: nn.Embedding(11, 8, padding_idx=0)), ints(11, 4, 6))
add("embedding_bag", of(lambda: nn.EmbeddingBag(11, 8, mode="sum")), ints(11, 4, 6))
add("layer_norm", of(lambda: nn.LayerNorm(8)), X)
add("layer_norm_2d", of(lambda: nn.LayerNorm([6, 8])), X)
add("layer_norm_plain", of(lambda: nn.LayerNorm(8, elementwise_affine=False)), X)
add("rms_norm", of(lambda: nn.RMSNorm(8)), X)
add("batch_norm1d", of(lambda: nn.BatchNorm1d(6)), X)
add("batch_norm2d", of(lambda: nn.BatchNorm2d(4)), rand(2, 4, 8, 8))
add("group_norm", of(lambda: nn.GroupNorm(2, 6)), X)
add("instance_norm", of(lambda: nn.InstanceNorm1d(6)), X)
add("local_response_norm", of(lambda: nn.LocalResponseNorm(2)), rand(2, 4, 6, 6))
add("normalize", lambda x: F.normalize(x, dim=-1), X)
add("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=-1), X, X)
add("dropout_eval", of(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))), X)
add("dropout2d_eval", of(lambda: nn.Dropout2d(0.3)), rand(2, 4, 8, 8))
add("lstm", of(lambda: nn.LSTM(8, 5, batch_first=True)), rand(2, 3, 8))
add("gru", of(lambda: nn.GRU(8, 5, batch_first=True)), rand(2, 3, 8))
add("rnn", of(lambda: nn.RNN(8, 5)), rand(3, 2, 8))
add("lstm_cell", of(lambda: nn.LSTMCell(8, 5)), rand(2, 8))
add("gru_cell", of(lambda: nn.GRUCell(8, 5)), rand(2, 8))
add("pixel_shuffle", of(lambda: nn.PixelShuffle(2)), rand(2, 8, 3, 3))
add("pixel_unshuffle", of(lambda: nn.PixelUnshuffle(2)), rand(2, 2, 4, 4))
add("channel_shuffle", of(lambda: nn.ChannelShuffle(2)), rand(2, 4, 3, 3))
add("flatten", of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 3))), X)
add("unflatten", lambda x: x.unflatten(2, (2, 4)).flatten(0, 1), X)
add("cross_entropy", lambda x, t: F.cross_entropy(x, t), rand(6, 5), ints(5, 6))
add(
    "nll_loss",
    lambda x, t: F.nll_loss(x.log_softmax(-1), t, reduction="none"),
    rand(6, 5),
    ints(5, 6),
)
add("mse_loss", F.mse_loss, X, X)
add("bce_logits", F.binary_cross_entropy_with_logits, X, lambda: torch.rand(4, 6, 8))
add("smooth_l1", F.smooth_l1_loss, X, X)
add("kl_div", lambda p, q: F.kl_div(p.log_softmax(-1), q.softmax(-1), reduction="batchmean"), X, X)

# Attention


class Mha(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)
        self.options = options

    def forward(self, x: Tensor) -> Any:
        return self.inner(x, x, x, **self.options)


Q = rand(2, 4, 6, 8)
add("multihead_attention", of(lambda: Mha()), X)
add("multihead_attention_no_weights", of(lambda: Mha(need_weights=False)), X)
add("multihead_attention_each", of(lambda: Mha(average_attn_weights=False)), X)
add(
    "multihead_attention_masked",
    of(lambda: Mha(attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1), need_weights=False)),
    X,
)
add("encoder_layer", of(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), X)
add(
    "encoder_layer_norm_first",
    of(
        lambda: nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, norm_first=True, activation="gelu"
        )
    ),
    X,
)
add(
    "encoder",
    of(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)),
    X,
)
add(
    "decoder_layer",
    of(lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)),
    X,
    rand(4, 5, 8),
)
add("sdpa", F.scaled_dot_product_attention, Q, Q, Q)
add("sdpa_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), Q, Q, Q)
add("sdpa_scale", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.2), Q, Q, Q)
add(
    "sdpa_bool_mask",
    lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
    Q,
    lambda: torch.ones(6, 6, dtype=torch.bool).tril(),
)
add(
    "sdpa_float_mask",
    lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
    Q,
    rand(2, 1, 6, 6),
)
add(
    "sdpa_gqa",
    lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
    Q,
    rand(2, 2, 6, 8),
)
add("sdpa_cross", F.scaled_dot_product_attention, Q, rand(2, 4, 5, 8), rand(2, 4, 5, 7))
add("sdpa_3d", F.scaled_dot_product_attention, X, X, X)
add(
    "sdpa_causal_cross",
    lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
    Q,
    rand(2, 4, 9, 8),
)


def rotary_halves(x: Tensor) -> Tensor:
    """Rotary embeddings as in LLaMA: the two halves of a head."""
    size, half = x.shape[-2], x.shape[-1] // 2
    angle = torch.arange(size).float()[:, None] * (1e4 ** (-torch.arange(half).float() / half))
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def rotary_pairs(x: Tensor) -> Tensor:
    """Rotary embeddings of neighbours: even and odd elements."""
    size, half = x.shape[-2], x.shape[-1] // 2
    angle = torch.arange(size).float()[:, None] * (1e4 ** (-torch.arange(half).float() / half))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1
    ).flatten(-2)


add("rotary_halves", rotary_halves, Q)
add("rotary_pairs", rotary_pairs, Q)
add(
    "kv_index_copy",
    lambda c, p, n: c.index_copy(2, p, n),
    Q,
    lambda: torch.tensor([1, 4]),
    rand(2, 4, 2, 8),
)
add("kv_slice_scatter", lambda c, n: torch.slice_scatter(c, n, 2, 1, 3), Q, rand(2, 4, 2, 8))
add("kv_cat", lambda c, n: torch.cat([c, n], 2), Q, rand(2, 4, 1, 8))


def kv_write(cache: Tensor, new: Tensor) -> Tensor:
    cache = cache.clone()
    cache[:, :, 2:4] = new
    return cache


def kv_write_at(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache = cache.clone()
    cache[:, :, at] = new
    return cache


add("kv_write", kv_write, Q, rand(2, 4, 2, 8))
add("kv_write_at", kv_write_at, Q, rand(2, 4, 2, 8), lambda: torch.tensor([0, 5]))
add(
    "alibi",
    lambda x: x + torch.arange(6)[None, :] * -torch.tensor([0.5, 0.25, 0.125, 0.1])[:, None, None],
    rand(4, 6, 6),
)
add(
    "causal_mask",
    lambda x: x.masked_fill(
        torch.triu(torch.ones(6, 6, dtype=torch.bool), 1), float("-inf")
    ).softmax(-1),
    rand(4, 6, 6),
)

# Activations

_ACTIVATIONS = (
    "relu relu6 gelu silu mish elu selu celu leaky_relu hardtanh hardsigmoid hardswish softplus softsign "
    "logsigmoid sigmoid tanh tanhshrink softshrink hardshrink"
)
for _name in _ACTIVATIONS.split():
    add(_name, getattr(F, _name), X)
add("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), X)
add("gelu_tanh_f64", lambda x: F.gelu(x, approximate="tanh"), rand(4, 6, 8, dtype=torch.float64))
add("prelu", of(lambda: nn.PReLU(6)), X)
add("glu", lambda x: F.glu(x, -1), X)
add("swiglu", lambda x: F.silu(x[..., :4]) * x[..., 4:], X)
add("threshold", lambda x: F.threshold(x, 0.1, 20), X)
add("softmin", lambda x: F.softmin(x, -1), X)
add("softmax", lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), X)
add(
    "softmax_to_f32", lambda x: x.softmax(-1, dtype=torch.float32), rand(4, 6, dtype=torch.bfloat16)
)

# Control flow


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v * 2, (x,))


def loop(x: Tensor) -> Any:
    return torch._higher_order_ops.while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, v * 2 + 1), (torch.tensor(0), x)
    )


add("cond_true", cond, lambda: torch.ones(4, 6))
add("cond_false", cond, lambda: -torch.ones(4, 6))
add("while_loop", loop, M)
add("python_loop", lambda x: sum(x[i] * i for i in range(4)), X)


# In place, views, aliases


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y += 1
    y.mul_(2).relu_()
    y[0] = 3.0
    y[:, 1:3] *= 2
    y.view(-1)[5] = 9.0
    return y


def masked_write(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0] = 0.5
    y.masked_fill_(y < -1, 7.0)
    return y


add("in_place", in_place, M)
add("masked_write", masked_write, M)
add(
    "fill_zero",
    lambda x: (torch.empty_like(x).fill_(3.0), torch.empty(3).zero_(), x.clone().copy_(x + 1)),
    M,
)
add("out_alias", lambda x: (x, x.T, x[1:]), M)
add("same_twice", lambda x: (lambda y: (y, y))(x + 1), M)
add("no_tensor_op", lambda x: x, M)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(6.0))
        self.register_buffer("scale", torch.ones(6) * 2, persistent=False)
        self.constant = torch.full((6,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale + self.constant


add("tied", of(Tied), ints(11, 4, 6))
add("buffers", of(Buffers), M)
add(
    "nested_structures",
    lambda t: {"a": (t["x"][0] + 1, [t["x"][1]]), "b": None, "c": t["y"]},
    lambda: {"x": [torch.ones(3), torch.zeros(2)], "y": torch.arange(4.0)},
)
add("scalar_in_out", lambda x, n: (x * n, n, x.sum()), M, 3)
add("scalar_tensor", lambda x, s: (x * s, s + 1), M, lambda: torch.tensor(2.0))
add(
    "zero_size",
    lambda x: (x + 1, x.sum(), x.sum(0), torch.cat([x, torch.ones(2, 6)]), x @ x.T),
    rand(0, 6),
)
add("zero_size_inner", lambda x, y: x @ y, rand(4, 0), rand(0, 5))
add("shape_only", lambda x: torch.zeros(x.shape[0]) + x.numel(), M)
add("non_contiguous", lambda x: x + 1, lambda: torch.randn(6, 8).T)
add("constant_result", lambda x: (x, torch.ones(3)), M)
add("item_free_scalar", lambda x: x * x.mean().sqrt() if x.ndim else x, lambda: torch.rand(4, 6))
