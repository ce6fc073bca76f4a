"""Products by register blocks: right for every shape, for operands that lie either way, on every width of vectors."""

import numpy as np
import pytest
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.api.program import Program, build
from meshweave.lowering.cpu.products import blocks
from meshweave.plan.machine import Vectors
from meshweave.runtime.local.engine import LocalEngine

MACHINES = [Vectors(64, 32), Vectors(32, 16), Vectors(16, 16)]


def program(m, n, k, turned, dtype, batch, adds):
    """a b, or a b^T, of a batch that is inside the rows of a; with `adds` on top of c."""
    a = f"tensor<{m}x{batch}x{k}x{dtype}>"
    b = f"tensor<{batch}x{n}x{k}x{dtype}>" if turned else f"tensor<{batch}x{k}x{n}x{dtype}>"
    c = f"tensor<{batch}x{m}x{n}x{dtype}>"
    start = f"%z = arith.constant 0.0 : {dtype}\n  %e = tensor.empty() : {c}\n"
    start += f"  %s = linalg.fill ins(%z : {dtype}) outs(%e : {c}) -> {c}"
    return f"""func.func @main(%a: {a}, %b: {b}, %c: {c}) -> {c} {{
  {start}
  %r = linalg.generic {{indexing_maps = [affine_map<(b, m, n, k) -> (m, b, k)>,
      affine_map<(b, m, n, k) -> ({"b, n, k" if turned else "b, k, n"})>,
      affine_map<(b, m, n, k) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%a, %b : {a}, {b}) outs({"%c" if adds else "%s"} : {c}) {{
    ^bb0(%x: {dtype}, %y: {dtype}, %w: {dtype}):
    %p = arith.mulf %x, %y : {dtype}
    %q = arith.addf %w, %p : {dtype}
    linalg.yield %q : {dtype}
  }} -> {c}
  return %r : {c}
}}"""


def ran(monkeypatch, machine, m, n, k, turned, dtype, batch, adds):
    """The result by blocks on a machine with such vectors, NumPy's in float64, and how many units were blocks."""
    made = []
    text_of = blocks.blocks_text
    monkeypatch.setattr(blocks, "vectors", lambda: machine)
    monkeypatch.setattr(
        "meshweave.lowering.cpu.units.blocks_text", lambda *a: made.append(a) or text_of(*a)
    )
    bundle = build(program(m, n, k, turned, dtype, batch, adds), kernels="-blas")
    numpy_dtype = {"f32": np.float32, "f64": np.float64}[dtype]
    rng = np.random.default_rng(m * n + k)
    a, b, c = (
        rng.standard_normal(s).astype(numpy_dtype)
        for s in ((m, batch, k), (batch, n, k) if turned else (batch, k, n), (batch, m, n))
    )
    engine = Program(bundle, LocalEngine())
    (result,) = engine(a, b, c)
    result = np.array(result)
    engine.close()
    wide = [x.astype(np.float64) for x in (a, b, c)]
    expected = np.einsum("mbk,bnk->bmn" if turned else "mbk,bkn->bmn", wide[0], wide[1])
    return result, expected + wide[2] if adds else expected, len(made)


@given(
    m=st.sampled_from([2, 3, 6, 7, 12, 65]),
    n=st.sampled_from([4, 5, 8, 31, 32, 64, 100, 133]),
    k=st.sampled_from([2, 8, 64, 130, 320]),
    turned=st.booleans(),
    dtype=st.sampled_from(["f32", "f64"]),
    batch=st.sampled_from([1, 3]),
    adds=st.booleans(),
    machine=st.sampled_from(MACHINES),
)
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_any_product(m, n, k, turned, dtype, batch, adds, machine):
    with pytest.MonkeyPatch.context() as patch:
        result, expected, count = ran(patch, machine, m, n, k, turned, dtype, batch, adds)
    assert count == 1
    tolerance = 1e-4 if dtype == "f32" else 1e-12
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * np.sqrt(k))


@pytest.mark.parametrize("m, n", [(1, 64), (64, 1), (64, 3)])
def test_rows_and_columns_that_are_few_stay_loops(monkeypatch, m, n):
    result, expected, count = ran(monkeypatch, MACHINES[0], m, n, 64, False, "f32", 1, False)
    assert count == 0
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_goes_where_it_goes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "vectors", lambda: MACHINES[0])
        bundle = build(program(12, 64, 64, True, "f32", 1, False), kernels="-blas")
    a, b = np.ones((12, 1, 64), np.float32), np.ones((1, 64, 64), np.float32)
    a[3, 0, 5], b[0, 7, 9] = np.nan, np.inf
    engine = Program(bundle, LocalEngine())
    (result,) = engine(a, b, np.zeros((1, 12, 64), np.float32))
    result = np.array(result)[0]
    engine.close()
    assert np.isnan(result[3]).all() and not np.isnan(np.delete(result, 3, 0)).any()
    assert np.isposinf(np.delete(result[:, 7], 3)).all()


@pytest.mark.parametrize("size, count", [(8, 1), (24, 1), (48, 0)])
def test_small_products_of_a_batch_call_no_library(size, count, monkeypatch):
    made, write = [], blocks.blocks_text
    monkeypatch.setattr(
        "meshweave.lowering.cpu.units.blocks_text", lambda *a: made.append(a) or write(*a)
    )
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal((5, size, size)).astype(np.float32) for _ in range(2))
    result = np.asarray(mw.jit(lambda a, b: a @ b)(a, b))
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)
    assert len(made) == count
