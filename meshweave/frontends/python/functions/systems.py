"""Define NumPy's functions of `linalg` that the standard lacks: least squares, products of several, tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import finfo, floating
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.factor import inv, solve, svd
from meshweave.frontends.python.functions.manipulate import permute_dims, reshape
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor


class LstsqResult(NamedTuple):
    """Hold what least squares give: solutions, sums of squares left over, the rank as int64, singular values."""

    solution: Tracer
    residuals: Tracer
    rank: Tracer
    singular_values: Tracer


def lstsq(x1: ArrayLike, x2: ArrayLike, /, rcond: float | None = None) -> LstsqResult:
    """Find the least vectors y for which the sum of squares of x1 y - x2 is least; x1: a matrix, x2: sides or one.

    rcond: singular values of at most rcond times the largest one count as 0; None: the larger size of x1 times eps. The
    residuals are there for matrices of any rank.
    """
    a, b = tensor(x1), tensor(x2)
    if a.ndim != 2 or b.ndim not in (1, 2) or a.shape[0] != b.shape[0]:
        fail(f"lstsq: shapes {a.shape} and {b.shape}, a matrix and as many right sides are right")
    a, b = e.alike(a, b)
    a, b = e.astype(a, floating(a.dtype)), e.astype(b, floating(b.dtype))
    sides = b if b.ndim == 2 else b[:, None]
    u, values, vh = svd(a, full_matrices=False)
    limit = max(a.shape) * finfo(a.dtype).eps if rcond is None else rcond
    kept = values > limit * values[:1]
    inverse = e.where(kept, 1 / e.where(kept, values, 1.0), 0.0)
    y = e.conj(vh).mT @ (inverse[:, None] * (e.conj(u).mT @ sides))
    left = total(e.square(e.abs(sides - a @ y)), axis=0)
    rank = total(e.astype(kept, "int64"))
    return LstsqResult(y if b.ndim == 2 else y[:, 0], left, rank, values)


def multi_dot(arrays: Sequence[ArrayLike], /) -> Tracer:
    """Multiply matrices one after the other, in the order that takes the fewest operations; the ends may be vectors."""
    values = [tensor(v) for v in arrays]
    if len(values) < 2:
        fail(f"multi_dot: {len(values)} arrays, at least 2 are right")
    first, last = values[0].ndim == 1, values[-1].ndim == 1
    values[0] = values[0][None] if first else values[0]
    values[-1] = values[-1][:, None] if last else values[-1]
    if any(v.ndim != 2 for v in values):
        fail(
            f"multi_dot: shapes {[v.shape for v in values]}, matrices with vectors at the ends are right"
        )
    order = _order([*[v.shape[0] for v in values], values[-1].shape[1]])
    found = _product(values, order, 0, len(values) - 1)
    found = found[0] if first else found
    return found[..., 0] if last else found


def _order(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return behind which matrix a product of matrices i to j is best taken apart [Cormen et al., section 15.2]."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split = dict[tuple[int, int], int]()
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return split


def _product(values: Sequence[Tracer], split: dict[tuple[int, int], int], i: int, j: int) -> Tracer:
    if i == j:
        return values[i]
    k = split[i, j]
    return _product(values, split, i, k) @ _product(values, split, k + 1, j)


def tensorinv(x: ArrayLike, /, ind: int = 2) -> Tracer:
    """Invert a tensor as a matrix from its last dims to its first `ind` ones."""
    value = tensor(x)
    if not 0 < ind < value.ndim:
        fail(f"tensorinv: ind={ind} of {value.ndim} dims, a number between is right")
    rows, columns = value.shape[:ind], value.shape[ind:]
    return reshape(inv(reshape(value, (math.prod(rows), math.prod(columns)))), (*columns, *rows))


def tensorsolve(x1: ArrayLike, x2: ArrayLike, /, axes: Sequence[int] | None = None) -> Tracer:
    """Solve tensordot(x1, y, y.ndim) = x2 for y; axes: dims of x1 that are moved behind all others before."""
    a, b = tensor(x1), tensor(x2)
    if axes is not None:
        moved = [axis % a.ndim for axis in axes]
        a = permute_dims(a, [d for d in range(a.ndim) if d not in moved] + moved)
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape or math.prod(shape) != b.size:
        fail(f"tensorsolve: shapes {a.shape} and {b.shape}, a square system is right")
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (b.size,))), shape)
