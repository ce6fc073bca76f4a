"""Small PyTorch modules, and their arguments, that tests compile and `tests/data/torch/generate.py` records."""

from collections.abc import Callable
from typing import Any

import torch
import torch.fx.traceback as traceback
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS = 32, 4


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    """Causal self-attention; `hints` annotates what is between the projections."""

    def __init__(self, hints: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.hints = hints

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            project(x).view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        if self.hints is None:
            y = self.core(q, k, v)
        else:
            with traceback.annotate({"meshweave": self.hints}):
                y = self.core(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A transformer block: layer norm, causal attention, gelu MLP."""

    def __init__(self, hints: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(hints), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) @ self.tokens.weight.T


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _masked(q: Tensor, keep: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=keep)


def _tokens() -> Tensor:
    return torch.arange(24).reshape(4, 6) % 11


def models() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Modules in evaluation mode with arguments, by name; the same on every call."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, WIDTH)
    keep = torch.ones(8, 8, dtype=torch.bool).tril(-1)  # row 0 keeps nothing
    made = {
        "mlp": (Mlp(), (x,)),
        "attention": (Attention(), (x,)),
        "block": (Block(), (x,)),
        "embedding": (Embedded(), (_tokens(),)),
        "conv": (Conv(), (torch.randn(4, 3, 8, 8),)),
        "layer_norm": (nn.LayerNorm([8, WIDTH]), (x,)),
        "gelu": (Fn(lambda v: (F.gelu(v), F.gelu(v, approximate="tanh"))), (x,)),
        "softmax": (Fn(lambda v: (v.softmax(-1), F.log_softmax(v, 1))), (x,)),
        "masked_attention": (Fn(_masked), (torch.randn(4, 2, 8, 8), keep)),
    }
    return {name: (module.eval(), args) for name, (module, args) in made.items()}


MEGATRON = {
    "*.[qkv].weight": "[tp, _]",
    "*.[qkv].bias": "[tp]",
    "*.o.weight": "[_, tp]",
    "*.up.weight": "[tp, _]",
    "*.up.bias": "[tp]",
    "*.down.weight": "[_, tp]",
}
"""Placements of a block's parameters: columns, then rows, over tp."""
