"""What PyTorch takes for the programs of benchmarks/gpu, and how far meshweave's results are from its own in f32.

Prints a JSON object for each program as it is done: seconds as PyTorch runs it (its own attention in the place of
ours), seconds compiled by inductor, both as CUDA graphs, and the largest difference of a result that the benchmark left
in --results, in units of the largest element.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.groups import Timed, timed
from benchmarks.gpu.programs import HEADS
from benchmarks.gpu.timing import each as seconds_of_each

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Names:
    """The names of the array standard that PyTorch does not have."""

    permute_dims, max, concat = torch.permute, torch.amax, torch.cat

    def __init__(self, device: str) -> None:
        self.device = device

    def arange(self, count: int) -> torch.Tensor:
        """On the device."""
        return torch.arange(count, device=self.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def seconds(run: Callable[[], object], device: str, repeat: int) -> float:
    """Return those of one run, timed as ours are; a graph where there is a device."""
    for _ in range(3):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
        run()

    def several(count: int) -> None:
        for _ in range(count):
            run()
        _wait(device)

    return seconds_of_each(several, repeat)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def own(each: Timed) -> Callable[..., torch.Tensor] | None:
    """What a user of PyTorch would write instead of the array program."""
    attend = torch.nn.functional.scaled_dot_product_attention
    if each.group == "attention":
        causal = each.case.name.endswith("causal")
        return lambda q, k, v: attend(q[None], k[None], v[None], is_causal=causal)[0]
    return block if each.group == "block" else None


def block(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """A transformer block, with PyTorch's own attention; as `benchmarks.gpu.programs.block`."""
    f = torch.nn.functional
    b1, b2, g1, g2, qkv, out, up, down = parameters
    width = x.shape[-1]
    root = width**0.5
    parts = (f.layer_norm(x, (width,), g1, b1) @ qkv / root).view(*x.shape[:2], 3, HEADS, -1)
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    mixed = f.scaled_dot_product_attention(q, k, v)
    x = x + mixed.transpose(1, 2).reshape(x.shape) @ out / root
    wide = f.gelu(f.layer_norm(x, (width,), g2, b2) @ up / root, approximate="tanh")
    return x + wide @ down / down.shape[0] ** 0.5


def measured(
    each: Timed, device: str, repeat: int, compiled: bool, results: Path | None
) -> dict[str, Any]:
    """Seconds and difference of one program."""
    arrays = each.case.sampled(each.dtype)
    given = [torch.from_numpy(a).to(device).to(DTYPES[each.dtype]) for a in arrays]
    plain = lambda *a: each.case.function(Names(device), *a)  # noqa: E731
    run = own(each) or plain
    found: dict[str, Any] = {"name": each.name}
    file = results and results / f"{each.name.replace(' ', '_')}.npy"
    if file is not None and file.exists():
        exact = plain(*(a.to(torch.float32) for a in given))
        ours = torch.from_numpy(np.load(file)).to(device)
        found["error"] = float((ours - exact).abs().max() / exact.abs().max())
        del exact, ours
    found["torch_seconds"] = seconds(lambda: run(*given), device, repeat)
    if compiled:
        torch._dynamo.reset()
        faster = torch.compile(run, dynamic=False)
        found["inductor_seconds"] = seconds(lambda: faster(*given), device, repeat)
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--names", nargs="+", metavar="NAME", help="as the benchmark has them")
    parser.add_argument("--inductor", type=float, default=0.0, metavar="SECONDS", help="until then")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    with torch.no_grad():
        for each in timed(options.divide):
            if not each.peer or (options.names and each.name not in options.names):
                continue
            compiled = time.monotonic() - began < options.inductor
            try:
                found = measured(each, options.device, options.repeat, compiled, options.results)
            except RuntimeError as error:
                print(f"{each.name}: {error}".splitlines()[0], file=sys.stderr)
                continue
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
