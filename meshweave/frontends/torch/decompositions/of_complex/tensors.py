"""Decompose products, reductions and transforms of complex tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.of_complex.functions import (
    conjugate,
    function,
    multiply,
    nonzero,
)
from meshweave.frontends.torch.decompositions.of_complex.parts import is_complex, pair, parts
from meshweave.frontends.torch.decompositions.running import shifted

torch.library.define(
    "meshweave::fft", "(Tensor[] parts, str kind, int dim, int length) -> Tensor[]"
)


def _transformed(given: Sequence[Tensor], kind: str, dim: int, length: int) -> list[Tensor]:
    """Return tensors of the shapes that a transform gives."""
    shape = list(given[0].shape)
    shape[dim] = length // 2 + 1 if kind == "rfft" else length
    return [given[0].new_empty(shape) for _ in range(1 if kind == "irfft" else 2)]


torch.library.register_fake("meshweave::fft", _transformed)


def rules() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        **{op: _bilinear(op) for op in (aten.mm.default, aten.bmm.default, aten.matmul.default)},
        **{op: _bilinear(op) for op in (aten.mv.default, aten.outer.default, aten.dot.default)},
        aten.vdot.default: lambda x, y: _bilinear(aten.dot.default)(conjugate(x), y),
        aten.linear.default: lambda x, w, bias=None: _with(bias, 1, torch.matmul(x, w.t()), 1),
        aten.addmm.default: lambda x, a, b, *, beta=1, alpha=1: _with(
            x, beta, torch.mm(a, b), alpha
        ),
        aten.addmv.default: lambda x, a, b, *, beta=1, alpha=1: _with(
            x, beta, torch.mv(a, b), alpha
        ),
        aten.addr.default: lambda x, a, b, *, beta=1, alpha=1: _with(
            x, beta, torch.outer(a, b), alpha
        ),
        aten.baddbmm.default: lambda x, a, b, *, beta=1, alpha=1: _with(
            x, beta, torch.bmm(a, b), alpha
        ),
        aten.addbmm.default: lambda x, a, b, *, beta=1, alpha=1: _with(
            x, beta, torch.bmm(a, b).sum(0), alpha
        ),
        aten.addcmul.default: lambda x, a, b, *, value=1: x + a * b * value,
        aten.addcdiv.default: lambda x, a, b, *, value=1: x + a / b * value,
        aten.lerp.Tensor: lambda x, y, weight: x + weight * (y - x),
        aten.lerp.Scalar: lambda x, y, weight: x + weight * (y - x),
        aten.prod.default: lambda z, *, dtype=None: _product(_as(z, dtype).reshape(-1), 0, False),
        aten.prod.dim_int: lambda z, dim, keepdim=False, *, dtype=None: _product(
            _as(z, dtype), dim, keepdim
        ),
        aten.cumprod.default: lambda z, dim, *, dtype=None: _products(_as(z, dtype), dim),
        aten.any.default: lambda z: torch.any(nonzero(z)),
        aten.any.dim: lambda z, dim, keepdim=False: torch.any(nonzero(z), dim, keepdim),
        aten.any.dims: lambda z, dim=None, keepdim=False: torch.any(nonzero(z), dim, keepdim),
        aten.all.default: lambda z: torch.all(nonzero(z)),
        aten.all.dim: lambda z, dim, keepdim=False: torch.all(nonzero(z), dim, keepdim),
        aten.all.dims: lambda z, dim=None, keepdim=False: torch.all(nonzero(z), dim, keepdim),
        aten.var.correction: lambda z, dim=None, *, correction=None, keepdim=False: sum(
            torch.var(v, dim, correction=correction, keepdim=keepdim) for v in parts(z)
        ),
        aten.std.correction: lambda z, dim=None, *, correction=None, keepdim=False: torch.sqrt(
            torch.var(z, dim, correction=correction, keepdim=keepdim)
        ),
        aten.var_mean.correction: lambda z, dim=None, *, correction=None, keepdim=False: (
            torch.var(z, dim, correction=correction, keepdim=keepdim),
            torch.mean(z, [] if dim is None else dim, keepdim),
        ),
        aten.linalg_vector_norm.default: lambda z, *args, **options: torch.linalg.vector_norm(
            function("abs", z), *args, **options
        ),
        aten._fft_c2c.default: _complex_transform,
        aten._fft_c2r.default: _to_real,
        aten.istft.default: _inverse_of_windows,
    }


def made_of_real() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of ops that make complex numbers of real ones."""
    return {torch.ops.aten._fft_r2c.default: _from_real}


def _bilinear(op: OpOverload) -> Callable[[Tensor, Tensor], Tensor]:
    def computed(x: Tensor, y: Tensor) -> Tensor:
        (a, b), (c, d) = parts(x), parts(y)
        if not is_complex(y):
            return pair(op(a, c), op(b, c))
        if not is_complex(x):
            return pair(op(a, c), op(a, d))
        return pair(op(a, c) - op(b, d), op(a, d) + op(b, c))

    return computed


def _with(x: Tensor | None, beta: complex, product: Tensor, alpha: complex) -> Tensor:
    """Add a multiple of x, which may hold anything where that is 0 times it."""
    scaled = product if alpha == 1 else product * alpha
    if x is None or beta == 0:
        return scaled
    return scaled + (x if beta == 1 else x * beta)


def _as(z: Tensor, dtype: torch.dtype | None) -> Tensor:
    return z if dtype is None or z.dtype == dtype else z.to(dtype)


def _product(z: Tensor, dim: int, keepdim: bool) -> Tensor:
    """Multiply along a dim: halves by each other, and what is odd at the end."""
    if not z.dim():
        return z.clone()
    if not z.shape[dim]:
        ones = torch.ones([n for d, n in enumerate(z.shape) if d != dim % z.dim()], dtype=z.dtype)
        return ones.unsqueeze(dim) if keepdim else ones
    while (size := z.shape[dim]) > 1:
        half = size // 2
        rest = z.narrow(dim, 2 * half, size % 2)
        both = multiply(z.narrow(dim, 0, half), z.narrow(dim, half, half))
        z = torch.cat([both, rest], dim) if size % 2 else both
    return z.clone() if keepdim else z.squeeze(dim)


def _products(z: Tensor, dim: int) -> Tensor:
    """Multiply the first 1, 2, ... elements along a dim, in log2(size) rounds."""
    step = 1
    while z.dim() and step < z.shape[dim]:
        re, im = parts(z)
        z = multiply(pair(shifted(re, dim, step, 1), shifted(im, dim, step, 0)), z)
        step *= 2
    return z.clone()


# Fourier transforms


def _fft(given: Sequence[Tensor], kind: str, dim: int, length: int) -> list[Tensor]:
    made: list[Tensor] = torch.ops.meshweave.fft(list(given), kind, dim, length)
    return made


def _scale(lengths: Sequence[int], normalization: int) -> float:
    """Return what sums of so many terms are multiplied by: 1, the inverse of the root of their number, or of that."""
    count = math.prod(lengths)
    return (1.0, count**-0.5, 1.0 / count)[normalization] if count else 1.0


def _complex_transform(z: Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Tensor:
    both, lengths = list(parts(z)), [z.shape[d] for d in dims]
    for d, length in zip(dims, lengths):
        both = _fft(both, "fft" if forward else "ifft", d % z.dim(), length)
    factor = _scale(lengths, normalization)
    factor *= 1.0 if forward else math.prod(lengths)  # by which our inverse divides
    return pair(*both) if factor == 1.0 else pair(*[v * factor for v in both])


def _from_real(x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    *others, last = dims
    if not onesided:
        return _complex_transform(pair(x, torch.zeros_like(x)), dims, normalization, True)
    length = x.shape[last]
    made = pair(*_fft([x], "rfft", last % x.dim(), length))
    made = _complex_transform(made, others, 0, True)
    factor = _scale([length, *[x.shape[d] for d in others]], normalization)
    return made if factor == 1.0 else made * factor


def _to_real(z: Tensor, dims: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    *others, last = dims
    z = _complex_transform(z, others, 0, False)
    (made,) = _fft(parts(z), "irfft", last % z.dim(), last_dim_size)
    factor = _scale([last_dim_size, *[z.shape[d] for d in others]], normalization) * last_dim_size
    return made if factor == 1.0 else made * factor


def _inverse_of_windows(
    z: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Add up the inverse transforms of windows and divide by what the windows add up to, which torch has looked at."""
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    shape = torch.ones(width, dtype=parts(z)[0].dtype) if window is None else window
    left = (n_fft - width) // 2
    shape = torch.nn.functional.pad(shape, [left, n_fft - width - left])
    frames, norm = z.transpose(-2, -1), "ortho" if normalized else "backward"
    whole = z.shape[-2] == n_fft and not onesided
    if return_complex or (whole and onesided is not None):
        rows = torch.fft.ifft(frames, n_fft, -1, norm)
        rows = rows if return_complex else rows.real
    else:
        rows = torch.fft.irfft(frames[..., : n_fft // 2 + 1], n_fft, -1, norm)
    begin = n_fft // 2 if center else 0
    size = n_fft + hop * (z.shape[-1] - 1)
    end = begin + length if length is not None else size - begin
    added = _overlapped(rows * shape, hop)[..., begin:end]
    made = added / _overlapped((shape * shape).expand(z.shape[-1], n_fft), hop)[begin:end]
    if length is not None and made.shape[-1] < length:
        made = torch.nn.functional.pad(made, [0, length - made.shape[-1]])
    return made


def _overlapped(rows: Tensor, hop: int) -> Tensor:
    """Add rows up, each `hop` elements behind the one before it."""
    count, width = rows.shape[-2:]
    place = torch.arange(count).unsqueeze(-1) * hop + torch.arange(width)
    flat = rows.flatten(-2)
    zeros = flat.new_zeros([*flat.shape[:-1], hop * (count - 1) + width])
    return zeros.index_add(-1, place.flatten(), flat)
