"""scan, cond and while_loop against Python's own loops."""

import numpy as np
import pytest
from depth import sampled
from traced import mw, run_all

from meshweave.errors import CompileError

X = np.random.default_rng(5).standard_normal((6, 3)).astype(np.float32)


def test_scan_with_trees_and_captured_values():
    w = np.eye(3, dtype=np.float32) * 0.5 + 0.1

    @mw.jit
    def recurrent(x, w):
        def step(carry, inputs):
            h = mw.tanh(carry["h"] @ w + inputs["x"])
            return {"h": h, "n": carry["n"] + 1}, (h, mw.sum(h))

        last, (hs, sums) = mw.scan(step, {"h": mw.zeros(3), "n": 0}, {"x": x})
        return last, hs, sums

    last, hs, sums = recurrent(X, w)
    h, rows = np.zeros(3, np.float32), []
    for row in X:
        h = np.tanh(h @ w + row)
        rows.append(h)
    assert np.allclose(np.asarray(hs), rows, atol=1e-6)
    assert np.allclose(np.asarray(last["h"]), h, atol=1e-6) and np.asarray(last["n"]) == 6
    assert np.allclose(np.asarray(sums), np.sum(rows, axis=1), atol=1e-5)


def test_scan_backwards_without_xs_and_of_nothing():
    cases = {
        "reverse": lambda x: mw.scan(lambda c, r: (c + r, c), mw.zeros(3), x, reverse=True)[1],
        "length": lambda x: mw.scan(lambda c, _: (c * 2, None), x[0], length=4)[0],
        "none": lambda x: mw.scan(lambda c, r: (c + r, r), mw.ones(3), x[:0])[0],
        "nested": lambda x: mw.scan(
            lambda c, r: (mw.scan(lambda d, e: (d + e, None), c, r)[0], None), 0.0, x
        )[0],
        "no carry": lambda x: mw.scan(lambda c, r: (None, r * 2), None, x)[1],
    }
    found = run_all(cases, X)
    backwards = np.cumsum(X[::-1], 0)[::-1] - X
    assert np.allclose(found["reverse"], backwards, atol=1e-5)
    assert np.allclose(found["length"], X[0] * 16)
    assert np.array_equal(found["none"], np.ones(3))
    assert np.allclose(found["nested"], X.sum(), atol=1e-5)
    assert np.allclose(found["no carry"], X * 2)


def test_cond_takes_one_branch():
    @mw.jit
    def chosen(x, limit):
        big = mw.sum(x) > limit
        y, z = mw.cond(big, lambda a: (a * 2, mw.sum(a)), lambda a: (a - 1, mw.max(a)), x)
        return y, z, mw.cond(True, lambda: x, lambda: None)

    y, z, same = chosen(X, -100.0)
    assert np.allclose(np.asarray(y), X * 2) and np.allclose(np.asarray(z), X.sum(), atol=1e-5)
    y, z, _ = chosen(X, 100.0)
    assert np.allclose(np.asarray(y), X - 1) and np.asarray(z) == X.max()
    assert np.array_equal(np.asarray(same), X) and chosen.cache_info().misses == 1


def test_while_loop():
    @mw.jit
    def halvings(x):
        return mw.while_loop(
            lambda s: mw.max(mw.abs(s[0])) > 0.01, lambda s: (s[0] / 2, s[1] + 1), (x, 0)
        )

    x, n = halvings(X)
    rounds = int(np.ceil(np.log2(np.abs(X).max() / 0.01)))
    assert np.asarray(n) == rounds and np.allclose(np.asarray(x), X / 2**rounds)


def test_a_scan_on_four_ranks_agrees_with_one():
    def steps(x, w):
        def step(c, row):
            c = mw.tanh(c @ w + row)
            return c, c * 2

        return mw.scan(step, mw.zeros((8, 6)), x)

    x = np.random.default_rng(6).standard_normal((5, 8, 6)).astype(np.float32)
    w = np.random.default_rng(7).standard_normal((6, 6)).astype(np.float32)
    one = mw.jit(steps)(x, w)
    four = mw.jit(steps, mesh="a=2, b=2", in_layouts=("[_, a, _]", "[_, b]"))(x, w)
    for y, z in zip(one, four, strict=True):
        assert np.allclose(np.asarray(y), np.asarray(z), atol=1e-5)


WRONG = {
    "the carry is 3xf32, it must stay 6x3xf32": lambda x: mw.scan(lambda c, r: (c[0], r), x, x),
    "must return two things": lambda x: mw.scan(lambda c, r: c, x, x),
    "how many rounds": lambda x: mw.scan(lambda c, r: (c, r), 0, (x, x[:2])),
    "one bool is right": lambda x: mw.cond(x > 0, lambda: x, lambda: x),
    "it must stay": lambda x: mw.cond(mw.max(x) > 0, lambda: x, lambda: x[0]),
    "must keep its structure": lambda x: mw.while_loop(lambda s: False, lambda s: (s, s), x),
    "a branch on a value": lambda x: x if mw.max(x) > 0 else -x,
    "cannot become a number": lambda x: float(x[0, 0]),
    "made inside the body of a while_loop": lambda x: (
        mw.while_loop(lambda s: s < 1, lambda s: x.__setitem__(0, 1.0) or s + 1, 0),
        x,
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_mistakes(says):
    with pytest.raises(CompileError, match=says) as caught:
        mw.jit(WRONG[says])(X)
    assert caught.value.location.startswith(__file__ + ":")


def test_a_value_that_leaves_its_loop():
    kept = []

    def leaking(x):
        mw.scan(lambda c, r: (kept.append(c * 2) or c, r), 0.0, x)
        return kept[0] + x

    with pytest.raises(CompileError, match="made inside the body of a scan is used outside"):
        mw.jit(leaking)(X)
    with pytest.raises(CompileError, match="after it"):
        kept[0] + 1
    with pytest.raises(CompileError, match="another traced call"):
        mw.jit(lambda x: kept[0] + x)(X)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (3, 2, 0)])
def test_a_scan_of_rows_without_elements(shape):
    x = np.ones(shape, np.float32)
    sums = mw.jit(lambda x: mw.scan(lambda c, r: (c + r, c + r), mw.zeros(shape[1:]), x))
    last, each = sums(x)
    np.testing.assert_array_equal(np.asarray(last), x.sum(0))
    np.testing.assert_array_equal(np.asarray(each), x.cumsum(0))


BRANCHES = [
    (lambda m, c, r: c + r, lambda m, c, r: c - r),
    (lambda m, c, r: c, lambda m, c, r: r),
    (lambda m, c, r: r, lambda m, c, r: c * 0.5 + r * 2),
    (lambda m, c, r: -c, lambda m, c, r: c),
]
SHARDED = [
    {},
    {"mesh": "x=2, y=2", "in_layouts": "[x, y]"},
    {"mesh": "x=4", "in_layouts": "[_, x]"},
]


@sampled(1)
@pytest.mark.parametrize("options", SHARDED)
@pytest.mark.parametrize("branches", BRANCHES)
def test_a_cond_in_a_scan_may_choose_what_lies_in_a_row_of_the_result(branches, options):
    x = np.random.default_rng(5).standard_normal((7, 6)).astype(np.float32)
    results = (lambda c, r: c, lambda c, r: c + 1, lambda c, r: c * r)

    def all_of(x):
        def step(c, r, result):
            following = mw.cond(
                mw.sum(r) > 0, lambda: branches[0](mw, c, r), lambda: branches[1](mw, c, r)
            )
            return following, result(following, r)

        return [mw.scan(lambda c, r, f=f: step(c, r, f), mw.zeros((6,)), x)[1] for f in results]

    carry, rows = np.zeros(6, np.float32), []
    for r in x:
        carry = branches[int(r.sum() <= 0)](np, carry, r)
        rows.append([f(carry, r) for f in results])
    for found, *right in zip(mw.jit(all_of, **options)(x), *rows, strict=True):
        assert np.allclose(found.numpy(), right, 1e-5, 1e-5)


@sampled(1)
@pytest.mark.parametrize(
    "layouts", [("[_*x, _]", "[_, y]"), ("[x, y]", "[y, _]"), ("[_, x]", "[x, _]")]
)
def test_hints_inside_cond_scan_and_while_loop(layouts):
    rng = np.random.default_rng(6)
    x, w = (
        rng.standard_normal((8, 6)).astype(np.float32),
        rng.standard_normal((6, 6)).astype(np.float32) / 3,
    )

    def layer(v, w):
        with mw.hint(slice="t=2", order="dfs"):
            return mw.tanh(v @ w)

    def f(x, w):
        chosen = mw.cond(mw.sum(x) > -1e9, lambda v: layer(v, w), lambda v: v, x)
        other = mw.cond(mw.sum(x) < -1e9, lambda v: layer(v, w), lambda v: v, x)
        last, sums = mw.scan(lambda c, _: (layer(c, w), mw.sum(c)), x, None, length=3)
        _, looped = mw.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, layer(s[1], w)), (mw.asarray(0), x)
        )
        return chosen, other, last, sums, looped

    rights = [x]
    for _ in range(3):
        rights.append(np.tanh(rights[-1] @ w))
    wanted = (rights[1], x, rights[3], [r.sum() for r in rights[:3]], rights[3])
    g = mw.jit(f, mesh="x=2, y=2", in_layouts=layouts)
    for found, right in zip(g(x, w), wanted, strict=True):
        assert np.allclose(found.numpy(), right, 1e-4, 1e-4)
    assert g.explain().count("honoured") >= 4


def test_a_carry_that_starts_as_a_python_number_has_the_type_of_the_body() -> None:
    x = np.arange(1, 4) / 3
    total = mw.jit(lambda x, start: mw.scan(lambda c, v: (c + v, None), start, x)[0])
    fixed = mw.jit(lambda x: mw.scan(lambda c, v: (c + v, None), 0, x)[0])
    loop = mw.jit(lambda x: mw.while_loop(lambda c: c < 3, lambda c: c + x[0], 0.0))
    for found, wanted in ((total(x, 0.1), x.sum() + 0.1), (fixed(x), x.sum()), (loop(x), 3.0)):
        assert found.dtype == np.float64
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-15)
    assert fixed(x.astype(np.float32)).dtype == np.float32


def nested(x, depth, cond):
    if depth == 0:
        return x * 2
    left, right = (lambda x, by=by: nested(x + by, depth - 1, cond) for by in (1, -1))
    return cond(x, depth, left, right)


def test_branches_that_nest_deep_compile_in_time_that_grows_with_them():
    """Upstream's bufferization takes minutes for eight levels: each level ten times as long as the one before."""

    def chosen(x, depth, left, right):
        return mw.cond(mw.sum(x) > depth, left, right, x)

    program = mw.jit(lambda x: nested(x, 8, chosen))
    for start in (-1, 0, 2, 9):
        x = np.full(2, start, "f4")
        wanted = nested(x, 8, lambda x, depth, left, right: (left if x.sum() > depth else right)(x))
        np.testing.assert_array_equal(program(x), wanted)


def test_two_branches_on_one_condition_are_proven() -> None:
    """What is between them is gone when tensors become buffers; they stay two, as the check knows them."""

    def f(x: mw.Array) -> mw.Array:
        above = mw.sum(x) > 0
        a = mw.cond(above, lambda: mw.exp(x) @ mw.ones((3, 3)), lambda: mw.sin(x) @ mw.ones((3, 3)))
        one = mw.broadcast_to(mw.reshape(mw.ones(()), (1, 1)), (4, 3))
        return mw.cond(above, lambda: one * a, lambda: one * 2)

    x = np.full((4, 3), 0.5, np.float32)
    np.testing.assert_allclose(mw.jit(f)(x), np.exp(x) @ np.ones((3, 3)), rtol=1e-5)
    np.testing.assert_allclose(mw.jit(f)(-x), np.full((4, 3), 2.0))
