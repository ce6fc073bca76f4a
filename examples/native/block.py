"""A transformer block with the layouts of Megatron: layer norm, causal attention of 8 heads, a gelu perceptron."""

from typing import Any, NamedTuple

import numpy as np

import meshweave as mw

mesh = mw.Mesh(dp=2, tp=2)
HEADS = 8


class Block(NamedTuple):
    """Hold the parameters of a block of width d, or their layouts."""

    b1: Any  # d: of the norms, added
    b2: Any
    g1: Any  # d: of the norms, multiplied
    g2: Any
    down: Any  # 4d x d
    up: Any  # d x 4d
    out: Any  # d x d
    qkv: Any  # d x 3d


LAYOUTS = Block("[_]", "[_]", "[_]", "[_]", "[tp, _]", "[_, tp]", "[tp, _]", "[_, tp]")


def norm(x, scale, bias):
    """Normalise over the last dim."""
    apart = x - mw.mean(x, axis=-1, keepdims=True)
    spread = mw.mean(apart * apart, axis=-1, keepdims=True)
    return apart / mw.sqrt(spread + 1e-5) * scale + bias


def attention(x, qkv, out):
    """Causal attention of x, batch x positions x d."""
    batch, positions, width = x.shape
    parts = mw.reshape(x @ qkv, (batch, positions, 3, HEADS, width // HEADS))
    q, k, v = mw.unstack(mw.permute_dims(parts, (2, 0, 3, 1, 4)))
    scores = q @ k.mT / (width // HEADS) ** 0.5
    seen = mw.tril(mw.ones((positions, positions), dtype=mw.bool))
    mixed = mw.softmax(mw.where(seen, scores, -1e9)) @ v
    return mw.reshape(mw.permute_dims(mixed, (0, 2, 1, 3)), x.shape) @ out


def gelu(x):
    """The tanh approximation."""
    return x * (0.5 * (1 + mw.tanh(0.797884583 * (x + 0.044715 * x**3))))


def apply(x, p):
    """The block."""
    x = x + attention(norm(x, p.g1, p.b1), p.qkv, p.out)
    return x + gelu(norm(x, p.g2, p.b2) @ p.up) @ p.down


@mw.jit(mesh=mesh, in_layouts=("[dp, _, _]", LAYOUTS), out_layouts="[dp, _, _]")
def block(x, p):
    """The block of x, batch x positions x width."""
    return apply(x, p)


def random_block(rng: np.random.Generator, width: int = 128) -> Block:
    """Parameters from a generator."""
    shapes = (
        *((width,),) * 4,
        (4 * width, width), (width, 4 * width), (width, width), (width, 3 * width),
    )  # fmt: skip
    return Block(*[0.1 * rng.standard_normal(shape).astype(np.float32) for shape in shapes])


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 64, 128)).astype(np.float32)
    print(block(x, random_block(rng)))
    print(block.explain())
