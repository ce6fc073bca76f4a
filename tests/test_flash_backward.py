"""Training an attention without its scores: gradients against float64, what is matched, and what is left as it is."""

from pathlib import Path

import numpy as np
import pytest
from depth import DEEP, deep, some

import meshweave as mw
from meshweave.api import program as api
from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.pipeline import run_pipeline
from meshweave.transforms.kernels.select_kernels import kernel_rows

INF = np.inf


def rows_of(function, *args):
    """What each op of a traced function got."""
    with api.lowered(mw.jit(function).lower(*args).as_text(), "f", None) as (module, _):
        return kernel_rows(module)


def flash_ops(function, *args):
    """The ops that are `flash`, without their places."""
    rows = rows_of(function, *args)
    return sorted(row["op"].split(" at ")[0] for row in rows if row["kernel"] == "flash")


def arrays(*shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def expected(q, k, v, mask=None, bias=None, scale=0.125):
    """(o, dq, dk, dv) of sum(o * o) in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    t = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731
    s = q @ t(k) * scale + (0.0 if bias is None else bias)
    s = s if mask is None else np.where(mask, s, -INF)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    o = p @ v
    dp = 2 * o @ t(v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    return o, ds @ k, t(ds) @ q, t(p) @ (2 * o)


def step(scores):
    """The result and the gradients of sum(o * o), where o = softmax(scores(q, k)) v."""

    def f(q, k, v, *more):
        def loss(q, k, v):
            o = mw.softmax(scores(q, k, *more)) @ v
            return mw.sum(o * o), o

        (_, o), gradients = mw.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return o, *gradients

    return f


def plain(q, k):
    return q @ mw.matrix_transpose(k) * 0.125


def causal(q, k):
    s = plain(q, k)
    n, m = s.shape[-2:]
    return mw.where(mw.arange(n)[:, None] + (m - n) >= mw.arange(m)[None, :], s, -INF)


def biased(q, k, bias):
    return plain(q, k) + bias


FORMS = {"plain": plain, "causal": causal, "biased": biased}
BOTH = ["attention", "backward of an attention"]
SIZES = some(
    [
        ("plain", (2,), 131, 257, 24, 9, np.float32),
        ("causal", (2, 2), 129, 193, 16, 16, np.float32),
        ("biased", (), 300, 128, 8, 33, np.float32),
        ("causal", (1, 3), 200, 200, 64, 64, np.float32),
        ("plain", (3,), 512, 130, 128, 64, np.float32),
        ("biased", (2,), 128, 512, 256, 16, np.float32),
        ("plain", (2,), 99, 201, 24, 8, np.float64),
        ("causal", (2,), 1, 20000, 8, 8, np.float32),
    ],
    8,
)


@pytest.mark.parametrize("case", SIZES)
def test_gradients_against_float64(case):
    form, heads, n, m, inner, columns, dtype = case
    shapes = ((*heads, n, inner), (*heads, m, inner), (*heads, m, columns))
    q, k, v = arrays(*shapes, dtype=dtype)
    more = arrays((n, m), dtype=dtype, seed=1) if form == "biased" else []
    mask = np.tril(np.ones((n, m), bool), m - n) if form == "causal" else None
    f = step(FORMS[form])
    if n > 1:
        assert flash_ops(f, q, k, v, *more) == BOTH
    found = mw.jit(f)(q, k, v, *more)
    tolerance = 2e-5 if dtype == np.float32 else 1e-12
    for one, right in zip(found, expected(q, k, v, mask, *more)):
        np.testing.assert_allclose(np.asarray(one), right, rtol=tolerance, atol=tolerance)


@deep
def test_the_arena_holds_no_matrix_of_scores_and_the_program_is_proven():
    q, k, v = arrays((2, 1024, 16), (2, 1024, 16), (2, 1024, 16))
    f = mw.jit(step(plain))
    program = f.lower(q, k, v).compile().program
    assert program.bundle.manifest.arena_bytes < 4 * 1024 * 1024
    f(q, k, v)
    said = f.explain()
    assert "4 of 4 results proven" in said
    assert is_without_scores(said)


def test_slices_of_several_batch_dims_are_proven():
    q, k, v = arrays((2, 2, 130, 16), (2, 2, 130, 16), (2, 2, 130, 16))
    f = mw.jit(step(causal))
    f(q, k, v)
    assert "4 of 4 results proven" in f.explain()


def is_without_scores(said):
    """Tell whether an explanation names the kernel of a backward; lines of its text depend on the terminal."""
    return any("backward of an attention" in str(row) for row in said.as_dict()["kernels"])


@deep
def test_what_is_read_twice_is_looked_at_once():
    q, k, v, bias = arrays((160, 16), (160, 16), (160, 8), (160, 160))

    def biased_by_many(q, k, bias):
        for _ in range(20):  # each step reads the one before twice
            bias = mw.sin(bias) * 0.5 + bias
        return plain(q, k) + bias

    right = bias.astype(np.float64)
    for _ in range(20):
        right = np.sin(right) * 0.5 + right
    found = mw.jit(step(biased_by_many))(q, k, v, bias)
    for one, wanted in zip(found, expected(q, k, v, None, right)):
        np.testing.assert_allclose(np.asarray(one), wanted, rtol=1e-4, atol=1e-4)


def test_heads_over_ranks():
    q, k, v = arrays((2, 4, 160, 16), (2, 4, 160, 16), (2, 4, 160, 8))
    layout = "[dp, tp, _, _]"
    f = mw.jit(step(causal), mesh="dp=2, tp=2", in_layouts=[layout] * 3, out_layouts=[layout] * 4)
    found = f(q, k, v)
    text = f.lower(q, k, v).as_text("local")
    assert "160x160xf32" not in text
    mask = np.tril(np.ones((160, 160), bool))
    for one, right in zip(found, expected(q, k, v, mask)):
        np.testing.assert_allclose(np.asarray(one), right, rtol=2e-5, atol=2e-5)


def test_scores_that_are_a_result_are_kept():
    q, k, v = arrays((160, 16), (160, 16), (160, 8))

    def f(q, k, v):
        def loss(q, k, v):
            p = mw.softmax(plain(q, k))
            return mw.sum((p @ v) ** 2), p

        (_, p), gradients = mw.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return p, *gradients

    rows = rows_of(f, q, k, v)
    assert not any(row["kernel"] == "flash" for row in rows)
    assert any("the scores are read by" in row["why"] for row in rows)
    for one, right in zip(mw.jit(f)(q, k, v)[1:], expected(q, k, v)[1:]):
        np.testing.assert_allclose(np.asarray(one), right, rtol=2e-5, atol=2e-5)


def test_flash_off_makes_nothing_anew():
    q, k, v = arrays((160, 16), (160, 16), (160, 8))
    with mw.kernels(flash=False):
        text = mw.jit(step(plain)).lower(q, k, v).as_text("local")
    assert text.count("math.exp") == 1


def of_jax():
    """Attentions of JAX, of q, k, v as (batch, length, heads, width)."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def written(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.125
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1), v)

    def library(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, scale=0.125, is_causal=True)

    return {"written": written, "library": library}


def test_heads_that_share_keys_and_short_floats():
    """Two heads read the keys and values of one; products of bf16 are added up in f32."""
    attention = of_jax()["library"]
    import jax

    q, k, v = arrays((1, 160, 2, 16), (1, 160, 1, 16), (1, 160, 1, 16))
    q, k, v = (jax.numpy.asarray(x, jax.numpy.bfloat16) for x in (q, k, v))

    def f(q, k, v):
        return jax.vjp(attention, q, k, v)[1](2 * attention(q, k, v))

    with mw.from_jax(f, q, k, v) as program:
        found = program(q, k, v)
        assert is_without_scores(program.explain())
    t = lambda x: np.swapaxes(np.asarray(x, np.float64), 1, 2)  # noqa: E731
    _, dq, dk, dv = expected(t(q), t(k), t(v), np.tril(np.ones((160, 160), bool)))
    for one, wanted in zip(found, (dq, dk.sum(1, keepdims=True), dv.sum(1, keepdims=True))):
        np.testing.assert_allclose(t(one), wanted, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", some(["written", "library"], 2))
def test_gradients_of_jax(name):
    attention = of_jax()[name]
    import jax

    q, k, v = arrays((1, 160, 2, 16), (1, 160, 2, 16), (1, 160, 2, 8 if name == "written" else 16))

    def f(q, k, v):
        return jax.vjp(attention, q, k, v)[1](2 * attention(q, k, v))

    with mw.from_jax(f, q, k, v) as program:
        found = program(q, k, v)
        assert is_without_scores(program.explain())
    t = lambda x: np.swapaxes(x, 1, 2)  # noqa: E731
    mask = np.tril(np.ones((160, 160), bool))
    _, *right = expected(t(q), t(k), t(v), mask)
    theirs = jax.jit(f)(q, k, v)
    for one, wanted, other in zip(found, right, theirs):
        np.testing.assert_allclose(t(np.asarray(one)), wanted, rtol=2e-5, atol=2e-5)
        if DEEP:
            mine, its = (np.std(t(np.asarray(x)) - wanted) for x in (one, other))
            assert mine <= 2 * its


def test_the_program_with_scores_made_anew_is_proven_equal():
    path = Path(__file__).parent.parent / "lit/transforms/attention/remake_scores.mlir"
    text = path.read_text()
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, "remake-scores")
        made = str(module)
    assert made.count("math.exp") == 2
    assert len(mw.verify(text, made).proven) == 3
