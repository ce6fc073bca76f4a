"""Traced functions of complex numbers, and Fourier transforms, against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshweave as mw

RANDOM = np.random.default_rng(4)
X = RANDOM.standard_normal((5, 6)).astype(np.float32)
Z = (X + 1j * RANDOM.standard_normal((5, 6))).astype(np.complex64)
LINE = (np.arange(6) * 1j).astype(np.complex64)
LARGE = (np.arange(30000) * 1j).astype(np.complex64)
SAME = (
    "exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh square negative reciprocal real imag conj sign abs "
    "isfinite isnan isinf positive"
)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "arithmetic": (lambda a: (a + 1j) * a - a / (a + 2) + 2.5,) * 2,
    "power": (lambda a: a**2 + a**2.5, lambda a: a**2 + a ** np.complex64(2.5)),
    "equal": (lambda a: (a == a) & (a != 1j),) * 2,
    "where": (lambda a: mw.where(mw.real(a) > 0, a, 0), lambda a: np.where(a.real > 0, a, 0 * a)),
    "sum": (lambda a: mw.sum(a, axis=0), lambda a: a.sum(0)),
    "prod": (lambda a: mw.prod(a, axis=1, keepdims=True), lambda a: a.prod(1, keepdims=True)),
    "mean": (lambda a: mw.mean(a), lambda a: a.mean()),
    "cumulative": (
        lambda a: mw.cumulative_sum(a, axis=0) + mw.cumulative_prod(a, axis=1),
        lambda a: a.cumsum(0) + a.cumprod(1),
    ),
    "matmul": (lambda a: a @ a.T + mw.real(a) @ a.T, lambda a: a @ a.T + a.real @ a.T),
    "vecdot": (lambda a: mw.vecdot(a, a), lambda a: (a.conj() * a).sum(1)),
    "norm": (lambda a: mw.linalg.vector_norm(a, axis=0), lambda a: np.linalg.norm(a, axis=0)),
    "moves": (
        lambda a: mw.concat([mw.flip(a, axis=0).T[:2], mw.reshape(a, (6, 5))]),
        lambda a: np.concatenate([a[::-1].T[:2], a.reshape(6, 5)]),
    ),
    "take": (lambda a: mw.take(a, mw.asarray([3, 1]), axis=1), lambda a: a[:, [3, 1]]),
    "constant": (lambda a: a + mw.asarray(LINE), lambda a: a + LINE),
    "list": (lambda a: a[0] + mw.asarray([1j, 2, 3, 4, 5, 6]), lambda a: a[0] + [1j, 2, 3, 4, 5, 6]),
    "captured": (lambda a: a + mw.asarray(LARGE)[:6], lambda a: a + LARGE[:6]),
    "made": (
        lambda a: mw.full((5, 6), 1 + 2j) * a + mw.zeros((6,), dtype=mw.complex64) + mw.ones_like(a),
        lambda a: (1 + 2j) * a + 1,
    ),
    "eye": (lambda a: mw.eye(5, dtype=mw.complex64) @ a, lambda a: a),
    "converted": (lambda a: mw.astype(mw.arange(6), mw.complex64) * a, lambda a: np.arange(6) * a),
    "bool": (lambda a: a.astype(mw.bool), lambda a: a.astype(bool)),
    "loop": (lambda a: mw.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * a), (0, a))[1], lambda a: a**4),
    "image": (
        lambda a: mw.fft.ifftn(mw.fft.fftn(a) * a),
        lambda a: np.fft.ifftn(np.fft.fftn(a) * a),
    ),
}  # fmt: skip


def check(
    ours: Callable[..., Any], right: Callable[..., Any], *values: Any, **options: Any
) -> None:
    program = mw.jit(ours, **options)
    for _ in range(2):
        made = np.asarray(program(*values))
    wanted = np.asarray(right(*values))
    if wanted.dtype == np.complex128:
        wanted = wanted.astype(np.complex64)
    assert made.dtype == wanted.dtype
    np.testing.assert_allclose(made, wanted, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", SAME.split())
def test_functions_of_one_number(name: str) -> None:
    check(lambda a: getattr(mw, name)(a), getattr(np, name), Z)


@pytest.mark.parametrize("mesh", [None, "x=2", "x=3"])
@pytest.mark.parametrize("name", CASES)
def test_functions_of_arrays(name: str, mesh: str | None) -> None:
    placed = {} if mesh is None else {"mesh": mesh, "in_layouts": "[x, _]"}
    check(*CASES[name], Z, **placed)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 4, 9])
@pytest.mark.parametrize("name", ["fft", "ifft", "hfft", "irfft", "rfft", "ihfft"])
def test_transforms(name: str, n: int | None, norm: str) -> None:
    value = X if name in ("rfft", "ihfft") else Z
    options = {"n": n, "norm": norm, "axis": 0}

    def right(a: Any) -> Any:
        found = getattr(np.fft, name)(a, **options)
        return found.astype(np.complex64 if found.dtype.kind == "c" else np.float32)

    check(lambda a: getattr(mw.fft, name)(a, **options), right, value)


def test_transforms_of_several_dims() -> None:
    for name, value in (("fftn", Z), ("ifftn", Z), ("rfftn", X), ("irfftn", Z)):
        right = getattr(np.fft, name)
        for options in ({}, {"s": (4, 9), "axes": (0, 1)}, {"axes": (0,)}):
            made = np.asarray(
                mw.jit(lambda a, f=name, o=options: getattr(mw.fft, f)(a, **o))(value)
            )
            np.testing.assert_allclose(made, right(value, **options), rtol=1e-4, atol=1e-4)


def test_frequencies_and_shifts() -> None:
    for n in (1, 2, 7, 8):
        check(lambda n=n: mw.fft.fftfreq(n, d=0.5), lambda n=n: np.fft.fftfreq(n, 0.5).astype("f4"))
        check(lambda n=n: mw.fft.rfftfreq(n), lambda n=n: np.fft.rfftfreq(n).astype("f4"))
    check(mw.fft.fftshift, np.fft.fftshift, Z)
    check(lambda a: mw.fft.ifftshift(a, axes=0), lambda a: np.fft.ifftshift(a, axes=0), Z)


def test_promotion() -> None:
    assert mw.result_type("f64", mw.complex64) == mw.complex128
    assert mw.result_type("f32", 1j) == mw.result_type("i64", 1j) == mw.complex64
    assert mw.result_type("f64", 1j) == mw.complex128
    assert mw.as_dtype(complex) == mw.complex64 and mw.finfo(mw.complex128).bits == 64
    assert mw.isdtype(mw.complex64, "complex floating") and not mw.isdtype(mw.complex64, "integral")
    wide = np.asarray(mw.jit(lambda a: mw.fft.fft(a))(X.astype(np.float64)))
    np.testing.assert_allclose(wide, np.fft.fft(X.astype(np.float64)), rtol=1e-12)
    check(lambda a, s: a * s, lambda a, s: a * np.complex64(s), Z, 2j)


REFUSED = (
    ["max", "sort", "floor", "asin", "var", "softmax", "argmax", "sigmoid"],
    ["max", "sort", "floor", "asin", "var", "max", "max", "sigmoid"],
)


@pytest.mark.parametrize(("name", "said"), list(zip(*REFUSED)))
def test_what_needs_an_order_is_refused(name: str, said: str) -> None:
    message = f"{said}: dtype meshweave.complex64|mw.order of complex numbers is not supported"
    with pytest.raises(mw.MeshweaveError, match=message):
        mw.jit(lambda a: getattr(mw, name)(a))(Z)
