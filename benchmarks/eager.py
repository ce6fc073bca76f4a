"""What chains of eager calls on small Arrays of one rank cost beside NumPy: by turns, the least of many turns.

Processor time counts, as other processes may use the cores.

A chain is what people write without `mw.jit`. The same function computes on both, by the namespace `xp`.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

import meshweave as mw
from benchmarks.common import show, table

TURNS, SECONDS = 30, 4e-3
SIDES = (2, 16, 64)  # of square matrices, f32

Chain = Callable[[Any, Any, Any], Any]


def _softmax(xp: Any, a: Any, _: Any) -> Any:
    e = xp.exp(a - xp.max(a))
    return e / xp.sum(e)


def _rows(xp: Any, a: Any, _: Any) -> Any:
    e = xp.exp(a - xp.max(a, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def _standardised(xp: Any, a: Any, _: Any) -> Any:
    d = a - xp.mean(a)
    return d / xp.sqrt(xp.mean(d * d))


def _step(xp: Any, a: Any, b: Any) -> Any:
    return a - 0.5 * (b.T @ (b @ a - a))


def _jacobi(xp: Any, a: Any, b: Any) -> Any:
    return 0.5 * (a[1:] + a[:-1]) - b[1:]


CHAINS: dict[str, Chain] = {
    "a + b": lambda xp, a, b: a + b,
    "a * 2.0": lambda xp, a, b: a * 2.0,
    "exp(a)": lambda xp, a, b: xp.exp(a),
    "sum(a)": lambda xp, a, b: xp.sum(a),
    "a @ b": lambda xp, a, b: a @ b,
    "a[1:]": lambda xp, a, b: a[1:],
    "reshape(a, (-1,))": lambda xp, a, b: xp.reshape(a, (-1,)),
    "where(a > b, a, b)": lambda xp, a, b: xp.where(a > b, a, b),
    "sum(exp(a + b) * a - b)": lambda xp, a, b: xp.sum(xp.exp(a + b) * a - b),
    "tanh(a * b + a)": lambda xp, a, b: xp.tanh(a * b + a),
    "a * a + b * b - 2.0 * a * b": lambda xp, a, b: a * a + b * b - 2.0 * a * b,
    "softmax by hand": _softmax,
    "softmax of rows by hand": _rows,
    "standardised": _standardised,
    "(a + 1) / 2 - b**2": lambda xp, a, b: (a + 1) / 2 - b**2,
    "argmax(concat([a, b]), axis=0)": lambda xp, a, b: xp.argmax(xp.concat([a, b]), axis=0),
    "maximum(a @ b + a, 0.0)": lambda xp, a, b: xp.maximum(a @ b + a, 0.0),
    "a - 0.5 * (b.T @ (b @ a - a))": _step,
    "where(a > b, a - b, b * 2.0)": lambda xp, a, b: xp.where(a > b, a - b, b * 2.0),
    "0.5 * (a[1:] + a[:-1]) - b[1:]": _jacobi,
    "sum(a[0] * b[1])": lambda xp, a, b: xp.sum(a[0] * b[1]),
    "reshape(a, (-1,)) @ reshape(b, (-1,))": lambda xp, a, b: (
        xp.reshape(a, (-1,)) @ xp.reshape(b, (-1,))
    ),
    "max(abs(a - b))": lambda xp, a, b: xp.max(xp.abs(a - b)),
}
"""Single calls, then chains of them."""


def timed(chain: Chain, ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> tuple[float, float]:
    """Return microseconds of a chain on Arrays and on NumPy's arrays."""
    both = [(mw, *ours), (np, *theirs)]
    timers = [
        timeit.Timer(lambda given=given: chain(*given), timer=time.thread_time) for given in both
    ]
    for timer in timers:
        timer.timeit(200)  # compiled, and known to be called often
    count = max(1, int(SECONDS / (timers[0].timeit(50) / 50)))
    least = [float("inf")] * 2
    for _ in range(TURNS):
        least = [min(best, timer.timeit(count) / count) for best, timer in zip(least, timers)]
    return least[0] * 1e6, least[1] * 1e6


def main(_: Any = None) -> None:
    """Print a table: microseconds of Arrays, of NumPy's arrays, and the quotient, for each size."""
    head = [f"{side * side} elements" for side in SIDES]
    made = table("Eager chains on one rank, us: Arrays, NumPy, quotient", "chain", *head)
    random = np.random.default_rng(0)
    for name, chain in CHAINS.items():
        cells = [name]
        for side in SIDES:
            x, y = (random.random((side, side), np.float32) for _ in range(2))
            a, b = mw.asarray(x), mw.asarray(y)
            np.testing.assert_allclose(chain(mw, a, b), chain(np, x, y), rtol=1e-4, atol=1e-4)
            ours, theirs = timed(chain, (a, b), (x, y))
            cells.append(f"{ours:.2f}, {theirs:.2f}: {ours / theirs:.1f}")
        made.add_row(*cells)
    show(made)
