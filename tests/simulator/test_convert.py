"""cvt and cvta: roundings, limits, packing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.exact import rounded
from simulator.kernels import NUMPY, bits_of, evaluate, numpy_of, patterns

seeds = st.integers(0, 2**32)
few = settings(max_examples=3, deadline=None)


def wide(values: np.ndarray, kind: str) -> list[float]:
    """As Python floats; bf16 are bits."""
    if kind == "bf16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return [float(value) for value in values]


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize(
    "pair", [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64")], ids="-".join
)
@few
@given(seed=seeds)
def test_narrowing_rounds_once(pair, mode, seed):
    target, source = pair
    x = patterns(seed, source)
    got = evaluate(f"cvt.{mode}.{target}.{source} d, x", [source], target, x)
    for value, result in zip(wide(x, source), wide(got, target)):
        if math.isnan(value):
            assert math.isnan(result)
        elif math.isinf(value):
            assert result == value
        else:
            assert result == rounded(Fraction(value), target, mode)


@pytest.mark.parametrize("pair", [("f32", "f16"), ("f32", "bf16"), ("f64", "f32")], ids="-".join)
def test_widening_is_exact(pair):
    target, source = pair
    x = np.arange(65536, dtype=np.uint16) if source != "f32" else patterns(1, "f32")
    x = x.view(NUMPY[source])
    got = evaluate(f"cvt.{target}.{source} d, x", [source], target, x)
    assert np.array_equal(got, np.array(wide(x, source), got.dtype), equal_nan=True)


ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_become_integers_within_their_limits(source, target, mode):
    halves = np.array([0.5, 1.5, -0.5, 2.5, -1.5] * 6 + [1e9, -1e9], NUMPY[source])
    x = np.concatenate([patterns(1, source), halves])
    wider = target if bits_of(target) > 8 else target[0] + "16"
    got = evaluate(f"cvt.{mode}.{target}.{source} d, x", [source], wider, x)
    low = -(1 << (bits_of(target) - 1)) if target[0] == "s" else 0
    high = low + (1 << bits_of(target)) - 1
    for value, result in zip(x.tolist(), got.tolist()):
        if math.isnan(value):
            wide = source == "f64" or bits_of(target) == 64
            assert result == ((low or (high + 1) // 2) if wide else 0)
        elif math.isinf(value):
            assert result == (high if value > 0 else low)
        else:
            assert result == min(high, max(low, ROUND[mode](value)))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["s8", "s32", "u32", "s64", "u64"])
def test_integers_become_floats(source, mode):
    x = patterns(2, source if bits_of(source) > 8 else "s16")
    kind = source if bits_of(source) > 8 else "s16"
    targets = ["f32", "f64"] if mode == "rn" or bits_of(source) < 64 else []
    for target in targets:
        got = evaluate(f"cvt.{mode}.{target}.{source} d, x", [kind], target, x)
        for value, result in zip(x.tolist(), got.tolist()):
            value = ((value & 255) ^ 128) - 128 if source == "s8" else value
            assert result == rounded(Fraction(value), target, mode)


def test_rounding_in_a_float_type():
    x = np.array([0.5, 1.5, -2.5, 3.7] * 8, np.float32)
    assert np.array_equal(evaluate("cvt.rni.f32.f32 d, x", ["f32"], "f32", x), np.rint(x))
    assert np.array_equal(evaluate("cvt.rmi.f32.f32 d, x", ["f32"], "f32", x), np.floor(x))
    assert np.array_equal(
        evaluate("cvt.rpi.f64.f64 d, x", ["f64"], "f64", x.astype("f8")), np.ceil(x)
    )


@pytest.mark.parametrize("kind", ["bf16x2", "f16x2"])
def test_a_pair_has_the_first_operand_above(kind):
    x, y = patterns(3, "f32"), patterns(4, "f32")
    got = evaluate(f"cvt.rn.{kind}.f32 d, x, y", ["f32", "f32"], "u32", x, y)
    half = kind[:-2]
    high = evaluate(f"cvt.rn.{half}.f32 d, x", ["f32"], half, x).view(np.uint16)
    low = evaluate(f"cvt.rn.{half}.f32 d, x", ["f32"], half, y).view(np.uint16)
    assert np.array_equal(got, low.astype(np.uint32) | high.astype(np.uint32) << 16)


def test_tf32_keeps_ten_bits():
    x = patterns(5, "f32")
    got = evaluate("cvt.rna.tf32.f32 d, x", ["f32"], "f32", x)
    assert (got.view(np.uint32)[np.isfinite(x)] & 0x1FFF == 0).all()
    with np.errstate(all="ignore"):
        fine = np.isfinite(x) & np.isfinite(got) & (np.abs(x) > 1e-30)
        assert np.all(np.abs(got - x)[fine] <= 2.0**-11 * np.abs(x)[fine])


@few
@given(
    seed=seeds,
    pair=st.sampled_from([("u32", "u64"), ("s16", "s32"), ("s32", "s64"), ("u64", "u32")]),
)
def test_integers_of_other_widths(seed, pair):
    target, source = pair
    x = patterns(seed, source)
    got = evaluate(f"cvt.{target}.{source} d, x", [source], target, x)
    assert np.array_equal(got, x.astype(numpy_of(target)))
