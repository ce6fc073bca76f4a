"""mw.random has JAX's numbers, whatever the mesh, layouts, slices and engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from depth import examples, some, thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import layouts

import meshweave as mw

jax = pytest.importorskip("jax")
jnp, theirs = jax.numpy, jax.random
LOGITS = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
CHANCE = np.array([0.1, 0.5, 0.15, 0.25], np.float32)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)

# m: mw or jax.numpy, r: the module with the functions, k: a key
EXACT: dict[str, Callable[..., Any]] = {
    "split": lambda m, r, k: r.split(k),
    "splits": lambda m, r, k: r.split(k, (2, 3)),
    "fold_in": lambda m, r, k: r.fold_in(k, 7),
    "fold_in large": lambda m, r, k: r.fold_in(k, np.uint32(2**32 - 5)),
    "bits": lambda m, r, k: r.bits(k, (3, 5)),
    "bits none": lambda m, r, k: r.bits(k, (0, 5)),
    "bits one": lambda m, r, k: r.bits(k),
    "bits 8": lambda m, r, k: r.bits(k, (5,), m.uint8),
    "bits 16": lambda m, r, k: r.bits(k, (2, 5), m.uint16),
    "bits 64": lambda m, r, k: r.bits(k, (2, 5), m.uint64),
    "uniform": lambda m, r, k: r.uniform(k, (3, 5), m.float32),
    "uniform f64": lambda m, r, k: r.uniform(k, (3, 5), m.float64),
    "uniform f16": lambda m, r, k: r.uniform(k, (3, 5), m.float16),
    "uniform bf16": lambda m, r, k: r.uniform(k, (3, 5), m.bfloat16),
    "bernoulli": lambda m, r, k: r.bernoulli(k, np.float32(0.3), (3, 5)),
    "bernoulli array": lambda m, r, k: r.bernoulli(k, m.asarray(CHANCE)),
    "randint": lambda m, r, k: r.randint(k, (3, 5), -3, 100, m.int32),
    "randint arrays 64": lambda m, r, k: r.randint(k, (2, 3), m.asarray([0, 5, 9]), m.asarray([1, 5, 1000]), m.int64),
    "randint all 64": lambda m, r, k: r.randint(k, (4,), -(2**31), 2**31, m.int32),
    "randint narrow": lambda m, r, k: r.randint(k, (9,), 0, 256, m.uint8),
    "permutation": lambda m, r, k: r.permutation(k, 11),
    "permutation rows": lambda m, r, k: r.permutation(k, m.asarray(ROWS)),
    "permutation apart": lambda m, r, k: r.permutation(k, m.asarray(ROWS), 1, independent=True),
    "choice": lambda m, r, k: r.choice(k, 9, (2, 3)),
    "choice once": lambda m, r, k: r.choice(k, m.asarray(ROWS), (2,), replace=False),
    "choice p": lambda m, r, k: r.choice(k, 4, (6,), p=m.asarray(CHANCE)),
    "choice p once": lambda m, r, k: r.choice(k, 4, (3,), replace=False, p=m.asarray(CHANCE)),
    "categorical": lambda m, r, k: r.categorical(k, m.asarray(LOGITS)),
    "categorical more": lambda m, r, k: r.categorical(k, m.asarray(LOGITS), 0, (5, 4)),
}  # fmt: skip
NEAR: dict[str, Callable[..., Any]] = {
    "normal": lambda m, r, k: r.normal(k, (30, 50), m.float32),
    "normal f64": lambda m, r, k: r.normal(k, (30, 50), m.float64),
    "normal bf16": lambda m, r, k: r.normal(k, (30,), m.bfloat16),
    "uniform between": lambda m, r, k: r.uniform(k, (30, 5), m.float32, -3.0, 5.7),
    "truncated": lambda m, r, k: r.truncated_normal(k, -1.0, 2.0, (30, 5), m.float32),
    "exponential": lambda m, r, k: r.exponential(k, (30, 5), m.float32),
    "gumbel": lambda m, r, k: r.gumbel(k, (30, 5), m.float32),
}


@pytest.mark.parametrize("seed", some([20261126, 0], 2))
def test_numbers_are_those_of_jax(seed: int) -> None:
    cases = thinned({**EXACT, **NEAR}.items(), 5)
    ours = mw.jit(lambda k: {n: f(mw, mw.random, k) for n, f in cases})
    found = ours(mw.random.key(seed))
    key = theirs.PRNGKey(seed)
    assert np.array_equal(np.asarray(mw.random.key(seed)), np.asarray(key))
    for name, f in cases:
        with jax.enable_x64("64" in name):
            wanted, made = np.asarray(f(jnp, theirs, key)), np.asarray(found[name])
        if name in EXACT:
            assert made.shape == wanted.shape, name
            np.testing.assert_array_equal(made, wanted, err_msg=name)
        else:
            eps = 2.0**-7 if "bf16" in name else np.finfo(wanted.dtype).eps
            np.testing.assert_allclose(made, wanted, 16 * eps, 16 * eps, err_msg=name)


MESH = mw.Mesh(x=2, y=3)


def all_of(key: Any, shape: tuple[int, ...]) -> Any:
    r = mw.random
    return (
        *(r.bits(key, shape), r.uniform(key, shape), r.normal(key, shape)),
        *(r.bernoulli(key, 0.3, shape), r.gumbel(key, shape), r.randint(key, shape, 0, 1000)),
    )


@settings(max_examples=examples(9), deadline=None)
@given(st.data())
def test_every_layout_has_the_same_bits(data: Any) -> None:
    """Uneven shards, cyclic ones, any order of axes: the bits are those of one rank."""
    shape = (7, 5)
    layout = data.draw(layouts(MESH, ndim=2, kinds=()))
    key = mw.random.key(3)
    alone = mw.jit(lambda k: all_of(k, shape))(key)
    spread = mw.jit(lambda k: all_of(k, shape), mesh=MESH, out_layouts=layout)
    found = spread(np.asarray(key))
    assert "0 collectives bring" in spread.explain()
    for one, other in zip(alone, found, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("engine", ["local", "mpi"])
def test_slices_and_engines_have_the_same_bits(engine: str) -> None:
    key = np.asarray(mw.random.key(9))

    def sliced(k: Any) -> Any:
        with mw.hint(slice="t=2", order="dfs"):
            x = mw.constrain(mw.random.normal(k, (8, 6)), "[x*t, _]")
            return x * 2

    f = mw.jit(sliced, mesh="x=2", engine=engine)
    alone = mw.jit(lambda k: mw.random.normal(k, (8, 6)) * 2)
    assert np.asarray(f(key)).tobytes() == np.asarray(alone(key)).tobytes()
    assert "honoured" in f.explain()
    f.close()


def test_dropout_by_a_key_drops_the_same_elements_on_every_mesh() -> None:
    x = np.random.default_rng(2).normal(size=(6, 10)).astype(np.float32)

    def drop(k: Any, x: Any) -> Any:
        return mw.sum(mw.nn.dropout(x, mw.random.bernoulli(k, 0.8, x.shape), 0.2) ** 2)

    key = np.asarray(mw.random.key(1))
    alone = np.asarray(mw.jit(mw.grad(drop, 1))(key, x))
    spread = mw.jit(mw.grad(drop, 1), mesh="x=2, y=2", in_layouts=(None, "[y, x]"))
    assert np.array_equal(np.asarray(spread(key, x)), alone)
    assert 0 < (alone == 0).sum() < alone.size


def test_what_is_no_key_or_bound_is_refused_in_a_line() -> None:
    r, key = mw.random, mw.random.key(0)
    for call, said in (
        (lambda: r.normal(np.zeros(2, np.float32)), "random.normal: key is"),
        (lambda: r.key(1.5), "one integer is right"),
        (lambda: r.bits(key, (2,), "i32"), "without sign"),
        (lambda: r.uniform(key, (2,), "i32"), "a floating one is right"),
        (lambda: r.uniform(key, (2, 3), minval=np.zeros(4, np.float32)), "do not broadcast"),
        (lambda: r.bernoulli(key, 1), "floating numbers are right"),
        (lambda: r.randint(key, (2,), 0.5, 3), "integers are right"),
        (lambda: r.choice(key, 3, (4,), replace=False), "4 of 3"),
        (lambda: r.categorical(key, LOGITS, shape=(2,)), "it must end with"),
    ):
        with pytest.raises(mw.MeshweaveError, match=said):
            call()
