"""Products of 1 to 16 rows by weights that no cache holds: bytes of weights a second, beside what the core can read.

The weights of a case are matrices that take turns, more than the last cache has room for. Contestants and reading take
turns on one core, and the least time of each counts, so that other work on the machine is seen little.
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np

import meshweave as mw
from benchmarks.common import show, table

ROWS = (1, 4, 8, 16)
SHAPES = (
    (2048, 5632), (5632, 2048), (4096, 4096), (4096, 11008), (2048, 32000), (2048, 256), (32768, 512), (2047, 5631),
)  # fmt: skip
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "int8": np.float32}
COLD = 96 << 20  # bytes of the matrices of a case
READ = 16 << 20  # bytes of a turn of reading
SECONDS = 0.3  # of turns for each contestant
Action = Callable[[], Any]


def silu(module: Any, x: Any) -> Any:
    """x times the sigmoid of x, of NumPy, meshweave, torch or JAX."""
    return x / (1 + module.exp(-x))


FORMS: dict[str, tuple[int, Callable[..., Any]]] = {
    "": (1, lambda module, x, a: x @ a),
    "silu": (1, lambda module, x, a: silu(module, x @ a + 1)),
    "swiglu": (2, lambda module, x, a, b: silu(module, x @ a) * (x @ b)),
}


def main(options: argparse.Namespace) -> None:
    """Print a table for each kind of weights, and each way in which they lie."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    shapes = SHAPES[:1] if options.quick else SHAPES
    try:
        for kind, turned in itertools.product(KINDS, (False, True)):
            if kind == "int8" and turned:
                continue  # a scale for each column of x @ q is the one form
            how = "x @ w.T" if turned else "x @ w"
            made = table(
                f"{how}, {kind}: GB/s of one core (of what it reads; time to the best of torch and JAX)",
                "depth x columns", *(f"{rows} rows" for rows in ROWS),
            )  # fmt: skip
            for shape, form in itertools.product(shapes, FORMS):
                weights = list(_weights(kind, shape, turned, FORMS[form][0]))
                cells = [_cell(kind, form, weights, rows, turned) for rows in ROWS]
                made.add_row(f"{shape[0]}x{shape[1]} {form}", *cells)
            show(made)
    finally:
        os.sched_setaffinity(0, cores)


def _weights(kind: str, shape: tuple[int, int], turned: bool, count: int) -> Iterator[list[Any]]:
    """Yield sets of weights that take turns: arrays, or quantised ones."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal(shape[::-1] if turned else shape, np.float32) / np.sqrt(shape[0])
    wide = base.astype(KINDS[kind])
    nbytes = wide.size if kind == "int8" else wide.nbytes
    quantized = mw.quantize(wide, "int8[_, 1]") if kind == "int8" else None
    for _ in range(max(2, COLD // (count * nbytes))):
        if quantized is None:
            yield [wide.copy() for _ in range(count)]
        else:
            values, scales = quantized.values.numpy(), quantized.scales
            yield [type(quantized)(_array(values), scales) for _ in range(count)]


def _array(value: Any) -> mw.Array:
    return mw.Array.from_numpy(value, mesh="", layout=f"[{', '.join('_' * value.ndim)}]")


def _cell(kind: str, form: str, weights: list[list[Any]], rows: int, turned: bool) -> str:
    """Return the figures of a case."""
    count, function = FORMS[form]
    first = weights[0][0]
    depth = first.shape[1 if turned else 0]
    x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(KINDS[kind])

    def of(module: Any) -> Callable[..., Any]:
        return lambda x, *w: function(module, x, *(v.T if turned else v for v in w))

    ours = mw.jit(of(mw))
    held = [w if kind == "int8" else [_array(v) for v in w] for w in weights]
    given = _array(x)
    actions = {"ours": _turns([partial(ours, given, *w) for w in held])}
    if kind != "int8":
        actions |= _peers(of, x, weights)
    actions["read"] = _turns([partial(np.bitwise_or.reduce, part) for part in _memory()])
    seconds = _timed(actions)
    ours.close()
    size = first.shape[0] * first.shape[1] * (1 if kind == "int8" else first.itemsize)
    rate, reads = count * size / seconds["ours"], READ / seconds["read"]
    peers = [seconds[name] for name in ("torch", "jax") if name in seconds]
    beside = f"; {seconds['ours'] / min(peers):.2f}" if peers else ""
    return f"{rate / 1e9:.1f} ({rate / reads:.2f}{beside})"


@cache
def _memory() -> list[Any]:
    """Parts of memory to read."""
    return [np.ones(READ // 8, np.int64) for _ in range(COLD // READ)]


def _peers(of: Callable[..., Any], x: Any, weights: list[list[Any]]) -> dict[str, Action]:
    """Return what torch and JAX do, each on one core, where they are installed."""
    actions: dict[str, Action] = {}
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(1)

        def tensor(value: Any) -> Any:
            whole = torch.from_numpy(np.asarray(value, np.float32))
            return whole.to(torch.float32 if value.dtype == np.float32 else torch.bfloat16)

        run, on = of(torch), tensor(x)
        sets = [[tensor(v) for v in w] for w in weights]
        actions["torch"] = _turns([partial(run, on, *w) for w in sets])
    try:
        import jax
    except ImportError:
        return actions
    compiled, there = jax.jit(of(jax.numpy)), jax.numpy.asarray(x)
    laid = [[jax.numpy.asarray(v) for v in w] for w in weights]
    actions["jax"] = _turns([partial(_ready, compiled, there, *w) for w in laid])
    return actions


def _ready(function: Callable[..., Any], *arrays: Any) -> None:
    function(*arrays).block_until_ready()


def _turns(actions: list[Action]) -> Action:
    """Return a function that runs these by turns."""
    turn = itertools.cycle(actions)
    return lambda: next(turn)()


def _timed(actions: dict[str, Action]) -> dict[str, float]:
    """Return the least seconds of each, which take turns."""
    for action in actions.values():
        action()
    least = dict.fromkeys(actions, float("inf"))
    end = time.perf_counter() + SECONDS * len(actions)
    while time.perf_counter() < end or not np.isfinite(sum(least.values())):
        for name, action in actions.items():
            for _ in range(3):
                began = time.perf_counter()
                action()
                least[name] = min(least[name], time.perf_counter() - began)
    return least
