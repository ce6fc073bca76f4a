"""More PyTorch ops in terms of others: what torch-mlir has no lowering for, or a wrong one.

Each takes and gives what torch's op does, NaNs and signed zeros too. One that returns NotImplemented leaves the op.
"""

import math
from typing import Any


def decompositions(torch: Any) -> dict[Any, Any]:
    """Decompositions by op."""
    aten = torch.ops.aten
    return {
        aten.constant_pad_nd.default: _pad,
        aten.roll.default: _roll,
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.block_diag.default: _block_diag,
        aten.index_put.default: _index_put,
        aten._to_copy.default: _to_copy(aten._to_copy.default, torch),
        aten.isfinite.default: lambda x: (x.abs() < math.inf) if x.is_floating_point() else x == x,
        aten.signbit.default: _signbit,
        aten.copysign.Tensor: _copysign,
        aten.hypot.default: _hypot,
        aten.fmax.default: lambda x, y: _of_numbers(torch.maximum, x, y),
        aten.fmin.default: lambda x, y: _of_numbers(torch.minimum, x, y),
        aten.pow.Tensor_Scalar: _pow,
        aten.addmv.default: _addmv,
        aten.dist.default: lambda x, y, p=2: torch.linalg.vector_norm(x - y, p),
        aten._cdist_forward.default: _cdist,
        aten.searchsorted.Tensor: _searchsorted,
        aten.var.correction: _var,
        aten.var_mean.correction: _var_mean,
        aten.native_group_norm.default: _group_norm,
        aten.cumsum.default: _cumulative(torch, aten.cumsum.default),
        aten.cumprod.default: _cumulative(torch, aten.cumprod.default),
        aten.logcumsumexp.default: _logcumsumexp,
        aten.cummax.default: lambda x, dim: _extremes(x, dim, torch.ge),
        aten.cummin.default: lambda x, dim: _extremes(x, dim, torch.le),
        aten.sort.stable: lambda x, *, stable=None, dim=-1, descending=False: torch.sort(
            x, dim, descending
        ),
        aten.kthvalue.default: _kthvalue,
        aten.median.dim: _median_along,
        aten.median.default: lambda x: _median_along(x.reshape(-1), 0)[0],
        **{op: _wider(op) for op in _int8_ops(aten)},
    }


def _int8_ops(aten: Any) -> list[Any]:
    names = "add sub mul mm bmm div remainder fmod floor_divide clamp bitwise_and bitwise_or"
    names += " bitwise_xor bitwise_left_shift bitwise_right_shift eq ne lt le gt ge"
    overloads = ("default", "Tensor", "Scalar", "Tensor_mode")
    packets = [getattr(aten, name) for name in names.split()]
    return [getattr(p, kind) for p in packets for kind in overloads if kind in p.overloads()]


# Elements


def _to_copy(op: Any, torch: Any) -> Any:
    halves = (torch.float16, torch.bfloat16)

    def convert(x: Any, *, dtype: Any = None, **options: Any) -> Any:
        if dtype in halves and x.dtype == torch.float64:
            return x.to(torch.float32).to(dtype)  # as torch does: rounded twice
        return NotImplemented

    return convert


def _negative(x: Any) -> Any:
    """Where the sign is set, of zeros too."""
    return (x < 0) | (1 / x < 0) if x.is_floating_point() else x < 0


def _signbit(x: Any) -> Any:
    return x.logical_and(x.logical_not()) if _is_bool(x) else _negative(x)


def _is_bool(x: Any) -> bool:
    import torch

    return bool(x.dtype == torch.bool)


def _copysign(x: Any, y: Any) -> Any:
    import torch

    size = x.abs()
    return torch.where(_negative(y), -size, size)


def _hypot(x: Any, y: Any) -> Any:
    """Without overflow in between."""
    import torch

    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / torch.where(large == 0, 1.0, large)
    return torch.where(large == math.inf, large, large * torch.sqrt(ratio * ratio + 1))


def _pow(x: Any, exponent: Any) -> Any:
    """Powers of integers, that torch-mlir lacks, as products."""
    if x.is_floating_point() or not isinstance(exponent, int) or not 0 < exponent <= 16:
        return NotImplemented
    found = x
    for _ in range(exponent - 1):
        found = found * x
    return found


def _of_numbers(op: Any, x: Any, y: Any) -> Any:
    """`op`, with the other element where one is NaN."""
    import torch

    x, y = torch.broadcast_tensors(x, y)
    if not x.is_floating_point():
        return op(x, y)
    return torch.where(x != x, y, torch.where(y != y, x, op(x, y)))


def _wider(op: Any) -> Any:
    """Arithmetic of int8 by way of int32, modulo 256 the same: torch-mlir's pipeline dies of some of it."""

    def computed(*args: Any, **options: Any) -> Any:
        import torch

        tensors = [a.dtype for a in args if isinstance(a, torch.Tensor)]
        if set(tensors) != {torch.int8} or any(isinstance(a, float) for a in args):
            return NotImplemented
        wide = [a.to(torch.int32) if isinstance(a, torch.Tensor) else a for a in args]
        found = op(*wide, **options)
        return found.to(torch.int8) if found.dtype == torch.int32 else found

    return computed


# Moves


def _pad(x: Any, pad: Any, value: Any = 0) -> Any:
    """Negative widths cut, which torch-mlir ignores."""
    if min(pad, default=0) >= 0:
        return NotImplemented
    import torch

    for k in range(len(pad) // 2):
        dim, (low, high) = x.dim() - 1 - k, (min(pad[2 * k], 0), min(pad[2 * k + 1], 0))
        x = x.narrow(dim, -low, x.shape[dim] + low + high)
    return torch.constant_pad_nd(x, [max(width, 0) for width in pad], value)


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    import torch

    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        first = (size - shift) % size if size else 0
        if first:
            parts = [x.narrow(dim, first, size - first), x.narrow(dim, 0, first)]
            x = torch.cat(parts, dim)
    return x.clone()


def _on_diagonal(rows: int, columns: int, offset: int) -> Any:
    import torch

    return torch.arange(columns)[None, :] - torch.arange(rows)[:, None] == offset


def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    import torch

    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = moved.shape[-2:]
    above = [max(-offset, 0), 0, max(offset, 0), 0]  # where the diagonal begins
    wide = torch.diag_embed(source)
    size = source.shape[-1]
    pad = [above[2], columns - above[2] - size, above[0], rows - above[0] - size]
    wide = torch.constant_pad_nd(wide, pad)
    made = torch.where(_on_diagonal(rows, columns, offset), wide, moved)
    return made.movedim((-2, -1), (dim1, dim2))


def _block_diag(tensors: Any) -> Any:
    import torch

    blocks = [torch.atleast_2d(t) for t in tensors]
    width, before, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        rows.append(torch.constant_pad_nd(block, [before, width - before - block.shape[1]]))
        before += block.shape[1]
    return torch.cat(rows, 0)


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """`x[mask] = number`; masks of other writes are refused, for what they write is known only when they run."""
    import torch

    masks = [k for k, i in enumerate(indices) if i is not None and i.dtype == torch.bool]
    if not masks:
        return NotImplemented
    if len(masks) > 1 or len(indices) > 1 or values.numel() != 1 or accumulate:
        return NotImplemented
    mask = indices[0]
    mask = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
    return torch.where(mask, values.reshape(()), x)


def _addmv(x: Any, matrix: Any, vector: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    import torch

    return torch.mv(matrix, vector) * alpha + (x * beta if beta != 0 else 0)


def _cdist(x: Any, y: Any, p: float, compute_mode: Any = None) -> Any:
    import torch

    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, dim=-1)


def _searchsorted(
    edges: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    """The number of edges below each element; each row of edges is compared as a whole."""
    import torch

    if sorter is not None:
        return NotImplemented
    edges = edges.unsqueeze(-2) if edges.dim() > 1 else edges
    wanted = x.unsqueeze(-1)
    below = edges <= wanted if right or side == "right" else edges < wanted
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


# Reductions


def _var(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """In two passes, in float32 or wider."""
    import torch

    dims = list(range(x.dim())) if not dim else list(dim)
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    count = math.prod(x.shape[d] for d in dims)
    mean = (
        wide.sum(dims, keepdim=True) / count if count else wide.sum(dims, keepdim=True) * math.nan
    )
    apart = wide - mean
    freedom = max(count - (1 if correction is None else correction), 0)
    total = (apart * apart).sum(dims, keepdim=keepdim)
    made = total / freedom if freedom else total * math.nan
    flat = mean if keepdim else mean.squeeze(dims)
    return made.to(x.dtype), flat.to(x.dtype)


def _group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, eps: float
) -> Any:
    import torch

    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = (x.to(torch.float32) if half else x).reshape(n, groups, c // groups, hxw)
    mean = wide.mean([2, 3], keepdim=True)
    apart = wide - mean
    inverse = torch.rsqrt((apart * apart).mean([2, 3], keepdim=True) + eps)
    out = apart * inverse
    if weight is not None:
        out = out * weight.reshape(1, groups, c // groups, 1)
    if bias is not None:
        out = out + bias.reshape(1, groups, c // groups, 1)
    kind = x.dtype
    return out.reshape(x.shape).to(kind), mean.reshape(n, groups), inverse.reshape(n, groups)


# In order along a dim


def _cumulative(torch: Any, op: Any) -> Any:
    """Along a dim as torch does it: wider than the elements, rounded at the end."""
    wider = {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float32: torch.float64,
    }

    def cumulate(x: Any, dim: int, *, dtype: Any = None) -> Any:
        kind = dtype or (x.dtype if x.is_floating_point() else torch.int64)
        if not x.dim():
            return x.to(kind)
        wide = wider.get(kind, kind)
        if wide == x.dtype:
            return NotImplemented
        return op(x.to(kind).to(wide), dim).to(kind)

    return cumulate


def _logcumsumexp(x: Any, dim: int) -> Any:
    import torch

    return _scanned(x, dim, lambda a, b: torch.logaddexp(a, b), -math.inf)


def _scanned(x: Any, dim: int, combine: Any, neutral: Any) -> Any:
    """Combinations of the first 1, 2, .. elements along a dim, in log2(size) rounds."""
    step = 1
    while x.dim() and step < x.shape[dim]:
        x = combine(_shifted(x, dim, step, neutral), x)
        step *= 2
    return x


def _shifted(x: Any, dim: int, step: int, fill: Any) -> Any:
    """x moved towards larger places along a dim, `fill` before it."""
    import torch

    kept = x.narrow(dim, 0, x.shape[dim] - step)
    behind = x.dim() - 1 - dim % x.dim()
    return torch.constant_pad_nd(kept, [0, 0] * behind + [step, 0], fill)


def _extremes(x: Any, dim: int, better: Any) -> Any:
    """The largest (or smallest) element so far and its place: the last of equal ones, as torch says; NaN wins."""
    import torch

    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    size = x.shape[dim]
    shape = [size if d == dim % x.dim() else 1 for d in range(x.dim())]
    places = torch.arange(size).reshape(shape).expand(x.shape)
    step, values = 1, x
    while step < size:
        before = _shifted(values, dim, step, 0)
        earlier = _shifted(places, dim, step, -1)
        keeps = better(values, before) | (earlier < 0)
        if x.is_floating_point():
            keeps = keeps | (values != values)
        values, places = torch.where(keeps, values, before), torch.where(keeps, places, earlier)
        step *= 2
    return values, places


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    import torch

    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.sort(x, dim)
    found = (values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1))
    return found if keepdim else tuple(one.squeeze(dim) for one in found)


def _median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower median, or a NaN where there is one."""
    import torch

    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    size = x.shape[dim]
    values, places = _kthvalue(x, (size + 1) // 2, dim, True)
    if x.is_floating_point():
        nan = x != x
        where = torch.argmax(nan.to(torch.int32), dim, keepdim=True)
        has_nan = nan.any(dim, keepdim=True)
        values = torch.where(has_nan, math.nan, values)
        places = torch.where(has_nan, where, places)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))
