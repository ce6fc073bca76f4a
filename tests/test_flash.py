"""Attention without its score matrix: recognised in every form, right against NumPy, refused where it must be."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from depth import DEEP, sampled, some

import meshweave as mw
from meshweave.api import program as api
from meshweave.transforms.kernels.select_kernels import kernel_rows

INF = np.inf


def attention(q, k, v, mask=None, bias=None, scale=0.125):
    """The reference: scores, all at once, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -INF)
    with np.errstate(invalid="ignore"):
        above = np.exp(scores - scores.max(-1, keepdims=True))
        return above / above.sum(-1, keepdims=True) @ v


def arrays(*shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def kernels_of(function, *args, choice=None):
    """What each op of a traced function got, by name of the kernel."""
    from meshweave.hints.fast_paths import as_choice

    text = mw.jit(function).lower(*args).as_text()
    with api.lowered(text, "f", None, kernels=as_choice(choice)) as (module, _):
        return kernel_rows(module)


def is_flash(function, *args):
    return any(row["kernel"] == "flash" for row in kernels_of(function, *args))


@contextmanager
def chosen():
    """The kernels of what is compiled meanwhile."""
    found, own = set(), api.lowered

    @contextmanager
    def lowered(*args, **options):
        with own(*args, **options) as (module, made):
            found.update(row["kernel"] for row in kernel_rows(module))
            yield module, made

    with mock.patch.object(api, "lowered", lowered):
        yield found


def check(function, args, expected, rtol=2e-5, atol=2e-6):
    """Flash is taken, and gives what is expected; `make test-deep` asks that of the program without it, too."""
    with chosen() as kernels:
        found = np.asarray(mw.jit(function)(*args))
    assert "flash" in kernels
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    if DEEP:
        with mw.kernels(flash=False), chosen() as kernels:
            found = np.asarray(mw.jit(function)(*args))
        assert "flash" not in kernels
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def scores(q, k):
    return q @ mw.matrix_transpose(k) * 0.125


@sampled(4)
@pytest.mark.parametrize(
    "queries, keys", [(256, 256), (200, 333), (129, 1000), (700, 40), (1000, 257)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_even_and_uneven_lengths(queries, keys, dtype):
    q, k, v = arrays((2, queries, 16), (2, keys, 16), (2, keys, 24), dtype=dtype)
    check(lambda q, k, v: mw.softmax(scores(q, k)) @ v, (q, k, v), attention(q, k, v))


def test_no_batch_many_batches_and_shared_keys():
    q, k, v = arrays((300, 16), (260, 16), (260, 8))
    check(lambda q, k, v: mw.softmax(scores(q, k)) @ v, (q, k, v), attention(q, k, v))
    q, k, v = arrays((2, 3, 300, 16), (2, 3, 260, 16), (2, 3, 260, 8))
    check(lambda q, k, v: mw.softmax(scores(q, k)) @ v, (q, k, v), attention(q, k, v))
    q, k, v = arrays((2, 4, 200, 16), (2, 1, 260, 16), (2, 1, 260, 8))
    wide = (2, 4, 260)
    check(
        lambda q, k, v: (
            mw.softmax(scores(q, mw.broadcast_to(k, (*wide, 16)))) @ mw.broadcast_to(v, (*wide, 8))
        ),
        (q, k, v),
        attention(q, k, v),
    )


def test_heads_behind_rows_are_read_where_they_lie():
    q, k, v = arrays((2, 300, 4, 16), (2, 260, 4, 16), (2, 260, 4, 8))

    def f(q, k, v):
        q, k, v = (mw.permute_dims(x, (0, 2, 1, 3)) for x in (q, k, v))
        return mw.permute_dims(mw.softmax(scores(q, k)) @ v, (0, 2, 1, 3))

    moved = [np.swapaxes(x, 1, 2) for x in (q, k, v)]
    check(f, (q, k, v), np.swapaxes(attention(*moved), 1, 2))


def test_reshapes_between_the_products():
    q, k, v = arrays((6, 200, 16), (6, 260, 16), (6, 260, 8))

    def f(q, k, v):
        s = mw.reshape(scores(q, k), (2, 3, 200, 260))
        return mw.reshape(mw.softmax(s), (6, 200, 260)) @ v

    check(f, (q, k, v), attention(q, k, v))


def test_a_mask_that_is_given_and_a_bias():
    q, k, v, bias = arrays((2, 200, 16), (2, 300, 16), (2, 300, 8), (200, 300))
    mask = np.random.default_rng(1).random((2, 1, 300)) < 0.7

    def f(q, k, v, mask, bias):
        return mw.softmax(mw.where(mask, scores(q, k) + bias, -INF)) @ v

    check(f, (q, k, v, mask, bias), attention(q, k, v, mask, bias))


def causal(q, k, v, window=None, shift=0):
    i, j = mw.arange(q.shape[-2])[:, None] + shift, mw.arange(k.shape[-2])[None, :]
    kept = i >= j
    if window is not None:
        kept = mw.logical_and(kept, i - j < window)
    return mw.softmax(mw.where(kept, scores(q, k), -INF)) @ v


@sampled(4)
@pytest.mark.parametrize("sizes", some([(300, 300), (256, 256), (400, 150), (150, 400)], 2))
@pytest.mark.parametrize("window, shift", [(None, 0), (None, 37), (60, 0), (260, 0), (None, -20)])
def test_causal_masks_and_windows(sizes, window, shift):
    queries, keys = sizes
    q, k, v = arrays((2, queries, 16), (2, keys, 16), (2, keys, 8))
    i, j = np.arange(queries)[:, None] + shift, np.arange(keys)[None]
    kept = (i >= j) & (i - j < (window or 10**6))
    check(lambda q, k, v: causal(q, k, v, window, shift), (q, k, v), attention(q, k, v, kept))


def test_a_mask_by_a_large_number_keeps_its_rows():
    q, k, v = arrays((2, 300, 16), (2, 300, 16), (2, 300, 8))

    def f(q, k, v):
        kept = mw.arange(300)[:, None] > mw.arange(300)[None, :]
        return mw.softmax(mw.where(kept, scores(q, k), -1e9)) @ v

    kept = np.arange(300)[:, None] > np.arange(300)[None]
    expected = attention(q, k, v, kept)
    expected[:, 0] = v.astype(np.float64).mean(1)
    check(f, (q, k, v), expected)


@sampled(1)
@pytest.mark.parametrize("value", [np.nan, INF, -INF])
def test_what_is_not_finite_goes_where_it_went(value):
    q, k, v = arrays((2, 300, 16), (2, 300, 16), (2, 300, 8))
    k[0, 270, 3] = value
    q[1, 5, 2] = value
    with np.errstate(invalid="ignore"):
        check(lambda q, k, v: mw.softmax(scores(q, k)) @ v, (q, k, v), attention(q, k, v))


def test_scores_with_another_reader_are_made():
    q, k, v = arrays((2, 300, 16), (2, 300, 16), (2, 300, 8))

    def both(q, k, v):
        shares = mw.softmax(scores(q, k))
        return shares @ v, mw.max(shares)

    rows = kernels_of(both, q, k, v)
    assert not any(row["kernel"] == "flash" for row in rows)
    assert any("the scores are read by" in row["why"] for row in rows)


def test_no_attention_is_left_as_it_is():
    q, k, v = arrays((2, 300, 16), (2, 300, 16), (2, 300, 8))
    small = [x[:, :64] for x in (q, k, v)]

    def other_sum(q, k, v):
        above = mw.exp(scores(q, k) - mw.max(scores(q, k), axis=-1, keepdims=True))
        return above / mw.sum(2 * above, axis=-1, keepdims=True) @ v

    assert not is_flash(other_sum, q, k, v)
    assert not is_flash(lambda q, k, v: mw.softmax(scores(q, k), axis=-2) @ v, q, k, v)
    assert not is_flash(lambda q, k, v: mw.exp(scores(q, k)) @ v, q, k, v)
    assert not is_flash(lambda q, k, v: mw.softmax(scores(q, k)) @ v, *small)


def test_one_attention_after_another():
    q, k, v = arrays((2, 300, 16), (2, 300, 16), (2, 300, 16))

    def f(q, k, v):
        first = causal(q, k, v)
        return causal(first, k, v)

    kept = np.arange(300)[:, None] >= np.arange(300)[None]
    first = attention(q, k, v, kept)
    check(f, (q, k, v), attention(first, k, v, kept))


def test_memory_does_not_grow_with_the_scores():
    q, k, v = arrays((2, 1024, 64), (2, 1024, 64), (2, 1024, 64))
    for f in (lambda q, k, v: mw.softmax(scores(q, k)) @ v, causal):
        text = mw.jit(f).lower(q, k, v).as_text()
        assert api.build(text).manifest.arena_bytes < 1 << 20
        assert api.build(text, kernels="-flash").manifest.arena_bytes > 8 << 20


def test_sharded_over_heads():
    q, k, v = arrays((4, 300, 16), (4, 300, 16), (4, 300, 8))
    f = mw.jit(
        lambda q, k, v: causal(q, k, v), mesh="x=2", in_layouts="[x, _, _]", out_layouts="[x, _, _]"
    )
    kept = np.arange(300)[:, None] >= np.arange(300)[None]
    assert '"flash"' in f.lower(q, k, v).as_text("local")
    np.testing.assert_allclose(
        np.asarray(f(q, k, v)), attention(q, k, v, kept), rtol=2e-5, atol=2e-6
    )
