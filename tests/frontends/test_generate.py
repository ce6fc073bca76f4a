"""examples/generate: the same tokens as JAX, on every mesh and engine, with nothing of the cache copied."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import deep, sampled

jax = pytest.importorskip("jax")
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples" / "generate"))

from generate import Generator, quantized  # noqa: E402
from llama_jax import Config, empty_cache, forward, parameters  # noqa: E402
from slots import SlotDecoder  # noqa: E402

CONFIG = Config(2, 32, 4, 2, 48, 50, 16)
PARAMS = parameters(CONFIG)


def of_jax(prompt: np.ndarray, temperature: float, count: int, params: Any = PARAMS) -> np.ndarray:
    """The tokens that JAX makes of the same functions."""
    model = Generator(CONFIG, params, len(prompt), "", "local")
    step, cache = jax.jit(model.step), empty_cache(CONFIG, len(prompt))
    tokens, start, made = prompt, 0, []
    params = jax.tree.map(jax.numpy.asarray, params)
    for _ in range(count):
        cache, picked = step(params, cache, tokens, start, model.noise(temperature, start))
        start, tokens = start + tokens.shape[1], np.asarray(picked)
        made.append(tokens[:, 0])
    return np.stack(made, axis=1)


@sampled(2)
@pytest.mark.parametrize(
    ("mesh", "engine", "batch", "temperature"),
    [("tp=2", "local", 8, 0.0), ("", "local", 8, 0.9), ("tp=2", "mpi", 1, 0.9)],
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


@deep
def test_tokens_of_int8_weights_are_those_of_jax() -> None:
    """On two ranks, of which each has a part of the numbers and of the scales."""
    prompt = np.random.default_rng(4).integers(0, 50, (2, 3)).astype(np.int32)
    params = quantized(PARAMS)
    model = Generator(CONFIG, params, 2, "tp=2", "local")
    found = np.stack([row for row, _ in zip(model.generate(prompt), range(6))], axis=1)
    np.testing.assert_array_equal(found, of_jax(prompt, 0.0, 6, params))
    model.close()


@sampled(2)
@pytest.mark.parametrize(("mesh", "engine"), [("tp=2", "local"), ("", "local")])
def test_slots_of_their_own_lengths_give_what_jax_gives(mesh: str, engine: str) -> None:
    """Prompts of any length, and tokens at other places, in slots that are used again, beside each alone in JAX.

    Two programs serve all lengths: a prompt is not padded, and tokens attend to the part of the cache that is held.
    """
    config = Config(1, 32, 4, 2, 48, 50, 48)
    params = jax.tree.map(jax.numpy.asarray, parameters(config))
    alone = jax.jit(lambda cache, token, place: forward(config, params, cache, token, place))
    caches: dict[int, Any] = {}

    def check(slot: int, logits: np.ndarray, tokens: list[int], place: int) -> None:
        """Put the tokens from a place on in a cache of JAX's, one by one."""
        for at in range(place, len(tokens)):
            cache = caches[slot] if at else empty_cache(config, 1)
            caches[slot], wanted = alone(cache, np.array([[tokens[at]]], np.int32), np.int32(at))
        np.testing.assert_allclose(logits, wanted[0], atol=1e-4, rtol=0)

    rng = np.random.default_rng(5)
    model = SlotDecoder(config, parameters(config), 3, mesh, engine)
    held = [rng.integers(0, 50, count).tolist() for count in (1, 20, 32)]
    for slot, tokens in enumerate(held):
        check(slot, model.prefill(slot, np.array(tokens, np.int32)), tokens, 0)
    for step in range(10):
        if step == 5:
            held[1] = rng.integers(0, 50, 17).tolist()
            check(1, model.prefill(1, np.array(held[1], np.int32)), held[1], 0)
        for tokens in held:
            tokens.append(int(rng.integers(0, 50)))
        last = np.array([tokens[-1] for tokens in held], np.int32)
        logits = model.decode(last, np.array([len(t) - 1 for t in held], np.int32))
        for slot, tokens in enumerate(held):
            check(slot, logits[slot], tokens, len(tokens) - 1)
    for text in model.explain():
        (line,) = (line for line in text.splitlines() if "copied of don" in line)
        assert line.split("│")[2].strip() == "0"
    model.close()
