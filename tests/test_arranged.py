"""Ops run where their values lie: nothing moves where cyclic, uneven and irregular dims agree."""

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import mw

RANDOM = np.random.default_rng(7)


def softmax(m, a, b):
    shifted = m.exp(a - m.max(a, axis=1, keepdims=True))
    return shifted / m.sum(shifted, axis=1, keepdims=True) + b


def numbered(m, a, b):
    """Every row times its number."""
    return a * m.reshape(m.astype(m.arange(a.shape[0]), m.float32), (-1, 1)) + b


STAY = (
    lambda m, a, b: m.exp(a) * b + 1,
    lambda m, a, b: m.sum(a + b, axis=1),
    lambda m, a, b: m.argmax(a - b, axis=1),
    lambda m, a, b: m.sum(m.concat([a, b], axis=1), axis=1),
    lambda m, a, b: m.tril(a) + b,
    lambda m, a, b: m.cumulative_sum(a, axis=1) + b,
    softmax,
    numbered,
)
"""Functions of two matrices in rows that need no other row."""

MEET = (
    lambda m, a, b: m.sum(a * b, axis=0),
    lambda m, a, b: m.max(a - b, axis=0),
    lambda m, a, b: m.argmax(a - b, axis=0),
    lambda m, a, b: m.permute_dims(a, (1, 0)) @ b,
    lambda m, a, b: m.cumulative_sum(a, axis=0) + b,
    lambda m, a, b: m.reshape(a, (-1,)),
)
"""Functions for which rows meet; some need them in order."""

CASES = [
    ("x=4", "[_*x, _]", (16, 5)),
    ("x=4", "[_*x, _]", (13, 5)),
    ("x=3", "[_*x*2, _]", (13, 5)),
    ("x=4", "[x{7,0,4,2}, _]", (13, 5)),
    ("x=2, y=2", "[x*y, _] uneven(nested)", (13, 5)),
    ("x=2, y=2", "[y*_*x, _]", (9, 4)),
    ("x=3", "[_*x, _]", (1, 4)),
]


def run(functions, mesh, layout, shape):
    """Compile them as one program, compare each result with NumPy's; return the program."""
    a, b = (RANDOM.standard_normal(shape).astype("f4") for _ in range(2))
    right = [function(np, a, b) for function in functions]
    known = {shape: layout, shape[:1]: layout.replace(", _", "")}
    made = mw.jit(
        mesh=mesh,
        in_layouts=(layout, layout),
        out_layouts=tuple(known.get(r.shape) for r in right),
    )(lambda a, b: tuple(function(mw, a, b) for function in functions))
    for k, (mine, expected) in enumerate(zip(made(a, b), right, strict=True)):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4, err_msg=f"result {k}")
    return made


@sampled(4)
@pytest.mark.parametrize(("mesh", "layout", "shape"), CASES)
def test_rows_that_agree_stay_where_they_lie(mesh, layout, shape):
    made = run(STAY, mesh, layout, shape)
    if shape[0] > 1:  # one row is not worth cutting
        assert "0 collectives bring the busiest rank 0 bytes" in str(made.explain())


@sampled(4)
@pytest.mark.parametrize(("mesh", "layout", "shape"), CASES)
def test_rows_that_meet_give_what_numpy_gives(mesh, layout, shape):
    run(MEET, mesh, layout, shape)


def test_a_sum_over_a_cyclic_dim_moves_its_result_alone():
    made = run(MEET[:1], "x=4", "[_*x, _]", (64, 8))
    assert "1 collective brings the busiest rank 48 bytes" in str(made.explain())


STEPS = (
    lambda m, a, b: a + b,
    lambda m, a, b: a * 3 - b,
    lambda m, a, b: m.where(a % 2 == 0, a * 2, b + 1),
    lambda m, a, b: m.minimum(m.abs(a), 1000) // -3,
    lambda m, a, b: m.where(a > b, a // m.where(b == 0, 1, b), b),
    lambda m, a, b: m.clip(a, -9, 9) % (b * b % 7 + 1),
    lambda m, a, b: m.clip(a, -100, 100) // b,
    lambda m, a, b: m.sign(a) * m.astype(a < b, m.int32),
    lambda m, a, b: m.astype(m.tanh(m.astype(a, m.float32)) * 8, m.int32) + b,
    lambda m, a, b: a + m.arange(a.shape[-1], dtype=m.int32) % 5,
)
"""Functions of two int32 arrays that need no other element; some divide, also by 0, which gives 0."""


@settings(max_examples=examples(24), deadline=None)
@given(
    st.sampled_from([*CASES, ("x=2, y=2", "[y, x]", (7, 5)), ("x=3", "[_, x]", (4, 7))]),
    st.lists(
        st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9)),
        min_size=2,
        max_size=7,
    ),
)
def test_elementwise_programs_move_nothing(where, steps):
    mesh, layout, shape = where
    if 1 in shape:  # one row is not worth cutting
        shape = (5, *shape[1:])

    def program(m, a, b):
        values = [a, b]
        for step, left, right in steps:
            values.append(STEPS[step](m, values[left % len(values)], values[right % len(values)]))
        return values[-1]

    a, b = (RANDOM.integers(-5, 6, shape).astype("i4") for _ in range(2))
    made = mw.jit(mesh=mesh, in_layouts=(layout, layout), out_layouts=layout)(
        lambda a, b: program(mw, a, b)
    )
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(made(a, b), program(np, a, b))
    assert "0 collectives bring the busiest rank 0 bytes" in str(made.explain())
