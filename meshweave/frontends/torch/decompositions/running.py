"""Decompose what runs along a dim: the sums, products and extremes of the first 1, 2, ... elements."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.halves import HALVES

Combine = Callable[[Tensor, Tensor], Tensor]
_WIDER = {**dict.fromkeys(HALVES, torch.float32), torch.float32: torch.float64}
"""In which types torch adds up along a dim, by those of the elements."""


def decompositions() -> dict[object, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.cumsum.default: _cumulative(aten.cumsum.default),
        aten.cumprod.default: _cumulative(aten.cumprod.default),
        aten.logcumsumexp.default: _logcumsumexp,
        aten.cummax.default: of_rows(lambda x, dim: _extremes_so_far(x, dim, torch.ge)),
        aten.cummin.default: of_rows(lambda x, dim: _extremes_so_far(x, dim, torch.le)),
    }


def of_rows(op: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an op that gives elements along a dim and their places, for tensors without dims too."""

    def computed(x: Tensor, *args: object, **options: object) -> tuple[Tensor, Tensor]:
        if not x.dim():
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        return op(x, *args, **options)

    return computed


def _cumulative(op: OpOverload) -> Callable[..., Tensor]:
    """Compute a cumulative op as torch does: in a wider type than the elements, rounded at the end."""

    def cumulate(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        kind = dtype or (x.dtype if x.is_floating_point() else torch.int64)
        if not x.dim():
            return x.to(kind)
        computed = _WIDER.get(kind, kind)
        if computed == x.dtype:
            return NotImplemented
        return op(x.to(kind).to(computed), dim).to(kind)

    return cumulate


torch.library.define("meshweave::log_sums", "(Tensor x, int dim) -> Tensor")
torch.library.register_fake("meshweave::log_sums", lambda x, dim: x.new_empty(x.shape))


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Combine the first 1, 2, ... elements along a dim, in a wider type as torch does; complex ones in rounds."""
    if not x.dim() or not x.numel():
        return x.clone()
    sums: Tensor = x.to(_WIDER.get(x.dtype, x.dtype))
    if not x.is_complex():
        return _log_sums(sums, dim % x.dim()).to(x.dtype)
    step = 1
    while step < x.shape[dim]:
        sums = torch.logaddexp(shifted(sums, dim, step, -math.inf), sums)
        step *= 2
    return sums


def _log_sums(x: Tensor, dim: int) -> Tensor:
    """Scan along a dim, with the longest of the others last: rows that lie side by side are scanned as vectors."""
    others = [d for d in range(x.dim()) if d != dim]
    last = max(others, key=lambda d: x.shape[d], default=dim)
    order = [*(d for d in range(x.dim()) if d != last), last]
    sums = torch.ops.meshweave.log_sums(x.permute(order).contiguous(), order.index(dim))
    back: Tensor = sums.permute([order.index(d) for d in range(x.dim())])
    return back


def shifted(x: Tensor, dim: int, step: int, fill: float) -> Tensor:
    """Move x towards larger places along a dim, with `fill` before it."""
    kept = x.narrow(dim, 0, x.shape[dim] - step)
    behind = x.dim() - 1 - dim % x.dim()
    return torch.constant_pad_nd(kept, [0, 0] * behind + [step, 0], fill)


def _extremes_so_far(x: Tensor, dim: int, better: Combine) -> tuple[Tensor, Tensor]:
    """Return the largest (or smallest) element so far and its place: the last of equal ones, as in torch. NaN wins."""
    size = x.shape[dim]
    shape = [size if d == dim % x.dim() else 1 for d in range(x.dim())]
    places = torch.arange(size).reshape(shape).expand(x.shape)
    step, values = 1, x
    while step < size:
        before = shifted(values, dim, step, 0)
        earlier = shifted(places, dim, step, -1)
        keeps = better(values, before) | (earlier < 0)
        if x.is_floating_point():
            keeps = keeps | (values != values)
        values, places = torch.where(keeps, values, before), torch.where(keeps, places, earlier)
        step *= 2
    return values, places
