"""Hold the rules of products, reductions and cumulative functions."""

from __future__ import annotations

import math
from typing import Any

from meshweave.frontends.python.control import scan
from meshweave.frontends.python.dtypes import Scalar
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import logic
from meshweave.frontends.python.functions.create import zeros_like
from meshweave.frontends.python.functions.linalg import _pair
from meshweave.frontends.python.functions.manipulate import (
    axes_of,
    broadcast_to,
    concat,
    flip,
    moveaxis,
    permute_dims,
    reshaped,
)
from meshweave.frontends.python.functions.reduce import cumulative_prod, cumulative_sum
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.tracer import Axes, Tracer


def _side(
    g: Tracer, out: str, other: Tracer, term: str, like: Tracer, own: str, sizes: dict[str, int]
) -> Tracer:
    """Give the cotangent of one side of a contraction: the cotangent of the result, contracted with the other side."""
    kept = "".join(
        x for x, n in zip(own, like.shape) if (x in out or x in term) and (n > 1 or sizes[x] == 1)
    )
    found, letters = _pair(g, out, other, term, kept)
    if letters != kept:
        found = permute_dims(found, [letters.index(x) for x in kept])
    ones = tuple(n if x in kept else 1 for x, n in zip(own, like.shape))
    return broadcast_to(reshaped(found, ones), like.shape)


def _sizes(a: Tracer, left: str, b: Tracer, right: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for letter, n in (*zip(left, a.shape), *zip(right, b.shape)):
        found[letter] = n if found.get(letter, 1) == 1 else found[letter]
    return found


def _left(
    g: Tracer, y: Tracer, name: str, a: Tracer, b: Tracer, left: str, right: str, out: str
) -> Tracer:
    return _side(g, out, b, right, a, left, _sizes(a, left, b, right))


def _right(
    g: Tracer, y: Tracer, name: str, a: Tracer, b: Tracer, left: str, right: str, out: str
) -> Tracer:
    return _side(g, out, a, left, b, right, _sizes(a, left, b, right))


def _kept(value: Tracer, x: Tracer, dims: tuple[int, ...]) -> Tracer:
    """Give a reduced value the dims of x again, with extent 1 where it was reduced."""
    return reshaped(value, tuple(1 if d in dims else n for d, n in enumerate(x.shape)))


def _reduce(
    g: Tracer,
    y: Tracer,
    x: Tracer,
    dims: tuple[int, ...],
    keepdims: bool,
    op: str,
    initial: Scalar,
) -> Tracer:
    wide = _kept(g, x, dims)
    if op in ("arith.addf", "complex.add"):
        return broadcast_to(wide, x.shape)
    if op in ("arith.maximumf", "arith.minimumf"):
        best = e.astype(logic.equal(x, _kept(y, x, dims)), x.dtype)
        return e.divide(e.multiply(wide, best), total(best, axis=dims, keepdims=True))
    return e.multiply(wide, _others(x, dims))


def _others(x: Tracer, dims: tuple[int, ...]) -> Tracer:
    """Multiply along dims all elements but each one, with no division: zeros are right too."""
    if not x.size:
        return zeros_like(x)
    rest = [d for d in range(x.ndim) if d not in dims]
    order = [*rest, *dims]
    row = permute_dims(x, order)
    flat = reshaped(row, (*[x.shape[d] for d in rest], math.prod(x.shape[d] for d in dims)))
    made = e.multiply(_before(flat), flip(_before(flip(flat, axis=-1)), axis=-1))
    return permute_dims(reshaped(made, row.shape), [order.index(d) for d in range(x.ndim)])


def _before(x: Tracer) -> Tracer:
    """Multiply along the last dim all elements before each one."""
    return cumulative_prod(x, axis=-1, include_initial=True)[..., :-1]


def _scan(g: Tracer, y: Tracer, x: Tracer, dim: int, op: str, initial: float) -> Tracer:
    """Give the cotangent of what is cumulated; of products by a loop, with no division: zeros are right too."""
    if op in ("arith.addf", "complex.add"):
        return flip(cumulative_sum(flip(g, axis=dim), axis=dim), axis=dim)
    first, slopes = moveaxis(x, dim, 0), moveaxis(g, dim, 0)
    if not first.size:
        return g
    before = cumulative_prod(first, axis=0, include_initial=True)[:-1]
    following = concat([first[1:], zeros_like(first[:1])], 0)

    def back(state: Tracer, row: tuple[Tracer, Tracer]) -> tuple[Tracer, Tracer]:
        after = e.add(row[0], e.multiply(row[1], state))
        return after, after

    _, sums = scan(back, zeros_like(first[0]), (slopes, following), reverse=True)
    return moveaxis(e.multiply(before, sums), 0, dim)


def _softmax(g: Tracer, y: Tracer, x: Tracer, axis: int = -1) -> Tracer:
    shares = e.multiply(y, g)
    return e.subtract(shares, e.multiply(y, total(shares, axis=axis, keepdims=True)))


def _log_softmax(g: Tracer, y: Tracer, x: Tracer, axis: int = -1) -> Tracer:
    return e.subtract(g, e.multiply(e.exp(y), total(g, axis=axis, keepdims=True)))


def _logsumexp(
    g: Tracer, y: Tracer, x: Tracer, axis: Axes = None, keepdims: bool = False
) -> Tracer:
    dims = axes_of("logsumexp", axis, x.ndim)
    whole = _kept(y, x, dims)
    ends = e.where(logic.isfinite(whole), whole, 0)
    return e.multiply(_kept(g, x, dims), e.exp(e.subtract(x, ends)))


PRODUCTS: dict[str, Any] = {
    "contract": (None, _left, _right),
    "reduce": (_reduce,),
    "scan_elements": (_scan,),
    "softmax": (_softmax,),
    "log_softmax": (_log_softmax,),
    "logsumexp": (_logsumexp,),
}
"""Primitive -> for each argument what makes its cotangent."""
