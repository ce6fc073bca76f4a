"""examples/generate: the same tokens as JAX, on every mesh and engine, with nothing of the cache copied."""

import sys
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples" / "generate"))

from generate import Generator  # noqa: E402
from llama_jax import Config, empty_cache, parameters  # noqa: E402

CONFIG = Config(2, 32, 4, 2, 48, 50, 16)
PARAMS = parameters(CONFIG)


def of_jax(prompt: np.ndarray, temperature: float, count: int) -> np.ndarray:
    """The tokens that JAX makes of the same functions."""
    model = Generator(CONFIG, PARAMS, len(prompt), "", "local")
    step, cache = jax.jit(model.step), empty_cache(CONFIG, len(prompt))
    tokens, start, made = prompt, 0, []
    for _ in range(count):
        cache, picked = step(PARAMS, cache, tokens, start, model.noise(temperature, start))
        start, tokens = start + tokens.shape[1], np.asarray(picked)
        made.append(tokens[:, 0])
    return np.stack(made, axis=1)


@pytest.mark.parametrize(
    ("mesh", "engine", "batch", "temperature"),
    [("", "local", 8, 0.9), ("tp=2", "local", 8, 0.0), ("tp=2", "mpi", 1, 0.9)],
)
def test_tokens_are_those_of_jax(mesh: str, engine: str, batch: int, temperature: float) -> None:
    prompt = np.random.default_rng(3).integers(0, 50, (batch, 5)).astype(np.int32)
    model = Generator(CONFIG, PARAMS, batch, mesh, engine)
    found = np.stack(list(model.generate(prompt, temperature)), axis=1)
    assert found.shape == (batch, 12)  # the cache is full then
    np.testing.assert_array_equal(found, of_jax(prompt, temperature, 12))
    again = np.stack([row for row, _ in zip(model.generate(prompt, temperature), range(3))], axis=1)
    np.testing.assert_array_equal(again, found[:, :3])
    lines = [line for line in model.program(1).explain().splitlines() if "copied of don" in line]
    assert len(lines) == 1 and lines[0].split("│")[2].strip() == "0"
    model.close()
