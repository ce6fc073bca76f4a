"""argmax and argmin of JAX: the first place of the extreme, or of NaN, whatever the dtype, the dim and the layout."""

import ml_dtypes
import numpy as np
import pytest
from depth import sampled

import meshweave as mw

jax = pytest.importorskip("jax")

DTYPES = ["f4", "f2", "bf16", "i4", "i1", "u1", "?"]


def drawn(shape, dtype):
    rng = np.random.default_rng(sum(shape))
    if dtype in ("f4", "f2", "bf16"):
        values = rng.integers(-3, 4, shape).astype(np.float32)  # each several times
        return values.astype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype)
    return rng.integers(0, 2 if dtype == "?" else 5, shape).astype(dtype)


@sampled(3)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    "shape, axis", [((7,), 0), ((5, 33), 1), ((33, 5), 0), ((3, 4, 17), None), ((1, 1), 1)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_first_places(shape, axis, dtype, name):
    x = drawn(shape, dtype)
    made = mw.from_jax(lambda a: getattr(jax.numpy, name)(a, axis), x)(x)
    np.testing.assert_array_equal(np.asarray(made), getattr(np, name)(x, axis))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_special_values(name):
    inf, nan = np.inf, np.nan
    rows = [
        [1, nan, 3, nan],
        [inf, 2, inf, nan],
        [-inf] * 4,
        [inf] * 4,
        [0.0, -0.0, 0.0, -0.0],
        [nan] * 4,
    ]
    x = np.array(rows, np.float32)
    made = mw.from_jax(lambda a: getattr(jax.numpy, name)(a, 1), x)(x)
    np.testing.assert_array_equal(np.asarray(made), getattr(np, name)(x, 1))


@sampled(4)
@pytest.mark.parametrize(
    "mesh, layout", [("x=2", "[x, _]"), ("x=3", "[_, x]"), ("x=2, y=2", "[y, x]")]
)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_places_on_cut_tensors(mesh, layout, axis):
    x = drawn((7, 11), "f4")
    program = mw.from_jax(lambda a: jax.numpy.argmax(a, axis), x, in_shardings=(layout,), mesh=mesh)
    np.testing.assert_array_equal(np.asarray(program(x)), np.argmax(x, axis))
    assert "all_gather f32" not in str(program.explain())


def test_another_reducer_of_pairs_stays_as_it_is():
    def last(a):
        def pair(one, two):
            later = (two[0] > one[0]) | ((two[0] == one[0]) & (two[1] > one[1]))
            return tuple(jax.numpy.where(later, b, a) for a, b in zip(one, two, strict=True))

        start = (jax.numpy.float32(-np.inf), jax.numpy.int32(-1))
        places = jax.lax.broadcasted_iota("int32", a.shape, 1)
        return jax.lax.reduce((a, places), start, pair, (1,))[1]

    x = drawn((6, 19), "f4")
    made = np.asarray(mw.from_jax(last, x)(x))
    np.testing.assert_array_equal(made, 18 - np.argmax(x[:, ::-1], 1))
