"""Decompose PyTorch ops that torch-mlir has no lowering for, or a wrong one.

Each function takes and returns what torch's op does, NaNs and signed zeros too. It returns NotImplemented to leave the
op as it is.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from meshweave.frontends.torch.decompositions.halves import HALVES, rounded_once, wide, wide_product
from meshweave.frontends.torch.decompositions.integers import scattered_bools, scattered_means
from meshweave.frontends.torch.decompositions.ways import first_of

Combine = Callable[[Tensor, Tensor], Tensor]


def decompositions() -> dict[OpOverload, Callable[..., object]]:
    """Return the decompositions by op."""
    aten, prims = torch.ops.aten, torch.ops.prims
    fused = {prims.fma.default: lambda x, y, z: x * y + z} if hasattr(prims, "fma") else {}
    return {
        **fused,
        aten.constant_pad_nd.default: _pad,
        aten.roll.default: _roll,
        aten.unfold.default: _unfold,
        aten._trilinear.default: first_of(rounded_once(aten._trilinear.default), _trilinear),
        aten.index_select.default: lambda x, dim, index: NotImplemented if x.dim() else x.clone(),
        aten.gather.default: _gather,
        aten.embedding_dense_backward.default: _embedding_dense_backward,
        aten.col2im.default: first_of(_folded_nothing, decomposition_table[aten.col2im.default]),
        aten._efficientzerotensor.default: torch.zeros,
        aten.view.default: _view,
        aten._unsafe_view.default: _view,
        aten.reshape.default: _view,
        aten.repeat.default: _repeat,
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.block_diag.default: _block_diag,
        aten.index_put.default: _index_put,
        aten.index_reduce.default: _index_reduce,
        aten.scatter.reduce: _scatter_by_name,
        aten.scatter.value_reduce: _scatter_by_name,
        aten.scatter.src: _from_the_front(aten.scatter.src),
        aten.scatter.value: _from_the_front(aten.scatter.value),
        **{
            op: first_of(
                scattered_bools(op), scattered_means, rounded_once(op), _from_the_front(op)
            )
            for op in _sums_at_places()
        },
        aten.index_add.default: _index_add,
        aten._to_copy.default: _to_copy,
        aten.isfinite.default: lambda x: (x.abs() < math.inf) if x.is_floating_point() else x == x,
        aten.signbit.default: _negative,
        aten.copysign.Tensor: _copysign,
        aten.copysign.Scalar: lambda x, y: _copysign(x, torch.full((), float(y))),
        aten.hypot.default: _hypot,
        aten.fmax.default: lambda x, y: _of_numbers(torch.maximum, x, y),
        aten.fmin.default: lambda x, y: _of_numbers(torch.minimum, x, y),
        aten.pow.Tensor_Scalar: _pow,
        aten.addmv.default: _addmv,
        aten.dist.default: lambda x, y, p=2: torch.linalg.vector_norm(x - y, p),
        aten._cdist_forward.default: lambda x, y, p, mode=None: torch.linalg.vector_norm(
            x.unsqueeze(-2) - y.unsqueeze(-3), p, dim=-1
        ),
        aten.histc.default: _histc,
        aten.gcd.default: _gcd,
        aten.lcm.default: lambda x, y: (x // _gcd(x, y).clamp(min=1) * y).abs(),
        aten.remainder.Scalar_Tensor: lambda x, y: torch.remainder(
            torch.full((), x, dtype=torch.result_type(x, y)), y
        ),
        aten.var.correction: lambda *args, **options: _var_mean(*args, **options)[0],
        aten.var_mean.correction: _var_mean,
        aten.native_group_norm.default: _group_norm,
        aten.elu.default: rounded_once(aten.elu.default),
        aten.linalg_vector_norm.default: rounded_once(aten.linalg_vector_norm.default),
        aten.nll_loss_backward.default: _nll_loss_backward,
        aten.nll_loss2d_backward.default: _nll_loss_backward,
        **{op: first_of(_wider(op), _by_number(op)) for op in _int8_ops()},
        **{op: first_of(_floored, _wider(op), _by_number(op)) for op in _floor_divisions()},
        aten.fmod.Tensor: first_of(_left, _wider(aten.fmod.Tensor)),
        aten.leaky_relu.default: lambda x, slope=0.01: _by_number(aten.leaky_relu.default)(
            x, slope
        ),
    }


def _view(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Make what holds nothing anew: upstream divides by its sizes. Strides of ours need not be those of torch."""
    if not x.numel():
        return x.new_empty([0 if size == -1 else size for size in shape])
    if x.is_contiguous() or _has_view(x, shape):
        return NotImplemented
    return x.clone(memory_format=torch.contiguous_format).view(shape)


def _repeat(x: Tensor, counts: Sequence[int]) -> Tensor:
    """Make what holds nothing anew: upstream ends the process."""
    sizes = [*[1] * (len(counts) - x.dim()), *x.shape]
    shape = [size * count for size, count in zip(sizes, counts, strict=True)]
    return NotImplemented if all(shape) else x.new_empty(shape)


def _has_view(x: Tensor, shape: Sequence[int]) -> bool:
    with _disable_current_modes():
        like = torch.empty_strided(x.shape, x.stride(), device="meta")
        try:
            like.view(shape)
        except (RuntimeError, ValueError):
            return False
        return True


def _nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Choose by comparing classes with the target: rows that lie on ranks stay where they are."""
    dim = min(self.dim() - 1, 1)
    shape = [-1 if d == dim else 1 for d in range(self.dim())]
    target = target.unsqueeze(dim)
    classes = torch.arange(self.shape[dim], device=self.device).view(shape)
    rise = -grad_output / total_weight if reduction == 1 else -grad_output
    rise = rise.unsqueeze(dim) if rise.dim() else rise
    rise = rise if weight is None else rise * weight.view(shape)
    return torch.where((classes == target) & (target != ignore_index), rise, 0.0).to(self.dtype)


def _gcd(x: Tensor, y: Tensor) -> Tensor:
    """Divide as often as the numbers of Fibonacci that have so many bits would need it."""
    kind = torch.promote_types(x.dtype, y.dtype)
    x, y = torch.broadcast_tensors(x.to(kind), y.to(kind))
    for _ in range(math.ceil(1.4404 * torch.iinfo(kind).bits)):
        done = y == 0
        x, y = torch.where(done, x, y), torch.where(done, 0, torch.fmod(x, torch.where(done, 1, y)))
    return x.abs()


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Count by comparing the bin of each element with all bins. Bounds that are equal are those of the elements."""
    flat = x.reshape(-1)
    low: float | Tensor = min
    high: float | Tensor = max
    if min == max and flat.numel():
        low, high = flat.amin(), flat.amax()
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    elif min == max:
        low, high = min - 1, max + 1
    inside = (flat >= low) & (flat <= high)
    place = torch.where(inside, (flat - low) * bins / (high - low), -1.0).to(torch.int64)
    place = place.clamp(max=bins - 1)
    return (place == torch.arange(bins).unsqueeze(-1)).sum(-1).to(x.dtype)


def _int8_ops() -> list[OpOverload]:
    names = "add sub mul mm bmm div remainder fmod floor_divide clamp bitwise_and bitwise_or"
    names += " bitwise_xor bitwise_left_shift bitwise_right_shift eq ne lt le gt ge"
    overloads = ("default", "Tensor", "Scalar", "Tensor_mode")
    packets = [getattr(torch.ops.aten, name) for name in names.split()]
    return [getattr(p, kind) for p in packets for kind in overloads if kind in p.overloads()]


# Elements


def _to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **options: object) -> Tensor:
    if dtype in HALVES and x.dtype == torch.float64:
        return x.to(torch.float32).to(dtype)  # as torch does: rounded twice
    return NotImplemented


def _negative(x: Tensor) -> Tensor:
    """Tell where the sign is set, of zeros too."""
    if x.dtype == torch.bool:
        return x.logical_and(x.logical_not())
    return (x < 0) | (1 / x < 0) if x.is_floating_point() else x < 0


def _copysign(x: Tensor, y: Tensor) -> Tensor:
    """Return |x| with the sign of y, which a zero has too; floats of integers."""
    kind = torch.result_type(x, y)
    size = x.to(kind if kind.is_floating_point else torch.float32).abs()
    return torch.where(_negative(y), -size, size)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """Compute sqrt(x² + y²) without overflow in between."""
    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / torch.where(large == 0, 1.0, large)
    return torch.where(large == math.inf, large, large * torch.sqrt(ratio * ratio + 1))


def _pow(x: Tensor, exponent: float) -> Tensor:
    """Compute powers of integers, which torch-mlir lacks, as products."""
    if x.is_floating_point() or not isinstance(exponent, int) or not 0 < exponent <= 16:
        return NotImplemented
    found = x
    for _ in range(exponent - 1):
        found = found * x
    return found


def _of_numbers(op: Combine, x: Tensor, y: Tensor) -> Tensor:
    """Apply `op`, but take the other element where one is NaN."""
    x, y = torch.broadcast_tensors(x, y)
    if not x.is_floating_point():
        return op(x, y)
    return torch.where(x != x, y, torch.where(y != y, x, op(x, y)))


def _wider(op: OpOverload) -> Callable[..., Tensor]:
    """Compute an op on int8 in int32, which is the same modulo 256: torch-mlir's pipeline crashes on some of them."""

    def computed(*args: object, **options: object) -> Tensor:
        tensors = [a.dtype for a in args if isinstance(a, torch.Tensor)]
        if set(tensors) != {torch.int8} or any(isinstance(a, float) for a in args):
            return NotImplemented
        larger = [a.to(torch.int32) if isinstance(a, torch.Tensor) else a for a in args]
        found = op(*larger, **options)
        return found.to(torch.int8) if found.dtype == torch.int32 else found

    return computed


def _floor_divisions() -> tuple[OpOverload, ...]:
    aten = torch.ops.aten
    whole = aten.floor_divide
    return whole.default, whole.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode


def _left(x: Tensor, y: Tensor | float) -> Tensor:
    """Return what a division of floats that rounds to zero leaves, exactly.

    torch-mlir computes it from the rounded quotient.
    """
    kind = torch.result_type(x, y)
    if not kind.is_floating_point:
        return NotImplemented
    x = x.to(kind)
    return torch.copysign(torch.remainder(x.abs(), abs(y)), x)


def _floored(x: Tensor, y: Tensor | float, rounding_mode: str | None = "floor") -> Tensor:
    """Divide floats rounding down, by what `fmod` leaves, as Python and torch do: 1.5 // 0.3 is 4.

    torch-mlir rounds the quotient down, which is 5.0 there.
    """
    kind = torch.result_type(x, y)
    if rounding_mode == "trunc" and kind in HALVES and isinstance(y, Tensor):
        return torch.trunc(x / y)  # of what was rounded
    if rounding_mode != "floor" or not kind.is_floating_point:
        return NotImplemented
    wide = torch.float32 if kind in HALVES else kind
    x = x.to(wide)
    y = y.to(wide) if isinstance(y, Tensor) else torch.full((), y, dtype=wide, device=x.device)
    left, quotient = _left(x, y), x / y
    whole = (x - left) / y
    whole = torch.where((left != 0) & ((left < 0) != (y < 0)), whole - 1, whole)
    down = torch.floor(whole)
    down = torch.where(whole - down > 0.5, down + 1, down)
    down = torch.where(whole == 0, torch.copysign(torch.zeros((), dtype=wide), quotient), down)
    return torch.where(y == 0, quotient, down).to(kind)


def _by_number(op: OpOverload) -> Callable[..., Tensor]:
    """Take a Python float beside f16 or bf16 as torch does: multiplied in f32, compared with its nearest.

    torch-mlir rounds what is multiplied, and does not round what is compared. A constant of floats it compares with an
    integer wrongly, or crashes.
    """
    name = op.overloadpacket.__name__

    def computed(x: object, y: object = None, *rest: object, **options: object) -> Tensor:
        if not isinstance(x, Tensor):
            return NotImplemented
        if name in _COMPARED and isinstance(y, int | float):
            kind = torch.result_type(x, y)
            if kind.is_floating_point and isinstance(y, int):
                return op(x, float(y))
            if kind != x.dtype and not kind.is_complex:
                return op(x.to(kind), y)
        if x.dtype not in HALVES or not isinstance(y, float):
            return NotImplemented
        with _disable_current_modes():
            nearest = torch.tensor(y, dtype=x.dtype).item()
        if nearest == y or math.isnan(y):
            return NotImplemented
        if name in _COMPARED:
            return op(x, nearest)
        if name in _MULTIPLIED:
            return op(x.to(torch.float32), y, *rest, **options).to(x.dtype)
        return NotImplemented

    return computed


_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_MULTIPLIED = ("mul", "div", "leaky_relu")


# Moves


def _pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Cut where widths are negative, which torch-mlir ignores; pad elsewhere."""
    if min(pad, default=0) >= 0:
        return NotImplemented
    for k in range(len(pad) // 2):
        dim, (low, high) = x.dim() - 1 - k, (min(pad[2 * k], 0), min(pad[2 * k + 1], 0))
        x = x.narrow(dim, -low, x.shape[dim] + low + high)
    return torch.constant_pad_nd(x, [max(width, 0) for width in pad], value)


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        first = (size - shift) % size if size else 0
        if first:
            parts = [x.narrow(dim, first, size - first), x.narrow(dim, 0, first)]
            x = torch.cat(parts, dim)
    return x.clone()


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Return the windows along a dim, their elements as a last dim."""
    if not x.dim():
        return x.expand(1).narrow(0, 0, size).clone()
    dim %= x.dim()
    count = (x.shape[dim] - size) // step + 1
    if size == step:  # what lies on ranks stays there
        parts = x.narrow(dim, 0, count * size)
    else:
        place = torch.arange(count).unsqueeze(-1) * step + torch.arange(size)
        parts = x.index_select(dim, place.reshape(-1))
    return parts.unflatten(dim, (count, size)).movedim(dim + 1, -1)


def _diagonal_scatter(
    x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = moved.shape[-2:]
    above = [max(-offset, 0), 0, max(offset, 0), 0]  # where the diagonal begins
    wide = torch.diag_embed(source)
    size = source.shape[-1]
    pad = [above[2], columns - above[2] - size, above[0], rows - above[0] - size]
    wide = torch.constant_pad_nd(wide, pad)
    here = torch.arange(columns)[None, :] - torch.arange(rows)[:, None] == offset
    made = torch.where(here, wide, moved)
    return made.movedim((-2, -1), (dim1, dim2))


def _block_diag(tensors: Sequence[Tensor]) -> Tensor:
    blocks = [torch.atleast_2d(t) for t in tensors]
    width, before, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        rows.append(torch.constant_pad_nd(block, [before, width - before - block.shape[1]]))
        before += block.shape[1]
    return torch.cat(rows, 0)


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Gather nothing, of an index that may have any number of dims then, or one element."""
    if not index.numel():
        return x.new_empty(index.shape)
    if x.dim():
        return NotImplemented if index.dim() else x.gather(dim, index.reshape(1)).reshape(())
    return x.expand(index.shape)


def _embedding_dense_backward(
    grad: Tensor, index: Tensor, words: int, padding: int, by_frequency: bool
) -> Tensor:
    """Go back from one row as from a list of one."""
    if not index.dim():
        grad, index = grad.unsqueeze(0), index.reshape(1)
    theirs = decomposition_table[torch.ops.aten.embedding_dense_backward.default]
    back: Tensor = theirs(grad, index, words, padding, by_frequency)
    return back


def _folded_nothing(x: Tensor, size: Sequence[int], kernel: Sequence[int], *_: object) -> Tensor:
    if x.numel():
        return NotImplemented
    return x.new_zeros([*x.shape[:-2], x.shape[-2] // math.prod(kernel), *size])


def _sums_at_places() -> tuple[OpOverload, ...]:
    aten = torch.ops.aten
    return aten.scatter_add.default, aten.scatter_reduce.two


def _from_the_front(op: OpOverload) -> Callable[..., Tensor]:
    """Count the dim of a scatter from the front: upstream's lowering ends the process for one that counts backwards.

    An index of nothing may have any number of dims, and changes nothing.
    """

    def counted(x: Tensor, dim: int, index: Tensor, *more: Any, **options: Any) -> Tensor:
        if not index.numel():
            return x.clone()
        rest = (index, *more)
        return NotImplemented if dim >= 0 else op(x, dim + max(1, x.dim()), *rest, **options)

    return counted


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    if not x.dim():
        return _index_add(x.reshape(1), 0, index, source.reshape(-1), alpha=alpha).reshape(())
    added = wide(source) if alpha == 1 else wide(source) * alpha
    places = [*[None] * (dim % x.dim()), index.reshape(-1)]
    made = torch.ops.aten.index_put.default(wide(x), places, added, True)
    return made.to(x.dtype)


def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Reduce rows of the source into those that the index names."""
    if not x.dim():
        x = x.reshape(1)
        return _index_reduce(
            x, 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        ).reshape(())
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    places = index.reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _scatter_by_name(
    x: Tensor, dim: int, index: Tensor, given: Tensor | float, *, reduce: str
) -> Tensor:
    source = given if isinstance(given, Tensor) else torch.full(index.shape, given, dtype=x.dtype)
    name = {"add": "sum", "multiply": "prod"}[reduce]
    return torch.scatter_reduce(x, dim % max(1, x.dim()), index, source, name)


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Write `x[mask] = values`: each place that the mask has takes the value of its number among them.

    Bools are added up as integers.
    """
    if accumulate and x.dtype == torch.bool:
        whole, added = x.to(torch.int32), values.to(torch.int32)
        return torch.index_put(whole, indices, added, accumulate) != 0
    masks = [i for i in indices if i is not None and i.dtype == torch.bool]
    if len(masks) != 1 or len(indices) != 1:
        return NotImplemented
    rest = x.shape[masks[0].dim() :]
    mask, flat = masks[0].reshape(-1), x.reshape(-1, *rest)
    if values.dim() > len(rest) and values.shape[0] != 1:
        if not values.numel():
            return x.clone()
        place = (torch.cumsum(mask.to(torch.int64), 0) - 1).clamp(0, values.shape[0] - 1)
        values = values[place]
    made = flat + values if accumulate else values
    return torch.where(mask.reshape(-1, *[1] * len(rest)), made, flat).reshape(x.shape)


def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    sum_dims: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Add up products of three where there are none: upstream gives a size of 0 another one."""
    expands = (expand_x, expand_y, expand_z)
    parts = [_unsqueezed(*pair) for pair in zip((x, y, z), expands, strict=True)]
    if all(part.numel() for part in parts):
        return NotImplemented
    return (parts[0] * parts[1] * parts[2]).sum(list(sum_dims))


def _unsqueezed(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted(dims):
        x = x.unsqueeze(dim)
    return x


def _addmv(
    x: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if not x.is_floating_point():  # as torch does
        beta, alpha = int(beta), int(alpha)
    made = wide_product(matrix, vector.unsqueeze(-1)).squeeze(-1) * alpha
    return (made if beta == 0 else made + wide(x) * beta).to(x.dtype)


# Reductions


def _var_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute variance and mean in two passes, in float32 or wider."""
    dims = list(range(x.dim())) if not dim else list(dim)
    exact = wide(x)
    count = math.prod(x.shape[d] for d in dims)
    total = exact.sum(dims, keepdim=True)
    mean = total / count if count else total * math.nan
    apart = exact - mean
    freedom = max(count - (1 if correction is None else correction), 0)
    total = (apart * apart).sum(dims, keepdim=keepdim)
    made = total / freedom if freedom else total * math.nan
    flat = mean if keepdim else mean.squeeze(dims)
    return made.to(x.dtype), flat.to(x.dtype)


def normalised(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x with mean 0 and variance 1 along dims, the mean, and the inverse of the deviation."""
    mean = x.mean(dims, keepdim=True)
    apart = x - mean
    inverse = torch.rsqrt((apart * apart).mean(dims, keepdim=True) + eps)
    return apart * inverse, mean, inverse


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    parts = wide(x).reshape(n, groups, c // groups, hxw)
    out, mean, inverse = normalised(parts, [2, 3], eps)
    if weight is not None:
        out = out * weight.reshape(1, groups, c // groups, 1)
    if bias is not None:
        out = out + bias.reshape(1, groups, c // groups, 1)
    kind = x.dtype
    return out.reshape(x.shape).to(kind), mean.reshape(n, groups), inverse.reshape(n, groups)
