"""Decompose PyTorch's linear algebra into calls of LAPACK: one op, `meshweave::lapack`, stands for all routines.

Where torch raises an error because a matrix is singular or not positive, a compiled program cannot: its results are
NaN. Ops whose name ends in `_ex` give `info`, as in torch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.of_complex.functions import conjugate
from meshweave.frontends.torch.decompositions.of_complex.parts import PART_OF, WHOLE_OF
from meshweave.ir.routines import COMPLEX, PARTS, ROUTINES, RoutineCall

torch.library.define(
    "meshweave::lapack", "(Tensor[] operands, str routine, str[] flags) -> Tensor[]"
)


def _shapes(operands: Sequence[Tensor], routine: str, flags: Sequence[str]) -> list[Tensor]:
    """Return tensors of the shapes and types that a routine gives."""
    call = RoutineCall.made(routine, "", [x.shape for x in operands], flags)
    made = list(zip(call.shapes, call.row.types("")))[len(operands) :]
    return [
        operands[0].new_empty(shape, dtype=torch.int32 if kind else operands[0].dtype)
        for shape, kind in made
    ]


torch.library.register_fake("meshweave::lapack", _shapes)


def _call(routine: str, *operands: Tensor, **flags: bool) -> list[Tensor]:
    """Call a routine with those flags that hold."""
    kind, said = operands[0].dtype, [name for name, holds in flags.items() if holds]
    if kind in PART_OF:
        return _call_in_parts(routine, operands, said)
    if kind not in WHOLE_OF:
        raise NotImplementedError(f"linear algebra of {kind}")
    made: list[Tensor] = torch.ops.meshweave.lapack(list(operands), routine, said)
    return made


def _call_in_parts(routine: str, operands: Sequence[Tensor], flags: Sequence[str]) -> list[Tensor]:
    """Call a routine on complex numbers, whose parts are a last dim."""
    packed = [torch.view_as_real(x) if x.is_complex() else x for x in operands]
    made = torch.ops.meshweave.lapack(packed, routine + COMPLEX, flags)
    dims = ROUTINES[routine + COMPLEX].tensors[len(packed) :]
    return [torch.view_as_complex(x) if d.endswith(PARTS) else x for x, d in zip(made, dims)]


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.linalg_cholesky_ex.default: _cholesky_ex,
        aten.linalg_cholesky.default: lambda a, *, upper=False: _or_nan(
            *_cholesky_ex(a, upper=upper)
        ),
        aten.cholesky.default: lambda a, upper=False: _or_nan(*_cholesky_ex(a, upper=upper)),
        aten.cholesky_solve.default: _cholesky_solve,
        aten.cholesky_inverse.default: lambda factor, upper=False: _cholesky_solve(
            _eye(factor), factor, upper
        ),
        aten.linalg_lu_factor_ex.default: _lu_factor_ex,
        aten.linalg_lu_factor.default: lambda a, *, pivot=True: _lu_factor_ex(a, pivot=pivot)[:2],
        aten.linalg_lu.default: _lu,
        aten.linalg_lu_solve.default: _lu_solve,
        aten._linalg_solve_ex.default: _solve_ex,
        aten.linalg_solve_ex.default: lambda a, b, *, left=True, check_errors=False: _solve_ex(
            a, b, left=left
        )[::3],
        aten.linalg_solve.default: _solve,
        aten.linalg_inv_ex.default: lambda a, *, check_errors=False: _solve_ex(a, _eye(a))[::3],
        aten.linalg_inv.default: lambda a: _or_nan(*_solve_ex(a, _eye(a))[::3]),
        aten.inverse.default: lambda a: _or_nan(*_solve_ex(a, _eye(a))[::3]),
        aten._linalg_det.default: _det,
        aten._linalg_slogdet.default: _slogdet,
        aten.linalg_slogdet.default: lambda a: _slogdet(a)[:2],
        aten.linalg_solve_triangular.default: _solve_triangular,
        aten.triangular_solve.default: _old_triangular_solve,
        aten.linalg_qr.default: _qr,
        aten.geqrf.default: lambda a: tuple(_call("geqrf", a)),
        aten.linalg_householder_product.default: lambda a, scales: _call("orgqr", a, scales)[0],
        aten._linalg_svd.default: _svd,
        aten.linalg_svdvals.default: lambda a, *, driver=None: _svd(a, compute_uv=False)[1],
        aten.linalg_eigvalsh.default: lambda a, uplo="L": _eigh(a, uplo, compute_v=False)[0],
        aten._linalg_eigh.default: _eigh,
        aten.linalg_eig.default: _eig,
        aten.linalg_eigvals.default: _eigvals,
        aten._linalg_eigvals.default: _eigvals,
        aten.linalg_pinv.atol_rtol_tensor: _pinv,
        aten._linalg_check_errors.default: lambda info, name, *, is_matrix: None,
    }


def _eye(a: Tensor) -> Tensor:
    """Return an identity matrix for each matrix."""
    return _repeated(torch.eye(a.shape[-1], dtype=a.dtype), a.shape[:-2], 2)


def _or_nan(value: Tensor, info: Tensor) -> Tensor:
    """Return results, NaN where a routine failed."""
    failed = info != 0
    for _ in range(value.dim() - info.dim()):
        failed = failed.unsqueeze(-1)
    return torch.where(failed, torch.nan, value)


# Cholesky


def _cholesky_ex(
    a: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    factor, info = _call("potrf", a, lower=not upper)
    return torch.triu(factor) if upper else torch.tril(factor), info


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    b, factor = _of_one_batch(b, factor)
    other = conjugate(factor)
    once, last = (other, factor) if upper else (factor, other)
    b = _call("trsm_left", once, b, lower=not upper, transposed=upper)[0]
    return _call("trsm_left", last, b, lower=not upper, transposed=not upper)[0]


def _of_one_batch(b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat matrices as far as the other ones need it."""
    batch = torch.broadcast_shapes(b.shape[:-2], a.shape[:-2])
    return _repeated(b, batch, 2), _repeated(a, batch, 2)


def _repeated(x: Tensor, batch: Sequence[int], own: int) -> Tensor:
    """Repeat tensors whose last `own` dims are one matrix or vector, for each of a batch."""
    shape = [*batch, *x.shape[x.dim() - own :]]
    return x if shape == list(x.shape) else x.expand(shape).clone()


# LU


def _lu_factor_ex(
    a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if not pivot:
        raise NotImplementedError("LU without pivots")
    factors, pivots, info = _call("getrf", a)
    return factors, pivots, info


def _lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = _lu_factor_ex(a, pivot=pivot)
    m, n = a.shape[-2:]
    k = min(m, n)
    lower = torch.tril(factors[..., :, :k], -1) + torch.eye(m, k, dtype=a.dtype)
    rows = _repeated(torch.eye(m, dtype=a.dtype), a.shape[:-2], 2)
    order = _call("laswp", rows, pivots, transposed=True)[0]
    return order, lower, torch.triu(factors[..., :k, :])


def _lu_solve(
    factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    if not left:
        turned = _lu_solve(factors, pivots, b.mH.contiguous(), adjoint=not adjoint)
        return turned.mH.contiguous()
    b, factors = _of_one_batch(b, factors)
    pivots = _repeated(pivots, b.shape[:-2], 1)
    if adjoint:
        factors = conjugate(factors)
        once = _call("trsm_left", factors, b, transposed=True)[0]
        once = _call("trsm_left", factors, once, lower=True, transposed=True, unit=True)[0]
        return _call("laswp", once, pivots, transposed=True)[0]
    once = _call("laswp", b, pivots)[0]
    once = _call("trsm_left", factors, once, lower=True, unit=True)[0]
    return _call("trsm_left", factors, once)[0]


def _solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    sides = b.unsqueeze(-1) if vector else b
    factors, pivots, info = _lu_factor_ex(a)
    x = _lu_solve(factors, pivots, sides, left=left or vector)
    return x.squeeze(-1) if vector else x, factors, pivots, info


def _solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    x, _, _, info = _solve_ex(a, b, left=left)
    return _or_nan(x, info)


def _det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = _lu_factor_ex(a)
    diagonal = torch.diagonal(factors, dim1=-2, dim2=-1)
    return _parity(pivots, a.dtype) * diagonal.prod(-1), factors, pivots


def _slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    factors, pivots, _ = _lu_factor_ex(a)
    diagonal = torch.diagonal(factors, dim1=-2, dim2=-1)
    sign = _parity(pivots, a.dtype) * torch.sgn(diagonal).prod(-1)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


def _parity(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """Return -1 where an odd number of rows is swapped, else 1."""
    own = torch.arange(1, pivots.shape[-1] + 1, dtype=torch.int32)
    swaps = (pivots != own).to(torch.int32).sum(-1)
    return 1 - 2 * (swaps % 2).to(dtype)


# Triangular systems


def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    b, a = _of_one_batch(b, a)
    if not left and a.is_complex():
        turned = _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular)
        return turned.mT.contiguous()
    routine = "trsm_left" if left else "trsm_right"
    return _call(routine, a, b, lower=not upper, unit=unitriangular)[0]


def _old_triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    b, a = _of_one_batch(b, a)
    flags = {"lower": not upper, "transposed": transpose, "unit": unitriangular}
    return _call("trsm_left", a, b, **flags)[0], a.clone()


# Decompositions


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    packed, scales = _call("geqrf", a)
    m, n = a.shape[-2:]
    k = min(m, n)
    if mode == "r":
        return a.new_empty([0]), torch.triu(packed[..., :k, :])
    first = packed[..., :k].contiguous()
    if mode == "complete":
        first = torch.nn.functional.pad(first, (0, m - k))
    q = _call("orgqr", first, scales)[0]
    return q, torch.triu(packed if mode == "complete" else packed[..., :k, :])


def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if not compute_uv:
        values, info = _call("gesdd_values", a)
        return a.new_empty([0]), _or_nan(values, info), a.new_empty([0])
    values, u, vt, info = _call("gesdd_full" if full_matrices else "gesdd", a)
    return _or_nan(u, info), _or_nan(values, info), _or_nan(vt, info)


def _eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    lower = uplo.upper() == "L"
    if not compute_v:
        values, info = _call("syevd_values", a, lower=lower)
        return _or_nan(values, info), a.new_empty([0])
    vectors, values, info = _call("syevd", a, lower=lower)
    return _or_nan(values, info), _or_nan(vectors, info)


def _eig(a: Tensor) -> tuple[Tensor, Tensor]:
    *values, vectors, info = _call("geev_right", a)
    vectors = vectors if vectors.is_complex() else torch.view_as_complex(vectors)
    return _of_parts(values, info), _or_nan(vectors, info)


def _eigvals(a: Tensor) -> Tensor:
    *values, info = _call("geev_values", a)
    return _of_parts(values, info)


def _of_parts(values: Sequence[Tensor], info: Tensor) -> Tensor:
    """Return eigenvalues of one tensor, or of one with their real and one with their imaginary parts."""
    whole = [_or_nan(one, info) for one in values]
    return torch.complex(*whole) if len(whole) > 1 else whole[0]


def _pinv(
    a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """Invert the singular values that are larger than both tolerances."""
    if hermitian:  # of which the lower triangle counts
        a = torch.tril(a) + torch.tril(a, -1).mH
    u, values, vt = _svd(a)
    small = values.new_zeros([]) if atol is None else atol
    if rtol is None:
        eps = torch.finfo(a.dtype).eps * max(a.shape[-2:])
        rtol = torch.where(small > 0, 0.0, eps)
    limit = torch.maximum(small.unsqueeze(-1), rtol.unsqueeze(-1) * values[..., :1])
    inverse = torch.where(values > limit, 1 / values, 0.0)
    return (vt.mH * inverse.unsqueeze(-2)) @ u.mH
