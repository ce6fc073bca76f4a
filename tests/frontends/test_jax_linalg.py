"""jnp.linalg and jax.lax.linalg, and their gradients, against JAX itself."""

import numpy as np
import pytest
from depth import deep, sampled

import meshweave as mw

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax

TOLERANCE = {"float32": 2e-4, "float64": 1e-10}


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def sample(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positive(*shape, dtype="float32"):
    a = sample(*shape, shape[-1], dtype=dtype)
    return a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1], dtype=dtype)


def agree(function, *args, gathered=None, **options):
    """The program gives what JAX gives. gathered: how many of its collectives bring as much as the first argument."""
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    with mw.from_jax(function, *args, **options) as program:
        made = jax.tree.leaves(program(*args))
        moved = [c.bytes for c in program.program.bundle.manifest.collectives]
        assert gathered is None or sum(n >= args[0].nbytes for n in moved) == gathered
    for got, want in zip(made, wanted, strict=True):
        tolerance = TOLERANCE.get(str(want.dtype), 0)
        np.testing.assert_allclose(
            np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance
        )


@sampled(4)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", [(), (3,), (0,)])
def test_decompositions(dtype, batch):
    wide_, tall = sample(*batch, 3, 5, dtype=dtype), sample(*batch, 6, 4, dtype=dtype)
    square = positive(*batch, 4, dtype=dtype)

    def every(a, b, square):
        return (
            [jnp.linalg.qr(x, m) for x in (a, b) for m in ("reduced", "complete", "r")],
            [jnp.linalg.svd(x, full_matrices=f) for x in (a, b) for f in (True, False)],
            *(jnp.linalg.svdvals(square), jnp.linalg.eigh(square + square.mT)),
            jnp.linalg.eigvalsh(square),
            *(jnp.linalg.pinv(a), jnp.linalg.matrix_rank(b), jnp.linalg.cond(b)),
            jnp.linalg.norm(a, 2, (-2, -1)) + jnp.linalg.norm(b, "nuc", (-2, -1)),
        )

    agree(every, wide_, tall, square)


@sampled(2)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_systems(dtype):
    a, b = positive(2, 5, dtype=dtype), sample(2, 5, 3, dtype=dtype)

    def every(a, b):
        return (
            *(jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.cholesky(a)),
            *(jnp.linalg.det(a), jnp.linalg.slogdet(-a), lax.linalg.lu(a)),
            jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b),
            jnp.linalg.lstsq(a[0, :, :3], b[0])[0],
            jax.scipy.linalg.expm(a[0] / 8),
        )

    agree(every, a, b)


def test_what_has_no_factor_is_nan():
    singular = np.array([[1.0, 2], [2, 4]], np.float32)
    agree(jnp.linalg.cholesky, np.stack([np.eye(2, dtype=np.float32), -singular]))
    agree(lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(a)), singular)
    agree(
        lambda a: (jnp.linalg.svd(a), jnp.linalg.eigvalsh(a)), np.full((2, 2), np.nan, np.float32)
    )


@deep
def test_gradients():
    a, b = positive(2, 4, dtype="float64"), sample(2, 4, 3, dtype="float64")
    tall = sample(6, 4, dtype="float64")
    agree(jax.grad(lambda a: (jnp.linalg.cholesky(a) ** 3).sum()), a)
    agree(jax.grad(lambda a, b: (jnp.linalg.solve(a, b) ** 2).sum(), (0, 1)), a, b)
    agree(jax.grad(lambda a: jnp.linalg.slogdet(a)[1].sum() + jnp.linalg.inv(a)[0, 1].sum()), a)
    agree(jax.grad(lambda a: sum((x**3).sum() for x in jnp.linalg.qr(a))), tall)
    agree(
        jax.grad(lambda a: (jnp.linalg.eigh(a)[1] ** 3).sum() + (jnp.linalg.eigh(a)[0] ** 2).sum()),
        a,
    )
    agree(
        jax.grad(lambda a: sum((x**3).sum() for x in jnp.linalg.svd(a, full_matrices=False))), tall
    )
    agree(
        jax.grad(
            lambda a, b: (lax.linalg.triangular_solve(a, b, left_side=True) ** 2).sum(), (0, 1)
        ),
        a,
        b,
    )


def test_a_batch_lies_on_ranks_and_is_not_gathered():
    a, b = positive(5, 4), sample(5, 4, 2)

    def every(a, b):
        return jnp.linalg.solve(a, b), jnp.linalg.svdvals(a), jnp.linalg.qr(a).R @ b

    agree(every, a, b, mesh="x=2", in_shardings=("[x, _, _]", "[x, _, _]"), gathered=0)


def test_16_bits_are_refused_as_jax_refuses_them():
    for function in (jnp.linalg.cholesky, jnp.linalg.qr):
        with pytest.raises(Exception, match=r"[Uu]nsupported|not supported|bfloat16"):
            mw.from_jax(function, jnp.eye(3, dtype="bfloat16"))
