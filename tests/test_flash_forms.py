"""Attention as others write it, on any shapes and masks: what flash gives is what NumPy gives in float64."""

import numpy as np
import pytest
from depth import examples, sampled, thinned
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import meshweave as mw
from tests.test_flash import INF, arrays, attention, check, is_flash, kernels_of, scores

QUICK = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def shares(q, k, v):
    """exp(s - max s), not divided yet, and its sum."""
    s = scores(q, k)
    above = mw.exp(s - mw.max(s, axis=-1, keepdims=True))
    return above, mw.sum(above, axis=-1, keepdims=True)


def test_the_division_may_come_after_the_values():
    q, k, v = arrays((2, 200, 16), (2, 300, 16), (2, 300, 24))

    def divided(q, k, v):
        above, total = shares(q, k, v)
        return (above @ v) / total

    def times_the_inverse(q, k, v):
        above, total = shares(q, k, v)
        return (above @ v) * (1.0 / total)

    for f in (divided, times_the_inverse):
        check(f, (q, k, v), attention(q, k, v))


def test_a_division_by_something_else_is_left_as_it_is():
    q, k, v = arrays((2, 200, 16), (2, 300, 16), (2, 300, 24))

    def by_twice(q, k, v):
        above, total = shares(q, k, v)
        return (above @ v) / (2.0 * total)

    def read_twice(q, k, v):
        above, total = shares(q, k, v)
        product = above @ v
        return product / total, mw.max(product)

    assert not is_flash(by_twice, q, k, v)
    assert not is_flash(read_twice, q, k, v)
    np.testing.assert_allclose(
        np.asarray(mw.jit(by_twice)(q, k, v)), attention(q, k, v) / 2, rtol=2e-5, atol=2e-6
    )


@sampled(1)
@pytest.mark.parametrize("masked", [False, True])
def test_small_floats_are_multiplied_and_added_up_in_f32(masked):
    q, k, v = (x.astype(np.float16) for x in arrays((2, 200, 40), (2, 200, 40), (2, 200, 24)))
    mask = np.tril(np.ones((200, 200), bool)) if masked else None
    f = causal if masked else lambda q, k, v: mw.softmax(scores(q, k)) @ v
    check(f, (q, k, v), attention(q, k, v, mask), rtol=1e-2, atol=2e-3)


def test_a_softmax_in_small_floats_says_why_not():
    q, k, v = (x.astype(np.float16) for x in arrays((2, 200, 16), (2, 300, 16), (2, 300, 24)))

    def f(q, k, v):
        above, total = shares(q, k, v)
        return (above / total) @ v

    rows = kernels_of(f, q, k, v)
    assert not any(row["kernel"] == "flash" for row in rows)
    assert any("the scores are f16, f32 or f64 is needed" in row["why"] for row in rows)


def empty_rows(s, mask, v):
    """What a softmax is that gives 0 where a mask leaves nothing of a row, in two spellings."""
    s = mw.where(mask, s, -INF)
    most = mw.max(s, axis=-1, keepdims=True)
    above = mw.exp(s - mw.where(most == -INF, 0.0, most))
    total = mw.sum(above, axis=-1, keepdims=True)
    yield above / mw.where(total == 0.0, 1.0, total) @ v
    seen = mw.any(mw.logical_not(s == -INF), axis=-1, keepdims=True)
    yield mw.where(mw.logical_not(seen), 0.0, mw.softmax(s)) @ v


@sampled(1)
@pytest.mark.parametrize("which", [0, 1])
def test_rows_that_nothing_is_left_of_are_0_where_the_program_says_so(which):
    q, k, v = arrays((2, 200, 16), (2, 300, 16), (2, 300, 24))
    mask = np.random.default_rng(1).random((200, 300)) < 0.5
    mask[[7, 64, 199]] = False
    expected = np.nan_to_num(attention(q, k, v, mask))
    assert not expected[:, 7].any() and expected[:, 8].all()
    check(lambda q, k, v, m: list(empty_rows(scores(q, k), m, v))[which], (q, k, v, mask), expected)


def test_a_guard_that_is_none_is_left_as_it_is():
    """A sum of NaN is not 0; and what says which rows are empty must be of these scores."""
    q, k, v = arrays((2, 200, 16), (2, 300, 16), (2, 300, 24))
    mask = np.ones((200, 300), bool)
    mask[7] = False

    def nan(q, k, v, m):
        s = mw.where(m, scores(q, k), -INF)
        above = mw.exp(s - mw.max(s, axis=-1, keepdims=True))
        total = mw.sum(above, axis=-1, keepdims=True)
        return above / mw.where(total == 0.0, 1.0, total) @ v

    def others(q, k, v, m):
        s = scores(q, k)
        seen = mw.any(mw.logical_not(mw.where(m, s, -INF) == -INF), axis=-1, keepdims=True)
        return mw.where(mw.logical_not(seen), 0.0, mw.softmax(s)) @ v

    for f, empty in ((nan, np.nan), (others, 0.0)):
        assert not is_flash(f, q, k, v, mask)
        expected = attention(q, k, v)
        expected[:, 7] = empty
        made = np.asarray(mw.jit(f)(q, k, v, mask))
        np.testing.assert_allclose(made, expected, rtol=2e-5, atol=2e-6)


def test_one_head_with_and_without_a_batch():
    for shape in thinned(((), (1,), (1, 1)), 2):
        q, k, v = arrays((*shape, 200, 16), (*shape, 300, 16), (*shape, 300, 24))
        check(lambda q, k, v: mw.softmax(scores(q, k)) @ v, (q, k, v), attention(q, k, v))


def test_heads_that_share_keys_by_reshape():
    q, k, v = arrays((2, 6, 200, 16), (2, 3, 260, 16), (2, 3, 260, 8))

    def f(q, k, v):
        q = mw.reshape(q, (2, 3, 2, 200, 16))
        k, v = (mw.reshape(x, (2, 3, 1, 260, x.shape[-1])) for x in (k, v))
        k, v = (mw.broadcast_to(x, (2, 3, 2, 260, x.shape[-1])) for x in (k, v))
        return mw.reshape(mw.softmax(scores(q, k)) @ v, (2, 6, 200, 8))

    wide = [np.repeat(x, 2, axis=1) for x in (k, v)]
    check(f, (q, k, v), attention(q, *wide))


def test_keys_over_ranks_say_why_not():
    q, k, v = arrays((2, 300, 16), (2, 300, 16), (2, 300, 8))
    f = mw.jit(
        lambda q, k, v: mw.softmax(scores(q, k)) @ v,
        mesh="x=2",
        in_layouts=["[_, _, _]", "[_, x, _]", "[_, x, _]"],
        out_layouts="[_, _, _]",
    )
    np.testing.assert_allclose(np.asarray(f(q, k, v)), attention(q, k, v), rtol=2e-5, atol=2e-6)
    assert "cut along their keys" in f.lower(q, k, v).as_text("local")


@st.composite
def cases(draw):
    """Lengths near the edges of tiles, a mask, a scale, a type."""
    near = st.sampled_from([1, 5, 63, 64, 65, 127, 128, 129, 200, 257, 400])
    queries, keys = draw(near), draw(near)
    while queries * keys <= 16384:
        keys *= 2
        queries = queries * 2 if keys > 2000 else queries
    return {
        "heads": draw(st.sampled_from([(), (1,), (3,), (2, 2)])),
        "queries": queries,
        "keys": keys,
        "inner": draw(st.sampled_from([1, 7, 16, 40, 64])),
        "columns": draw(st.sampled_from([1, 3, 8, 33, 64, 72])),
        "mask": draw(
            st.sampled_from(["none", "causal", "low", "bias", "given", "empty", "window"])
        ),
        "scale": draw(st.sampled_from([0.125, 1.0, 0.7])),
        "dtype": draw(st.sampled_from([np.float32, np.float32, np.float64])),
        "seed": draw(st.integers(0, 1000)),
    }


def programs(case):
    """The traced program, what it reads beside q, k, v, and the mask and bias of the reference."""
    n, m, scale = case["queries"], case["keys"], case["scale"]
    rng, kind = np.random.default_rng(case["seed"]), case["mask"]
    i, j = np.arange(n)[:, None], np.arange(m)[None]
    mask, bias, low = None, None, -INF
    if kind in ("causal", "low"):
        mask, low = i + 3 >= j, -INF if kind == "causal" else -1e9
    elif kind == "window":
        mask = (i >= j) & (i - j < 50) | (j == 0) & False
    elif kind in ("given", "empty"):
        mask = rng.random((n, m)) < (0.6 if kind == "given" else 0.02)
    elif kind == "bias":
        bias = rng.standard_normal((n, m)).astype(case["dtype"])

    def f(q, k, v, *more):
        s = q @ mw.matrix_transpose(k) * scale
        a, b = mw.arange(n)[:, None], mw.arange(m)[None, :]
        if kind in ("causal", "low"):
            s = mw.where(a + 3 >= b, s, low)
        elif kind == "window":
            s = mw.where(mw.logical_and(a >= b, a - b < 50), s, low)
        elif kind in ("given", "empty"):
            s = mw.where(more[0], s, low)
        elif kind == "bias":
            s = s + more[0]
        return mw.softmax(s) @ v

    more = [x for x in (bias, mask if kind in ("given", "empty") else None) if x is not None]
    return f, more, mask, bias


@given(case=cases())
@example(
    case={
        "heads": (2,), "queries": 129, "keys": 520, "inner": 40, "columns": 33, "mask": "causal", "scale": 0.7,
        "dtype": np.float32, "seed": 1,
    }
)  # fmt: skip
@QUICK
def test_any_shape_and_mask(case):
    heads, dtype = case["heads"], case["dtype"]
    q, k, v = arrays(
        (*heads, case["queries"], case["inner"]), (*heads, case["keys"], case["inner"]),
        (*heads, case["keys"], case["columns"]), dtype=dtype, seed=case["seed"],
    )  # fmt: skip
    f, more, mask, bias = programs(case)
    expected = attention(q, k, v, mask, bias, case["scale"])  # a row that nothing is left of: NaN
    assert is_flash(f, q, k, v, *more) or case["queries"] == 1
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    made = np.asarray(mw.jit(f)(q, k, v, *more))
    np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance / 10)


def causal(q, k, v):
    kept = mw.arange(200)[:, None] >= mw.arange(200)[None, :]
    return mw.softmax(mw.where(kept, scores(q, k), -INF)) @ v


@sampled(4)
@pytest.mark.parametrize("value", [np.nan, INF, -INF])
@pytest.mark.parametrize("where", ["q", "k"])
def test_what_is_not_finite_under_a_causal_mask(value, where):
    given = dict(zip("qkv", arrays((2, 200, 16), (2, 200, 16), (2, 200, 8))))
    given[where][1, 100, 3] = value
    with np.errstate(invalid="ignore"):
        expected = attention(*given.values(), np.tril(np.ones((200, 200), bool)))
    assert is_flash(causal, *given.values())
    made = np.asarray(mw.jit(causal)(*given.values()))
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def test_a_key_of_a_tile_that_is_skipped_counts_for_nothing_whatever_its_value():
    q, k, v = arrays((2, 200, 16), (2, 200, 16), (2, 200, 8))
    mask = np.tril(np.ones((200, 200), bool))
    finite = attention(q, k, v, mask)
    v[1, 150] = np.nan
    made = np.asarray(mw.jit(causal)(q, k, v))
    np.testing.assert_allclose(made[:, :64], finite[:, :64], rtol=1e-4, atol=1e-5)
    assert np.isnan(made[1, 150:]).all()
