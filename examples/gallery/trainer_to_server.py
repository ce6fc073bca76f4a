"""Move weights from a trainer's mesh to a server's: each element goes straight to where it is used."""

import numpy as np

import meshweave as mw

TRAINER, SERVER = mw.Mesh(dp=2, tp=2), mw.Mesh(tp=3)


@mw.jit(mesh=TRAINER, in_layouts=("[dp, tp]", "[dp, _]", "[dp, _]"), out_layouts="[dp, tp]")
def trained(w, x, y):
    """Take one step of gradient descent; the weights are cut over both axes."""
    slope = mw.grad(lambda w: mw.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * slope


@mw.jit(mesh=SERVER, in_layouts=("[_, tp]", "[_, _]"), out_layouts="[_, _]")
def served(w, x):
    return x @ w


def main():
    rng = np.random.default_rng(0)
    w, x, y = (rng.normal(size=size).astype(np.float32) for size in [(48, 30), (64, 48), (64, 30)])
    weights = trained(w, x, y)
    moved = mw.redistribute(weights, "[_, tp]", mesh=SERVER)
    print(f"{weights.layout} on {weights.mesh} -> {moved.layout} on {moved.mesh}")
    print("each rank of the server holds", [part.shape for part in moved.shards])
    assert np.array_equal(np.asarray(moved), np.asarray(weights))
    assert np.allclose(np.asarray(served(moved, x)), x @ np.asarray(weights), atol=1e-4)


if __name__ == "__main__":
    main()
