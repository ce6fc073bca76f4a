"""Define `meshweave.fft`, the array API's extension: discrete Fourier transforms by `mw.fft`, one dim after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from meshweave.frontends.python.builder import fail, tensor_type
from meshweave.frontends.python.dtypes import (
    DType,
    DTypeLike,
    complex_of,
    default_floating,
    float32,
    floating,
    part,
)
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import arange, zeros
from meshweave.frontends.python.functions.manipulate import axes_of, axis_of, concat, roll
from meshweave.frontends.python.tape import primitive
from meshweave.frontends.python.tracer import ArrayLike, Axes, Device, Tracer, tensor, tracing

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

_NORMS = ("backward", "ortho", "forward")


def fft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tracer:
    """Transform along `axis`, n elements: cut off, or filled up with zeros.

    norm: "backward" scales `ifft` by 1/n, "forward" this, "ortho" both by 1/sqrt(n).
    """
    return _one("fft", "fft", x, n, axis, norm)


def ifft(
    x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tracer:
    """Undo `fft`."""
    return _one("ifft", "ifft", x, n, axis, norm)


def rfft(
    x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tracer:
    """Transform real numbers along `axis`: the first n // 2 + 1 elements of `fft`, whose conjugates the others are."""
    return _one("rfft", "rfft", x, n, axis, norm)


def irfft(
    x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tracer:
    """Undo `rfft`; n: how many real numbers come out, by default an even number."""
    return _one("irfft", "irfft", x, n, axis, norm)


def hfft(
    x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tracer:
    """Transform numbers whose other half is their conjugates: to n real ones, by default an even number."""
    return irfft(e.conj(x), n=n, axis=axis, norm=_other_way("hfft", norm))


def ihfft(
    x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Tracer:
    """Undo `hfft`."""
    return e.conj(rfft(x, n=n, axis=axis, norm=_other_way("ihfft", norm)))


def _other_way(name: str, norm: str) -> str:
    """Return the norm of the transform that goes the other way."""
    _check_norm(name, norm)
    return _NORMS[2 - _NORMS.index(norm)]


def fftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Tracer:
    """Transform along several dims, by default all, or the last ones where s says how many elements along each."""
    value, dims, sizes = _dims("fftn", x, s, axes)
    for dim, n in zip(dims, sizes):
        value = fft(value, n=n, axis=dim, norm=norm)
    return value


def ifftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Tracer:
    """Undo `fftn`."""
    value, dims, sizes = _dims("ifftn", x, s, axes)
    for dim, n in zip(dims, sizes):
        value = ifft(value, n=n, axis=dim, norm=norm)
    return value


def rfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Tracer:
    """Transform real numbers along several dims, the last one by `rfft`."""
    value, dims, sizes = _dims("rfftn", x, s, axes)
    value = rfft(value, n=sizes[-1], axis=dims[-1], norm=norm)
    return fftn(value, s=sizes[:-1], axes=dims[:-1], norm=norm)


def irfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Tracer:
    """Undo `rfftn`."""
    value, dims, sizes = _dims("irfftn", x, s, axes)
    value = ifftn(value, s=sizes[:-1], axes=dims[:-1], norm=norm)
    return irfft(value, n=None if s is None else sizes[-1], axis=dims[-1], norm=norm)


def _dims(
    name: str, x: ArrayLike, s: Sequence[int] | None, axes: Axes
) -> tuple[Tracer, tuple[int, ...], tuple[int, ...]]:
    """Return a tensor, the dims to transform, and how many elements along each."""
    value = tensor(x)
    if axes is None:
        count = value.ndim if s is None else len(s)
        dims = tuple(range(value.ndim - count, value.ndim))
    else:
        dims = tuple(
            axis_of(name, a, value.ndim) for a in ([axes] if isinstance(axes, int) else axes)
        )
    sizes = tuple(value.shape[d] for d in dims) if s is None else tuple(s)
    if len(sizes) != len(dims) or (not dims and name.startswith(("rfft", "irfft"))):
        fail(f"{name}: {len(sizes)} sizes for {len(dims)} dims")
    return value, dims, sizes


def _check_norm(name: str, norm: str) -> None:
    if norm not in _NORMS:
        fail(f"{name}: norm={norm!r:.40}, {', '.join(_NORMS)} are right")


def _one(name: str, kind: str, x: ArrayLike, n: int | None, axis: int, norm: str) -> Tracer:
    """Transform along one dim."""
    value = tensor(x)
    _check_norm(name, norm)
    dim = axis_of(name, axis, value.ndim)
    if kind == "rfft" and value.dtype.kind == "c":
        e.refuse(name, value.dtype, "a real one")
    wide = floating(value.dtype)
    wide = wide if wide.bits > 16 else float32
    given = e.astype(value, wide if kind == "rfft" else complex_of(wide))
    size = value.shape[dim]
    length = n if n is not None else 2 * (size - 1) if kind == "irfft" else size
    if length < 1:
        fail(f"{name}: n={length}, at least 1 is right")
    given = _fitted(given, dim, length // 2 + 1 if kind == "irfft" else length)
    made = _transformed(given, kind, dim, length)
    scale = _scale(kind, length, norm)
    return made if scale == 1.0 else e.multiply(made, scale)


def _scale(kind: str, length: int, norm: str) -> float:
    """Return what to multiply a result with: the op itself scales transforms back by 1/n."""
    back = kind in ("ifft", "irfft")
    if norm == "ortho":
        return math.sqrt(length) if back else 1 / math.sqrt(length)
    if norm == "forward":
        return float(length) if back else 1 / length
    return 1.0


def _fitted(value: Tracer, dim: int, size: int) -> Tracer:
    """Cut a dim off behind `size` elements, or fill it up with zeros."""
    own = value.shape[dim]
    if size <= own:
        key = (*[slice(None)] * dim, slice(size))
        return value if size == own else value[key]
    rest = (*value.shape[:dim], size - own, *value.shape[dim + 1 :])
    return concat([value, zeros(rest, dtype=value.dtype)], axis=dim)


@primitive
def _transformed(value: Tracer, kind: str, dim: int, length: int) -> Tracer:
    made: DType = part(value.dtype) if kind == "irfft" else complex_of(value.dtype)
    size = length // 2 + 1 if kind == "rfft" else length
    shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
    trace, type_ = tracing(value), tensor_type(shape, made)
    said = f'kind = "{kind}", dim = {dim} : i64, length = {length} : i64'
    name = trace.let(f'"mw.fft"({trace.name(value)}) {{{said}}} : ({value.type}) -> {type_}')
    return Tracer(trace, name, shape, made)


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device = None
) -> Tracer:
    """Return the frequencies of the elements of `fft` of n samples `d` apart: from 0, then negative ones."""
    if n < 1:
        fail(f"fftfreq: n={n}, at least 1 is right")
    index = arange(n, dtype=dtype or default_floating(), device=device)
    half = (n + 1) // 2
    return e.divide(e.where(index < half, index, e.subtract(index, n)), float(n * d))


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device = None
) -> Tracer:
    """Return the frequencies of the elements of `rfft` of n samples `d` apart."""
    if n < 1:
        fail(f"rfftfreq: n={n}, at least 1 is right")
    index = arange(n // 2 + 1, dtype=dtype or default_floating(), device=device)
    return e.divide(index, float(n * d))


def _shift(name: str, doc: str, places: Callable[[int], int]) -> Callable[..., Tracer]:
    def function(x: ArrayLike, /, *, axes: Axes = None) -> Tracer:
        value = tensor(x)
        for dim in axes_of(name, axes, value.ndim):
            value = roll(value, places(value.shape[dim]), axis=dim)
        return value

    return e.named(function, name, doc)


fftshift = _shift(
    "fftshift", "Move frequency 0 to the middle of `axes`, by default all.", lambda n: n // 2
)
ifftshift = _shift("ifftshift", "Undo `fftshift`.", lambda n: -(n // 2))
