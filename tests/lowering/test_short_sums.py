"""Reductions of short rows are done in vectors: right for every length, op, dtype, and what is computed before."""

import ml_dtypes
import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.lowering.cpu import short_sums

RESULTS = {
    "sum": lambda m, x, y: m.sum(x, axis=-1),
    "mean": lambda m, x, y: m.mean(x, axis=-1),
    "variance": lambda m, x, y: m.var(x, axis=-1),
    "largest": lambda m, x, y: m.max(x, axis=-1),
    "least": lambda m, x, y: m.min(x * y, axis=-1),
    "product": lambda m, x, y: m.prod(x, axis=-1),
    "dot": lambda m, x, y: m.sum(x * y, axis=-1),
    "size": lambda m, x, y: m.sum(m.abs(x - y), axis=-1),
    "norm": lambda m, x, y: x / (1 + m.sum(x * x, axis=-1, keepdims=True)),
    "two": lambda m, x, y: m.sum(x, axis=-1) * m.max(y, axis=-1),
}
TOLERANCE = {"f4": 1e-5, "f8": 1e-12, "bf16": 4e-2, "f2": 6e-3, "i4": 0, "i8": 0}


@pytest.fixture
def rows(monkeypatch):
    """The lengths of rows that were written in vectors."""
    found = []
    inner = short_sums.ShortReductions.write

    def write(self):
        found.append(self.nest.sizes[-1])
        inner(self)

    monkeypatch.setattr(short_sums.ShortReductions, "write", write)
    return found


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    length=st.sampled_from([1, 5, 15, 16, 17, 31, 32, 48, 63, 100, 255, 256, 257, 600]),
    count=st.sampled_from([1, 2, 7, 33]),
    name=st.sampled_from(list(RESULTS)),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_any_rows(length, count, name, dtype):
    if dtype.startswith("i") and name in ("mean", "variance", "norm"):
        dtype = "f4"
    if dtype in ("f2", "bf16") and name == "product":
        name = "sum"
    rng = np.random.default_rng(length + count)
    shape = (count, 3, length)
    if dtype.startswith("i"):
        x, y = (rng.integers(1, 4, shape).astype(dtype) for _ in range(2))
    else:
        x, y = (
            rng.uniform(0.7, 1.3, shape).astype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype)
            for _ in "xy"
        )
    made = np.asarray(mw.jit(lambda a, b: RESULTS[name](mw, a, b))(x, y)).astype(np.float64)
    wide = np.int64 if dtype.startswith("i") else np.float64
    right = RESULTS[name](np, x.astype(wide), y.astype(wide))
    tolerance = TOLERANCE[dtype] * (3 + np.log2(length) if name == "product" else 3)
    np.testing.assert_allclose(made, right.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_which_rows_are_done_in_vectors(rows):
    for length in (15, 16, 100, 256, 257):
        x = np.arange(4.0 * length, dtype=np.float32).reshape(4, length)
        np.testing.assert_array_equal(np.asarray(mw.jit(lambda a: mw.max(a, axis=1))(x)), x.max(1))
    assert rows == [16, 100, 256]


def test_not_a_number_is_found_in_any_lane():
    x = np.ones((40, 37), np.float32)
    x[np.arange(37), np.arange(37)] = np.nan
    made = np.asarray(mw.jit(lambda a: mw.stack([mw.max(a, axis=1), mw.sum(a, axis=1)]))(x))
    np.testing.assert_array_equal(np.isnan(made), [[True] * 37 + [False] * 3] * 2)
