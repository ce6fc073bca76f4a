"""Decompose functions of matrices that PyTorch has code of its own for: norms, exponentials, products of factors."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.halves import HALVES, wide


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.linalg_norm.default: _norm,
        aten.linalg_norm.ord_str: _norm,
        aten.linalg_matrix_exp.default: _exponential,
        aten.linalg_tensorinv.default: _tensor_inverse,
        # Its check of `info` would be an effect, and the refusal of that says nothing to users.
        aten.linalg_ldl_factor.default: lambda a, *, hermitian=False: aten.linalg_ldl_factor_ex(
            a, hermitian=hermitian
        )[:2],
        aten.lu_unpack.default: _lu_unpack,
        aten.ormqr.default: _times_q,
        aten._grouped_mm.default: _grouped,
        **_fallbacks(),
        aten.addbmm.default: lambda x, a, b, *, beta=1, alpha=1: torch.addmm(
            x, a.transpose(0, 1).flatten(1), b.flatten(0, 1), beta=beta, alpha=alpha
        ),
    }


def _fallbacks() -> dict[OpOverload, Callable[..., object]]:
    """Return those of the ops that the package transformers, where it is loaded, runs experts by: loops in Python."""
    theirs = torch.ops.transformers
    if not hasattr(theirs, "grouped_mm_fallback"):
        return {}
    return {
        theirs.grouped_mm_fallback.default: _grouped,
        theirs.grouped_mm_fallback_backward.default: lambda a, b, offs, slope: (
            _grouped(slope, b.transpose(-2, -1), offs),
            _grouped(a.t(), slope, offs),
        ),
    }


def _grouped(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply a group of rows, columns, or terms by each matrix, zeros in the place of what belongs to others.

    A kernel leaves these out. offs: where each group ends along the dim that has them; what lies behind the last one
    gives zeros.
    """
    kind = a.dtype if out_dtype is None else out_dtype
    if offs is None:
        made = torch.matmul(a, b)
        return (made if bias is None else made + bias).to(kind)
    of_rows, of_columns = a.dim() == 2 and b.dim() == 3, a.dim() == 3 and b.dim() == 2
    size = a.shape[0] if of_rows else b.shape[1] if of_columns else a.shape[1]
    place = torch.arange(size, device=a.device)
    begin = torch.cat([torch.zeros_like(offs[:1]), offs[:-1]])
    inside = (place >= begin.unsqueeze(-1)) & (place < offs.unsqueeze(-1))
    down, across = inside.unsqueeze(-1), inside.unsqueeze(-2)
    if of_rows or of_columns:
        a, b = wide(a), wide(b)
    if not of_columns:
        a = torch.where(down if of_rows else across, a, 0.0)
    if not of_rows:
        b = torch.where(across if of_columns else down, b, 0.0)
    multiply = torch.ops.meshweave.summed_products if of_rows or of_columns else torch.matmul
    made = multiply(a, b)
    return (made if bias is None else made + bias).to(kind)


torch.library.define("meshweave::summed_products", "(Tensor a, Tensor b) -> Tensor")
torch.library.register_fake(
    "meshweave::summed_products",
    lambda a, b: a.new_empty([*a.shape[b.dim() - 2 : -1], b.shape[-1]], dtype=wide(a).dtype),
)


def _norm(
    a: Tensor,
    ord: float | str | None = None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Choose between the norm of vectors and that of matrices, which only an `ord` asks for."""
    count = a.dim() if dim is None else len(dim)
    if ord is not None and count == 2:
        return torch.linalg.matrix_norm(a, ord, dim or (-2, -1), keepdim, dtype=dtype)
    return torch.linalg.vector_norm(a, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


DEGREE = 13
"""Of the Pade approximant, for both types."""
LIMIT = 5.371920351148152
"""The norm up to which it is as good as f64 [Higham, The Scaling and Squaring Method Revisited, 2005]."""
SQUARINGS = 16
"""A compiled program squares so often at most: matrices of a norm beyond 352,000 give NaN."""


def _exponential(a: Tensor) -> Tensor:
    """Scale, approximate, and square as often as each matrix needs it."""
    if not a.numel():
        return a.clone()
    if a.dtype in HALVES:
        return _exponential(wide(a)).to(a.dtype)
    norm = a.abs().sum(-2).amax(-1)[..., None, None]
    count = torch.ceil(torch.log2(norm / LIMIT)).clamp(min=0)
    made = _pade(a * torch.exp2(-count))
    for step in range(SQUARINGS):
        made = torch.where(count > step, made @ made, made)
    return torch.where(count <= SQUARINGS, made, torch.nan)


def _pade(a: Tensor) -> Tensor:
    """Return the quotient of p(a) and p(-a): the odd and even powers of p, added and subtracted."""
    unit = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    square = a @ a
    even, odd = (_horner(square, unit, _coefficients()[k::2]) for k in (0, 1))
    odd = a @ odd
    return torch.linalg.solve(even - odd, even + odd)


def _coefficients() -> list[float]:
    """Return the coefficients of p, the lowest first; that is 1."""
    d, f = DEGREE, math.factorial
    return [f(2 * d - k) * f(d) / (f(2 * d) * f(k) * f(d - k)) for k in range(d + 1)]


def _horner(x: Tensor, unit: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return a polynomial of matrices."""
    made = coefficients[-1] * x + coefficients[-2] * unit
    for coefficient in reversed(coefficients[:-2]):
        made = x @ made + coefficient * unit
    return made


def _tensor_inverse(a: Tensor, ind: int = 2) -> Tensor:
    rows = math.prod(a.shape[ind:])
    return torch.linalg.inv(a.reshape(-1, rows)).reshape([*a.shape[ind:], *a.shape[:ind]])


def _lu_unpack(
    factors: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    m, n = factors.shape[-2:]
    k, none = min(m, n), factors.new_empty([0])
    order, lower, upper = none, none, none
    if unpack_pivots:
        rows = torch.eye(m, dtype=factors.dtype.to_real())
        rows = rows.expand([*factors.shape[:-2], m, m]).clone()
        order = torch.ops.meshweave.lapack([rows, pivots], "laswp", ["transposed"])[0]
        order = order.to(factors.dtype)
    if unpack_data:
        lower = torch.tril(factors[..., :, :k], -1) + torch.eye(m, k, dtype=factors.dtype)
        upper = torch.triu(factors[..., :k, :])
    return order, lower, upper


def _times_q(
    packed: Tensor, scales: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """Multiply by the square Q of a QR."""
    m, k = packed.shape[-2], scales.shape[-1]
    square = torch.nn.functional.pad(packed[..., :k], (0, m - k))
    q = torch.linalg.householder_product(square, scales)
    q = q.mH if transpose else q
    return q @ other if left else other @ q
