"""Large arrays that a JAX function holds: arguments of the program behind its own, never a part of its text."""

import numpy as np
import pytest
from depth import sampled

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import meshweave as mw  # noqa: E402

LARGE = np.random.default_rng(3).standard_normal((300, 130)).astype(np.float32)
X = np.linspace(-1, 1, 130, dtype=np.float32)


def taken(function, *args, **options):
    """Return the result of a compiled function and how many arrays its program takes besides `args`."""
    with mw.from_jax(function, *args, **options) as program:
        assert len(program.text) < LARGE.nbytes // 4
        found = jax.tree.map(np.asarray, program(*args))
        return found, len(program.program.inputs) - len(args)


@sampled(1)
@pytest.mark.parametrize("mesh", [None, "x=4", "x=3"])
@pytest.mark.parametrize(
    "array",
    [
        LARGE,
        (LARGE * 50).astype(np.int32),
        (np.abs(LARGE) * 50).astype(np.uint32),
        (np.abs(np.tile(LARGE, (2, 1))) * 50).astype(np.uint8),
        np.tile(LARGE, (2, 1)) > 0,
        np.tile(LARGE, (2, 1)).astype(np.float16),
        np.where(LARGE > 0.5, np.nan, -0.0 * LARGE).astype(np.float32),
    ],
    ids=["f32", "i32", "ui32", "ui8", "bool", "f16", "nan"],
)
def test_elements_of_every_kind_keep_their_bits(array, mesh):
    found, count = taken(lambda x: (jnp.asarray(array), x + 1), X, mesh=mesh)
    assert count == 1
    assert found[0].dtype == array.dtype and found[0].tobytes() == array.tobytes()


def test_bfloat16_keeps_its_bits():
    array = jnp.asarray(np.tile(LARGE, (2, 1)), jnp.bfloat16)
    found, count = taken(lambda: array.astype(jnp.float32) * 1, mesh="x=2")
    assert count == 1 and np.array_equal(found, np.asarray(array, np.float32))


def test_they_are_seen_in_loops_branches_and_inner_functions():
    array, other = jnp.asarray(LARGE), jnp.asarray(-2 * LARGE)
    inner = jax.jit(lambda x: (array * x).sum(0) + other[7])

    def function(x):
        y = lax.fori_loop(0, 3, lambda i, c: inner(c) * 0.1, x)
        y = lax.cond(x[0] > 0, lambda v: v + array[2], lambda v: v - array[3], y)
        return inner(y) + inner(x), array + other

    right = jax.jit(function)(X)
    for mesh in (None, "x=4"):
        found, count = taken(function, X, mesh=mesh)
        assert count == 2  # one for each array
        for got, want in zip(found, right, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_beside_layouts_arguments_that_nothing_reads_and_gradients():
    array = jnp.asarray(LARGE)

    def loss(w, unused, x):
        return ((array @ w) * x).sum()

    w, x = LARGE[0] * 1, LARGE[:, 0] * 1
    layouts = ("[_]", None, "[x]")
    found, count = taken(jax.grad(loss), w, X, x, mesh="x=4", in_shardings=layouts)
    assert count == 1
    np.testing.assert_allclose(found, LARGE.T @ x, rtol=1e-4, atol=1e-4)


def test_a_program_keeps_what_an_array_held():
    array = LARGE.copy()
    with mw.from_jax(lambda x: x + array, X) as program:
        array[...] = 0
        for factor in range(3):
            assert np.array_equal(program(X * factor), X * factor + LARGE)
        assert "captured0" in program.explain()


def test_the_function_itself_still_runs_in_jax():
    array = jnp.asarray(LARGE)
    function = jax.jit(lambda x: x + array)
    with mw.from_jax(function, X):
        assert np.array_equal(function(X), X + LARGE)
        assert "meshweave" not in function.lower(X).as_text()
