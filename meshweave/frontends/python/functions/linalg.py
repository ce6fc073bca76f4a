"""Define linear algebra: matmul, einsum and what is made of them, and `meshweave.linalg`, the array API's extension.

A contraction is one linalg.generic of a product and a sum; float16 and bfloat16 add up in float32 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshweave.frontends.python.builder import Body, affine_map, fail, tensor_type
from meshweave.frontends.python.dtypes import DTypeLike, accumulator, floating, op_of
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.factor import (
    cholesky,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    matrix_power,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
)
from meshweave.frontends.python.functions.manipulate import (
    axes_of,
    axis_of,
    expand_dims,
    mapped,
    moveaxis,
    permute_dims,
    squeeze,
    stack,
)
from meshweave.frontends.python.functions.reduce import max as most
from meshweave.frontends.python.functions.reduce import min as least
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.functions.systems import lstsq, multi_dot, tensorinv, tensorsolve
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Axes,
    Tracer,
    broadcast_shapes,
    operand_dtype,
    splat,
    tensor,
    tracing,
)

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq",
    "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer",
    "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace",
    "vecdot", "vector_norm",
]  # fmt: skip


@primitive
def contract(name: str, a: Tracer, b: Tracer, left: str, right: str, out: str) -> Tracer:
    """Contract two tensors whose dims are letters, none twice in one operand; dims of extent 1 broadcast."""
    dtype = operand_dtype([a, b])
    if dtype.kind == "b":
        fail(f"{name}: dtype {dtype!r}, a number is right")
    letters = out + "".join(x for x in dict.fromkeys(left + right) if x not in out)
    sizes = _sizes(name, ((left, a.shape), (right, b.shape)))
    shape = tuple(sizes[x] for x in out)
    if sizes and 0 in [sizes[x] for x in letters]:
        return splat(tracing(), shape, 0, dtype)
    wide = accumulator(dtype)
    maps = [_map(letters, left, a.shape, sizes), _map(letters, right, b.shape, sizes)]
    maps.append(_map(letters, out, shape, sizes))
    kinds = ["parallel" if x in out else "reduction" for x in letters]
    trace = tracing()
    init, type_ = trace.filled(shape, wide, 0), tensor_type(shape, wide)

    def body(lines: Body, ins: list[str], acc: str) -> str:
        x, y = (lines.cast(v, t.dtype, wide) for v, t in zip(ins, (a, b)))
        product = lines.op(op_of("mul", wide), wide, x, y)
        return lines.op(op_of("add", wide), wide, acc, product)

    made = trace.generic(maps, kinds, [a, b], init, type_, body)
    return e.astype(Tracer(trace, made, shape, wide), dtype)


def _sizes(name: str, operands: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for letters, shape in operands:
        for letter, size in zip(letters, shape):
            known = sizes.setdefault(letter, size)
            if known == 1:
                sizes[letter] = size
            elif size not in (1, known):
                shapes = " and ".join("x".join(map(str, s)) or "a scalar" for _, s in operands)
                fail(f"{name}: shapes {shapes} do not fit: sizes {known} and {size} must be equal")
    return sizes


def _map(letters: str, reads: str, shape: tuple[int, ...], sizes: dict[str, int]) -> str:
    parts = [
        "0" if size == 1 and sizes[x] != 1 else f"d{letters.index(x)}"
        for x, size in zip(reads, shape)
    ]
    return affine_map(len(letters), tuple(parts))


_BATCH = "abcdefghijklmnopqrstuvw"


def matmul(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Multiply matrices (the last two dims); the others broadcast. A vector is a row on the left, else a column."""
    a, b = tensor(x1), tensor(x2)
    for side, value in (("x1", a), ("x2", b)):
        if not value.shape:
            fail(f"matmul: {side} has no dims, at least 1 is right: multiply by numbers with *")
    inner, other = a.shape[-1], b.shape[-2 if b.ndim > 1 else -1]
    if inner != other:
        shapes = " and ".join("x".join(map(str, v.shape)) for v in (a, b))
        fail(f"matmul: shapes {shapes} do not fit: {inner} columns meet {other} rows")
    broadcast_shapes(a.shape[:-2], b.shape[:-2])
    batch = max(a.ndim, b.ndim, 2) - 2
    if batch > len(_BATCH):
        fail(f"matmul: {batch + 2} dims, at most {len(_BATCH) + 2} work")
    rows, columns = ("x" if a.ndim > 1 else ""), ("y" if b.ndim > 1 else "")
    left = _BATCH[batch - max(a.ndim - 2, 0) : batch] + rows + "z"
    right = _BATCH[batch - max(b.ndim - 2, 0) : batch] + "z" + columns
    if inner == 0:
        whole = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        whole += (a.shape[-2:-1] if rows else ()) + (b.shape[-1:] if columns else ())
        return splat(tracing(), whole, 0, operand_dtype([a, b]))
    used = "".join(x for x in _BATCH[:batch] if x in left + right)
    return contract("matmul", a, b, left, right, used + rows + columns)


def matrix_transpose(x: ArrayLike, /) -> Tracer:
    """Swap the last two dims."""
    given = _matrices("matrix_transpose", x)
    return permute_dims(given, (*range(given.ndim - 2), given.ndim - 1, given.ndim - 2))


def tensordot(
    x1: ArrayLike, x2: ArrayLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tracer:
    """Sum products over `axes` dims: the last of x1 with the first of x2, or a pair of lists of dims."""
    a, b = tensor(x1), tensor(x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            fail(f"tensordot: axes={axes}, 0 to {min(a.ndim, b.ndim)} are right")
        pairs = list(zip(range(a.ndim - axes, a.ndim), range(axes)))
    else:
        left_axes, right_axes = axes
        if len(left_axes) != len(right_axes):
            fail(f"tensordot: {len(left_axes)} dims of x1 and {len(right_axes)} of x2")
        pairs = [
            (axis_of("tensordot", i, a.ndim), axis_of("tensordot", j, b.ndim))
            for i, j in zip(left_axes, right_axes)
        ]
    for i, j in pairs:
        if a.shape[i] != b.shape[j]:
            fail(f"tensordot: dim {i} of x1 has size {a.shape[i]}, dim {j} of x2 {b.shape[j]}")
    names = [chr(ord("a") + k) for k in range(a.ndim + b.ndim)]
    left, right = names[: a.ndim], names[a.ndim :]
    for i, j in pairs:
        right[j] = left[i]
    summed = {left[i] for i, _ in pairs}
    out = "".join(x for x in left + right if x not in summed)
    return contract("tensordot", a, b, "".join(left), "".join(right), out)


def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tracer:
    """Sum the products along `axis` (negative), of complex numbers with x1's conjugates; the other dims broadcast."""
    a, b = e.conj(x1), tensor(x2)
    if axis >= 0 or -axis > min(a.ndim, b.ndim):
        fail(f"vecdot: axis={axis}, -{min(a.ndim, b.ndim)} to -1 are right")
    if a.shape[axis] != b.shape[axis]:
        fail(f"vecdot: sizes {a.shape[axis]} and {b.shape[axis]} along the axis must be equal")
    a, b = (moveaxis(v, axis, -1) for v in (a, b))
    return squeeze(matmul(expand_dims(a, -2), expand_dims(b, -1)), (-1, -2))


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Multiply each element of one vector with each of another."""
    a, b = tensor(x1), tensor(x2)
    if a.ndim != 1 or b.ndim != 1:
        fail(f"outer: {a.ndim} and {b.ndim} dims, vectors are right")
    return e.multiply(expand_dims(a, 1), expand_dims(b, 0))


def einsum(subscripts: str, *arrays: ArrayLike) -> Tracer:
    """Compute an Einstein sum, `"bhqd,bhkd->bhqk"`: letters name dims, those not behind the arrow are summed over.

    Any number of operands is contracted from left to right; "..." means dims that broadcast. Without an arrow the
    result has the letters that occur once, in alphabetical order. A letter twice in one operand is refused.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> f = mw.jit(lambda q, k: mw.einsum("bqd,bkd->bqk", q, k))
    >>> f(np.ones((2, 3, 4), np.float32), np.ones((2, 5, 4), np.float32)).shape
    (2, 3, 5)
    """
    values = [tensor(x) for x in arrays]
    left, arrow, out = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        fail(f'einsum: "{subscripts}" has {len(terms)} operands, {len(values)} are given')
    terms, out = _spelled(subscripts, terms, values, out if arrow else None)
    for term, value in zip(terms, values):
        if len(term) != value.ndim:
            fail(f'einsum: "{term}" for an operand of {value.ndim} dims in "{subscripts}"')
        if len(set(term)) != len(term):
            fail(f'einsum: a letter occurs twice in "{term}": diagonals are not supported')
    known = set("".join(terms))
    if len(set(out)) != len(out) or not set(out) <= known:
        fail(f'einsum: the result "{out}" must name dims of the operands, each once')
    _sizes("einsum", [(t, v.shape) for t, v in zip(terms, values)])
    result, term = values[0], terms[0]
    for number in range(1, len(values)):
        needed = set(out).union(*terms[number + 1 :])
        both = "".join(dict.fromkeys(term + terms[number]))
        last = number == len(values) - 1
        keep = out if last else "".join(x for x in both if x in needed)
        result, term = _pair(result, term, values[number], terms[number], keep)
    result, term = _summed(result, term, set(out))
    return permute_dims(result, tuple(term.index(x) for x in out)) if term != out else result


def _pair(a: Tracer, left: str, b: Tracer, right: str, keep: str) -> tuple[Tracer, str]:
    """Contract two operands; letters of only one that are not kept are summed first, which leaves a matrix product."""
    a, left = _summed(a, left, set(keep) | set(right))
    b, right = _summed(b, right, set(keep) | set(left))
    out = "".join(x for x in keep if x in left + right)
    return contract("einsum", a, b, left, right, out), out


def _summed(value: Tracer, term: str, keep: set[str]) -> tuple[Tracer, str]:
    gone = tuple(d for d, x in enumerate(term) if x not in keep)
    if not gone:
        return value, term
    summed = e.astype(total(value, axis=gone), value.dtype)
    return summed, "".join(x for x in term if x in keep)


def _spelled(
    whole: str, terms: list[str], values: list[Tracer], out: str | None
) -> tuple[list[str], str]:
    """Replace "..." by letters in the terms and in the result."""
    used = {x for term in terms for x in term if x != "."}
    bad = sorted(x for x in used.union(out or "") if not (x.isalpha() or x == "."))
    if bad:
        fail(f'einsum: {bad[0]!r} in "{whole}" is no letter')
    extra = [chr(0x3B1 + k) for k in range(32)]  # Greek ones name what "..." stands for
    counts = [v.ndim - len(t.replace("...", "")) for t, v in zip(terms, values) if "..." in t]
    most = max(counts, default=0)
    if min(counts, default=0) < 0 or most > len(extra):
        fail(f'einsum: an operand has fewer dims than "{whole}" names')
    spelled = []
    for term, value in zip(terms, values):
        n = value.ndim - len(term.replace("...", ""))
        spelled.append(term.replace("...", "".join(extra[most - n : most])))
    if out is None:
        once = sorted(x for x in used if "".join(terms).count(x) == 1)
        out = "".join(extra[:most]) + "".join(once)
    else:
        out = out.replace("...", "".join(extra[:most]))
    if any("." in term for term in (*spelled, out)):
        fail(f'einsum: a single dot in "{whole}": "..." is three')
    return spelled, out


@primitive
def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Tracer:
    """Return the diagonal of each matrix (the last two dims), `offset` above the main one, as a last dim."""
    value = _matrices("diagonal", x)
    rows, columns = value.shape[-2:]
    size = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    shape = (*value.shape[:-2], size)
    if not size or not value.size:
        return splat(tracing(), shape, 0, value.dtype)
    down, right = max(-offset, 0), max(offset, 0)
    cut = value[..., down : down + size, right : right + size]
    last = len(shape) - 1
    reads = [*(f"d{d}" for d in range(last)), f"d{last}", f"d{last}"]
    return mapped(cut, shape, reads) if size > 1 else cut[..., 0]


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tracer:
    """Sum the diagonal of each matrix (the last two dims)."""
    return total(diagonal(_matrices("trace", x), offset=offset), axis=-1, dtype=dtype)


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tracer:
    """Compute the cross product of vectors of 3 along `axis`; the other dims broadcast."""
    a, b = tensor(x1), tensor(x2)
    ndim = len(broadcast_shapes(a.shape, b.shape))
    dim = axis_of("cross", axis, min(a.ndim, b.ndim)) - min(a.ndim, b.ndim)
    if (a.shape[dim], b.shape[dim]) != (3, 3):
        fail(f"cross: sizes {a.shape[dim]} and {b.shape[dim]} along the axis, 3 and 3 are right")
    after = (slice(None),) * (-dim - 1)
    x, y = ([v.__getitem__((..., k, *after)) for k in range(3)] for v in (a, b))
    parts = [
        e.subtract(e.multiply(x[i], y[j]), e.multiply(x[j], y[i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return stack(parts, axis=ndim + dim)


def vector_norm(
    x: ArrayLike, /, *, axis: Axes = None, keepdims: bool = False, ord: float | str = 2
) -> Tracer:
    """Compute the norm of vectors along `axis` (None: of all elements): (sum |x|**ord) ** (1 / ord); also inf, -inf, 0.

    The result is floating. Sums of float16 and bfloat16 add up in float32.
    """
    value = tensor(x)
    value = e.abs(e.astype(value, floating(value.dtype)))
    dims = axes_of("vector_norm", axis, value.ndim)
    if not isinstance(ord, int | float):
        fail(f"vector_norm: ord={ord!r:.40}, a Python number is right")
    if ord in (math.inf, -math.inf):
        return (most if ord > 0 else least)(value, axis=dims, keepdims=keepdims)
    if ord == 0:
        found = total(e.astype(e.astype(value, "bool"), value.dtype), axis=dims, keepdims=keepdims)
        return e.astype(found, value.dtype)
    wide = e.astype(value, accumulator(value.dtype))
    if ord == 1:
        found = total(wide, axis=dims, keepdims=keepdims)
    elif ord == 2:
        found = e.sqrt(total(e.square(wide), axis=dims, keepdims=keepdims))
    else:
        found = e.pow(total(e.pow(wide, ord), axis=dims, keepdims=keepdims), 1.0 / ord)
    return e.astype(found, value.dtype)


def norm(
    x: ArrayLike, /, ord: float | str | None = None, axis: Axes = None, *, keepdims: bool = False
) -> Tracer:
    """Compute `vector_norm` along one dim, `matrix_norm` along two; axis: None: of all, with an ord of x's dims.

    ord: None: the square root of the sum of squares.
    """
    value = tensor(x)
    dims = axes_of("norm", axis, value.ndim)
    if ord is None or len(dims) == 1:
        return vector_norm(value, axis=dims, keepdims=keepdims, ord=2 if ord is None else ord)
    if len(dims) != 2:
        fail(f"norm: ord={ord!r:.40} of {len(dims)} dims, one or two are right")
    found = matrix_norm(moveaxis(value, dims, (-2, -1)), keepdims=keepdims, ord=ord)
    return moveaxis(found, (-2, -1), dims) if keepdims else found


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: float | str = "fro") -> Tracer:
    """Compute the norm of each matrix (the last two dims): "fro", 1 and -1 (columns), inf and -inf (rows).

    Of singular values: 2 the largest, -2 the smallest, "nuc" their sum.
    """
    value = _matrices("matrix_norm", x)
    value = e.astype(value, floating(value.dtype))
    if ord == "fro":
        return vector_norm(value, axis=(-2, -1), keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        combine = {2: most, -2: least, "nuc": total}[ord]
        found = combine(svdvals(value), axis=-1)
        return expand_dims(expand_dims(found, axis=-1), axis=-1) if keepdims else found
    if ord not in (1, -1, math.inf, -math.inf):
        fail(
            f'matrix_norm: ord={ord!r:.40}: "fro", "nuc", 1, -1, 2, -2, inf and -inf are supported'
        )
    along, across = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = total(e.abs(value), axis=along, keepdims=True)
    found = (most if ord > 0 else least)(sums, axis=across, keepdims=True)
    return found if keepdims else found[..., 0, 0]


def cond(x: ArrayLike, /, p: float | str | None = None) -> Tracer:
    """Compute the condition of matrices: the norm times that of the inverse. p: as `ord` of `matrix_norm`, None: 2."""
    if p in (None, 2, -2):
        _, values, _ = svd(x, full_matrices=False)
        ends = values[..., 0], values[..., -1]
        return ends[0] / ends[1] if p != -2 else ends[1] / ends[0]
    value = _matrices("cond", x)
    value = e.astype(value, floating(value.dtype))
    return matrix_norm(value, ord=p or 2) * matrix_norm(inv(value), ord=p or 2)


def _matrices(name: str, x: ArrayLike) -> Tracer:
    value = tensor(x)
    if value.ndim < 2:
        fail(f"{name}: x has {value.ndim} dims, at least 2 are right")
    return value
