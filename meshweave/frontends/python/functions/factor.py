"""Define the factorisations, systems and decompositions of `meshweave.linalg` by `mw.lapack`.

A matrix that has no inverse or no factor gives NaN: a compiled program raises nothing. 16-bit floats are computed in
float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshweave.frontends.python.builder import fail, tensor_type
from meshweave.frontends.python.dtypes import accumulator, finfo, floating, int32, part
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import eye, iota, tril, triu, zeros
from meshweave.frontends.python.functions.logic import equal, greater, not_equal
from meshweave.frontends.python.functions.manipulate import broadcast_to, concat, expand_dims
from meshweave.frontends.python.functions.reduce import prod
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Tracer, broadcast_shapes, tensor, tracing
from meshweave.ir.routines import COMPLEX, PARTS, RoutineCall


class EigResult(NamedTuple):
    """Hold the eigenvalues of matrices, in no order, and their eigenvectors as columns; both are complex."""

    eigenvalues: Tracer
    eigenvectors: Tracer


class EighResult(NamedTuple):
    """Hold the eigenvalues of symmetric matrices, the smallest first, and their eigenvectors as columns."""

    eigenvalues: Tracer
    eigenvectors: Tracer


class QRResult(NamedTuple):
    """Hold the factors of x = Q R."""

    Q: Tracer
    R: Tracer


class SlogdetResult(NamedTuple):
    """Hold the sign of a determinant, and the logarithm of its magnitude."""

    sign: Tracer
    logabsdet: Tracer


class SVDResult(NamedTuple):
    """Hold the factors of x = U diag(S) Vh; S is the largest first."""

    U: Tracer
    S: Tracer
    Vh: Tracer


@primitive
def cholesky(x: ArrayLike, /, *, upper: bool = False) -> Tracer:
    """Factor positive matrices: x = L Lᴴ, or Uᴴ U where `upper`. Only that triangle of x is read."""
    factor, info = _call("cholesky", "potrf", [x], () if upper else ("lower",))
    return _or_nan(triu(factor) if upper else tril(factor), info)


@primitive
def qr(x: ArrayLike, /, *, mode: str = "reduced") -> QRResult:
    """Factor matrices x = Q R, R upper triangular; mode: "reduced", or "complete" for a square Q."""
    if mode not in ("reduced", "complete"):
        fail(f'qr: mode={mode!r:.40}, "reduced" or "complete" is right')
    packed, scales = _call("qr", "geqrf", [x])
    *batch, m, n = packed.shape
    k = min(m, n)
    first, r = packed[..., :k], triu(packed)
    if mode == "reduced":
        return QRResult(_call("qr", "orgqr", [first, scales])[0], r[..., :k, :])
    rest = zeros((*batch, m, m - k), dtype=packed.dtype)
    return QRResult(_call("qr", "orgqr", [concat([first, rest], axis=-1), scales])[0], r)


@primitive
def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """Decompose matrices x = U diag(S) Vh; full_matrices: whether U and Vh are square."""
    routine = "gesdd_full" if full_matrices else "gesdd"
    values, u, vh, info = _call("svd", routine, [x])
    return SVDResult(_or_nan(u, info), _or_nan(values, info), _or_nan(vh, info))


@primitive
def svdvals(x: ArrayLike, /) -> Tracer:
    """Compute the singular values of matrices, the largest first."""
    return _or_nan(*_call("svdvals", "gesdd_values", [x]))


@primitive
def eigh(x: ArrayLike, /) -> EighResult:
    """Decompose symmetric (Hermitian) matrices, of which the lower triangle is read: x V = V diag(w)."""
    vectors, values, info = _call("eigh", "syevd", [x], ("lower",))
    return EighResult(_or_nan(values, info), _or_nan(vectors, info))


@primitive
def eigvalsh(x: ArrayLike, /) -> Tracer:
    """Compute the eigenvalues of symmetric (Hermitian) matrices, the smallest first; the lower triangle is read."""
    return _or_nan(*_call("eigvalsh", "syevd_values", [x], ("lower",)))


@primitive
def eig(x: ArrayLike, /) -> EigResult:
    """Decompose square matrices: x V = V diag(w), w and V complex, each column of V of length 1."""
    *values, vectors, info = _call("eig", "geev_right", [_wide(x)])
    return EigResult(_or_nan(_joined(values), info), _or_nan(vectors, info))


@primitive
def eigvals(x: ArrayLike, /) -> Tracer:
    """Compute the eigenvalues of square matrices, complex and in no order."""
    *values, info = _call("eigvals", "geev_values", [_wide(x)])
    return _or_nan(_joined(values), info)


def _wide(x: ArrayLike) -> Tracer:
    """Return numbers in the type that their complex results have the parts of."""
    value = tensor(x)
    return e.astype(value, accumulator(floating(value.dtype)))


def _joined(values: Sequence[Tracer]) -> Tracer:
    """Return complex numbers: as they are, or of real and imaginary parts."""
    return values[0] if len(values) == 1 else e.of_parts(*values)


@primitive
def solve(x1: ArrayLike, x2: ArrayLike, /) -> Tracer:
    """Solve x1 y = x2 for matrices x1; x2: matrices whose columns are right sides, or one vector."""
    matrices, sides = e.alike(x1, x2)
    y = _solved("solve", matrices, expand_dims(sides, axis=-1) if sides.ndim == 1 else sides)
    return y[..., 0] if sides.ndim == 1 else y


@primitive
def inv(x: ArrayLike, /) -> Tracer:
    """Invert matrices."""
    value = tensor(x)
    if value.ndim < 2:
        fail(f"inv: x has {value.ndim} dims, at least 2 are right")
    return _solved("inv", value, eye(value.shape[-1], dtype=floating(value.dtype)))


@primitive
def det(x: ArrayLike, /) -> Tracer:
    """Compute the determinants of matrices."""
    factors, pivots, _ = _call("det", "getrf", [x])
    return e.multiply(_parity(pivots, factors), prod(_diagonal(factors), axis=-1))


@primitive
def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """Compute the signs and the logarithms of the magnitudes of determinants."""
    factors, pivots, _ = _call("slogdet", "getrf", [x])
    diagonal = _diagonal(factors)
    sign = e.multiply(_parity(pivots, factors), prod(e.sign(diagonal), axis=-1))
    return SlogdetResult(sign, total(e.log(e.abs(diagonal)), axis=-1))


@primitive
def pinv(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tracer:
    """Compute pseudo-inverses; singular values of at most `rtol` times the largest one count as 0."""
    u, values, vh = svd(x, full_matrices=False)
    kept = greater(values, _limit(values, u, vh, rtol))
    inverse = e.where(kept, e.divide(1.0, e.where(kept, values, 1.0)), 0.0)
    return e.multiply(e.conj(vh).mT, expand_dims(inverse, axis=-2)) @ e.conj(u).mT


def matrix_rank(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tracer:
    """Count the singular values that are larger than `rtol` times the largest one, as int64."""
    u, values, vh = svd(x, full_matrices=False)
    return total(e.astype(greater(values, _limit(values, u, vh, rtol)), "int64"), axis=-1)


def matrix_power(x: ArrayLike, n: int, /) -> Tracer:
    """Multiply square matrices by themselves, `n` times in all; a negative n takes powers of the inverse."""
    value = inv(x) if n < 0 else tensor(x)
    if n == 0:
        return broadcast_to(eye(value.shape[-1], dtype=value.dtype), value.shape)
    found, square, left = None, value, n if n > 0 else -n
    while left:
        if left % 2:
            found = square if found is None else found @ square
        left //= 2
        square = square @ square if left else square
    assert found is not None
    return found


def _call(
    name: str, routine: str, operands: Sequence[ArrayLike], flags: Sequence[str] = ()
) -> list[Tracer]:
    """Call a routine on matrices; return its results, those of floats in the type of the first operand."""
    first = tensor(operands[0])
    e.checked(name, [first], "fibc")
    given = floating(first.dtype)
    wide = accumulator(given)
    values = [e.astype(first, wide)]
    values += [x if x.dtype == int32 else e.astype(x, wide) for x in map(tensor, operands[1:])]
    _check(name, routine, values)
    is_complex = wide.kind == "c"
    if is_complex:
        routine += COMPLEX
        values = [_in_parts(x) if x.dtype == wide else x for x in values]
        wide = part(wide)
    call = RoutineCall.made(routine, wide.name, [value.shape for value in values], flags)
    kinds = [int32 if kind == "i32" else wide for kind in call.row.types("")][len(values) :]
    shapes = [tuple(shape) for shape in call.shapes[len(values) :]]
    made = _add(routine, flags, values, [tensor_type(s, k) for s, k in zip(shapes, kinds)])
    trace, dims = tracing(*values), call.row.tensors[len(values) :]
    results = list[Tracer]()
    for own, shape, kind, letters in zip(made, shapes, kinds, dims):
        value = Tracer(trace, own, shape, kind)
        if letters.endswith(PARTS):
            value = e.of_parts(value[..., 0], value[..., 1])
        elif kind != int32 and not is_complex:
            value = e.astype(value, given)
        results.append(value)
    return results


def _in_parts(x: Tracer) -> Tracer:
    """Return complex numbers as real ones, both parts in a last dim."""
    return concat([expand_dims(v, axis=-1) for v in (e.real(x), e.imag(x))], axis=-1)


def _check(name: str, routine: str, values: Sequence[Tracer]) -> None:
    """Refuse what are no matrices, or not square ones where these are needed."""
    for value, dims in zip(
        values, RoutineCall.made(routine, "", [v.shape for v in values]).row.tensors
    ):
        if value.ndim < len(dims):
            fail(f"{name}: x has {value.ndim} dims, at least {len(dims)} are right")
        if dims == "nn" and value.shape[-1] != value.shape[-2]:
            fail(f"{name}: matrices of shape {list(value.shape[-2:])}, square ones are right")


def _add(
    routine: str, flags: Sequence[str], values: Sequence[Tracer], types: Sequence[str]
) -> list[str]:
    """Add an `mw.lapack`; return the names of its results."""
    trace = tracing(*values)
    said = ", ".join([f'routine = "{routine}"', *flags])
    names, given = ", ".join(map(trace.name, values)), ", ".join(v.type for v in values)
    made = trace.fresh()
    text = f'"mw.lapack"({names}) {{{said}}} : ({given}) -> ({", ".join(types)})'
    trace.block.lines.append(f"{made}:{len(types)} = {text}{trace.loc()}")
    return [f"{made}#{k}" for k in range(len(types))]


def _solved(name: str, x1: ArrayLike, x2: Tracer) -> Tracer:
    """Solve systems by LU; batches broadcast, and factors are made once for each matrix of x1."""
    factors, pivots, info = _call(name, "getrf", [x1])
    if x2.shape[-2] != factors.shape[-1]:
        fail(f"{name}: {x2.shape[-2]} rows in x2, {factors.shape[-1]} are right")
    batch = broadcast_shapes(factors.shape[:-2], x2.shape[:-2])
    sides = broadcast_to(e.astype(x2, factors.dtype), (*batch, *x2.shape[-2:]))
    factors = broadcast_to(factors, (*batch, *factors.shape[-2:]))
    pivots = broadcast_to(pivots, (*batch, pivots.shape[-1]))
    (once,) = _call(name, "laswp", [sides, pivots])
    (once,) = _call(name, "trsm_left", [factors, once], ("lower", "unit"))
    return _or_nan(_call(name, "trsm_left", [factors, once])[0], info)


def _or_nan(value: Tracer, info: Tracer) -> Tracer:
    """Return results, NaN where a routine failed."""
    failed = not_equal(info, 0)
    for _ in range(value.ndim - info.ndim):
        failed = expand_dims(failed, axis=-1)
    return e.where(failed, float("nan"), value)


def _diagonal(x: Tracer) -> Tracer:
    """Return the main diagonals of square matrices."""
    rows, columns = (iota(x.shape, x.ndim - d, int32) for d in (2, 1))
    return total(e.where(equal(rows, columns), x, 0.0), axis=-1)


def _parity(pivots: Tracer, like: Tracer) -> Tracer:
    """Return -1 where an odd number of rows is swapped, else 1."""
    own = e.add(iota(pivots.shape, pivots.ndim - 1, int32), 1)
    swaps = total(e.astype(not_equal(pivots, own), "int64"), axis=-1)
    return e.astype(e.subtract(1, e.multiply(2, e.remainder(swaps, 2))), like.dtype)


def _limit(values: Tracer, u: Tracer, vh: Tracer, rtol: ArrayLike | None) -> Tracer:
    """Return what singular values must be larger than, not to count as 0."""
    if rtol is None:
        rtol = finfo(values.dtype).eps * max(u.shape[-2], vh.shape[-1])
    factor = tensor(rtol)
    factor = expand_dims(factor, axis=-1) if factor.ndim else factor
    return e.multiply(e.astype(factor, values.dtype), values[..., :1])
