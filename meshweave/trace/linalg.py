"""`meshweave.linalg`: of the linear algebra extension of the array API standard the functions that are sums and
products: no factorisations, no solvers.
"""

from __future__ import annotations

import math
from typing import Any

from meshweave.trace import elementwise as e
from meshweave.trace.builder import fail
from meshweave.trace.dtypes import DType, floating
from meshweave.trace.linear import matmul, matrix_transpose, outer, tensordot, vecdot
from meshweave.trace.manipulate import axes_of, axis_of, mapped, stack
from meshweave.trace.reduce import max as most
from meshweave.trace.reduce import min as least
from meshweave.trace.reduce import sum as total
from meshweave.trace.tracer import Tracer, broadcast_shapes, tensor

__all__ = [
    "cross", "diagonal", "matmul", "matrix_norm", "matrix_transpose", "outer", "tensordot", "trace",
    "vecdot", "vector_norm",
]  # fmt: skip


def diagonal(x: Any, /, *, offset: int = 0) -> Tracer:
    """The diagonal of each matrix (the last two dims), `offset` above the main one, as a last dim."""
    value = _matrices("diagonal", x)
    rows, columns = value.shape[-2:]
    size = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    shape = (*value.shape[:-2], size)
    if not size or not value.size:
        from meshweave.trace.create import zeros

        return zeros(shape, dtype=value.dtype)
    down, right = max(-offset, 0), max(offset, 0)
    cut = value[..., down : down + size, right : right + size]
    last = len(shape) - 1
    reads = [*(f"d{d}" for d in range(last)), f"d{last}", f"d{last}"]
    return mapped(cut, shape, reads) if size > 1 else cut[..., 0]


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tracer:
    """The sum of the diagonal of each matrix (the last two dims)."""
    return total(diagonal(_matrices("trace", x), offset=offset), axis=-1, dtype=dtype)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tracer:
    """The cross product of vectors of 3 along `axis`, the other dims broadcast."""
    a, b = tensor(x1), tensor(x2)
    ndim = len(broadcast_shapes(a.shape, b.shape))
    dim = axis_of("cross", axis, min(a.ndim, b.ndim)) - min(a.ndim, b.ndim)
    if (a.shape[dim], b.shape[dim]) != (3, 3):
        fail(f"cross: sizes {a.shape[dim]} and {b.shape[dim]} along the axis, 3 and 3 are right")
    after = (slice(None),) * (-dim - 1)
    keys = [(Ellipsis, k, *after) for k in range(3)]
    x, y = ([v[key] for key in keys] for v in (a, b))
    parts = [
        e.subtract(e.multiply(x[i], y[j]), e.multiply(x[j], y[i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return stack(parts, axis=ndim + dim)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Tracer:
    """The norm of vectors along `axis` (None: of all elements): (sum |x|**ord) ** (1 / ord); inf, -inf and 0 too.

    Shape of x without `axis`; floating. Sums of float16 and bfloat16 are float32 inside.
    """
    value = _floating("vector_norm", x)
    dims = axes_of("vector_norm", axis, value.ndim)
    size = e.abs(value)
    if not isinstance(ord, int | float):
        fail(f"vector_norm: ord={ord!r:.40}, a Python number is right")
    if ord in (math.inf, -math.inf):
        return (most if ord > 0 else least)(size, axis=dims, keepdims=keepdims)
    if ord == 0:
        found = total(e.astype(e.astype(value, "bool"), value.dtype), axis=dims, keepdims=keepdims)
        return e.astype(found, value.dtype)
    wide = e.astype(size, _wide(value.dtype))
    if ord == 1:
        found = total(wide, axis=dims, keepdims=keepdims)
    elif ord == 2:
        found = e.sqrt(total(e.square(wide), axis=dims, keepdims=keepdims))
    else:
        found = e.pow(total(e.pow(wide, ord), axis=dims, keepdims=keepdims), 1.0 / ord)
    return e.astype(found, value.dtype)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Tracer:
    """The norm of each matrix (the last two dims): "fro" (all elements), 1 and -1 (columns), inf and -inf (rows).

    Those by singular values (2, -2, "nuc") are refused.
    """
    value = _floating("matrix_norm", _matrices("matrix_norm", x))
    if ord == "fro":
        return vector_norm(value, axis=(-2, -1), keepdims=keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        fail(f'matrix_norm: ord={ord!r:.40}: "fro", 1, -1, inf and -inf are supported')
    along, across = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = total(e.abs(value), axis=along, keepdims=True)
    found = (most if ord > 0 else least)(sums, axis=across, keepdims=True)
    return found if keepdims else found[..., 0, 0]


def _matrices(name: str, x: Any) -> Tracer:
    value = tensor(x)
    if value.ndim < 2:
        fail(f"{name}: x has {value.ndim} dims, at least 2 are right")
    return value


def _floating(name: str, x: Any) -> Tracer:
    value = tensor(x)
    return e.astype(value, floating(value.dtype))


def _wide(dtype: DType) -> DType:
    from meshweave.trace.dtypes import float32

    return float32 if dtype.bits == 16 else dtype
