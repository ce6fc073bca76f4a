"""PyTorch ops in terms of others: what torch-mlir takes, and what the passes behind it see through.

Upstream computes a layer's norm in f64 and a maximum together with its place; ours stay in the elements' type.
"""

from typing import Any

from meshweave.frontends import torch_decompose_plain as plain


def decompositions(torch: Any, upstream: Any) -> dict[Any, Any]:
    """Decompositions by op: upstream's table with our own."""
    aten = torch.ops.aten
    table = {**upstream, **plain.decompositions(torch)}
    table[aten.scaled_dot_product_attention.default] = _attention
    table[aten.layer_norm.default] = _layer_norm
    table[aten.native_layer_norm.default] = _native_layer_norm
    table[aten.softmax.int] = _softmax
    table[aten._softmax.default] = _softmax_half
    table[aten.addmm.default] = _addmm
    table[aten.linear.default] = _linear
    return table


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    import torch

    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * factor
    rows, columns = scores.shape[-2:]
    if is_causal:
        row = torch.arange(rows, device=scores.device).unsqueeze(-1)
        column = torch.arange(columns, device=scores.device).unsqueeze(0)
        return torch.matmul(
            torch.softmax(torch.where(column <= row, scores, float("-inf")), -1), value
        )
    if attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    if attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, float("-inf"))
    else:
        scores = scores + attn_mask
    # A row that the mask takes away whole gives zeros, as torch says, not 0/0.
    largest = torch.amax(scores, -1, keepdim=True)
    largest = torch.where(largest == float("-inf"), 0.0, largest)
    weights = torch.exp(scores - largest)
    total = torch.sum(weights, -1).unsqueeze(-1)
    return torch.matmul(weights / torch.where(total == 0, 1.0, total), value)


def _layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return _native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


def _native_layer_norm(
    input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    import torch

    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    half = input.dtype in (torch.float16, torch.bfloat16)
    x = input.to(torch.float32) if half else input
    mean = torch.mean(x, dims, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt(torch.mean(centred * centred, dims, keepdim=True) + eps)
    out = centred * inverse
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(input.dtype), mean, inverse


def _softmax(input: Any, dim: int, dtype: Any = None) -> Any:
    return _softmax_half(input if dtype is None else input.to(dtype), dim, False)


def _softmax_half(input: Any, dim: int, half_to_float: bool) -> Any:
    import torch

    if not input.dim():
        return torch.ones_like(input)
    half = input.dtype in (torch.float16, torch.bfloat16)
    x = input.to(torch.float32) if half else input
    weights = torch.exp(x - torch.amax(x, [dim], keepdim=True))
    out = weights / torch.sum(weights, [dim]).unsqueeze(dim)
    return out.to(input.dtype) if half and not half_to_float else out


def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    import torch

    product = torch.mm(mat1, mat2)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product  # whatever `input` holds
    return product + (input if beta == 1 else input * beta)


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    import torch

    product = torch.matmul(input, weight.t())
    return product if bias is None else product + bias
