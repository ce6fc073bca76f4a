"""The model of examples/generate in PyTorch, eager: a token at a time, with the cache written in place."""

from collections.abc import Callable
from typing import Any

import numpy as np


def decoder(
    config: Any, params: Any, batch: int, bf16: bool
) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a function of tokens (batch, 1) and their place that returns the next ones, greedily."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention, silu

    kind = torch.bfloat16 if bf16 else torch.float32

    def tensor(value: Any) -> Any:
        # Numbers of int8, which torch wants turned, and a scale for each column.
        if isinstance(value, dict):
            turned = np.ascontiguousarray(value["values"].T)
            return torch.from_numpy(turned), torch.from_numpy(value["scales"][0])
        return torch.from_numpy(np.asarray(value, np.float32)).to(kind)

    def times(x: Any, weight: Any) -> Any:
        if not isinstance(weight, tuple):
            return x @ weight
        made = torch._weight_int8pack_mm(x.reshape(-1, x.shape[-1]), *weight)
        return made.view(*x.shape[:-1], -1)

    table, norm, head = (tensor(params[name]) for name in ("table", "norm", "head"))
    layers = [{name: tensor(value) for name, value in layer.items()} for layer in params["layers"]]
    shape = (batch, config.groups, config.length, config.head)
    caches = [(torch.zeros(shape, dtype=kind), torch.zeros(shape, dtype=kind)) for _ in layers]
    frequencies = 10000.0 ** (-torch.arange(0, config.head, 2) / config.head)

    def normal(x: Any, gain: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
        return wide.to(kind) * gain

    def heads(x: Any) -> Any:
        return x.view(batch, 1, -1, config.head).transpose(1, 2)

    def rotated(x: Any, cosine: Any, sine: Any) -> Any:
        one, other = x.float().chunk(2, dim=-1)
        turned = torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1)
        return turned.to(kind)

    @torch.inference_mode()
    def step(tokens: np.ndarray, place: int) -> np.ndarray:
        x = table[torch.from_numpy(tokens).long()]
        angles = place * frequencies
        cosine, sine = torch.cos(angles), torch.sin(angles)
        for layer, (keys, values) in zip(layers, caches, strict=True):
            h = normal(x, layer["norm1"])
            q, k, v = (heads(times(h, layer[name])) for name in "qkv")
            keys[:, :, place] = rotated(k, cosine, sine)[:, :, 0]
            values[:, :, place] = v[:, :, 0]
            seen = keys[:, :, : place + 1], values[:, :, : place + 1]
            mixed = scaled_dot_product_attention(rotated(q, cosine, sine), *seen, enable_gqa=True)
            x = x + times(mixed.transpose(1, 2).reshape(batch, 1, -1), layer["o"])
            h = normal(x, layer["norm2"])
            x = x + times(silu(times(h, layer["gate"])) * times(h, layer["up"]), layer["down"])
        logits = times(normal(x[:, -1], norm), head)
        return np.asarray(logits.float().argmax(-1, keepdim=True).numpy(), np.int32)

    return step
