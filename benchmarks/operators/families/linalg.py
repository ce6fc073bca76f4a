"""Linear algebra and Fourier transforms."""

from __future__ import annotations

from benchmarks.operators.case import Case, Function

FAMILY = "linear algebra"
FEW, MANY = "f32[256,256]", "f32[512,8,8]"


def _definite(xp: object, a: object) -> object:
    return a @ a.swapaxes(-1, -2) + 8 * xp.eye(a.shape[-1])


def _case(name: str, jax: Function, torch: Function, *given: str) -> Case:
    return Case(FAMILY, f"{name} {given[0]}", given, jax, torch)


def _batches(name: str, jax: Function, torch: Function, *more: str) -> list[Case]:
    return [_case(name, jax, torch, given, *(m for m in more)) for given in (FEW, MANY)]


CASES = (
    *_batches(
        "cholesky",
        lambda jax, a: jax.numpy.linalg.cholesky(_definite(jax.numpy, a)),
        lambda torch, a: torch.linalg.cholesky(_definite(torch, a)),
    ),
    _case(
        "solve",
        lambda jax, a, b: jax.numpy.linalg.solve(a, b),
        lambda torch, a, b: torch.linalg.solve(a, b),
        FEW,
        "f32[256,16]",
    ),
    _case(
        "solve",
        lambda jax, a, b: jax.numpy.linalg.solve(a, b),
        lambda torch, a, b: torch.linalg.solve(a, b),
        MANY,
        "f32[512,8,2]",
    ),
    _case(
        "triangular solve",
        lambda jax, a, b: jax.scipy.linalg.solve_triangular(
            a + 64 * jax.numpy.eye(128), b, lower=True
        ),
        lambda torch, a, b: torch.linalg.solve_triangular(
            a.tril() + 64 * torch.eye(128), b, upper=False
        ),
        "f32[128,128]",
        "f32[128,16]",
    ),
    *_batches(
        "inverse", lambda jax, a: jax.numpy.linalg.inv(a), lambda torch, a: torch.linalg.inv(a)
    ),
    *_batches(
        "determinant", lambda jax, a: jax.numpy.linalg.det(a), lambda torch, a: torch.linalg.det(a)
    ),
    _case(
        "qr", lambda jax, a: jax.numpy.linalg.qr(a)[1], lambda torch, a: torch.linalg.qr(a)[1], FEW
    ),
    _case(
        "singular values",
        lambda jax, a: jax.numpy.linalg.svd(a, compute_uv=False),
        lambda torch, a: torch.linalg.svdvals(a),
        FEW,
    ),
    _case(
        "eigh",
        lambda jax, a: jax.numpy.linalg.eigvalsh(_definite(jax.numpy, a)),
        lambda torch, a: torch.linalg.eigvalsh(_definite(torch, a)),
        FEW,
    ),
    _case(
        "fft",
        lambda jax, x: abs(jax.numpy.fft.fft(x)),
        lambda torch, x: abs(torch.fft.fft(x)),
        "f32[64,1024]",
    ),
    _case(
        "real fft",
        lambda jax, x: abs(jax.numpy.fft.rfft(x)),
        lambda torch, x: abs(torch.fft.rfft(x)),
        "f32[64,1000]",
    ),
)
