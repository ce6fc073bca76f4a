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


def agree(function, *args, **options):
    """The program gives what JAX gives."""
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    with mw.from_jax(function, *args, **options) as program:
        made = jax.tree.leaves(program(*args))
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
    agree(
        lambda a, b: [jnp.linalg.qr(x, m) for x in (a, b) for m in ("reduced", "complete", "r")],
        wide_,
        tall,
    )
    agree(
        lambda a, b: [jnp.linalg.svd(x, full_matrices=f) for x in (a, b) for f in (True, False)],
        wide_,
        tall,
    )
    agree(
        lambda a: (jnp.linalg.svdvals(a), jnp.linalg.eigh(a + a.mT), jnp.linalg.eigvalsh(a)), square
    )
    agree(
        lambda a, b: (jnp.linalg.pinv(a), jnp.linalg.matrix_rank(b), jnp.linalg.cond(b)),
        wide_,
        tall,
    )
    agree(
        lambda a, b: jnp.linalg.norm(a, 2, (-2, -1)) + jnp.linalg.norm(b, "nuc", (-2, -1)),
        wide_,
        tall,
    )


@sampled(2)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_systems(dtype):
    a, b = positive(2, 5, dtype=dtype), sample(2, 5, 3, dtype=dtype)
    agree(lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.cholesky(a)), a, b)
    agree(lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(-a), lax.linalg.lu(a)), a)
    agree(lambda a, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b), a, b)
    agree(lambda a, b: jnp.linalg.lstsq(a[0, :, :3], b[0])[0], a, b)
    agree(lambda a: jax.scipy.linalg.expm(a[0] / 8), a)


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
    for function in (
        jnp.linalg.solve,
        lambda a, b: (jnp.linalg.svdvals(a), jnp.linalg.qr(a).R @ b),
    ):
        agree(function, a, b, mesh="x=2", in_shardings=("[x, _, _]", "[x, _, _]"))
        options = {"mesh": "x=2", "in_shardings": ("[x, _, _]", "[x, _, _]")}
        with mw.from_jax(jnp.linalg.solve, a, b, **options) as program:
            assert not [
                c for c in program.program.bundle.manifest.collectives if c.bytes >= a.nbytes
            ]


def test_16_bits_are_refused_as_jax_refuses_them():
    for function in (jnp.linalg.cholesky, jnp.linalg.qr):
        with pytest.raises(Exception, match=r"[Uu]nsupported|not supported|bfloat16"):
            mw.from_jax(function, jnp.eye(3, dtype="bfloat16"))
