"""Define NumPy's products that the standard lacks, convolutions of vectors and polynomials."""

from __future__ import annotations

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.dtypes import DTypeLike
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions import linalg
from meshweave.frontends.python.functions.create import arange, zeros
from meshweave.frontends.python.functions.elementwise import alike
from meshweave.frontends.python.functions.manipulate import (
    concat,
    flip,
    moveaxis,
    reshape,
)
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor


def dot(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Sum products over the last dim of x1 and the last but one (of a vector the only one) of x2; numbers multiply."""
    a, b = tensor(x1), tensor(x2)
    if not a.ndim or not b.ndim:
        return e.multiply(x1, x2)
    return linalg.tensordot(a, b, axes=([a.ndim - 1], [max(b.ndim - 2, 0)]))


def inner(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Sum products over the last dims; numbers multiply."""
    a, b = tensor(x1), tensor(x2)
    if not a.ndim or not b.ndim:
        return e.multiply(x1, x2)
    return linalg.tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 1]))


def vdot(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Sum the products of all elements, of complex numbers with x1's conjugates."""
    a, b = (reshape(x, (-1,)) for x in (x1, x2))
    return linalg.vecdot(a, b)


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Multiply matrices (the last two dims of x1) with vectors (the last of x2); the others broadcast."""
    return linalg.matmul(x1, tensor(x2)[..., None])[..., 0]


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Multiply vectors (the last dim of x1), of complex numbers conjugates, with matrices (the last two of x2)."""
    return linalg.matmul(e.conj(x1)[..., None, :], x2)[..., 0, :]


def kron(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Compute the Kronecker product: each element of x1 times all of x2."""
    a, b = alike(x1, x2)
    ndim = max(a.ndim, b.ndim)
    left = (1,) * (ndim - a.ndim) + a.shape
    right = (1,) * (ndim - b.ndim) + b.shape
    wide = e.multiply(
        reshape(a, [n for size in left for n in (size, 1)]),
        reshape(b, [n for size in right for n in (1, size)]),
    )
    return reshape(wide, [m * n for m, n in zip(left, right)])


def diagonal(x: ArrayLike, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tracer:
    """Return the diagonals of matrices in the dims axis1 and axis2, `offset` above the main one, as a last dim."""
    value = tensor(x)
    if value.ndim < 2:
        fail(f"diagonal: x has {value.ndim} dims, at least 2 are right")
    return linalg.diagonal(moveaxis(value, (axis1, axis2), (-2, -1)), offset=offset)


def trace(
    x: ArrayLike,
    /,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
) -> Tracer:
    """Sum `diagonal`. dtype: of the sum."""
    return total(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


def convolve(x1: ArrayLike, x2: ArrayLike, /, mode: str = "full") -> Tracer:
    """Convolve two vectors; mode: "full", "same" (as long as the longer one) or "valid" (where they overlap wholly)."""
    a, b = tensor(x1), tensor(x2)
    if a.size < b.size:
        a, b = b, a
    return _slid("convolve", a, flip(b), mode)


def correlate(x1: ArrayLike, x2: ArrayLike, /, mode: str = "valid") -> Tracer:
    """Correlate two vectors, with x2's conjugates; mode: as of `convolve`."""
    a, b = tensor(x1), e.conj(x2)
    if a.size < b.size:
        return flip(_slid("correlate", b, a, mode))
    return _slid("correlate", a, b, mode)


def _slid(name: str, a: Tracer, b: Tracer, mode: str) -> Tracer:
    """Sum the products of b with each part of the longer vector a."""
    if a.ndim != 1 or b.ndim != 1 or not b.size:
        fail(f"{name}: shapes {a.shape} and {b.shape}, two vectors with elements are right")
    if mode not in ("full", "same", "valid"):
        fail(f'{name}: mode={mode!r}, "full", "same" or "valid" is right')
    more = {"full": b.size - 1, "same": (b.size - 1) // 2, "valid": 0}[mode]
    before = b.size - 1 - (b.size - 1) // 2 if mode == "same" else more
    ends = [zeros((n,), dtype=a.dtype) for n in (before, more)]
    wide = concat([ends[0], a, ends[1]])
    count = wide.size - b.size + 1
    parts = [e.multiply(wide[k : k + count], b[k]) for k in range(b.size)]
    made = parts[0]
    for part in parts[1:]:
        made = e.add(made, part)
    return made


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tracer:
    """Compute the cross product of vectors of 3 along `axis`; the other dims broadcast."""
    return linalg.cross(x1, x2, axis=axis)


def polyval(p: ArrayLike, x: ArrayLike, /) -> Tracer:
    """Compute the polynomial with the coefficients p, the highest power first, at x."""
    coefficients, at = alike(p, x)
    if coefficients.ndim != 1:
        fail(f"polyval: p has {coefficients.ndim} dims, a vector is right")
    made = e.multiply(at, 0)
    for k in range(coefficients.size):
        made = e.add(e.multiply(made, at), coefficients[k])
    return made


def polymul(p1: ArrayLike, p2: ArrayLike, /) -> Tracer:
    """Multiply two polynomials, given by their coefficients."""
    return convolve(p1, p2)


def polyadd(p1: ArrayLike, p2: ArrayLike, /) -> Tracer:
    """Add two polynomials, given by their coefficients, the highest power first."""
    a, b = tensor(p1), tensor(p2)
    size = max(a.size, b.size)
    return e.add(*[concat([zeros((size - v.size,), dtype=v.dtype), v]) for v in (a, b)])


def polysub(p1: ArrayLike, p2: ArrayLike, /) -> Tracer:
    """Subtract two polynomials, given by their coefficients, the highest power first."""
    return polyadd(p1, e.negative(p2))


def polyder(p: ArrayLike, /) -> Tracer:
    """Differentiate a polynomial, given by its coefficients, the highest power first."""
    value = tensor(p)
    return e.multiply(value[:-1], arange(value.size - 1, 0, -1, dtype=value.dtype))
