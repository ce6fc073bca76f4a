"""Mathematical functions against NumPy in a longer type: units in the last place, and every special value."""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled
from lowering.harness import compile_text, run_ranks

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3e-39, 1e-30,
           3.4e38, -3.4e38, 88.7, 88.73, -87.3, -103.9, -104.0, 127.99, 128.0, -149.0, -150.5,
           1e-4, -1e-4, 7.9, 8.0, 4.0, -4.0]  # fmt: skip
ERF = np.vectorize(__import__("math").erf, otypes=[np.longdouble])
# name -> (reference, worst error in units in the last place in f32 and in f64, interval of random arguments)
CASES = {
    "exp": (np.exp, (1.5, 1.5), (-746, 710)),
    "exp2": (np.exp2, (1.5, 1.5), (-1076, 1025)),
    "expm1": (np.expm1, (2, 2), (-20, 89)),
    "log": (np.log, (1.5, 1.5), (0, 1e6)),
    "log1p": (np.log1p, (3, 2), (-1, 1e3)),
    "log2": (np.log2, (1, 2), (0, 1e6)),
    "tanh": (np.tanh, (6, 3), (-10, 10)),
    "sinh": (np.sinh, (2, 2), (-90, 90)),
    "cosh": (np.cosh, (2, 2), (-90, 90)),
    "erf": (ERF, (6, 2), (-6, 6)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (2, 2), (0, 1e6)),
    "sqrt": (np.sqrt, (1, 1), (0, 1e6)),
    "sin": (np.sin, (1.5, 1.5), (-100, 100)),
    "cos": (np.cos, (1.5, 1.5), (-100, 100)),
    "tan": (np.tan, (1.5, 2.5), (-100, 100)),
    "atan": (np.arctan, (2.5, 2.5), (-10, 10)),
}
DTYPES = {"f32": np.float32, "f64": np.float64}


def program(name, dtype, *sizes):
    kind = f"tensor<{sizes[0]}x{dtype}>"
    named = [f"%a{k}" for k in range(len(sizes))]
    given = ", ".join(f"{each}: {kind}" for each in named)
    return (
        f"func.func @main({given}) -> {kind} "
        f"{{ %0 = {name} {', '.join(named)} : {kind} return %0 : {kind} }}"
    )


def arguments(interval):
    rng = np.random.default_rng(0)
    spread = rng.uniform(*interval, 40000)
    small = np.exp(rng.uniform(-90, 3, 8000)) * rng.choice([-1, 1], 8000)
    wide = np.exp(rng.uniform(-700, 700, 4000)) * rng.choice([-1, 1], 4000)
    return np.concatenate([SPECIAL, spread, small, wide])


def computed(name, dtype, *arrays):
    text = program(name, dtype, *[x.size for x in arrays])
    return run_ranks(compile_text(text), [arrays])[0][0]


def worst_error(got, want):
    """The largest error in units in the last place; `want`: of a longer type. Kinds of numbers must be right."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        unit = np.maximum(np.spacing(np.abs(rounded)), np.finfo(got.dtype).smallest_subnormal)
        errors = np.abs(got.astype(want.dtype) - want) / unit
    finite = np.isfinite(rounded)
    assert np.array_equal(np.isnan(got), np.isnan(rounded))
    assert np.array_equal(got[~finite], rounded[~finite], equal_nan=True)
    zero = rounded == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(rounded[zero]))
    return errors[finite].max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_errors_are_a_few_units_in_the_last_place(name, dtype):
    reference, worst, interval = CASES[name]
    with np.errstate(all="ignore"):
        x = arguments(interval).astype(DTYPES[dtype])
        want = reference(x.astype(np.longdouble))
    assert worst_error(computed(f"math.{name}", dtype, x), want) <= worst[dtype == "f64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, reference, interval, worst", [
    ("math.atan2", np.arctan2, (-3, 3), 2.5), ("math.powf", np.power, (0, 30), 1.5),
])  # fmt: skip
def test_errors_of_functions_of_two_numbers(name, reference, interval, worst, dtype):
    rng = np.random.default_rng(1)
    special = np.array([*SPECIAL, 2, -2, 3, -3, 0.5, -0.5, 1e9, 1e300, -1e300])
    pairs = [v.ravel() for v in np.meshgrid(special, special)]
    spread = [rng.permutation(arguments(interval)) for _ in pairs]
    wholes = [rng.uniform(-9, 9, 4000), rng.integers(-30, 30, 4000)]
    with np.errstate(all="ignore"):
        a, b = (np.concatenate(x).astype(DTYPES[dtype]) for x in zip(pairs, spread, wholes))
        want = reference(a.astype(np.longdouble), b.astype(np.longdouble))
    assert worst_error(computed(name, dtype, a, b), want) <= worst


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_angles(dtype):
    """In a run without any that is too large for vectors, and in one with a single such angle."""
    rng = np.random.default_rng(2)
    limit = 2.0**17 if dtype == "f32" else 2.0**30
    near = np.arange(1, 3000) * (np.pi / 2)  # multiples of pi / 2 as they round
    x = np.concatenate(
        [near, rng.uniform(-limit, limit, 5000), [1e22, limit, -limit, 3e38, np.nan]]
    )
    x = x.astype(DTYPES[dtype])
    for name in ("sin", "cos", "tan"):
        want = getattr(np, name)(x.astype(np.longdouble))
        assert worst_error(computed(f"math.{name}", dtype, x), want) <= 2.5


LOOPS = """#m = affine_map<(i, j) -> (i, j)>
#c = affine_map<(i, j) -> (i)>
func.func @main(%a: tensor<7x1500xf32>) -> (tensor<7xf32>, tensor<7x1500xf32>) {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<7xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<7xf32>) -> tensor<7xf32>
  %0 = linalg.generic {indexing_maps = [#m, #c], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<7x1500xf32>) outs(%f : tensor<7xf32>) {
    ^bb0(%x: f32, %sum: f32):
    %1 = math.sin %x : f32
    %2 = arith.addf %sum, %1 : f32
    linalg.yield %2 : f32
  } -> tensor<7xf32>
  %t = tensor.empty() : tensor<7x1500xf32>
  %3 = linalg.generic {indexing_maps = [#m, #c, #m], iterator_types = ["parallel", "parallel"]}
      ins(%a, %0 : tensor<7x1500xf32>, tensor<7xf32>) outs(%t : tensor<7x1500xf32>) {
    ^bb0(%x: f32, %sum: f32, %out: f32):
    %4 = math.cos %sum : f32
    %5 = math.sin %x : f32
    %6 = math.sin %5 : f32
    %7 = arith.addf %6, %4 : f32
    linalg.yield %7 : f32
  } -> tensor<7x1500xf32>
  return %0, %3 : tensor<7xf32>, tensor<7x1500xf32>
}"""


@pytest.mark.parametrize("largest", [3.0, 1e30])
def test_loops_that_sum_and_loops_in_loops(largest):
    x = np.random.default_rng(3).standard_normal((7, 1500)).astype(np.float32)
    x[3, 1400] = largest
    sums, both = run_ranks(compile_text(LOOPS), [[x]])[0]
    wide = np.sin(x.astype(np.float64))
    np.testing.assert_allclose(sums, wide.sum(1), rtol=1e-4, atol=1e-4)
    want = np.sin(wide) + np.cos(sums.astype(np.float64))[:, None]
    np.testing.assert_allclose(both, want, rtol=1e-5, atol=1e-6)


def test_a_function_of_its_own_results():
    """Each round of the loop reads what the round before has made."""
    text = """func.func @main(%a: tensor<9xf32>) -> tensor<9xf32> {
  %0 = math.sin %a : tensor<9xf32>
  %1 = math.sin %0 : tensor<9xf32>
  %2 = math.tan %1 : tensor<9xf32>
  return %2 : tensor<9xf32>
}"""
    x = np.linspace(-4, 4, 9).astype(np.float32)
    want = np.tan(np.sin(np.sin(x.astype(np.float64))))
    np.testing.assert_allclose(run_ranks(compile_text(text), [[x]])[0][0], want, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_remainders_are_exact(dtype):
    kind = {**DTYPES, "f16": np.float16}[dtype]
    rng = np.random.default_rng(4)
    special = np.array([*SPECIAL, 2, -2, 3, 0.5, 65504, 6e-8, 1e300, 5e-324, 1.7e308])
    pairs = [v.ravel() for v in np.meshgrid(special, special)]
    near = [rng.standard_normal(9000), rng.standard_normal(9000) / 7]
    whole = [rng.integers(-999, 999, 9000), rng.integers(-9, 9, 9000)]
    far = [np.exp(rng.uniform(-80, 80, 9000)), np.exp(rng.uniform(-80, 80, 9000))]
    with np.errstate(all="ignore"):
        a, b = (np.concatenate(x).astype(kind) for x in zip(near, whole, pairs, far))
        want = np.fmod(a, b)
    got = computed("arith.remf", dtype, a, b)
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@sampled(1)
@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("name", ["divsi", "divui", "remsi", "remui"])
def test_quotients_of_integers(name, width):
    rng = np.random.default_rng(width)
    kind = np.dtype(f"{'u' if 'u' in name else ''}int{width}")
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    edges = np.array([most, most - 1, most // 2, 1, 2, 3, least + 1, most // 2 + 1 + least], object)
    pairs = [v.ravel() for v in np.meshgrid(edges, edges[edges != 0])]
    spread = rng.integers(least, most, (2, 4000), dtype=kind, endpoint=True)
    small = rng.integers(1, 9, 4000)
    a = np.concatenate([pairs[0], spread[0], spread[0]]).astype(kind)
    b = np.concatenate([pairs[1], spread[1], small]).astype(kind)
    b[b == 0] = 1
    if least:  # the least by -1 is no number of the type
        b[(a == least) & (b == -1)] = 1
    signed = np.dtype(f"int{width}")
    got = computed(f"arith.{name}", f"i{width}", a.view(signed), b.view(signed)).view(kind)
    signs = np.where((a < 0) != (b < 0), -1, 1)
    quotient = abs(a.astype(object)) // abs(b.astype(object)) * signs
    want = quotient if "div" in name else a.astype(object) - quotient * b.astype(object)
    np.testing.assert_array_equal(got.astype(object), want)


@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_doubles_do_not_lose_small_numbers(name):
    tiny = 10.0 ** -np.arange(0, 300, 7)
    x = np.concatenate([[0.0, -0.0, np.inf, np.nan], tiny, -tiny / 2])
    got = run_ranks(compile_text(program(f"math.{name}", "f64", x.size)), [[x]])[0][0]
    want = getattr(np, name)(x)
    np.testing.assert_allclose(got, want, rtol=4e-16, atol=0)
    assert np.array_equal(np.signbit(got), np.signbit(want))


def test_exp_of_what_is_at_most_zero():
    with np.errstate(over="ignore"):
        x = arguments((-104, 0)).astype(np.float32)
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


@sampled(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_other_widths(name, dtype):
    reference, _, (low, high) = CASES[name]
    kind = {"f16": np.float16, "f64": np.float64}[dtype]
    x = np.linspace(max(low, -5), min(high, 5), 777).astype(kind)
    got = run_ranks(compile_text(program(f"math.{name}", dtype, x.size)), [[x]])[0][0]
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    np.testing.assert_allclose(got, want.astype(kind), rtol=2e-3 if dtype == "f16" else 1e-12)


@pytest.mark.parametrize(
    "name", ["cbrt", "erfc", "floor", "round", "ceil", "absf", "asin", "log10"]
)
def test_the_c_library_does_the_rest(name):
    x = np.linspace(-3, 3, 301).astype(np.float32)
    got = run_ranks(compile_text(program(f"math.{name}", "f32", x.size)), [[x]])[0][0]
    known = {"absf": "abs", "asin": "arcsin"}
    if name == "erfc":
        want = 1 - ERF(x.astype(np.float64))
    elif name == "round":
        want = np.trunc(x + np.copysign(0.5, x))
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            want = getattr(np, known.get(name, name))(x.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, least", [("tanh", 9.02), ("erf", 4.0)])
def test_what_is_flat_is_one_exactly(name, least):
    """A derivative such as 1 - tanh^2 is 0 there: a last place off, times what comes in, is no small error."""
    x = np.concatenate([np.linspace(least, 60, 999), [1e4, 3e38, np.inf]]).astype(np.float32)
    both = np.concatenate([x, -x])
    got = run_ranks(compile_text(program(f"math.{name}", "f32", both.size)), [[both]])[0][0]
    assert (got[: x.size] == 1).all() and (got[x.size :] == -1).all()
