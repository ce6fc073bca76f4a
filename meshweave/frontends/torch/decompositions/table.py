"""Decompose PyTorch ops into ops that torch-mlir takes and that later passes recognise.

Upstream computes a layer's norm in f64, and a maximum together with its place; ours stay in the elements' type.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from meshweave.frontends.torch.decompositions import (
    bags,
    bits,
    convolution,
    foreach,
    integers,
    lapack,
    matrices,
    orders,
    plain,
    pools,
    quantized,
    running,
    special,
)
from meshweave.frontends.torch.decompositions.halves import rounded_once, wide, wide_product
from meshweave.frontends.torch.decompositions.of_complex.table import with_complex


def decompositions(
    upstream: Mapping[object, Callable[..., object]],
) -> dict[object, Callable[..., object]]:
    """Return the decompositions by op: upstream's table with our own."""
    aten = torch.ops.aten
    table = {**upstream, **plain.decompositions(), **lapack.decompositions()}
    table |= pools.decompositions() | running.decompositions()
    table |= integers.decompositions()
    table |= matrices.decompositions() | special.decompositions() | foreach.decompositions()
    table |= (
        orders.decompositions()
        | bags.decompositions()
        | bits.decompositions()
        | quantized.decompositions()
    )
    table[aten.scaled_dot_product_attention.default] = _attention
    table[aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    table[aten._native_multi_head_attention.default] = _heads_at_once
    table[aten.layer_norm.default] = _layer_norm
    table[aten.native_layer_norm.default] = _native_layer_norm
    table[aten.rms_norm.default] = lambda *args: _rms_norm(*args)[0]
    table[aten._fused_rms_norm.default] = _rms_norm
    table[aten.softmax.int] = _softmax
    table[aten._softmax.default] = _any_softmax
    table[aten.addmm.default] = _addmm
    table[aten.linear.default] = _linear
    table[aten.gelu.default] = _gelu
    table[aten.convolution.default] = convolution.convolution
    table[aten.convolution_backward.default] = convolution.backward
    return with_complex(table)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    # As torch does: scores and their softmax are never rounded to 16 bits.
    scores = torch.matmul(wide(query), wide(key).transpose(-2, -1)) * factor
    rows, columns = scores.shape[-2:]
    if is_causal:
        row = torch.arange(rows, device=scores.device).unsqueeze(-1)
        column = torch.arange(columns, device=scores.device).unsqueeze(0)
        weights = torch.softmax(torch.where(column <= row, scores, float("-inf")), -1)
    elif attn_mask is None:
        weights = torch.softmax(scores, -1)
    else:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, float("-inf"))
        else:
            scores = scores + wide(attn_mask)
        # A row that the mask takes away whole gives zeros, as torch says, not 0/0.
        largest = torch.amax(scores, -1, keepdim=True)
        largest = torch.where(largest == float("-inf"), 0.0, largest)
        weights = torch.exp(scores - largest)
        total = torch.sum(weights, -1).unsqueeze(-1)
        weights = weights / torch.where(total == 0, 1.0, total)
    return torch.matmul(weights, wide(value)).to(query.dtype)


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Compute what `nn.TransformerEncoderLayer` calls for inference: the layer as one op."""

    def attended(x: Tensor) -> Tensor:
        weights = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _heads_at_once(x, x, x, *weights, mask, False, False, mask_type)[0]

    def fed(x: Tensor) -> Tensor:
        inner = torch.nn.functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = torch.nn.functional.gelu(inner) if use_gelu else torch.relu(inner)
        return torch.nn.functional.linear(inner, ffn_weight_2, ffn_bias_2)

    first = (norm_weight_1.shape, norm_weight_1, norm_bias_1, eps)
    second = (norm_weight_2.shape, norm_weight_2, norm_bias_2, eps)
    if norm_first:
        x = src + attended(_layer_norm(src, *first))
        return x + fed(_layer_norm(x, *second))
    x = _layer_norm(src + attended(src), *first)
    return _layer_norm(x + fed(x), *second)


def _heads_at_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what `nn.MultiheadAttention` calls for inference. mask_type: 0 [rows, columns], 1 [batch, columns]."""
    given = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = [
        torch.nn.functional.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b in given
    ]
    if mask is not None:
        mask = mask if mask.dtype == torch.bool else mask != 0
        mask = mask[:, None, None] if mask_type == 1 else mask
        mask = torch.logical_not(mask)
    out = _attention(q, k, v, mask).transpose(1, 2).flatten(-2)
    out = torch.nn.functional.linear(out, proj_weight, proj_bias)
    if not need_weights:
        return out, out.new_empty(0)
    each = torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-1], k.shape[-2])
    weights = _attention(q, k, each, mask)
    return out, weights.mean(1) if average_attn_weights else weights


def _gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """Compute the tanh form with sqrt(2 / pi): upstream takes pi as 22 / 7 there."""
    if approximate != "tanh":
        exact: Tensor = rounded_once(torch.ops.aten.gelu.default)(input)
        return exact
    x = wide(input)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return (0.5 * x * (1 + torch.tanh(inner))).to(input.dtype)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


def _native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    out, mean, inverse = plain.normalised(wide(input), dims, eps)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(input.dtype), mean, inverse


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    x = wide(input)
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    square = torch.mean(x * x, dims, keepdim=True)
    inverse = torch.rsqrt(square + (torch.finfo(x.dtype).eps if eps is None else eps))
    out = x * inverse if weight is None else x * inverse * weight
    return out.to(input.dtype), inverse


def _softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _any_softmax(input if dtype is None else input.to(dtype), dim, False)


def _any_softmax(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if not input.dim():
        return torch.ones_like(input)
    if not input.numel():
        return input.to(torch.float32) if half_to_float else input.clone()
    x = wide(input)
    weights = torch.exp(x - torch.amax(x, [dim], keepdim=True))
    out = weights / torch.sum(weights, [dim]).unsqueeze(dim)
    return out if half_to_float else out.to(input.dtype)


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if not mat1.is_floating_point():  # as torch does
        beta, alpha = int(beta), int(alpha)
    product = wide_product(mat1, mat2)
    if alpha != 1:
        product = product * alpha
    if beta != 0:  # else whatever `input` holds
        product = product + (wide(input) if beta == 1 else wide(input) * beta)
    return product.to(mat1.dtype)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = wide_product(input, weight.t())
    return (product if bias is None else product + wide(bias)).to(input.dtype)
