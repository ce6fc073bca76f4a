"""The polynomials against NumPy in double precision: units in the last place, and every special value."""

from __future__ import annotations

import numpy as np
import pytest
from lowering.harness import compile_text, run_ranks

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3e-39, 1e-30,
           3.4e38, -3.4e38, 88.7, 88.73, -87.3, -103.9, -104.0, 127.99, 128.0, -149.0, -150.5,
           1e-4, -1e-4, 7.9, 8.0, 4.0, -4.0]  # fmt: skip
ERF = np.vectorize(__import__("math").erf, otypes=[np.float64])
# name -> (reference, worst error in units in the last place, interval of random arguments)
CASES = {
    "exp": (np.exp, 2, (-104, 89)),
    "exp2": (np.exp2, 2, (-151, 129)),
    "expm1": (np.expm1, 5, (-20, 89)),
    "log": (np.log, 2, (0, 1e6)),
    "log1p": (np.log1p, 3, (-1, 1e3)),
    "tanh": (np.tanh, 6, (-10, 10)),
    "erf": (ERF, 6, (-5, 5)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, (0, 1e6)),
    "sqrt": (np.sqrt, 1, (0, 1e6)),
}


def program(name, dtype, n):
    kind = f"tensor<{n}x{dtype}>"
    return f"func.func @main(%a: {kind}) -> {kind} {{ %0 = math.{name} %a : {kind} return %0 : {kind} }}"


def arguments(interval):
    rng = np.random.default_rng(0)
    spread = rng.uniform(*interval, 40000)
    small = np.exp(rng.uniform(-90, 3, 8000)) * rng.choice([-1, 1], 8000)
    return np.concatenate([SPECIAL, spread, small]).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_errors_are_a_few_units_in_the_last_place(name):
    reference, worst, interval = CASES[name]
    x = arguments(interval)
    got = run_ranks(compile_text(program(name, "f32", x.size)), [[x]])[0][0]
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
        rounded = want.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)), np.float32(1e-45))
        errors = np.abs(got.astype(np.float64) - want) / unit
    finite = np.isfinite(rounded)
    assert np.array_equal(np.isnan(got), np.isnan(rounded))
    assert np.array_equal(got[~finite], rounded[~finite], equal_nan=True)
    assert errors[finite].max() <= worst, (x[finite][errors[finite].argmax()], errors[finite].max())


@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_doubles_do_not_lose_small_numbers(name):
    tiny = 10.0 ** -np.arange(0, 300, 7)
    x = np.concatenate([[0.0, -0.0, np.inf, np.nan], tiny, -tiny / 2])
    got = run_ranks(compile_text(program(name, "f64", x.size)), [[x]])[0][0]
    want = getattr(np, name)(x)
    np.testing.assert_allclose(got, want, rtol=4e-16, atol=0)
    assert np.array_equal(np.signbit(got), np.signbit(want))


def test_exp_of_what_is_at_most_zero():
    x = arguments((-104, 0))
    x = x[~(x > 0)]
    text = f"""#m = affine_map<(i) -> (i)>
func.func @main(%a: tensor<{x.size}xf32>) -> tensor<{x.size}xf32> {{
  %e = tensor.empty() : tensor<{x.size}xf32>
  %0 = linalg.generic {{indexing_maps = [#m, #m], iterator_types = ["parallel"]}}
      ins(%a : tensor<{x.size}xf32>) outs(%e : tensor<{x.size}xf32>) {{
    ^bb0(%in: f32, %out: f32):
    %1 = math.exp %in {{mw.falling}} : f32
    linalg.yield %1 : f32
  }} -> tensor<{x.size}xf32>
  return %0 : tensor<{x.size}xf32>
}}"""
    got = run_ranks(compile_text(text), [[x]])[0][0]
    want = np.exp(x.astype(np.float64))
    normal = want >= 1.2e-38
    assert np.array_equal(np.isnan(got), np.isnan(x))
    assert (got[want < 1.17e-38] == 0).all()  # what would be denormal
    errors = np.abs(got[normal] - want[normal]) / np.spacing(want[normal].astype(np.float32))
    assert errors.max() <= 2


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_other_widths(name, dtype):
    reference, _, (low, high) = CASES[name]
    kind = {"f16": np.float16, "f64": np.float64}[dtype]
    x = np.linspace(max(low, -5), min(high, 5), 777).astype(kind)
    got = run_ranks(compile_text(program(name, dtype, x.size)), [[x]])[0][0]
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    np.testing.assert_allclose(got, want.astype(kind), rtol=2e-3 if dtype == "f16" else 1e-12)


@pytest.mark.parametrize(
    "name", ["sin", "cos", "tan", "cbrt", "atan", "erfc", "floor", "round", "ceil", "absf"]
)
def test_the_c_library_does_the_rest(name):
    x = np.linspace(-3, 3, 301).astype(np.float32)
    got = run_ranks(compile_text(program(name, "f32", x.size)), [[x]])[0][0]
    known = {"atan": "arctan", "absf": "abs"}
    if name == "erfc":
        want = 1 - ERF(x.astype(np.float64))
    elif name == "round":
        want = np.trunc(x + np.copysign(0.5, x))
    else:
        want = getattr(np, known.get(name, name))(x.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, least", [("tanh", 9.02), ("erf", 4.0)])
def test_what_is_flat_is_one_exactly(name, least):
    """A derivative such as 1 - tanh^2 is 0 there: a last place off, times what comes in, is no small error."""
    x = np.concatenate([np.linspace(least, 60, 999), [1e4, 3e38, np.inf]]).astype(np.float32)
    both = np.concatenate([x, -x])
    got = run_ranks(compile_text(program(name, "f32", both.size)), [[both]])[0][0]
    assert (got[: x.size] == 1).all() and (got[x.size :] == -1).all()
