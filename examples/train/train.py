"""Train an MLP with Adam and an attention block with SGD, in plain functions of mw: python examples/train/train.py"""

import argparse
import math
from typing import Any

import numpy as np

import meshweave as mw

Parameters = dict[str, Any]
PLACES = {
    "up": "[_, tp]",
    "down": "[tp, _]",
    "q": "[_, tp]",
    "k": "[_, tp]",
    "v": "[_, tp]",
    "out": "[tp, _]",
}
HEADS = 2


def drawn(key: Any, sizes: dict[str, tuple[int, int]]) -> Parameters:
    """Draw weights: the same on every mesh, since a key alone decides."""
    keys = mw.random.split(key, len(sizes))
    return {
        name: mw.random.normal(keys[n], size) / math.sqrt(size[0])
        for n, (name, size) in enumerate(sizes.items())
    }


def mlp(p: Parameters, x: Any) -> Any:
    """Compute two layers."""
    return mw.nn.gelu(x @ p["up"]) @ p["down"]


def attention(p: Parameters, x: Any) -> Any:
    """Compute a block of causal attention on [batch, places, features], and what goes past it."""
    heads = [(x @ p[name]).reshape((*x.shape[:2], HEADS, -1)) for name in "qkv"]
    made = mw.nn.dot_product_attention(*heads, is_causal=True)
    return x + made.reshape(x.shape) @ p["out"]


def loss(function: Any, p: Parameters, x: Any, y: Any) -> Any:
    """Compute the mean squared error."""
    return mw.mean((function(p, x) - y) ** 2)


def adam(p: Parameters, slopes: Parameters, state: Any, rate: float = 1e-2) -> tuple[Any, Any]:
    """Move parameters against the gradient by its running mean over the root of its mean square."""
    step, means, squares = state
    step = step + 1
    means = {k: 0.9 * means[k] + 0.1 * g for k, g in slopes.items()}
    squares = {k: 0.999 * squares[k] + 0.001 * g * g for k, g in slopes.items()}
    size = rate * mw.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    moved = {k: v - size * means[k] / (mw.sqrt(squares[k]) + 1e-8) for k, v in p.items()}
    return moved, (step, means, squares)


def train_mlp(mesh: str, steps: int) -> list[float]:
    """Fit an MLP to a function of its arguments with Adam; return the losses."""

    def step(p: Parameters, state: Any, x: Any, y: Any) -> Any:
        value, slopes = mw.value_and_grad(lambda p: loss(mlp, p, x, y))(p)
        return value, *adam(p, slopes, state)

    places = {name: PLACES[name] for name in ("up", "down")}
    compiled = mw.jit(
        step, mesh=mesh, in_layouts=(places, (None, places, places), "[dp, _]", "[dp, _]")
    )
    p = mw.jit(drawn, static_argnames="sizes")(
        mw.random.key(0), sizes=Sizes({"up": (6, 16), "down": (16, 2)})
    )
    return _losses(compiled, p, steps, (32, 6), (32, 2), with_state=True)


def train_attention(mesh: str, steps: int) -> list[float]:
    """Fit an attention block to sums over earlier places with SGD; return the losses."""

    def step(p: Parameters, x: Any, y: Any) -> Any:
        value, slopes = mw.value_and_grad(lambda p: loss(attention, p, x, y))(p)
        return value, {k: v - 0.2 * slopes[k] for k, v in p.items()}

    names = ("q", "k", "v", "out")
    places = {name: PLACES[name] for name in names}
    compiled = mw.jit(step, mesh=mesh, in_layouts=(places, "[dp, _, _]", "[dp, _, _]"))
    p = mw.jit(drawn, static_argnames="sizes")(
        mw.random.key(1), sizes=Sizes(dict.fromkeys(names, (8, 8)))
    )
    return _losses(compiled, p, steps, (4, 5, 8), (4, 5, 8), with_state=False)


class Sizes(dict[str, tuple[int, int]]):
    """Hold sizes by name, hashable, as static arguments are."""

    def __hash__(self) -> int:  # type: ignore[override]  # they do not change
        return hash(tuple(self.items()))


def _losses(
    step: Any, p: Any, steps: int, inputs: Any, outputs: Any, with_state: bool
) -> list[float]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=inputs).astype(np.float32)
    y = np.cumsum(np.sin(x), axis=1)[:, : outputs[1]].astype(np.float32)
    p = {k: np.asarray(v) for k, v in p.items()}
    zeros = {k: np.zeros_like(v) for k, v in p.items()}
    state = (np.float32(0), zeros, zeros)
    losses = []
    for _ in range(steps):
        if with_state:
            value, p, state = step(p, state, x, y)
        else:
            value, p = step(p, x, y)
        losses.append(float(value))
    return losses


def main() -> None:
    """Train both, and print the first and the last loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="dp=2, tp=2")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    for name, train in (("MLP, Adam", train_mlp), ("attention, SGD", train_attention)):
        losses = train(arguments.mesh, arguments.steps)
        print(f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")


if __name__ == "__main__":
    main()
