"""The perceptron, the attention and the transformer block of examples/, as PyTorch modules compiled for four ranks."""

import torch
from torch import nn
from torch.fx import traceback
from torch.nn import functional as F

import meshweave as mw

MESH = "dp=2, tp=2"
HEADS = 8


class Mlp(nn.Module):
    """Return relu(x w1 + b1) w2 + b2 for x (64x128)."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.zeros(128, 256)), nn.Parameter(torch.zeros(256))
        self.w2, self.b2 = nn.Parameter(torch.zeros(256, 96)), nn.Parameter(torch.zeros(96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.w1 + self.b1) @ self.w2 + self.b2


class Attention(nn.Module):
    """Return softmax(q k^T / sqrt(d)) v for each batch and head; all are batch x heads x positions x d."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Block(nn.Module):
    """Layer norm, causal attention of 8 heads, a gelu perceptron; width 128. The attention runs sliced, depth-first."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.b1, self.b2, self.g1, self.g2 = (nn.Parameter(torch.zeros(width)) for _ in range(4))
        self.down = nn.Parameter(torch.zeros(4 * width, width))
        self.up = nn.Parameter(torch.zeros(width, 4 * width))
        self.out = nn.Parameter(torch.zeros(width, width))
        self.qkv = nn.Parameter(torch.zeros(width, 3 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, positions, width = x.shape
        normed = F.layer_norm(x, (width,), self.g1, self.b1)
        parts = (normed @ self.qkv).view(batch, positions, 3, HEADS, width // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        with traceback.annotate({"meshweave": {"slice": "t=2", "order": "dfs"}}):
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ self.out
        normed = F.layer_norm(x, (width,), self.g2, self.b2)
        return x + F.gelu(normed @ self.up, approximate="tanh") @ self.down


PLACEMENTS = {
    "mlp": {"x": "[dp, _]", "w1": "[_, tp]", "b1": "[tp]", "w2": "[tp, _]"},
    "attention": dict.fromkeys("qkv", "[dp, tp, _, _]"),
    "block": {"x": "[dp, _, _]", "down": "[tp, _]", "up": "[_, tp]", "out": "[tp, _]", "qkv": "[_, tp]"},
}  # fmt: skip
KINDS = {"mlp": Mlp, "attention": Attention, "block": Block}


def compiled(name: str, module: nn.Module, *arguments: torch.Tensor) -> mw.Program:
    """A module of KINDS for arguments like these, on MESH."""
    return mw.from_torch(module.eval(), arguments, PLACEMENTS[name], MESH)


if __name__ == "__main__":
    torch.manual_seed(0)
    block, x = Block(), torch.randn(4, 64, 128)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.1)
    program = compiled("block", block, x)
    print((program(x) - block(x)).abs().max())
    print(program.explain())
