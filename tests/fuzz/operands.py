"""Draw what the text of a random op names: values that a function has made, dims, places."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st


def operands(
    draw: st.DrawFn, values: Sequence[np.ndarray]
) -> tuple[np.ndarray, dict[str, Any]] | None:
    """Return a value `a` of `v0`, `v1`, .. with names by what they stand for; None where it has no dims or elements.

    b: any value; c: one of the shape of a; d: a dim of a, n: their number, p: an order of them; i, r: places along the
    first dim, k: along d; j: 0 or 1.
    """
    many = len(values)
    a = draw(st.integers(0, many - 1)) if draw(st.booleans()) else many - 1
    x = values[a]
    if not x.ndim or not x.size:
        return None
    d = draw(st.integers(0, x.ndim - 1))
    same = [i for i, y in enumerate(values) if y.shape == x.shape]
    return x, {
        "a": f"v{a}", "b": f"v{draw(st.integers(0, many - 1))}", "c": f"v{draw(st.sampled_from(same))}", "d": d,
        "i": draw(st.integers(0, len(x) - 1)), "j": draw(st.integers(0, 1)), "n": x.ndim,
        "k": draw(st.lists(st.integers(0, x.shape[d] - 1), min_size=1, max_size=4)),
        "r": draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=3)),
        "p": tuple(draw(st.permutations(range(x.ndim)))),
    }  # fmt: skip
