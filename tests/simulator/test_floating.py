"""Floating-point instructions: rounding against exact fractions, special values against IEEE 754,
approximations against f64 within the error that is documented.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.exact import fused, rounded
from simulator.kernels import NUMPY, evaluate, patterns

seeds = st.integers(0, 2**32)
few = settings(max_examples=3, deadline=None)


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal with equal signs of zero; NaN equals NaN."""
    return bool(
        np.all(
            (got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)
        )
    )


def wide(values: np.ndarray, kind: str) -> np.ndarray:
    """Values of a type as f64; bf16 are bits."""
    if kind == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def near(seed: int, kind: str, count: int = 128) -> np.ndarray:
    """Finite operands of like size, so that sums cancel and round in many ways."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-6, 7, count)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(NUMPY[kind])


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@few
@given(seed=seeds)
def test_fma_rounds_once(kind, seed):
    x, y, z = (near(seed + n, kind) for n in range(3))
    got = evaluate(f"fma.rn.{kind} d, x, y, z", [kind] * 3, kind, x, y, z)
    want = fused(*(wide(v, kind) for v in (x, y, z)), kind)
    fine = ~np.isnan(want)
    assert fine.any() and np.array_equal(wide(got, kind)[fine], want[fine])


@few
@given(seed=seeds)
def test_fma_is_right_where_two_roundings_would_not_be(seed):
    """Sums half-way between two f32, moved a little by a tiny addend, and subnormal results."""
    rng = np.random.default_rng(seed)
    x = (1 + 2.0 ** -rng.integers(1, 12, 128)).astype(np.float32)
    y = (1 + 2.0 ** -rng.integers(12, 24, 128)).astype(np.float32)
    z = (rng.choice([-1, 1], 128) * 2.0 ** -rng.integers(50, 140, 128).astype(float)).astype("f4")
    x[64:] *= np.float32(2.0**-70)
    y[64:] *= np.float32(2.0**-66)
    got = evaluate("fma.rn.f32 d, x, y, z", ["f32"] * 3, "f32", x, y, z)
    want = fused(*(v.astype(np.float64) for v in (x, y, z)), "f32")
    assert np.array_equal(got.astype(np.float64), want)
    naive = (x.astype(np.float64) * y + z).astype(np.float32)
    assert not np.array_equal(naive, got)  # these operands do tell the two apart


@few
@given(seed=seeds)
def test_fma_is_right_half_way_between_subnormal_results(seed):
    """Sums a little below or above (k + 1/2) 2^-149, which f64 rounds to just that."""
    rng = np.random.default_rng(seed)
    z = (rng.integers(1 << 16, 1 << 22, 128) * 2.0**-149).astype("f4")
    x = np.full(128, (1 + 2.0**-23) * 2.0**-75, np.float32)
    y = np.full(128, (1 - 2.0**-23) * 2.0**-75, np.float32)
    x, z = x * rng.choice([-1, 1], 128).astype("f4"), z * rng.choice([-1, 1], 128).astype("f4")
    got = evaluate("fma.rn.f32 d, x, y, z", ["f32"] * 3, "f32", x, y, z)
    want = fused(*(v.astype(np.float64) for v in (x, y, z)), "f32")
    assert np.array_equal(got.astype(np.float64), want)
    naive = (x.astype(np.float64) * y + z).astype(np.float32)
    assert not np.array_equal(naive, got)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
@few
@given(seed=seeds)
def test_f32_rounds_in_each_direction(name, mode, seed):
    x, y, z = (near(seed + n, "f32") for n in range(3))
    operands = [x, y, z][: 3 if name == "fma" else 2]
    letters = ", ".join("xyz"[: len(operands)])
    got = evaluate(f"{name}.{mode}.f32 d, {letters}", ["f32"] * len(operands), "f32", *operands)
    for at, value in enumerate(got.tolist()):
        a, b, c = (Fraction(float(v[at])) for v in (x, y, z))
        exact = {"add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c}[name]
        assert exact == 0 or value == rounded(exact, "f32", mode)


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@few
@given(seed=seeds)
def test_rounding_to_nearest_is_that_of_ieee(name, kind, seed):
    x, y = patterns(seed, kind), patterns(seed + 1, kind)
    got = evaluate(f"{name}.{'' if kind == 'f16' else 'rn.'}{kind} d, x, y", [kind] * 2, kind, x, y)
    with np.errstate(all="ignore"):
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](x, y)
    assert same(got, want)


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@few
@given(seed=seeds)
def test_bf16_is_rounded_after_each_operation(name, seed):
    x, y = near(seed, "bf16"), near(seed + 1, "bf16")
    got = evaluate(f"{name}.rn.bf16 d, x, y", ["bf16"] * 2, "bf16", x, y)
    for at, value in enumerate(wide(got, "bf16").tolist()):
        a, b = Fraction(float(wide(x, "bf16")[at])), Fraction(float(wide(y, "bf16")[at]))
        exact = {"add": a + b, "sub": a - b, "mul": a * b}[name]
        assert exact == 0 or value == rounded(exact, "bf16")


@pytest.mark.parametrize("kind", ["bf16x2", "f16x2"])
def test_packed_operations_work_on_both_halves(kind):
    half = kind[:-2]
    x, y, z = (near(n, half, 64) for n in range(3))
    packed = [v.view(np.uint16).view(np.uint32) for v in (x, y, z)]
    got = evaluate(f"fma.rn.{kind} d, x, y, z", ["u32"] * 3, "u32", *packed)
    alone = evaluate(f"fma.rn.{half} d, x, y, z", [half] * 3, half, x, y, z)
    assert np.array_equal(got.view(np.uint16), alone.view(np.uint16))


@pytest.mark.parametrize("greater", [False, True])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@few
@given(seed=seeds)
def test_min_and_max_prefer_numbers_to_nan(kind, greater, seed):
    x, y = patterns(seed, kind), patterns(seed + 1, kind)
    x[:4], y[:4] = [0, -0.0, np.nan, 1], [-0.0, 0, 2, np.nan]
    name = "max" if greater else "min"
    got = evaluate(f"{name}.{kind} d, x, y", [kind] * 2, kind, x, y)
    with np.errstate(all="ignore"):
        want = (np.fmax if greater else np.fmin)(x, y)
    want[:2] = 0.0 if greater else -0.0
    assert np.array_equal(got, want, equal_nan=True)
    assert (np.signbit(got[:2]) == (not greater)).all()
    strict = evaluate(f"{name}.NaN.{kind} d, x, y", [kind] * 2, kind, x, y)
    assert np.array_equal(np.isnan(strict), np.isnan(x) | np.isnan(y))


COMPARE = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x < y or x > y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
@pytest.mark.parametrize("name", [*COMPARE, *[n + "u" for n in COMPARE], "num", "nan"])
def test_comparisons_with_and_without_order(name, kind):
    x, y = patterns(1, kind), patterns(2, kind)
    x[:8], y[:8] = (
        [1, 1, np.nan, 0, 2, np.nan, np.inf, -np.inf],
        [1, np.nan, 1, -0.0, 1, np.nan, 1, 1],
    )
    got = evaluate(f"setp.{name}.{kind} d, x, y", [kind] * 2, "pred", x, y)
    for a, b, holds in zip(x.tolist(), y.tolist(), got.tolist()):
        missing = math.isnan(a) or math.isnan(b)
        if name in ("num", "nan"):
            assert holds == (missing == (name == "nan"))
        else:
            assert holds == ((missing and len(name) == 3) or COMPARE[name[:2]](a, b))


def test_ftz_flushes_operands_and_results():
    tiny = np.float32(2.0**-126)
    x = np.array([tiny / 2, -tiny / 4, tiny, 1] * 8, np.float32)
    y = np.array([1, 1, 0.5, 1] * 8, np.float32)
    got = evaluate("mul.rn.ftz.f32 d, x, y", ["f32"] * 2, "f32", x, y)
    assert same(got, np.array([0, -0.0, 0, 1] * 8, np.float32))
    kept = evaluate("mul.rn.f32 d, x, y", ["f32"] * 2, "f32", x, y)
    assert same(kept, x * y)


def test_sat_clamps_and_turns_nan_to_zero():
    x = np.array([-1, 0.25, 2, np.nan] * 8, np.float32)
    got = evaluate("add.rn.sat.f32 d, x, y", ["f32"] * 2, "f32", x, np.zeros_like(x))
    assert np.array_equal(got, np.array([0, 0.25, 1, 0] * 8, np.float32))


APPROXIMATE = {
    "ex2.approx.f32": (np.exp2, -10, 10), "lg2.approx.f32": (np.log2, 0.01, 100),
    "rcp.approx.f32": (np.reciprocal, 0.01, 100), "sqrt.approx.f32": (np.sqrt, 0, 100),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), 0.01, 100), "tanh.approx.f32": (np.tanh, -4, 4),
    "sin.approx.f32": (np.sin, -3, 3), "cos.approx.f32": (np.cos, -3, 3),
    "rcp.rn.f32": (np.reciprocal, 0.01, 100), "sqrt.rn.f32": (np.sqrt, 0, 100),
    "ex2.approx.ftz.f32": (np.exp2, -10, 10), "sqrt.rn.f64": (np.sqrt, 0, 100),
}  # fmt: skip


@pytest.mark.parametrize("name", APPROXIMATE)
def test_functions_come_close(name):
    function, low, high = APPROXIMATE[name]
    kind = name[-3:]
    x = np.random.default_rng(0).uniform(low, high, 256).astype(NUMPY[kind])
    got = evaluate(f"{name} d, x", [kind], kind, x)
    want = function(x.astype(np.float64))
    assert np.all(np.abs(got - want) <= 2 * np.finfo(NUMPY[kind]).eps * np.maximum(abs(want), 1e-3))


@pytest.mark.parametrize("name", ["div.full.f32", "div.approx.f32", "div.rn.f32", "div.rn.f64"])
def test_division(name):
    kind = name[-3:]
    x, y = patterns(3, kind), patterns(4, kind)
    with np.errstate(all="ignore"):
        want = x / y
    assert same(evaluate(f"{name} d, x, y", [kind] * 2, kind, x, y), want)


def test_signs_change_without_rounding():
    x = patterns(5, "f32")
    assert np.array_equal(
        evaluate("neg.f32 d, x", ["f32"], "f32", x).view("u4") ^ 0x80000000, x.view("u4")
    )
    bits = patterns(6, "u16")
    assert np.array_equal(evaluate("neg.bf16 d, x", ["u16"], "u16", bits), bits ^ 0x8000)
    assert np.array_equal(evaluate("abs.bf16 d, x", ["u16"], "u16", bits), bits & 0x7FFF)
    y = patterns(7, "f32")
    got = evaluate("copysign.f32 d, x, y", ["f32"] * 2, "f32", x, y)
    assert same(got, np.copysign(y, x))


def test_properties_of_numbers():
    x = np.array([0, 1, np.inf, np.nan, 2.0**-140, -1, -np.inf, 3] * 4, np.float32)
    for name, want in (
        ("finite", np.isfinite(x)), ("infinite", np.isinf(x)), ("notanumber", np.isnan(x)),
        ("number", ~np.isnan(x)), ("subnormal", (x != 0) & (abs(x) < 1e-38)),
    ):  # fmt: skip
        assert np.array_equal(evaluate(f"testp.{name}.f32 d, x", ["f32"], "pred", x), want)
