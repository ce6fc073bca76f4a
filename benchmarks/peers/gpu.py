"""What PyTorch takes for the products and the block of benchmarks/gpu: prints seconds as JSON."""

import argparse
import json
import time
from collections.abc import Callable

import torch


def seconds(run: Callable[[], object], device: str, repeat: int) -> float:
    """Of one run, the least of several measurements."""
    for _ in range(3):
        run()
    found = []
    for _ in range(5):
        _wait(device)
        began = time.perf_counter()
        for _ in range(repeat):
            run()
        _wait(device)
        found.append((time.perf_counter() - began) / repeat)
    return min(found)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def block(x: torch.Tensor, parameters: list[torch.Tensor], heads: int) -> torch.Tensor:
    """A transformer block, with PyTorch's own attention."""
    f = torch.nn.functional
    b1, b2, g1, g2, qkv, out, up, down = parameters
    batch, positions, width = x.shape
    parts = (f.layer_norm(x, (width,), g1, b1) @ qkv).view(batch, positions, 3, heads, -1)
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    mixed = f.scaled_dot_product_attention(q, k, v)
    x = x + mixed.transpose(1, 2).reshape(x.shape) @ out
    return x + f.gelu(f.layer_norm(x, (width,), g2, b2) @ up, approximate="tanh") @ down


def measured(device: str, by: int, repeat: int) -> dict[str, float]:
    """Seconds by name."""
    found = {}
    for n in (2048, 4096, 8192):
        for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
            a, b = (torch.randn(n // by, n // by, device=device, dtype=dtype) for _ in range(2))
            found[f"product_{n} {name}"] = seconds(lambda a=a, b=b: a @ b, device, repeat)
    width, positions = 4096 // by, 2048 // by
    shapes = [(width,)] * 4 + [(width, 3 * width), (width, width), (width, 4 * width)]
    shapes.append((4 * width, width))
    kinds = {"device": device, "dtype": torch.bfloat16}
    parameters = [torch.randn(shape, **kinds) / shape[0] ** 0.5 for shape in shapes]
    x = torch.randn(4, positions, width, **kinds)
    with torch.no_grad():
        found["block bf16"] = seconds(lambda: block(x, parameters, 32), device, repeat)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    print(json.dumps(measured(options.device, options.divide, options.repeat)))
