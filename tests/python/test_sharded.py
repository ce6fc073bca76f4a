"""Every kind of function on four ranks, in random layouts with padding, against one rank and NumPy."""

import numpy as np
import pytest
from depth import sampled
from traced import mw, run_all

RNG = np.random.default_rng(11)
A = RNG.standard_normal((5, 6)).astype(np.float32)
B = RNG.standard_normal((6, 7)).astype(np.float32)
I = RNG.integers(-5, 5, (5, 3))  # noqa: E741

FUNCTIONS = {
    "matmul": lambda a, b, i: a @ b,
    "einsum": lambda a, b, i: mw.einsum("ij,jk->kij", a, b),
    "tensordot": lambda a, b, i: mw.tensordot(a, b, axes=0),
    "vecdot": lambda a, b, i: mw.vecdot(a, a[0]),
    "outer": lambda a, b, i: mw.outer(a[:, 0], b[1]),
    "transpose": lambda a, b, i: a.T + 1,
    "sum": lambda a, b, i: mw.sum(a, axis=0),
    "mean": lambda a, b, i: mw.mean(a),
    "var": lambda a, b, i: mw.var(a, axis=1),
    "max": lambda a, b, i: mw.max(a, axis=1, keepdims=True) + a,
    "min": lambda a, b, i: mw.min(i, axis=0),
    "prod": lambda a, b, i: mw.prod(a, axis=1),
    "any": lambda a, b, i: mw.any(a > 1.5, axis=0),
    "all": lambda a, b, i: mw.all(a < 9),
    "argmax": lambda a, b, i: mw.argmax(a, axis=0),
    "argmin": lambda a, b, i: mw.argmin(b),
    "softmax": lambda a, b, i: mw.softmax(b, axis=0),
    "cumulative": lambda a, b, i: mw.cumulative_sum(a, axis=1),
    "cumulative rows": lambda a, b, i: mw.cumulative_sum(a, axis=0),
    "take": lambda a, b, i: mw.take(a, i, axis=0),
    "take columns": lambda a, b, i: mw.take(b, i[0], axis=1),
    "take along": lambda a, b, i: mw.take_along_axis(a, i, axis=1),
    "sort": lambda a, b, i: mw.sort(a, axis=0),
    "argsort": lambda a, b, i: mw.argsort(b, axis=1),
    "searchsorted": lambda a, b, i: mw.searchsorted(mw.sort(a[0]), b),
    "concat": lambda a, b, i: mw.concat([a.T, b], axis=1),
    "concat rows": lambda a, b, i: mw.concat([a, b[:, :6], a]),
    "stack": lambda a, b, i: mw.stack([a, a * 2], axis=1),
    "slice": lambda a, b, i: a[1:4, ::-2],
    "index": lambda a, b, i: a[2] + b[:, 3],
    "flip": lambda a, b, i: mw.flip(a),
    "roll": lambda a, b, i: mw.roll(b, 3, axis=(0)),
    "tile": lambda a, b, i: mw.tile(a, (2, 2)),
    "repeat": lambda a, b, i: mw.repeat(a, 2, axis=0),
    "reshape": lambda a, b, i: mw.reshape(a, (3, 10)),
    "split": lambda a, b, i: mw.reshape(a, (5, 2, 3)) * 2,
    "merge": lambda a, b, i: mw.reshape(mw.stack([a, a + 1], axis=2), (5, 12)),
    "broadcast": lambda a, b, i: mw.broadcast_to(a, (2, 5, 6)) + a[:, :1],
    "tril": lambda a, b, i: mw.tril(a, k=1),
    "arange": lambda a, b, i: a + mw.arange(6) * mw.expand_dims(mw.arange(5), 1),
    "eye": lambda a, b, i: mw.eye(5) @ a,
    "where": lambda a, b, i: mw.where(a > 0, a, mw.sum(a)),
    "integers": lambda a, b, i: i // (i + 6) + i % 3,
    "constant": lambda a, b, i: a * np.arange(30, dtype=np.float32).reshape(5, 6),
    "scan": lambda a, b, i: mw.scan(lambda c, r: (c + r, mw.tanh(c)), mw.zeros(6), a)[1],
    "cond": lambda a, b, i: mw.cond(mw.sum(a) > 0, lambda: a + 1, lambda: a - 1),
    "while": lambda a, b, i: mw.while_loop(lambda v: mw.max(v) < 100, lambda v: v * 2, a),
}

LAYOUTS = [
    ("[x, y]", "[y, x]", "[x, _]"),
    ("[_, x]", "[x, _]", "[_, y]"),
    ("[x*y, _]", "[_, y*x]", "[y, x]"),
    ("[_, y*x]", "[x*y, _]", "[x*y, _]"),
]


@pytest.fixture(scope="module")
def one_rank():
    return run_all(FUNCTIONS, A, B, I)


@sampled(4)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
def test_four_ranks_agree_with_one(one_rank, layouts):
    found = run_all(FUNCTIONS, A, B, I, mesh="x=2, y=2", in_layouts=layouts)
    for name, right in one_rank.items():
        assert found[name].dtype == right.dtype and found[name].shape == right.shape, name
        assert np.allclose(found[name], right, 1e-5, 1e-5), name


@sampled(3)
@pytest.mark.parametrize("out", ["[x*y, _]", "[y, x]", "[_, y]"])
def test_results_in_stated_layouts(one_rank, out):
    matrices = {n: f for n, f in FUNCTIONS.items() if one_rank[n].ndim == 2}
    found = run_all(
        matrices, A, B, I, mesh="x=2, y=2", in_layouts=("[x, _]", "[y, _]", None), out_layouts=out
    )
    for name in matrices:
        assert np.allclose(found[name], one_rank[name], 1e-5, 1e-5), name


def test_one_rank_agrees_with_numpy(one_rank):
    right = {
        "matmul": A @ B, "transpose": A.T + 1, "argmax": A.argmax(0), "sort": np.sort(A, 0),
        "take": np.take(A, I, 0), "tile": np.tile(A, (2, 2)), "roll": np.roll(B, 3, 0),
        "integers": I // (I + 6) + I % 3, "reshape": A.reshape(3, 10), "tril": np.tril(A, 1),
        "take along": np.take_along_axis(A, I, 1), "slice": A[1:4, ::-2],
    }  # fmt: skip
    for name, value in right.items():
        assert np.allclose(one_rank[name], value, 1e-5, 1e-5), name


@pytest.mark.parametrize(
    ("narrow", "wide"), [("float16", "float32"), ("int8", "int16"), ("float32", "float64")]
)
def test_a_widened_value_does_not_lie_where_a_padded_one_of_as_many_bytes_did(narrow, wide):
    # One row over two ranks: the gathered buffer has room for two.
    x = np.arange(-4, 12).reshape(1, 16).astype(narrow)
    f = mw.jit(
        lambda a: mw.cumulative_sum(mw.astype(mw.constrain(a, "[_, x]"), wide), axis=1, dtype=wide),
        mesh="x=2, y=2", in_layouts="[y, x]",
    )  # fmt: skip
    assert np.array_equal(f(x).numpy(), np.cumsum(x, 1, dtype=wide))
