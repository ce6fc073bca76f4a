"""Cumulative ops: one pass over the elements, on any dim, whole or cut over ranks, and proven."""

from functools import partial

import numpy as np
import pytest
from depth import examples, sampled, thinned
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.api.program import build
from tests.executed import on

OPS = {
    "sum": ("arith.addf", "-0.0", np.cumsum),
    "prod": ("arith.mulf", "1.0", np.cumprod),
    "max": ("arith.maximumf", "0xFF800000", np.maximum.accumulate),
    "min": ("arith.minimumf", "0x7F800000", np.minimum.accumulate),
}


def text(shape, axis, kind, layout, reverse):
    rest = [n for d, n in enumerate(shape) if d != axis]
    whole, short = ("tensor<" + "x".join([*map(str, dims), "f32>"]) for dims in (shape, rest))
    op, start, _ = OPS[kind]
    return f"""
func.func public @main(%a: {whole} {{{layout}}}) -> ({whole} {{{layout}}}) {{
  %s = arith.constant dense<{start}> : {short}
  %0 = "mw.scan"(%a, %s) ({{
  ^bb0(%x: f32, %y: f32):
    %z = {op} %x, %y : f32
    "mw.yield"(%z) : (f32) -> ()
  }}) {{dim = {axis} : i64{", reverse" if reverse else ""}}} : ({whole}, {short}) -> {whole}
  return %0 : {whole}
}}"""


def wanted(x, axis, kind, reverse):
    x = np.flip(x, axis) if reverse else x
    made = OPS[kind][2](x, axis=axis)
    return np.flip(made, axis) if reverse else made


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 5, 7, 16, 33]), min_size=1, max_size=3)))
    axis = draw(st.integers(0, len(shape) - 1))
    names = draw(st.permutations(["x", "y", *["_"] * len(shape)]))[: len(shape)]
    if draw(st.integers(0, 3)) == 0:
        names = ["x*y" if d == axis else "_" for d in range(len(shape))]
    mesh = draw(st.sampled_from(["x=2, y=2", "x=1, y=3", "x=3, y=1"]))
    return shape, axis, draw(st.sampled_from(sorted(OPS))), f"[{', '.join(names)}]", mesh


@settings(max_examples=examples(10), deadline=None)
@given(case=cases(), reverse=st.booleans(), seed=st.integers(0, 1 << 16))
def test_a_scan_is_that_of_numpy_on_any_dim_and_layout(case, reverse, seed):
    shape, axis, kind, layout, mesh = case
    x = np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)
    source = on(mesh, text(shape, axis, kind, layout, reverse))
    if shape[axis] >= 4:  # not where there are more ranks than elements
        assert build(source).manifest.certificate.proven == ("@main result 0",)
    with mw.compile(source, timeout=30) as program:
        np.testing.assert_allclose(program(x)[0], wanted(x, axis, kind, reverse), rtol=2e-5)


@pytest.mark.parametrize("mesh", ["x=1", "x=3"])
def test_nan_and_infinities_go_on_as_in_numpy(mesh):
    x = np.array([1, -np.inf, 3, np.nan, np.inf, 2, -0.0], np.float32)
    for kind in OPS:
        source = on(mesh, text((7,), 0, kind, "[x]", False))
        with mw.compile(source, timeout=30) as program, np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(program(x)[0], wanted(x, 0, kind, False))


def test_only_totals_move_between_ranks():
    source = on("x=4", text((4096, 3), 0, "sum", "[x, _]", False))
    (gather,) = build(source).manifest.collectives
    assert (gather.op, gather.bytes <= 4 * 3 * 4) == ("all_gather", True)


def test_a_long_sum_is_as_exact_as_numpys():
    x = np.random.default_rng(0).uniform(0, 1, 200_000).astype(np.float32)
    exact = np.cumsum(x, dtype=np.float64)
    made = np.asarray(mw.jit(mw.cumulative_sum)(x))
    theirs = np.cumsum(x)
    assert np.abs(made - exact).max() <= 4 * np.abs(theirs - exact).max()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int32", "int64"])
def test_elements_of_every_type(dtype):
    x = np.arange(-10, 11).reshape(7, 3).astype(dtype)

    def both(x, sums, products):
        return [f(x, axis=axis) for f in (sums, products) for axis in (0, 1)]

    found = mw.jit(lambda x: both(x, mw.cumulative_sum, mw.cumulative_prod))(x)
    for one, wanted in zip(found, both(x, np.cumsum, np.cumprod), strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_jax_cumulative_ops():
    jax = pytest.importorskip("jax")
    lax, rng = jax.lax, np.random.default_rng(0)
    ops = thinned((lax.cumsum, lax.cummax, lax.cumprod, lax.cumlogsumexp, lax.cummin), 3)
    x = rng.standard_normal((3, 40)).astype(np.float32)
    for op in ops:
        ways = [
            partial(op, axis=axis, reverse=reverse)
            for axis, reverse in ((0, False), (1, True), (1, False))
        ]
        slope = jax.grad(lambda x, op=op: (op(x, axis=1) ** 2).sum())
        _same(jax, lambda x, ways=ways, slope=slope: ([f(x) for f in ways], slope(x[:, :6])), x)
    for dtype in thinned(("bfloat16", "uint32", "bool", "float16", "int8"), 2):
        _same(jax, lambda x: jax.numpy.cumsum(x, axis=1), np.asarray(jax.numpy.asarray(x, dtype)))
    _same(jax, lambda x: lax.cummax(x), (x[0] * 9).astype(np.int32).astype(np.uint32))


def _same(jax, function, x):
    wanted = jax.tree.leaves(jax.jit(function)(x))
    with mw.from_jax(function, x) as program:
        made = jax.tree.leaves(program(x))
    for one, want in zip(map(np.asarray, made), map(np.asarray, wanted), strict=True):
        tolerance = 2e-2 if want.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(
            one.astype(float), want.astype(float), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    "window, padding",
    [((1, 6), ((0, 0), (3, 2))), ((1, 5), ((0, 0), (4, 0))), ((4, 6), "SAME")],
)
def test_windows_of_another_form_stay_windows(window, padding):
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    _same(jax, lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, window, (1, 1), padding), x)


def test_gpus_scan_in_rounds():
    source = text((5, 37), 1, "sum", "[x, _]", True)
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    with mw.compile(on("x=2", source), engine="emulate", timeout=60) as program:
        np.testing.assert_allclose(program(x)[0], wanted(x, 1, "sum", True), rtol=1e-5, atol=1e-5)


def test_short_rows_side_by_side():
    """Eight rows are scanned together, what is left over one loop of fewer."""
    rng = np.random.default_rng(2)
    values = [rng.integers(-4, 5, (r, n)).astype("f4") for n in (2, 7, 15, 16) for r in (7, 8, 21)]

    @mw.jit
    def scans(*arrays):
        return [mw.cumulative_sum(x * x, axis=1) for x in arrays]

    for mine, x in zip(scans(*values), values, strict=True):
        np.testing.assert_array_equal(mine, np.cumsum(x * x, axis=1))


@sampled(5)
@pytest.mark.parametrize("rows", [None, 1, 8, 11])
@pytest.mark.parametrize("size", [64, 256, 700])
def test_what_each_element_is_made_from_is_computed_before(rows, size):
    shape = (size,) if rows is None else (rows, size)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def f(x):
        return (
            mw.cumulative_sum(mw.exp(x) * x, axis=-1),
            mw.cumulative_sum(mw.astype(x > 0, mw.int32) * 2, axis=-1),
            mw.flip(mw.cumulative_prod(1 + 0.01 * mw.flip(mw.sin(x), axis=-1), axis=-1), axis=-1),
            mw.cumulative_sum(mw.astype(x, mw.float16), axis=-1),
        )

    made = [np.asarray(each) for each in mw.jit(f)(x)]
    wide, half = x.astype(float), x.astype(np.float16)
    flipped = np.flip(np.cumprod(1 + 0.01 * np.flip(np.sin(wide), -1), -1), -1)
    np.testing.assert_allclose(made[0], np.cumsum(np.exp(wide) * wide, -1), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(made[1], np.cumsum((x > 0).astype(np.int32) * 2, -1))
    np.testing.assert_allclose(made[2], flipped, rtol=1e-4)
    np.testing.assert_allclose(made[3], np.cumsum(half.astype(float), -1), rtol=0.03, atol=0.5)
