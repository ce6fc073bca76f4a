"""Programs for any size up to a bound, beside one compiled for each size: a transformer block, its processor time.

Both run on the same arguments in turn, and the least time of each counts, so that other work on the machine is seen
little. Weights are laid out once; the rows of a call are a NumPy array.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import meshweave as mw
from benchmarks.common import show, table

WIDTH, HEADS, BOUND = 256, 4, 1024
SIZES = (1, 2, 3, 8, 16, 64, 200, 1000)
TURNS = 30
LAYOUTS = {
    "q": "[_, x]",
    "k": "[_, x]",
    "v": "[_, x]",
    "o": "[x, _]",
    "up": "[_, x]",
    "down": "[x, _]",
}


def normed(x: Any) -> Any:
    """Return rows of mean 0 and variance 1."""
    mean = mw.mean(x, axis=-1, keepdims=True)
    return (x - mean) / mw.sqrt(mw.var(x, axis=-1, keepdims=True) + 1e-5)


def block(x: Any, w: dict[str, Any]) -> Any:
    """Compute a transformer block with causal attention."""
    rows, h = x.shape[0], normed(x)
    q, k, v = (
        mw.permute_dims((h @ w[name]).reshape(rows, HEADS, WIDTH // HEADS), (1, 0, 2))
        for name in "qkv"
    )
    place = mw.arange(rows)
    scores = q @ mw.permute_dims(k, (0, 2, 1)) * (WIDTH // HEADS) ** -0.5
    scores = mw.where(place[:, None] >= place[None, :], scores, -1e9)
    mixed = mw.permute_dims(mw.softmax(scores, axis=-1) @ v, (1, 0, 2)).reshape(rows, WIDTH)
    x = x + mixed @ w["o"]
    return x + mw.maximum(normed(x) @ w["up"], 0.0) @ w["down"]


def main(options: argparse.Namespace) -> None:
    """Print a table for one rank, and for two that share the weights."""
    del options
    for mesh, dtype in itertools.product(("", "x=2"), ("f32", "bf16")):
        made = table(
            f"a block of {WIDTH}, bound {BOUND}, {dtype}, mesh ({mesh})",
            "rows",
            "sized",
            "any size",
            "ratio",
        )
        layouts = {name: layout if mesh else "[_, _]" for name, layout in LAYOUTS.items()}
        numpy_type = np.float32 if dtype == "f32" else ml_dtypes.bfloat16
        weights = {n: _weight(n, mesh, layout, numpy_type) for n, layout in layouts.items()}
        settings: dict[str, Any] = {"mesh": mesh or None}
        settings |= {"in_layouts": ("[_, _]", layouts)} if mesh else {}
        anysize = mw.jit(block, dims={"x": (mw.Dim("n", max=BOUND), None)}, **settings)
        for rows in SIZES:
            x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(numpy_type)
            sized = mw.jit(block, **settings)
            one, other = _least((sized, anysize), x, weights)
            made.add_row(
                str(rows), f"{one * 1e6:,.0f} us", f"{other * 1e6:,.0f} us", f"{other / one:.2f}"
            )
            sized.close()
        anysize.close()
        show(made)


def _weight(name: str, mesh: str, layout: str, dtype: Any = np.float32) -> mw.Array:
    shape = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}.get(name, (WIDTH, WIDTH))
    value = np.random.default_rng(len(name)).standard_normal(shape, np.float32) / shape[0] ** 0.5
    return mw.Array.from_numpy(value.astype(dtype), mesh=mesh, layout=layout)


def _least(programs: tuple[Callable[..., Any], ...], *arguments: Any) -> list[float]:
    """Return the least processor time of each program, in seconds, of turns that they take."""
    for program in programs:
        program(*arguments)
    found = [float("inf")] * len(programs)
    for turn in range(TURNS):
        # Who comes second finds the weights in the cache.
        for k in sorted(range(len(programs)), reverse=turn % 2 == 1):
            began = time.process_time()
            programs[k](*arguments)
            found[k] = min(found[k], time.process_time() - began)
    return found
