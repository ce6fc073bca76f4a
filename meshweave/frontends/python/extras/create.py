"""Define NumPy's creation functions that the standard lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import DEFAULT_INT, DTypeLike, default_floating
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import eye, full, iota, linspace
from meshweave.frontends.python.functions.elementwise import named
from meshweave.frontends.python.functions.index import take
from meshweave.frontends.python.functions.linalg import diagonal
from meshweave.frontends.python.functions.logic import equal, less_equal
from meshweave.frontends.python.functions.manipulate import expand_dims, reshape, sizes_of, stack
from meshweave.frontends.python.tracer import ArrayLike, Shape, Tracer, dtype_of, tensor


def copy(x: ArrayLike, /) -> Tracer:
    """Return an array of the same value, which does not change when x does."""
    return tensor(x)


def identity(n: int, /, *, dtype: DTypeLike | None = None) -> Tracer:
    """Make the identity matrix of n rows."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, *, dtype: DTypeLike | None = None) -> Tracer:
    """Make a matrix of N rows (M columns, or as many) with ones on and below diagonal k, zeros above."""
    shape = (N, N if M is None else M)
    rows, columns = (iota(shape, d, DEFAULT_INT) for d in (0, 1))
    below = less_equal(columns, e.add(rows, k))
    return e.astype(below, dtype_of("tri", dtype, default_floating()))


def indices(dimensions: Shape, /, *, dtype: DTypeLike | None = None) -> Tracer:
    """Make the places of a grid: result[d] holds the place along dim d of each element."""
    shape, wanted = sizes_of("indices", dimensions), dtype_of("indices", dtype, DEFAULT_INT)
    return stack([iota(shape, d, wanted) for d in range(len(shape))])


def fromfunction(function: Callable[..., Any], shape: Shape, /) -> Tracer:
    """Call a function with the places along each dim of a grid of this shape."""
    sizes = sizes_of("fromfunction", shape)
    return tensor(function(*[iota(sizes, d, default_floating()) for d in range(len(sizes))]))


def logspace(
    start: float,
    stop: float,
    /,
    num: int = 50,
    *,
    base: float = 10.0,
    dtype: DTypeLike | None = None,
    endpoint: bool = True,
) -> Tracer:
    """Make `num` numbers from base**start to base**stop, evenly spaced in their logarithms."""
    powers = linspace(start, stop, num, dtype="f64", endpoint=endpoint)
    return e.astype(e.pow(base, powers), dtype_of("logspace", dtype, default_floating()))


def geomspace(
    start: float,
    stop: float,
    /,
    num: int = 50,
    *,
    dtype: DTypeLike | None = None,
    endpoint: bool = True,
) -> Tracer:
    """Make `num` numbers from start to stop, each the same multiple of the one before; both have one sign."""
    if not start * stop > 0:
        fail(f"geomspace: from {start} to {stop}, two numbers of one sign and not 0 are right")
    sign, low, high = (1.0 if start > 0 else -1.0), np.log10(abs(start)), np.log10(abs(stop))
    powers = linspace(float(low), float(high), num, dtype="f64", endpoint=endpoint)
    made = e.multiply(e.pow(10.0, powers), sign)
    last = num - 1 if endpoint else -1
    at = iota((num,), 0, DEFAULT_INT)
    exact = e.where(e.astype(at, "bool"), made, float(start))
    if last > 0:
        exact = e.where(less_equal(float(last), at), float(stop), exact)
    return e.astype(exact, dtype_of("geomspace", dtype, default_floating()))


def vander(x: ArrayLike, /, N: int | None = None, *, increasing: bool = False) -> Tracer:
    """Make the matrix whose columns are powers of the vector x, the highest first unless `increasing`."""
    value = tensor(x)
    if value.ndim != 1:
        fail(f"vander: x has {value.ndim} dims, a vector is right")
    count = value.size if N is None else N
    powers: list[Tracer] = [full(value.shape, 1, dtype=value.dtype)] if count else []
    while len(powers) < count:
        powers.append(e.multiply(powers[-1], value))
    if not powers:
        return full((value.size, 0), 0, dtype=value.dtype)
    return stack(powers if increasing else powers[::-1], axis=1)


def diag(x: ArrayLike, /, k: int = 0) -> Tracer:
    """Make a matrix with the vector x on diagonal k, or take diagonal k of a matrix."""
    value = tensor(x)
    if value.ndim == 2:
        return diagonal(value, offset=k)
    if value.ndim != 1:
        fail(f"diag: x has {value.ndim} dims, 1 or 2 are right")
    n, zero = value.size + abs(k), tensor(0, value.dtype)
    if not value.size:
        return full((n, n), zero)
    rows, columns = (iota((n, n), d, DEFAULT_INT) for d in (0, 1))
    places = e.clip(e.subtract(rows, max(-k, 0)), 0, value.size - 1)
    return e.where(equal(columns, e.add(rows, k)), take(value, places), zero)


def diagflat(x: ArrayLike, /, k: int = 0) -> Tracer:
    """Make a matrix with the elements of x on diagonal k."""
    return diag(reshape(x, (-1,)), k)


_CONSTANTS = {
    "bartlett": "the Bartlett window of M places",
    "blackman": "the Blackman window of M places",
    "hamming": "the Hamming window of M places",
    "hanning": "the Hann window of M places",
}


def _window(name: str) -> Callable[..., Tracer]:
    def function(M: int, /) -> Tracer:
        return tensor(getattr(np, name)(M).astype(default_floating().numpy))

    return named(function, name, f"Make {_CONSTANTS[name]}.")


bartlett, blackman, hamming, hanning = map(_window, _CONSTANTS)


def kaiser(M: int, beta: float, /) -> Tracer:
    """Make the Kaiser window of M places and shape `beta`."""
    return tensor(np.kaiser(M, beta).astype(default_floating().numpy))


def _places(name: str, what: str) -> Callable[..., tuple[Tracer, ...]]:
    def function(n: int, /, k: int = 0, m: int | None = None) -> tuple[Tracer, ...]:
        return tuple([tensor(v) for v in getattr(np, name)(n, k, m)])

    return named(
        function, name, f"Return the rows and columns {what} diagonal k of an n x m matrix."
    )


tril_indices = _places("tril_indices", "on and below")
triu_indices = _places("triu_indices", "on and above")


def diag_indices(n: int, /, ndim: int = 2) -> tuple[Tracer, ...]:
    """Return the places of the main diagonal of an array of `ndim` dims of size n."""
    return (iota((n,), 0, DEFAULT_INT),) * ndim


def ix_(*vectors: ArrayLike) -> tuple[Tracer, ...]:
    """Return vectors of indices in shapes that broadcast, so that x[mw.ix_(a, b)] takes their rows and columns."""
    values = [tensor(v) for v in vectors]
    ndim = len(values)
    return tuple([expand_dims(v, [d for d in range(ndim) if d != k]) for k, v in enumerate(values)])
