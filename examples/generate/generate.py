"""Generate text with a Llama-like model: prefill, then a token at a time, with the cache in place.

$ python examples/generate/generate.py --mesh tp=2 --batch 2 --tokens 8
$ python examples/generate/generate.py --mesh tp=2 --engine mpi --temperature 0.8

The parameters are Arrays that are laid out once. The cache is donated: each call writes the new keys and values into
it, and nothing else of it. Tokens are picked inside the program, the largest of logits and noise: greedy without noise,
and samples with Gumbel's.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from llama_jax import Cache, Config, Params, empty_cache, forward, parameters

import meshweave as mw

COLUMNS, ROWS, HEADS = "[_, tp]", "[tp, _]", "[_, tp, _, _]"


def layouts(config: Config) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return where the parameters and the cache lie over the ranks of `tp`: heads and hidden columns are cut."""
    layer = {
        "norm1": "[_]", "norm2": "[_]", "q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "o": ROWS,
        "gate": COLUMNS, "up": COLUMNS, "down": ROWS,
    }  # fmt: skip
    params = {"table": "[_, _]", "norm": "[_]", "head": COLUMNS, "layers": [layer] * config.layers}
    return params, [{"k": HEADS, "v": HEADS}] * config.layers


def quantized(params: Params) -> Params:
    """Return parameters whose matrices are int8 with a scale for each column; the table of words stays as it is."""

    def few_bits(value: np.ndarray) -> Any:
        held = mw.quantize(value, "int8[_, 1]")
        return {"values": held.values.numpy(), "scales": held.scales.numpy()}

    layers = [
        {name: few_bits(value) if value.ndim == 2 else value for name, value in layer.items()}
        for layer in params["layers"]
    ]
    return {**params, "head": few_bits(params["head"]), "layers": layers}


def _laid_out_like(layout: str, value: Any) -> Any:
    """Return the layout of a matrix, or of the two parts of one of few bits: its scales have one row."""
    if not isinstance(value, dict):
        return layout
    return {"values": layout, "scales": layout if layout == COLUMNS else "[_, _]"}


def placed(tree: Any, where: Any, mesh: str) -> Any:
    """Lay the arrays of a tree out over a mesh, once for all calls."""

    def lay(value: np.ndarray, layout: str) -> mw.Array:
        whole = "[" + ", ".join("_" * value.ndim) + "]"
        return mw.Array.from_numpy(value, mesh=mesh, layout=layout if mesh else whole)

    return jax.tree.map(lay, tree, where)


class Generator:
    """Hold a model on its ranks, and the programs for a prompt and for a token."""

    def __init__(self, config: Config, params: Params, batch: int, mesh: str, engine: str) -> None:
        self.config, self.batch = config, batch
        where, cache_where = layouts(config)
        where = jax.tree.map(_laid_out_like, where, params)
        self.params = placed(params, where, mesh)
        self._cache_layouts, self._dtype = cache_where, params["norm"].dtype
        self._shardings = (where, cache_where, None, None, None) if mesh else None
        self._mesh, self._engine = mesh, engine
        self._programs: dict[int, Any] = {}

    def empty(self) -> Cache:
        """Lay out a cache without tokens."""
        cache = empty_cache(self.config, self.batch, self._dtype)
        return placed(cache, self._cache_layouts, self._mesh)

    def step(self, params: Params, cache: Cache, tokens: Any, start: Any, noise: Any) -> Any:
        """Return the cache with new tokens in it, from place `start` on, and the next token of each sequence."""
        cache, logits = forward(self.config, params, cache, tokens, start)
        picked = jnp.argmax(logits.astype(jnp.float32) + noise, axis=-1)
        return cache, picked.astype(jnp.int32)[:, None]

    def program(self, count: int) -> Any:
        """Return the program of `step` for `count` new tokens of each sequence."""
        if count not in self._programs:
            more = (np.zeros((self.batch, count), np.int32), np.int32(0), self.noise(0.0, 0))
            step: Callable[..., Any] = jax.jit(self.step, donate_argnums=1)
            self._programs[count] = mw.from_jax(
                step, *jax.tree.map(like, (self.params, self.empty())), *more,
                in_shardings=self._shardings, mesh=self._mesh or None, engine=self._engine,
            )  # fmt: skip
        return self._programs[count]

    def noise(self, temperature: float, seed: int) -> np.ndarray:
        """Return what is added to the logits of a token."""
        shape = (self.batch, self.config.vocabulary)
        if not temperature:
            return np.zeros(shape, np.float32)
        return (temperature * np.random.default_rng(seed).gumbel(size=shape)).astype(np.float32)

    def generate(self, prompt: np.ndarray, temperature: float = 0.0) -> Iterator[np.ndarray]:
        """Yield the tokens that follow a prompt, int32 of (batch, count), one of each sequence at a time."""
        cache, start = self.empty(), 0
        tokens: Any = np.asarray(prompt, np.int32)
        while start + tokens.shape[1] <= self.config.length:
            step = self.program(tokens.shape[1])
            cache, picked = step(
                self.params, cache, tokens, np.int32(start), self.noise(temperature, start)
            )
            start, tokens = start + tokens.shape[1], np.asarray(picked)
            yield tokens[:, 0]

    def close(self) -> None:
        """Release threads, processes and memory."""
        for program in self._programs.values():
            program.close()


def like(array: mw.Array) -> Any:
    """Return what a program is traced with in place of an array."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def main() -> None:
    """Generate from a prompt of random tokens, and print them with the rate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mesh", default="", help="the ranks, tp=2; default: one")
    parser.add_argument("--engine", default="local", choices=("local", "mpi"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    options = parser.parse_args()
    config = Config()
    model = Generator(config, parameters(config), options.batch, options.mesh, options.engine)
    prompt = np.random.default_rng(1).integers(0, config.vocabulary, (options.batch, 5))
    stream = model.generate(prompt, options.temperature)
    rows = [next(stream), next(stream)]  # these compile
    began = time.perf_counter()
    rows += [next(stream) for _ in range(max(0, options.tokens - 2))]
    seconds = time.perf_counter() - began
    for number, row in enumerate(np.stack(rows, axis=1)):
        print(f"sequence {number}: {' '.join(map(str, row))}")
    print(f"{options.batch * (len(rows) - 2) / max(seconds, 1e-9):.0f} tokens a second")
    model.close()


if __name__ == "__main__":
    main()
