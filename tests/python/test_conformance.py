"""Every elementwise function of the array API standard, for each floating dtype, against NumPy in double precision:
special values paired with all others, exactly or to units in the last place; and functions drawn at random, on one rank
and, with any layouts, on four.
"""

import math

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import BINARY, UNARY, mw, run_all

FLOATS = ("float32", "float64", "float16", "bfloat16")
SPECIAL = [
    0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3, -3, 7, -7, 0.1, -0.1, 100, -100, 1e4, -1e4, 20, -20,
    0.99, math.pi, math.inf, -math.inf, math.nan,
]  # fmt: skip
# worst errors in units in the last place; all else is exact
LOOSE = {
    "float32": {"acos": 1, "acosh": 2, "asin": 1, "asinh": 2, "atan": 1, "atan2": 1, "atanh": 2, "cos": 1, "cosh": 2,
                "erf": 4, "exp": 2, "exp2": 2, "expm1": 4, "hypot": 2, "log": 2, "log10": 2, "log1p": 3, "log2": 2,
                "pow": 1, "rsqrt": 2, "sigmoid": 32, "sin": 1, "sinh": 2, "tan": 2, "tanh": 5},
    "float64": {"acos": 1, "acosh": 2, "asin": 1, "asinh": 2, "atan": 1, "atan2": 1, "atanh": 2, "cos": 1, "cosh": 2,
                "erf": 4, "exp": 1, "exp2": 1, "expm1": 2, "hypot": 2, "log": 1, "log10": 2, "log1p": 1, "log2": 1,
                "pow": 1, "rsqrt": 2, "sigmoid": 4, "sin": 1, "sinh": 2, "tan": 1, "tanh": 2},
}  # fmt: skip
# of a sum of two terms that may cancel: the error is bounded beside the terms, not beside the sum
CANCELS = ("logaddexp",)
# the sign of a zero that the standard leaves open
EITHER_ZERO = ("maximum", "minimum", "relu", "nextafter")


def bfloat16(x):
    """Double precision rounded once to bfloat16: to odd in single precision first."""
    x = np.asarray(x, np.float64)
    near = x.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = np.isfinite(x) & (near.astype(np.float64) != x)
    bits = np.where(
        inexact, np.where(np.abs(near.astype(np.float64)) > np.abs(x), bits - 1, bits) | 1, bits
    )
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.nan, rounded.astype(np.float64))


def rounded(x, dtype):
    return bfloat16(x) if dtype == "bfloat16" else np.asarray(x).astype(dtype).astype(np.float64)


def right_value(name, function, arguments, dtype):
    if name == "nextafter" and dtype != "bfloat16":
        return function(*[x.astype(dtype) for x in arguments]).astype(np.float64)
    if name == "erf":
        return rounded([math.erf(x) for x in arguments[0]], dtype)
    wide = np.longdouble if dtype == "float64" and name in LOOSE[dtype] else np.float64
    value = function(*[x.astype(wide) for x in arguments])
    return value if value.dtype == bool else rounded(value, dtype)


def complaints(name, got, right, arguments, dtype):
    if right.dtype == bool or got.dtype == bool:
        return got.dtype == right.dtype and np.array_equal(got, right)
    info = mw.finfo(dtype)
    got = got.astype(np.float64)
    allowed = LOOSE.get(dtype, {}).get(
        name, 1 if dtype in ("float16", "bfloat16") and name in LOOSE["float32"] else 0
    )
    unit = np.maximum(np.abs(right), info.smallest_normal) * info.eps
    if name in CANCELS:
        allowed, unit = 3, np.maximum(unit, np.maximum(*np.abs(arguments)) * info.eps)
    fits = np.abs(got - right) <= allowed * unit
    fits = np.where(np.isinf(right) | np.isinf(got), got == right, fits)
    fits = np.where(np.isnan(right), np.isnan(got), fits)
    if name not in EITHER_ZERO:
        fits &= (right != 0) | (got != 0) | (np.signbit(got) == np.signbit(right))
    return [
        (tuple(float(x[k]) for x in arguments), float(got[k]), float(right[k]))
        for k in np.flatnonzero(~fits)
    ]


@sampled(4)
@pytest.mark.parametrize("dtype", FLOATS)
@np.errstate(all="ignore")
def test_floats_with_every_pair_of_special_values(dtype):
    info = mw.finfo(dtype)
    tiny = [
        info.max,
        info.min,
        info.smallest_normal,
        -info.smallest_normal,
        1 + info.eps,
        1 - info.eps / 2,
    ]
    values = np.concatenate([SPECIAL, tiny, np.random.default_rng(0).standard_normal(12) * 3])
    values = rounded(values, dtype)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    carried = "float32" if dtype == "bfloat16" else dtype
    there = lambda x: mw.astype(x, dtype)  # noqa: E731
    back = lambda y: mw.astype(y, carried) if mw.isdtype(y.dtype, "real floating") else y  # noqa: E731
    names = [n for n in (*UNARY, *BINARY) if (n, dtype) != ("nextafter", "bfloat16")]
    cases = {
        n: (lambda v, a, b, n=n: back(getattr(mw, n)(*map(there, (v,) if n in UNARY else (a, b)))))
        for n in names
    }
    found = run_all(cases, values.astype(carried), a.astype(carried), b.astype(carried))
    wrong = {}
    for name in names:
        arguments = (values,) if name in UNARY else (a, b)
        right = right_value(name, {**UNARY, **BINARY}[name], arguments, dtype)
        wrong[name] = complaints(name, found[name], right, arguments, dtype)
    assert not {name: cases[:5] for name, cases in wrong.items() if cases not in ([], True)}


REDUCTIONS = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
    "mean": lambda x, **o: np.mean(x.astype(np.float64), **o), "argmax": np.argmax, "argmin": np.argmin,
    "var": lambda x, **o: np.var(x.astype(np.float64), **o), "std": lambda x, **o: np.std(x.astype(np.float64), **o),
    "count_nonzero": np.count_nonzero,
}  # fmt: skip
ALONG = {
    "sort": np.sort, "argsort": lambda x, axis: np.argsort(x, axis, kind="stable"),
    "cumulative_sum": lambda x, axis: np.cumsum(x, axis), "cumulative_prod": lambda x, axis: np.cumprod(x, axis),
    "flip": lambda x, axis: np.flip(x, axis), "diff": lambda x, axis: np.diff(x, axis=axis),
    "unstack": lambda x, axis: np.take(x, 0, axis), "softmax": lambda x, axis: softmax(x.astype(np.float64), axis),
    "logsumexp": lambda x, axis: np.log(np.exp(x.astype(np.float64)).sum(axis)),
}  # fmt: skip
INTEGER_BINARY = {
    name: BINARY[name] for name in (
        "add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum", "equal", "less",
        "greater_equal", "logical_and", "logical_xor", "not_equal",
    )
}  # fmt: skip
LAYOUTS = {
    1: ("[x]", "[_*x]", "[x*y]", "[y]", "[_]", "[_*y*2]"),
    2: ("[x, _]", "[_, x]", "[x, y]", "[y, x]", "[_*x, _]", "[x*y, _]", "[_, _*y]", "[_, y*x]", "[_, _]",
        "[_*x*2, y]", "[x, _*y]"),
    3: ("[x, _, y]", "[_, x, _]", "[_*x, _, _]", "[y, _, _*x]", "[_, _, x*y]", "[_, y, x]", "[_, _, _]"),
}  # fmt: skip


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@st.composite
def programs(draw):
    """Arrays, and for each case: name, how to call it, what NumPy makes of it."""
    dtype = draw(
        st.sampled_from(["float32", "float64", "float16", "int32", "int64", "int8", "bool"])
    )
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    seed = draw(st.integers(0, 1 << 16))
    rng = np.random.default_rng(seed)
    x, y = (
        (rng.standard_normal(shape) * 3).round(1 if "float" in dtype else 0).astype(dtype)
        for _ in "ab"
    )
    layouts = tuple(draw(st.sampled_from(LAYOUTS[len(shape)])) for _ in "ab")
    axes = st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1))
    cases = {}
    for name in draw(
        st.lists(st.sampled_from(sorted(REDUCTIONS)), min_size=2, max_size=3, unique=True)
    ):
        axis, keepdims = draw(axes), draw(st.booleans())
        options = {"axis": axis, "keepdims": keepdims}
        cases[f"{name} {options}"] = (lambda x, y, n=name, o=options: getattr(mw, n)(x, **o),
                                      REDUCTIONS[name](x, **options))  # fmt: skip
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    for name in draw(st.lists(st.sampled_from(sorted(ALONG)), min_size=2, max_size=3, unique=True)):
        if dtype == "bool" and name in ("softmax", "logsumexp"):
            continue
        take = (lambda r: r[0]) if name == "unstack" else (lambda r: r)
        cases[f"{name} axis {axis}"] = (lambda x, y, n=name, t=take: t(getattr(mw, n)(x, axis=axis)),
                                        ALONG[name](x, axis=axis))  # fmt: skip
    if dtype.startswith("int"):
        for name in draw(st.lists(st.sampled_from(sorted(INTEGER_BINARY)), min_size=2, max_size=4)):
            cases[name] = (lambda x, y, n=name: getattr(mw, n)(x, y), INTEGER_BINARY[name](x, y))
    shift = draw(st.integers(-9, 9))
    cases["roll"] = (lambda x, y: mw.roll(x, shift, axis=axis), np.roll(x, shift, axis))
    cases["concat"] = (lambda x, y: mw.concat([x, y], axis=axis), np.concatenate([x, y], axis))
    cases["flat"] = (
        lambda x, y: mw.reshape(mw.permute_dims(x, range(x.ndim)[::-1]), (-1,)),
        x.T.reshape(-1),
    )
    cases["where"] = (lambda x, y: mw.where(x > y, x, y), np.where(x > y, x, y))
    return (x, y), layouts, cases


@np.errstate(all="ignore")
@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_random_calls_on_one_rank_and_on_four_with_any_layouts(drawn):
    arrays, layouts, cases = drawn
    calls = {name: call for name, (call, _) in cases.items()}
    tolerance = {"float16": 2e-2, "float32": 2e-5}.get(
        arrays[0].dtype.name, 1e-5 if arrays[0].dtype.kind != "f" else 1e-12
    )
    for options in ({}, {"mesh": "x=2, y=2", "in_layouts": layouts}):
        found = run_all(calls, *arrays, **options)
        for name, (_, right) in cases.items():
            got, right = found[name], np.asarray(right)
            assert got.shape == right.shape, (name, options)
            if {got.dtype.kind, right.dtype.kind} <= {"b", "i"}:
                assert np.array_equal(got, right), (name, options)
            else:
                wide, exact = got.astype(np.float64), right.astype(np.float64)
                fits = np.allclose(wide, exact, tolerance, tolerance, equal_nan=True)
                assert fits, (name, options)
