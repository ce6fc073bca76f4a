"""Solve a x = b with conjugate gradients; rows of the matrix and of all vectors lie over four ranks."""

import numpy as np

import meshweave as mw

SIZE = 300


@mw.jit(mesh="x=4", in_layouts=("[x, _]", "[x]"), out_layouts=("[x]", "[]"))
def solve(a, b):
    """Return x, and the number of products with a. a: symmetric and positive definite."""
    enough = 1e-6 * mw.sqrt(mw.vecdot(b, b))

    def step(state):
        x, left, way, size, count = state
        turned = a @ way
        far = size / mw.vecdot(way, turned)
        x, left = x + far * way, left - far * turned
        smaller = mw.vecdot(left, left)
        return x, left, left + smaller / size * way, smaller, count + 1

    start = (mw.zeros_like(b), b, b, mw.vecdot(b, b), mw.asarray(0))
    x, *_, count = mw.while_loop(lambda state: mw.sqrt(state[3]) > enough, step, start)
    return x, count


def main():
    rng = np.random.default_rng(0)
    factor = rng.normal(0, SIZE**-0.5, (SIZE, SIZE)).astype(np.float32)
    a = factor @ factor.T + np.eye(SIZE, dtype=np.float32)
    b = rng.normal(size=SIZE).astype(np.float32)
    x, count = solve(a, b)
    error = np.abs(np.asarray(x) - np.linalg.solve(a.astype(np.float64), b)).max()
    print(f"{int(count)} products with a {SIZE} x {SIZE} matrix; error below 1e-4")
    print(x.layout, [len(shard) for shard in x.shards])
    assert error < 1e-4


if __name__ == "__main__":
    main()
