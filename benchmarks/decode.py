"""Tokens a second of a Llama-like model: one token at a time, the cache in place, beside JAX with donation and PyTorch.

The limit is what reading all weights once takes, at the rate at which this process reads memory. Weights of int8 have a
scale for each column; activations are f32 then. PyTorch multiplies by them with its product for packed weights.
"""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.common import ROOT, best, show, table
from meshweave.runtime.cores import usable_cores

Step = Callable[[np.ndarray, int], np.ndarray]


def read_rate() -> float:
    """Bytes a second that a thread for each core reads of 512 MiB together, by the least work for each word."""
    cores = usable_cores()
    parts = np.array_split(np.ones(1 << 26, np.int64), cores)
    with ThreadPoolExecutor(cores) as threads:
        seconds = best(lambda: list(threads.map(np.bitwise_or.reduce, parts)), 9)
    return sum(part.nbytes for part in parts) / seconds


def main(options: argparse.Namespace) -> None:
    """Print the table."""
    sys.path.insert(0, str(ROOT / "examples" / "generate"))
    import ml_dtypes
    from generate import quantized
    from llama_jax import Config, parameters

    config = Config(8, 1024, 16, 8, 2816, 8192, 256)
    rate = read_rate()
    made = table(
        f"decode: 8 layers of 1024, 8192 words, cache of 256; reads {rate / 1e9:.1f} GB/s",
        "weights", "batch", "limit", "one rank", "of limit", "tp=2", "tp=2 mpi", "JAX", "torch", "same tokens as",
    )  # fmt: skip
    kinds = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "int8": np.float32}
    for kind, dtype in kinds.items():
        params = parameters(config, dtype=dtype)
        params = quantized(params) if kind == "int8" else params
        read = _weights(params)
        for batch in (1, 8):
            steps = _steps(config, params, batch, kind == "bf16")
            seconds, tokens = _timed(steps, batch, options.repeat)
            limit = rate / read * batch
            rates = {name: batch / s for name, s in seconds.items()}
            ours = [tokens[name] for name in ("one rank", "tp=2", "tp=2 mpi")]
            same = [n for n in ("JAX", "torch") if all(np.array_equal(t, tokens[n]) for t in ours)]
            row = (rates[name] for name in ("tp=2", "tp=2 mpi", "JAX", "torch"))
            made.add_row(
                kind, str(batch), f"{limit:.1f}",
                f"{rates['one rank']:.1f}", f"{rates['one rank'] / limit:.2f}",
                *(f"{value:.1f}" for value in row), " ".join(same) or "-",
            )  # fmt: skip
    show(made)


def _weights(params: Any) -> int:
    """Count the bytes that a token reads: all weights but the table of words."""
    import jax

    read = jax.tree.leaves((params["layers"], params["head"]))
    return int(sum(value.nbytes for value in read))


def _steps(config: Any, params: Any, batch: int, bf16: bool) -> dict[str, Step]:
    """Return a function that makes the next tokens, for each contestant."""
    import jax
    import jax.numpy as jnp
    from generate import Generator
    from llama_jax import empty_cache

    from benchmarks.peers.torch_decode import decoder

    def ours(mesh: str, engine: str) -> Step:
        model = Generator(config, params, batch, mesh, engine)
        program, noise = model.program(1), model.noise(0.0, 0)
        state = [model.empty()]

        def step(tokens: np.ndarray, place: int) -> np.ndarray:
            state[0], picked = program(model.params, state[0], tokens, np.int32(place), noise)
            return np.asarray(picked)

        return step

    def theirs() -> Step:
        model = Generator(config, params, batch, "", "local")
        step = jax.jit(model.step, donate_argnums=1)
        weights, noise = jax.tree.map(jnp.asarray, params), jnp.zeros((batch, config.vocabulary))
        state = [jax.tree.map(jnp.asarray, empty_cache(config, batch, params["norm"].dtype))]

        def run(tokens: np.ndarray, place: int) -> np.ndarray:
            state[0], picked = step(weights, state[0], tokens, np.int32(place), noise)
            return np.asarray(picked)

        return run

    return {
        "one rank": ours("", "local"), "tp=2": ours("tp=2", "local"), "tp=2 mpi": ours("tp=2", "mpi"),
        "JAX": theirs(), "torch": decoder(config, params, batch, bf16),
    }  # fmt: skip


def _timed(
    steps: dict[str, Step], batch: int, repeat: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the least seconds of a token for each, and their tokens; they take turns, a few tokens at a time."""
    seconds = dict.fromkeys(steps, float("inf"))
    last = {name: np.full((batch, 1), 7, np.int32) for name in steps}
    tokens: dict[str, list[np.ndarray]] = {name: [] for name in steps}
    for turn in range(1 + repeat):
        for name, step in steps.items():
            for place in range(4 * turn, 4 * turn + 4):
                began = time.perf_counter()
                last[name] = step(last[name], place)
                taken = time.perf_counter() - began
                if turn >= 1:
                    seconds[name] = min(seconds[name], taken)
                tokens[name].append(last[name])
    return seconds, {name: np.stack(made) for name, made in tokens.items()}
