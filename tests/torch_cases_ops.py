"""Cases of plain ops: elementwise, reductions, products, indexing, shapes, creation, dtypes."""

import torch
from torch import nn
from torch.nn import functional as F
from torch_cases import M, Q, X, add, ints, of, rand

# Elementwise

_ONE = (
    "abs neg exp exp2 expm1 sin cos tan sinh cosh asinh atan erf sign ceil floor round trunc square sigmoid "
    "frac sgn isnan isinf isfinite signbit deg2rad"
)
_POSITIVE = "log log2 log10 log1p sqrt rsqrt reciprocal acos asin atanh"
_TWO = "add sub mul div maximum minimum fmax fmin atan2 hypot copysign eq ne lt le gt ge logaddexp"
for _name in _ONE.split():
    add(f"op_{_name}", getattr(torch, _name), rand(4, 6))
for _name in _POSITIVE.split():
    add(f"op_{_name}", getattr(torch, _name), lambda: torch.rand(4, 6) * 0.9 + 0.05)
add("op_acosh", torch.acosh, lambda: torch.rand(4, 6) + 1.5)
for _name in _TWO.split():
    add(f"op_{_name}", getattr(torch, _name), rand(4, 6), rand(6))
add(
    "op_pow",
    lambda x, y: (x**2, x**3, x.abs() ** y, 2.0**x, x.abs() ** 0.5, x.abs() ** -0.5),
    rand(4, 6),
    rand(6),
)
add(
    "op_divisions",
    lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)),
    rand(4, 6),
    lambda: torch.rand(6) + 1,
)
add(
    "op_int_divisions",
    lambda x, y: (x // y, x % y, x / y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)),
    lambda: ints(19, 4, 6)() - 9,
    lambda: torch.tensor([2, -3, 5, -1, 4, 7]),
)
add("op_bits", lambda x, y: (x & y, x | y, x ^ y, ~x, x << 2, x >> 1), ints(64, 4, 6), ints(64, 6))
add(
    "op_logical",
    lambda x, y: (
        torch.logical_and(x, y),
        torch.logical_or(x, y),
        torch.logical_xor(x, y),
        torch.logical_not(x),
    ),
    ints(2, 4, 6),
    ints(2, 6),
)
add("op_clamp", lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp(max=0.2)), X)
add("op_clamp_tensor", lambda x, a: torch.clamp(x, a, a + 1), X, rand(8))
add(
    "op_integers",
    lambda i, t: (
        torch.clamp_max(i, t),
        torch.clamp_min(i > 3, t > 3),
        torch.clamp(i.to(torch.int8), t, t + 2),
        torch.clamp(i, 1.5, 4.5),
        torch.clamp(i, max=t.float() + 0.5),
        torch.square(i > 3),
    ),
    ints(9, 4, 6),
    ints(9, 6),
)
add("op_lerp", lambda x, y: torch.lerp(x, y, 0.3), X, X)
add(
    "op_addcmul",
    lambda x, y: (torch.addcmul(x, x, y, value=0.5), torch.addcdiv(x, x, y.abs() + 1)),
    X,
    X,
)
add(
    "op_where",
    lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, 1.0, y), torch.where(x > 0, x, 0)),
    X,
    X,
)
add("op_nan_to_num", lambda x: torch.nan_to_num(x / 0, 1.0, 2.0, 3.0), X)
add("repeat_nothing", lambda x: (x.repeat(0, 2, 1), x.tile((2, 0)), x[:0].repeat(2, 1, 3)), X)
add(
    "constants_compared",
    lambda x: tuple(
        x.new_tensor(0).to(torch.bool) | compare(c, n)
        for c in (torch.ones(3), torch.ones(3).bool(), torch.ones(3).long(), torch.ones(3).double())
        for n in (1, 0.5)
        for compare in (torch.eq, torch.ne, torch.lt, torch.ge)
    ),
    X,
)
add("op_rsub", lambda x: 1 - x, X)
add("op_alpha", lambda x, y: torch.add(x, y, alpha=2), X, X)
add("op_heaviside", lambda x: torch.heaviside(x, torch.tensor(0.5)), X)

# Reductions

add("sum", lambda x: (x.sum(), x.sum(1), x.sum((0, 2)), x.sum(-1, keepdim=True)), X)
add("mean", lambda x: (x.mean(), x.mean(1), x.mean((0, 2), keepdim=True)), X)
add("prod", lambda x: (x.prod(), x.prod(1)), X)
add(
    "var",
    lambda x: (x.var(), x.var(1), x.var(-1, unbiased=False), x.var(0, correction=0, keepdim=True)),
    X,
)
add("std", lambda x: (x.std(), x.std(1), torch.std_mean(x, -1), torch.var_mean(x, 0)), X)
add("amax_amin", lambda x: (x.amax(1), x.amin((0, 2)), x.aminmax(dim=-1)), X)
add("max_min", lambda x: (x.max(), x.min(), *x.max(1), *x.min(-1, keepdim=True)), X)
add("argmax", lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True)), X)
add("logsumexp", lambda x: (x.logsumexp(-1), torch.logsumexp(x, (0, 1), keepdim=True)), X)
add(
    "norms",
    lambda x: (
        x.norm(),
        x.norm(dim=-1),
        torch.linalg.vector_norm(x, 1, dim=1),
        x.norm(p=float("inf"), dim=0),
    ),
    X,
)
add("matrix_norm", lambda x: torch.linalg.matrix_norm(x), X)
add(
    "any_all",
    lambda x: ((x > 1).any(), (x > 1).any(1), (x > -3).all(), (x > 0).all(-1, keepdim=True)),
    X,
)
add("count_nonzero", lambda x: (torch.count_nonzero(x > 0), torch.count_nonzero(x > 0, dim=1)), X)
add("int_sum", lambda x: (x.sum(), x.sum(1), x.bool().sum(), x.float().mean(0)), ints(9, 4, 6))
add("cumsum", lambda x: (x.cumsum(0), x.cumsum(-1), x.cumsum(1)), X)
add("cumsum_int", lambda x: (x.cumsum(1), (x > 3).cumsum(0)), ints(9, 4, 6))
add("cumprod", lambda x: x.cumprod(-1), X)
add("cummax", lambda x: (*x.cummax(-1), *x.cummin(0)), X)
add("logcumsumexp", lambda x: (x.logcumsumexp(-1), x.logcumsumexp(0)), X)
add("sort", lambda x: (*x.sort(-1), *x.sort(0, descending=True)), X)
add("sort_stable", lambda x: torch.sort(x, dim=-1, stable=True), ints(3, 4, 9))
add("argsort", lambda x: (x.argsort(-1), x.argsort(0, descending=True)), X)
add(
    "topk",
    lambda x: (*x.topk(3), *x.topk(2, dim=1, largest=False), *x.topk(1, sorted=False)),
    X,
)
add("kthvalue", lambda x: x.kthvalue(2, -1), X)
add("median", lambda x: (x.median(), *x.median(-1)), X)
add("quantile", lambda x: torch.quantile(x, 0.3, dim=-1), X)
add("msort", torch.msort, M)
add("diff", lambda x: (x.diff(), x.diff(dim=0)), X)
add("trace", torch.trace, M)
add("dist", torch.dist, M, M)
add("cdist", torch.cdist, rand(4, 3), rand(5, 3))
add("bincount_like", lambda x: F.one_hot(x, 5).sum(0), ints(5, 9))
add(
    "histogram_searchsorted",
    lambda x, e: torch.searchsorted(e, x),
    rand(4, 6),
    lambda: torch.linspace(-2, 2, 9),
)
add(
    "searchsorted_many_edges",
    lambda x, e: (
        torch.searchsorted(e, x.nan_to_num()),
        torch.searchsorted(e, x, right=True, out_int32=True),
        torch.searchsorted(e.expand(4, 70), x),
    ),
    lambda: torch.tensor([float("nan"), float("inf"), -9, 0, 34, 35]).expand(4, 6).contiguous(),
    lambda: torch.arange(70) // 2.0,
)
add("bucketize", lambda x: torch.bucketize(x, torch.linspace(-2, 2, 9)), rand(4, 6))

# Products

add("mm", torch.mm, M, rand(6, 5))
add("mv", torch.mv, M, rand(6))
add("dot", torch.dot, rand(6), rand(6))
add("outer", torch.outer, rand(6), rand(5))
add("bmm", torch.bmm, X, rand(4, 8, 5))
add(
    "baddbmm",
    lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
    rand(4, 6, 5),
    X,
    rand(4, 8, 5),
)
add("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), rand(8, 5), M, rand(6, 5))
add("addmv", torch.addmv, rand(8), M, rand(6))
add("addbmm", torch.addbmm, rand(6, 5), X, rand(4, 8, 5))
add("matmul_broadcast", torch.matmul, rand(2, 1, 3, 4), rand(5, 4, 6))
add("matmul_vector", lambda a, b: (a @ b[0], b[0] @ b.T), X, rand(5, 8))
add("einsum", lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), Q, Q)
add(
    "einsum_three", lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), M, rand(6, 5), rand(5, 4)
)
add(
    "einsum_outer_trace",
    lambda a, b: (torch.einsum("i,j->ij", a, b), torch.einsum("i,i->", a, a)),
    rand(6),
    rand(5),
)
add("tensordot", lambda a, b: torch.tensordot(a, b, dims=2), rand(3, 4, 5), rand(4, 5, 2))
add("kron", torch.kron, rand(2, 3), rand(3, 2))
add("chain_matmul", lambda a, b, c: torch.linalg.multi_dot([a, b, c]), M, rand(6, 5), rand(5, 4))
add("cross", lambda a, b: torch.linalg.cross(a, b), rand(4, 3), rand(4, 3))
add("matrix_power", lambda a: torch.linalg.matrix_power(a, 3), rand(4, 4))

# Indexing

add("slices", lambda x: (x[1:3], x[:, ::2], x[..., -3:], x[1:, 2:5, ::3], x[:, -2]), X)
add("slice_step", lambda x: x[:, 1::3, ::5], X)
add("select", lambda x: (x[0], x[:, 2], x[-1, -1], x.select(2, 3)), X)
add("narrow", lambda x: x.narrow(1, 2, 3), X)
add("index_list", lambda x: (x[[2, 0]], x[:, [1, 3, 3]]), X)
add("index_tensor", lambda x, i: (x[i], x[:, i], x[i, :, i]), X, ints(4, 3))
add("index_negative", lambda x, i: x[i - 2], X, ints(4, 3))
add("index_pair", lambda x, i, j: x[i, j], X, ints(4, 3), ints(6, 3))
add("index_broadcast", lambda x, i, j: x[i[:, None], j[None, :]], X, ints(4, 3), ints(6, 2))
add("index_apart", lambda x, i, j: x[i, :, j], X, ints(4, 3), ints(8, 3))
add("gather", lambda x, i: torch.gather(x, 1, i), X, ints(6, 4, 3, 8))
add("take_along_dim", lambda x, i: torch.take_along_dim(x, i, -1), M, ints(6, 8, 2))
add("take", torch.take, M, ints(48, 5))
add("index_select", lambda x, i: torch.index_select(x, 1, i), X, ints(6, 4))
add(
    "scatter",
    lambda x, i, s: (x.scatter(1, i, s), x.scatter(1, i, 2.5)),
    M,
    lambda: torch.stack([torch.randperm(6)[:3] for _ in range(8)]),
    rand(8, 3),
)
add(
    "nll_loss_backward",
    lambda x, t, w: (
        torch.ops.aten.nll_loss_backward(x.sum(), x, t, w, 1, 3, torch.tensor(4.5)),
        torch.ops.aten.nll_loss_backward(x[:, 0], x, t, None, 0, -100, torch.tensor(0.0)),
        torch.ops.aten.nll_loss_backward(x.sum(), x[0], t[0], None, 2, -100, torch.tensor(0.0)),
    ),
    M,
    ints(4, 8),
    rand(6),
)
add(
    "scatter_along",
    lambda x, i, s: (x.scatter_add(0, i, s), x.scatter_reduce(1, i, s, "prod")),
    M,
    ints(6, 5, 4),
    rand(5, 4),
)
add("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), M, ints(6, 8, 4), rand(8, 4))
add(  # counted from the back
    "scatter_back",
    lambda x, i, s: (
        x.scatter_add(-1, i, s),
        x.scatter(-1, i, s[:1, :1].expand(8, 4), reduce="add"),
        x.scatter(-1, i, 2.0, reduce="multiply"),
        x.scatter_reduce(-1, i, s, "amin"),
    ),
    M,
    ints(6, 8, 4),
    rand(8, 4),
)
add(
    "scatter_reduce",
    lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
    M,
    ints(8, 4, 6),
    rand(4, 6),
)
add(
    "index_put",
    lambda x, i, v: torch.index_put(x, (i,), v),
    M,
    lambda: torch.tensor([1, 5]),
    rand(2, 6),
)
add(
    "index_put_add",
    lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
    M,
    lambda: torch.tensor([1, 5, 1]),
    rand(3, 6),
)
add(
    "index_put_pair",
    lambda x, i, j: torch.index_put(x, (i, j), torch.tensor(7.0)),
    M,
    lambda: torch.tensor([1, 5]),
    lambda: torch.tensor([0, 2]),
)
add(
    "index_add",
    lambda x, i, v: x.index_add(0, i, v),
    M,
    lambda: torch.tensor([1, 5, 1]),
    rand(3, 6),
)
add(
    "index_copy", lambda x, i, v: x.index_copy(0, i, v), M, lambda: torch.tensor([1, 5]), rand(2, 6)
)
add("index_fill", lambda x, i: x.index_fill(1, i, 3.0), M, lambda: torch.tensor([1, 5]))
add("masked_fill", lambda x, m: x.masked_fill(m, -1.0), X, lambda: torch.rand(6, 8) > 0.5)
add(
    "masked_scatter_like",
    lambda x, m: torch.where(m, x, torch.zeros_like(x)),
    X,
    lambda: torch.rand(6, 8) > 0.5,
)
add("mask_assign", lambda x, m: torch.where(m, 0.0, x).sum(-1), X, lambda: torch.rand(6, 8) > 0.5)
add("select_scatter", lambda x, v: torch.select_scatter(x, v, 1, 2), X, rand(4, 8))
add("diagonal_scatter", lambda x, v: torch.diagonal_scatter(x, v), rand(5, 5), rand(5))
add("diagonal", lambda x: (x.diagonal(), x.diagonal(1, -2, -1)), X)
add("diag", lambda x, v: (torch.diag(x), torch.diag(v), torch.diag_embed(x)), rand(4, 4), rand(3))
add("tril_triu", lambda x: (x.tril(), x.triu(1), x.tril(-1)), rand(4, 5, 6))
add(
    "tril_indices",
    lambda x: x[torch.tril_indices(4, 4)[0], torch.tril_indices(4, 4)[1]],
    rand(4, 4),
)
add("one_hot", lambda x: F.one_hot(x, 6).float(), ints(6, 4, 3))

# Shapes

add("reshape", lambda x: (x.reshape(24, 8), x.view(4, 48), x.reshape(2, 2, -1)), X)
add(
    "permute",
    lambda x: (x.permute(2, 0, 1), x.transpose(0, 2), x.mT, x.movedim(0, -1), x.swapaxes(0, 1)),
    X,
)
add(
    "squeeze",
    lambda x: (x.squeeze(), x.squeeze(1), x.unsqueeze(0), x[None, :, None]),
    rand(4, 1, 6),
)
add(
    "expand",
    lambda x: (x.expand(5, 4, 6), x[:, :1].expand(4, 3), x.broadcast_to(2, 4, 6)),
    rand(4, 6),
)
add(
    "repeat",
    lambda x: (x.repeat(2, 1, 3), x.tile(2), x.repeat_interleave(2, 1), x.repeat_interleave(3, 0)),
    X,
)
add(
    "cat_stack",
    lambda x, y: (
        torch.cat([x, y], 1),
        torch.stack([x, y], 1),
        torch.hstack([x, y]),
        torch.vstack([x, y]),
    ),
    X,
    X,
)
add(
    "split_chunk",
    lambda x: (
        *x.split(2, 1),
        *x.chunk(3, -1),
        *x.split([1, 3], 0),
        *x.unbind(0),
        *x.tensor_split(3, 1),
    ),
    X,
)
add(
    "roll_flip",
    lambda x: (
        x.roll(1, 0),
        x.roll((1, -2), (1, 2)),
        x.roll(3),
        x.flip(0),
        x.flip(1, 2),
        torch.rot90(x, 1, (1, 2)),
    ),
    X,
)
add("pad", lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0), value=3.0), F.pad(x, (-1, 2))), X)
add("pad_reflect", lambda x: F.pad(x, (2, 1), mode="reflect"), X)
add("pad_replicate", lambda x: F.pad(x, (2, 1), mode="replicate"), X)
add("pad_circular", lambda x: F.pad(x, (2, 1), mode="circular"), X)
add("pad_reflect_2d", lambda x: F.pad(x, (1, 1, 2, 1), mode="reflect"), rand(2, 3, 5, 6))
add("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), rand(4), rand(3))
add("cartesian", lambda x, y: torch.cartesian_prod(x, y), rand(4), rand(3))
add("unfold_dim", lambda x: x.unfold(-1, 3, 2), X)
add("as_strided", lambda x: x.as_strided((3, 2), (8, 1), 4), X)
add("block_diag", torch.block_diag, rand(2, 3), rand(3, 2))
add("contiguous", lambda x: x.transpose(0, 1).contiguous().view(6, 32), X)
add("atleast", lambda x: (torch.atleast_3d(x), torch.atleast_2d(x[0])), M)
add("triu_mask", lambda x: torch.full((6, 6), float("-inf")).triu(1) + x, rand(4, 6, 6))
for _mode in ("nearest", "bilinear", "bicubic", "nearest-exact", "area"):
    add(
        f"interpolate_{_mode}",
        lambda x, m=_mode: F.interpolate(x, scale_factor=2, mode=m),
        rand(2, 3, 4, 5),
    )
add("interpolate_linear", lambda x: F.interpolate(x, size=11, mode="linear", align_corners=True), X)
add(
    "interpolate_down",
    lambda x: F.interpolate(x, size=(3, 3), mode="bilinear", align_corners=False),
    rand(2, 3, 6, 7),
)
add(
    "grid_sample",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    rand(2, 3, 4, 5),
    lambda: torch.rand(2, 3, 3, 2) * 2 - 1,
)
add("affine_grid", lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), rand(2, 2, 3))

# Creation

add(
    "creation",
    lambda x: (
        x + torch.zeros(6),
        torch.ones_like(x),
        torch.full((2, 3), 7.0),
        torch.full_like(x, 2),
        torch.zeros_like(x, dtype=torch.int64),
        x.new_ones(3),
    ),
    M,
)
add(
    "arange",
    lambda x: (
        x + torch.arange(6),
        torch.arange(2, 11, 3),
        torch.arange(0.0, 1.0, 0.25),
        torch.arange(5, 0, -1),
    ),
    M,
)
add("linspace", lambda x: x + torch.linspace(0, 1, 6), M)
add("eye", lambda x: x @ torch.eye(6) + torch.eye(8, 6), M)
add("constants", lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6]), M)

# Dtypes

for _dtype in ("float64", "float16", "bfloat16", "int32", "int64", "int16", "int8"):
    add(
        f"dtype_{_dtype}",
        lambda x: (x + x * 3, x - 2, x.sum(1), x @ x.T, -x, x.abs().amax(0)),
        lambda d=_dtype: ints(5, 4, 6)().to(getattr(torch, d)),
    )
add(
    "dtype_bool",
    lambda x: (x & ~x.flip(0), x.any(1), x ^ x[:1], x.int(), x.sum(0)),
    lambda: torch.rand(4, 6) > 0.5,
)
add(
    "casts",
    lambda x: (
        x.int(),
        x.double(),
        x.half(),
        x.bfloat16(),
        x.bool(),
        x.long().float(),
        x.to(torch.int8),
    ),
    lambda: torch.randn(4, 6) * 5,
)
add(
    "mixed",
    lambda x, i: (x * i, i + 1.5, i / 2, x + i.bool(), x.double() * x, i * True),
    rand(4, 6),
    ints(5, 4, 6),
)
add("bf16_linear", of(lambda: nn.Linear(8, 5).bfloat16()), rand(4, 8, dtype=torch.bfloat16))
add("f16_linear", of(lambda: nn.Linear(8, 5).half()), rand(4, 8, dtype=torch.float16))
add("f64_linear", of(lambda: nn.Linear(8, 5).double()), rand(4, 8, dtype=torch.float64))
add(
    "bf16_encoder_layer",
    of(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).bfloat16()),
    rand(4, 6, 8, dtype=torch.bfloat16),
)
add("bf16_conv", of(lambda: nn.Conv2d(3, 4, 3).bfloat16()), rand(2, 3, 6, 6, dtype=torch.bfloat16))
add(
    "bf16_activations",
    lambda x: (F.gelu(x), F.silu(x), x.softmax(-1), x.mean(-1), x.sum(), x.var(-1)),
    rand(4, 6, dtype=torch.bfloat16),
)
add("bf16_rms_norm", of(lambda: nn.RMSNorm(8).bfloat16()), rand(4, 8, dtype=torch.bfloat16))
add("bf16_layer_norm", of(lambda: nn.LayerNorm(8).bfloat16()), rand(4, 8, dtype=torch.bfloat16))
add(  # the merged dims are not those that the product is split into
    "products_of_merged_dims",
    lambda a, b: torch.bmm(a[:, :, 1].reshape(8, 4, 6), b.reshape(8, 6, 5)).view(2, 4, 4, 5),
    rand(2, 4, 3, 4, 6),
    rand(2, 4, 6, 5),
)
add(
    "histc",
    lambda x: (torch.histc(x, 5), torch.histc(x, 4, -1, 1), torch.histc(x * 0 + 2, 3)),
    rand(4, 6),
)


def _ends(*ends: int) -> object:
    return lambda: torch.tensor(ends, dtype=torch.int32)


_grouped = torch.ops.aten._grouped_mm.default
_HALF = {"dtype": torch.bfloat16}  # torch traces this op for them alone
add("grouped_rows", _grouped, rand(7, 8, **_HALF), rand(3, 8, 8, **_HALF), _ends(2, 2, 7))
add("grouped_columns", _grouped, rand(3, 8, 8, **_HALF), rand(8, 16, **_HALF), _ends(4, 12, 16))
add("grouped_terms", _grouped, rand(8, 16, **_HALF), rand(16, 8, **_HALF), _ends(4, 4, 16))
add("grouped_batch", lambda a, b: _grouped(a, b), rand(3, 8, 8, **_HALF), rand(3, 8, 16, **_HALF))
add(
    "mask_writes",
    lambda x, m, rows, v, r: (
        x.masked_fill(m, 2.0),
        torch.index_put(x, (m,), v),
        torch.index_put(x, (m,), v, accumulate=True),
        torch.index_put(x, (rows,), r),
        torch.index_put(x, (rows,), r[0]),
        torch.index_put(x, (rows,), r[:1], accumulate=True),
        torch.index_put(x, (rows & False,), r[:0]),
    ),
    rand(4, 6),
    lambda: (torch.arange(24) % 5 == 1).reshape(4, 6),
    lambda: torch.tensor([True, False, False, True]),
    rand(5),
    rand(2, 6),
)
add(
    "of_no_dims",
    lambda x, v, k, w, n: (
        *(x.argmax(), x.argmin(0, True), n.argmax(-1), x.index_select(0, k)),
        *(x.index_copy(0, k, v), x.index_add(0, k, v, alpha=-1), F.embedding(k[0], w)),
    ),
    lambda: torch.randn([]),
    lambda: torch.randn([]),
    lambda: torch.tensor([0]),
    rand(3, 5),
    lambda: torch.tensor(2),
)
add(
    "of_nothing",
    lambda x, a, w, k: (
        *(x.gather(0, k), x.scatter(0, k[0], x[:0]), x.scatter_add(0, k[0], x[:0])),
        *(F.bilinear(a, a, w), a.softmax(-1), a.softmax(0), F.fold(a.reshape(0, 4, 4), (3, 3), 2)),
        x[:4] * torch.signal.windows.kaiser(4),  # known before
    ),
    rand(5),
    rand(0, 8),
    rand(4, 8, 8),
    lambda: torch.zeros(2, 0, dtype=torch.int64),
)
add(
    "gcd_lcm",
    lambda x, y: (torch.gcd(x, y), torch.lcm(x, y), torch.gcd(x.int(), y.int()), 7 % (y + 21)),
    lambda: ints(99, 4, 6)() - 30,
    lambda: ints(40, 6)() - 20,
)
