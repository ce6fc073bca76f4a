"""Decompose ops on the order of elements: sorts, medians, places among edges, extremes of two."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from meshweave.frontends.torch.decompositions.halves import wide
from meshweave.frontends.torch.decompositions.running import of_rows


def decompositions() -> dict[object, Callable[..., object]]:
    """Return the decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.nanmedian.default: lambda x: _nanmedian(x.reshape(-1), 0)[0],
        aten.nanmedian.dim: of_rows(_nanmedian),
        aten.searchsorted.Tensor: _searchsorted,
        aten.sort.stable: lambda x, *, stable=None, dim=-1, descending=False: torch.sort(
            x, dim, descending
        ),
        aten.topk.default: lambda x, k, dim=-1, largest=True, sorted=True: (
            NotImplemented if sorted else torch.topk(x, k, dim, largest)
        ),
        aten.kthvalue.default: of_rows(_kthvalue),
        aten.mode.default: of_rows(_mode),
        aten.median.dim: of_rows(_median_along),
        aten.median.default: lambda x: _median_along(x.reshape(-1), 0)[0],
        aten.eq.Tensor: _equal,
        aten.isclose.default: _isclose,
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp,
        aten.clamp_min.default: lambda x, low: _clamp(x, low),
        aten.clamp_min.Tensor: lambda x, low: _clamp(x, low),
        aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
        aten.clamp_max.Tensor: lambda x, high: _clamp(x, None, high),
        aten.amax.default: _of_no_dims,
        aten.amin.default: _of_no_dims,
        aten.maximum.default: lambda x, y: _extreme_of_two(x, y, True),
        aten.minimum.default: lambda x, y: _extreme_of_two(x, y, False),
        aten.argmax.default: lambda *args, **how: _place(True, *args, **how),
        aten.argmin.default: lambda *args, **how: _place(False, *args, **how),
        aten.hardtanh.default: lambda x, low=-1.0, high=1.0: _clamp(x, low, high),
        aten.relu6.default: lambda x: _clamp(x, 0.0, 6.0),
        aten.hardsigmoid.default: _hardsigmoid,
        aten.max.dim: of_rows(partial(_extreme_and_place, True)),
        aten.min.dim: of_rows(partial(_extreme_and_place, False)),
    }


def _equal(x: Tensor, y: Tensor) -> Tensor:
    """Compare floats both ways: upstream takes a tensor for equal to itself, which a NaN in it is not."""
    if not (x.is_floating_point() and y.is_floating_point()):
        return NotImplemented
    return (x <= y) & (x >= y)


def _isclose(
    x: Tensor, y: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Compare within a tolerance; what is infinite is close to itself alone."""
    if not (x.is_floating_point() and y.is_floating_point()):
        x, y = x.double(), y.double()
    apart = (x - y).abs()
    near = (x == y) | ((apart <= atol + (rtol * y).abs()) & (apart < torch.inf))
    return near | ((x != x) & (y != y)) if equal_nan else near


def _clamp(
    x: Tensor, low: Tensor | float | None = None, high: Tensor | float | None = None
) -> Tensor:
    """Cut elements off; a NaN stays one, of which upstream makes a bound."""
    kind = x.dtype
    for bound in (low, high):
        kind = kind if bound is None else torch.promote_types(kind, torch.result_type(x, bound))
    tensors = any(isinstance(bound, Tensor) for bound in (low, high))
    if not (kind.is_floating_point or tensors):
        return NotImplemented
    x = x.to(kind)
    for bound, cut in ((low, torch.maximum), (high, torch.minimum)):
        if bound is not None:
            edge = bound if isinstance(bound, Tensor) else torch.full((), bound, dtype=kind)
            x = cut(x, edge.to(kind))
    return x


def _nanmedian(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower median of what is a number along a dim, and its place; NaN where nothing is."""
    ordered, places = torch.sort(x, dim)  # NaN last
    count = (x == x).sum(dim, keepdim=True)
    middle = ((count - 1) // 2).clamp(min=0)
    found = ordered.gather(dim, middle), places.gather(dim, middle)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


torch.library.define("meshweave::extreme", "(Tensor a, Tensor b, bool largest) -> Tensor")
torch.library.register_fake("meshweave::extreme", lambda a, b, largest: a.new_empty(a.shape))
# Of what is known before a program runs.
torch.library.impl(
    "meshweave::extreme", "CPU", lambda a, b, big: (torch.maximum if big else torch.minimum)(a, b)
)


def _extreme_of_two(x: Tensor, y: Tensor, largest: bool) -> Tensor:
    """Choose the larger or the smaller of two floats; a NaN on either side, of which upstream keeps one of them."""
    kind = torch.result_type(x, y)
    if not kind.is_floating_point:
        return NotImplemented
    pair = torch.broadcast_tensors(x.to(kind), y.to(kind))
    made: Tensor = torch.ops.meshweave.extreme(*pair, largest)
    return made


def _of_no_dims(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """Return the one element of a tensor without dims, which upstream does not know."""
    return NotImplemented if x.ndim else x.clone()


def _place(largest: bool, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Find an extreme among integers in the order of the floats, in which a NaN comes first."""
    if x.ndim == 0:
        return torch.zeros_like(x, dtype=torch.int64)
    if not x.is_floating_point():
        return NotImplemented
    number = x if x.dtype == torch.float64 else x.float()
    whole = torch.int64 if x.dtype == torch.float64 else torch.int32
    ends = torch.iinfo(whole)
    bits = (number + 0.0).view(whole)  # no zero has a sign
    order = torch.where(bits < 0, bits ^ ends.max, bits)
    order = torch.where(x != x, ends.max if largest else ends.min, order)
    if largest:
        return torch.argmax(order, dim, keepdim)
    return torch.argmin(order, dim, keepdim)


def _extreme_and_place(
    largest: bool, x: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the extreme along a dim, and its place; those of integers upstream knows."""
    if not x.is_floating_point():
        upstream: tuple[Tensor, Tensor] = NotImplemented
        return upstream
    found = torch.amax(x, dim, keepdim) if largest else torch.amin(x, dim, keepdim)
    return found, _place(largest, x, dim, keepdim)


def _hardsigmoid(x: Tensor) -> Tensor:
    return (_clamp(wide(x) + 3, 0.0, 6.0) / 6).to(x.dtype)


def _searchsorted(
    edges: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Count the edges below each element: compare it with all of few edges, halve the row of many."""
    if sorter is not None:
        return NotImplemented
    count, kind = edges.shape[-1], torch.int32 if out_int32 else torch.int64
    after = torch.gt if right or side == "right" else torch.ge
    if count <= _FEW_EDGES:
        rows = edges.unsqueeze(-2) if edges.dim() > 1 else edges
        return after(rows, x.unsqueeze(-1)).logical_not().sum(-1, dtype=kind)
    found = torch.zeros_like(x, dtype=torch.int64)
    step = 1 << (count.bit_length() - 1)
    while step:
        further = found + step
        place = torch.clamp(further, max=count) - 1
        edge = torch.gather(edges, -1, place) if edges.dim() > 1 else edges[place]
        below = after(edge, x).logical_not() & (further <= count)
        found, step = torch.where(below, further, found), step // 2
    return found.to(kind)


_FEW_EDGES = 64


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim)
    found = (values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1))
    return found if keepdim else tuple(one.squeeze(dim) for one in found)


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the most frequent element along a dim, the smallest of several, and the last place of it."""
    values, places = torch.sort(x, dim)  # ours keeps the order of equal ones
    size = x.shape[dim]
    place = torch.arange(size).reshape([size if d == dim % x.dim() else 1 for d in range(x.dim())])
    differs = values.narrow(dim, 1, size - 1) != values.narrow(dim, 0, size - 1)
    first = torch.cat([torch.ones_like(values.narrow(dim, 0, 1), dtype=torch.bool), differs], dim)
    begin = torch.cummax(torch.where(first, place, 0), dim)[0]
    last = torch.argmax(place - begin, dim, keepdim=True)
    found = values.gather(dim, last), places.gather(dim, last)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _median_along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower median and its place, or those of a NaN where there is one."""
    size = x.shape[dim]
    values, places = _kthvalue(x, (size + 1) // 2, dim, True)
    if x.is_floating_point():
        nan = x != x
        where = torch.argmax(nan.to(torch.int32), dim, keepdim=True)
        has_nan = nan.any(dim, keepdim=True)
        values = torch.where(has_nan, math.nan, values)
        places = torch.where(has_nan, where, places)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))
