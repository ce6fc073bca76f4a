"""Attentions and sums whose heads, some of which share keys, are computed one by one: each head is read at numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

import meshweave as mw


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def alone(q: Any, k: Any) -> Any:
    """What a head of queries makes of its keys: shares, and what they weigh."""
    shares = mw.softmax(q @ k.T)
    return shares @ k


def all_at_once(q: Any, k: Any) -> Any:
    shared = mw.repeat(k, q.shape[0] // k.shape[0], axis=0)
    return mw.softmax(q @ mw.matrix_transpose(shared)) @ shared


def one_by_one(head: Callable[[int], int]) -> Callable[..., Any]:
    def f(q: Any, k: Any) -> Any:
        return mw.stack([alone(q[n], k[head(n)]) for n in range(q.shape[0])])

    return f


def summed(q: Any, k: Any) -> Any:
    """A number of each head of keys, from all queries that share it."""
    groups = mw.reshape(
        mw.sum(mw.exp(q @ mw.matrix_transpose(mw.repeat(k, 2, axis=0))), axis=-1), (2, 2, -1)
    )
    return mw.sum(groups, axis=1)


def summed_one_by_one(first: int, second: int) -> Callable[..., Any]:
    def f(q: Any, k: Any) -> Any:
        def of(n: int, m: int) -> Any:
            return mw.sum(mw.exp(q[n] @ k[m].T), axis=-1)

        return mw.stack([of(0, 0) + of(first, 0), of(2, 1) + of(second, 1)])

    return f


Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]
RIGHT: dict[str, Pair] = {
    "as many keys": (all_at_once, one_by_one(lambda n: n), (ones(3, 4, 5), ones(3, 6, 5))),
    "keys of two": (all_at_once, one_by_one(lambda n: n // 2), (ones(4, 4, 5), ones(2, 6, 5))),
    "one head of keys": (all_at_once, one_by_one(lambda n: 0), (ones(3, 4, 5), ones(1, 6, 5))),
    "sums of two": (summed, summed_one_by_one(1, 3), (ones(4, 3, 5), ones(2, 6, 5))),
}
WRONG: dict[str, Pair] = {
    "keys of the next": (all_at_once, one_by_one(lambda n: (n + 1) // 2 % 2), (ones(4, 4, 5), ones(2, 6, 5))),
    "keys in turn": (all_at_once, one_by_one(lambda n: n % 2), (ones(4, 4, 5), ones(2, 6, 5))),
    "keys the other way round": (all_at_once, one_by_one(lambda n: 1 - n // 2), (ones(4, 4, 5), ones(2, 6, 5))),
    "one head, the first": (all_at_once, one_by_one(lambda n: 0), (ones(2, 4, 5), ones(2, 6, 5))),
    "one head, the last": (all_at_once, one_by_one(lambda n: 1), (ones(2, 4, 5), ones(2, 6, 5))),
    "one added twice": (summed, summed_one_by_one(0, 3), (ones(4, 3, 5), ones(2, 6, 5))),
    "one of the others": (summed, summed_one_by_one(2, 3), (ones(4, 3, 5), ones(2, 6, 5))),
    "two swapped": (summed, summed_one_by_one(3, 1), (ones(4, 3, 5), ones(2, 6, 5))),
}  # fmt: skip


def texts(pair: Pair) -> tuple[str, str]:
    """Both as programs: that of all heads at once, and that of one head at a time."""
    whole, parts, given = pair
    one, other = [mw.jit(f).lower(*given).as_text() for f in (whole, parts)]
    return one, other


def traced() -> dict[str, tuple[str, str]]:
    """Programs by name."""
    return {name: texts(pair) for name, pair in RIGHT.items()}
