"""Sums down columns and products of few rows, with anything behind or before them, are what NumPy computes."""

import ml_dtypes
import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.lowering.cpu import reuse

FLOATS = {"f4": 1e-5, "f8": 1e-13, "f2": 2e-3, "bf16": 2e-2}
SIZES = st.sampled_from([1, 2, 3, 5, 8, 17, 33, 64, 130])


def drawn(rng, shape, dtype):
    wide = rng.standard_normal(shape)
    return wide.astype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype)


def silu(module, x):
    return x / (1 + module.exp(-x))


def softmax(module, x, axis):
    e = module.exp(x - module.max(x, axis=axis, keepdims=True))
    return e / module.sum(e, axis=axis, keepdims=True)


PRODUCTS = {
    "alone": lambda m, x, a, b: x @ a,
    "scaled": lambda m, x, a, b: (x @ a) * 2,
    "two": lambda m, x, a, b: x @ a + x @ b,
    "swiglu": lambda m, x, a, b: silu(m, x @ a) * (x @ b),
    "rms norm before": lambda m, x, a, b: (x / m.sqrt(m.mean(x * x, axis=-1, keepdims=True) + 1)) @ a,
    "softmax behind": lambda m, x, a, b: softmax(m, x @ a, -1),
    "columns behind": lambda m, x, a, b: m.sum(x @ a, axis=0) + m.max(x @ b, axis=0),
    "transposed": lambda m, x, a, b: (x @ a).T * 0.5,
    "bias": lambda m, x, a, b: x @ a + b[0],
}  # fmt: skip


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 17),
    depth=SIZES,
    columns=SIZES,
    form=st.sampled_from(list(PRODUCTS)),
    turned=st.booleans(),
    dtype=st.sampled_from(list(FLOATS)),
)
def test_products_of_few_rows(rows, depth, columns, form, turned, dtype):
    rng = np.random.default_rng(rows * depth + columns)
    x = drawn(rng, (rows, depth), dtype) / np.sqrt(depth).astype(np.float32).astype(x_type(dtype))
    x = x.astype(x_type(dtype))
    weights = [drawn(rng, (columns, depth) if turned else (depth, columns), dtype) for _ in "ab"]

    def f(module, *arrays):
        x, a, b = arrays
        return PRODUCTS[form](module, x, *((a.T, b.T) if turned else (a, b)))

    got = np.asarray(mw.jit(lambda *arrays: f(mw, *arrays))(x, *weights)).astype("f8")
    wanted = f(np, *(a.astype("f8") for a in (x, *weights)))
    atol = FLOATS[dtype] * 8 * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


def x_type(dtype):
    return ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype(dtype)


COLUMNS = {
    "sum": lambda m, x: m.sum(x, axis=0),
    "mean": lambda m, x: m.mean(x, axis=0) * 2,
    "max": lambda m, x: m.max(x, axis=0) + 1,
    "softmax": lambda m, x: softmax(m, x, 0),
    "two": lambda m, x: m.sum(x, axis=0) - m.min(x, axis=0),
}


@pytest.mark.parametrize(
    "behind, kernels",
    [(lambda m, y, w: y * 2, 2), (lambda m, y, w: m.sum(w * y[0][:, None], axis=1), 1)],
)
def test_one_row_reads_its_weights_before_what_is_behind_it_begins(behind, kernels):
    """Unless that reads the weights again, which are then in the first cache."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 300), (500, 300)))
    program = mw.jit(lambda x, w: behind(mw, x @ w.T, w)).lower(x, w).compile()
    assert len(program.program.bundle.manifest.marks) == kernels
    np.testing.assert_allclose(program(x, w), behind(np, x @ w.T, w), rtol=1e-4, atol=1e-4)


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(
    shape=st.lists(SIZES, min_size=2, max_size=3),
    form=st.sampled_from(list(COLUMNS)),
    dtype=st.sampled_from(list(FLOATS)),
)
def test_reductions_of_columns(shape, form, dtype):
    x = drawn(np.random.default_rng(shape[0]), shape, dtype)
    got = np.asarray(mw.jit(lambda x: COLUMNS[form](mw, x))(x)).astype("f8")
    wanted = COLUMNS[form](np, x.astype("f8"))
    atol = FLOATS[dtype] * 8 * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("depth, columns", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_add(depth, columns):
    x, a = np.ones((1, depth), "f4"), np.ones((depth, columns), "f4")
    got = np.asarray(mw.jit(lambda x, a: (x @ a) + 1)(x, a))
    np.testing.assert_array_equal(got, x @ a + 1)


@sampled(12)
@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize(
    "rows, depth, columns", [(1, 9001, 65), (2, 300, 517), (9, 517, 300), (16, 1101, 300)]
)
@pytest.mark.parametrize("turned", ["", "a", "x", "ax"])
def test_few_rows_of_large_weights(rows, depth, columns, turned, dtype):
    """As rows and as columns of the result, whichever way the operands lie; and of a batch."""
    rng = np.random.default_rng(rows)
    x, a = drawn(rng, (rows, depth), dtype), drawn(rng, (depth, columns), dtype)
    given = [v.T.copy() if name in turned else v for v, name in ((x, "x"), (a, "a"))]

    def f(m, x, a):
        x, a = (v.T if name in turned else v for v, name in ((x, "x"), (a, "a")))
        batch = m.stack([x, x * 2]) @ m.stack([a, a])
        return x @ a, a.T @ x.T, batch

    made = mw.jit(lambda x, a: f(mw, x, a))(*given)
    for got, wanted in zip(made, f(np, *(v.astype("f8") for v in given)), strict=True):
        atol = FLOATS[dtype] * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(got).astype("f8"), wanted, rtol=0, atol=atol)


@sampled(4)
@pytest.mark.parametrize(
    "rows, depth, columns", [(1, 37, 300), (3, 301, 900), (5, 300, 4), (16, 45, 70)]
)
@pytest.mark.parametrize("dtype", ["f4", "bf16"])
def test_addends_that_are_not_zero_where_both_factors_are(rows, depth, columns, dtype):
    """Sums of products and more, over few rows, by weights that lie either way."""
    rng = np.random.default_rng(rows)
    x, a = drawn(rng, (rows, depth), dtype), drawn(rng, (columns, depth), dtype)

    def f(m, x, a, b):
        x, a, b = (m.astype(v, m.float32) for v in (x, a, b))
        x = x[:, None, :]
        return (
            m.sum(x * a[None] * 2 + 1, axis=2), m.sum(x[:, 0, :, None] * b[None] + 3, axis=1),
            m.sum((x - a[None]) * (x - a[None]), axis=2), m.max(x * a[None], axis=2),
        )  # fmt: skip

    wanted = f(np, *(v.astype("f4") for v in (x, a, a.T)))
    for got, right in zip(mw.jit(lambda *v: f(mw, *v))(x, a, a.T.copy()), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(got), right, rtol=0, atol=1e-3)


def test_what_is_not_finite_in_weights_stays_in_its_column():
    x, a = np.ones((3, 400), "f4"), np.ones((400, 400), "f4")
    a[5, 7], a[6, 8], a[9, 8] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        wanted = x @ a
    straight, turned = mw.jit(lambda x, a, b: (x @ a, x @ b.T))(x, a, a.T.copy())
    np.testing.assert_array_equal(straight, wanted)
    np.testing.assert_array_equal(turned, wanted)


def test_two_reductions_down_columns_share_a_loop():
    x = np.random.default_rng(0).standard_normal((1000, 37)).astype("f4")
    x[3, 4] = np.nan
    low, high, where = mw.jit(
        lambda x: (mw.min(x, axis=0), mw.max(x, axis=0), mw.argmax(x, axis=0))
    )(x)
    np.testing.assert_array_equal(low, x.min(0))
    np.testing.assert_array_equal(high, x.max(0))
    np.testing.assert_array_equal(where, x.argmax(0))


@sampled(4)
@pytest.mark.parametrize("dtype", ["f2", "bf16"])
@pytest.mark.parametrize("shape", [(17, 33, 65), (128, 96, 200), (40, 1, 7), (19, 700, 24)])
@pytest.mark.parametrize("turned", ["", "a", "x", "ax"])
def test_products_of_16_bits_are_added_in_f32(shape, turned, dtype):
    """By panels: plain, and of a batch, whichever way the operands lie."""
    rows, depth, columns = shape
    rng = np.random.default_rng(rows)
    x, a = drawn(rng, (3, rows, depth), dtype), drawn(rng, (3, depth, columns), dtype)
    given = [v.swapaxes(1, 2).copy() if name in turned else v for v, name in ((x, "x"), (a, "a"))]

    def f(m, x, a):
        both = ((x, "x"), (a, "a"))
        x, a = (m.permute_dims(v, (0, 2, 1)) if name in turned else v for v, name in both)
        return x @ a, x[0] @ a[0], (x[1] @ a[1]) * 2

    made = mw.jit(lambda x, a: f(mw, x, a))(*given)
    for got, wanted in zip(made, f(np, *(v.astype("f8") for v in given)), strict=True):
        atol = {"f2": 2e-3, "bf16": 1e-2}[dtype] * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(got).astype("f8"), wanted, rtol=0, atol=atol)


@sampled(4)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dtype", ["f4", "bf16"])
def test_uneven_shards_and_slices(ranks, dtype):
    mesh = mw.Mesh(tp=ranks)
    rng = np.random.default_rng(ranks)
    x, a = drawn(rng, (3, 701), dtype), drawn(rng, (701, 1030), dtype)
    layouts = [("[_, _]", "[_, tp]"), ("[_, tp]", "[tp, _]")]
    wanted = x.astype("f8") @ a.astype("f8")
    wanted = [wanted * 2, wanted.max(0), a.astype("f8").sum(0), a.astype("f8").argmax(0)]
    for pair in layouts:

        @mw.jit(mesh=mesh, in_layouts=pair)
        def f(x, a):
            with mw.hint(slice="t=3", order="dfs"):
                y = x @ a
            wide = mw.astype(a, mw.float32)
            return y * 2, mw.max(y, axis=0), mw.sum(wide, axis=0), mw.argmax(a, axis=0)

        for got, right in zip(f(x, a), wanted, strict=True):
            atol = FLOATS[dtype] * np.abs(right).max() if right.dtype.kind == "f" else 0
            np.testing.assert_allclose(np.asarray(got).astype("f8"), right, rtol=0, atol=atol)


@sampled(1)
@pytest.mark.parametrize("rows", [2, 5, 16, 17])
@pytest.mark.parametrize("turned", [False, True])
def test_weights_that_are_made_longer_first(rows, turned):
    rng = np.random.default_rng(rows)
    x, a = drawn(rng, (rows, 300), "f4"), drawn(rng, (500, 300) if turned else (300, 500), "bf16")

    def f(x, a):
        wide = mw.astype(a, mw.float32)
        return x @ (wide.T if turned else wide)

    wide = a.astype("f8")
    wanted = x.astype("f8") @ (wide.T if turned else wide)
    np.testing.assert_allclose(np.asarray(mw.jit(f)(x, a)), wanted, rtol=0, atol=1e-3)


@sampled(4)
@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize("rows, depth", [(5, 2), (64, 33), (130, 512), (3, 1000)])
@pytest.mark.parametrize("columns", [2, 3, 7, 16])
def test_results_of_few_columns(rows, depth, columns, dtype, monkeypatch):
    """The few columns are laid along their depth first."""
    laid, inner = [], reuse._may_be_turned
    monkeypatch.setattr(reuse, "LARGE", 1)
    monkeypatch.setattr(reuse, "_may_be_turned", lambda *a: laid.append(a) or inner(*a))
    rng = np.random.default_rng(rows + columns)
    x, w = (drawn(rng, shape, dtype) for shape in ((rows, depth), (depth, columns)))
    made = np.asarray(mw.jit(lambda a, b: a @ b)(x, w)).astype(np.float64)
    right = x.astype(np.float64) @ w.astype(np.float64)
    tolerance = FLOATS[dtype]
    np.testing.assert_allclose(made, right, rtol=tolerance, atol=tolerance * depth)
    assert laid or rows < 64 or columns > 7 or dtype == "bf16"


@sampled(1)
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("dtype", ["f4", "bf16", "i1"])
def test_weights_are_asked_for_ahead_or_not(asks, rows, dtype, monkeypatch):
    monkeypatch.setattr(reuse, "asks_ahead", lambda: asks)
    monkeypatch.setattr(reuse, "LARGE", 1)
    rng = np.random.default_rng(rows)
    kind = "f4" if dtype == "i1" else dtype
    x = drawn(rng, (rows, 131), kind)
    w = (
        rng.integers(-9, 9, (131, 203)).astype("i1")
        if dtype == "i1"
        else drawn(rng, (131, 203), dtype)
    )

    @mw.jit
    def f(x, w):
        return x @ w.astype("f4") if dtype == "i1" else x @ w

    wanted = x.astype("f8") @ w.astype("f8")
    found = np.asarray(f(x, w)).astype("f8")
    assert np.abs(found - wanted).max() <= FLOATS[kind] * np.abs(wanted).max()
