"""Linear algebra: matmul, einsum and what is made of them. A contraction is one linalg.generic of a product and a sum;
float16 and bfloat16 add up in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.trace.builder import Body, affine_map, fail, tensor_type
from meshweave.trace.dtypes import float32
from meshweave.trace.elementwise import astype, multiply
from meshweave.trace.manipulate import expand_dims, permute_dims, squeeze
from meshweave.trace.reduce import sum
from meshweave.trace.tracer import Tracer, broadcast_shapes, operand_dtype, tensor, tracing


def contract(name: str, a: Tracer, b: Tracer, left: str, right: str, out: str) -> Tracer:
    """einsum of two tensors in letters, none twice in one operand; a dim of extent 1 broadcasts against another."""
    dtype = operand_dtype([a, b])
    if dtype.kind == "b":
        fail(f"{name}: dtype {dtype!r}, a number is right")
    letters = out + "".join(x for x in dict.fromkeys(left + right) if x not in out)
    sizes = _sizes(name, ((left, a.shape), (right, b.shape)))
    shape = tuple(sizes[x] for x in out)
    if sizes and 0 in [sizes[x] for x in letters]:
        from meshweave.trace.create import zeros

        return zeros(shape, dtype=dtype)
    wide = float32 if dtype.kind == "f" and dtype.bits == 16 else dtype
    maps = [_map(letters, left, a.shape, sizes), _map(letters, right, b.shape, sizes)]
    maps.append(_map(letters, out, shape, sizes))
    kinds = ["parallel" if x in out else "reduction" for x in letters]
    trace = tracing()
    init, type_ = trace.filled(shape, wide, 0), tensor_type(shape, wide)
    product, plus = (
        ("arith.mulf", "arith.addf") if wide.kind == "f" else ("arith.muli", "arith.addi")
    )

    def body(lines: Body, ins: list[str], acc: str) -> str:
        x, y = (lines.cast(v, t.dtype, wide) for v, t in zip(ins, (a, b)))
        return lines.op(plus, wide, acc, lines.op(product, wide, x, y))

    made = trace.generic(maps, kinds, [a, b], init, type_, body)
    return astype(Tracer(trace, made, shape, wide), dtype)


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


def matmul(x1: Any, x2: Any, /) -> Tracer:
    """The matrix product over the last two dims, the others broadcast; a vector is a row on the left, a column on the
    right.
    """
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
        from meshweave.trace.create import zeros

        whole = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        whole += (a.shape[-2:-1] if rows else ()) + (b.shape[-1:] if columns else ())
        return zeros(whole, dtype=operand_dtype([a, b]))
    used = "".join(x for x in _BATCH[:batch] if x in left + right)
    return contract("matmul", a, b, left, right, used + rows + columns)


def matrix_transpose(x: Any, /) -> Tracer:
    """The last two dims swapped."""
    given = tensor(x)
    if given.ndim < 2:
        fail(f"matrix_transpose: x has {given.ndim} dims, at least 2 are right")
    return permute_dims(given, (*range(given.ndim - 2), given.ndim - 1, given.ndim - 2))


def tensordot(
    x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tracer:
    """Sum over `axes` dims: the last of x1 with the first of x2, or a pair of lists of dims."""
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
            (_dim("tensordot", i, a.ndim), _dim("tensordot", j, b.ndim))
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


def _dim(name: str, dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        fail(f"{name}: there is no dim {dim} of {ndim} dims")
    return dim % ndim


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tracer:
    """The sum of products along `axis` (negative), the other dims broadcast."""
    a, b = tensor(x1), tensor(x2)
    if axis >= 0 or -axis > min(a.ndim, b.ndim):
        fail(f"vecdot: axis={axis}, -{min(a.ndim, b.ndim)} to -1 are right")
    if a.shape[axis] != b.shape[axis]:
        fail(f"vecdot: sizes {a.shape[axis]} and {b.shape[axis]} along the axis must be equal")
    a, b = (permute_dims(v, _last(v.ndim, axis)) for v in (a, b))
    return squeeze(matmul(expand_dims(a, -2), expand_dims(b, -1)), (-1, -2))


def _last(ndim: int, axis: int) -> tuple[int, ...]:
    dim = axis % ndim
    return (*[d for d in range(ndim) if d != dim], dim)


def outer(x1: Any, x2: Any, /) -> Tracer:
    """All products of the elements of two vectors."""
    a, b = tensor(x1), tensor(x2)
    if a.ndim != 1 or b.ndim != 1:
        fail(f"outer: {a.ndim} and {b.ndim} dims, vectors are right")
    return multiply(expand_dims(a, 1), expand_dims(b, 0))


def einsum(subscripts: str, *arrays: Any) -> Tracer:
    """Einstein's sum, `"bhqd,bhkd->bhqk"`: letters name dims, those not behind the arrow are summed over.

    Any number of operands, contracted from left to right; "..." stands for dims that broadcast. Without an arrow the
    result has the letters that stand once, in alphabetical order. A letter twice in one operand is refused.

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
            fail(f'einsum: a letter stands twice in "{term}": diagonals are not supported')
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
    return _single(result, term, out)


def _pair(a: Tracer, left: str, b: Tracer, right: str, keep: str) -> tuple[Tracer, str]:
    """Contract two; letters that only one has and nobody keeps are summed first, so that this is a product of
    matrices.
    """
    a, left = _summed(a, left, set(keep) | set(right))
    b, right = _summed(b, right, set(keep) | set(left))
    out = "".join(x for x in keep if x in left + right)
    return contract("einsum", a, b, left, right, out), out


def _summed(value: Tracer, term: str, keep: set[str]) -> tuple[Tracer, str]:
    gone = tuple(d for d, x in enumerate(term) if x not in keep)
    if not gone:
        return value, term
    summed = astype(sum(value, axis=gone), value.dtype)
    return summed, "".join(x for x in term if x in keep)


def _single(value: Tracer, term: str, out: str) -> Tracer:
    value, term = _summed(value, term, set(out))
    return permute_dims(value, tuple(term.index(x) for x in out)) if term != out else value


def _spelled(
    whole: str, terms: list[str], values: list[Tracer], out: str | None
) -> tuple[list[str], str]:
    """The terms with letters for "...", and the result's."""
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
