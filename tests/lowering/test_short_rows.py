"""Arithmetic on short rows is done in vectors, of any number of columns, whatever repeats along them."""

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.lowering.cpu import loops

OPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 1.5),
    "neg": lambda a, b: -a + b,
}
SHAPES = {"whole": (9, None), "row": (None,), "column": (9, 1), "head": (3, 1, 1)}


def program(steps):
    def f(*arrays):
        value = arrays[0]
        for name, array in zip(steps, arrays[1:], strict=True):
            value = OPS[name](value, array)
        return value

    return f


@pytest.fixture
def written(monkeypatch):
    """How many nests have been written in vectors."""
    found = []
    inner = loops.ShortRows.write

    def write(self):
        found.append(self.nest.sizes)
        inner(self)

    monkeypatch.setattr(loops.ShortRows, "write", write)
    return found


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(
    columns=st.integers(1, 36),
    steps=st.lists(st.tuples(st.sampled_from(list(OPS)), st.sampled_from(list(SHAPES))), min_size=1, max_size=4),
    dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_any_arithmetic_on_any_columns(columns, steps, dtype):
    rng = np.random.default_rng(columns)
    shapes = [(3, 9, None), *(SHAPES[shape] for _, shape in steps)]
    arrays = [rng.standard_normal([n or columns for n in shape]).astype(dtype) for shape in shapes]
    f = program([name for name, _ in steps])
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    made, expected = np.asarray(mw.jit(f)(*arrays)), f(*arrays)
    np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("columns, short", [(3, False), (4, True), (24, True), (32, True), (33, False)])  # fmt: skip
def test_which_rows_are_short(columns, short, written):
    x, y = np.ones((9, columns), np.float32), np.full((9, 1), 3, np.float32)
    with np.errstate(all="raise"):
        made = np.asarray(mw.jit(lambda x, y: x / y)(x, y))
    np.testing.assert_array_equal(made, x / y)
    assert bool(written) == short


def test_infinities_and_nan_are_as_in_numpy(written):
    x = np.array([[np.inf, -np.inf, np.nan, 0.0, -0.0]] * 2, np.float32)
    y = np.array([[0.0], [np.inf]], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.asarray(mw.jit(lambda x, y: x * y - x)(x, y)), x * y - x)
    assert written


@pytest.mark.parametrize("columns", [9, 17, 31, 32, 64])
def test_rows_of_several_types(columns):
    rng = np.random.default_rng(0)
    x, row = rng.standard_normal((37, columns)), rng.standard_normal(columns)
    x, row = x.astype(np.float32), row.astype(np.float32)
    f = mw.jit(lambda x, row: (x > row, mw.where(x > 0, x, row), mw.astype(x * 9, mw.int8)))
    for made, right in zip(f(x, row), (x > row, np.where(x > 0, x, row), (x * 9).astype(np.int8))):
        np.testing.assert_array_equal(np.asarray(made), right)
