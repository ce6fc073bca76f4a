"""Extremes and their places are those of NumPy, whatever type they are held in while a reduction runs."""

from contextlib import nullcontext

import ml_dtypes
import numpy as np
import pytest
from depth import sampled, some
from lowering.harness import run_text

import meshweave as mw

SHAPES = [(1, 1), (40, 17), (17, 300), (1000, 1), (5, 7, 64)]
KINDS = ["f4", "f8", "f2", "bf16", "i1", "i4", "i8"]


def drawn(shape, kind):
    x = np.random.default_rng(len(shape)).standard_normal(shape) * 5
    x = x.astype(ml_dtypes.bfloat16 if kind == "bf16" else kind)
    if "i" not in kind and x.size > 20:
        x.flat[3], x.flat[9] = -np.inf, -0.0
    return x


@sampled(4)
@pytest.mark.parametrize("kernels", [None, ("reference",)])
@pytest.mark.parametrize("kind", some(KINDS, 2))
@pytest.mark.parametrize("nan", [False, True])
def test_extremes(kind, nan, kernels):
    if nan and "i" in kind:
        pytest.skip("integers are numbers")
    for shape in SHAPES:
        x = drawn(shape, kind)
        if nan:
            x.flat[x.size // 2] = np.nan
        axes = [*range(x.ndim), None]
        names = ["max", "min", "argmax", "argmin"]

        def f(x, axes=axes, names=names):
            return tuple(getattr(mw, name)(x, axis=axis) for name in names for axis in axes)

        with mw.kernels(only=kernels) if kernels else nullcontext():
            found = iter(mw.jit(f)(x))
        wide = x if "i" in kind else x.astype("f8")
        for name in names:
            for axis in axes:
                got = np.asarray(next(found))
                np.testing.assert_array_equal(got.astype("f8"), getattr(np, name)(wide, axis=axis))


@pytest.mark.parametrize(
    "kind, numpy_kind, given", [("bf16", ml_dtypes.bfloat16, "u2"), ("f16", "f2", "f2")]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_largest_that_goes_on_from_what_is_there(kind, numpy_kind, given, axis):
    kept = 40 if axis else 24
    text = f"""func.func @main(%x: tensor<40x24x{kind}>, %o: tensor<{kept}x{kind}>) -> tensor<{kept}x{kind}> {{
  %r = linalg.reduce ins(%x : tensor<40x24x{kind}>) outs(%o : tensor<{kept}x{kind}>) dimensions = [{axis}]
    (%in: {kind}, %acc: {kind}) {{
      %m = arith.maximumf %in, %acc : {kind}
      linalg.yield %m : {kind}
    }}
  return %r : tensor<{kept}x{kind}>
}}"""
    rng = np.random.default_rng(0)
    x, o = (rng.standard_normal(s).astype(numpy_kind).view(given) for s in ((40, 24), kept))
    (got,) = run_text(text, x, o)
    wanted = np.maximum(x.view(numpy_kind).max(axis), o.view(numpy_kind))
    np.testing.assert_array_equal(got.view(numpy_kind), wanted)


@pytest.mark.parametrize("start", [-(2**40), 3, 2**40])
def test_a_least_place_never_exceeds_what_it_starts_from(start):
    text = f"""func.func @main(%x: tensor<50x40xf32>) -> tensor<50xi64> {{
  %s = arith.constant {start} : i64
  %e = tensor.empty() : tensor<50xi64>
  %o = linalg.fill ins(%s : i64) outs(%e : tensor<50xi64>) -> tensor<50xi64>
  %r = linalg.generic {{indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a)>],
      iterator_types = ["parallel", "reduction"]}} ins(%x : tensor<50x40xf32>) outs(%o : tensor<50xi64>) {{
    ^bb0(%v: f32, %least: i64):
    %zero = arith.constant 0.0 : f32
    %none = arith.constant 1000 : i64
    %i = linalg.index 1 : index
    %j = arith.index_cast %i : index to i64
    %c = arith.cmpf ogt, %v, %zero : f32
    %p = arith.select %c, %j, %none : i64
    %m = arith.minsi %p, %least : i64
    linalg.yield %m : i64
  }} -> tensor<50xi64>
  return %r : tensor<50xi64>
}}"""
    x = np.full((50, 40), -1, "f4")
    x[np.arange(30), np.arange(30)] = 1
    (got,) = run_text(text, x)
    places = np.where(x > 0, np.arange(40), 1000).min(1)
    np.testing.assert_array_equal(got, np.minimum(places, start))


SUM = """#m = affine_map<(i, j) -> (i, j)>
#r = affine_map<(i, j) -> (i)>
func.func @main(%a: tensor<{0}x{1}x{2}>) -> tensor<{0}x{2}> {{
  %z = arith.constant {4} : {2}
  %e = tensor.empty() : tensor<{0}x{2}>
  %f = linalg.fill ins(%z : {2}) outs(%e : tensor<{0}x{2}>) -> tensor<{0}x{2}>
  %0 = linalg.generic {{indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}}
      ins(%a : tensor<{0}x{1}x{2}>) outs(%f : tensor<{0}x{2}>) {{
    ^bb0(%x: {2}, %held: {2}):
    %1 = arith.{3} %held, %x : {2}
    linalg.yield %1 : {2}
  }} -> tensor<{0}x{2}>
  return %0 : tensor<{0}x{2}>
}}"""


@sampled(1)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 0), (5, 31), (7, 5000)])
def test_sums_and_products_of_small_floats_are_rounded_once(kind, shape):
    dtype = ml_dtypes.bfloat16 if kind == "bf16" else np.float16
    rng = np.random.default_rng(1)
    for name, first, low, high in (("addf", 0.0, -1, 3), ("mulf", 1.0, 0.9, 1.1)):
        a = rng.uniform(low, high, shape).astype(dtype)
        (got,) = run_text(
            SUM.format(*shape, kind, name, first), a.view(np.uint16) if kind == "bf16" else a
        )
        wide = a.astype(np.float64)
        want = wide.sum(1) if name == "addf" else wide.prod(1)
        np.testing.assert_allclose(
            got.view(dtype).astype(np.float64), want, rtol=ml_dtypes.finfo(dtype).eps
        )
