"""Attention in torch or JAX, in a process of its own, on one core.

    PYTHON -m benchmarks.peers.attention torch|jax HEADS LENGTH SIZE

For each line that it reads it runs everything once, and answers with a line of JSON: seconds of the processor by name.
So runs of this process and of another one take turns. It imports nothing of meshweave, and runs where that is not
installed.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def _torch(arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.set_num_threads(1)
    q, k, v = (torch.from_numpy(x)[None] for x in arrays)

    def run(causal: bool) -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    @torch.no_grad()
    def whole() -> Any:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return torch.softmax(scores, -1) @ v

    return {
        "torch, all heads at once": whole,
        "torch flash SDPA": lambda: run(False),
        "torch flash SDPA, causal": lambda: run(True),
    }


def _jax(arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    q, k, v = (jnp.asarray(x) for x in arrays)

    def one(t: Any) -> Any:
        return jax.nn.softmax(t[0] @ t[1].T / math.sqrt(t[0].shape[-1]), -1) @ t[2]

    mapped = jax.jit(lambda *t: jax.lax.map(one, t)).lower(q, k, v).compile()
    whole = jax.jit(jax.vmap(lambda *t: one(t))).lower(q, k, v).compile()
    return {
        "jax.lax.map over heads": lambda: mapped(q, k, v).block_until_ready(),
        "jax, all heads at once": lambda: whole(q, k, v).block_until_ready(),
    }


def main() -> None:
    """Run what the command line names, as often as asked."""
    package, *numbers = sys.argv[1:]
    heads, length, size = map(int, numbers)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((heads, length, size)).astype(np.float32) for _ in range(3)]
    runs = {"torch": _torch, "jax": _jax}[package](arrays)
    for _ in sys.stdin:
        found = {}
        for name, run in runs.items():
            began = time.process_time()
            run()
            found[name] = time.process_time() - began
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
