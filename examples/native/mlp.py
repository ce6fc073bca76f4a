"""A perceptron of two layers: rows over dp, the hidden dim over tp."""

import numpy as np

import meshweave as mw

mesh = mw.Mesh(dp=2, tp=2)


@mw.jit(
    mesh=mesh,
    in_layouts=("[dp, _]", "[_, tp]", "[tp]", "[tp, _]", "[_]"),
    out_layouts="[dp, _]",
)
def mlp(x, w1, b1, w2, b2):
    """Return relu(x w1 + b1) w2 + b2 for x (64x128)."""
    return mw.relu(x @ w1 + b1) @ w2 + b2


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    shapes = ((64, 128), (128, 256), (256,), (256, 96), (96,))
    y = mlp(*[rng.standard_normal(shape).astype(np.float32) for shape in shapes])
    print(y, np.asarray(y).sum())
    print(mlp.explain())
