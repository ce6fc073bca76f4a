"""Attention of 4x8 heads: batch over dp, heads over tp."""

import numpy as np

import meshweave as mw

mesh = mw.Mesh(dp=2, tp=2)
heads = mw.P("dp", "tp", None, None)


@mw.jit(mesh=mesh, in_layouts=heads, out_layouts=heads)
def attention(q, k, v):
    """Return softmax(q k^T / sqrt(d)) v for each batch and head; all are batch x heads x positions x d."""
    scores = mw.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    return mw.softmax(scores) @ v


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    y = attention(*[rng.standard_normal((4, 8, 128, 32)).astype(np.float32) for _ in range(3)])
    print(y)
    print(attention.explain())
