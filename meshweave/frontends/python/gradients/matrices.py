"""Hold the rules of factorisations, systems and Fourier transforms.

The cotangent of symmetric matrices is symmetric. A singular matrix has no derivative: NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import int64
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import eye, iota, tril, zeros
from meshweave.frontends.python.functions.factor import eig, eigh, inv, solve, svd
from meshweave.frontends.python.functions.fft import _transformed
from meshweave.frontends.python.functions.manipulate import concat, expand_dims
from meshweave.frontends.python.tracer import ArrayLike, Tracer


def _symmetric(x: Tracer) -> Tracer:
    return (x + x.mT) * 0.5


def _columns(x: Tracer, scale: Tracer) -> Tracer:
    """Multiply each column of matrices with a number."""
    return x * expand_dims(scale, -2)


def _cholesky(g: Tracer, y: Tracer, x: Tracer, upper: bool = False) -> Tracer:
    """Return L⁻ᵀ Φ(Lᵀ g) L⁻¹, symmetric; Φ halves the diagonal of the lower triangle [Murray 2016]."""
    lower, g = (y.mT, g.mT) if upper else (y, g)
    product = tril(lower.mT @ g)
    halved = product - _on_diagonal(product) * 0.5
    half = solve(lower.mT, halved)
    return _symmetric(solve(lower.mT, half.mT).mT)


def _on_diagonal(x: Tracer) -> Tracer:
    """Return matrices with 0 beside the diagonal."""
    return e.where(_is_diagonal(x), x, 0)


def _is_diagonal(x: Tracer) -> Tracer:
    row, column = (iota(x.shape, x.ndim - d, int64) for d in (2, 1))
    return logic.equal(row, column)


def _inverse_gaps(values: Tracer) -> Tracer:
    """Return 1 / (values[j] - values[i]) at [i, j], 0 on the diagonal."""
    gaps = expand_dims(values, -2) - expand_dims(values, -1)
    own = _is_diagonal(gaps)
    return e.where(own, 0, 1 / e.where(own, 1, gaps))


def _eigh(g: Sequence[Tracer], y: Sequence[Tracer], x: Tracer) -> Tracer:
    (slopes, g_vectors), (values, vectors) = g, y
    inner = _inverse_gaps(values) * (vectors.mT @ g_vectors)
    made = _columns(vectors, slopes) @ vectors.mT + vectors @ inner @ vectors.mT
    return _symmetric(made)


def _eigvalsh(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    _, vectors = eigh(x)
    return _columns(vectors, g) @ vectors.mT


def _eigvals(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    _, vectors = eig(x)
    return solve(vectors.mT, expand_dims(g, -1) * vectors.mT)


def _eig(g: Sequence[Tracer], y: Sequence[Tracer], x: Tracer) -> Tracer:
    """Return the cotangent of x = V diag(w) V⁻¹, whose vectors have length 1; what turns them is not to matter."""
    (slopes, g_vectors), (values, vectors) = g, y
    turned, g_turned = vectors.mT, e.conj(g_vectors)
    inner = e.conj(turned) @ g_turned
    own = e.astype(_is_diagonal(inner), inner.dtype) * e.real(inner)
    gaps = e.conj(_inverse_gaps(values))
    pulled = gaps * (inner - e.conj(turned) @ vectors @ own)
    whole = e.conj(pulled) + e.astype(_is_diagonal(pulled), pulled.dtype) * expand_dims(slopes, -1)
    return solve(turned, whole @ turned)


def _svd(g: Sequence[Tracer], y: Sequence[Tracer], x: Tracer, full_matrices: bool = True) -> Tracer:
    """Return the cotangent of x = U diag(S) Vᵀ [Townsend 2016]."""
    if full_matrices and x.shape[-1] != x.shape[-2]:
        fail("mw.grad: svd with full_matrices has no derivative: full_matrices=False is right")
    (g_u, g_s, g_vh), (u, s, vh) = g, y
    v, g_v = vh.mT, g_vh.mT
    gaps = _inverse_gaps(s * s)
    left, right = u.mT @ g_u, v.mT @ g_v
    inner = _columns(gaps * (left - left.mT), s)
    inner = inner + expand_dims(s, -1) * (gaps * (right - right.mT))
    inner = inner + e.astype(_is_diagonal(inner), inner.dtype) * expand_dims(g_s, -1)
    made = u @ inner @ vh
    if x.shape[-2] > s.shape[-1]:
        made = made + _columns(g_u - u @ left, 1 / s) @ vh
    if x.shape[-1] > s.shape[-1]:
        made = made + _columns(u, 1 / s) @ (g_v - v @ right).mT
    return made


def _svdvals(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    u, _, vh = svd(x, full_matrices=False)
    return _columns(u, g) @ vh


def _qr(g: Sequence[Tracer], y: Sequence[Tracer], x: Tracer, mode: str = "reduced") -> Tracer:
    rows, columns = x.shape[-2:]
    if rows < columns or (mode == "complete" and rows != columns):
        fail(
            f"mw.grad: qr of matrices of shape {[rows, columns]}, mode={mode!r}, has no derivative: at least as many "
            'rows as columns and mode="reduced" are right'
        )
    (g_q, g_r), (q, r) = g, y
    product = r @ g_r.mT - g_q.mT @ q
    both = tril(product) + tril(product, k=-1).mT
    return solve(r, (g_q + q @ both).mT).mT


def _inv(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    return -(y.mT @ g @ y.mT)


def _solve_matrix(g: Tracer, y: Tracer, a: Tracer, b: Tracer) -> Tracer:
    made = _solve_sides(g, y, a, b)
    if b.ndim == 1:
        made, y = expand_dims(made, -1), expand_dims(y, -1)
    return -(made @ y.mT)


def _solve_sides(g: Tracer, y: Tracer, a: Tracer, b: Tracer) -> Tracer:
    if b.ndim == 1:
        return solve(a.mT, expand_dims(g, -1))[..., 0]
    return solve(a.mT, g)


def _det(g: Tracer, y: Tracer, x: Tracer) -> Tracer:
    return _each(g * y) * inv(x).mT


def _slogdet(g: Sequence[Tracer], y: Sequence[Tracer], x: Tracer) -> Tracer:
    return _each(g[1]) * inv(x).mT


def _each(numbers: Tracer) -> Tracer:
    return expand_dims(expand_dims(numbers, -1), -1)


def _pinv(g: Tracer, y: Tracer, x: Tracer, rtol: ArrayLike | None = None) -> Tracer:
    """Return the cotangent of a pseudo-inverse of constant rank [Golub, Pereyra 1973]."""
    rows, columns = (eye(n, dtype=x.dtype) for n in x.shape[-2:])
    made = -(y.mT @ g @ y.mT)
    made = made + (rows - x @ y) @ (g.mT @ y @ y.mT)
    return made + y.mT @ y @ g.mT @ (columns - y @ x)


def _transformed_rule(g: Tracer, y: Tracer, x: Tracer, kind: str, dim: int, length: int) -> Tracer:
    """Transpose a Fourier transform: its matrix is symmetric; those of real numbers take a part of it."""
    if kind in ("fft", "ifft"):
        return _transformed(g, kind, dim, length)
    if kind == "rfft":
        rest = (*g.shape[:dim], length - g.shape[dim], *g.shape[dim + 1 :])
        whole = concat([g, zeros(rest, dtype=g.dtype)], axis=dim)
        return e.real(_transformed(whole, "fft", dim, length))
    made = e.conj(_transformed(g, "rfft", dim, length))
    place = iota(made.shape, dim, int64)
    once = logic.logical_or(logic.equal(place, 0), logic.equal(place * 2, length))
    return made * (e.astype(e.where(once, 1.0, 2.0), g.dtype) / length)


MATRICES: dict[str, Any] = {
    "cholesky": (_cholesky,),
    "qr": (_qr,),
    "svd": (_svd,),
    "svdvals": (_svdvals,),
    "eigh": (_eigh,),
    "eigvalsh": (_eigvalsh,),
    "eig": (_eig,),
    "eigvals": (_eigvals,),
    "solve": (_solve_matrix, _solve_sides),
    "inv": (_inv,),
    "det": (_det,),
    "slogdet": (_slogdet,),
    "pinv": (_pinv,),
    "transformed": (_transformed_rule,),
}
"""Primitive -> for each argument what makes its cotangent."""
