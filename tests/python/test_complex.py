"""Traced functions of complex numbers, and Fourier transforms, against NumPy."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from depth import sampled, some

import meshweave as mw

RANDOM = np.random.default_rng(4)
X = RANDOM.standard_normal((5, 6)).astype(np.float32)
Z = (X + 1j * RANDOM.standard_normal((5, 6))).astype(np.complex64)
LINE = (np.arange(6) * 1j).astype(np.complex64)
LARGE = (np.arange(30000) * 1j).astype(np.complex64)
SAME = (
    "exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh acos asin atan acosh asinh atanh "
    "square negative reciprocal real imag conj sign abs isfinite isnan isinf positive"
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


@pytest.mark.parametrize("name", some(SAME.split(), 3))
def test_functions_of_one_number(name: str) -> None:
    check(lambda a: getattr(mw, name)(a), getattr(np, name), Z)


@sampled(2)
@pytest.mark.parametrize("mesh", [None, "x=2", "x=3"])
@pytest.mark.parametrize("name", CASES)
def test_functions_of_arrays(name: str, mesh: str | None) -> None:
    placed = {} if mesh is None else {"mesh": mesh, "in_layouts": "[x, _]"}
    check(*CASES[name], Z, **placed)


@sampled(4)
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


@sampled(2)
@np.errstate(all="ignore")
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_functions_are_right_near_branch_points_and_far_out(dtype: str) -> None:
    """Both parts, to a few units in the last place of each; the sides of cuts by the signs of zeros."""
    info, rng = np.finfo(dtype), np.random.default_rng(1)
    size = 10.0 ** rng.uniform(-6, 1.8, (2, 400))
    near = rng.choice([1, -1, 0.0, -0.0], (2, 400)) + 10.0 ** rng.uniform(-6, -1, (2, 400))
    cut = rng.choice([0.0, -0.0, 1, -1, 0.5, 2, -2, 50], (2, 200))
    parts = np.concatenate([size * rng.choice([1, -1], size.shape), near, cut], axis=1)
    z = np.empty(parts.shape[1], dtype)
    z.real, z.imag = parts
    wide = np.empty(z.shape, np.clongdouble)
    wide.real, wide.imag = z.real, z.imag
    for name in [
        "exp",
        "log",
        "log2",
        "log10",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "acos",
        "asin",
        "atan",
        "acosh",
        "asinh",
        "atanh",
    ]:
        found = np.asarray(getattr(mw, name)(mw.asarray(z)))
        right = getattr(np, name)(wide)
        for part in ("real", "imag"):
            x, y = getattr(found, part), getattr(right, part)
            seen = np.isfinite(y.astype(x.dtype)) & (np.abs(y) > 1e-20)
            worst = np.max(np.abs(x - y)[seen] / np.abs(y[seen])) / info.eps
            assert worst <= 5, (name, part, worst)
            zero = (y == 0) & (name not in ("cosh", "cos"))  # NumPy's sign of a product of zeros
            assert np.all((x == 0)[zero]), (name, part)


def test_python_numbers_keep_their_digits() -> None:
    z, v = np.zeros(2, np.complex128), 16777217j
    for found in (
        mw.asarray(z) + v,
        mw.jit(lambda a, s: a + s)(z, v),
        mw.full((2,), v, dtype="complex128"),
    ):
        assert found.tolist() == [v, v]
    for third in (mw.asarray(z) + 1 / 3, mw.jit(lambda a, s: a + s)(z, 1 / 3)):  # not by float32
        assert third.tolist() == [1 / 3 + 0j] * 2
    assert (mw.asarray(Z) * v).dtype == mw.jit(lambda s: s * 2)(v).dtype == np.complex64


@np.errstate(all="ignore")
def test_functions_hold_for_huge_and_tiny_numbers() -> None:
    huge, tiny = 1.5e308, 5e-324
    z = np.array([huge + huge * 1j, tiny + tiny * 1j, complex(5e-155, tiny), 0, -1])
    wide = z.astype(np.clongdouble)

    def functions(x: mw.Array) -> tuple[mw.Array, ...]:
        return mw.abs(x), mw.sign(x), mw.sqrt(x), mw.log(x), mw.pow(x, 2.5 - 1j), mw.sinh(x)

    given = np.append(z, 710.5 + 1.57j)
    found = [np.asarray(v) for v in mw.jit(functions)(given)]
    (size, sign, root, log, power), sinh = [v[:5] for v in found[:5]], found[5][5]
    np.testing.assert_array_equal(size, np.abs(wide).astype(float))
    diagonal = np.sqrt(0.5) * (1 + 1j)
    np.testing.assert_allclose(sign, [diagonal, diagonal, 1, 0, -1], rtol=1e-15)
    np.testing.assert_allclose(root, np.sqrt(wide).astype(complex), rtol=1e-15)
    assert root[2].imag > 0 and root[4] == 1j  # and not 6e-17 beside it
    np.testing.assert_allclose(log, np.log(wide).astype(complex), rtol=1e-15)
    np.testing.assert_allclose(sinh, complex(np.sinh(np.clongdouble(given[5]))), rtol=1e-12)
    assert power[3] == 0


def test_logarithms_keep_digits_near_the_unit_circle() -> None:
    """Near it |z|**2 - 1 cancels: the sum of exact squares is the oracle."""
    rng = np.random.default_rng(2)
    length = 1 + rng.choice([1, -1], 300) * 10.0 ** rng.uniform(-13, -2, 300)
    z = length * np.exp(1j * rng.uniform(0, 7, 300))
    for name, one in (("log", 0), ("log1p", 1)):
        w = z - one
        exact = [float((Fraction(v.real) + one) ** 2 + Fraction(v.imag) ** 2 - 1) for v in w]
        found = np.asarray(getattr(mw, name)(mw.asarray(w))).real
        np.testing.assert_allclose(found, np.log1p(exact) / 2, rtol=1e-15)


SPECIAL = {
    "exp": [(-np.inf, np.inf, 0, 0), (np.inf, np.nan, np.inf, np.nan), (np.nan, 0, np.nan, 0)],
    "expm1": [(-np.inf, np.nan, -1, 0), (np.inf, np.inf, np.inf, np.nan)],
    "log": [(np.inf, np.nan, np.inf, np.nan), (np.nan, np.inf, np.inf, np.nan), (-0.0, 0, -np.inf, np.pi)],
    "log1p": [(-1, 0, -np.inf, 0)],
    "sqrt": [(-np.inf, np.nan, np.nan, np.inf), (np.nan, np.inf, np.inf, np.inf), (-0.0, 0, 0, 0)],
    "sinh": [(np.inf, 0, np.inf, 0), (0, np.inf, 0, np.nan), (np.inf, np.nan, np.inf, np.nan)],
    "cosh": [(np.inf, 0, np.inf, 0), (0, np.inf, np.nan, 0), (np.nan, 0, np.nan, 0)],
    "tanh": [(np.inf, 3, 1, 0), (np.inf, np.nan, 1, 0), (0, np.nan, 0, np.nan), (30, np.nan, np.nan, np.nan)],
    "acos": [(0, np.nan, np.pi / 2, np.nan), (-np.inf, np.inf, 3 * np.pi / 4, -np.inf)],
    "acosh": [(-np.inf, 1, np.inf, np.pi), (np.nan, np.inf, np.inf, np.nan)],
    "asinh": [(np.nan, 0, np.nan, 0), (np.inf, np.inf, np.inf, np.pi / 4)],
    "atanh": [(1, 0, np.inf, 0), (np.inf, np.nan, 0, np.nan), (2, np.inf, 0, np.pi / 2)],
    "sign": [(0, -0.0, 0, 0)],
}  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_are_those_of_the_standard(name: str) -> None:
    rows = np.array(SPECIAL[name])
    z = np.empty(len(rows), np.complex128)
    z.real, z.imag = rows[:, 0], rows[:, 1]
    found = np.asarray(getattr(mw, name)(mw.asarray(z)))
    np.testing.assert_allclose(np.abs(found.real), np.abs(rows[:, 2]), rtol=1e-15)
    np.testing.assert_allclose(np.abs(found.imag), np.abs(rows[:, 3]), rtol=1e-15)


REFUSED = (
    ["max", "sort", "floor", "erf", "var", "softmax", "argmax", "sigmoid"],
    ["max", "sort", "floor", "erf", "var", "max", "max", "sigmoid"],
)


@pytest.mark.parametrize(("name", "said"), list(zip(*REFUSED)))
def test_what_needs_an_order_is_refused(name: str, said: str) -> None:
    message = f"{said}: dtype meshweave.complex64|mw.sort by complex numbers is not supported"
    with pytest.raises(mw.MeshweaveError, match=message):
        mw.jit(lambda a: getattr(mw, name)(a))(Z)
